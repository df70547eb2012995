"""A finding as text: the answer, what to do first, and tables; the rest with --all."""
import pathlib

from explaining.layout import WIDTH, columns, wrapped
from explaining.snapshot_findings import compare
from explaining.snapshot_words import say, shown

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FIGURES = 23  # columns of a size and a share beside a name
ROWS = 6  # of each table without --all
LEAST_SHARE = 0.005


def table(rows, indent="  "):
    """Rows of (text, size, share, more): text to the left, sizes to the right; a name that leaves no room for the rest loses its beginning."""
    most = WIDTH - len(indent) - FIGURES - max((columns(row[3]) for row in rows), default=0)
    rows = [(short(row[0], min(60, most)), *row[1:]) for row in rows]
    left = max((columns(row[0]) for row in rows), default=0)
    return [f"{indent}{row[0]}{' ' * (left - columns(row[0]))}  {row[1]:>11}  {row[2]:>4}{'  ' + row[3] if row[3] else ''}".rstrip()
            for row in rows]


def percent(part, whole):
    return f"{100 * part / whole:.0f}" if whole else "0"


def short(text, width=60):
    return text if columns(text) <= width else "..." + text[-(width - 3):]


def chapters(numbers, language):
    return ("、" if language == "zh" else ", ").join(f"chapters/{folder.name}" for number in numbers for folder in sorted(ROOT.glob(f"chapters/{number}_*")))


class Text:
    """`name`: of the file, as it is shown."""

    def __init__(self, finding, language, name):
        self.finding, self.language, self.name = finding, language, name

    def say(self, key, **values):
        return say(key, self.language, **values)

    def bytes(self, size):
        return shown(size, self.language)

    def place(self, text):
        return self.say(text) if text in ("?older", "?thread", "?none") else short(text)

    def head(self):
        f = self.finding
        text = self.say("head", file=short(self.name), device=f.recording.device, events=f"{f.recording.events:,}")
        if f.growth.rounds:
            text += self.say("and") + self.say("head_rounds", rounds=len(f.growth.rounds.starts), place=short(f.growth.rounds.place))
        return text + ("" if f.recording.events else self.say("and") + self.say("no_trace"))

    def refused_place(self):
        stack = self.finding.recording.stacks.all[self.finding.refusal.stack]
        return self.place(stack.place() or "?none")

    def sentence(self):
        """What filled it."""
        f, r = self.finding, self.finding.refusal
        if f.cause == "leak":
            live = sum(size for _, _, size in f.growing)
            return self.say("leak" if len(f.growing) < 3 else "leak_graph", per_round=self.bytes(f.growth.per_round), count=len(f.growing),
                            place=self.place(f.growing[0][0]), live=self.bytes(live), total=self.bytes(f.live))
        if f.cause in ("fragmentation", "elsewhere", "limit", "alone"):
            return self.say(f.cause, asked=self.bytes(r.asked), cached=self.bytes(sum(r.pieces)), free=self.bytes(r.device_free), largest=self.bytes(r.largest),
                            elsewhere=self.bytes(r.elsewhere), reserved=self.bytes(r.reserved))
        if f.cause == "empty":
            return self.say("empty")
        category, size = f.by_category[0]
        place, most = f.line_of(category)
        values = dict(category=self.say(category), size=self.bytes(size), total=self.bytes(f.live), share=percent(size, f.live))
        if place.startswith("?"):
            return self.say("full_plain", **values)
        return self.say("full_all" if most == size else "full", **values, place=self.place(place), size_line=self.bytes(most))

    def first(self):
        """What to do first."""
        f = self.finding
        if f.cause == "full":
            # A list of temporaries costs nothing to do without, so it comes first where it is of any size.
            levers = f.levers()
            free = [lever for lever in levers if lever[0] == "foreach" and 10 * lever[2] >= f.live]
            return self.lever((free or levers)[0])
        if f.cause == "leak":
            return self.say("do_leak" if len(f.growing) < 3 else "do_leak_graph") + self.say("blank") + self.shown(("02", "11"))
        if f.cause == "fragmentation":
            rule = next((rule for rule in f.rules if rule[0] == "expandable"), None)
            verdict = (self.say("not_judged") if not rule or f.rules[0][1] else
                       self.say("served", most=self.bytes(rule[2])) if rule[1] else self.say("not_served"))
            return self.say("do_fragmentation", verdict=verdict) + self.say("blank") + self.shown(("06",))
        return self.say("do_" + f.cause, place=self.refused_place() if f.refusal else "")

    def lever(self, lever):
        name, _, saves, numbers = lever
        parts = [self.say(name), self.say("saves", size=self.bytes(saves)) if saves else "", self.shown(numbers)]
        return self.say("blank").join(part for part in parts if part)

    def shown(self, numbers):
        """Where it is shown."""
        return self.say("shown", chapters=chapters(numbers, self.language))

    def tables(self, everything):
        f = self.finding
        values = dict(size=self.bytes(f.live), event=f"{max(0, f.moment):,}", asked=self.bytes(f.refusal.asked) if f.refusal else "")
        lines = [self.say("live_refused" if f.refusal else "live_peak", **values)]
        kinds = [row for row in f.by_category if everything or row[1] >= LEAST_SHARE * f.live][:None if everything else ROWS]
        lines += table([(self.say(name), self.bytes(size), percent(size, f.live) + " %", "") for name, size in kinds])
        lines.append(self.say("lines"))
        count = 10 if everything else ROWS
        rows = [(self.place(place), self.bytes(size), percent(size, f.live) + " %", self.say(kind)) for place, size, _, kind, _ in f.lines[:count]]
        rest = f.lines[count:]
        if rest:
            size = sum(row[1] for row in rest)
            rows.append((self.say("more_lines" if len(rest) > 1 else "more_line", count=len(rest)), self.bytes(size), percent(size, f.live) + " %", ""))
        return lines + table(rows)

    def growth(self, everything):
        f = self.finding
        rounds = len(f.growth.rounds.starts) if f.growth.rounds else 0
        if f.growing:
            lines = [self.say("grows", size=self.bytes(size), place=self.place(place), live=self.bytes(live)) for place, size, live in f.growing]
            return lines if everything else lines[:2]
        return [self.say("grows_not", rounds=rounds) if f.growth.judged else self.say("grows_unknown", rounds=rounds or 1)]

    def refused(self, everything):
        f, r = self.finding, self.finding.refusal
        if not r:
            return []
        values = dict(asked=self.bytes(r.asked), place=self.refused_place(), free=self.bytes(r.device_free))
        lines = wrapped(self.say("refused", **values, reserved=self.bytes(r.reserved), cached=self.bytes(r.cached), count=len(r.pieces),
                                 largest=self.bytes(r.largest)) if r.known else self.say("refused_plain", **values))
        if everything and r.count > 1:
            lines += wrapped(self.say("refused_times", count=r.count))
        if f.rules and (everything or f.cause in ("fragmentation", "elsewhere")):
            lines.append(self.say("by_replay", budget=self.bytes(r.budget())))
            for name, served, most in f.rules:
                rule = self.say("rule_split", mb=name.split("_")[1]) if name.startswith("split") else self.say("rule_" + name)
                lines.append("  " + self.say("pair", name=rule, text=self.say("rule_served" if served else "rule_refused", most=self.bytes(most))))
            if f.rules[0][1]:
                lines += wrapped(self.say("replay_differs"))
            if everything:
                lines += wrapped(self.say("replay_whole" if r.whole else "replay_part"))
        return lines

    def rest(self):
        f = self.finding
        lines = []
        if f.appears:
            lines += wrapped(self.say("appears", size=self.bytes(f.appears[0]), place=self.place(f.appears[1])))
        if f.pools["private"]:
            lines += wrapped(self.say("pool_private", size=self.bytes(f.pools["private"]), count=f.pools["private_count"]))
        if f.pools["streams"]:
            lines += wrapped(self.say("pool_streams", size=self.bytes(f.pools["streams"]), count=f.pools["streams_count"]))
        if f.recovered:
            lines += wrapped(self.say("recovered", asked=self.bytes(f.recovered.asked), event=f"{f.recovered.event:,}"))
        if f.reserved:
            lines += wrapped(self.say("held", size=self.bytes(max(size for _, size in f.reserved))))
        if f.live:
            lines.append(self.say("levers"))
            for lever in f.levers():
                lines += wrapped(self.say("pair", name=self.say(lever[1]), text=self.lever(lever)), "  - ", "    ")
        return lines + wrapped(self.say("unseen"))

    def text(self, everything=False, others=()):
        lines = wrapped(self.head())
        lines += ["", *wrapped(self.say("answer", sentence=self.sentence())), *wrapped(self.say("do", what=self.first())), ""]
        if self.finding.live:
            lines += self.tables(everything)
        lines += [line for text in self.growth(everything) for line in wrapped(text)]
        lines += self.refused(everything)
        if everything:
            lines += self.rest()
        elif others:
            lines += wrapped(self.say("others", devices=", ".join(
                self.say("other_device", device=other.recording.device, size=self.bytes(other.peak)) for other in others)))
        if not everything:
            lines += wrapped(self.say("more"))
        return "\n".join(lines)


def comparison(before, after, names, language, everything):
    """What is new in the second, by line."""
    lines, kinds = compare(before, after)
    more = after.live - before.live
    texts = Text(after, language, names[1])
    result = wrapped(say("compared" if more >= 0 else "compared_less", language, before=short(names[0]), after=short(names[1]), size=texts.bytes(abs(more)),
                         first=texts.bytes(before.live), second=texts.bytes(after.live)))
    new = [row for row in lines if row[1] > 0]
    result += wrapped(say("compared_most", language, size=texts.bytes(new[0][1]), place=texts.place(new[0][0])) if new else
                      say("compared_nothing", language))
    result += ["", *table([(say(name, language), "+" * (size > 0) + texts.bytes(size), "", "") for name, size in kinds if size])]
    count = None if everything else 10
    for title, rows in (("compared_lines", new[:count]), ("compared_less_lines", [row for row in lines if row[1] < 0][::-1][:count])):
        if rows:
            result += ["", say(title, language)]
            result += table([(texts.place(place), "+" * (size > 0) + texts.bytes(size), "", f"{texts.bytes(first)} -> {texts.bytes(second)}")
                             for place, size, first, second in rows])
    return "\n".join(result)
