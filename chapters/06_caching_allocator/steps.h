#pragma once
// The work of this chapter: rounds of eight training steps of a transformer, all of one length or each of another.

#include "planned.h"
#include "train/text_training.h"

namespace oomlab::caching_allocator {

using namespace train;

inline constexpr std::size_t kRound = 8;

/// Tokens a sequence of step k of a round: varying lengths are seq · 1/8 … 8/8, shuffled.
inline std::size_t length_of(std::size_t k, std::size_t seq, bool varying) {
  constexpr std::size_t kOrder[kRound] = {3, 8, 1, 6, 2, 7, 5, 4};
  return varying ? std::max<std::size_t>(1, seq * kOrder[k % kRound] / kRound) : seq;
}

class Rounds final : public Workload {
 public:
  /// `planned`, where not null, is told where steps begin and end.
  Rounds(Context& context, const nn::TransformerSpec& spec, const std::vector<data::TextSampler>& text,
         std::size_t batch, PlannedResource* planned)
      : context_(context),
        text_(text),
        model_(context, spec, kTextSeed),
        optimizer_(context, model_.parameters()),
        batch_(batch),
        planned_(planned) {}

  void step() override {
    for (std::size_t k = 0; k < kRound; ++k, first_ += batch_) {
      if (planned_) planned_->begin_step();
      model_.forward_backward(context_, upload(context_, text_[k].samples(first_, batch_), 0, batch_));
      optimizer_.step(context_);
      if (planned_) planned_->end_step();
    }
  }
  std::size_t samples_per_step() const override { return kRound * batch_; }
  double figure() override { return model_.loss(context_); }
  std::uint64_t fingerprint() override { return model_.fingerprint(context_); }

  static ByCategory predicted(const nn::TransformerSpec& spec, std::size_t seq, std::size_t batch) {
    return nn::predict_step(spec, sizeof(float), batch, seq, {}, resident_for_training(spec, sizeof(float), 2)).at_peak;
  }

 private:
  Context& context_;
  const std::vector<data::TextSampler>& text_;  // one for each step of a round
  nn::Transformer<float> model_;
  nn::AdamW optimizer_;
  std::size_t batch_, first_ = 0;
  PlannedResource* planned_;
};

}  // namespace oomlab::caching_allocator
