"use strict";
// The bars of an answer. All figures are those of bench/fit's JSON; all text is set as text.

const GIB = 2 ** 30;

function gib(bytes) {
  const value = bytes / GIB;
  return value.toFixed(value < 9.995 ? 2 : 1);
}

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function sum(parts) {
  return parts.reduce((all, part) => all + part.bytes, 0);
}

// The ways of an answer, each { name, parts: [{ name, words, bytes }], limit, fits, way }: of PyTorch's training and generate(), of
// servers, of networks of images and of pipelines that make them.
function waysOf(found, say, words) {
  const limit = found.memory_named ? found.room.memory_bytes : 0;
  const inCategories = (way) => [
    ...Object.entries(way.bytes).map(([name, bytes]) => ({ name, words: words[name], bytes })),
    { name: "allocator", words: say.allocator, bytes: way.allocator_bytes },
    { name: "outside", words: say.outside, bytes: way.outside_bytes },
  ];
  const inAll = (way) => [
    { name: "live", words: say.total, bytes: way.live_bytes },
    { name: "outside", words: say.outside, bytes: way.outside_bytes },
  ];
  const ofServer = (way) =>
    Object.entries(way.bytes).map(([name, { words, high }]) => ({ name: SERVED[name] || "data", words, bytes: high }));
  const row = (name, way, parts) => (way ? [{ name, way, parts: parts(way), limit: way.limit_bytes || limit, fits: way.fits }] : []);
  const { pytorch, serving, images, pipeline } = found;
  const manner = (way) => (way.method === pytorch.as_is.method && way.changes.length === 0 ? say.as_is : methodName(way.method));
  if (serving)
    return [
      ...row(say.as_is, serving.as_is, ofServer),
      ...serving.changed.flatMap((way, i) => row(say.change(i + 1, way.what), way, ofServer)),
      ...row(say.largest_way, serving.largest, ofServer),
    ];
  if (images) return [...row(say.as_is, images.as_is, inAll), ...row(say.changed, images.changed, inAll), ...row(say.largest_way, images.largest, inAll)];
  if (pipeline)
    return [
      ...row(say.as_is, pipeline.as_is, inCategories),
      ...row(say.changed, pipeline.changed, inCategories),
      ...row(say.closest, pipeline.smallest, inCategories),
      ...row(say.largest_way, pipeline.largest, inCategories),
    ];
  if (!pytorch) return [];
  if (pytorch.adapters) {
    const others = pytorch.as_is.fits && limit ? [] : pytorch.adapters;
    return [
      ...row(say.as_is, pytorch.as_is, inCategories),
      ...row(say.changed, pytorch.changed, inCategories),
      ...others.flatMap((way) => row(methodName(way.method), way, inCategories)),
      ...pytorch.largest.filter(({ most }) => most > 0).flatMap(({ most, way }) => row(`${say.largest_way}: ${most}, ${manner(way)}`, way, inCategories)),
    ];
  }
  return [
    ...row(say.as_is, pytorch.as_is, inCategories),
    ...row(say.fewer, pytorch.fewer, inCategories),
    ...row(say.largest_way, pytorch.largest, inCategories),
  ];
}

// What a server holds, in the colours of training's categories.
const SERVED = { weights: "parameters", activations: "activations", compute: "workspace", scratch: "workspace", graphs: "optimizer", cache: "data", outside: "outside" };

function methodName(method) {
  return { lora: "LoRA", qlora: "QLoRA" }[method] || method;
}

// Rows of bars: each { name, parts, limit, note }. The longest bar, or the largest limit, is as wide as there is room.
function drawRows(place, rows, say) {
  const widest = Math.max(...rows.map((row) => Math.max(sum(row.parts), row.limit || 0)), 1);
  place.replaceChildren();
  for (const row of rows) {
    const needed = gib(sum(row.parts));
    const figure = row.limit ? say.of(needed, gib(row.limit)) : say.needs(needed);
    const name = element("div", "name", row.name);
    name.append(element("small", row.fits === false ? "over" : "", row.note ? say.both(figure, row.note) : figure));
    if (row.options) name.append(element("code", "", row.options));
    const named = row.parts.filter((part) => part.bytes && part.words);
    if (named.length > 0) name.append(figures(named, say));
    const plot = element("div", "plot");
    plot.setAttribute("role", "img");
    const said = row.parts.filter((part) => part.bytes).map((part) => (part.words ? `${part.words} ${gib(part.bytes)}` : gib(part.bytes)));
    plot.setAttribute("aria-label", `${row.name}: ${figure}; ${said.join(", ")}`);
    const bar = element("div", "bar");
    for (const part of row.parts) {
      if (!part.bytes) continue;
      const piece = element("span", `of-${part.name}`);
      piece.style.width = `${(100 * part.bytes) / widest}%`;
      piece.title = part.words ? `${part.words}: ${gib(part.bytes)} GiB` : `${gib(part.bytes)} GiB`;
      bar.append(piece);
    }
    plot.append(bar);
    if (row.limit) {
      const line = element("div", "limit");
      line.style.left = `${(100 * row.limit) / widest}%`;
      plot.append(line);
    }
    place.append(name, plot);
  }
}

// The figures behind a bar, for whoever does not point with a mouse.
function figures(parts, say) {
  const all = element("details", "parts");
  all.append(element("summary", "", say.figures));
  const list = element("ul");
  for (const part of parts) list.append(element("li", "", `${part.words}: ${gib(part.bytes)} GiB`));
  all.append(list);
  return all;
}

function drawLegend(place, ways, say) {
  place.replaceChildren();
  const seen = new Set();
  for (const part of ways.flatMap((way) => way.parts)) {
    if (!part.bytes || seen.has(part.words)) continue;
    seen.add(part.words);
    const item = element("li");
    item.append(element("i", `of-${part.name}`), element("span", "", part.words));
    place.append(item);
  }
  if (ways.some((way) => way.limit)) {
    const item = element("li");
    item.append(element("i", "limit-key"), element("span", "", say.limit));
    place.append(item);
  }
}

// What leads from the program as it is to a way: live bytes, change by change. Whether the first and the last fit is bench/fit's word; of
// what lies between it has none.
function stepsOf(found, way, say) {
  const first = found.pytorch.as_is;
  const limit = found.memory_named ? found.room.memory_bytes : 0;
  const step = (name, bytes) => ({ name, parts: [{ name: "live", bytes }], limit });
  const rows = [step(say.as_is, first.live_bytes)];
  if (way.method !== first.method && way.live_before_bytes !== null) rows.push(step(methodName(way.method), way.live_before_bytes));
  for (const change of way.changes) if (change.live_bytes !== null) rows.push(step(`+ ${change.what}`, change.live_bytes));
  if (limit) {
    rows[0].fits = first.fits;
    rows.at(-1).fits = way.fits;
  }
  return rows;
}

function courseRows(found, say, words) {
  const row = (name, one) => ({
    name,
    parts: Object.entries(one.bytes).map(([category, bytes]) => ({ name: category, words: words[category], bytes })),
    limit: one.left_bytes,
    fits: one.fits,
    note: one.fits ? say.fits : say.fits_not,
  });
  const rows = [row(say.as_is, found.as_is), ...found.ladder.map((one) => row(`+ ${one.what}`, one))];
  const last = found.cheapest || found.closest;
  if (last) rows.push({ ...row(found.cheapest ? say.cheapest : say.closest, last), options: last.options });
  return rows;
}
