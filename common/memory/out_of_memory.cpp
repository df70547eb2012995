#include "memory/out_of_memory.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "plan/language.h"

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

std::string why_on_host(const OutOfMemoryReport& r, const Say& say) {
  const std::string asked = format_bytes(r.requested_rounded);
  if (!r.by_limit)
    return say("the system has no {} to give, with {} live here: pinned memory has to stay in RAM.",
               "系统拿不出 {}，本程序已占 {}：锁页内存必须留在物理内存里。", asked, format_bytes(r.live));
  const std::size_t mine = minus(r.limit_used, r.limit_used_by_others);
  const std::string others =
      r.limit_used_by_others ? say(" + {} of the other ranks", " + 其他 rank {}", format_bytes(r.limit_used_by_others))
                             : std::string();
  return say("host memory is full: {} asked + {} live{} - {} budget = {} short.",
             "主机内存已满：申请 {} + 存活 {}{} - 预算 {} = 还差 {}。", asked, format_bytes(mine), others,
             format_bytes(r.limit), format_bytes(minus(plus(r.requested_rounded, r.limit_used), r.limit)));
}

std::string why(const OutOfMemoryReport& r, const Say& say) {
  if (r.on_host) return why_on_host(r, say);
  const std::string asked = format_bytes(r.requested_rounded);
  switch (r.cause()) {
    case Cause::too_big: {
      const std::size_t ceiling = r.by_limit ? r.limit : r.device_total;
      return say("one request of {} is more than the whole {} of {}, by {}.", "一次申请 {}，比整个{} {} 还多 {}。",
                 format_bytes(r.requested), r.by_limit ? say("budget", "预算") : say("device", "设备"),
                 format_bytes(ceiling), format_bytes(minus(r.requested, ceiling)));
    }
    case Cause::live:
      if (r.by_limit)
        return say("live blocks fill the budget: {} asked + {} live - {} budget = {} short.",
                   "存活的块占满了预算：申请 {} + 存活 {} - 预算 {} = 还差 {}。", asked, format_bytes(r.limit_used),
                   format_bytes(r.limit), format_bytes(minus(plus(r.requested_rounded, r.limit_used), r.limit)));
      return say("live blocks fill the device: {} asked - {} free - {} cached = {} short, with {} live.",
                 "存活的块占满了设备：申请 {} - 空闲 {} - 缓存 {} = 还差 {}，存活 {}。", asked,
                 format_bytes(r.device_free), format_bytes(cached(r)),
                 format_bytes(minus(r.requested_rounded, plus(r.device_free, cached(r)))), format_bytes(r.live));
    case Cause::rounding:
      if (steps_do_not_fit(r))
        return say("rounding: a device is handed out in steps of {}, and {} is free.",
                   "取整：设备显存以 {} 为单位分出去，而空闲的只有 {}。", format_bytes(kDeviceStep),
                   format_bytes(r.device_free));
      return say(
          "rounding: every block counts in steps of {}, so {} live stands for {} asked for, and this request of {} "
          "counts as {}. Without rounding it would fit.",
          "取整：每块按 {} 的整数倍计，所以存活的 {} 里真正申请的只有 {}，而这次申请的 {} 计作 {}。不取整就放得下。",
          format_bytes(kGranule), format_bytes(r.live), format_bytes(r.live_requested), format_bytes(r.requested),
          asked);
    case Cause::fragmented: {
      const std::size_t free = r.by_limit ? cached(r) : plus(r.device_free, cached(r));
      const std::string pieces = r.largest_free_block ? say("the largest free block is {}", "最大的一块只有 {}",
                                                            format_bytes(r.largest_free_block))
                                                      : say("no single block is large enough", "没有哪一块够大");
      return say("fragmentation: {} is free in total, but {}; {} was asked for in one piece.",
                 "碎片：空闲的加起来有 {}，但{}；这次要的是完整的一块 {}。", format_bytes(free), pieces, asked);
    }
    case Cause::cached:
      return say(
          "the allocator's cache: {} reserved - {} live = {} is kept for reuse and was not given back for this "
          "request of {}.",
          "分配器的缓存：已保留 {} - 存活 {} = 留作重用的 {}，没有为这次 {} 的申请归还。", format_bytes(r.reserved),
          format_bytes(r.live), format_bytes(cached(r)), asked);
    case Cause::other_process:
      if (r.by_limit)
        return say("a shared budget: {} budget - {} of other processes - {} of this one = {} left; {} asked, {} short.",
                   "共用的预算：预算 {} - 其他进程 {} - 本进程 {} = 剩 {}；申请 {}，还差 {}。", format_bytes(r.limit),
                   format_bytes(r.limit_used_by_others), format_bytes(minus(r.limit_used, r.limit_used_by_others)),
                   format_bytes(minus(r.limit, r.limit_used)), asked,
                   format_bytes(minus(plus(r.requested_rounded, r.limit_used), r.limit)));
      return say(
          "memory held outside this run: {} total - {} free - {} ours = {} belongs to other processes (or to "
          "allocations no ledger counts); {} asked - {} within reach = {} short.",
          "别处占着的显存：总共 {} - 空闲 {} - 本程序 {} = {} 属于其他进程（或账本没有记的分配）；"
          "申请 {} - 够得着的 {} = 还差 {}。",
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

Advice advice_for(const OutOfMemoryReport& r, Category category, const Say& say) {
  const std::size_t bytes = with_request(r, category);
  const std::string all = format_bytes(bytes), half = format_bytes(bytes / 2), most = format_bytes(bytes - bytes / 8);
  switch (category) {
    case Category::parameters: {
      const std::string streaming =
          say("chapter 05, streaming: layers wait in host memory, two at a time are here: up to {} less",
              "第 05 章，流式传输：各层在主机内存里等着，设备上同时只有两层：最多省 {}", all);
      if (r.live_by_category[Category::gradients] == 0)  // in training, an FP32 master copy takes what 16 bits save
        return {say("chapter 03, weights in FP16 or BF16: inference needs half the bytes, {} less",
                    "第 03 章，权重用 FP16 或 BF16：推理的字节减半，省 {}", half),
                streaming};
      return {say("chapter 07, ZeRO-3: each of 8 GPUs keeps an eighth of the parameters, {} less",
                  "第 07 章，ZeRO-3：8 块 GPU 各留参数的八分之一，省 {}", most),
              streaming};
    }
    case Category::gradients:
      return {say("chapter 07, ZeRO-2: each of 8 GPUs keeps an eighth of the gradients, {} less",
                  "第 07 章，ZeRO-2：8 块 GPU 各留梯度的八分之一，省 {}", most),
              say("chapter 13, a step in the backward pass: a gradient is used and freed at once, up to {} less",
                  "第 13 章，在反向传播中更新：梯度用完立即释放，最多省 {}", all)};
    case Category::optimizer:
      return {say("chapter 00, SGD keeps no optimizer state, {} less; with momentum half of AdamW's",
                  "第 00 章，SGD 没有优化器状态，省 {}；带动量时是 AdamW 的一半", all),
              say("chapter 13, moments in 8 bits: a quarter of AdamW's two, {} less",
                  "第 13 章，矩用 8 位：AdamW 的两个矩只占四分之一，省 {}", format_bytes(bytes - bytes / 4)),
              say("chapter 13, the processor updates: the state stays in host memory, {} less",
                  "第 13 章，由 CPU 更新：状态留在主机内存里，省 {}", all),
              say("chapter 07, ZeRO-1: each of 8 GPUs keeps an eighth of the optimizer state, {} less",
                  "第 07 章，ZeRO-1：8 块 GPU 各留优化器状态的八分之一，省 {}", most)};
    case Category::activations:
      return {say("chapter 01, a smaller batch: half of it needs half the activations, {} less",
                  "第 01 章，减小 batch：减半则激活减半，省 {}", half),
              say("chapter 02, gradient accumulation: 8 micro-batches need an eighth, {} less",
                  "第 02 章，梯度累积：分成 8 个微批只要八分之一，省 {}", most),
              say("chapter 04, checkpointing: 16 layers in segments of 4 keep at most half, {} less",
                  "第 04 章，激活检查点：16 层每 4 层一段，最多保留一半，省 {}", half),
              say("chapter 03, activations in FP16 or BF16: half the bytes, {} less",
                  "第 03 章，激活用 FP16 或 BF16：字节减半，省 {}", half)};
    case Category::workspace:
      return {say("chapter 00, a smaller --workspace, or a smaller batch where it grows with it: {} here",
                  "第 00 章，把 --workspace 设小；工作区随 batch 变大时，减小 batch：这里是 {}", all)};
    case Category::data:
      return {say("chapter 05, loaders: only the batches in flight are on the device, up to {} less",
                  "第 05 章，数据加载：只有正在用的几个 batch 在设备上，最多省 {}", all)};
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
Advice advice_on_host(const OutOfMemoryReport& r, const Say& say) {
  ByCategory bytes = r.live_by_category;
  bytes[r.category] = with_request(r, r.category);
  const auto all = [&](Category category) { return format_bytes(bytes[category]); };
  Advice advice;
  if (const std::size_t state = bytes[Category::optimizer])
    advice.push_back(say("chapter 13, moments in 8 bits instead of 32: of {} up to {} less",
                         "第 13 章，矩用 8 位代替 32 位：{} 里最多省 {}", all(Category::optimizer),
                         format_bytes(state - state / 4)));
  if (bytes[Category::parameters])
    advice.push_back(say("chapter 05, weights that stay on the device: {} less here, and so much more there",
                         "第 05 章，权重留在设备上：这里省 {}，设备上就多这么多", all(Category::parameters)));
  if (bytes[Category::gradients])
    advice.push_back(say("chapter 13, one micro-batch a step: no sums of gradients wait here, of {}",
                         "第 13 章，一步只用一个微批：累积的梯度 {} 不必在这里等", all(Category::gradients)));
  if (bytes[Category::activations])
    advice.push_back(say("chapter 04, longer segments: fewer inputs of layers wait here, of {}",
                         "第 04 章，把段加长：在这里等着的各层输入（共 {}）会少些", all(Category::activations)));
  if (bytes[Category::data])
    advice.push_back(say("chapter 05, loaders: fewer batches queued, of {}",
                         "第 05 章，数据加载：少排几个 batch（现有 {}）", all(Category::data)));
  if (r.by_limit)
    advice.push_back(say("--host-memory: {} or more for this request, if the machine has it",
                         "--host-memory：机器有的话，给到 {} 或更多就够这次申请",
                         format_bytes(plus(r.limit_used, r.requested_rounded))));
  return advice;
}

Advice advice_for(const OutOfMemoryReport& r, const Say& say) {
  if (r.on_host) return advice_on_host(r, say);
  const Cause cause = r.cause();
  switch (cause) {
    case Cause::too_big:
    case Cause::live: {
      const Category largest = cause == Cause::too_big ? r.category : largest_category(r);
      Advice advice = advice_for(r, largest, say);
      if (largest != r.category)  // what was asked for is a lever too
        for (std::string& line : advice_for(r, r.category, say)) advice.push_back(std::move(line));
      if (r.by_limit)
        advice.push_back(say("chapter 00, --budget: {} or more for this request, if the device has it",
                             "第 00 章，--budget：设备有的话，给到 {} 或更多就够这次申请",
                             format_bytes(plus(r.limit_used, r.requested_rounded))));
      return advice;
    }
    case Cause::rounding: {
      const std::size_t lost = plus(minus(r.live, r.live_requested), minus(r.requested_rounded, r.requested));
      return {say("chapter 06, a planned step: one block for all tensors is rounded once; {} are lost here",
                  "第 06 章，按规划执行的一步：所有张量合成一块，只取整一次；这里因取整损失 {}", format_bytes(lost)),
              say("chapter 01, a smaller batch: this request for half of it is {}",
                  "第 01 章，减小 batch：减半后这次申请是 {}", format_bytes(r.requested / 2))};
    }
    case Cause::fragmented: {
      const std::string free = format_bytes(r.by_limit ? cached(r) : plus(r.device_free, cached(r)));
      return {say("chapter 06, a caching allocator that maps free pages side by side: {} are free",
                  "第 06 章，能把空闲页拼在一起的缓存分配器：空闲的有 {}", free),
              say("chapter 06, a planned step: its tensors have fixed places, and no gaps; {} are in gaps",
                  "第 06 章，按规划执行的一步：张量各有固定的位置，没有空隙；空隙里有 {}", free)};
    }
    case Cause::cached:
      return {say("chapter 06, an allocator that empties its cache and tries again before it fails: up to {} back",
                  "第 06 章，失败之前先清空缓存再试一次的分配器：最多拿回 {}", format_bytes(cached(r)))};
    case Cause::other_process:
      if (r.by_limit)
        return {say("chapter 15, a cap for each process: others have {}", "第 15 章，给每个进程设上限：其他进程占着 {}",
                    format_bytes(r.limit_used_by_others)),
                say("chapter 15, wait for them: {} would be enough", "第 15 章，等它们归还：{} 就够",
                    format_bytes(minus(plus(r.requested_rounded, r.limit_used), r.limit)))};
      return {say("chapter 15, --device auto: which device is free, and who holds these {}",
                  "第 15 章，--device auto：看哪块设备空闲，谁占着这 {}", format_bytes(held_by_others(r))),
              say("chapter 01, a batch that fits beside them: a --budget of {}",
                  "第 01 章，换一个和它们一起放得下的 batch：--budget 设为 {}",
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

std::string explain(const OutOfMemoryReport& r, bool chinese) {
  const Say say{chinese};
  std::string text = headline(r) + say("\nWhy: {}\n", "\n原因：{}\n", why(r, say));
  if (!r.largest_live.empty()) {
    text += say("Largest live allocations:\n", "最大的存活分配：\n");
    for (const LiveBlock& block : r.largest_live)
      text += fmt::format("  {:>12}  {:<11}  {}\n", format_bytes(block.bytes), name_of(block.category), block.tag);
  }
  if (r.live_by_category.total() != 0) {
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < kCategoryCount; ++i)
      if (const std::uint64_t bytes = r.live_by_category.bytes[i])
        parts.push_back(say("{} {}", "{} {}", words_of(static_cast<Category>(i), chinese), format_bytes(bytes)));
    text += say("Live by category: {}\n", "各类存活：{}\n", fmt::join(parts, say(", ", "，")));
  }
  text += say("What helps:", "可以怎么做：");
  for (const std::string& line : advice_for(r, say)) text += fmt::format("\n  - {}", line);
  return text;
}

OutOfMemory::OutOfMemory(OutOfMemoryReport report) : std::runtime_error(headline(report)), report_(std::move(report)) {}

}  // namespace oomlab
