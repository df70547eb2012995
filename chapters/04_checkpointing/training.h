#pragma once
// Training with a schedule, as a variant of the table.

#include "frontier.h"

namespace oomlab::checkpointing {

/// Draws a batch, makes a step of a model as `step` says, and counts the operations of its matrix products in `counted`,
/// which must outlive it, as must `text`. Of the step sequences, form, schedule and checkpoints_on_host count, and with
/// these also seq.
template <class T>
class Checkpointed : public Workload {
 public:
  Checkpointed(Context& context, const nn::TransformerSpec& spec, const data::TextSampler& text, Precision precision,
               const nn::StepLevers& step, std::uint64_t& counted)
      : context_(context),
        model_(context, spec, kTextSeed),
        text_(text),
        optimizer_(context, model_.parameters(), scaling_of(precision), {}, optimizer_form(precision)),
        batch_(step.sequences),
        schedule_(step.schedule),
        counted_(counted) {
    model_.set_form(step.form);
    if (step.checkpoints_on_host) on_host_.emplace(context, schedule_, 1, batch_ * step.seq * spec.width);
  }

  void step() override {
    const data::TokenSamples samples = text_.samples(first_, batch_);
    first_ += batch_;
    const std::uint64_t before = context_.flops();
    checkpointed_step(context_, model_, upload(context_, samples, 0, batch_), schedule_, optimizer_.scale_on_device(),
                      {}, on_host_ ? &*on_host_ : nullptr);
    optimizer_.step(context_);
    counted_ = context_.flops() - before;
  }
  std::size_t samples_per_step() const override { return batch_; }
  double figure() override { return model_.loss(context_); }
  std::uint64_t fingerprint() override { return model_.fingerprint(context_); }

 protected:
  Context& context_;
  nn::Transformer<T> model_;

 private:
  const data::TextSampler& text_;
  nn::ScaledOptimizer<T> optimizer_;
  std::size_t batch_, first_ = 0;
  Schedule schedule_;
  std::uint64_t& counted_;
  std::optional<nn::HostCheckpoints<T>> on_host_;
};

}  // namespace oomlab::checkpointing
