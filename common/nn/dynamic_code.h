#pragma once
// The dynamic code of eight bits (Dettmers, "8-bit approximations for parallelism in deep learning", 2015; Dettmers et
// al., "8-bit optimizers via block-wise quantization", 2022), as bitsandbytes has it: 256 values from −1, or 0, to 1,
// dense near 0. A block of 256 numbers is stored as 256 codes and the largest absolute value among them, its absmax: a
// number is absmax · code[q].
//
//   decade      10^-6 … 10^-5   …   0.1 … 1     of each sign, in equal cells, of which the middle is taken
//   signed      1                   64 cells    and 0, and 1: first moments
//   unsigned    2                   128 cells   and 0, and 1: second moments

#include <cstddef>

#include <cuda_runtime.h>

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
    // torch.linspace(0.1, 1, cells + 1): from both ends to the middle.
    const float step = (1.0f - 0.1f) / static_cast<float>(cells);
    const auto boundary = [&](int i) {
      return i < (cells + 1) / 2 ? 0.1f + step * static_cast<float>(i) : 1.0f - step * static_cast<float>(cells - i);
    };
    for (int i = 0; i < cells; ++i) {
      const float middle = (boundary(i) + boundary(i + 1)) / 2.0f;
      code.value[++above] = scale * middle;
      if (with_sign) code.value[2 * zero - above] = -(scale * middle);
    }
  }
  code.value[zero] = 0.0f;
  code.value[255] = 1.0f;
  for (std::size_t q = 0; q < 256; ++q)
    code.bound[q] = q < 255 ? (code.value[q] + code.value[q + 1]) / 2.0f : 1.0f;
  return code;
}
inline constexpr DynamicCode kSignedCode = make_dynamic_code(true), kUnsignedCode = make_dynamic_code(false);

/// What numbers of a block are multiplied by before they are looked up. Below 1e-38 an absmax is taken for that: its
/// reciprocal would not be finite.
__host__ __device__ inline float code_scale(float absmax) { return 1.0f / (absmax < 1e-38f ? 1e-38f : absmax); }

/// The code of x, −1 to 1, whose bounds these are; beyond, the first or the last one. In eight steps, without a branch.
__host__ __device__ inline unsigned code_of(const float* bound, float x) {
  unsigned q = 0;
  for (unsigned step = 128; step != 0; step /= 2) q += bound[q + step - 1] < x ? step : 0;
  return q;
}

/// The code of a first moment: one of its own sign, so that a moment that is small beside its block's largest does not
/// become 0 and lose its direction (as bitsandbytes' optimizer does it; its quantiser for tensors does not). 0 itself
/// counts as positive.
__host__ __device__ inline unsigned signed_code_of(const float* bound, float x) {
  const unsigned q = code_of(bound, x);
  constexpr unsigned kZero = 127;  // the code of 0
  return x < 0.0f && q >= kZero ? kZero - 1 : x >= 0.0f && q < kZero ? kZero : q;
}

}  // namespace oomlab::nn
