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

OOMLAB_SHORT_FLOAT(__nv_bfloat16, ::oomlab::host::from_bfloat16_bits, ::oomlab::host::to_bfloat16_bits)
