#pragma once
// Training steps whose gradient comes about in one of several ways, some of them wrong, and how far it is from the
// large batch's.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "accumulation.h"
#include "cuda/backend.h"
#include "leak.h"
#include "nn/ops/values.h"

namespace oomlab::gradient_accumulation {

enum class Way { full_batch, global_count, mean_of_means, no_zero_grad, one_backward, micro_batch_alone };

/// The variant of this way: "8 x 4, global count".
inline std::string name_of(Way way, const Config& config) {
  const std::size_t micro_batch = config.options[kMicroBatch];
  const auto pieces = [&](const char* how) {
    return fmt::format("{} x {}, {}", config.batch / micro_batch, micro_batch, how);
  };
  switch (way) {
    case Way::full_batch: return fmt::format("full batch {}", config.batch);
    case Way::global_count: return pieces("global count");
    case Way::mean_of_means: return pieces("mean of means");
    case Way::no_zero_grad: return pieces("no zero_grad");
    case Way::one_backward: return pieces("one backward");
    case Way::micro_batch_alone: return fmt::format("batch {} alone", micro_batch);
  }
  return "?";
}

/// What the memory pass has seen.
struct Observed {
  std::vector<std::vector<float>> baseline;  ///< the large batch's gradients, by step
  /// By step: how far a way's gradient is from it (relative L2), and how long it is, in its lengths.
  std::map<Way, std::vector<double>> difference, length;
  /// Most bytes that were allocated after a step, in those before the first one.
  std::map<Way, double> live_after_a_step;
};

class Accumulation final : public Workload {
 public:
  Accumulation(Context& context, const nn::TransformerSpec& spec, const data::TextSampler& text, std::size_t batch,
               std::size_t micro_batch, Way way, const nn::StepForm& form, std::shared_ptr<Observed> observed)
      : context_(context),
        text_(text),
        model_(context, spec, kTextSeed),
        optimizer_(context, model_.parameters()),
        batch_(batch),
        micro_batch_(way == Way::full_batch ? batch : micro_batch),
        way_(way),
        observed_(std::move(observed)) {
    model_.set_form(form);
    if (way == Way::no_zero_grad)  // they are added to from the first step on
      for (const auto& p : model_.parameters()) nn::fill(context, p.gradient, p.count, 0.0f);
    live_before_ = context.ledger().live_bytes();
    observed_->live_after_a_step[way] = 0;
  }

  void step() override {
    const data::TokenSamples samples = text_.samples(first_, batch_);
    first_ += batch_;
    if (way_ == Way::one_backward) {
      std::vector<HeldForward> held;
      for (std::size_t m = 0; m < batch_; m += micro_batch_)
        held.emplace_back(context_, model_, upload(context_, samples, m, micro_batch_));
      for (bool more = false; !held.empty(); more = true, held.pop_back())
        held.back().backward(context_, model_, samples.targets(), more);
    } else {
      if (way_ == Way::no_zero_grad) nn::fill(context_, model_.loss_buffer(), 1, 0.0f);
      accumulate_gradients(context_, model_, samples, micro_batch_,
                           way_ == Way::mean_of_means ? Normalise::mean_of_means : Normalise::global_count,
                           way_ == Way::no_zero_grad);
    }
    optimizer_.step(context_);
    double& most = observed_->live_after_a_step[way_];
    most = std::max(most, double(context_.ledger().live_bytes()) / double(live_before_));
  }
  std::size_t samples_per_step() const override { return batch_; }
  std::uint64_t fingerprint() override { return 0; }  // nothing here is meant to be bit-equal
  double figure() override {
    if (!planning()) compare_gradients();
    return model_.loss(context_);
  }

  static ByCategory predicted(const nn::TransformerSpec& spec, std::size_t seq, std::size_t batch,
                              std::size_t micro_batch, Way way, const nn::StepForm& form = {}) {
    nn::StepLevers levers{.sequences = way == Way::full_batch ? batch : micro_batch, .seq = seq, .form = form};
    if (way == Way::one_backward)  // every micro-batch waits for it
      levers.micro_batches = levers.in_flight = (batch + micro_batch - 1) / micro_batch;
    return nn::simulate_step(spec, levers, resident_for_training(spec, sizeof(float), 2)).at_peak;
  }

 private:
  void compare_gradients() {
    const std::vector<float> all = gradients_of(context_, model_);
    if (figures_++ == 0) {  // a new memory pass
      if (way_ == Way::full_batch) observed_->baseline.clear();
      observed_->difference[way_].clear();
      observed_->length[way_].clear();
    }
    const std::size_t step = observed_->difference[way_].size();
    if (way_ == Way::full_batch) observed_->baseline.push_back(all);
    if (step >= observed_->baseline.size()) return;
    double difference = 0, square = 0, baseline_square = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const double b = observed_->baseline[step][i];
      difference += (all[i] - b) * (all[i] - b), square += double(all[i]) * all[i], baseline_square += b * b;
    }
    observed_->difference[way_].push_back(std::sqrt(difference / baseline_square));
    observed_->length[way_].push_back(std::sqrt(square / baseline_square));
  }

  Context& context_;
  const data::TextSampler& text_;
  nn::Transformer<float> model_;
  nn::Optimizer<float> optimizer_;
  std::size_t batch_, micro_batch_, live_before_ = 0, first_ = 0, figures_ = 0;
  Way way_;
  std::shared_ptr<Observed> observed_;
};

}  // namespace oomlab::gradient_accumulation
