#pragma once
// The work of this chapter: rounds of eight training steps of a transformer, all of one length or each of another; and
// free memory in pieces.

#include <functional>

#include "train/text_training.h"

namespace oomlab::caching_allocator {

using namespace train;

inline constexpr std::size_t kRound = 8;

/// Tokens a sequence of step k of a round: varying lengths are seq · 1/8 … 8/8, shuffled.
inline std::size_t length_of(std::size_t k, std::size_t seq, bool varying) {
  constexpr std::size_t kOrder[kRound] = {3, 8, 1, 6, 2, 7, 5, 4};
  return varying ? std::max<std::size_t>(1, seq * kOrder[k % kRound] / kRound) : seq;
}

/// Called before and after each training step: an allocator that plans steps, or gives its cache back after each.
struct StepHooks {
  std::function<void()> begin = [] {}, end = [] {};
};

class Rounds final : public Workload {
 public:
  Rounds(Context& context, const nn::TransformerSpec& spec, const std::vector<data::TextSampler>& text,
         std::size_t batch, StepHooks hooks = {})
      : context_(context),
        text_(text),
        model_(context, spec, kTextSeed),
        optimizer_(context, model_.parameters()),
        batch_(batch),
        hooks_(std::move(hooks)) {}

  void step() override {
    for (std::size_t k = 0; k < kRound; ++k, first_ += batch_) {
      hooks_.begin();
      model_.forward_backward(context_, upload(context_, text_[k].samples(first_, batch_), 0, batch_));
      optimizer_.step(context_);
      hooks_.end();
    }
  }
  std::size_t samples_per_step() const override { return kRound * batch_; }
  double figure() override { return model_.loss(context_); }
  std::uint64_t fingerprint() override { return model_.fingerprint(context_); }

  static ByCategory predicted(const nn::TransformerSpec& spec, std::size_t seq, std::size_t batch) {
    return nn::simulate_step(spec, {.sequences = batch, .seq = seq}, resident_for_training(spec, sizeof(float), 2))
        .at_peak;
  }

 private:
  Context& context_;
  const std::vector<data::TextSampler>& text_;  // one for each step of a round
  nn::Transformer<float> model_;
  nn::Optimizer<float> optimizer_;
  std::size_t batch_, first_ = 0;
  StepHooks hooks_;
};

/// Free memory in pieces: tensors of 3 MiB fill three quarters of a budget, every other one is freed, and one block of
/// `wanted_bytes` is asked for. All is freed at the end of a step.
class InPieces final : public Workload {
 public:
  InPieces(Context& context, std::size_t budget, std::size_t wanted_bytes)
      : context_(context), count_(count(budget)), wanted_bytes_(wanted_bytes) {}

  void step() override {
    const Phase phase(context_.ledger(), "in pieces");
    std::vector<DeviceBuffer<std::byte>> tensors;
    for (std::size_t i = 0; i < count_; ++i) tensors.push_back(tensor(kTensorBytes, "piece"));
    for (std::size_t i = 0; i < count_; i += 2) tensors[i].reset();
    (void)tensor(wanted_bytes_, "one block");
  }
  std::size_t samples_per_step() const override { return 1; }
  double figure() override { return context_.synchronize(), 0; }
  std::uint64_t fingerprint() override { return 0; }

  static ByCategory predicted(std::size_t budget, std::size_t wanted_bytes) {
    ByCategory bytes;
    bytes[Category::activations] = std::max(
        count(budget) * kTensorBytes, checked_sum(count(budget) / 2 * kTensorBytes, round_to_granule(wanted_bytes)));
    return bytes;
  }

 private:
  static constexpr std::size_t kTensorBytes = std::size_t(3) << 20;
  static std::size_t count(std::size_t budget) { return budget / 4 * 3 / kTensorBytes; }
  DeviceBuffer<std::byte> tensor(std::size_t bytes, const char* tag) {
    return context_.buffer<std::byte>(bytes, Category::activations, tag);
  }
  Context& context_;
  std::size_t count_, wanted_bytes_;
};

}  // namespace oomlab::caching_allocator
