"use strict";
// Answers questions with the page's program and the page's loader, under node: ask.js PROGRAM.wasm WASI.js
// A question a line, { words, files: { path: base64 } }; an answer a line, { code, out, err, broken }.

const fs = require("node:fs");
const readline = require("node:readline");
const vm = require("node:vm");

const [program, loader] = process.argv.slice(2);
vm.runInThisContext(fs.readFileSync(loader, "utf8"), { filename: loader });
const module_ = new WebAssembly.Module(fs.readFileSync(program));

readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const { words, files } = JSON.parse(line);
  const bytes = Object.fromEntries(Object.entries(files).map(([path, text]) => [path, new Uint8Array(Buffer.from(text, "base64"))]));
  process.stdout.write(JSON.stringify(runProgram(module_, ["fit", ...words], bytes)) + "\n");
});
