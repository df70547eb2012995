"use strict";
// The form, the address, and the answer. A field's name is bench/fit's option; what it may be comes from `fit --list --json`.

const FIRST = { model: "llama-3.1-8b", gpu: "rtx-4090" }; // what is asked where the address asks nothing
const IN_ADDRESS = 6000; // bytes of a config.json that a link still holds
const CONFIG = "config.json";

const at = (id) => document.getElementById(id);
const form = at("question");
const fields = [...document.querySelectorAll("[name]")].filter((field) => field.form === form);
const planner = new Planner();
let language = navigator.language.startsWith("zh") ? "zh" : "en";
let known = null; // of --list --json
let config = null; // { name, bytes, size } of a file in place of a model's name: its first bytes, and how many it has
let asked = { options: [], files: {} }; // the question of the answer that is shown
let found = null; // its JSON
let turn = 0;
let linked = new Map(); // what the address said of each field, until the lists of words are there
let taken = 0; // files, the last of which is the one
let link = location.href; // to the question that was asked last

const say = () => WORDS[language];

function show(id, visible) {
  at(id).hidden = !visible;
}

function translate() {
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  document.title = say().title;
  for (const place of document.querySelectorAll("[data-say]")) place.textContent = say()[place.dataset.say];
  for (const place of document.querySelectorAll("[data-label]")) place.setAttribute("aria-label", say()[place.dataset.label]);
  for (const place of document.querySelectorAll("[data-such-as]")) place.placeholder = say().such_as(place.dataset.suchAs);
  at("language").textContent = say().other_language;
  at("language").lang = language === "zh" ? "en" : "zh-CN";
  for (const field of document.querySelectorAll("select[data-words]")) if (field.options.length) field.options[0].textContent = usual(field);
  tellConfig();
}

// What a list says where nothing is chosen: which word it is then, where that is always the first.
function usual(field) {
  return "first" in field.dataset ? say().usual_is(known.words[`--${field.name}`][0]) : say().usual;
}

// ------------------------------------------------------------------------------------------------------- question

function fill() {
  for (const model of known.models) at("models").append(new Option(model));
  for (const card of known.cards) at("cards").append(new Option(`${card.title}, ${gib(card.total_bytes)} GiB`, card.name));
  for (const field of document.querySelectorAll("select[data-words]")) {
    const words = known.words[`--${field.name}`];
    field.replaceChildren(new Option(usual(field), ""), ...words.map((word) => new Option(word)));
  }
}

// A word of a link that a list does not have is asked all the same: bench/fit says what is known.
function choose(field, word) {
  const missing = known && field.tagName === "SELECT" && ![...field.options].some((option) => option.value === word);
  if (missing) field.append(new Option(word, word));
  field.value = word;
}

// What bench/fit is told. A file stands in place of the model's name.
function optionsOf() {
  const options = [];
  for (const field of fields) {
    if (field.type === "checkbox") {
      if (field.checked) options.push(`--${field.name}`);
    } else if (field.value.trim() && !(field.name === "model" && config)) {
      options.push(`--${field.name}`, field.value.trim());
    }
  }
  if (config) options.push("--config", CONFIG);
  return [...options, ...splitOptions(at("options").value)];
}

// Why these options are not bench/fit's to answer: it would be asked something else than what is shown. "" where they are.
function wrongWith(options) {
  if (options.some((word) => word.includes("\0"))) return say().no_nul;
  const own = options.find((word) => /^--(lang|json)(=|$)/.test(word));
  return own ? say().no_own(own.split("=")[0]) : "";
}

// Without a model there is nothing to ask yet, unless the options ask for --help or a list.
function isQuestion(options) {
  return options.some((word) => /^(-h|--(help|list|cards)|--(model|config)(=.*)?)$/s.test(word));
}

function toAddress() {
  const query = new URLSearchParams();
  for (const field of fields) {
    const value = field.type === "checkbox" ? (field.checked ? "on" : "") : field.value.trim();
    if (value) query.set(field.name, value);
  }
  if (at("options").value.trim()) query.set("options", at("options").value.trim());
  const text = configText();
  if (text !== null) query.set("config", text); // an empty one, too
  query.set("lang", language);
  link = new URL(`#${query}`, location.href).href;
  try {
    history.replaceState(null, "", `#${query}`);
  } catch {
    // A frame without an address of its own, as in a notebook, or too many questions in a minute: the button has the link.
  }
}

function fromAddress() {
  const query = new URLSearchParams(location.hash.slice(1));
  if (Object.hasOwn(WORDS, query.get("lang"))) language = query.get("lang");
  query.delete("lang");
  const values = [...query].length ? Object.fromEntries(query) : FIRST;
  const get = (name) => (Object.hasOwn(values, name) ? values[name] : "");
  linked = new Map(fields.map((field) => [field.name, get(field.name)]));
  for (const field of fields) {
    if (field.type === "checkbox") field.checked = get(field.name) === "on";
    else choose(field, get(field.name));
  }
  at("options").value = get("options");
  dropConfig();
  if (query.has("config")) {
    const bytes = new TextEncoder().encode(get("config"));
    config = { name: CONFIG, bytes, size: bytes.length };
  }
  unfold();
  translate();
}

// Options that are set are not folded away.
function unfold() {
  const folded = fields.filter((field) => at("more-options").contains(field));
  at("more-options").open = folded.some((field) => (field.type === "checkbox" ? field.checked : field.value)) || at("options").value !== "";
}

// What of the file a link can hold: text of a few thousand bytes, or nothing.
function configText() {
  if (!config || config.bytes.length > IN_ADDRESS) return null;
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(config.bytes);
  } catch {
    return null;
  }
}

function tellConfig() {
  const held = !config || configText() !== null;
  const why = config && config.bytes.length > IN_ADDRESS ? say().config_no_link : say().config_no_text;
  at("config-says").textContent = config ? say().config_is(plain(config.name), config.size) + (held ? "" : ` ${why}`) : "";
  show("config-away", config !== null);
}

// Also one that is still being read.
function dropConfig() {
  ++taken;
  config = null;
  at("config").value = "";
}

// bench/fit refuses what is too large; so much of a file is enough for it to see that.
async function take(file) {
  const most = 2 ** 21;
  const mine = ++taken;
  let bytes;
  try {
    bytes = new Uint8Array(await file.slice(0, most).arrayBuffer());
  } catch (error) { // a folder
    if (mine === taken) refuse({ err: `${say().config_unread} ${plain(file.name)} (${error.message})` });
    return;
  }
  if (mine !== taken) return;
  config = { name: file.name, bytes, size: file.size };
  tellConfig();
  ask();
}

// --------------------------------------------------------------------------------------------------------- answer

async function ask() {
  if (!known) return; // the page opens, and asks when it has
  const mine = ++turn;
  planner.forget();
  toAddress();
  const options = optionsOf();
  const wrong = wrongWith(options);
  if (wrong) {
    refuse({ err: wrong });
    return;
  }
  if (!isQuestion(options)) {
    refuse({ err: "" });
    tell(say().no_model);
    return;
  }
  const files = config ? { [CONFIG]: config.bytes } : {};
  at("answer").setAttribute("aria-busy", "true");
  const soon = setTimeout(() => mine === turn && tell(say().computing), 200);
  try {
    await answerTo({ options, files }, mine, soon);
  } catch (error) {
    if (mine === turn) refuse({ broken: String(error) });
  } finally {
    clearTimeout(soon);
  }
}

// The line above the answer. `what` it says is a class of the style.
function tell(words, what = "") {
  at("line").removeAttribute("data-say");
  at("line").textContent = words;
  at("line").className = what;
}

async function answerTo(question, mine, soon) {
  const { options, files } = question;
  const text = await planner.ask([...options, "--lang", language], files);
  if (mine !== turn) return;
  asked = question;
  clearTimeout(soon);
  for (const place of document.querySelectorAll(".copied")) place.textContent = "";
  show("address", false);
  const right = text.code === 0 || text.code === 1;
  if (!right || !text.out) {
    refuse(text);
    return;
  }
  if (ofSeveral(options)) tell("");
  else tell(text.out.split("\n", 1)[0], text.code === 0 ? "" : "fits-not"); // 0 may be: with changes
  show("wrong", false);
  const shown = language === "en" ? options : [...options, "--lang", language];
  at("command").textContent = ["bench/fit", ...shown.map(quoted)].join(" ");
  at("text").textContent = text.out;
  at("everything").open = false;
  at("all").textContent = "";
  show("typed", true);
  const json = await planner.ask([...options, "--lang", language, "--json"], files);
  if (mine !== turn) return;
  found = objectOf(json);
  draw();
  at("answer").setAttribute("aria-busy", "false");
}

// The JSON of an answer; null where it is none, as of --help, or is that of several memories: a line each, and no picture.
function objectOf(answer) {
  try {
    const read = JSON.parse(answer.out);
    return Array.isArray(read) ? null : read;
  } catch {
    return null;
  }
}

// Whether they ask about several memories, "8GB,12GB": then no single line is the answer.
function ofSeveral(options) {
  return options.some((word, i) => word.includes(",") && (options[i - 1] === "--memory" || word.startsWith("--memory=")));
}

// One line, as on a terminal, or why the program did not come so far.
function refuse(text) {
  tell("");
  at("wrong").textContent = text.broken ? `${say().broken} (${text.broken})` : (text.err || text.out || "").replace(/^fit: /, "").trim();
  show("wrong", at("wrong").textContent !== "");
  for (const section of ["bars", "write", "steps", "course", "typed"]) show(section, false);
  at("answer").setAttribute("aria-busy", "false");
}

function draw() {
  const words = Object.fromEntries(known.categories.map((category) => [category.name, category[language]]));
  const ways = found ? waysOf(found, say(), words) : [];
  if (ways.length > 0 && ways[0].fits && ways[0].limit) at("line").className = "fits";
  show("bars", ways.length > 0);
  drawLegend(at("legend"), ways, say());
  drawRows(at("ways"), ways, say());
  const written = ways.filter((one) => one.way.write);
  show("write", written.length > 0);
  const chosen = written.find((one) => one.fits) || written.at(-1);
  at("way").replaceChildren(...written.map((one, i) => new Option(one.name, i, one === chosen, one === chosen)));
  drawWay(written);
  at("way").onchange = () => drawWay(written);
  const course = found && found.as_is;
  show("course", Boolean(course));
  if (!course) return;
  const rows = courseRows(found, say(), words);
  drawLegend(at("course-legend"), rows, say());
  drawRows(at("course-rows"), rows, say());
  at("course-words").replaceChildren();
  for (const [whose, lines] of Object.entries(found.other_words || {})) {
    if (lines.length === 0) continue;
    const code = element("pre", "", lines.join("\n"));
    code.tabIndex = 0;
    const place = element("dd");
    place.append(code);
    at("course-words").append(element("dt", "", say()[whose]), place);
  }
}

// What to write for one way, and what led to it.
function drawWay(written) {
  const one = written[Number(at("way").value)];
  if (!one) {
    show("steps", false);
    return;
  }
  const framework = document.querySelector("[name=framework]").value || known.words["--framework"][0];
  const lines = one.way.write; // of a server one command, of training what each framework has
  at("code").textContent = (Array.isArray(lines) ? lines : lines[framework]).join("\n");
  show("frameworks", !Array.isArray(lines));
  const steps = found.pytorch ? stepsOf(found, one.way, say()) : [];
  show("steps", steps.length > 1);
  drawRows(at("steps-rows"), steps, say());
}

async function everything() {
  if (!at("everything").open || at("all").textContent) return;
  const of = asked;
  at("all").textContent = say().computing;
  const whole = await planner.ask([...of.options, "--lang", language, "--all"], of.files);
  if (of === asked) at("all").textContent = whole.broken ? `${say().broken} (${whole.broken})` : whole.out || whole.err;
}

// `select` marks the text for the user to copy, where the browser lets no page write to the clipboard. What happened stands beside the button,
// and is said once more when it happens once more.
async function copy(button, text, select) {
  let word = say().copied;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    select();
    word = say().select;
  }
  const says = button.nextElementSibling;
  says.textContent = "";
  setTimeout(() => {
    says.textContent = word;
  }, 100);
}

function selectLink() {
  show("address", true);
  at("address").value = link;
  at("address").focus();
  at("address").select();
}

// On a phone the answer is below the form.
function showAnswer() {
  if (matchMedia("(max-width: 46rem)").matches) at("whole").scrollIntoView();
}

// ---------------------------------------------------------------------------------------------------------- start

let later = 0;
form.addEventListener("input", (event) => {
  if (event.target.id === "config") return;
  clearTimeout(later);
  later = setTimeout(ask, 400);
});
document.querySelector("[name=framework]").addEventListener("input", () => {
  clearTimeout(later);
  ask();
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  clearTimeout(later);
  ask();
  showAnswer();
});
form.addEventListener("reset", () => {
  dropConfig();
  linked = new Map();
  setTimeout(() => {
    tellConfig();
    ask();
  });
});
at("config").addEventListener("change", () => at("config").files.length && take(at("config").files[0]));
at("config-away").addEventListener("click", () => {
  dropConfig();
  tellConfig();
  at("config").focus();
  ask();
});
for (const kind of ["dragover", "drop"]) {
  document.addEventListener(kind, (event) => event.dataTransfer.types.includes("Files") && event.preventDefault()); // text goes into a field
}
document.addEventListener("drop", (event) => {
  const files = event.dataTransfer.files;
  if (files.length === 0) return;
  if (files.length > 1) {
    ++turn; // an answer that is on its way would hide it
    refuse({ err: say().one_file(files.length) });
    return;
  }
  at("config").value = "";
  take(files[0]);
});
at("language").addEventListener("click", () => {
  language = language === "en" ? "zh" : "en";
  translate();
  ask();
});
at("everything").addEventListener("toggle", everything);
for (const button of document.querySelectorAll(".copy")) {
  const place = at(button.dataset.copies);
  button.addEventListener("click", () => copy(button, place.textContent, () => getSelection().selectAllChildren(place)));
}
at("link").addEventListener("click", () => copy(at("link"), link, selectLink));
window.addEventListener("hashchange", () => {
  fromAddress();
  ask();
});

(async () => {
  const isLinked = location.hash.length > 1;
  fromAddress();
  show("question", true);
  try {
    const list = await planner.ask(["--list", "--json"]);
    if (list.broken) throw new Error(list.broken);
    known = JSON.parse(list.out);
  } catch (error) {
    refuse({ err: `${say().no_start} ${error}` });
    return;
  }
  fill();
  for (const field of fields) if (field.tagName === "SELECT") choose(field, linked.get(field.name) ?? ""); // only now they have words
  unfold();
  await ask();
  if (isLinked) showAnswer();
})();
