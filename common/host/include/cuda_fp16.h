#pragma once
// __half for the host runtime: CUDA's names, and CUDA's results. Every operation rounds once, to nearest
// even; NaN becomes CUDA's 0x7fff. The conversions have no branches, so loops over them vectorise on any
// instruction set.

#include <bit>
#include <concepts>
#include <cstdint>

namespace oomlab::host {

/// All ones or all zeros: choosing with masks keeps compilers from making branches.
constexpr std::uint32_t mask(bool condition) { return -static_cast<std::uint32_t>(condition); }
constexpr std::uint32_t choose(std::uint32_t mask, std::uint32_t a, std::uint32_t b) {
  return (a & mask) | (b & ~mask);
}

/// The bits of the nearest half.
constexpr unsigned short to_half_bits(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value), sign = bits >> 16 & 0x8000u;
  const std::int32_t x = bits & 0x7fffffffu;
  const std::uint32_t normal = (x - 0x38000000u + 0xfffu + (x >> 13 & 1)) >> 13;
  // Half's subnormals are multiples of 2^-24, and so are the floats from 0.5 to 1: the addition does the
  // rounding.
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(x) + 0.5f) - 0x3f000000u;
  const std::uint32_t finite = choose(mask(x < 0x38800000), subnormal, normal) | sign;
  const std::uint32_t half = choose(mask(x >= 0x477ff000), 0x7c00u | sign, finite);
  return static_cast<unsigned short>(choose(mask(x > 0x7f800000), 0x7fffu, half));
}
constexpr float from_half_bits(unsigned short half) {
  const std::int32_t x = (half & 0x7fff) << 13;
  const std::uint32_t normal = x + 0x38000000u + (mask(x >= 0x0f800000) & 0x38000000u);
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(x + 0x38800000) - 0x1p-14f);
  const std::uint32_t sign = (half & 0x8000u) << 16;
  return std::bit_cast<float>(choose(mask(x < 0x00800000), subnormal, normal) | sign);
}

}  // namespace oomlab::host

// A float holds more than twice the digits, so computing in float and rounding once more gives the nearest result.
#define OOMLAB_SHORT_FLOAT_OPERATOR(Type, Result, op) \
  inline Result operator op(const Type& a, const Type& b) { return Result(float(a) op float(b)); }

// An expression that is ambiguous in CUDA, as `h * 2.0f`, must be ambiguous here, so all of its operators are declared.
// What is made of doubles, and integers made of it, do not compile: nobody needs them, and a detour over float would
// round twice, or not saturate.
#define OOMLAB_SHORT_FLOAT(Type, from_bits, to_bits)               \
  class alignas(2) Type {                                          \
   public:                                                         \
    Type() = default;                                              \
    Type(float value) : __x(to_bits(value)) {}                     \
    Type(double value) = delete;                                   \
    operator float() const { return from_bits(__x); }              \
    operator bool() const { return (__x & 0x7fffu) != 0; }         \
    template <std::integral Integer>                               \
    operator Integer() const = delete;                             \
                                                                   \
   private:                                                        \
    unsigned short __x;                                            \
  };                                                               \
  OOMLAB_SHORT_FLOAT_OPERATOR(Type, Type, +)                       \
  OOMLAB_SHORT_FLOAT_OPERATOR(Type, Type, -)                       \
  OOMLAB_SHORT_FLOAT_OPERATOR(Type, Type, *)                       \
  OOMLAB_SHORT_FLOAT_OPERATOR(Type, Type, /)                       \
  OOMLAB_SHORT_FLOAT_OPERATOR(Type, bool, ==)                      \
  OOMLAB_SHORT_FLOAT_OPERATOR(Type, bool, !=)                      \
  OOMLAB_SHORT_FLOAT_OPERATOR(Type, bool, <)                       \
  OOMLAB_SHORT_FLOAT_OPERATOR(Type, bool, <=)                      \
  OOMLAB_SHORT_FLOAT_OPERATOR(Type, bool, >)                       \
  OOMLAB_SHORT_FLOAT_OPERATOR(Type, bool, >=)                      \
  inline Type operator-(const Type& a) { return Type(-float(a)); } \
  inline Type& operator+=(Type& a, const Type& b) { return a = a + b; }

OOMLAB_SHORT_FLOAT(__half, ::oomlab::host::from_half_bits, ::oomlab::host::to_half_bits)
