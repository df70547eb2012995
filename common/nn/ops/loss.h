#pragma once
// Losses of a batch of logits [rows, classes], with their gradients, and what is read off them.
// Queued on the context's stream; nothing is allocated; a repeated run gives the same bits. T is the type that tensors
// are stored as (nn/ops/instances.h); sums are FP32.

#include <cstddef>

#include "memory/context.h"

namespace oomlab::nn {

/// Softmax cross-entropy, forward and backward in one kernel: row_loss[r] = −log
/// softmax(logits[r])[labels[r]], and logits become (softmax − one-hot) · gradient_scale in place. Labels
/// must lie in 0…classes−1.
void softmax_cross_entropy(Context& context, float* logits, const int* labels, float* row_loss, std::size_t rows,
                           std::size_t classes, float gradient_scale);

/// Cross-entropy on logits[rows, classes], forward and backward in one kernel: row_loss[r] = −log
/// softmax(logits[r])[labels[r]], and logits become (softmax − one-hot) · gradient_scale in place. A negative label is
/// a row without a target: loss and gradient are 0. `scale_on_device`, where not null, is one more factor of the
/// gradient: a loss scale that the host need not know.
template <class T>
void cross_entropy_with_gradient(Context& context, T* logits, const int* labels, float* row_loss, std::size_t rows,
                                 std::size_t classes, float gradient_scale, const float* scale_on_device = nullptr);

/// row_loss[rows] alone: logits[rows, classes] are not changed.
template <class T>
void cross_entropy(Context& context, const T* logits, const int* labels, float* row_loss, std::size_t rows,
                   std::size_t classes);
/// *total (+)= scale · the sum of x[count]; `total` is on the device.
void scaled_sum(Context& context, const float* x, std::size_t count, float scale, float* total,
                bool accumulate = false);
/// *correct (+)= the number of rows of logits[rows, classes] whose largest one (the first, when equal) is at the label;
/// `correct` is on the device.
void count_correct(Context& context, const float* logits, const int* labels, std::size_t rows, std::size_t classes,
                   unsigned long long* correct, bool accumulate = false);

}  // namespace oomlab::nn
