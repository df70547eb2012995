#include "reader.h"

#include <algorithm>
#include <map>

#include "largest.h"
#include "plan/pytorch/reserved.h"
#include "question.h"

namespace oomlab::fit {

namespace {

/// PyTorch gives cuBLAS this much on cards before and since Hopper, once a thread that multiplies: the forward pass's
/// and the backward pass's (torch.backends.cuda, CUBLAS_WORKSPACE_CONFIG).
constexpr std::uint64_t kTorchWorkspace = (std::uint64_t(8) << 20) + (std::uint64_t(128) << 10);
constexpr std::uint64_t kTorchWorkspaceOfHopper = std::uint64_t(32) << 20;
constexpr std::uint64_t kThreads = 2;

constexpr std::uint64_t kCardsOfANode = 8;  // which share its host's memory
constexpr std::uint64_t kMostBatchOfCard = std::uint64_t(1) << 20;

DType half_of(const Question& question) {
  if (question.precision == DType::fp16) return DType::fp16;
  return question.card->has_bf16 ? DType::bf16 : DType::fp16;
}

// State or weights of a rank are a part.
bool by_tensor(const HfStep& step) { return step.ranks && step.ranks->parallel == HfParallel::tensor; }
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
      if (other > method && shape_.gated() && !shape_.experts) answer.adapters.push_back(explained(best_of(other)));
    if (question_.largest) answer.largest = largest(answer);
    return answer;
  }

 private:
  bool vit() const { return shape_.family == nn::HfFamily::vit; }

  // As asked for, of this method; on several cards by FSDP where DDP does not fit.
  Way as_asked(Method method) const {
    HfParallel parallel = question_.reader.sharding.value_or(HfParallel::ddp);
    // DeepSpeed's shards of four bits are not known; and who asked for them by name hears it.
    // The same of adapters in tensor parallelism.
    const bool unknown =
        (method == Method::qlora && is_zero(parallel)) || (method != Method::full && parallel == HfParallel::tensor);
    const bool other = unknown && question_.reader.method != method;
    if (other) parallel = HfParallel::ddp;
    const Way way = needs(set_up(method, parallel));
    const bool free = other || !question_.reader.sharding;
    const bool may_shard =
        question_.gpus > 1 && free && !eight_bit(way.step.optimizer) && way.step.optimizer != HfOptimizer::adafactor;
    return way.fits() || !may_shard ? way : needs(set_up(method, HfParallel::fsdp2));
  }
  Way set_up(Method method, HfParallel parallel) const {
    const ReaderSettings& asked = question_.reader;
    // In tensor parallelism all cards have the same sequences.
    const std::uint64_t shares = parallel == HfParallel::tensor ? 1 : question_.gpus;
    const std::uint64_t passes = checked_product(shares, asked.accumulation);
    HfStep step{.batch = (question_.batch + passes - 1) / passes,
                .seq = vit() ? 0 : question_.seq,
                .micro_batches = asked.accumulation,
                .eager_attention = asked.eager_attention,
                .loss = asked.loss,
                .optimizer = asked.optimizer};
    const bool single = question_.precision == DType::fp32 || (!question_.precision && vit());
    if (!single) step.autocast = half_of(question_);
    step.weights = asked.weights.value_or(DType::fp32);
    if (method != Method::full) {
      step.lora = HfLora{.rank = asked.lora_rank, .four_bits = method == Method::qlora};
      if (!asked.weights && !single) step.weights = half_of(question_);
    }
    step.checkpoint = asked.checkpoint.value_or(method == Method::qlora);
    if (question_.gpus > 1 || is_zero(parallel)) step.ranks = HfRanks{.parallel = parallel, .count = question_.gpus};
    if (parallel == HfParallel::fsdp2 && step.ranks) step.ranks->compute = step.autocast;
    if (is_zero(parallel)) as_deepspeed(step);
    Way way;
    way.method = method;
    way.step = step;
    way.expandable = asked.expandable;
    return way;
  }

  // The whole model in 16 bits, and an FP32 copy of it in the optimizer.
  void as_deepspeed(HfStep& step) const {
    if (step.autocast) step.weights = *step.autocast;
    step.autocast.reset();
    step.ranks->compute.reset();
    step.ranks->offload_optimizer = question_.reader.offload_optimizer;
    step.ranks->offload_parameters = question_.reader.offload_weights;
  }

  bool makes_sense(Change change, const Way& way) const {
    const HfStep& step = way.step;
    const bool whole = way.method == Method::full && !sharded(step);
    switch (change) {
      case Change::expandable: return !way.expandable && !question_.room.fragmentation_percent;
      case Change::checkpoint: return !step.checkpoint;
      case Change::liger: return step.loss == HfLoss::full && shape_.gated() && !by_tensor(step);
      case Change::micro_batch: return step.batch > way.micro_batch;
      case Change::eight_bits: return whole && torch_adamw(step.optimizer);
      case Change::paged: return whole && step.optimizer == HfOptimizer::adamw_8bit;
      case Change::offload:
        return question_.host_named && way.method == Method::full && !by_tensor(step) && !shape_.experts &&
               !(step.ranks && is_zero(step.ranks->parallel));
      case Change::offload_weights:
        return question_.host_named && step.ranks && step.ranks->parallel == HfParallel::zero3 &&
               step.ranks->offload_optimizer && !step.ranks->offload_parameters;
      case Change::narrow_weights:
        return question_.numbers == Numbers::any && way.method == Method::full && step.autocast == DType::bf16 &&
               step.weights == DType::fp32;
    }
    return false;
  }
  Way with(Way way, Change change) const {
    HfStep& step = way.step;
    switch (change) {
      case Change::expandable: way.expandable = true; break;
      case Change::checkpoint: step.checkpoint = true; break;
      case Change::liger: step.loss = HfLoss::liger; break;
      case Change::micro_batch:
        step.micro_batches = checked_product(step.micro_batches, step.batch / way.micro_batch);
        step.batch = way.micro_batch;
        break;
      case Change::eight_bits: step.optimizer = HfOptimizer::adamw_8bit; break;
      case Change::paged: step.optimizer = HfOptimizer::adamw_paged; break;
      case Change::offload:  // DeepSpeed updates on the host, in FP32
        step.ranks = HfRanks{.parallel = HfParallel::zero3, .count = question_.gpus};
        as_deepspeed(step);
        step.ranks->offload_optimizer = true;
        step.optimizer = question_.reader.optimizer;
        std::erase(way.changes, Change::eight_bits);
        std::erase(way.changes, Change::paged);
        break;
      case Change::offload_weights: step.ranks->offload_parameters = true; break;
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
    const auto found = peaks_.find(step);
    return found != peaks_.end() ? found->second : peaks_.emplace(step, huggingface_peak(shape_, step)).first->second;
  }

  // Where what is live is already too much, what the allocator splits is left out: see complete().
  Way needs(Way way) const {
    static_cast<Need&>(way) = need_of(question_, peak_of(way.step));
    const std::uint64_t of_a_node = std::min<std::uint64_t>(question_.gpus, kCardsOfANode);
    way.host = checked_product(way.peak.host, of_a_node);
    if (way.step.optimizer == HfOptimizer::adamw_paged) {
      HfStep resident = way.step;
      resident.optimizer = HfOptimizer::adamw_8bit;
      way.host = checked_product(peak_of(resident).bytes[Category::optimizer], of_a_node);
    }
    return question_.memory_named && way.fits() ? complete(std::move(way)) : way;
  }
  Way complete(Way way) const {
    if (way.completed) return way;
    const bool recorded = !question_.room.fragmentation_percent;
    fit::complete(way, question_, recorded ? huggingface_peak(shape_, way.step, true) : HfPeak{}, way.expandable);
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
      if (change == Change::offload) std::erase(fewer, Change::offload_weights);
      const Way without = with(plain, fewer);
      if (without.fits()) now = without;
    }
    return with_larger_passes(plain, std::move(now));
  }
  // Twice as many sequences at a time, as long as that divides the batch and fits.
  Way with_larger_passes(Way plain, Way now) const {
    if (std::ranges::find(now.changes, Change::micro_batch) == now.changes.end()) return now;
    for (plain.micro_batch = 2; plain.micro_batch < plain.step.batch; plain.micro_batch *= 2) {
      if (plain.step.batch % plain.micro_batch != 0) break;
      const Way larger = with(plain, now.changes);
      if (!larger.fits()) break;
      now = larger;
    }
    return now;
  }
  Way explained(Way found) const {
    Way one = as_asked(found.method);
    one.micro_batch = found.micro_batch;
    found.after = {one.live()};
    for (const Change change : found.changes) {
      one = with(one, change);
      if (change != Change::expandable) one = needs(one);
      found.after.push_back(one.live());
    }
    return complete(std::move(found));
  }

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
    const auto of = [&](auto asks) {
      return [&, asks](std::uint64_t n) {
        try {
          return asks(n);
        } catch (const std::length_error&) {
          return false;
        }
      };
    };
    const auto step_of = [&](std::uint64_t n) {
      HfStep step = way.step;
      (batch ? step.batch : step.seq) = n;
      return step;
    };
    const std::uint64_t good =
        largest_that_fits(most, of([&](std::uint64_t n) { return need_of(question_, peak_of(step_of(n))).fits(); }),
                          of([&](std::uint64_t n) { return sized(n).fits(); }));
    return {.way = good ? sized(good) : way, .most = good};
  }

  const Question& question_;
  const nn::HfShape& shape_;
  mutable std::map<HfStep, HfPeak> peaks_;
};

}  // namespace

Need need_of(const Question& question, HfPeak peak) {
  const Room& room = question.room;
  Need need;
  need.peak = std::move(peak);
  const std::uint64_t workspace = since_hopper(*question.card) ? kTorchWorkspaceOfHopper : kTorchWorkspace;
  need.outside = checked_sum({room.context, checked_product(workspace, kThreads), room.nccl});
  need.spare = room.reserve;
  if (question.memory_named) need.memory = room.memory;
  if (question.host_named) need.host_memory = room.host;
  return need;
}

void complete(Need& need, const Question& question, const HfPeak& recorded, bool expandable) {
  need.completed = true;
  if (const auto percent = question.room.fragmentation_percent) {
    need.allocator = static_cast<std::uint64_t>(double(need.live()) * *percent / 100);
    return;
  }
  const TorchSegments segments = expandable ? TorchSegments::expandable : TorchSegments::native;
  const std::uint64_t taken = checked_sum(need.outside, need.spare);
  Reserved reserved{.peak = 0, .live = 0, .allocated = 0, .fits = false};
  if (question.memory_named && need.fits())
    reserved = reserved_by_replay(recorded.events, segments, need.memory - taken);
  if (!reserved.fits) reserved = reserved_by_replay(recorded.events, segments);
  need.allocator = reserved.peak - std::min(reserved.peak, need.live());
}

const char* name_of(Method method) {
  switch (method) {
    case Method::full: return "full";
    case Method::lora: return "lora";
    case Method::qlora: return "qlora";
  }
  return "";
}

const char* name_of(HfLoss loss) {
  switch (loss) {
    case HfLoss::full: return "full";
    case HfLoss::chunked: return "chunked";
    case HfLoss::liger: return "liger";
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

const char* name_of(HfParallel parallel) {
  switch (parallel) {
    case HfParallel::ddp: return "ddp";
    case HfParallel::fsdp2: return "fsdp";
    case HfParallel::tensor: return "tensor";
    case HfParallel::zero1: return "zero1";
    case HfParallel::zero2: return "zero2";
    case HfParallel::zero3: return "zero3";
  }
  return "";
}
bool is_zero(HfParallel parallel) { return parallel >= HfParallel::zero1; }

const Way* ReaderAnswer::best() const {
  if (as_is.fits()) return &as_is;
  if (changed) return &*changed;
  for (const Way& way : adapters)
    if (way.fits()) return &way;
  return nullptr;
}

ReaderAnswer answer_reader(const Question& question) { return Reader(question).answer(); }

}  // namespace oomlab::fit
