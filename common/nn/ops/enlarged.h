#pragma once
// The sizes of an image that becomes larger by a whole factor.

#include <cuda_runtime.h>

#include <cstddef>
#include <stdexcept>

#include "plan/bytes.h"

namespace oomlab::nn {

/// An enlarged image: the sizes are of the smaller one. A parameter of kernels.
struct Enlarged {
  std::size_t batch, height, width, channels, factor;
  __host__ __device__ std::size_t out_height() const { return height * factor; }
  __host__ __device__ std::size_t out_width() const { return width * factor; }
};
/// Throws std::invalid_argument for a factor of 0, std::length_error for sizes beyond 64 bits.
inline Enlarged enlarged(std::size_t batch, std::size_t height, std::size_t width, std::size_t channels,
                         std::size_t factor) {
  if (factor == 0) throw std::invalid_argument("an image cannot be enlarged by a factor of 0");
  const std::size_t lines = checked_product(batch, checked_product(height, factor));
  checked_product(checked_product(lines, checked_product(width, factor)), channels);
  return {batch, height, width, channels, factor};
}

}  // namespace oomlab::nn
