#pragma once
// The dynamic code of eight bits (Dettmers, "8-bit approximations for parallelism in deep learning", 2015; Dettmers et
// al., "8-bit optimizers via block-wise quantization", 2022), as bitsandbytes has it: 256 values from −1, or 0, to 1,
// dense near 0. A block of 256 numbers is stored as 256 codes and the largest absolute value among them, its absmax: a
// number is absmax · code[q].
//
//   decade      10^-6 … 10^-5   …   0.1 … 1     of each sign, in equal cells, of which the middle is taken
//   signed      1                   64 cells    and 0, and 1: first moments
//   unsigned    2                   128 cells   and 0, and 1: second moments

#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>

namespace oomlab::nn {

/// Numbers that share an absmax.
inline constexpr std::size_t kCodeBlock = 256;

/// The values of a code, in ascending order, and the bounds between neighbours: a number up to bound[q] and above
/// bound[q − 1] becomes q.
struct DynamicCode {
  float value[256];
  float bound[256];  ///< of which the last one is not used
};

/// The code's values, to the bit those of bitsandbytes' create_dynamic_map().
constexpr DynamicCode make_dynamic_code(bool with_sign) {
  DynamicCode code{};
  const std::size_t zero = with_sign ? 127 : 0;
  std::size_t above = zero;
  for (int decade = 0; decade < 7; ++decade) {
    const int cells = (with_sign ? 1 : 2) << decade;
    // A double, as Python's 10 ** n is, rounded when it meets floats.
    constexpr double kScale[] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0};
    const auto scale = static_cast<float>(kScale[decade]);
    // torch.linspace(0.1, 1, cells + 1): from both ends to the middle, each product and sum rounded once. The doubles
    // are exact.
    const double step = (1.0f - 0.1f) / static_cast<float>(cells);
    const auto boundary = [&](int i) {
      return static_cast<float>(i < (cells + 1) / 2 ? static_cast<double>(0.1f) + step * i : 1.0 - step * (cells - i));
    };
    for (int i = 0; i < cells; ++i) {
      const float middle = (boundary(i) + boundary(i + 1)) / 2.0f;
      code.value[++above] = scale * middle;
      if (with_sign) code.value[2 * zero - above] = -(scale * middle);
    }
  }
  code.value[zero] = 0.0f;
  code.value[255] = 1.0f;
  for (std::size_t q = 0; q < 256; ++q) code.bound[q] = q < 255 ? (code.value[q] + code.value[q + 1]) / 2.0f : 1.0f;
  return code;
}
inline constexpr DynamicCode kSignedCode = make_dynamic_code(true), kUnsignedCode = make_dynamic_code(false);

/// What numbers of a block are multiplied by before they are looked up. Below 1e-38 an absmax is taken for that: its
/// reciprocal would not be finite.
__host__ __device__ inline float code_scale(float absmax) { return 1.0f / (absmax < 1e-38f ? 1e-38f : absmax); }

/// The code of x, −1 to 1 (or 0 to 1), whose bounds these are: the first q whose bound is not below x. Which decade x
/// is in, and which of its cells, is computed, where a search would take eight steps, each of which waits for the one
/// before. What rounding may have moved by one is put right by the bounds.
template <bool kWithSign>
__host__ __device__ inline int code_of(const float* bound, float x) {
  constexpr int kCells = kWithSign ? 1 : 2, kZero = kWithSign ? 127 : 0;
  const float size = kWithSign ? fabsf(x) : x;
  constexpr float kLeast[] = {0.0f, 1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f},
                  kScale[] = {1e6f, 1e5f, 1e4f, 1e3f, 1e2f, 1e1f, 1e0f};
  int cells = kCells;
  float scale = kScale[0];
  for (int decade = 1; decade < 7; ++decade) {
    const bool above = size >= kLeast[decade];
    cells = above ? kCells << decade : cells;
    scale = above ? kScale[decade] : scale;
  }
  const float place = (size * scale - 0.1f) * (static_cast<float>(cells) * (1.0f / 0.9f));
  int cell = static_cast<int>(place > 0.0f ? place : 0.0f);
  cell = cell < cells - 1 ? cell : cells - 1;
  const int from_zero = cells - kCells + cell + 1;  // the decades below have as many cells as this one, less the first
  const int q = kWithSign && x < 0.0f ? kZero - from_zero : kZero + from_zero;
  const float above = bound[q], below = bound[q > 0 ? q - 1 : 0];  // both are read in any case: there is no branch
  return q + (above < x ? 1 : 0) - (below < x || q == 0 ? 0 : 1);
}

/// The code of a first moment: one of its own sign, so that a moment that is small beside its block's largest does not
/// become 0 and lose its direction (as bitsandbytes' optimizer does it; its quantiser for tensors does not). 0 itself
/// stays 0.
__host__ __device__ inline int signed_code_of(const float* bound, float x) {
  const int q = code_of<true>(bound, x);
  constexpr int kZero = 127;  // the code of 0
  return x < 0.0f && q == kZero ? kZero - 1 : q;
}

}  // namespace oomlab::nn
