#pragma once
// Training steps with each of the optimizers, and their bytes in closed form. Activations are as few as chapters 04 and
// 08 make them: nothing is kept that is cheap to compute again, and every layer is recomputed from its input. What is
// left is the model's state.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "in_backward.h"
#include "memory/repetition.h"
#include "nn/ops/values.h"
#include "nn/optimizer/gradient_factor.h"
#include "nn/optimizer/optimizer.h"
#include "processor.h"
#include "train/precision.h"

namespace oomlab::optimizer_memory {

using namespace train;
using nn::OptimizerForm, nn::UpdateRule, nn::WeightForm;
using Bf16 = __nv_bfloat16;

/// A row of the table.
struct Recipe {
  std::string name;
  DType dtype = DType::fp32;  ///< of weights, gradients and activations: FP32 or BF16
  OptimizerForm form{};
  GradientLife gradients = GradientLife::always;
  bool on_processor() const { return gradients == GradientLife::offloaded; }
};
/// make(T{}) with the type of the model's elements.
template <class Make>
auto with_type_of(const Recipe& recipe, Make make) {
  return oomlab::with_type_of<float, Bf16>(recipe.dtype, make);
}

/// What is trained, and how a step is arranged.
struct Task {
  nn::TransformerSpec spec;
  std::shared_ptr<const data::TextSampler> text;
  std::size_t batch = 1, seq = 1;
  StepRequest request{};
  std::uint64_t seed = kTextSeed;
  nn::StepForm form = nn::StepForm::min_memory();
  nn::Schedule schedule = nn::Schedule(spec.layers, nn::Segment{1, true, {}});  ///< every layer recomputed
  bool scales() const { return request.clip != 0 || request.loss_scale != 1; }
};

/// Bytes over the bus in a step, and pinned host memory.
struct Elsewhere {
  std::size_t moved = 0, pinned = 0;
};

inline ByCategory resident_bytes(const Task& task, const Recipe& recipe) {
  ByCategory bytes = recipe.on_processor() ? ByCategory{} : nn::optimizer_bytes(task.spec, recipe.form);
  bytes[Category::parameters] = nn::tensor_bytes(task.spec, element_bytes(recipe.dtype));
  if (recipe.gradients == GradientLife::always) bytes[Category::gradients] = bytes[Category::parameters];
  bytes[Category::workspace] += round_to_granule(sizeof(float));  // the loss
  if (task.scales())
    bytes[Category::workspace] += round_to_granule(2 * sizeof(float)) +
                                  round_to_granule(nn::factor_parts(nn::tensors_of(task.spec)) * sizeof(float));
  return bytes;
}
/// Peak allocated bytes by category, in closed form. Those of a micro-batch, where a batch has several.
inline ByCategory predicted(const Task& task, const Recipe& recipe) {
  const nn::StepLevers levers{.element_bytes = element_bytes(recipe.dtype),
                              .sequences = task.batch / task.request.micro_batches,
                              .seq = task.seq,
                              .form = task.form,
                              .schedule = task.schedule,
                              .micro_batches = task.request.micro_batches,
                              .gradients = recipe.gradients};
  return nn::simulate_step(task.spec, levers, resident_bytes(task, recipe)).at_peak;
}
/// Operations of a step's matrix products, as train::flops_of_step().
inline std::optional<double> flops_of(const Task& task) {
  const std::size_t several = task.request.micro_batches;
  const auto flops = flops_of_step(task.spec, task.batch / several, task.seq, task.schedule, task.form);
  return flops ? std::optional(double(several) * *flops) : std::nullopt;
}
inline Elsewhere elsewhere(const Task& task, const Recipe& recipe) {
  if (!recipe.on_processor()) return {};
  return with_type_of(recipe, [&]<class T>(T) {
    const auto bytes = ProcessorAdamW<T>::predicted(task.spec);
    return Elsewhere{bytes.moved, bytes.pinned};
  });
}
/// State of the optimizer on the device and gradients at their most, per parameter: exact, without rounding to the
/// granule.
inline double state_per_parameter(const nn::TransformerSpec& spec, const Recipe& recipe) {
  if (recipe.on_processor()) return 0;
  double bytes = 0;
  for (const nn::TensorShape& shape : nn::tensors_of(spec)) bytes += double(nn::exact_state_bytes(shape, recipe.form));
  return bytes / double(spec.parameters());
}

template <class T>
class Training final : public Workload {
 public:
  /// Throws UsageError when gradients that are used at once cannot do what the task asks, OutOfMemory: nothing stays
  /// allocated. `seen`, if not null, gets what moved over the bus; it must outlive this.
  Training(Context& context, Task task, const Recipe& recipe, Elsewhere* seen = nullptr,
           nn::OptimizerSettings settings = {})
      : context_(context),
        task_(std::move(task)),
        recipe_(recipe),
        seen_(seen),
        shapes_(nn::tensors_of(task_.spec)),
        model_(context, task_.spec, nn::Slice{}, nullptr) {
    if (recipe.gradients != GradientLife::always) require_used_once(task_.request);
    model_.set_form(task_.form);
    std::vector<T*> values;
    for (std::size_t i = 0; i < shapes_.size(); ++i) {
      values_.push_back(context.buffer<T>(shapes_[i].count(), Category::parameters, shapes_[i].name));
      values.push_back(values_.back().data());
      model_.bind(i, values.back(), nullptr);
      model_.initialise(context, i, values.back(), task_.seed);
    }
    gradients_.emplace(context, model_, recipe.gradients);
    if (recipe.on_processor())
      processor_.emplace(context, task_.spec, values, settings.adamw);
    else
      optimizer_.emplace(context, shapes_, values, recipe.form, settings);
    if (!task_.scales()) return;
    scale_ = context.buffer<float>(2, Category::workspace, "loss scale and factor");
    parts_ = context.buffer<float>(nn::factor_parts(shapes_), Category::workspace, "sums of squares");
    nn::fill(context, scale_.data(), 1, task_.request.loss_scale);
  }

  void step() override {
    const data::TokenSamples samples = task_.text->samples(first_, task_.batch);
    if (processor_)
      step_on_processor(samples);
    else if (recipe_.gradients == GradientLife::optimizer_in_backward)
      step_in_backward(samples);
    else
      step_after_backward(samples);
    first_ += task_.batch;
  }
  /// The mean loss of the first `count` of these samples, batch by batch; no weight changes.
  double loss_of(const data::TokenSamples& samples, std::size_t count) {
    const auto nothing = [](std::size_t, DeviceBuffer<T>) {};
    double sum = 0;
    for (std::size_t at = 0; at + task_.batch <= count; at += task_.batch) {
      optimizer_memory::step_in_backward(context_, model_, upload(context_, samples, at, task_.batch), task_.schedule,
                                         *gradients_, nothing);
      sum += model_.loss(context_);
    }
    return sum / double(count / task_.batch);
  }

  std::size_t samples_per_step() const override { return task_.batch; }
  double figure() override { return model_.loss(context_); }
  std::uint64_t fingerprint() override { return model_.fingerprint(context_); }
  /// A hash of the optimizer's state.
  std::uint64_t state_fingerprint() {
    return processor_ ? processor_->fingerprint() : optimizer_->fingerprint(context_);
  }
  nn::Transformer<T>& model() { return model_; }
  std::uint64_t steps() const { return processor_ ? processor_->steps() : optimizer_->steps(); }

 private:
  using Update = typename nn::Optimizer<T>::Update;

  // As frameworks do it: all gradients, and then all updates.
  void step_after_backward(const data::TokenSamples& samples) {
    const auto nothing = [](std::size_t, DeviceBuffer<T>) {};
    const std::size_t of_micro_batch = task_.batch / task_.request.micro_batches;
    for (Repetition rounds(context_, task_.request.micro_batches); rounds.next();) {
      const std::size_t m = rounds.number();
      optimizer_memory::step_in_backward(
          context_, model_, upload(context_, samples, m * of_micro_batch, of_micro_batch), task_.schedule, *gradients_,
          nothing, {m > 0, samples.targets()}, scale_ ? scale_.data() : nullptr);
    }
    const Phase phase(context_.ledger(), "optimizer");
    std::vector<Update> all;
    for (std::size_t i = 0; i < shapes_.size(); ++i) all.push_back({i, model_.parameter(i).gradient});
    if (scale_) {
      const std::vector<nn::ParameterOf<T>> parameters = model_.parameters();
      nn::gradient_factor<T>(context_, parameters, task_.request.loss_scale, task_.request.clip, parts_.data(),
                             scale_.data() + 1);
    }
    optimizer_->update(context_, all, {.factor = scale_ ? scale_.data() + 1 : nullptr});
    optimizer_->end_step();
  }
  // Each unit's gradients, as soon as they are there. They are freed at the end of the lambda.
  void step_in_backward(const data::TokenSamples& samples) {
    require_whole();
    optimizer_memory::step_in_backward(context_, model_, upload(context_, samples, 0, task_.batch), task_.schedule,
                                       *gradients_, [&](std::size_t unit, DeviceBuffer<T> gradients) {
                                         const Phase phase(context_.ledger(), "optimizer");
                                         const nn::UnitShape& of = gradients_->units()[unit];
                                         std::vector<Update> updates;
                                         for (std::size_t t = 0; t < of.tensors.size(); ++t)
                                           updates.push_back({of.tensors[t], gradients.data() + of.offsets[t]});
                                         whole_ = false;
                                         optimizer_->update(context_, updates);
                                       });
    optimizer_->end_step();
    whole_ = true;
  }
  void step_on_processor(const data::TokenSamples& samples) {
    processor_->begin();
    try {
      optimizer_memory::step_in_backward(
          context_, model_, upload(context_, samples, 0, task_.batch), task_.schedule, *gradients_,
          [&](std::size_t unit, DeviceBuffer<T> gradients) { processor_->take(unit, std::move(gradients)); });
      const Phase phase(context_.ledger(), "optimizer");
      processor_->end();
    } catch (...) {
      processor_->roll_back();
      throw;
    }
    if (seen_) *seen_ = {processor_->moved_bytes(), processor_->pinned_bytes()};
  }
  // A step in the backward pass that ran out of memory half-way has updated some layers and not the others: there is
  // nothing to go back to, and going on would train another model than the one that is asked for.
  void require_whole() const {
    if (!whole_)
      throw std::runtime_error(
          "a step in the backward pass failed half-way: some layers are updated and others are not; load a saved "
          "state");
  }

  Context& context_;
  Task task_;
  Recipe recipe_;
  Elsewhere* seen_;
  std::vector<nn::TensorShape> shapes_;
  nn::Transformer<T> model_;
  std::vector<DeviceBuffer<T>> values_;
  std::optional<UnitGradients<T>> gradients_;
  std::optional<nn::Optimizer<T>> optimizer_;
  std::optional<ProcessorAdamW<T>> processor_;
  DeviceBuffer<float> scale_, parts_;  // scale_: of the loss, and the factor of all gradients
  std::size_t first_ = 0;
  bool whole_ = true;  // no step in the backward pass has failed half-way
};

}  // namespace oomlab::optimizer_memory
