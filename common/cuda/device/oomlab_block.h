#pragma once
// How the threads of a grid share work, on a GPU. The host runtime has its own header of this name with the
// same contract; kernels include it through cuda/launch.h and do not know which one they got.
//
// The contract of a range is "each index is visited exactly once", never a particular stride:
//   grid_range(n)   0…n-1 by all threads of the grid together
//   row_range(n)    0…n-1 by the blocks: all threads of a block visit the same rows
//   block_range(n)  0…n-1 by the threads of one block together
// block_sum and block_max are called by all threads of a block, return the result to all of them, work for any
// block size from 1 to 1024, and may be called again right away.

#include <cuda_runtime.h>

#include <cstddef>

namespace oomlab {

/// Values of a row that a thread takes at a time, at least; a pack of 16 bytes may be more. On a GPU no more than that:
/// a row of 768 floats then keeps 192 threads busy.
inline constexpr std::size_t kRowLanes = 1;
/// Blocks that sums over the columns of a matrix are spread over, where the matrix is wide enough: their tiles get
/// narrower until there are so many.
inline constexpr std::size_t kColumnSumBlocks = 64;

struct IndexRange {
  std::size_t first, last, step;
  struct Iterator {
    std::size_t index, step;
    __device__ std::size_t operator*() const { return index; }
    __device__ Iterator& operator++() {
      index += step;
      return *this;
    }
    __device__ bool operator!=(const Iterator& end) const { return index < end.index; }
  };
  __device__ Iterator begin() const { return {first, step}; }
  __device__ Iterator end() const { return {last, step}; }
};

__device__ inline IndexRange grid_range(std::size_t n) {
  return {std::size_t(blockIdx.x) * blockDim.x + threadIdx.x, n, std::size_t(gridDim.x) * blockDim.x};
}
__device__ inline IndexRange row_range(std::size_t n) { return {blockIdx.x, n, gridDim.x}; }
__device__ inline IndexRange block_range(std::size_t n) { return {threadIdx.x, n, blockDim.x}; }

namespace detail {

// One value a thread in, the combined value to every thread out. Warps combine by shuffles, then every thread combines
// one value a warp, all in the same order. A partial last warp is masked, so any block size works.
template <class T, class Combine>
__device__ T block_combine(T value, Combine combine) {
  __shared__ T partial[32];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = (blockDim.x + 31) / 32;
  const unsigned in_warp = min(32u, blockDim.x - warp * 32);
  const unsigned mask = in_warp == 32 ? 0xffffffffu : (1u << in_warp) - 1;
  for (unsigned offset = 16; offset > 0; offset /= 2) {
    const T other = __shfl_down_sync(mask, value, offset);
    if (lane + offset < in_warp) value = combine(value, other);
  }
  if (lane == 0) partial[warp] = value;
  __syncthreads();
  T total = partial[0];
  for (unsigned w = 1; w < warps; ++w) total = combine(total, partial[w]);
  __syncthreads();  // partial may be written again by the next call
  return total;
}

}  // namespace detail

template <class T>
__device__ T block_sum(T value) {
  return detail::block_combine(value, [](T a, T b) { return a + b; });
}
template <class T>
__device__ T block_max(T value) {
  return detail::block_combine(value, [](T a, T b) { return a < b ? b : a; });
}

/// The block's dynamic shared memory (LaunchShape::shared_bytes), 16-byte aligned, contents undefined.
template <class T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char oomlab_shared[];
  return reinterpret_cast<T*>(oomlab_shared);
}

/// Enough blocks to fill a large GPU; more would only queue. A range needs no more.
inline unsigned blocks_for_items(std::size_t items, unsigned threads) {
  const std::size_t blocks = (items + threads - 1) / threads;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks > 4096 ? 4096 : blocks);
}
inline unsigned blocks_for_rows(std::size_t rows) {
  return static_cast<unsigned>(rows < 1 ? 1 : rows > 65535 ? 65535 : rows);
}

}  // namespace oomlab
