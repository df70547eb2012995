#pragma once
// Training steps whose gradient comes about in one of several ways, some of them wrong, and how far it is from the
// large batch's.

#include <cmath>
#include <map>

#include "accumulation.h"
#include "cuda/backend.h"
#include "leak.h"

namespace oomlab::gradient_accumulation {

enum class Way { full_batch, global_count, mean_of_means, no_zero_grad, one_backward, micro_batch_alone };

/// Gradients of the memory pass, by step: the baseline's, and how far the others are from them (relative L2).
struct Gradients {
  std::vector<std::vector<float>> baseline;
  std::map<Way, std::vector<double>> difference, norm_ratio;
};

class Accumulation final : public Workload {
 public:
  Accumulation(Context& context, const nn::TransformerSpec& spec, const data::TextSampler& text, std::size_t batch,
               std::size_t micro_batch, Way way, std::shared_ptr<Gradients> gradients)
      : context_(context),
        text_(text),
        model_(context, spec, kTextSeed),
        optimizer_(context, model_.parameters()),
        batch_(batch),
        micro_batch_(way == Way::full_batch ? batch : micro_batch),
        way_(way),
        gradients_(std::move(gradients)) {
    if (way == Way::no_zero_grad)  // they are added to from the first step on
      for (const auto& p : model_.parameters()) nn::fill(context, p.gradient, p.count, 0.0f);
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
  }
  std::size_t samples_per_step() const override { return batch_; }
  std::uint64_t fingerprint() override { return 0; }  // nothing here is meant to be bit-equal
  double figure() override {
    if (!planning()) compare_gradients();
    return model_.loss(context_);
  }

  static ByCategory predicted(const nn::TransformerSpec& spec, std::size_t seq, std::size_t batch,
                              std::size_t micro_batch, Way way) {
    ByCategory resident = resident_for_training(spec, sizeof(float), 2);
    if (way == Way::one_backward) {
      const ByCategory held = HeldForward::bytes(spec, micro_batch, seq);
      for (std::size_t c = 0; c < kCategoryCount; ++c)
        resident.bytes[c] =
            checked_sum(resident.bytes[c], checked_product((batch + micro_batch - 1) / micro_batch - 1, held.bytes[c]));
    }
    return nn::predict_step(spec, sizeof(float), way == Way::full_batch ? batch : micro_batch, seq, {}, resident)
        .at_peak;
  }

 private:
  void compare_gradients() {
    std::vector<float> all;
    for (const auto& p : model_.parameters()) {
      all.resize(all.size() + p.count);
      CUDA_CHECK(cudaMemcpyAsync(all.data() + all.size() - p.count, p.gradient, p.count * sizeof(float),
                                 cudaMemcpyDeviceToHost, context_.stream()));
      context_.synchronize();
    }
    if (figures_++ == 0) {  // a new memory pass
      if (way_ == Way::full_batch) gradients_->baseline.clear();
      gradients_->difference[way_].clear();
      gradients_->norm_ratio[way_].clear();
    }
    const std::size_t step = gradients_->difference[way_].size();
    if (way_ == Way::full_batch) gradients_->baseline.push_back(all);
    if (step >= gradients_->baseline.size()) return;
    double difference = 0, square = 0, baseline_square = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const double b = gradients_->baseline[step][i];
      difference += (all[i] - b) * (all[i] - b), square += double(all[i]) * all[i], baseline_square += b * b;
    }
    gradients_->difference[way_].push_back(std::sqrt(difference / baseline_square));
    gradients_->norm_ratio[way_].push_back(std::sqrt(square / baseline_square));
  }

  Context& context_;
  const data::TextSampler& text_;
  nn::Transformer<float> model_;
  nn::AdamW optimizer_;
  std::size_t batch_, micro_batch_, first_ = 0, figures_ = 0;
  Way way_;
  std::shared_ptr<Gradients> gradients_;
};

}  // namespace oomlab::gradient_accumulation
