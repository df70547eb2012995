// DeepSpeed's ZeRO, from reading its sources of 0.19 (runtime/zero/stage_1_and_2.py, stage3.py,
// partitioned_param_coordinator.py, config.py) and transformers' integrations/deepspeed.py. Not measured: it needs GPUs.
//
// Simplified: parameters are one group without the padding of partitions. At stage 3 a layer is gathered at once, or, if
// it is larger, its largest matrix and what is fetched ahead; the larger of embedding and head is there for as long as
// the pass lasts.

#include <algorithm>
#include <utility>

#include "plan/pytorch/hf_ranks.h"

namespace oomlab::fit {

namespace {

using Bytes = std::unique_ptr<Storage>;

class Zero final : public HfUnits {
 public:
  Zero(TorchMemory& memory, const HfStep& step, std::uint64_t width)
      : memory_(memory), step_(step), ranks_(*step.ranks), width_(width) {}

  bool adopt(Parameter& parameter, std::uint64_t unit, std::uint64_t, DType) override {
    const std::uint64_t count = parameter.value.count;
    if (parameter.trained) {
      trained_ = checked_sum(trained_, count);
      largest_ = std::max(largest_, count);
      leaves_.push_back(&parameter);
    }
    if (!partitions_weights()) return false;
    if (count <= persistence()) return false;  // whole on every rank
    if (unit >= units_.size()) units_.resize(static_cast<std::size_t>(unit) + 1);
    Unit& mine = unit_of(unit);
    mine.count = unit == 0 ? std::max(mine.count, count) : checked_sum(mine.count, count);
    mine.largest = std::max(mine.largest, count);
    partitioned_ = checked_sum(partitioned_, count);
    parameter.value.storage = std::make_shared<Storage>(memory_, 0, Category::parameters, false);
    return true;
  }

  void begin() override {
    if (partitions_weights()) {
      if (!ranks_.offload_parameters) hold(share(partitioned_), step_.weights, Category::parameters);
      hold(bucket(), step_.weights, Category::gradients);
      if (!ranks_.offload_optimizer) hold(share(trained_), step_.weights, Category::gradients);
    } else if (ranks_.offload_optimizer) {
      hold(largest_, step_.weights, Category::gradients);
    }
    if (!ranks_.offload_optimizer) hold(share(trained_), DType::fp32, Category::optimizer);  // the weights in FP32
  }

  void before_forward(std::uint64_t number) override { gather(number, true); }
  void after_forward(std::uint64_t number) override { release(number, true); }
  void before_backward(std::uint64_t number) override { gather(number, false); }
  void after_backward(std::uint64_t number) override { release(number, false); }

  void accumulated(Parameter& parameter) override {
    make_buckets();
    if (ranks_.parallel == HfParallel::zero1 && !overlaps()) return;  // when the backward pass is over
    into_bucket(parameter);
  }
  void end_backward() override {
    for (Parameter* parameter : leaves_)
      if (parameter->gradient) into_bucket(*parameter);
    flush();
    buckets_.clear();
    for (Unit& unit : units_) unit.gathered.reset();
  }
  std::vector<Updated> updated() const override {
    if (ranks_.offload_optimizer) return {};
    return {{share(trained_), DType::fp32}};
  }
  // The partition's gradients, flat, and then in FP32.
  void begin_update() override {
    if (ranks_.offload_optimizer) return;
    std::uint64_t count = share(trained_);
    if (partitions_weights()) count = std::min(count, share(kSubGroup));
    wide_ = make(count, step_.weights, Category::gradients);
    if (step_.weights == DType::fp32) return;
    Bytes cast = make(count, DType::fp32, Category::gradients);
    wide_ = std::move(cast);
    partition_.reset();
  }
  void zero_gradients() override {
    wide_.reset();
    partition_.reset();
  }
  // Weights in FP32, moments, gradients in FP32 and, in the type of the model, what comes or goes.
  std::uint64_t host_bytes() const override {
    const std::uint64_t narrow = element_bytes(step_.weights);
    std::uint64_t bytes = 0;
    if (ranks_.offload_optimizer) {
      const std::uint64_t moments = step_.optimizer == HfOptimizer::sgd ? 0 : 2 * sizeof(float);
      bytes = checked_product(share(trained_), 2 * sizeof(float) + moments + narrow);
      if (!partitions_weights()) bytes = checked_sum(bytes, checked_product(largest_, narrow));
    }
    if (ranks_.offload_parameters) bytes = checked_sum(bytes, checked_product(share(partitioned_), narrow));
    return bytes;
  }

 private:
  struct Unit {
    std::uint64_t count = 0, largest = 0;
    Bytes gathered{};
  };
  static constexpr std::uint64_t kBucket = 500'000'000;      // reduce_bucket_size
  static constexpr std::uint64_t kReuse = 1'000'000'000;     // max_reuse_distance
  static constexpr std::uint64_t kSubGroup = 1'000'000'000;  // sub_group_size

  bool partitions_weights() const { return ranks_.parallel == HfParallel::zero3; }
  bool overlaps() const { return ranks_.overlap.value_or(partitions_weights()); }
  std::uint64_t share(std::uint64_t count) const { return (count + ranks_.count - 1) / ranks_.count; }
  // What Trainer sets for "auto", which stage 3's examples have; or DeepSpeed's default.
  std::uint64_t bucket() const {
    if (ranks_.bucket > 0) return ranks_.bucket;
    return partitions_weights() ? checked_product(width_, width_) : kBucket;
  }
  std::uint64_t persistence() const { return checked_product(width_, 10); }
  std::uint64_t prefetched() const { return checked_product(width_, width_) / 10 * 9; }

  Bytes make(std::uint64_t count, DType dtype, Category category) {
    return std::make_unique<Storage>(memory_, checked_product(count, element_bytes(dtype)), category);
  }
  void hold(std::uint64_t count, DType dtype, Category category) { held_.push_back(make(count, dtype, category)); }

  void gather(std::uint64_t number, bool forward) {
    if (number >= units_.size()) return;
    fetch(unit_of(number));
    if (number == 0) return;
    const std::uint64_t next = forward ? number + 1 : number - 1;  // the prefetch of what comes next
    if (next > 0 && next < units_.size() && unit_of(next).count <= prefetched()) fetch(unit_of(next));
  }
  void fetch(Unit& unit) {
    if (unit.gathered || unit.count == 0) return;
    const std::uint64_t window = std::min(unit.count, checked_sum(unit.largest, prefetched()));
    unit.gathered = make(window, step_.weights, Category::parameters);
  }
  // What is used again soon stays: after the forward pass, a layer with little behind it.
  void release(std::uint64_t number, bool forward) {
    if (number == 0 || number >= units_.size()) return;
    std::uint64_t distance = 0;
    for (std::uint64_t later = number + 1; forward && later < units_.size(); ++later)
      distance = checked_sum(distance, checked_product(unit_of(later).count, 2));
    if (forward) distance = checked_sum(distance, checked_product(units_[0].count, 2));
    if (!forward || distance >= kReuse) unit_of(number).gathered.reset();
  }

  void make_buckets() {
    if (partitions_weights()) return;
    const std::size_t buffers = overlaps() ? 2 : 1;
    while (buckets_.size() < buffers) buckets_.push_back(make(bucket(), step_.weights, Category::gradients));
  }
  void into_bucket(Parameter& parameter) {
    const std::uint64_t count = parameter.gradient.count;
    if (checked_sum(filled_, count) > bucket()) flush();
    if (count > bucket()) {  // reduced where it is
      make_partition();
    } else {
      filled_ += count;
    }
    parameter.gradient = {};
  }
  // The bucket is reduced in a copy, and this rank's part kept.
  void flush() {
    if (filled_ == 0) return;
    const Bytes copy = make(std::exchange(filled_, 0), step_.weights, Category::gradients);
    make_partition();
  }
  void make_partition() {
    if (partitions_weights() || ranks_.offload_optimizer || partition_) return;
    partition_ = make(share(trained_), step_.weights, Category::gradients);
  }

  Unit& unit_of(std::uint64_t number) { return units_[static_cast<std::size_t>(number)]; }

  TorchMemory& memory_;
  const HfStep& step_;
  const HfRanks& ranks_;
  std::uint64_t width_;
  std::uint64_t trained_ = 0, largest_ = 0, partitioned_ = 0, filled_ = 0;
  std::vector<Parameter*> leaves_;
  std::vector<Unit> units_;
  std::vector<Bytes> held_, buckets_;
  Bytes partition_{}, wide_{};
};

}  // namespace

std::unique_ptr<HfUnits> make_zero_units(TorchMemory& memory, const HfStep& step, std::uint64_t width) {
  return std::make_unique<Zero>(memory, step, width);
}

}  // namespace oomlab::fit
