#pragma once
// The mitigation: the gradient of a large batch from k small ones.
//
//   zero the gradients;  for each micro-batch: forward, backward, add to the gradients;  one optimizer step
//
// The loss of a batch is a mean over its targets. So each micro-batch has to be divided by the number of targets of the
// whole batch. Dividing its own mean by k instead is the same only when all micro-batches have equally many.

#include "memory/repetition.h"
#include "train/text_training.h"

namespace oomlab::gradient_accumulation {

using namespace train;

enum class Normalise {
  global_count,   ///< sum of losses / targets of the whole batch: the large batch's gradient
  mean_of_means,  ///< mean over the micro-batches of their means: another gradient when counts differ
};

/// Gradients and loss of `samples`, micro_batch of them at a time. With `keep_old` they are added to what is there (a
/// forgotten zero_grad). Throws OutOfMemory: gradients are then undefined, and everything else is free again.
template <class T>
void accumulate_gradients(Context& context, nn::Transformer<T>& model, const data::TokenSamples& samples,
                          std::size_t micro_batch, Normalise normalise, bool keep_old = false) {
  const std::size_t micro_batches = samples.count / micro_batch, targets = samples.targets();
  for (Repetition rounds(context, micro_batches); rounds.next();) {
    const std::size_t m = rounds.number();
    nn::TokenBatch batch = upload(context, samples, m * micro_batch, micro_batch);
    const std::size_t divisor = normalise == Normalise::global_count ? targets : batch.targets * micro_batches;
    model.forward_backward(context, std::move(batch), {.accumulate = keep_old || m > 0, .total_batch = divisor});
  }
}

}  // namespace oomlab::gradient_accumulation
