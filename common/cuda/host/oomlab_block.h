#pragma once
// How the threads of a grid share work, on the host: the twin of device/oomlab_block.h, same names, same contract
// ("each index is visited exactly once", never a particular stride).
//
// Fast mode has one thread a block, so a block visits all of block_range(n) and block_sum(x) is x. grid_range(n) gives
// a block one contiguous piece, walked by a plain counting loop that the compiler vectorises: a literal grid stride
// measured 20 to 30 times slower. Check mode has a few threads a block, and each takes a contiguous piece.

#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>

namespace oomlab {

/// Values of a row that a thread takes at a time: as many running sums side by side vectorise without reordering a sum.
inline constexpr std::size_t kRowLanes = 16;
/// Blocks that sums over the columns of a matrix are spread over: here whole cache lines count for more.
inline constexpr std::size_t kColumnSumBlocks = 4;

struct IndexRange {
  std::size_t first, last;
  struct Iterator {
    std::size_t index;
    std::size_t operator*() const { return index; }
    Iterator& operator++() {
      ++index;
      return *this;
    }
    bool operator!=(const Iterator& end) const { return index != end.index; }
  };
  Iterator begin() const { return {first}; }
  Iterator end() const { return {last}; }
};

namespace detail {

// The part-th of `parts` pieces of 0…n-1; sizes are multiples of 16, so that no two blocks write to one cache line.
inline IndexRange piece(std::size_t n, std::size_t part, std::size_t parts) {
  const std::size_t step = ((n + parts - 1) / parts + 15) / 16 * 16;
  const std::size_t first = part * step < n ? part * step : n;
  return {first, n - first < step ? n : first + step};
}
// Rows, and check mode: pieces of any size, which differ by one at most.
inline IndexRange even_piece(std::size_t n, std::size_t part, std::size_t parts) {
  const std::size_t step = n / parts, rest = n % parts;
  const std::size_t first = part * step + (part < rest ? part : rest);
  return {first, first + step + (part < rest ? 1 : 0)};
}

}  // namespace detail

inline IndexRange row_range(std::size_t n) { return detail::even_piece(n, blockIdx.x, gridDim.x); }

#ifdef OOMLAB_HOST_CHECK

inline IndexRange grid_range(std::size_t n) {
  return detail::even_piece(n, std::size_t(blockIdx.x) * blockDim.x + threadIdx.x, std::size_t(gridDim.x) * blockDim.x);
}
inline IndexRange block_range(std::size_t n) { return detail::even_piece(n, threadIdx.x, blockDim.x); }

namespace detail {

template <class T, class Combine>
T block_combine(T value, Combine combine) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 64);
  *static_cast<T*>(host::detail::block_slot(threadIdx.x)) = value;
  __syncthreads();
  T total = *static_cast<T*>(host::detail::block_slot(0));
  for (unsigned t = 1; t < blockDim.x; ++t) total = combine(total, *static_cast<T*>(host::detail::block_slot(t)));
  __syncthreads();  // the slots may be written again by the next call
  return total;
}

}  // namespace detail

template <class T>
T block_sum(T value) {
  return detail::block_combine(value, [](T a, T b) { return a + b; });
}
template <class T>
T block_max(T value) {
  return detail::block_combine(value, [](T a, T b) { return a < b ? b : a; });
}

#else

inline IndexRange grid_range(std::size_t n) { return detail::piece(n, blockIdx.x, gridDim.x); }
inline IndexRange block_range(std::size_t n) { return {0, n}; }
template <class T>
T block_sum(T value) {
  return value;
}
template <class T>
T block_max(T value) {
  return value;
}

#endif

/// The block's dynamic shared memory (LaunchShape::shared_bytes), 16-byte aligned, contents undefined.
template <class T>
T* dynamic_shared() {
  return static_cast<T*>(host::detail::block_shared());
}

/// One block a thread of this machine, and none that would have less than 1,024 items: starting threads costs more.
inline unsigned blocks_for_items(std::size_t items, unsigned) {
  const std::size_t blocks = (items + 1023) / 1024, most = host::detail::concurrent_blocks();
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks > most ? most : blocks);
}
/// Some blocks a thread: rows cost more than items, and not always the same.
inline unsigned blocks_for_rows(std::size_t rows) {
  const std::size_t most = 4 * std::size_t(host::detail::concurrent_blocks());
  return static_cast<unsigned>(rows < 1 ? 1 : rows > most ? most : rows);
}

}  // namespace oomlab
