#include "memory/out_of_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

namespace oomlab {
namespace {

using Cause = OutOfMemoryReport::Cause;

// Figures come from several sources that need not agree with each other, so differences stop at zero.
std::size_t minus(std::size_t a, std::size_t b) noexcept { return a > b ? a - b : 0; }
std::size_t plus(std::size_t a, std::size_t b) noexcept {
  return b > std::numeric_limits<std::size_t>::max() - a ? std::numeric_limits<std::size_t>::max() : a + b;
}

std::size_t cached(const OutOfMemoryReport& r) noexcept { return minus(r.reserved, r.live); }
// What the device says is used and this run does not hold: other processes, and the CUDA context.
std::size_t held_by_others(const OutOfMemoryReport& r) noexcept {
  return minus(minus(r.device_total, r.device_free), std::max(r.reserved, r.live));
}
// The context of this process is a few hundred MiB on any card; less than this share says nothing about
// others.
std::size_t others_threshold(const OutOfMemoryReport& r) noexcept { return r.device_total / 8; }

bool no_block_is_large_enough(const OutOfMemoryReport& r) noexcept {
  if (r.largest_free_block == 0) return r.cache_released && plus(r.device_free, cached(r)) >= r.requested_rounded;
  return cached(r) >= r.requested_rounded && r.largest_free_block < r.requested_rounded;
}

Cause cause_under_limit(const OutOfMemoryReport& r) noexcept {
  if (r.requested > r.limit) return Cause::too_big;
  // A cache between the ledger and the budget: what it keeps counts as used, and would be enough.
  if (plus(minus(r.limit, r.limit_used), cached(r)) >= r.requested_rounded &&
      plus(r.live, r.requested_rounded) <= r.limit)
    return no_block_is_large_enough(r) ? Cause::fragmented : Cause::cached;
  const std::size_t used_unrounded = minus(r.limit_used, minus(r.live, r.live_requested));
  if (plus(used_unrounded, r.requested) <= r.limit) return Cause::rounding;
  return Cause::live;
}

// A device is handed out in steps of 2 MiB, the size of its pages.
constexpr std::size_t kDeviceStep = std::size_t(2) << 20;
bool steps_do_not_fit(const OutOfMemoryReport& r) noexcept {
  const std::size_t whole = plus(r.requested_rounded, kDeviceStep - 1) / kDeviceStep * kDeviceStep;
  return !r.by_limit && r.device_free >= r.requested_rounded && r.device_free < whole;
}

Cause cause_on_device(const OutOfMemoryReport& r) noexcept {
  const bool known = r.device_total != 0;
  if (known && r.requested > r.device_total) return Cause::too_big;
  if (cached(r) < r.requested_rounded && steps_do_not_fit(r)) return Cause::rounding;
  if (no_block_is_large_enough(r)) return Cause::fragmented;
  if (cached(r) >= r.requested_rounded) return Cause::cached;
  if (r.device_free >= r.requested_rounded) return Cause::fragmented;
  const std::size_t within_reach = plus(r.device_free, cached(r));
  if (within_reach >= r.requested_rounded) return Cause::cached;
  if (known && plus(within_reach, minus(r.live, r.live_requested)) >= r.requested) return Cause::rounding;
  const std::size_t others = held_by_others(r);
  if (others >= r.requested_rounded - within_reach && others > others_threshold(r)) return Cause::other_process;
  return Cause::live;
}

std::string why(const OutOfMemoryReport& r) {
  const std::string asked = format_bytes(r.requested_rounded);
  switch (r.cause()) {
    case Cause::too_big: {
      const std::size_t ceiling = r.by_limit ? r.limit : r.device_total;
      return fmt::format("one request of {} is more than the whole {} of {}, by {}.", format_bytes(r.requested),
                         r.by_limit ? "budget" : "device", format_bytes(ceiling),
                         format_bytes(minus(r.requested, ceiling)));
    }
    case Cause::live:
      if (r.by_limit)
        return fmt::format("live blocks fill the budget: {} asked + {} live - {} budget = {} short.", asked,
                           format_bytes(r.limit_used), format_bytes(r.limit),
                           format_bytes(minus(plus(r.requested_rounded, r.limit_used), r.limit)));
      return fmt::format("live blocks fill the device: {} asked - {} free - {} cached = {} short, with {} live.", asked,
                         format_bytes(r.device_free), format_bytes(cached(r)),
                         format_bytes(minus(r.requested_rounded, plus(r.device_free, cached(r)))),
                         format_bytes(r.live));
    case Cause::rounding:
      if (steps_do_not_fit(r))
        return fmt::format("rounding: a device is handed out in steps of {}, and {} is free.",
                           format_bytes(kDeviceStep), format_bytes(r.device_free));
      return fmt::format(
          "rounding: every block counts in steps of {}, so {} live stands for {} asked for, and this request "
          "of {} "
          "counts as {}. Without rounding it would fit.",
          format_bytes(kGranule), format_bytes(r.live), format_bytes(r.live_requested), format_bytes(r.requested),
          asked);
    case Cause::fragmented: {
      const std::size_t free = r.by_limit ? cached(r) : plus(r.device_free, cached(r));
      return fmt::format("fragmentation: {} is free in total, but {}; {} was asked for in one piece.",
                         format_bytes(free),
                         r.largest_free_block ? "the largest free block is " + format_bytes(r.largest_free_block)
                                              : std::string("no single block is large enough"),
                         asked);
    }
    case Cause::cached:
      return fmt::format(
          "the allocator's cache: {} reserved - {} live = {} is kept for reuse and was not given back for "
          "this "
          "request of {}.",
          format_bytes(r.reserved), format_bytes(r.live), format_bytes(cached(r)), asked);
    case Cause::other_process:
      return fmt::format(
          "memory held outside this run: {} total - {} free - {} ours = {} belongs to other processes (or to "
          "allocations no ledger counts); {} asked - {} within reach = {} short.",
          format_bytes(r.device_total), format_bytes(r.device_free), format_bytes(std::max(r.reserved, r.live)),
          format_bytes(held_by_others(r)), asked, format_bytes(plus(r.device_free, cached(r))),
          format_bytes(minus(r.requested_rounded, plus(r.device_free, cached(r)))));
  }
  return {};
}

constexpr const char* kSmallerBatch =
    "chapter 01 (smaller batch): activations, and what is needed to compute them, shrink in proportion";
constexpr const char* kAccumulation =
    "gradient accumulation: the same effective batch in several small passes, activations of one pass at a "
    "time";
constexpr const char* kCheckpointing =
    "checkpointing: keep few activations and recompute the rest in the backward pass";
constexpr const char* kHalfActivations = "a training loop in FP16 or BF16: activations take half the bytes";
constexpr const char* kHalfParameters = "parameters in FP16 or BF16: half the bytes (a master copy in FP32 costs more)";
constexpr const char* kUnified = "unified memory: blocks that do not fit stay in host memory and move on demand";
constexpr const char* kPlainSgd = "an optimizer with less state: SGD keeps none or one value a parameter, Adam two";
constexpr const char* kEightBit = "an 8-bit optimizer: its state takes a quarter of the bytes";
constexpr const char* kReleaseGradients = "update a layer as soon as its gradient is ready, then free the gradient";
constexpr const char* kSmallerWorkspace = "a smaller workspace, or one shared by all operators";
constexpr const char* kStreamData = "load the data in batches: keep only what the next steps need on the device";
constexpr const char* kBudget = "a larger --budget, if the device has it";

using Advice = std::vector<const char*>;

Advice advice_for(Category category) {
  switch (category) {
    case Category::parameters: return {kHalfParameters, kUnified};
    case Category::gradients: return {kReleaseGradients, kHalfParameters};
    case Category::optimizer: return {kPlainSgd, kEightBit, kUnified};
    case Category::activations: return {kSmallerBatch, kAccumulation, kCheckpointing, kHalfActivations};
    case Category::workspace: return {kSmallerWorkspace, kSmallerBatch};
    case Category::data: return {kStreamData, kSmallerBatch};
  }
  return {};
}

Category largest_category(const OutOfMemoryReport& r) {
  ByCategory bytes = r.live_by_category;
  bytes[r.category] = plus(bytes[r.category], r.requested_rounded);
  const auto largest = std::max_element(bytes.bytes.begin(), bytes.bytes.end());
  return static_cast<Category>(std::distance(bytes.bytes.begin(), largest));
}

Advice advice_for(const OutOfMemoryReport& r) {
  const Cause cause = r.cause();
  switch (cause) {
    case Cause::too_big:
    case Cause::live: {
      const Category largest = cause == Cause::too_big ? r.category : largest_category(r);
      Advice advice = advice_for(largest);
      if (largest != r.category)  // what was asked for is a lever too
        for (const char* line : advice_for(r.category))
          if (std::find(advice.begin(), advice.end(), line) == advice.end()) advice.push_back(line);
      if (r.by_limit) advice.push_back(kBudget);
      return advice;
    }
    case Cause::rounding: return {"one block for many small tensors: an arena cut by hand rounds once", kSmallerBatch};
    case Cause::fragmented:
      return {"allocate what lives long first, so that free memory stays in one piece",
              "an arena as large as a step needs, or a caching allocator that joins free pages", kSmallerBatch};
    case Cause::cached:
      return {"give the cache back before a large request: AsyncResource::trim(), as torch.cuda.empty_cache() does",
              "one allocator for all that shares the device: two caches cannot use each other's memory"};
    case Cause::other_process:
      return {"end the other process (nvidia-smi names it), or choose another device with --device",
              "a --budget that leaves the others their share, then the mitigations for a small card"};
  }
  return {};
}

}  // namespace

OutOfMemoryReport::Cause OutOfMemoryReport::cause() const noexcept {
  return by_limit ? cause_under_limit(*this) : cause_on_device(*this);
}

std::string headline(const OutOfMemoryReport& r) {
  std::string line = fmt::format("CUDA out of memory. Tried to allocate {}", format_bytes(r.requested));
  if (!r.tag.empty()) line += " for " + r.tag;
  if (r.by_limit)
    line += fmt::format(" under a budget of {} of which {} is free", format_bytes(r.limit),
                        format_bytes(minus(r.limit, r.limit_used)));
  else if (r.limit != kUnlimited)
    line += fmt::format(" under a budget of {}", format_bytes(r.limit));
  line += ".";
  if (r.device_total)
    line += fmt::format(" GPU {} has a total capacity of {} of which {} is free.", r.device,
                        format_bytes(r.device_total), format_bytes(r.device_free));
  line += fmt::format(" This run has {} allocated", format_bytes(r.live));
  if (r.reserved) line += fmt::format(", and {} is reserved but unallocated", format_bytes(cached(r)));
  line += ".";
  return line;
}

std::string explain(const OutOfMemoryReport& r) {
  std::string text = headline(r) + "\nWhy: " + why(r) + "\n";
  if (!r.largest_live.empty()) {
    text += "Largest live allocations:\n";
    for (const LiveBlock& block : r.largest_live)
      text += fmt::format("  {:>12}  {:<11}  {}\n", format_bytes(block.bytes), name_of(block.category), block.tag);
  }
  if (r.live_by_category.total() != 0) {
    text += "Live by category:";
    const char* separator = " ";
    for (std::size_t i = 0; i < kCategoryCount; ++i) {
      if (r.live_by_category.bytes[i] == 0) continue;
      text += fmt::format("{}{} {}", std::exchange(separator, ", "), name_of(static_cast<Category>(i)),
                          format_bytes(r.live_by_category.bytes[i]));
    }
    text += "\n";
  }
  text += "What helps:";
  for (const char* line : advice_for(r)) text += fmt::format("\n  - {}", line);
  return text;
}

OutOfMemory::OutOfMemory(OutOfMemoryReport report) : std::runtime_error(headline(report)), report_(std::move(report)) {}

}  // namespace oomlab
