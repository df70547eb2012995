// A transformer's head: norm, logits, loss, and the way back; in one piece, or in chunks of rows.

#include <algorithm>
#include <stdexcept>

#include "nn/models/transformer.h"
#include "nn/ops/activation.h"
#include "nn/ops/instances.h"
#include "nn/ops/loss.h"
#include "plan/model/transformer_tensors.h"

namespace oomlab::nn {

namespace {

// What each target's loss counts for.
float mean_factor(const TokenBatch& batch, const StepOptions& options) {
  return 1.0f / static_cast<float>(options.total_batch ? options.total_batch : batch.targets);
}

// Rows of a chunk of LossForm::chunked.
std::size_t loss_chunk_rows(const TransformerSpec& spec, std::size_t rows) {
  const std::size_t as_residual = checked_product(rows, spec.width) / spec.vocabulary;
  return std::max<std::size_t>(1, std::min(as_residual, (rows + 3) / 4));
}

}  // namespace

template <class T>
Norm<T> Transformer<T>::head_norm() const {
  return norm(first_of_head() + (spec_.bert() ? kHeadNorm : 0));
}
// bert: C to C, before the logits.
template <class T>
Linear<DenseWeights<T>> Transformer<T>::dense() const {
  const std::size_t weight = first_of_head() + kDense, c = spec_.width;
  return {{value(weight), c, c}, value(weight + 1), true, gradient(weight), gradient(weight + 1)};
}
// From the head's norm to the logits. A tied matrix is the token embedding, which gets another gradient in
// embed_backward().
template <class T>
Linear<DenseWeights<T>> Transformer<T>::to_vocabulary() const {
  const std::size_t weight = spec_.tied ? kToken : first_of_head() + own_head(spec_), bias = first_of_head() + kDecoderBias;
  const bool biased = spec_.bert();
  Linear<DenseWeights<T>> last{.weights = {value(weight), spec_.width, spec_.vocabulary},
                               .bias = biased ? value(bias) : nullptr};
  last.trained = trained_ != Trained::adapters;
  if (!last.trained) return last;
  last.d_weights = gradient(weight);
  last.d_bias = biased ? gradient(bias) : nullptr;
  return last;
}

// Of `x` nothing is kept here.
template <class T>
typename Transformer<T>::HeadActivations Transformer<T>::head_before_logits(Context& context, const TokenBatch& batch,
                                                                            const T* x) {
  const std::size_t rows = batch.rows(), width = spec_.width, count = checked_product(rows, width);
  HeadActivations kept;
  if (spec_.bert()) {
    kept.dense = activation(context, count, "head before GELU");
    kept.activated = activation(context, count, "head GELU");
    dense().forward(context, {x, width}, kept.dense.data(), rows);
    bias_activation_keep(context, kept.dense.data(), nullptr, kept.activated.data(), rows, width, Activation::gelu);
    x = kept.activated.data();
  }
  kept.normed = activation(context, count, "head norm");
  const Norm<T> norm = head_norm();
  kept.stats = norm.statistics(context, rows);
  norm.forward(context, x, kept.normed.data(), kept.stats, rows);
  return kept;
}

template <class T>
typename Transformer<T>::HeadActivations Transformer<T>::run_head(Context& context, const TokenBatch& batch,
                                                                  const T* x) {
  HeadActivations kept = head_before_logits(context, batch, x);
  kept.logits = activation(context, checked_product(batch.rows(), spec_.vocabulary), "logits");
  to_vocabulary().forward(context, {kept.normed.data(), spec_.width}, kept.logits.data(), batch.rows());
  return kept;
}

template <class T>
typename Transformer<T>::HeadActivations Transformer<T>::head_forward(Context& context, const TokenBatch& batch,
                                                                      DeviceBuffer<T> x) {
  HeadActivations kept = run_head(context, batch, x.data());
  if (!to_vocabulary().needs_input()) kept.normed.reset();
  if (trained_ != Trained::head) kept.x = std::move(x);
  return kept;
}

template <class T>
void Transformer<T>::cross_entropy(Context& context, const TokenBatch& batch, T* logits, StepOptions options,
                                   const float* scale_on_device) {
  if (!loss_) throw std::logic_error("this model was made without gradients");
  const std::size_t rows = batch.rows();
  const float mean_of = mean_factor(batch, options);
  DeviceBuffer<float> row_loss = context.buffer<float>(rows, Category::workspace, "row losses");
  cross_entropy_with_gradient(context, logits, batch.labels.data(), row_loss.data(), rows, spec_.vocabulary, mean_of,
                              scale_on_device);
  scaled_sum(context, row_loss.data(), rows, mean_of, loss_.data(), options.accumulate);
}

template <class T>
DeviceBuffer<T> Transformer<T>::head_backward(Context& context, HeadActivations kept, bool accumulate) {
  const std::size_t rows = kept.logits.size() / spec_.vocabulary;
  const auto last = to_vocabulary();
  last.backward_weights(context, kept.logits.data(), kept.normed.data(), rows, accumulate);
  kept.normed.reset();
  if (trained_ == Trained::head) return {};
  DeviceBuffer<T> d = activation(context, kept.x.size(), "residual gradient");
  last.backward_input(context, kept.logits.data(), d.data(), rows);
  kept.logits.reset();
  return before_logits_backward(context, std::move(kept), std::move(d), accumulate);
}

// The loss of some rows after the other: their logits, the loss, and both gradients, so that no more than one chunk of
// logits lives. The mean's divisor is known before the first one. The gradient with respect to the norm's output takes
// the place of that output, which nothing reads any more.
template <class T>
DeviceBuffer<T> Transformer<T>::chunked_head(Context& context, const TokenBatch& batch, DeviceBuffer<T> x,
                                             StepOptions options, const float* scale_on_device) {
  if (!loss_) throw std::logic_error("this model was made without gradients");
  const std::size_t rows = batch.rows(), width = spec_.width, chunk = loss_chunk_rows(spec_, rows);
  const float mean_of = mean_factor(batch, options);
  const auto last = to_vocabulary();
  HeadActivations kept;
  {
    const Phase phase(context.ledger(), "forward");
    kept = head_before_logits(context, batch, x.data());
    if (trained_ != Trained::head) kept.x = std::move(x);
    DeviceBuffer<T> logits = activation(context, checked_product(chunk, spec_.vocabulary), "logits of a chunk");
    DeviceBuffer<float> row_loss = context.buffer<float>(rows, Category::workspace, "row losses");
    for (std::size_t first = 0; first < rows; first += chunk) {
      const std::size_t count = std::min(chunk, rows - first);
      T* const normed = kept.normed.data() + first * width;
      last.forward(context, {normed, width}, logits.data(), count);
      cross_entropy_with_gradient(context, logits.data(), batch.labels.data() + first, row_loss.data() + first, count,
                                  spec_.vocabulary, mean_of, scale_on_device);
      last.backward_weights(context, logits.data(), normed, count, options.accumulate || first > 0);
      if (trained_ != Trained::head) last.backward_input(context, logits.data(), normed, count);
    }
    scaled_sum(context, row_loss.data(), rows, mean_of, loss_.data(), options.accumulate);
  }
  if (trained_ == Trained::head) return {};
  const Phase phase(context.ledger(), "backward");
  DeviceBuffer<T> d = std::move(kept.normed);
  return before_logits_backward(context, std::move(kept), std::move(d), options.accumulate);
}

// From d, the gradient of the head's norm, to that of the last layer's output.
template <class T>
DeviceBuffer<T> Transformer<T>::before_logits_backward(Context& context, HeadActivations kept, DeviceBuffer<T> d,
                                                       bool accumulate) {
  const std::size_t rows = kept.x.size() / spec_.width;
  const T* before_norm = spec_.bert() ? kept.activated.data() : kept.x.data();
  head_norm().backward(context, d.data(), before_norm, kept.stats, d.data(), 0, rows, false, accumulate);
  if (!spec_.bert()) return d;
  kept.activated.reset();
  activation_backward(context, d.data(), kept.dense.data(), d.size(), Activation::gelu);
  kept.dense.reset();
  dense().backward_weights(context, d.data(), kept.x.data(), rows, accumulate);
  kept.x.reset();
  DeviceBuffer<T> below = activation(context, d.size(), "residual gradient");
  dense().backward_input(context, d.data(), below.data(), rows);
  return below;
}

template <class T>
DeviceBuffer<T> Transformer<T>::head(Context& context, const TokenBatch& batch, DeviceBuffer<T> x, StepOptions options,
                                     const float* scale_on_device) {
  if (form_.loss == LossForm::chunked) return chunked_head(context, batch, std::move(x), options, scale_on_device);
  HeadActivations kept;
  {
    const Phase phase(context.ledger(), "forward");
    kept = head_forward(context, batch, std::move(x));
    cross_entropy(context, batch, kept.logits.data(), options, scale_on_device);
  }
  const Phase phase(context.ledger(), "backward");
  return head_backward(context, std::move(kept), options.accumulate);
}

#define OOMLAB_HEAD(T)                                                                                                 \
  template Transformer<T>::HeadActivations Transformer<T>::run_head(Context&, const TokenBatch&, const T*);            \
  template Transformer<T>::HeadActivations Transformer<T>::head_forward(Context&, const TokenBatch&, DeviceBuffer<T>); \
  template void Transformer<T>::cross_entropy(Context&, const TokenBatch&, T*, StepOptions, const float*);             \
  template DeviceBuffer<T> Transformer<T>::head_backward(Context&, HeadActivations, bool);                             \
  template DeviceBuffer<T> Transformer<T>::head(Context&, const TokenBatch&, DeviceBuffer<T>, StepOptions,             \
                                                const float*);
OOMLAB_FOR_EACH_TYPE(OOMLAB_HEAD)

}  // namespace oomlab::nn
