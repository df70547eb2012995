// nvcc -c puzzle.cu        or, with no GPU and no nvcc:  bench/puzzle 11-copy_on_write
//
// A key-value cache in blocks of 4 tokens. A sequence is a list of blocks. Several answers to one question have the same beginning: fork() makes a
// sequence with the same tokens.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#define CHECK(call) check(call, #call)
void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorName(error));
}

constexpr int block_tokens = 4;

struct Sequence {
  std::vector<int> blocks;
  int tokens = 0;
};
float* pool = nullptr;      // [blocks, block_tokens, width]
int width = 0;              // floats of a token
std::vector<int> users;     // by block: how many sequences have it; 0 for a block that is free
std::vector<Sequence> sequences;

float* address(int block, int token) { return pool + (size_t(block) * block_tokens + token) * width; }

void cache_open(int blocks, int floats) {
  width = floats;
  CHECK(cudaMalloc(&pool, size_t(blocks) * block_tokens * width * sizeof(float)));
  users.assign(blocks, 0);
  sequences.clear();
}
void cache_close() { CHECK(cudaFree(pool)); }

// A block that was free. -1: there is none.
int take_block() {
  for (size_t b = 0; b < users.size(); ++b)
    if (users[b] == 0) {
      users[b] = 1;
      return int(b);
    }
  return -1;
}
int sequence_new() {  // may move all sequences: a reference to one is void afterwards
  sequences.emplace_back();
  return int(sequences.size()) - 1;
}
void sequence_end(int s) {
  for (const int b : sequences[s].blocks) --users[b];
  sequences[s] = {};
}
// to: tokens * width floats on the device.
void sequence_read(int s, float* to) {
  for (int t = 0; t < sequences[s].tokens; ++t) {
    const float* from = address(sequences[s].blocks[t / block_tokens], t % block_tokens);
    CHECK(cudaMemcpy(to + size_t(t) * width, from, width * sizeof(float), cudaMemcpyDeviceToDevice));
  }
}

// TODO: fork() copies all blocks, and so the cache is full after a few answers. Let sequences share blocks: fork() copies nothing, and append()
// takes a copy of a shared block before it writes to it. Where no block is free, append() returns false, and changes nothing.
int sequence_fork(int s) {
  const int copy = sequence_new();
  for (const int b : sequences[s].blocks) {
    const int own = take_block();
    if (own < 0) return -1;
    CHECK(cudaMemcpy(address(own, 0), address(b, 0), size_t(block_tokens) * width * sizeof(float), cudaMemcpyDeviceToDevice));
    sequences[copy].blocks.push_back(own);
  }
  sequences[copy].tokens = sequences[s].tokens;
  return copy;
}
bool append(int s, const float* token) {  // token: width floats on the device
  Sequence& sequence = sequences[s];
  if (sequence.tokens % block_tokens == 0) {
    const int block = take_block();
    if (block < 0) return false;
    sequence.blocks.push_back(block);
  }
  CHECK(cudaMemcpy(address(sequence.blocks.back(), sequence.tokens % block_tokens), token, width * sizeof(float), cudaMemcpyDeviceToDevice));
  ++sequence.tokens;
  return true;
}
// end of TODO
