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
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "plan/optimizer_state.h"

namespace oomlab::nn {

/// Blocks of so many numbers; those of a block share an absmax.
constexpr std::size_t blocks_of(std::size_t count) { return count / kCodeBlock + (count % kCodeBlock != 0); }

/// The values of a code, in ascending order, and the bounds between neighbours: a number up to bound[q] and above
/// bound[q − 1] becomes q.
struct DynamicCode {
  float value[256];
  float bound[256];  ///< nothing is above the last one
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
  for (std::size_t q = 0; q < 255; ++q) code.bound[q] = (code.value[q] + code.value[q + 1]) / 2.0f;
  code.bound[255] = std::numeric_limits<float>::infinity();
  return code;
}
inline constexpr DynamicCode kSignedCode = make_dynamic_code(true), kUnsignedCode = make_dynamic_code(false);

/// What numbers of a block are multiplied by before they are looked up. Below 1e-38 an absmax is taken for that: its
/// reciprocal would not be finite.
__host__ __device__ inline float code_scale(float absmax) { return 1.0f / (absmax < 1e-38f ? 1e-38f : absmax); }

// The code of a number by arithmetic: no table, no search and no branch, so that a compiler for the host vectorises it,
// with AVX2 as with AVX-512. The number of codes between 0 and x grows with x along straight lines: one up to the first
// bound, one within each decade, and one through each bound between two decades, where wide cells follow narrow ones.
// Each line is less steep than the one before, so it is the lowest of them that counts. At bounds they are whole: the
// code is that, rounded down.

/// A line: count = at_zero + slope · x.
struct CodeLine {
  float slope, at_zero;
};
struct CodeLines {
  CodeLine of[14];
};
/// Those of the code, from the lowest numbers up.
template <bool kWithSign>
constexpr CodeLines make_code_lines() {
  const DynamicCode& code = kWithSign ? kSignedCode : kUnsignedCode;
  constexpr int kZero = kWithSign ? 127 : 0;
  CodeLines lines{};
  std::size_t known = 0;
  const auto through = [&](double x, double count, double slope) {
    lines.of[known++] = {static_cast<float>(slope), static_cast<float>(count - slope * x)};
  };
  // 0 is common, and no bound: it is given half a code.
  through(0.0, 0.5, 0.5 / static_cast<double>(code.bound[kZero]));
  double scale = 1e-6;
  int cells = kWithSign ? 1 : 2, count = 1;
  for (int decade = 0; decade < 7; ++decade) {
    const double slope = cells / (0.9 * scale);
    through(0.1 * scale, count, slope);
    count += cells;
    // From the bound between two decades it is two cells down to the next bound, and four of that width up to the one
    // above, so any slope from 1/4 to 1/2 of this decade's passes beside them.
    if (decade < 6) through(static_cast<double>(code.bound[kZero + count - 1]), count, 0.35 * slope);
    scale *= 10, cells *= 2;
  }
  return lines;
}
template <bool kWithSign>
inline constexpr CodeLines kCodeLines = make_code_lines<kWithSign>();

/// How many codes line k counts up to `size`, as the bits of a float: those of numbers that are not negative are
/// ordered as they are.
template <bool kWithSign, std::size_t k>
__host__ __device__ inline std::int32_t bits_of_count_on_line(float size) {
  constexpr CodeLine kLine = kCodeLines<kWithSign>.of[k];
  const float count = fmaf(size, kLine.slope, kLine.at_zero);
  std::int32_t bits;
  memcpy(&bits, &count, sizeof bits);
  return bits;
}

/// How many codes there are from 0 to x, which is no NaN, and a part of the next one.
template <bool kWithSign>
__host__ __device__ __attribute__((always_inline)) inline float count_of_codes(float x) {
  const float size = kWithSign ? fabsf(x) : x;
  const float most = kWithSign ? 127.5f : 254.5f;  // the code after the last cell, 1, has no line
  std::int32_t least;
  memcpy(&least, &most, sizeof least);
  // The lowest line, in integers: to both compilers this is a minimum, one instruction, whatever they must respect in
  // floats.
  const auto at_most = [&](std::int32_t line) { least = line < least ? line : least; };
  [&]<std::size_t... k>(std::index_sequence<k...>) { (at_most(bits_of_count_on_line<kWithSign, k>(size)), ...); }
  (std::make_index_sequence<14>{});
  float count;
  memcpy(&count, &least, sizeof count);
  return count;
}
/// Whether x is so near a bound that only the bound itself tells its code. Lines and bounds are rounded: together that
/// moves a count by half of what is asked for here. It is so for one of 16,000 numbers, of 32,000 with a sign.
template <bool kWithSign>
__host__ __device__ inline bool is_unsure(float count) {
  constexpr float kRounds = 12582912.0f;  // 1.5 · 2^23: adding it rounds to an integer
  const float whole = (count + kRounds) - kRounds;
  return fabsf(count - whole) < (kWithSign ? 1.0f / 65536.0f : 1.0f / 32768.0f);
}
/// The code of x, which has that count. Where that is unsure, it may be one too low or too high.
template <bool kWithSign>
__host__ __device__ __attribute__((always_inline)) inline int code_at(float count, float x) {
  constexpr int kZero = kWithSign ? 127 : 0;
  constexpr float kLastBound = (kWithSign ? kSignedCode : kUnsignedCode).bound[254];
  const int from_zero = static_cast<int>(count > 0.0f ? count : 0.0f);
  const int q = kWithSign && x < 0.0f ? kZero - from_zero : kZero + from_zero;
  return q + (x > kLastBound ? 1 : 0);
}
/// The first q whose bound is not below x, from one that is at most one too low or too high.
__host__ __device__ inline int corrected(const float* bound, int q, float x) {
  return q + (bound[q] < x ? 1 : 0) - (q > 0 && bound[q - 1] >= x ? 1 : 0);
}
/// The code of any x: the first q whose bound is not below x, and for NaN that of 0.
template <bool kWithSign>
__host__ __device__ inline int code_of(const float* bound, float x) {
  if (x != x) return kWithSign ? 127 : 0;
  return corrected(bound, code_at<kWithSign>(count_of_codes<kWithSign>(x), x), x);
}

/// The code of a first moment x: one of its own sign, so that a moment that is small beside its block's largest does
/// not become 0 and lose its direction (as bitsandbytes' optimizer does it; its quantiser for tensors does not). 0
/// itself stays 0.
__host__ __device__ inline int with_own_sign(int code, float x) {
  constexpr int kZero = 127;  // the code of 0
  return x < 0.0f && code == kZero ? kZero - 1 : code;
}

}  // namespace oomlab::nn
