#pragma once
// The mitigation: a layer's gradients are used as soon as they are there, and freed (Lv et al., "Full parameter
// fine-tuning for large language models with limited resources", LOMO, 2023). Then there are never gradients of all
// layers, but of one; and of the token table, where the head shares it: its gradient begins in the head and ends in the
// embedding.
//
// What it cannot be combined with: whatever has to see all gradients before the first one is used. See
// require_used_once().

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "harness/chapter.h"
#include "nn/models/scheduled_step.h"
#include "nn/models/transformer.h"
#include "nn/models/units.h"
#include "plan/step.h"

namespace oomlab::optimizer_memory {

using nn::GradientLife;

/// What a step is asked for beside its loss and gradients.
struct StepRequest {
  std::size_t micro_batches = 1;  ///< whose gradients are added up
  float clip = 0;                 ///< the largest norm of all gradients; 0: any
  float loss_scale = 1;           ///< of the loss, so that small gradients survive; a step with an overflow is left out
};
/// Throws UsageError, one line, when a gradient that is used at once cannot do what is asked.
inline void require_used_once(const StepRequest& request) {
  const std::string once = "a gradient that is used in the backward pass is gone at once: ";
  if (request.micro_batches > 1)
    throw UsageError(once + "it cannot be added to another micro-batch's; give --micro-batch the whole batch");
  if (request.clip != 0)
    throw UsageError(once + "clipping must know the norm of all gradients before it uses one; leave --clip out");
  if (request.loss_scale != 1)
    throw UsageError(once +
                     "with a loss scale an overflow in any layer must stop all updates, and the first ones are done; "
                     "leave --loss-scale out");
}

/// Where a model's gradients are: all the time, each tensor in a buffer of its own, or for a unit at a time, in a flat
/// one.
template <class T>
class UnitGradients {
 public:
  UnitGradients(Context& context, nn::Transformer<T>& model, GradientLife life)
      : context_(context), model_(model), life_(life), units_(nn::units_of(model.spec())), flat_(units_.size()) {
    if (life != GradientLife::always) return;
    const std::vector<nn::TensorShape> shapes = nn::tensors_of(model.spec());
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      always_.push_back(context.buffer<T>(shapes[i].count(), Category::gradients, shapes[i].name + " gradient"));
      model.bind(i, model.parameter(i).value, always_.back().data());
    }
  }
  const std::vector<nn::UnitShape>& units() const noexcept { return units_; }

  /// Before a unit's backward pass. A model need not have every unit.
  void make(std::string_view unit) {
    const std::size_t u = find(unit);
    if (u == units_.size() || life_ == GradientLife::always) return;
    flat_[u] = context_.buffer<T>(units_[u].count, Category::gradients, units_[u].name + " gradients");
    bind(u, flat_[u].data());
  }
  /// After it: used(number of the unit, its gradients), which owns them from now on; not where they stay.
  template <class Used>
  void hand_over(std::string_view unit, Used& used) {
    const std::size_t u = find(unit);
    if (u == units_.size() || life_ == GradientLife::always) return;
    used(u, std::move(flat_[u]));
    bind(u, nullptr);
  }

  /// What a step that failed has left.
  void clear() noexcept {
    for (std::size_t u = 0; u < flat_.size(); ++u)
      if (flat_[u]) flat_[u].reset(), bind(u, nullptr);
  }

 private:
  std::size_t find(std::string_view name) const {
    std::size_t u = 0;
    while (u < units_.size() && units_[u].name != name) ++u;
    return u;
  }
  void bind(std::size_t u, T* flat) noexcept {
    for (std::size_t t = 0; t < units_[u].tensors.size(); ++t) {
      const std::size_t i = units_[u].tensors[t];
      model_.bind(i, model_.parameter(i).value, flat ? flat + units_[u].offsets[t] : nullptr);
    }
  }

  Context& context_;
  nn::Transformer<T>& model_;
  GradientLife life_;
  std::vector<nn::UnitShape> units_;
  std::vector<DeviceBuffer<T>> flat_;    // of units at work
  std::vector<DeviceBuffer<T>> always_;  // of tensors
};

/// A unit's gradients come into being before its backward pass, and are handed over right after it.
template <class T, class Used>
struct UsedAtOnce {
  UnitGradients<T>& gradients;
  Used& used;
  void begin(const std::string& unit) { gradients.make(unit); }
  void end(const std::string& unit) { gradients.hand_over(unit, used); }
};

/// Forward and backward as chapter 04's checkpointed_step(), to the same bits, with this schedule. As soon as a unit's
/// gradients are there, used(unit, gradients) gets them: to update the unit's weights, which nothing reads any more.
template <class T, class Used>
void step_in_backward(Context& context, nn::Transformer<T>& model, nn::TokenBatch batch, const nn::Schedule& schedule,
                      UnitGradients<T>& gradients, Used used, nn::StepOptions options = {},
                      const float* scale_on_device = nullptr) {
  struct Clear {
    UnitGradients<T>& gradients;
    ~Clear() { gradients.clear(); }
  } clear{gradients};
  UsedAtOnce<T, Used> units{gradients, used};
  nn::ScheduledPass<T> pass(context, model, batch, schedule);

  const Phase phase(context.ledger(), "backward");
  const auto begin_head = [&] {
    if (model.spec().tied) units.begin("token");  // its gradient ends with the embedding's
    units.begin("head");
  };
  DeviceBuffer<T> residual;
  if (model.form().loss == nn::LossForm::chunked) {  // gradients come with the first chunk of logits
    begin_head();
    residual = model.head(context, batch, pass.output(), options, scale_on_device);
  } else {
    auto head = model.head_forward(context, batch, pass.output());
    model.cross_entropy(context, batch, head.logits.data(), options, scale_on_device);
    begin_head();
    residual = model.head_backward(context, std::move(head), options.accumulate);
  }
  units.end("head");
  pass.backward(context, model, batch, std::move(residual), options.accumulate, units);
}

}  // namespace oomlab::optimizer_memory
