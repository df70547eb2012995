#include "reader.h"

#include <algorithm>
#include <map>

#include "plan/pytorch/reserved.h"
#include "question.h"

namespace oomlab::fit {

namespace {

/// PyTorch gives cuBLAS this much on cards before and since Hopper, once a thread that multiplies: the forward pass's
/// and the backward pass's (torch.backends.cuda, CUBLAS_WORKSPACE_CONFIG).
constexpr std::uint64_t kTorchWorkspace = (std::uint64_t(8) << 20) + (std::uint64_t(128) << 10);
constexpr std::uint64_t kTorchWorkspaceOfHopper = std::uint64_t(32) << 20;
constexpr std::uint64_t kThreads = 2;
constexpr double kHopper = 9;

constexpr std::uint64_t kMostBatchOfCard = std::uint64_t(1) << 20;

DType half_of(const Question& question) {
  if (question.precision == DType::fp16) return DType::fp16;
  return question.card->has_bf16 ? DType::bf16 : DType::fp16;
}

bool eight_bit(HfOptimizer optimizer) {
  return optimizer == HfOptimizer::adamw_8bit || optimizer == HfOptimizer::adamw_paged;
}

bool adamw(HfOptimizer optimizer) {
  return optimizer == HfOptimizer::adamw_foreach || optimizer == HfOptimizer::adamw_fused;
}

bool sharded(const HfStep& step) { return step.ranks && step.ranks->parallel != HfParallel::ddp; }

class Reader {
 public:
  explicit Reader(const Question& question) : question_(question), shape_(*question.shape) {}

  ReaderAnswer answer() const {
    const Method method = question_.reader.method;
    ReaderAnswer answer{.as_is = complete(as_asked(method))};
    if (!question_.memory_named || !answer.as_is.fits()) {
      Way changed = best_of(method);
      if (changed.fits() && !changed.changes.empty()) answer.changed = explained(std::move(changed));
    }
    for (const Method other : {Method::lora, Method::qlora})
      if (other > method && shape_.gated()) answer.adapters.push_back(explained(best_of(other)));
    if (question_.largest) answer.largest = largest(answer);
    return answer;
  }

 private:
  bool vit() const { return shape_.family == nn::HfFamily::vit; }

  // As asked for, of this method; on several cards by FSDP where DDP does not fit.
  Way as_asked(Method method) const {
    const Way way = needs(set_up(method, question_.reader.sharding.value_or(HfParallel::ddp)));
    const bool may_shard = question_.gpus > 1 && !question_.reader.sharding && method != Method::qlora &&
                           !eight_bit(way.step.optimizer) && way.step.optimizer != HfOptimizer::adafactor;
    return way.fits() || !may_shard ? way : needs(set_up(method, HfParallel::fsdp2));
  }
  Way set_up(Method method, HfParallel parallel) const {
    const ReaderSettings& asked = question_.reader;
    const std::uint64_t passes = checked_product(question_.gpus, asked.accumulation);
    HfStep step{.batch = (question_.batch + passes - 1) / passes,
                .seq = vit() ? 0 : question_.seq,
                .micro_batches = asked.accumulation,
                .eager_attention = asked.eager_attention,
                .optimizer = asked.optimizer};
    const bool single = question_.precision == DType::fp32 || (!question_.precision && vit());
    if (!single) step.autocast = half_of(question_);
    step.weights = asked.weights.value_or(DType::fp32);
    if (method != Method::full) {
      step.lora = HfLora{.rank = asked.lora_rank, .four_bits = method == Method::qlora};
      if (!asked.weights && !single) step.weights = half_of(question_);
    }
    step.checkpoint = asked.checkpoint.value_or(method == Method::qlora);
    if (question_.gpus > 1) step.ranks = HfRanks{.parallel = parallel, .count = question_.gpus};
    if (sharded(step)) step.ranks->compute = step.autocast;
    return {.method = method, .step = step, .expandable = asked.expandable};
  }

  bool makes_sense(Change change, const Way& way) const {
    const HfStep& step = way.step;
    const bool whole = way.method == Method::full && !sharded(step);
    switch (change) {
      case Change::expandable: return !way.expandable && !question_.room.fragmentation_percent;
      case Change::checkpoint: return !step.checkpoint;
      case Change::micro_batch: return step.batch > 1;
      case Change::eight_bits: return whole && adamw(step.optimizer);
      case Change::paged: return whole && step.optimizer == HfOptimizer::adamw_8bit;
      case Change::narrow_weights:
        return question_.numbers == Numbers::any && way.method == Method::full && step.autocast == DType::bf16 &&
               step.weights == DType::fp32;
    }
    return false;
  }
  static Way with(Way way, Change change) {
    HfStep& step = way.step;
    switch (change) {
      case Change::expandable: way.expandable = true; break;
      case Change::checkpoint: step.checkpoint = true; break;
      case Change::micro_batch:
        step.micro_batches = checked_product(step.micro_batches, step.batch);
        step.batch = 1;
        break;
      case Change::eight_bits: step.optimizer = HfOptimizer::adamw_8bit; break;
      case Change::paged: step.optimizer = HfOptimizer::adamw_paged; break;
      case Change::narrow_weights: step.weights = *step.autocast; break;
    }
    way.changes.push_back(change);
    return way;
  }
  Way with(Way way, const std::vector<Change>& changes) const {
    for (const Change change : changes) way = with(std::move(way), change);
    return needs(std::move(way));
  }

  // huggingface_peak(), each once.
  const HfPeak& peak_of(const HfStep& step) const {
    const HfRanks ranks = step.ranks.value_or(HfRanks{.count = 0});
    const Key key{step.batch,
                  step.seq,
                  step.micro_batches,
                  std::uint64_t(step.weights),
                  step.autocast ? std::uint64_t(*step.autocast) : UINT64_MAX,
                  std::uint64_t(step.checkpoint),
                  std::uint64_t(step.optimizer),
                  step.lora ? 1 + std::uint64_t(step.lora->four_bits) : 0,
                  std::uint64_t(ranks.parallel),
                  ranks.count};
    const auto found = peaks_.find(key);
    return found != peaks_.end() ? found->second : peaks_.emplace(key, huggingface_peak(shape_, step)).first->second;
  }

  // Where what is live is already too much, what the allocator splits is left out: see complete().
  Way needs(Way way) const {
    const Room& room = question_.room;
    way.peak = peak_of(way.step);
    way.completed = false;
    way.allocator = 0;
    const std::uint64_t workspace = question_.card->capability >= kHopper ? kTorchWorkspaceOfHopper : kTorchWorkspace;
    way.outside = checked_sum({room.context, checked_product(workspace, kThreads), room.nccl});
    way.spare = room.reserve;
    if (question_.memory_named) way.memory = room.memory;
    way.host = 0;
    if (way.step.optimizer == HfOptimizer::adamw_paged) {
      HfStep resident = way.step;
      resident.optimizer = HfOptimizer::adamw_8bit;
      way.host = peak_of(resident).bytes[Category::optimizer];
    }
    return question_.memory_named && way.fits() ? complete(std::move(way)) : way;
  }
  // What the allocator splits: under what the card has for it, and where that does not fit, with no limit.
  Way complete(Way way) const {
    if (way.completed) return way;
    way.completed = true;
    const std::uint64_t live = way.peak.bytes.total();
    if (const auto percent = question_.room.fragmentation_percent) {
      way.allocator = static_cast<std::uint64_t>(double(live) * *percent / 100);
      return way;
    }
    way.allocator = 0;
    const HfPeak recorded = huggingface_peak(shape_, way.step, true);
    const TorchSegments segments = way.expandable ? TorchSegments::expandable : TorchSegments::native;
    const std::uint64_t taken = checked_sum(way.outside, way.spare);
    Reserved reserved{.peak = 0, .live = 0, .fits = false};
    if (way.fits() && question_.memory_named)
      reserved = reserved_by_replay(recorded.events, segments, way.memory - taken);
    if (!reserved.fits) reserved = reserved_by_replay(recorded.events, segments);
    way.allocator = reserved.peak - std::min(reserved.peak, live);
    return way;
  }

  // All changes that make sense, one after the other, until it fits; then those are taken back without which it does,
  // too. Where nothing fits, or no card is named, with all of them.
  Way best_of(Method method) const {
    const Way plain = as_asked(method);
    Way now = plain;
    const bool named = question_.memory_named;
    for (const Change change : kChanges) {
      if (named && now.fits()) break;
      if (makes_sense(change, now)) now = needs(with(now, change));
    }
    if (!named || !now.fits()) return now;
    for (const Change change : kChanges) {
      if (now.changes.size() < 2 || std::ranges::find(now.changes, change) == now.changes.end()) continue;
      std::vector<Change> fewer = now.changes;
      std::erase(fewer, change);
      if (change == Change::eight_bits) std::erase(fewer, Change::paged);
      const Way without = with(plain, fewer);
      if (without.fits()) now = without;
    }
    return now;
  }
  Way explained(Way found) const {
    Way one = as_asked(found.method);
    found.after = {live(one)};
    for (const Change change : found.changes) {
      one = with(one, change);
      if (change != Change::expandable) one = needs(one);
      found.after.push_back(live(one));
    }
    return complete(std::move(found));
  }
  static std::uint64_t live(const Way& way) { return way.peak.bytes.total(); }

  // Of the program as it is, with checkpoints, and of adapters with them.
  std::vector<LargestOf> largest(const ReaderAnswer& answer) const {
    std::vector<Way> ways{answer.as_is};
    const auto add = [&](const Way& way) {
      ways.push_back(makes_sense(Change::checkpoint, way) ? with(way, Change::checkpoint) : way);
    };
    if (!answer.as_is.step.checkpoint) add(answer.as_is);
    for (const Way& other : answer.adapters) add(as_asked(other.method));
    std::vector<LargestOf> all;
    for (const Way& one : ways) all.push_back(largest_of(one));
    return all;
  }
  LargestOf largest_of(const Way& way) const {
    const bool batch = *question_.largest == Largest::batch;
    const std::uint64_t most = batch ? kMostBatchOfCard : shape_.positions;
    const auto sized = [&](std::uint64_t n) {
      Way other = way;
      (batch ? other.step.batch : other.step.seq) = n;
      return needs(std::move(other));
    };
    const auto holds = [&](std::uint64_t n) {
      try {
        return sized(n).fits();
      } catch (const std::length_error&) {
        return false;
      }
    };
    std::uint64_t good = 0, stride = 1;
    while (good + stride <= most && holds(good + stride)) good += stride, stride *= 2;
    for (; stride > 0; stride /= 2)
      if (good + stride <= most && holds(good + stride)) good += stride;
    return {.way = good ? sized(good) : way, .most = good};
  }

  using Key = std::array<std::uint64_t, 10>;
  const Question& question_;
  const nn::HfShape& shape_;
  mutable std::map<Key, HfPeak> peaks_;
};

}  // namespace

const char* name_of(Method method) {
  switch (method) {
    case Method::full: return "full";
    case Method::lora: return "lora";
    case Method::qlora: return "qlora";
  }
  return "";
}

const char* name_of(HfOptimizer optimizer) {
  switch (optimizer) {
    case HfOptimizer::adamw_fused: return "adamw_torch_fused";
    case HfOptimizer::adamw_foreach: return "adamw_torch";
    case HfOptimizer::adamw_8bit: return "adamw_bnb_8bit";
    case HfOptimizer::adamw_paged: return "paged_adamw_8bit";
    case HfOptimizer::adafactor: return "adafactor";
    case HfOptimizer::sgd: return "sgd";
  }
  return "";
}

const char* name_of(HfParallel parallel) { return parallel == HfParallel::ddp ? "ddp" : "fsdp"; }

const Way* ReaderAnswer::best() const {
  if (as_is.fits()) return &as_is;
  if (changed) return &*changed;
  for (const Way& way : adapters)
    if (way.fits()) return &way;
  return nullptr;
}

ReaderAnswer answer_reader(const Question& question) { return Reader(question).answer(); }

}  // namespace oomlab::fit
