#pragma once
// A card with round figures, and what a step holds on it.

#include <cstdint>

#include "plan/card.h"

namespace oomlab::test {

inline constexpr std::uint64_t kMiB = 1 << 20;

// 100 GB/s, 10 MiB of cache, 2 and 8 TFLOP/s.
inline constexpr Card kSmall{.name = "small",
                             .title = "Small",
                             .device = "Small",
                             .aliases = "",
                             .memory_gb = 1,
                             .smi_mib = 1024,
                             .total_gib = 0.95,
                             .gb_per_s = 100,
                             .l2_mib = 10,
                             .fp32_tflops = 2,
                             .fp16_tflops = 8,
                             .bus_gb_per_s = 30,
                             .link_gb_per_s = 0,
                             .capability = 8.0,
                             .marks = "CCCCCCC",
                             .total_from = "a test"};

inline ByCategory bytes_of(std::uint64_t parameters, std::uint64_t gradients, std::uint64_t optimizer,
                           std::uint64_t activations) {
  return ByCategory{{parameters, gradients, optimizer, activations}};
}

}  // namespace oomlab::test
