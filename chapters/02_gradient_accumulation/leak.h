#pragma once
// What really makes memory grow from step to step: a forward pass that somebody holds. In PyTorch that is a loss kept
// in a list without .item() (or losses summed up before one backward()): it holds everything that its backward pass
// would read.

#include <utility>

#include "train/text_training.h"

namespace oomlab::gradient_accumulation {

using namespace train;

/// A micro-batch and its forward pass up to the last layer, with all that its backward pass needs.
class HeldForward {
 public:
  HeldForward(Context& context, nn::Transformer<float>& model, nn::TokenBatch batch)
      : batch_(std::move(batch)), pass_(context, model, batch_) {}

  /// The backward pass; the gradients are the mean over `targets`, added to what is there if `accumulate`.
  void backward(Context& context, nn::Transformer<float>& model, std::size_t targets, bool accumulate) {
    pass_.backward(context, model, batch_, {.accumulate = accumulate, .total_batch = targets}, nullptr);
  }

  /// Bytes that one of these holds: (layers + 1) residuals, what each layer keeps, and the tokens; bert also its
  /// embedding's sum with mean and rstd.
  static ByCategory bytes(const nn::TransformerSpec& spec, std::size_t sequences, std::size_t seq) {
    return nn::held_bytes(spec, {.sequences = sequences, .seq = seq});
  }

 private:
  nn::TokenBatch batch_;
  nn::ForwardPass<float> pass_;
};

}  // namespace oomlab::gradient_accumulation
