#pragma once
// Fine-tuning in full, of the head alone, or of adapters beside a base that is frozen, and what remains of it when the
// model is used: the work of this chapter's variants, and its bytes in closed form.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "frozen_base.h"
#include "harness/variant.h"
#include "nn/models/adapters.h"
#include "nn/models/scheduled_step.h"
#include "nn/optimizer/mixed_precision.h"
#include "plan/step.h"
#include "train/precision.h"

namespace oomlab::adapters {

using namespace train;
using nn::AdapterForm, nn::FineTuning, nn::Trained;

inline constexpr std::uint64_t kAdapterSeed = 14;

/// A row of the table.
struct Recipe {
  enum class Use { train, merged, several };  ///< several adapters on one base
  std::string name;
  FineTuning tuning{};
  bool checkpoints = false;  ///< every layer is recomputed from its input
  Use use = Use::train;
};
/// Adapters that one base serves, where there are several.
inline constexpr std::size_t kServed = 3;

/// What is trained, and how a step goes about it.
struct Task {
  nn::TransformerSpec spec;
  std::shared_ptr<const Source> source;
  std::shared_ptr<const data::TextSampler> text;
  std::size_t batch = 1, seq = 1;
  nn::StepForm form{};
  float lr = 1e-3f;
};

/// No scores, and no logits but those of some rows (chapter 08).
inline nn::StepForm few_activations(const nn::TransformerSpec& spec) {
  const bool fused = spec.depth() <= nn::kFusedDepth;
  return {fused ? nn::AttentionForm::fused : nn::AttentionForm::tiled, nn::LossForm::chunked, {}, false};
}

/// A head that is trained alone is a matrix of its own.
inline nn::TransformerSpec spec_of(const Task& task, const Recipe& recipe) {
  nn::TransformerSpec spec = task.spec;
  if (recipe.tuning.trained == Trained::head) spec.tied = false;
  return spec;
}
inline nn::Schedule schedule_of(const nn::TransformerSpec& spec, const Recipe& recipe, const nn::StepForm& form) {
  if (recipe.checkpoints) return nn::Schedule(spec.layers, nn::Segment{1, true, {}});
  return {{spec.layers, false, form.keep}};
}
inline nn::StepLevers levers_of(const Task& task, const Recipe& recipe) {
  const nn::TransformerSpec spec = spec_of(task, recipe);
  return {.element_bytes = element_bytes(recipe.tuning.dtype),
          .sequences = task.batch,
          .seq = task.seq,
          .form = task.form,
          .schedule = schedule_of(spec, recipe, task.form)};
}

/// Peak allocated bytes by category, in closed form: of a step, or of making the base.
inline ByCategory predicted(const Task& task, const Recipe& recipe) {
  const nn::TransformerSpec spec = spec_of(task, recipe);
  const FineTuning& tuning = recipe.tuning;
  if (recipe.use == Recipe::Use::train) return nn::fine_tuning_peak(spec, tuning, levers_of(task, recipe)).at_peak;
  const PeakBytes making = nn::base_peak(spec, tuning);
  const std::uint64_t base = making.at_peak[Category::parameters];

  // Inference. Adapters that are merged are there until they are.
  ByCategory resident;
  resident[Category::parameters] = base;
  resident[Category::workspace] = checked_sum(round_to_granule(sizeof(float)), nn::decoded_part_bytes(spec, tuning));
  const std::uint64_t adapter = nn::adapter_bytes(spec, tuning, false)[Category::parameters];
  nn::StepLevers levers = levers_of(task, recipe);
  levers.schedule.clear();
  PeakBytes merging{resident};
  if (recipe.use == Recipe::Use::merged) {
    merging.at_peak[Category::parameters] = checked_sum(base, adapter);
  } else {
    levers.trained = Trained::adapters;
    levers.adapters = tuning.adapters;
    resident[Category::parameters] = checked_sum(base, checked_product(kServed, adapter));
  }
  const PeakBytes using_it = nn::simulate_forward(spec, levers, resident, /*graph=*/false);
  return later_peak(later_peak(making, merging), using_it).at_peak;
}

/// Numbers that are trained.
inline std::uint64_t trained_parameters(const Task& task, const Recipe& recipe) {
  const nn::TransformerSpec spec = spec_of(task, recipe);
  switch (recipe.tuning.trained) {
    case Trained::all: return spec.parameters();
    case Trained::adapters: return nn::adapter_parameters(spec, recipe.tuning.adapters);
    case Trained::head: break;
  }
  return checked_product(spec.vocabulary, spec.width);
}

/// Training steps.
template <class T>
class Tuning final : public Workload {
 public:
  /// Throws OutOfMemory: nothing stays allocated.
  Tuning(Context& context, Task task, Recipe recipe)
      : context_(context),
        task_(std::move(task)),
        recipe_(std::move(recipe)),
        spec_(spec_of(task_, recipe_)),
        schedule_(schedule_of(spec_, recipe_, task_.form)),
        base_(context, *task_.source, spec_, recipe_.tuning.base),
        model_(context, spec_, nn::Slice{}, nullptr) {
    model_.set_form(task_.form);
    model_.train_only(recipe_.tuning.trained);
    base_.bind(model_);
    if (recipe_.tuning.trained == Trained::adapters) {
      adapters_.emplace(context, spec_, recipe_.tuning.adapters, kAdapterSeed);
      model_.set_adapters(&*adapters_);
    }
    nn::OptimizerSettings settings;
    settings.adamw.lr = task_.lr;
    optimizer_.emplace(context, trained_tensors(), scaling_of(precision_of(recipe_.tuning.dtype)), settings,
                       recipe_.tuning.optimizer);
    if (recipe_.tuning.trained == Trained::adapters) base_before_ = base_.fingerprint(context);
  }

  void step() override {
    if (adapters_) adapters_->begin_step(steps_);
    const data::TokenSamples samples = task_.text->samples(steps_ * task_.batch, task_.batch);
    nn::TokenBatch batch = upload(context_, samples, 0, task_.batch);
    const float* const scale = optimizer_->scale_on_device();
    if (recipe_.tuning.trained == Trained::head) {
      model_.forward_backward(context_, std::move(batch), {}, scale);
    } else {
      nn::ScheduledPass<T> pass(context_, model_, batch, schedule_);
      DeviceBuffer<T> gradient = model_.head(context_, batch, pass.output(), {}, scale);
      const Phase phase(context_.ledger(), "backward");
      pass.backward(context_, model_, batch, std::move(gradient));
    }
    optimizer_->step(context_);
    ++steps_;
  }
  std::size_t samples_per_step() const override { return task_.batch; }
  double figure() override { return model_.loss(context_); }
  /// Of what is trained. Throws std::runtime_error when a weight of a base has changed that an adapter stands beside.
  std::uint64_t fingerprint() override {
    if (adapters_ && base_.fingerprint(context_) != base_before_)
      throw std::runtime_error("a weight of the frozen base has changed");
    std::uint64_t hash = nn::kFingerprintStart;
    for (const auto& tensor : trained_) hash = nn::fingerprint(context_, tensor.value, tensor.count * sizeof(T), hash);
    return hash;
  }
  /// The mean loss of samples that it is not trained on.
  double loss_of(const data::TokenSamples& samples, std::size_t count) {
    double sum = 0;
    for (std::size_t first = 0; first + task_.batch <= count; first += task_.batch) {
      const nn::TokenBatch batch = upload(context_, samples, first, task_.batch);
      DeviceBuffer<T> logits = model_.logits(context_, batch);
      model_.cross_entropy(context_, batch, logits.data(), {}, nullptr);
      sum += model_.loss(context_);
    }
    return sum / double(count / task_.batch);
  }
  nn::Transformer<T>& model() { return model_; }
  nn::AdapterSet<T>& adapters() { return *adapters_; }
  FrozenBase<T>& base() { return base_; }

 private:
  // And their gradients, which the model knows afterwards.
  const std::vector<nn::ParameterOf<T>>& trained_tensors() {
    if (adapters_) return trained_ = adapters_->parameters();
    const std::vector<nn::TensorShape> shapes = nn::tensors_of(spec_);
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      if (recipe_.tuning.trained == Trained::head && shapes[i].name != "head weight") continue;
      const std::string name = shapes[i].name + " gradient";
      gradients_.push_back(context_.buffer<T>(shapes[i].count(), Category::gradients, name));
      trained_.push_back({shapes[i].name, base_.dense(i), gradients_.back().data(), shapes[i].count()});
      model_.bind(i, base_.dense(i), gradients_.back().data());
    }
    return trained_;
  }

  Context& context_;
  Task task_;
  Recipe recipe_;
  nn::TransformerSpec spec_;
  nn::Schedule schedule_;
  FrozenBase<T> base_;
  nn::Transformer<T> model_;
  std::optional<nn::AdapterSet<T>> adapters_;
  std::vector<DeviceBuffer<T>> gradients_;
  std::vector<nn::ParameterOf<T>> trained_;
  std::optional<nn::ScaledOptimizer<T>> optimizer_;
  std::uint64_t base_before_ = 0;
  std::uint64_t steps_ = 0;
};

/// The logits of a batch, again and again, from adapters that are merged, or from several of them in turn.
template <class T>
class Using final : public Workload {
 public:
  /// Throws OutOfMemory: nothing stays allocated.
  Using(Context& context, Task task, const Recipe& recipe)
      : context_(context),
        task_(std::move(task)),
        base_(context, *task_.source, task_.spec, recipe.tuning.base),
        model_(context, task_.spec, nn::Slice{}, nullptr) {
    model_.set_form(task_.form);
    model_.train_only(Trained::adapters);
    base_.bind(model_);
    const bool merges = recipe.use == Recipe::Use::merged;
    for (std::size_t i = 0; i < (merges ? 1 : kServed); ++i) {
      sets_.emplace_back(context, task_.spec, recipe.tuning.adapters, kAdapterSeed + i, /*with_gradients=*/false);
      pretend_trained(sets_.back(), i);
    }
    if (!merges) return;
    sets_.front().merge(context, task_.spec, [&](std::size_t i) { return base_.dense(i); });
    sets_.clear();
  }

  void step() override {
    loss_ = 0;
    const std::size_t users = std::max<std::size_t>(1, sets_.size());
    for (std::size_t i = 0; i < users; ++i) loss_ += loss_with(i) / double(users);
  }
  /// The mean loss of a batch with adapter `i`, where they are not merged.
  double loss_with(std::size_t i) {
    if (!sets_.empty()) model_.set_adapters(&sets_[i]);
    const nn::TokenBatch batch = upload(context_, task_.text->samples(0, task_.batch), 0, task_.batch);
    DeviceBuffer<T> logits;
    {
      const Phase phase(context_.ledger(), "forward");
      logits = model_.logits(context_, batch);
    }
    model_.cross_entropy(context_, batch, logits.data(), {}, nullptr);
    return model_.loss(context_);
  }
  std::size_t samples_per_step() const override { return task_.batch * std::max<std::size_t>(1, sets_.size()); }
  double figure() override { return loss_; }
  std::uint64_t fingerprint() override { return base_.fingerprint(context_); }

 private:
  // B is 0 before the first step, and then an adapter does nothing.
  void pretend_trained(nn::AdapterSet<T>& set, std::size_t number) {
    std::uint64_t stream = 0;
    for (const nn::ParameterOf<T>& tensor : set.parameters()) {
      if (tensor.name.ends_with(" B"))
        nn::fill_uniform(context_, tensor.value, tensor.count, 1e-3f, kAdapterSeed + number, stream);
      ++stream;
    }
  }

  Context& context_;
  Task task_;
  FrozenBase<T> base_;
  nn::Transformer<T> model_;
  std::vector<nn::AdapterSet<T>> sets_;
  double loss_ = 0;
};

}  // namespace oomlab::adapters
