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
  if (r.limit_used_by_others && plus(minus(r.limit_used, r.limit_used_by_others), r.requested_rounded) <= r.limit)
    return Cause::other_process;
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

std::string why_on_host(const OutOfMemoryReport& r) {
  const std::string asked = format_bytes(r.requested_rounded);
  if (!r.by_limit)
    return fmt::format("the system has no {} to give, with {} live here: pinned memory has to stay in RAM.", asked,
                       format_bytes(r.live));
  const std::size_t mine = minus(r.limit_used, r.limit_used_by_others);
  return fmt::format("host memory is full: {} asked + {} live{} - {} budget = {} short.", asked, format_bytes(mine),
                     r.limit_used_by_others
                         ? fmt::format(" + {} of the other ranks", format_bytes(r.limit_used_by_others))
                         : std::string(),
                     format_bytes(r.limit), format_bytes(minus(plus(r.requested_rounded, r.limit_used), r.limit)));
}

std::string why(const OutOfMemoryReport& r) {
  if (r.on_host) return why_on_host(r);
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
      if (r.by_limit)
        return fmt::format(
            "a shared budget: {} budget - {} of other processes - {} of this one = {} left; {} asked, {} short.",
            format_bytes(r.limit), format_bytes(r.limit_used_by_others),
            format_bytes(minus(r.limit_used, r.limit_used_by_others)), format_bytes(minus(r.limit, r.limit_used)),
            asked, format_bytes(minus(plus(r.requested_rounded, r.limit_used), r.limit)));
      return fmt::format(
          "memory held outside this run: {} total - {} free - {} ours = {} belongs to other processes (or to "
          "allocations no ledger counts); {} asked - {} within reach = {} short.",
          format_bytes(r.device_total), format_bytes(r.device_free), format_bytes(std::max(r.reserved, r.live)),
          format_bytes(held_by_others(r)), asked, format_bytes(plus(r.device_free, cached(r))),
          format_bytes(minus(r.requested_rounded, plus(r.device_free, cached(r)))));
  }
  return {};
}

// Each line names the chapter that shows it, and says in bytes what it is worth here.
using Advice = std::vector<std::string>;

// What is live of a category, with this request where it is of that category.
std::size_t with_request(const OutOfMemoryReport& r, Category category) {
  const std::size_t live = r.live_by_category[category];
  return category == r.category ? plus(live, r.requested_rounded) : live;
}

Advice advice_for(const OutOfMemoryReport& r, Category category) {
  const std::size_t bytes = with_request(r, category);
  const std::string all = format_bytes(bytes), half = format_bytes(bytes / 2), most = format_bytes(bytes - bytes / 8);
  switch (category) {
    case Category::parameters:
      if (r.live_by_category[Category::gradients] == 0)  // in training, an FP32 master copy takes what 16 bits save
        return {fmt::format("chapter 03, weights in FP16 or BF16: inference needs half the bytes, {} less", half),
                fmt::format("chapter 05, streaming: layers wait in host memory, two at a time are here: up to {} less",
                            all)};
      return {
          fmt::format("chapter 07, ZeRO-3: each of 8 GPUs keeps an eighth of the parameters, {} less", most),
          fmt::format("chapter 05, streaming: layers wait in host memory, two at a time are here: up to {} less", all)};
    case Category::gradients:
      return {fmt::format("chapter 07, ZeRO-2: each of 8 GPUs keeps an eighth of the gradients, {} less", most),
              fmt::format(
                  "chapter 13, a step in the backward pass: a gradient is used and freed at once, up to {} less", all)};
    case Category::optimizer:
      return {fmt::format("chapter 00, SGD keeps no optimizer state, {} less; with momentum half of AdamW's", all),
              fmt::format("chapter 13, moments in 8 bits: a quarter of AdamW's two, {} less",
                          format_bytes(bytes - bytes / 4)),
              fmt::format("chapter 13, the processor updates: the state stays in host memory, {} less", all),
              fmt::format("chapter 07, ZeRO-1: each of 8 GPUs keeps an eighth of the optimizer state, {} less", most)};
    case Category::activations:
      return {fmt::format("chapter 01, a smaller batch: half of it needs half the activations, {} less", half),
              fmt::format("chapter 02, gradient accumulation: 8 micro-batches need an eighth, {} less", most),
              fmt::format("chapter 04, checkpointing: 16 layers in segments of 4 keep at most half, {} less", half),
              fmt::format("chapter 03, activations in FP16 or BF16: half the bytes, {} less", half)};
    case Category::workspace:
      return {
          fmt::format("chapter 00, a smaller --workspace, or a smaller batch where it grows with it: {} here", all)};
    case Category::data:
      return {fmt::format("chapter 05, loaders: only the batches in flight are on the device, up to {} less", all)};
  }
  return {};
}

Category largest_category(const OutOfMemoryReport& r) {
  ByCategory bytes = r.live_by_category;
  bytes[r.category] = with_request(r, r.category);
  const auto largest = std::max_element(bytes.bytes.begin(), bytes.bytes.end());
  return static_cast<Category>(std::distance(bytes.bytes.begin(), largest));
}

// What leaves the host's memory goes back to the device, or is not needed at all.
Advice advice_on_host(const OutOfMemoryReport& r) {
  ByCategory bytes = r.live_by_category;
  bytes[r.category] = with_request(r, r.category);
  const auto all = [&](Category category) { return format_bytes(bytes[category]); };
  Advice advice;
  if (const std::size_t state = bytes[Category::optimizer])
    advice.push_back(fmt::format("chapter 13, moments in 8 bits instead of 32: of {} up to {} less",
                                 all(Category::optimizer), format_bytes(state - state / 4)));
  if (bytes[Category::parameters])
    advice.push_back(fmt::format("chapter 05, weights that stay on the device: {} less here, and so much more there",
                                 all(Category::parameters)));
  if (bytes[Category::gradients])
    advice.push_back(fmt::format("chapter 13, one micro-batch a step: no sums of gradients wait here, of {}",
                                 all(Category::gradients)));
  if (bytes[Category::activations])
    advice.push_back(fmt::format("chapter 04, longer segments: fewer inputs of layers wait here, of {}",
                                 all(Category::activations)));
  if (bytes[Category::data])
    advice.push_back(fmt::format("chapter 05, loaders: fewer batches queued, of {}", all(Category::data)));
  if (r.by_limit)
    advice.push_back(fmt::format("--host-memory: {} or more for this request, if the machine has it",
                                 format_bytes(plus(r.limit_used, r.requested_rounded))));
  return advice;
}

Advice advice_for(const OutOfMemoryReport& r) {
  if (r.on_host) return advice_on_host(r);
  const Cause cause = r.cause();
  switch (cause) {
    case Cause::too_big:
    case Cause::live: {
      const Category largest = cause == Cause::too_big ? r.category : largest_category(r);
      Advice advice = advice_for(r, largest);
      if (largest != r.category)  // what was asked for is a lever too
        for (std::string& line : advice_for(r, r.category)) advice.push_back(std::move(line));
      if (r.by_limit)
        advice.push_back(fmt::format("chapter 00, --budget: {} or more for this request, if the device has it",
                                     format_bytes(plus(r.limit_used, r.requested_rounded))));
      return advice;
    }
    case Cause::rounding: {
      const std::size_t lost = plus(minus(r.live, r.live_requested), minus(r.requested_rounded, r.requested));
      return {
          fmt::format("chapter 06, a planned step: one block for all tensors is rounded once; {} are lost here",
                      format_bytes(lost)),
          fmt::format("chapter 01, a smaller batch: this request for half of it is {}", format_bytes(r.requested / 2))};
    }
    case Cause::fragmented: {
      const std::string free = format_bytes(r.by_limit ? cached(r) : plus(r.device_free, cached(r)));
      return {
          fmt::format("chapter 06, a caching allocator that maps free pages side by side: {} are free", free),
          fmt::format("chapter 06, a planned step: its tensors have fixed places, and no gaps; {} are in gaps", free)};
    }
    case Cause::cached:
      return {
          fmt::format("chapter 06, an allocator that empties its cache and tries again before it fails: up to {} back",
                      format_bytes(cached(r)))};
    case Cause::other_process:
      if (r.by_limit)
        return {fmt::format("chapter 15, a cap for each process: others have {}", format_bytes(r.limit_used_by_others)),
                fmt::format("chapter 15, wait for them: {} would be enough",
                            format_bytes(minus(plus(r.requested_rounded, r.limit_used), r.limit)))};
      return {fmt::format("chapter 15, --device auto: which device is free, and who holds these {}",
                          format_bytes(held_by_others(r))),
              fmt::format("chapter 01, a batch that fits beside them: a --budget of {}",
                          format_bytes(plus(r.device_free, std::max(r.reserved, r.live))))};
  }
  return {};
}

}  // namespace

OutOfMemoryReport::Cause OutOfMemoryReport::cause() const noexcept {
  if (on_host) return by_limit && requested > limit ? Cause::too_big : Cause::live;
  return by_limit ? cause_under_limit(*this) : cause_on_device(*this);
}

namespace {

std::string headline_on_host(const OutOfMemoryReport& r) {
  std::string line = fmt::format("Out of host memory. Tried to allocate {}", format_bytes(r.requested));
  if (!r.tag.empty()) line += " for " + r.tag;
  if (r.by_limit)
    line += fmt::format(" under a host memory budget of {} of which {} is free", format_bytes(r.limit),
                        format_bytes(minus(r.limit, r.limit_used)));
  return line + fmt::format(". This run has {} allocated on the host.", format_bytes(r.live));
}

}  // namespace

std::string headline(const OutOfMemoryReport& r) {
  if (r.on_host) return headline_on_host(r);
  std::string line = fmt::format("CUDA out of memory. Tried to allocate {}", format_bytes(r.requested));
  if (!r.tag.empty()) line += " for " + r.tag;
  if (r.by_limit)
    line += fmt::format(" under a budget of {} of which {} is free", format_bytes(r.limit),
                        format_bytes(minus(r.limit, r.limit_used)));
  else if (r.limit != kUnlimited)
    line += fmt::format(" under a budget of {}", format_bytes(r.limit));
  line += ".";
  if (r.waited_ms > 0) line += fmt::format(" Waited {:.1f} s for others to give memory back.", r.waited_ms / 1000);
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
  for (const std::string& line : advice_for(r)) text += fmt::format("\n  - {}", line);
  return text;
}

OutOfMemory::OutOfMemory(OutOfMemoryReport report) : std::runtime_error(headline(report)), report_(std::move(report)) {}

}  // namespace oomlab
