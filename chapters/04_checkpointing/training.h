#pragma once
// Training with a schedule, as a variant of the table.

#include "frontier.h"

namespace oomlab::checkpointing {

/// Draws a batch, makes a step with `schedule` of a model in this form, and counts the operations of its matrix
/// products in `counted`, which must outlive it, as must `text`.
template <class T>
class Checkpointed : public Workload {
 public:
  Checkpointed(Context& context, const nn::TransformerSpec& spec, const data::TextSampler& text, std::size_t batch,
               Precision precision, Schedule schedule, std::uint64_t& counted, const nn::StepForm& form = {})
      : context_(context),
        model_(context, spec, kTextSeed),
        text_(text),
        optimizer_(context, model_.parameters(), scaling_of(precision), {}, optimizer_form(precision)),
        batch_(batch),
        schedule_(std::move(schedule)),
        counted_(counted) {
    model_.set_form(form);
  }

  void step() override {
    const data::TokenSamples samples = text_.samples(first_, batch_);
    first_ += batch_;
    const std::uint64_t before = context_.flops();
    checkpointed_step(context_, model_, upload(context_, samples, 0, batch_), schedule_, optimizer_.scale_on_device());
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
};

}  // namespace oomlab::checkpointing
