#pragma once
// The mitigation: a training step whose model is stored in 16 bits. What it takes beside the type is in the optimizer
// (nn/optimizer/mixed_precision.h): FP32 master weights, and for FP16 a loss scale.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <map>

#include "cuda/backend.h"
#include "nn/optimizer/mixed_precision.h"
#include "train/precision.h"

namespace oomlab::mixed_precision {

using namespace train;

/// What became of the first step's gradients, by precision: shares of those that are not zero in FP32.
struct GradientShares {
  std::vector<bool> nonzero_in_fp32;
  std::map<Precision, double> flushed;  ///< zero here
  std::map<Precision, double> damaged;  ///< zero here, or below the smallest normal number: held with fewer bits
};

/// 2^-14, below which FP16 has fewer bits; FP32 and BF16 have 2^-126.
inline float smallest_normal(Precision precision) {
  return static_cast<float>(row_of(dtype_of(precision)).smallest_normal);
}

template <class T>
class PrecisionTraining final : public Workload {
 public:
  PrecisionTraining(Context& context, const nn::TransformerSpec& spec, const data::TextSampler& text, std::size_t batch,
                    Precision precision, std::shared_ptr<GradientShares> shares, const nn::StepForm& form)
      : context_(context),
        text_(text),
        model_(context, spec, kTextSeed),
        optimizer_(context, model_.parameters(), scaling_of(precision), {}, optimizer_form(precision)),
        batch_(batch),
        precision_(precision),
        shares_(std::move(shares)) {
    model_.set_form(form);
  }

  // Nothing here waits for the device, an overflow included: the next loss scale is decided there.
  void step() override {
    const data::TokenSamples samples = text_.samples(first_, batch_);
    first_ += batch_;
    model_.forward_backward(context_, upload(context_, samples, 0, batch_), {}, optimizer_.scale_on_device());
    optimizer_.step(context_);
  }
  std::size_t samples_per_step() const override { return batch_; }
  std::uint64_t fingerprint() override { return model_.fingerprint(context_); }
  double figure() override {
    if (!planning() && figures_++ == 0) look_at_gradients();
    return model_.loss(context_);
  }

 private:
  void look_at_gradients() {
    std::vector<float> gradients = gradients_of(context_, model_);
    for (float& g : gradients) g = std::fabs(g);
    if (precision_ == Precision::fp32) {
      shares_->nonzero_in_fp32.assign(gradients.size(), false);
      for (std::size_t i = 0; i < gradients.size(); ++i) shares_->nonzero_in_fp32[i] = gradients[i] != 0;
    }
    if (shares_->nonzero_in_fp32.size() != gradients.size()) return;  // the baseline was not run
    std::size_t all = 0, zero = 0, small = 0;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!shares_->nonzero_in_fp32[i]) continue;
      ++all;
      zero += gradients[i] == 0;
      small += gradients[i] < smallest_normal(precision_);
    }
    shares_->flushed[precision_] = double(zero) / double(all);
    shares_->damaged[precision_] = double(small) / double(all);
  }

  Context& context_;
  const data::TextSampler& text_;
  nn::Transformer<T> model_;
  nn::ScaledOptimizer<T> optimizer_;
  std::size_t batch_, first_ = 0, figures_ = 0;
  Precision precision_;
  std::shared_ptr<GradientShares> shares_;
};

inline std::unique_ptr<Workload> make_training(Context& context, const nn::TransformerSpec& spec,
                                               const data::TextSampler& text, std::size_t batch, Precision precision,
                                               std::shared_ptr<GradientShares> shares, const nn::StepForm& form = {}) {
  return with_element_of(precision, [&]<class T>(T) -> std::unique_ptr<Workload> {
    return std::make_unique<PrecisionTraining<T>>(context, spec, text, batch, precision, std::move(shares), form);
  });
}

}  // namespace oomlab::mixed_precision
