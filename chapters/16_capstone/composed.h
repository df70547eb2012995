#pragma once
// A combination of levers at work. Each chapter's mitigation does its part: micro-batches (02), FP16 with a loss scale
// (03), schedules (04), ranks (07), forms of a step (08), optimizers (13). The loop over layers is
// nn/models/scheduled_step.h's for one rank, and chapter 07's for several.

#include <memory>

#include "../04_checkpointing/checkpointing.h"
#include "../07_multi_gpu/trainer.h"
#include "../13_optimizer_memory/training.h"
#include "memory/repetition.h"
#include "nn/optimizer/mixed_precision.h"
#include "plan/plan.h"

namespace oomlab::capstone {

using nn::GradientLife, nn::OptimizerForm, nn::UpdateRule, nn::WeightForm;
using plan::host_gb_per_s, plan::kDesktopGbPerS, plan::kServerGbPerS, plan::usual_weights;
using plan::Layout, plan::Levers, plan::Plan, plan::Work;

using Text = std::shared_ptr<const data::TextSampler>;

/// FP16: AdamW with FP32 master weights and a loss scale, which is decided on the device; micro-batches and a schedule.
class ScaledTraining final : public Workload {
 public:
  ScaledTraining(Context& context, const Work& work, const Levers& levers, Text text)
      : context_(context),
        text_(std::move(text)),
        model_(context, work.spec, train::kTextSeed),
        optimizer_(context, model_.parameters(), train::scaling_of(train::Precision::fp16)),
        schedule_(schedule_of(work, levers)),
        batch_(work.batch),
        micro_batch_(micro_batch_of(work, levers)) {
    model_.set_form(form_of(work, levers));
  }

  void step() override {
    const data::TokenSamples samples = text_->samples(first_, batch_);
    first_ += batch_;
    for (Repetition rounds(context_, batch_ / micro_batch_); rounds.next();) {
      const std::size_t at = rounds.number() * micro_batch_;
      checkpointing::checkpointed_step(context_, model_, train::upload(context_, samples, at, micro_batch_), schedule_,
                                       optimizer_.scale_on_device(), {at > 0, samples.targets()});
    }
    optimizer_.step(context_);
  }
  std::size_t samples_per_step() const override { return batch_; }
  double figure() override { return model_.loss(context_); }
  std::uint64_t fingerprint() override { return model_.fingerprint(context_); }

 private:
  Context& context_;
  Text text_;
  nn::Transformer<__half> model_;
  nn::ScaledOptimizer<__half> optimizer_;
  nn::Schedule schedule_;
  std::size_t batch_, micro_batch_, first_ = 0;
};

/// One rank's training; see make_team() for several. Throws std::invalid_argument with refused()'s line, and
/// OutOfMemory: nothing stays allocated.
inline std::unique_ptr<Workload> make_training(Context& context, const Work& work, const Levers& levers, Text text) {
  if (const std::string why = refused(work, levers); !why.empty()) throw std::invalid_argument(why);
  if (levers.precision == DType::fp16) return std::make_unique<ScaledTraining>(context, work, levers, std::move(text));
  optimizer_memory::Task task{.spec = work.spec, .text = std::move(text), .batch = work.batch, .seq = work.seq};
  task.request.micro_batches = micro_batches_of(work, levers);
  task.form = form_of(work, levers);
  task.schedule = schedule_of(work, levers);
  const optimizer_memory::Recipe recipe{"", levers.precision, levers.optimizer, levers.gradients};
  return optimizer_memory::with_type_of(recipe, [&]<class T>(T) -> std::unique_ptr<Workload> {
    return std::make_unique<optimizer_memory::Training<T>>(context, std::move(task), recipe);
  });
}

/// Chapter 07's ranks. Throws as make_training().
inline std::unique_ptr<Team> make_team(const Work& work, const Levers& levers, Text text) {
  if (const std::string why = refused(work, levers); !why.empty()) throw std::invalid_argument(why);
  multi_gpu::Job job{work.spec, std::move(text),      levers.ranks, work.batch, micro_batch_of(work, levers),
                     work.seq,  form_of(work, levers)};
  return with_type_of<float, __nv_bfloat16>(levers.precision, [&]<class T>(T) -> std::unique_ptr<Team> {
    return std::make_unique<multi_gpu::Cluster<T>>(std::move(job));
  });
}

}  // namespace oomlab::capstone
