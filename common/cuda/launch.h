#pragma once
// Starting a kernel, and choosing how many blocks.
//
// A portable kernel is correct for any grid and any block, 1 included: it walks grid_range(n), row_range(n) or
// block_range(n) and combines with block_sum / block_max (oomlab_block.h, one for the GPU, one for the host
// runtime). So the launch shape is a matter of speed only, and shape_for_items() may answer differently per backend.

#include <cuda_runtime.h>
#include <oomlab_block.h>
#include <algorithm>

#include <cstddef>
#include <utility>

#include "cuda/block_threads.h"
#include "cuda/check.h"
#include "plan/interrupt.h"

namespace oomlab {

/// The shape of a launch: blocks, threads a block, and bytes of dynamic shared memory a block.
struct LaunchShape {
  dim3 grid = 1;
  dim3 block = 1;
  std::size_t shared_bytes = 0;
};

/// Queues kernel(args...) on `stream`. Throws CudaError when the launch is refused, Interrupted on Ctrl-C.
/// On a GPU this is cudaLaunchKernelEx itself; the host runtime implements that call with a loop over blocks.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const LaunchShape& shape, cudaStream_t stream, Arguments&&... arguments) {
  check_interrupt();
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(std::forward<Arguments>(arguments))...));
}

/// The shape for a kernel that walks grid_range(items).
inline LaunchShape shape_for_items(std::size_t items) {
  return {blocks_for_items(items, block_threads()), block_threads(), 0};
}
/// The shape for a kernel that walks row_range(rows), one block a row at a time.
inline LaunchShape shape_for_rows(std::size_t rows, std::size_t shared_bytes = 0) {
  return {blocks_for_rows(rows), block_threads(), shared_bytes};
}
/// The shape with at most so many threads a block: for a kernel that has more values in flight than kMostBlockThreads
/// have registers for. Where __launch_bounds__ say the same, the compiler may keep to 64 registers all the same, and
/// the rest in memory (tests/sass sees it).
inline LaunchShape at_most(unsigned threads, LaunchShape shape) {
  shape.block.x = std::min(shape.block.x, threads);
  return shape;
}

}  // namespace oomlab
