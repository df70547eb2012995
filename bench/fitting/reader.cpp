#include "reader.h"

#include <algorithm>

#include "plan/blas_workspace.h"
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

class Reader {
 public:
  explicit Reader(const Question& question) : question_(question), shape_(*question.shape) {}

  ReaderAnswer answer() const {
    const Method method = question_.reader.method;
    ReaderAnswer answer{.as_is = way(method, {})};
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

  // As asked for, of this method.
  HfStep step_of(Method method) const {
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
    return step;
  }

  bool makes_sense(Change change, const Way& way) const {
    const HfStep& step = way.step;
    const bool adapters = way.method != Method::full;
    switch (change) {
      case Change::checkpoint: return !step.checkpoint;
      case Change::micro_batch: return step.batch > 1;
      case Change::eight_bits: return !adapters && !eight_bit(step.optimizer) && adamw(step.optimizer);
      case Change::paged: return !adapters && step.optimizer == HfOptimizer::adamw_8bit;
      case Change::narrow_weights: return !adapters && step.autocast == DType::bf16 && step.weights == DType::fp32;
    }
    return false;
  }
  static bool adamw(HfOptimizer optimizer) {
    return optimizer == HfOptimizer::adamw_foreach || optimizer == HfOptimizer::adamw_fused;
  }
  static void make(Change change, HfStep& step) {
    switch (change) {
      case Change::checkpoint: step.checkpoint = true; return;
      case Change::micro_batch:
        step.micro_batches = checked_product(step.micro_batches, step.batch);
        step.batch = 1;
        return;
      case Change::eight_bits: step.optimizer = HfOptimizer::adamw_8bit; return;
      case Change::paged: step.optimizer = HfOptimizer::adamw_paged; return;
      case Change::narrow_weights: step.weights = *step.autocast; return;
    }
  }

  Way way(Method method, std::vector<Change> changes) const {
    HfStep step = step_of(method);
    for (const Change change : changes) make(change, step);
    return needs(method, step, std::move(changes));
  }
  Way needs(Method method, const HfStep& step, std::vector<Change> changes) const {
    const Room& room = question_.room;
    Way way{.method = method, .step = step, .changes = std::move(changes), .peak = huggingface_peak(shape_, step)};
    way.allocator = static_cast<std::uint64_t>(double(way.peak.bytes.total()) * room.fragmentation_percent / 100);
    const std::uint64_t workspace = question_.card->capability >= kHopper ? kTorchWorkspaceOfHopper : kTorchWorkspace;
    way.outside = checked_sum({room.context, checked_product(workspace, kThreads), room.nccl});
    way.spare = room.reserve;
    if (step.optimizer == HfOptimizer::adamw_paged) {
      HfStep resident = step;
      resident.optimizer = HfOptimizer::adamw_8bit;
      way.host = huggingface_peak(shape_, resident).bytes[Category::optimizer];
    }
    if (question_.memory_named) way.memory = room.memory;
    return way;
  }

  // All changes that make sense, one after the other, until it fits; then those are taken back without which it does,
  // too.
  // Where nothing fits, or no card is named, with all of them.
  Way best_of(Method method) const {
    Way now = way(method, {});
    if (question_.memory_named && now.fits()) return now;
    for (const Change change : kChanges) {
      if (question_.memory_named && now.fits()) break;
      if (!makes_sense(change, now)) continue;
      std::vector<Change> changes = now.changes;
      changes.push_back(change);
      now = way(method, std::move(changes));
    }
    if (!question_.memory_named || !now.fits()) return now;
    for (const Change change : kChanges) {
      if (now.changes.size() < 2 || std::ranges::find(now.changes, change) == now.changes.end()) continue;
      std::vector<Change> fewer = now.changes;
      std::erase(fewer, change);
      if (change == Change::eight_bits) std::erase(fewer, Change::paged);
      const Way without = way(method, fewer);
      if (without.fits()) now = without;
    }
    return now;
  }
  Way explained(Way found) const {
    std::vector<Change> so_far;
    found.after = {way(found.method, so_far).device()};
    for (const Change change : found.changes) {
      so_far.push_back(change);
      found.after.push_back(way(found.method, so_far).device());
    }
    return found;
  }

  // Of the program as it is, with checkpoints, and of adapters with them.
  std::vector<LargestOf> largest(const ReaderAnswer& answer) const {
    std::vector<Way> ways{answer.as_is};
    if (!answer.as_is.step.checkpoint) ways.push_back(way(question_.reader.method, {Change::checkpoint}));
    for (const Way& other : answer.adapters) {
      HfStep step = step_of(other.method);
      step.checkpoint = true;
      std::vector<Change> changes;
      if (other.method == Method::lora) changes = {Change::checkpoint};
      ways.push_back(needs(other.method, step, std::move(changes)));
    }
    std::vector<LargestOf> all;
    for (const Way& one : ways) all.push_back(largest_of(one));
    return all;
  }
  LargestOf largest_of(const Way& way) const {
    const bool batch = *question_.largest == Largest::batch;
    const std::uint64_t most = batch ? kMostBatchOfCard : shape_.positions;
    const auto sized = [&](std::uint64_t n) {
      HfStep step = way.step;
      (batch ? step.batch : step.seq) = n;
      return needs(way.method, step, way.changes);
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

  const Question& question_;
  const nn::HfShape& shape_;
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

const Way* ReaderAnswer::best() const {
  if (as_is.fits()) return &as_is;
  if (changed) return &*changed;
  for (const Way& way : adapters)
    if (way.fits()) return &way;
  return nullptr;
}

ReaderAnswer answer_reader(const Question& question) { return Reader(question).answer(); }

}  // namespace oomlab::fit
