"""How the page of bench/report looks: light, dark, on a phone and on paper."""
from shared.results_files import COLOURS, COLOURS_DARK


def colours(named):
    return " ".join(f"--{name}: {colour};" for name, colour in named.items())


STYLE = f"""
:root {{ --ink: #1c1c1e; --soft: #5b5b60; --line: #d9d9de; --paper: #fff; --band: #f4f4f6; --bad: #b00020; --good: #1b6e3c; --rate: #56b4e9;
  {colours(COLOURS)} }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #ececf0; --soft: #a5a5ad; --line: #3a3a40; --paper: #17171a; --band: #222227;
  --bad: #ff8a96; --good: #7fd6a0; color-scheme: dark;
  {colours(COLOURS_DARK)} }} }}
""" + """
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto; padding: 1rem;
  max-width: 72rem; overflow-wrap: anywhere; }
h1 { line-height: 1.2; margin: 0.5rem 0; } h2 { margin: 3rem 0 0.25rem; line-height: 1.25; } h3 { margin: 1.5rem 0 0.5rem; font-size: 1rem; }
.soft { color: var(--soft); } a { color: inherit; }
nav ul { columns: 20rem; padding-left: 1.2rem; }
.legend { display: flex; flex-wrap: wrap; gap: 0.25rem 1rem; font-size: 0.85rem; margin: 0.5rem 0; padding: 0; list-style: none; }
.legend i { display: inline-block; width: 0.9em; height: 0.9em; margin-right: 0.35em; vertical-align: -0.1em; }
.rows { display: grid; grid-template-columns: minmax(8rem, 14rem) minmax(0, 3fr) minmax(0, 2fr); gap: 0.45rem 1rem; align-items: start; }
.rows.two { grid-template-columns: minmax(10rem, 17rem) minmax(0, 1fr); }
.rows .head { font-size: 0.85rem; color: var(--soft); border-bottom: 1px solid var(--line); }
.name { font-size: 0.95rem; line-height: 1.25; }
.name small { display: block; color: var(--soft); }
.oom { color: var(--bad); font-weight: 700; }
.axis { position: relative; height: 1.3rem; font-size: 0.75rem; color: var(--soft); border-top: 1px solid var(--soft); }
.axis span { position: absolute; top: 0.1rem; transform: translateX(-50%); white-space: nowrap; }
.axis span:first-child { transform: none; }
.axis span::before { content: ""; position: absolute; top: -0.1rem; left: 50%; height: 0.25rem; border-left: 1px solid var(--soft); }
.axis span:first-child::before { left: 0; } .axis .last { transform: translateX(-100%); } .axis .last::before { left: 100%; }
.plot { position: relative; height: 1.5rem; background: var(--band); }
.plot .bar { position: absolute; inset: 0 auto 0 0; display: flex; }
.plot .bar span { display: block; height: 100%; }
.plot.over .bar { opacity: 0.55; }
.plot .reserved { position: absolute; inset: 0 auto 0 0; border: 2px solid var(--ink); }
.plot .budget { position: absolute; top: -0.2rem; bottom: -0.1rem; border-left: 2px dashed var(--bad); }
.plot .rate { position: absolute; top: 20%; height: 60%; left: 0; background: var(--rate); }
.plot .spread { position: absolute; top: calc(50% - 1px); border-top: 2px solid var(--ink); }
.plot .kept { position: absolute; inset: 0 auto 0 0; background: var(--good); }
.ladder .plot { height: 0.9rem; background: var(--line); }
.figure { font-size: 0.8rem; line-height: 1.2; margin-top: 0.2rem; font-variant-numeric: tabular-nums; }
.sides { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 0 1.5rem; align-items: start; }
.sides > * { min-width: 0; }
figure { margin: 0.75rem 0; max-width: 42rem; } figcaption { font-size: 0.9rem; margin-bottom: 0.25rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; min-width: 100%; }
th, td { padding: 0.3rem 0.6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; overflow-wrap: normal; }
th:first-child, td:first-child { text-align: left; }
.claims { padding: 0; list-style: none; } .claims li { border-left: 4px solid var(--line); padding: 0.1rem 0 0.1rem 0.7rem; margin: 0.5rem 0; }
.claims .holds { border-color: var(--good); } .claims .fails { border-color: var(--bad); }
.claims b.holds { color: var(--good); } .claims b.fails { color: var(--bad); }
svg { display: block; width: 100%; height: auto; background: var(--band); }
svg text { font-size: 14px; fill: var(--ink); } svg .faint { fill: var(--soft); }
svg .grid { stroke: var(--line); } svg .edge { stroke: var(--soft); } svg .limit { stroke: var(--bad); stroke-width: 2; stroke-dasharray: 6 4; }
svg .over { fill: var(--bad); }
/* A value shows while its part of the picture is pointed at or touched; the words in its place make room. */
.hit rect { fill: transparent; } .hit:hover rect { fill: var(--ink); fill-opacity: 0.12; } .hit text { visibility: hidden; }
.hit:hover text { visibility: visible; } svg:has(.hit:hover) .rest { visibility: hidden; }
details > summary { cursor: pointer; margin: 0.75rem 0; }
.problem { color: var(--bad); }
@media (max-width: 40rem) {
  body { font-size: 15px; padding: 0.75rem; }
  .rows, .rows.two { grid-template-columns: minmax(0, 1fr); gap: 0.2rem; } .rows .head, .rows .blank { display: none; }
  .name { margin-top: 0.7rem; font-weight: 600; } .name small { font-weight: 400; } .axis { margin-top: 0.5rem; }
}
@media print {
  :root { --ink: #000; --soft: #444; --line: #bbb; --paper: #fff; --band: #f2f2f2; --bad: #900; --good: #060; color-scheme: light; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  body { max-width: none; font-size: 10pt; padding: 0; } section { break-before: page; } nav { display: none; }
  .rows > *, .claims li, tr, svg { break-inside: avoid; } .scroll { overflow: visible; } table { font-size: 7.5pt; }
  th, td { padding: 0.15rem 0.3rem; white-space: normal; } h2, h3, h3 + p { break-after: avoid; }
}
"""
