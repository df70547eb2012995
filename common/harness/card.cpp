#include "harness/card.h"

#include <algorithm>
#include <cctype>

namespace oomlab {
namespace {

// Where the figures are from, for bandwidth, FP32 and FP16 in this order:
//   N  printed by NVIDIA: white papers of the architectures, data sheets, the DGX B200 page. Sparse figures halved.
//   C  computed, TFLOP/s = SMs x operations per SM and clock x boost clock. Per SM and clock, FP32: 128 (T4, V100,
//   A100,
//      RTX 2080 Ti) or 256; FP16 with sums in FP32: 512 (GeForce), 1,024 (T4, V100, A10, RTX A6000, L4, L40S), 2,048
//      (A100), 4,096 (H100). It agrees with N wherever there is one.
//   L  lists by others only: may be wrong.
// L2: the same white papers, of the full chip where the card's is not printed; B200: NVIDIA's tuning guide, rounded up.
// Where a card is sold with several clocks it is the highest: the bound is one for all of them.
constexpr Card kCards[] = {
    {"t4", "T4", "T4", 16, 320, 4, 8.1, 65, false},                                      // L C C
    {"v100-16gb", "V100, 16 GB", "V100-SXM2-16GB", 16, 900, 6, 15.7, 125, false},        // N N N
    {"v100-32gb", "V100, 32 GB", "V100-SXM2-32GB", 32, 900, 6, 15.7, 125, false},        // N N N
    {"rtx-2080-ti", "RTX 2080 Ti", "RTX 2080 Ti", 11, 616, 6, 14.2, 56.9, false},        // N N N
    {"rtx-3060", "RTX 3060, 12 GB", "RTX 3060", 12, 360, 3, 12.7, 25.5},                 // L C C
    {"rtx-3070", "RTX 3070", "RTX 3070", 8, 448, 4, 20.3, 40.6},                         // L C C
    {"rtx-3080", "RTX 3080, 10 GB", "RTX 3080", 10, 760, 6, 29.8, 59.5},                 // L C C
    {"rtx-3090", "RTX 3090", "RTX 3090", 24, 936, 6, 35.6, 71.2},                        // N N N
    {"rtx-4060-ti-16gb", "RTX 4060 Ti, 16 GB", "RTX 4060 Ti", 16, 288, 32, 22.1, 44.1},  // L C C
    {"rtx-4070", "RTX 4070", "RTX 4070", 12, 504, 48, 29.1, 58.3},                       // L C C
    {"rtx-4080", "RTX 4080", "RTX 4080", 16, 716.8, 64, 48.7, 97.5},                     // L C C
    {"rtx-4090", "RTX 4090", "RTX 4090", 24, 1008, 96, 82.6, 165.2},                     // N N N
    {"rtx-5090", "RTX 5090", "RTX 5090", 32, 1792, 128, 104.8, 209.5},                   // N C N
    {"a10", "A10", "A10", 24, 600, 6, 31.2, 125},                                        // L C N
    {"a100-40gb", "A100 SXM, 40 GB", "A100-SXM4-40GB", 40, 1555, 48, 19.5, 312},         // N N N
    {"a100-80gb", "A100 SXM, 80 GB", "A100-SXM4-80GB", 80, 2039, 48, 19.5, 312},         // N N N
    {"rtx-a6000", "RTX A6000", "RTX A6000", 48, 768, 6, 38.7, 154.8},                    // N C N
    {"l4", "L4", "L4", 24, 300, 48, 30.3, 121.2},                                        // L C C
    {"l40s", "L40S", "L40S", 48, 864, 96, 91.6, 366},                                    // L C C
    {"h100-sxm", "H100 SXM", "H100 80GB HBM3", 80, 3350, 60, 67, 989.4},                 // N L N
    {"h100-pcie", "H100 PCIe", "H100 PCIe", 80, 2000, 60, 51, 756.4},                    // N L N
    {"h200", "H200 SXM", "H200", 141, 4800, 60, 67, 989.4},                              // L L L
    {"b200", "B200", "B200", 180, 8000, 127, 80, 2250},                                  // N L N
};

// "H100 SXM" is h100-sxm.
std::string plain(std::string_view name) {
  std::string text(name);
  for (char& c : text) c = c == ' ' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// What `bytes` of one group leave to be moved, beside a cache that holds so much: written once, read once.
double moved(std::size_t bytes, double cache_bytes) {
  return 2 * std::max(0.0, static_cast<double>(bytes) - 2 * cache_bytes);
}

}  // namespace

std::span<const Card> cards() { return kCards; }

std::string card_names() {
  std::string names;
  for (const Card& card : kCards) names += (names.empty() ? "" : ", ") + std::string(card.name);
  return names;
}

const Card* find_card(std::string_view name) {
  const std::string wanted = plain(name);
  for (const Card& card : kCards)
    if (wanted == card.name) return &card;
  return nullptr;
}

const Card* card_of_device(std::string_view device_name, std::size_t total_bytes) {
  for (const std::string_view maker : {"NVIDIA ", "Tesla ", "GeForce "})
    if (device_name.starts_with(maker)) device_name.remove_prefix(maker.size());
  // The driver keeps some for itself, and a printed GB is 2^30 bytes for some cards and 10^9 for others.
  const auto alike = [total = static_cast<double>(total_bytes) / 1e9](double gb) {
    return total > 0.9 * gb && total < 1.1 * gb;
  };
  for (const Card& card : kCards)
    if (device_name == card.device && alike(card.memory_gb)) return &card;
  return nullptr;
}

std::optional<LeastTime> least_time(const Card& card, Arithmetic arithmetic, double flops, const ByCategory& at_peak) {
  if (arithmetic == Arithmetic::bf16 && !card.has_bf16) return std::nullopt;
  const double tflops = arithmetic == Arithmetic::fp32 ? card.fp32_tflops : card.fp16_tflops;
  const double cache_bytes = card.l2_mib * (1 << 20);
  LeastTime least{.flops = flops};
  least.computing_seconds = flops / (tflops * 1e12);
  least.moved_bytes = moved(checked_sum(at_peak[Category::parameters], at_peak[Category::optimizer]), cache_bytes) +
                      moved(at_peak[Category::gradients], cache_bytes) +
                      moved(at_peak[Category::activations], cache_bytes);
  least.moving_seconds = least.moved_bytes / (card.gb_per_s * 1e9);
  return least;
}

}  // namespace oomlab
