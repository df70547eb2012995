#pragma once
// __nv_bfloat16 for the host runtime: as cuda_fp16.h, with the bits of the upper half of a float.

#include "cuda_fp16.h"

namespace oomlab::host {

constexpr unsigned short to_bfloat16_bits(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t nearest = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
  return static_cast<unsigned short>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : nearest);
}
constexpr float from_bfloat16_bits(unsigned short bits) { return std::bit_cast<float>(std::uint32_t(bits) << 16); }

}  // namespace oomlab::host

struct __nv_bfloat16_raw {
  unsigned short x;
};

OOMLAB_SHORT_FLOAT_CLASS(__nv_bfloat16, __nv_bfloat16_raw, __half, ::oomlab::host::from_bfloat16_bits,
                         ::oomlab::host::to_bfloat16_bits)
OOMLAB_SHORT_FLOAT_FUNCTIONS(__nv_bfloat16, __nv_bfloat16_raw)
typedef __nv_bfloat16 nv_bfloat16;

inline __nv_bfloat16::__nv_bfloat16(const __half value) : __nv_bfloat16(static_cast<float>(value)) {}
inline __half::__half(const __nv_bfloat16 value) : __half(static_cast<float>(value)) {}

inline __nv_bfloat16 __float2bfloat16(const float a) { return __nv_bfloat16(a); }
inline __nv_bfloat16 __float2bfloat16_rn(const float a) { return __nv_bfloat16(a); }
inline __nv_bfloat16 __double2bfloat16(const double a) { return __nv_bfloat16(a); }
inline float __bfloat162float(const __nv_bfloat16 a) { return static_cast<float>(a); }
inline __nv_bfloat16 __ushort_as_bfloat16(const unsigned short bits) { return __nv_bfloat16_raw{bits}; }
inline unsigned short __bfloat16_as_ushort(const __nv_bfloat16 a) { return static_cast<__nv_bfloat16_raw>(a).x; }
/// 1 for +infinity, -1 for -infinity, else 0.
inline int __hisinf(const __nv_bfloat16 a) {
  return __bfloat16_as_ushort(a) == 0x7f80u ? 1 : __bfloat16_as_ushort(a) == 0xff80u ? -1 : 0;
}
