#include "nn/ops/transposed.h"

#include <stdexcept>

namespace oomlab::nn {

ConvolutionShape transposed_shape(std::size_t batch, std::size_t height, std::size_t width, std::size_t in_channels,
                                  std::size_t out_channels, std::size_t factor) {
  if (factor == 0) throw std::invalid_argument("an image cannot be enlarged by a factor of 0");
  return convolution_shape(batch, checked_product(height, factor), checked_product(width, factor), out_channels,
                           in_channels, factor, factor, 0);
}

}  // namespace oomlab::nn
