#pragma once
// Cards by name, and the least time that a step can take on one: a bound from below, for plans, and for measured runs
// to be compared with. It is no prediction: real steps take longer, often several times.
//
//   computing    the operations of the step's matrix products / the card's peak for what they are stored as
//   moving       what the step holds at its peak / the card's bandwidth. Parameters, gradients, optimizer state and
//                activations are each written and read once at least: state is read in a step and left for the next
//                one, gradients wait for the optimizer, activations for the backward pass. cuBLAS workspace and data do
//                not count.
//   least time   the larger of the two, because they can overlap
//
// A cache may spare memory some of it, but no more than it holds at one moment. Each of three groups (parameters and
// optimizer state; gradients; activations) waits at two moments at most: what is kept, and what is made beside it. So
// twice the L2 cache is taken off each of them, and nothing is left of a model that fits into the cache.
//
// All else is left out, which makes the bound lower, never higher: other kernels' operations, second reads, launches,
// what ranks send, and copies between host and device. Two things can undercut it: a card that clocks higher than its
// rated boost, by as much, and tensors of a few bytes, because bytes are the ledger's, rounded up to 512 a tensor.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "dtype.h"
#include "plan/category.h"

namespace oomlab {

/// A row of cards.inc, which says where each figure is from.
struct Card {
  const char* name;    ///< for --card and --gpu: "h100-sxm"
  const char* title;   ///< for people: "H100 SXM"
  const char* device;  ///< as cudaGetDeviceProperties names it, without "NVIDIA", "GeForce" and "Tesla"; several: "a|b"
  const char* aliases;   ///< more names that people type, between blanks
  double memory_gb;      ///< as sold: of most cards 2^30 bytes each
  double smi_mib;        ///< by nvidia-smi
  double total_gib;      ///< by CUDA, which sees what the driver leaves
  double gb_per_s;       ///< of device memory
  double l2_mib;         ///< at most: where it was not to be found, that of the largest card with the same chip
  double fp32_tflops;    ///< at the rated boost clock
  double fp16_tflops;    ///< of tensor cores, dense, sums in FP32
  double bus_gb_per_s;   ///< to the host, in each direction; 0: the host's memory is the card's
  double link_gb_per_s;  ///< NVLink, in each direction; 0: none
  double capability;
  const char* marks;
  const char* total_from;
  bool has_bf16 = capability >= 8;  ///< as fast as FP16

  /// What a program can have, the CUDA context included.
  std::uint64_t total_bytes() const { return static_cast<std::uint64_t>(total_gib * (std::uint64_t(1) << 30)); }
};

/// All that are known.
std::span<const Card> cards();
/// Their names, for --help: "t4, p100, …".
std::string card_names();
/// The card of this name. Only letters and digits count, in capitals or not; "NVIDIA", "GeForce" and "Tesla" in front
/// may be there, "RTX" and "GTX" may be left out, and the GB may stand behind it. So an RTX 4090 is "rtx-4090", "4090",
/// "NVIDIA GeForce RTX 4090", "4090 24GB". A part of a name is none. Where several cards share a name ("a100", "h100",
/// "rtx 4060 ti") it is the one with the least memory: what fits there fits all of them. nullptr when it is unknown.
const Card* find_card(std::string_view name);
/// The others that share this name: "a100-80gb". Empty when there are none.
std::string other_cards(std::string_view name);
/// Why find_card() finds none, in one line, with the names that are nearest: "'a1000' is unknown; nearest: …".
std::string unknown_card(std::string_view name);
/// The card that cudaGetDeviceProperties names so and that has `total_bytes` of memory, to a tenth: some names stand
/// for several cards, and a slice of a card (MIG) is none. nullptr when it is unknown.
const Card* card_of_device(std::string_view device_name, std::uint64_t total_bytes);

/// Of a card, in matrix products whose factors are stored as `dtype`, with sums in FP32: of FP32 without tensor cores, of
/// FP16 and BF16 with them. Nothing when the card does not compute so. Throws std::invalid_argument for other formats:
/// the table of cards does not know their peak.
std::optional<double> peak_tflops(const Card& card, DType dtype);

/// A bound from below; see above.
struct LeastTime {
  double flops = 0;
  double computing_seconds = 0;
  double moved_bytes = 0;
  double moving_seconds = 0;
  double seconds() const { return computing_seconds > moving_seconds ? computing_seconds : moving_seconds; }
};
/// Of a step with `flops` operations (a multiplication and an addition are two) that holds `at_peak` bytes. Nothing
/// when the card does not compute so. Throws as peak_tflops().
std::optional<LeastTime> least_time(const Card& card, DType dtype, double flops, const ByCategory& at_peak);

}  // namespace oomlab
