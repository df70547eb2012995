// nvcc -c puzzle.cu        or, with no GPU and no nvcc:  bench/puzzle 06-best_fit
//
// An allocator over one block of device memory. Pieces of it, free and taken, lie side by side, by offset; a request gets the smallest free
// piece that is large enough, and what it does not need of that should stay free.
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
#include <map>

constexpr size_t step = 512;  // all sizes are rounded up to this

struct Piece {
  size_t bytes;
  bool free;
};
char* arena = nullptr;
std::map<size_t, Piece> pieces;  // by offset; together they fill the arena

void arena_open(size_t bytes) {
  CHECK(cudaMalloc(&arena, bytes));
  pieces[0] = {bytes, true};
}
void arena_close() {
  CHECK(cudaFree(arena));
  pieces.clear();
}

// TODO: a request gets the whole piece, also where that is much larger, and two free neighbours never become one again.
// nullptr where no free piece is large enough.
void* arena_allocate(size_t bytes) {
  bytes = (bytes + step - 1) / step * step;
  auto best = pieces.end();
  for (auto p = pieces.begin(); p != pieces.end(); ++p)
    if (p->second.free && p->second.bytes >= bytes && (best == pieces.end() || p->second.bytes < best->second.bytes)) best = p;
  if (best == pieces.end()) return nullptr;
  best->second.free = false;
  return arena + best->first;
}
void arena_free(void* address) {
  const auto piece = pieces.find(size_t(static_cast<char*>(address) - arena));
  piece->second.free = true;
}
// end of TODO
