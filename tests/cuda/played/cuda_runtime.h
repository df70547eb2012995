#pragma once
// As much of CUDA as common/cuda/device/oomlab_block.h needs, played by real threads: one block at a time, a thread for
// each of its threads. Static shared memory is static memory, __syncthreads() a barrier, a shuffle an exchange between
// the threads of a warp. So what otherwise only a GPU runs can be run, and ThreadSanitizer can look at it.

#include <algorithm>
#include <atomic>
#include <barrier>
#include <bit>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#define __device__
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))

struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};
inline thread_local Index3 threadIdx, blockIdx, blockDim, gridDim;

namespace played {

/// A block that is being played. `mistakes` counts what CUDA leaves undefined.
struct Block {
  struct Warp {
    explicit Warp(unsigned threads) : threads(threads), meet(threads) {}
    const unsigned threads;
    std::barrier<> meet;
    unsigned char slots[32][16] = {};
  };
  explicit Block(unsigned threads) : all(threads) {
    for (unsigned first = 0; first < threads; first += 32)
      warps.push_back(std::make_unique<Warp>(std::min(32u, threads - first)));
  }
  std::barrier<> all;
  std::vector<std::unique_ptr<Warp>> warps;
  std::atomic<int> mistakes{0};
};
inline Block* block = nullptr;

/// Runs `kernel` as blocks of so many threads, one block after the other. Returns the mistakes.
inline int launch(unsigned blocks, unsigned threads, const std::function<void()>& kernel) {
  int mistakes = 0;
  for (unsigned b = 0; b < blocks; ++b) {
    Block playing(threads);
    block = &playing;
    {
      std::vector<std::jthread> crew;
      for (unsigned t = 0; t < threads; ++t)
        crew.emplace_back([&, t] {
          threadIdx.x = t, blockIdx.x = b, blockDim.x = threads, gridDim.x = blocks;
          playing.all.arrive_and_wait();  // none is done before the last has begun
          kernel();
        });
    }
    mistakes += playing.mistakes;
  }
  return mistakes;
}

}  // namespace played

inline void __syncthreads() { played::block->all.arrive_and_wait(); }

/// The value of the lane `offset` higher. What CUDA leaves undefined (a lane that is not in the mask, or does not
/// exist) comes back as bytes 0xcd. All lanes of the mask must call it with the same mask.
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned offset) {
  static_assert(sizeof(T) <= 16);
  played::Block::Warp& warp = *played::block->warps[threadIdx.x / 32];
  const unsigned lane = threadIdx.x % 32, from = lane + offset;
  if (!(mask >> lane & 1) || unsigned(std::popcount(mask)) != warp.threads) ++played::block->mistakes;
  std::memcpy(warp.slots[lane], &value, sizeof value);
  warp.meet.arrive_and_wait();
  T result;
  if (from < 32 && (mask >> from & 1))
    std::memcpy(&result, warp.slots[from], sizeof result);
  else
    std::memset(&result, 0xcd, sizeof result);
  warp.meet.arrive_and_wait();
  return result;
}

using std::min;
