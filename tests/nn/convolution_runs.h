#pragma once
// Convolutions of many shapes: their operands, and what must come out.

#include <string>
#include <type_traits>
#include <vector>

#include "device.h"
#include "image_reference.h"
#include "nn/ops/convolution.h"
#include "typed.h"

namespace oomlab::test {

using nn::convolution_shape;
using nn::ConvolutionWay;

inline constexpr ConvolutionWay kWays[] = {ConvolutionWay::im2col, ConvolutionWay::tiled, ConvolutionWay::direct};

/// A sum of products by hand and one by the library differ by less than what other operators may be off by.
template <class T>
inline constexpr double kSumTolerance = std::is_same_v<T, float> ? 1e-5 : kTolerance<T>;

inline std::string text(const ConvolutionShape& s) {
  const auto n = [](std::size_t v) { return std::to_string(v); };
  return n(s.batch) + " x " + n(s.height) + " x " + n(s.width) + ", channels " + n(s.in_channels) + " to " +
         n(s.out_channels) + " in " + n(s.groups) + " groups, kernel " + n(s.kernel) + ", stride " + n(s.stride) +
         ", padding " + n(s.pad_top) + " " + n(s.pad_left) + ", output " + n(s.out_height) + " x " + n(s.out_width);
}

// Operands of a convolution as T holds them, and what must come out.
template <class T>
struct Problem {
  ConvolutionShape shape;
  std::vector<T> x, w, dy, dw_before;
  Vector y;
  ConvolutionGradients gradients;

  explicit Problem(const ConvolutionShape& s)
      : shape(s),
        x(stored(s.input_elements(), 1)),
        w(stored(s.weight_elements(), 2)),
        dy(stored(s.output_elements(), 3)),
        dw_before(stored(s.weight_elements(), 4)),
        y(convolution(s, wide(x), wide(w))),
        gradients(convolution_backward(s, wide(dy), wide(x), wide(w))) {}

  static std::vector<T> stored(std::size_t count, unsigned seed) {
    std::vector<T> values;
    for (const float v : random_floats(count, seed)) values.push_back(static_cast<T>(v));
    return values;
  }
  static Vector wide(const std::vector<T>& values) {
    Vector all;
    for (const T& v : values) all.push_back(static_cast<float>(v));
    return all;
  }
  Vector dw_added() const {
    Vector sum = wide(dw_before);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gradients.dw[i];
    return sum;
  }
};

// Without groups, in two, and as many as channels, with one or more outputs of each.
inline const ConvolutionShape kConvolutions[] = {
    convolution_shape(1, 1, 1, 1, 1, 1, 1, 0),       convolution_shape(2, 1, 1, 3, 5, 3, 1, 1),
    convolution_shape(3, 9, 7, 3, 6, 3, 1, 1),       convolution_shape(2, 7, 10, 6, 4, 3, 2, 1, 2),
    convolution_shape(1, 5, 13, 8, 16, 3, 1, 1),     convolution_shape(2, 12, 11, 16, 8, 3, 2, 1),
    convolution_shape(2, 8, 8, 6, 6, 3, 1, 1, 6),    convolution_shape(1, 9, 6, 5, 10, 5, 2, 2, 5),
    convolution_shape(1, 33, 35, 3, 8, 5, 3, 3),     convolution_shape(2, 7, 7, 32, 24, 1, 2, 0),
    convolution_shape(5, 3, 4, 17, 9, 1, 1, 0),      convolution_shape(2, 6, 5, 12, 8, 1, 1, 0, 4),
    convolution_shape(1, 19, 18, 3, 16, 7, 2, 3),    convolution_shape(1, 6, 7, 40, 33, 3, 1, 1),
    convolution_shape(2, 4, 1, 64, 64, 2, 3, 2, 32),
};

}  // namespace oomlab::test
