// __half and __nv_bfloat16: conversions and arithmetic, on both sides, against a reference that uses only
// doubles.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "contract.h"
#include "cuda/launch.h"

namespace {

template <class T>
struct Format;
template <>
struct Format<__half> {
  static constexpr int digits = 11, lowest_exponent = -14, highest_exponent = 15;
  static unsigned short bits(__half value) { return std::bit_cast<unsigned short>(value); }
  static __half make(unsigned bits) { return std::bit_cast<__half>(static_cast<unsigned short>(bits)); }
};
template <>
struct Format<__nv_bfloat16> {
  static constexpr int digits = 8, lowest_exponent = -126, highest_exponent = 127;
  static unsigned short bits(__nv_bfloat16 value) { return std::bit_cast<unsigned short>(value); }
  static __nv_bfloat16 make(unsigned bits) { return std::bit_cast<__nv_bfloat16>(static_cast<unsigned short>(bits)); }
};

/// What the bits mean, from the definition of the format.
template <class T>
double value_of(unsigned bits) {
  using F = Format<T>;
  const int fraction_bits = F::digits - 1;
  const int exponent = (bits & 0x7fff) >> fraction_bits, fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == F::highest_exponent - F::lowest_exponent + 2)
    return fraction ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(fraction, F::lowest_exponent - fraction_bits);
  return sign * std::ldexp(fraction + (1 << fraction_bits), exponent - 1 + F::lowest_exponent - fraction_bits);
}

/// The nearest value of the format, ties to even, as a double; NaN stays NaN.
template <class T>
double nearest(double value) {
  using F = Format<T>;
  if (std::isnan(value) || std::isinf(value) || value == 0) return value;
  const int exponent = std::max(std::ilogb(value), F::lowest_exponent) - (F::digits - 1);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -exponent)), exponent);
  return std::abs(rounded) >= std::ldexp(1.0, F::highest_exponent + 1)
             ? std::copysign(std::numeric_limits<double>::infinity(), value)
             : rounded;
}

/// Equal, with NaN equal to NaN and -0 different from +0.
bool same(double a, double b) { return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b); }

/// Floats where rounding can go wrong: every value of the format, every midpoint, and their neighbours; and a
/// walk through all floats.
template <class T>
std::vector<float> interesting_floats() {
  std::vector<float> floats;
  const float infinity = std::numeric_limits<float>::infinity();
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const double value = value_of<T>(bits);
    floats.push_back(static_cast<float>(value));
    const double next = value_of<T>((bits + 1) & 0xffff);
    if (!std::isfinite(value) || !std::isfinite(next)) continue;
    const float middle = static_cast<float>((value + next) / 2);
    for (const float x : {middle, std::nextafter(middle, infinity), std::nextafter(middle, -infinity)})
      floats.push_back(x);
  }
  for (const float x :
       {65504.0f, 65519.99f, 65520.0f, 65536.0f, 1e10f, 3.3961775e38f, 3.4028235e38f, 2.98e-8f, 2.99e-8f})
    for (const float signed_x : {x, -x}) floats.push_back(signed_x);
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 9973)
    floats.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  return floats;
}

template <class T>
__global__ void narrow_kernel(const float* in, T* out, std::size_t n) {
  for (const std::size_t i : oomlab::grid_range(n)) out[i] = T(in[i]);
}
template <class T>
__global__ void widen_kernel(const T* in, float* out, std::size_t n) {
  for (const std::size_t i : oomlab::grid_range(n)) out[i] = static_cast<float>(in[i]);
}

/// Pair i is (a[i], b[i]); four results a pair.
template <class T>
__global__ void arithmetic_kernel(const T* a, const T* b, T* out, std::size_t n) {
  for (const std::size_t i : oomlab::grid_range(n)) {
    out[4 * i] = a[i] + b[i];
    out[4 * i + 1] = a[i] - b[i];
    out[4 * i + 2] = a[i] * b[i];
    out[4 * i + 3] = a[i] / b[i];
  }
}

template <class T>
class Half : public testing::Test {};
using Types = testing::Types<__half, __nv_bfloat16>;
TYPED_TEST_SUITE(Half, Types);

TYPED_TEST(Half, IsTwoPlainBytes) {
  static_assert(sizeof(TypeParam) == 2 && alignof(TypeParam) == 2);
  static_assert(std::is_trivially_copyable_v<TypeParam> && std::is_trivially_default_constructible_v<TypeParam>);
  EXPECT_EQ(Format<TypeParam>::bits(TypeParam(1.0f)), (std::is_same_v<TypeParam, __half>) ? 0x3c00 : 0x3f80);
}

TYPED_TEST(Half, EveryValueWidensExactly) {
  std::vector<TypeParam> all(0x10000);
  for (unsigned bits = 0; bits < 0x10000; ++bits) all[bits] = Format<TypeParam>::make(bits);
  const Values<TypeParam> in(all);
  const Values<float> out(all.size());
  oomlab::launch(widen_kernel<TypeParam>, oomlab::shape_for_items(out.size()), nullptr, in.data(), out.data(),
                 out.size());
  const std::vector<float> device = out.get();
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const double expected = value_of<TypeParam>(bits);
    ASSERT_TRUE(same(static_cast<float>(all[bits]), expected)) << std::hex << bits;
    ASSERT_TRUE(same(device[bits], expected)) << std::hex << bits;
  }
}

TYPED_TEST(Half, FloatsRoundToNearestEven) {
  const std::vector<float> floats = interesting_floats<TypeParam>();
  const Values<float> in(floats);
  const Values<TypeParam> out(floats.size());
  oomlab::launch(narrow_kernel<TypeParam>, oomlab::shape_for_items(out.size()), nullptr, in.data(), out.data(),
                 out.size());
  const std::vector<TypeParam> device = out.get();
  for (std::size_t i = 0; i < floats.size(); ++i) {
    const double expected = nearest<TypeParam>(floats[i]);
    const unsigned short bits = Format<TypeParam>::bits(TypeParam(floats[i]));
    ASSERT_TRUE(same(value_of<TypeParam>(bits), expected)) << floats[i] << " gave " << std::hex << bits;
    ASSERT_EQ(Format<TypeParam>::bits(device[i]), bits) << floats[i];
  }
}

TYPED_TEST(Half, NotANumberIsCanonical) {
  for (const std::uint32_t bits : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xffffffffu})
    EXPECT_EQ(Format<TypeParam>::bits(TypeParam(std::bit_cast<float>(bits))), 0x7fff);
}

TYPED_TEST(Half, IsTrueUnlessItIsZero) {
  EXPECT_TRUE(static_cast<bool>(TypeParam(0.5f)));
  EXPECT_FALSE(static_cast<bool>(TypeParam(-0.0f)));
}

// As in CUDA, where a constant of another type must be converted by hand.
template <class T, class Other>
concept Multiplies = requires(T a, Other b) { a* b; };
TYPED_TEST(Half, MixedArithmeticIsAmbiguous) {
  EXPECT_TRUE((Multiplies<TypeParam, TypeParam>));
  EXPECT_FALSE((Multiplies<TypeParam, float>));
  EXPECT_FALSE((Multiplies<TypeParam, double>));
  EXPECT_FALSE((Multiplies<TypeParam, int>));
}

TYPED_TEST(Half, ArithmeticRoundsOnce) {
  std::vector<TypeParam> values, a, b;
  // Around 1, so that no bfloat16 result is subnormal; for half, everything.
  const bool is_half = std::is_same_v<TypeParam, __half>;
  for (unsigned bits = is_half ? 0 : 0x3800; bits < (is_half ? 0x7c00 : 0x4700); bits += 41)
    for (const unsigned sign : {0u, 0x8000u}) values.push_back(Format<TypeParam>::make(bits | sign));
  for (std::size_t i = 0; i < values.size(); ++i)
    for (std::size_t j = i % 7; j < values.size(); j += 7) a.push_back(values[i]), b.push_back(values[j]);
  const Values<TypeParam> device_a(a), device_b(b), out(4 * a.size());
  oomlab::launch(arithmetic_kernel<TypeParam>, oomlab::shape_for_items(a.size()), nullptr, device_a.data(),
                 device_b.data(), out.data(), a.size());
  const std::vector<TypeParam> device = out.get();
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = static_cast<float>(a[i]), y = static_cast<float>(b[i]);
    const double exact[4] = {x + y, x - y, x * y, x / y};
    const TypeParam host[4] = {a[i] + b[i], a[i] - b[i], a[i] * b[i], a[i] / b[i]};
    for (int op = 0; op < 4; ++op) {
      ASSERT_TRUE(same(static_cast<float>(host[op]), nearest<TypeParam>(exact[op]))) << x << "+-*/"[op] << y;
      ASSERT_TRUE(same(static_cast<float>(device[4 * i + op]), nearest<TypeParam>(exact[op]))) << x << "+-*/"[op] << y;
    }
  }
}

TYPED_TEST(Half, OperatorsAndPredicates) {
  const TypeParam one(1.0f), two(2.0f), zero(0.0f), minus_zero(-0.0f);
  const TypeParam nan = Format<TypeParam>::make(0x7fff);
  EXPECT_TRUE(one < two && two > one && one <= one && one >= one && one == one && one != two && zero == minus_zero);
  EXPECT_FALSE(nan == nan || nan < one || nan > one || nan <= nan || nan >= nan);
  EXPECT_TRUE(nan != nan);
  EXPECT_EQ(static_cast<float>(-two), -2.0f);
  TypeParam x(6.0f);
  x += one;
  EXPECT_EQ(static_cast<float>(x), 7.0f);
}

}  // namespace
