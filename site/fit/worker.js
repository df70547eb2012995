"use strict";
// A thread of its own, so that a long search does not stop the page. wasi.js stands in front of this.

onmessage = (event) => {
  const { number, module, words, files } = event.data;
  postMessage({ number, ...runProgram(module, words, files) });
};
