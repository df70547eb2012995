#include "plan/pytorch/hf_ranks.h"

#include <algorithm>
#include <utility>

namespace oomlab::fit {

namespace {

using Bytes = std::unique_ptr<Storage>;

std::uint64_t bytes_of(std::uint64_t count, DType dtype) { return checked_product(count, element_bytes(dtype)); }

// ---------------------------------------------------------------------------------------------- DistributedDataParallel

// torch/csrc/distributed/c10d/reducer.cpp: flat buckets of the gradients, made once and kept. Without
// gradient_as_bucket_view the gradients are there a second time.
class DataParallel final : public HfUnits {
 public:
  DataParallel(TorchMemory& memory, const HfRanks& ranks) : memory_(memory), ranks_(ranks) {}

  bool adopt(Parameter& parameter, std::uint64_t, std::uint64_t, DType) override {
    if (parameter.trained) trained_.push_back(&parameter);
    return false;
  }
  // compute_bucket_assignment_by_size(): from the last parameter to the first, a first bucket of 1 MiB, then of 25.
  void begin() override {
    std::uint64_t limit = kFirstBucket, filled = 0;
    for (auto it = trained_.rbegin(); it != trained_.rend(); ++it) {
      filled = checked_sum(filled, bytes_of((*it)->value.count, (*it)->value.dtype));
      if (filled < limit && std::next(it) != trained_.rend()) continue;
      buckets_.push_back(std::make_shared<Storage>(memory_, filled, Category::gradients));
      filled = 0;
      limit = kBucket;
    }
  }
  // The gradient is copied to its bucket, and is a view of it from then on.
  void accumulated(Parameter& parameter) override {
    if (ranks_.bucket_view) parameter.gradient.storage = buckets_.front();
  }
  std::vector<Updated> updated() const override {
    std::vector<Updated> all;
    for (const Parameter* parameter : trained_) all.push_back({parameter->value.count, parameter->value.dtype});
    return all;
  }

 private:
  static constexpr std::uint64_t kFirstBucket = std::uint64_t(1) << 20, kBucket = std::uint64_t(25) << 20;
  TorchMemory& memory_;
  const HfRanks& ranks_;
  std::vector<Parameter*> trained_;
  std::vector<std::shared_ptr<Storage>> buckets_;
};

// ---------------------------------------------------------------------------------------------------------------- FSDP2

// torch/distributed/fsdp/_fully_shard: fully_shard of each layer, then of the model.
class FullyShard final : public HfUnits {
 public:
  FullyShard(TorchMemory& memory, const HfStep& step) : memory_(memory), ranks_(*step.ranks), device_(step.device) {}

  bool adopt(Parameter& parameter, std::uint64_t number, std::uint64_t first, DType stored) override {
    if (number >= units_.size()) units_.resize(static_cast<std::size_t>(number) + 1);
    const std::uint64_t rows = (first + ranks_.count - 1) / ranks_.count;
    const std::uint64_t part = checked_product(rows, parameter.value.count / first);
    parameter.value.storage = std::make_shared<Storage>(
        memory_, bytes_of(checked_product(part, ranks_.count), parameter.value.dtype), Category::parameters, false);
    unit_of(number).weights.push_back({&parameter, part, stored, make(part, stored, Category::parameters)});
    return true;
  }

  void before_forward(std::uint64_t number) override {
    gather(unit_of(number));
    copy_out(unit_of(number), true);
  }
  void after_forward(std::uint64_t number) override {
    if (number == 0)
      held_.reset();  // the root keeps its weights, and frees what was gathered last
    else
      reshard(unit_of(number));
    order_.push_back(number);
  }
  void before_backward(std::uint64_t number) override {
    Unit& unit = unit_of(number);
    if (unit.in_backward) return;
    unit.in_backward = true;
    gather(unit);
    copy_out(unit, false);
    const auto at = std::ranges::find(order_, number);
    if (at != order_.end() && at != order_.begin()) gather(unit_of(*std::prev(at)));
  }
  void after_backward(std::uint64_t number) override {
    Unit& unit = unit_of(number);
    unit.done = true;
    std::vector<Tensor> gradients;
    std::uint64_t count = 0;
    DType kept{};
    for (Weight& weight : unit.weights) {
      if (!weight.parameter->gradient) continue;
      kept = weight.stored;
      gradients.push_back(std::exchange(weight.parameter->gradient, {}));
      count = checked_sum(count, checked_product(weight.part, ranks_.count));
    }
    reshard(unit);
    reduced_.reset();
    if (gradients.empty()) return;
    const DType dtype = ranks_.reduce.value_or(kept);
    reduced_ = make(count, dtype, Category::gradients);
    if (device_ == TorchDevice::cpu)  // which casts them one by one
      for (const Tensor& gradient : gradients)
        if (gradient.dtype != dtype) make(gradient.count, dtype, Category::gradients).reset();
    gradients.clear();
    memory_.stream(kReduceStream);
    Bytes mine = make(count / ranks_.count, dtype, Category::gradients);
    gloo(count, dtype, Category::gradients).reset();
    if (dtype != kept) {
      Bytes cast = make(count / ranks_.count, kept, Category::gradients);
      mine = std::move(cast);
    }
    memory_.stream(0);
    if (!unit.gradient) unit.gradient = std::move(mine);
  }
  void end_backward() override {
    for (std::uint64_t number = 0; number < units_.size(); ++number)
      if (!unit_of(number).done) after_backward(number);
    reduced_.reset();
    order_.clear();
    for (Unit& unit : units_) unit.in_backward = unit.done = false;
  }
  std::vector<Updated> updated() const override {
    std::vector<Updated> all;
    for (const Unit& unit : units_)
      for (const Weight& weight : unit.weights)
        if (weight.parameter->trained)
          all.push_back({std::min(weight.part, weight.parameter->value.count), weight.stored});
    return all;
  }
  void zero_gradients() override {
    for (Unit& unit : units_) unit.gradient.reset();
  }

 private:
  struct Weight {
    Parameter* parameter;
    std::uint64_t part;  // values of a shard, with padding
    DType stored;
    Bytes shard;
  };
  struct Unit {
    std::vector<Weight> weights;
    Bytes gathered{};  // by the collective, flat
    Bytes gradient{};  // of all shards
    bool whole = false, in_backward = false, done = false;
  };
  static constexpr std::uint32_t kGatherStream = 1, kReduceStream = 2;

  Bytes make(std::uint64_t count, DType dtype, Category category) {
    return std::make_unique<Storage>(memory_, bytes_of(count, dtype), category);
  }
  // Gloo gathers and reduces in copies of its own; NCCL in place.
  Bytes gloo(std::uint64_t count, DType dtype, Category category) {
    return device_ == TorchDevice::cpu ? make(count, dtype, category) : nullptr;
  }
  void gather(Unit& unit) {
    if (unit.whole || unit.gathered) return;
    std::uint64_t bytes = 0;
    for (const Weight& weight : unit.weights)
      bytes = checked_sum(bytes, bytes_of(weight.part, weight.parameter->value.dtype));
    memory_.stream(kGatherStream);
    const Bytes cast = ranks_.compute ? make(bytes, DType::int8, Category::parameters) : nullptr;
    unit.gathered = make(checked_product(bytes, ranks_.count), DType::int8, Category::parameters);
    const Bytes scratch = gloo(checked_product(bytes, ranks_.count), DType::int8, Category::parameters);
    memory_.stream(0);
  }
  // In the forward pass the flat copy stays until the next unit's is there, so that copies and gathering overlap.
  void copy_out(Unit& unit, bool forward) {
    if (!unit.gathered) return;
    if (forward) held_.reset();
    for (Weight& weight : unit.weights) weight.parameter->value.storage->refill();
    unit.whole = true;
    if (forward) held_ = std::move(unit.gathered);
    unit.gathered.reset();
  }
  void reshard(Unit& unit) {
    for (Weight& weight : unit.weights) weight.parameter->value.storage->empty();
    unit.whole = false;
  }

  Unit& unit_of(std::uint64_t number) { return units_[static_cast<std::size_t>(number)]; }

  TorchMemory& memory_;
  const HfRanks& ranks_;
  TorchDevice device_;
  std::vector<Unit> units_;
  std::vector<std::uint64_t> order_;  // of the forward pass
  Bytes held_{};                      // the flat copy of the unit before
  Bytes reduced_{};                   // gradients that are being reduced, flat
};

}  // namespace

std::unique_ptr<HfUnits> make_units(TorchMemory& memory, const HfStep& step, std::uint64_t width) {
  switch (step.ranks->parallel) {
    case HfParallel::ddp: return std::make_unique<DataParallel>(memory, *step.ranks);
    case HfParallel::fsdp2: return std::make_unique<FullyShard>(memory, step);
    default: return make_zero_units(memory, step, width);
  }
}

}  // namespace oomlab::fit
