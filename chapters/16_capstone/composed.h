#pragma once
// A combination of levers at work. Each chapter's mitigation does its part: micro-batches (02), FP16 with a loss scale
// (03), schedules (04), ranks (07), forms of a step (08), optimizers (13). The trainer (train/trainer.h) does the step.

#include <memory>

#include "../14_adapters/frozen_store.h"
#include "plan/lever/method.h"
#include "plan/plan.h"
#include "train/cluster.h"

namespace oomlab::capstone {

using nn::GradientLife, nn::OptimizerForm, nn::UpdateRule, nn::WeightForm;
using plan::host_gb_per_s, plan::kDesktopGbPerS, plan::kServerGbPerS, plan::usual_weights;
using plan::Layout, plan::Levers, plan::Plan, plan::Work;
using plan::lever::trains_adapters;

using Text = std::shared_ptr<const data::TextSampler>;

/// What the trainer does of a combination. Throws std::invalid_argument with refused()'s line.
inline train::Job job_of(const Work& work, const Levers& levers, Text text) {
  if (const std::string why = refused(work, levers); !why.empty()) throw std::invalid_argument(why);
  std::vector<std::uint64_t> lengths;
  if (levers.pack || !work.lengths.empty())
    for (std::uint64_t i = 0; i < work.batch; ++i) lengths.push_back(work.length(i));
  return {.spec = work.spec,
          .text = std::move(text),
          .layout = levers.ranks,
          .batch = work.batch,
          .micro_batch = micro_batch_of(work, levers),
          .seq = work.seq,
          .form = form_of(work, levers),
          .optimizer = levers.optimizer,
          .gradients = levers.gradients,
          .streamed = levers.streamed,
          .trained = trains_adapters(levers) ? nn::Trained::adapters : nn::Trained::all,
          .adapters = levers.adapters,
          .base = {.scheme = levers.method == plan::Method::qlora ? quantised::Scheme::nf4 : quantised::Scheme::as_is},
          .checkpoints_on_host = levers.checkpoints_on_host,
          .sequence_parallel = levers.sequence_parallel,
          .lengths = std::move(lengths),
          .pack = levers.pack,
          .schedule = [=](const plan::RankCoordinates& place) { return schedule_of(work, levers, place); }};
}

/// One rank's training; see make_team() for several. Throws as job_of(), and OutOfMemory: nothing stays allocated.
inline std::unique_ptr<Workload> make_training(Context& context, const Work& work, const Levers& levers, Text text) {
  static const std::atomic<bool> never{false};
  train::Job job = job_of(work, levers, std::move(text));
  return with_type_of<float, __half, __nv_bfloat16>(levers.precision, [&]<class T>(T) -> std::unique_ptr<Workload> {
    const train::Groups::Ids alone(levers.ranks);
    const nn::MakeFrozenStore<T> store = adapters::frozen_stores<T>(job.base);
    return std::make_unique<train::Trainer<T>>(context, std::move(job), alone, 0, never, store);
  });
}

/// All ranks. Throws as job_of().
inline std::unique_ptr<Team> make_team(const Work& work, const Levers& levers, Text text) {
  train::Job job = job_of(work, levers, std::move(text));
  return with_type_of<float, __half, __nv_bfloat16>(levers.precision, [&]<class T>(T) -> std::unique_ptr<Team> {
    const nn::MakeFrozenStore<T> store = adapters::frozen_stores<T>(job.base);
    return std::make_unique<train::Cluster<T>>(std::move(job), store);
  });
}

}  // namespace oomlab::capstone
