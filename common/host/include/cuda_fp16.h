#pragma once
// __half for the host runtime: CUDA's names, and CUDA's results. Every operation rounds once, to nearest
// even; NaN becomes CUDA's 0x7fff. The conversions have no branches, so loops over them vectorise on any
// instruction set.

#include <bit>
#include <cstdint>
#include <limits>

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

/// A float that rounds to a shorter type as `value` itself does: cut off, and odd when anything was cut (a
/// plain cast would round twice).
constexpr float round_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || value != value) return nearest;
  const bool beyond = (static_cast<double>(nearest) > value) == (value > 0);
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(nearest) - beyond) | 1u);
}

/// Towards zero, saturating, NaN to 0: what CUDA's conversions to integers do.
template <class Integer>
constexpr Integer to_integer(float value) {
  using Limits = std::numeric_limits<Integer>;
  if (value != value) return 0;
  if (value <= static_cast<float>(Limits::min())) return Limits::min();
  if (value >= static_cast<float>(Limits::max())) return Limits::max();
  return static_cast<Integer>(value);
}

}  // namespace oomlab::host

struct __half_raw {
  unsigned short x;
};

class __half;
class __nv_bfloat16;

// The full list of constructors and conversions matters: an expression that is ambiguous in CUDA, as `h
// * 2.0f`, must be ambiguous here.
#define OOMLAB_SHORT_FLOAT_CLASS(Type, Raw, Other, from_bits, to_bits)                                    \
  class alignas(2) Type {                                                                                 \
   public:                                                                                                \
    Type() = default;                                                                                     \
    constexpr Type(const Raw& raw) : __x(raw.x) {}                                                        \
    Type(float value) : __x(to_bits(value)) {}                                                            \
    Type(double value) : __x(to_bits(::oomlab::host::round_to_odd(value))) {}                             \
    inline explicit Type(const Other value);                                                              \
    Type(short value) : Type(static_cast<float>(value)) {}                                                \
    Type(unsigned short value) : Type(static_cast<float>(value)) {}                                       \
    Type(int value) : Type(static_cast<double>(value)) {}                                                 \
    Type(unsigned value) : Type(static_cast<double>(value)) {}                                            \
    operator Raw() const { return {__x}; }                                                                \
    operator float() const { return from_bits(__x); }                                                     \
    operator bool() const { return (__x & 0x7fffu) != 0; }                                                \
    operator char() const { return ::oomlab::host::to_integer<char>(*this); }                             \
    operator signed char() const { return ::oomlab::host::to_integer<signed char>(*this); }               \
    operator unsigned char() const { return ::oomlab::host::to_integer<unsigned char>(*this); }           \
    operator short() const { return ::oomlab::host::to_integer<short>(*this); }                           \
    operator unsigned short() const { return ::oomlab::host::to_integer<unsigned short>(*this); }         \
    operator int() const { return ::oomlab::host::to_integer<int>(*this); }                               \
    operator unsigned() const { return ::oomlab::host::to_integer<unsigned>(*this); }                     \
    operator long() const { return ::oomlab::host::to_integer<long>(*this); }                             \
    operator unsigned long() const { return ::oomlab::host::to_integer<unsigned long>(*this); }           \
    operator long long() const { return ::oomlab::host::to_integer<long long>(*this); }                   \
    operator unsigned long long() const { return ::oomlab::host::to_integer<unsigned long long>(*this); } \
                                                                                                          \
   private:                                                                                               \
    unsigned short __x;                                                                                   \
  };

// A float holds more than twice the digits, so computing in float and rounding once more gives the nearest
// result.
// __hmax and __hmin: a NaN loses against a number, and -0 is less than +0.
#define OOMLAB_SHORT_FLOAT_FUNCTIONS(Type, Raw)                                                                  \
  inline Type __hadd(const Type a, const Type b) { return Type(float(a) + float(b)); }                           \
  inline Type __hsub(const Type a, const Type b) { return Type(float(a) - float(b)); }                           \
  inline Type __hmul(const Type a, const Type b) { return Type(float(a) * float(b)); }                           \
  inline Type __hdiv(const Type a, const Type b) { return Type(float(a) / float(b)); }                           \
  inline Type __hneg(const Type a) { return Type(-float(a)); }                                                   \
  inline Type __habs(const Type a) { return Raw{static_cast<unsigned short>(static_cast<Raw>(a).x & 0x7fffu)}; } \
  inline bool __heq(const Type a, const Type b) { return float(a) == float(b); }                                 \
  inline bool __hneu(const Type a, const Type b) { return float(a) != float(b); }                                \
  inline bool __hlt(const Type a, const Type b) { return float(a) < float(b); }                                  \
  inline bool __hle(const Type a, const Type b) { return float(a) <= float(b); }                                 \
  inline bool __hgt(const Type a, const Type b) { return float(a) > float(b); }                                  \
  inline bool __hge(const Type a, const Type b) { return float(a) >= float(b); }                                 \
  inline bool __hisnan(const Type a) { return float(a) != float(a); }                                            \
  inline Type __hmax(const Type a, const Type b) {                                                               \
    if (__heq(a, b)) return static_cast<Raw>(a).x & 0x8000u ? b : a;                                             \
    return __hgt(a, b) || __hisnan(b) ? Type(float(a)) : b;                                                      \
  }                                                                                                              \
  inline Type __hmin(const Type a, const Type b) {                                                               \
    if (__heq(a, b)) return static_cast<Raw>(a).x & 0x8000u ? a : b;                                             \
    return __hlt(a, b) || __hisnan(b) ? Type(float(a)) : b;                                                      \
  }                                                                                                              \
  inline Type operator+(const Type& a, const Type& b) { return __hadd(a, b); }                                   \
  inline Type operator-(const Type& a, const Type& b) { return __hsub(a, b); }                                   \
  inline Type operator*(const Type& a, const Type& b) { return __hmul(a, b); }                                   \
  inline Type operator/(const Type& a, const Type& b) { return __hdiv(a, b); }                                   \
  inline Type& operator+=(Type& a, const Type& b) { return a = __hadd(a, b); }                                   \
  inline Type& operator-=(Type& a, const Type& b) { return a = __hsub(a, b); }                                   \
  inline Type& operator*=(Type& a, const Type& b) { return a = __hmul(a, b); }                                   \
  inline Type& operator/=(Type& a, const Type& b) { return a = __hdiv(a, b); }                                   \
  inline Type operator+(const Type& a) { return a; }                                                             \
  inline Type operator-(const Type& a) { return __hneg(a); }                                                     \
  inline bool operator==(const Type& a, const Type& b) { return __heq(a, b); }                                   \
  inline bool operator!=(const Type& a, const Type& b) { return __hneu(a, b); }                                  \
  inline bool operator<(const Type& a, const Type& b) { return __hlt(a, b); }                                    \
  inline bool operator<=(const Type& a, const Type& b) { return __hle(a, b); }                                   \
  inline bool operator>(const Type& a, const Type& b) { return __hgt(a, b); }                                    \
  inline bool operator>=(const Type& a, const Type& b) { return __hge(a, b); }

OOMLAB_SHORT_FLOAT_CLASS(__half, __half_raw, __nv_bfloat16, ::oomlab::host::from_half_bits,
                         ::oomlab::host::to_half_bits)
OOMLAB_SHORT_FLOAT_FUNCTIONS(__half, __half_raw)
typedef __half half;

inline __half __float2half(const float a) { return __half(a); }
inline __half __float2half_rn(const float a) { return __half(a); }
inline __half __double2half(const double a) { return __half(a); }
inline float __half2float(const __half a) { return static_cast<float>(a); }
inline __half __ushort_as_half(const unsigned short bits) { return __half_raw{bits}; }
inline unsigned short __half_as_ushort(const __half a) { return static_cast<__half_raw>(a).x; }
/// 1 for +infinity, -1 for -infinity, else 0.
inline int __hisinf(const __half a) {
  return __half_as_ushort(a) == 0x7c00u ? 1 : __half_as_ushort(a) == 0xfc00u ? -1 : 0;
}
