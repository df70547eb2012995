"use strict";
// Runs a program for WASI once, in a fresh instance: what it is told, the files that it may read, what it prints. Of WASI's calls it
// has those that bench/fit makes; the others say that they are not there. Nothing here knows of a page.

const ERRNO = { success: 0, badf: 8, inval: 28, isdir: 31, noent: 44, nosys: 52, spipe: 70 };
const KIND = { device: 2, folder: 3, file: 4 };
const ROOT = 3; // the descriptor of the folder "/"

class Exit extends Error {
  constructor(code) {
    super(`exit code ${code}`);
    this.code = code;
  }
}

// Files, and the folders that they are in: { "/a/config.json": Uint8Array }.
class Files {
  constructor(contents) {
    this.contents = new Map(Object.entries(contents).map(([path, bytes]) => [path.replace(/^\/+/, ""), bytes]));
  }
  find(path) {
    const name = path.replace(/^\/+|\/+$/g, "");
    if (this.contents.has(name)) return { kind: KIND.file, bytes: this.contents.get(name), at: 0 };
    const isFolder = name === "" || name === "." || [...this.contents.keys()].some((file) => file.startsWith(name + "/"));
    return isFolder ? { kind: KIND.folder, bytes: new Uint8Array(), at: 0 } : null;
  }
}

class Calls {
  constructor(words, files) {
    const encoder = new TextEncoder();
    this.words = words.map((word) => encoder.encode(word + "\0"));
    this.files = new Files(files);
    this.printed = { 1: [], 2: [] };
    const device = { kind: KIND.device, bytes: new Uint8Array(), at: 0 };
    this.open = new Map([[0, device], [1, device], [2, device], [ROOT, this.files.find("")]]);
    this.memory = null; // of the instance, once there is one
  }

  // Made anew each time: when the memory grows, older ones are empty.
  view() {
    return new DataView(this.memory.buffer);
  }
  bytes(at, length) {
    return new Uint8Array(this.memory.buffer, at, length);
  }
  text(at, length) {
    return new TextDecoder().decode(this.bytes(at, length));
  }
  buffers(at, count) {
    const view = this.view();
    return Array.from({ length: count }, (_, i) => this.bytes(view.getUint32(at + 8 * i, true), view.getUint32(at + 8 * i + 4, true)));
  }
  output(descriptor) {
    const pieces = this.printed[descriptor];
    const all = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
    let at = 0;
    for (const piece of pieces) {
      all.set(piece, at);
      at += piece.length;
    }
    return new TextDecoder().decode(all);
  }

  args_sizes_get(count, size) {
    this.view().setUint32(count, this.words.length, true);
    this.view().setUint32(size, this.words.reduce((sum, word) => sum + word.length, 0), true);
    return ERRNO.success;
  }
  args_get(pointers, at) {
    for (const word of this.words) {
      this.view().setUint32(pointers, at, true);
      this.bytes(at, word.length).set(word);
      pointers += 4;
      at += word.length;
    }
    return ERRNO.success;
  }
  environ_sizes_get(count, size) {
    this.view().setUint32(count, 0, true);
    this.view().setUint32(size, 0, true);
    return ERRNO.success;
  }
  environ_get() {
    return ERRNO.success;
  }
  clock_time_get(clock, precision, result) {
    this.view().setBigUint64(result, BigInt(Math.round(performance.now() * 1e6)), true);
    return ERRNO.success;
  }
  proc_exit(code) {
    throw new Exit(code);
  }

  fd_write(descriptor, at, count, result) {
    const to = this.printed[descriptor];
    if (!to) return ERRNO.badf;
    let written = 0;
    for (const buffer of this.buffers(at, count)) {
      to.push(buffer.slice());
      written += buffer.length;
    }
    this.view().setUint32(result, written, true);
    return ERRNO.success;
  }
  fd_read(descriptor, at, count, result) {
    const file = this.open.get(descriptor);
    if (!file) return ERRNO.badf;
    if (file.kind === KIND.folder) return ERRNO.isdir;
    let read = 0;
    for (const buffer of this.buffers(at, count)) {
      const piece = file.bytes.subarray(file.at, file.at + buffer.length);
      buffer.set(piece);
      file.at += piece.length;
      read += piece.length;
    }
    this.view().setUint32(result, read, true);
    return ERRNO.success;
  }
  fd_seek() {
    return ERRNO.spipe;
  }
  fd_close(descriptor) {
    return this.open.delete(descriptor) ? ERRNO.success : ERRNO.badf;
  }
  fd_fdstat_get(descriptor, result) {
    const file = this.open.get(descriptor);
    if (!file) return ERRNO.badf;
    this.bytes(result, 24).fill(0);
    this.view().setUint8(result, file.kind);
    this.bytes(result + 8, 16).fill(0xff); // every right
    return ERRNO.success;
  }
  fd_fdstat_set_flags() {
    return ERRNO.success;
  }
  describe(file, result) {
    this.bytes(result, 64).fill(0);
    this.view().setUint8(result + 16, file.kind);
    this.view().setBigUint64(result + 32, BigInt(file.bytes.length), true);
    return ERRNO.success;
  }
  fd_filestat_get(descriptor, result) {
    const file = this.open.get(descriptor);
    return file ? this.describe(file, result) : ERRNO.badf;
  }
  path_filestat_get(folder, flags, at, length, result) {
    const file = this.files.find(this.text(at, length));
    return file ? this.describe(file, result) : ERRNO.noent;
  }
  path_open(folder, lookup, at, length, how, rights, inherited, flags, result) {
    const file = this.files.find(this.text(at, length));
    if (!file) return ERRNO.noent;
    const descriptor = Math.max(...this.open.keys()) + 1;
    this.open.set(descriptor, file);
    this.view().setUint32(result, descriptor, true);
    return ERRNO.success;
  }
  fd_prestat_get(descriptor, result) {
    if (descriptor !== ROOT) return ERRNO.badf;
    this.view().setUint32(result, 0, true);
    this.view().setUint32(result + 4, 1, true); // the length of "/"
    return ERRNO.success;
  }
  fd_prestat_dir_name(descriptor, at) {
    if (descriptor !== ROOT) return ERRNO.badf;
    this.bytes(at, 1)[0] = "/".charCodeAt(0);
    return ERRNO.success;
  }

  imports(module) {
    const made = {};
    for (const { module: from, name } of WebAssembly.Module.imports(module)) {
      made[from] = made[from] || {};
      made[from][name] = (...values) => (typeof this[name] === "function" ? this[name](...values) : ERRNO.nosys);
    }
    return made;
  }
}

// { code, out, err }; `broken` says why where the program did not come to its end, as with too little memory.
function runProgram(module, words, files) {
  const calls = new Calls(words, files);
  const result = (code, broken) => ({ code, out: calls.output(1), err: calls.output(2), broken });
  try {
    const instance = new WebAssembly.Instance(module, calls.imports(module));
    calls.memory = instance.exports.memory;
    instance.exports._start();
    return result(0, null);
  } catch (error) {
    if (error instanceof Exit) return result(error.code, null);
    return result(null, String(error));
  }
}
