"""What page_test.py runs in the page."""

# Before the page: whatever goes wrong in it.
WATCH = """window.seen = [];
addEventListener('error', e => window.seen.push(String(e.message)));
addEventListener('unhandledrejection', e => window.seen.push(String(e.reason)));
addEventListener('securitypolicyviolation', e => window.seen.push(e.violatedDirective + ' ' + e.blockedURI));"""

LIGHT = """
  const channels = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4).reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const apart = (one, other) => (Math.max(light(one), light(other)) + 0.05) / (Math.min(light(one), light(other)) + 0.05);
"""

# Words whose colour is too near to what is behind them (WCAG 2, AA: 4.5, of large words 3).
CONTRAST = "(() => {" + LIGHT + """
  const over = (front, back, a) => front.map((c, i) => c * a + back[i] * (1 - a));
  const behind = e => {
    if (!e) return channels(getComputedStyle(document.body).backgroundColor).slice(0, 3);
    const [r, g, b, a = 1] = channels(getComputedStyle(e).backgroundColor);
    return a === 0 ? behind(e.parentElement) : a === 1 ? [r, g, b] : over([r, g, b], behind(e.parentElement), a);
  };
  const low = [];
  let looked = 0;
  const judge = (e, colour, text) => {
    const style = getComputedStyle(e), back = behind(e), [r, g, b, a = 1] = channels(colour);
    let opacity = a;
    for (let p = e; p; p = p.parentElement) opacity *= Number(getComputedStyle(p).opacity);
    if (opacity === 0) return;  // not shown now: nobody is to read it
    const ratio = apart(over([r, g, b], back, opacity), back), size = parseFloat(style.fontSize);
    const large = size >= 24 || size >= 18.66 && Number(style.fontWeight) >= 700;
    ++looked;
    if (ratio < (large ? 3 : 4.5)) low.push([text.trim().slice(0, 40), Number(ratio.toFixed(2)), colour, back.join()]);
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !e.checkVisibility() || ['SCRIPT', 'STYLE', 'NOSCRIPT', 'OPTION', 'DATALIST'].includes(e.tagName)) continue;
    judge(e, getComputedStyle(e).color, walker.currentNode.textContent);
  }
  for (const e of document.querySelectorAll('input, select')) {
    if (!e.checkVisibility()) continue;
    judge(e, getComputedStyle(e).color, e.name);
    if (e.placeholder && !e.value) judge(e, getComputedStyle(e, '::placeholder').color, e.placeholder);
  }
  return { low, looked };
})()"""

# Lines that tell the parts of a picture apart and are too near to the page's colour (WCAG 2, AA: 3): the limit, the end of a plot. Between two parts of a
# bar there is a line of the page's own colour.
LINES = "(() => {" + LIGHT + """
  const paper = channels(getComputedStyle(document.body).backgroundColor).slice(0, 3), of = s => getComputedStyle(document.querySelector(s));
  const lines = { limit: of('#ways .limit').borderLeftColor, plot: of('#ways .plot').outlineColor };
  const low = Object.entries(lines).filter(([, colour]) => apart(channels(colour).slice(0, 3), paper) < 3);
  const merged = [...document.querySelectorAll('.bar span + span')].filter(e => !getComputedStyle(e).boxShadow.includes(`rgb(${paper.join(', ')})`));
  return { low, merged: merged.length };
})()"""

# What is to be touched and is smaller than 24 by 24 (WCAG 2.2, AA), unless it stands in a label that is not.
BOXES = """[...document.querySelectorAll('button, input, select, summary')].filter(e => e.checkVisibility()).filter(e => {
  const box = (e.closest('label') || e).getBoundingClientRect();
  return box.width < 24 || box.height < 24;
}).map(e => e.outerHTML.slice(0, 80))"""

# Everything that the Tab key should come to, numbered in the order of the page.
FOCUS = """(() => {
  const all = [...document.querySelectorAll('a[href], button, input, select, summary, [tabindex="0"]')].filter(e => e.checkVisibility() && !e.disabled);
  all.forEach((e, i) => { e.dataset.number = i; });
  return all.map(e => e.tagName + ' ' + (e.id || e.name || e.textContent.slice(0, 20)));
})()"""
