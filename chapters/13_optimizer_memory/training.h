#pragma once
// Training steps with each of the optimizers, and their bytes in closed form. Activations are as few as chapters 04 and
// 08 make them: nothing is kept that is cheap to compute again, and every layer is recomputed from its input. What is
// left is the model's state.
//
// The steps are the trainer's (common/train/trainer.h). Gradients that are used in the backward pass: Lv et al., "Full
// parameter fine-tuning for large language models with limited resources" (LOMO), 2023. State in host memory:
// train/host_optimizer.h.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nn/models/scheduled_step.h"
#include "nn/optimizer/gradient_factor.h"
#include "nn/optimizer/optimizer.h"
#include "plan/host_state.h"
#include "train/precision.h"
#include "train/trainer.h"

namespace oomlab::optimizer_memory {

using namespace train;
using nn::GradientLife, nn::OptimizerForm, nn::UpdateRule, nn::WeightForm;
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

/// What a step is asked for beside its loss and gradients.
struct StepRequest {
  std::size_t micro_batches = 1;  ///< whose gradients are added up
  float clip = 0;                 ///< the largest norm of all gradients; 0: any
  float loss_scale = 1;           ///< of the loss, so that small gradients survive; a step with an overflow is left out
};
/// Throws UsageError, one line, when gradients that do not stay on the device cannot do what is asked.
inline void require_possible(const StepRequest& request, GradientLife gradients) {
  if (gradients == GradientLife::always) return;
  const std::string gone = "a gradient that does not stay on the device is gone at once: ";
  if (request.micro_batches > 1 && gradients == GradientLife::optimizer_in_backward)
    throw UsageError(gone + "it cannot be added to another micro-batch's; give --micro-batch the whole batch");
  if (request.clip != 0)
    throw UsageError(gone + "clipping must know the norm of all gradients before it uses one; leave --clip out");
  if (request.loss_scale != 1)
    throw UsageError(gone +
                     "with a loss scale an overflow in any layer must stop all updates, and the first ones are done; "
                     "leave --loss-scale out");
}

/// What is trained, and how a step is arranged.
struct Task {
  nn::TransformerSpec spec;
  std::shared_ptr<const data::TextSampler> text;
  std::size_t batch = 1, seq = 1;
  StepRequest request{};
  std::uint64_t seed = kTextSeed;
  nn::Schedule schedule() const { return nn::Schedule(spec.layers, nn::Segment{1, true, {}}); }  ///< every layer again
};
/// The same, for the trainer.
inline Job job_of(const Task& task, const Recipe& recipe, nn::OptimizerSettings settings = {}) {
  return {.spec = task.spec,
          .text = task.text,
          .layout = {},
          .batch = task.batch,
          .micro_batch = task.batch / task.request.micro_batches,
          .seq = task.seq,
          .form = nn::StepForm::min_memory(),
          .optimizer = recipe.form,
          .gradients = recipe.gradients,
          .loss_scale = task.request.loss_scale,
          .clip = task.request.clip,
          .settings = settings,
          .seed = task.seed,
          .schedule = [schedule = task.schedule()](const RankCoordinates&) { return schedule; }};
}

/// Peak allocated bytes by category, in closed form.
inline ByCategory predicted(const Job& job, const Recipe& recipe) {
  ByCategory bytes = with_type_of(recipe, [&]<class T>(T) { return predict_rank<T>(job, {0, 0, 0}); });
  if (job.has_factor())
    bytes[Category::workspace] += round_to_granule(2 * sizeof(float)) +
                                  round_to_granule(nn::factor_parts(nn::tensors_of(job.spec)) * sizeof(float));
  return bytes;
}
inline ByCategory predicted(const Task& task, const Recipe& recipe) { return predicted(job_of(task, recipe), recipe); }
/// Operations of a step's matrix products, as train::flops_of_step().
inline std::optional<double> flops_of(const Task& task, const Recipe& recipe) {
  return flops_a_step(job_of(task, recipe), {0, 0, 0});
}
/// The same of the host's memory.
inline HostBytes predicted_on_host(const Task& task, const Recipe& recipe) {
  const Job job = job_of(task, recipe);
  return with_type_of(recipe, [&]<class T>(T) { return predict_rank_on_host<T>(job, {0, 0, 0}); });
}
/// Bytes over the bus in a step, in closed form: gradients come down in each micro-batch and weights go up once, both
/// with what pads them.
inline std::size_t moved_in_a_step(const Task& task, const Recipe& recipe) {
  if (!recipe.on_processor()) return 0;
  std::size_t bytes = 0;
  for (const nn::UnitShape& unit : nn::units_of(task.spec))
    bytes += unit.count * element_bytes(recipe.dtype) * (task.request.micro_batches + 1);
  return bytes;
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
  /// allocated. `seen`, if not null, gets the bytes that moved over the bus in the last step; it must outlive this.
  Training(Context& context, Task task, const Recipe& recipe, std::size_t* seen = nullptr,
           nn::OptimizerSettings settings = {})
      : context_(context),
        task_((require_possible(task.request, recipe.gradients), std::move(task))),
        seen_(seen),
        trainer_(context, job_of(task_, recipe, settings), Groups::Ids(Layout{}), 0, never_) {}

  void step() override {
    const std::size_t before = trainer_.moved_bytes();
    trainer_.step();
    if (seen_) *seen_ = trainer_.moved_bytes() - before;
  }
  /// The mean loss of the first `count` of these samples, batch by batch; no weight changes.
  double loss_of(const data::TokenSamples& samples, std::size_t count) {
    nn::Transformer<T>& model = trainer_.model();
    const nn::Schedule schedule = task_.schedule();
    double sum = 0;
    for (std::size_t at = 0; at + task_.batch <= count; at += task_.batch) {
      const nn::TokenBatch batch = upload(context_, samples, at, task_.batch);
      nn::ScheduledPass<T> pass(context_, model, batch, schedule);
      auto head = model.head_forward(context_, batch, pass.output());
      model.cross_entropy(context_, batch, head.logits.data(), {}, nullptr);
      sum += model.loss(context_);
    }
    return sum / double(count / task_.batch);
  }

  std::size_t samples_per_step() const override { return task_.batch; }
  double figure() override { return trainer_.figure(); }
  std::uint64_t fingerprint() override { return trainer_.fingerprint(); }
  /// A hash of the state of an optimizer on the device.
  std::uint64_t state_fingerprint() { return trainer_.state_fingerprint(); }
  std::uint64_t steps() const { return trainer_.steps(); }

 private:
  static inline const std::atomic<bool> never_{false};  // no other rank fails: there is none
  Context& context_;
  Task task_;
  std::size_t* seen_;
  Trainer<T> trainer_;
};

}  // namespace oomlab::optimizer_memory
