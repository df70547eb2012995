"use strict";
// Options and commands as a shell reads them, and text without what a terminal obeys.

// "--lora-rank 64 --without 'a b'" as a shell splits it, as far as quotes go.
function splitOptions(text) {
  return [...text.matchAll(/(?:[^\s"']|"[^"]*"|'[^']*')+/g)].map(([word]) => word.replace(/"([^"]*)"|'([^']*)'/g, "$1$2"));
}

const UNSEEN = /[\p{C}\p{Zl}\p{Zp}]/u; // what a reader does not see, and a terminal may obey when it is pasted

// A file's name as text of a sentence.
function plain(name) {
  return [...name].map((c) => (UNSEEN.test(c) ? written(c) : c)).join("");
}

function written(c) {
  return `\\U${c.codePointAt(0).toString(16).padStart(8, "0")}`;
}

// A word of a command, as bash reads it.
function quoted(word) {
  if (/^[\w./:=,%+-]+$/.test(word)) return word;
  if (!UNSEEN.test(word)) return `'${word.replaceAll("'", "'\\''")}'`;
  const letter = (c) => (UNSEEN.test(c) ? written(c) : c === "'" || c === "\\" ? `\\${c}` : c);
  return `$'${[...word].map(letter).join("")}'`;
}
