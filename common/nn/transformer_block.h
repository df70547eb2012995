#pragma once
// One layer of a transformer at work. What the styles of a block share is here; each style has a file of its own
// (gpt_block.cpp, bert_block.cpp). Part of the model: others include transformer.h.

#include <algorithm>
#include <functional>

#include "nn/attention.h"
#include "nn/ops.h"
#include "nn/transformer.h"
#include "nn/transformer_ops.h"

namespace oomlab::nn {

/// A layer's tensors, batch and sizes, for the time of one pass through it.
template <class T>
struct Block {
  // Where a layer's tensors are, counted from its first; a weight is followed by its bias, a gamma by its beta.
  static constexpr std::size_t kQkv = 0, kProjection = 2, kNorm1 = 4, kExpand = 6, kContract = 8, kNorm2 = 10;
  static constexpr std::size_t kTensors = 12;

  Context& context;
  AttentionShape attention;  ///< of this part
  AttentionForm form;
  bool by_rows;  ///< StepForm's
  const T* x;    ///< the layer's input [R, C]
  const ParameterOf<T>* tensors;
  std::size_t width, hidden;  ///< C; 4 C of this part
  bool first_part;            ///< the one that adds what the parts have in common
  const std::function<void(Context&, T* data, std::size_t count)>* sum;  ///< over the parts; null: there is one

  std::size_t rows() const { return attention.sequences * attention.seq; }
  std::size_t inner() const { return attention.width; }
  std::size_t count() const { return checked_product(rows(), width); }
  const T* value(std::size_t i) const { return tensors[i].value; }
  T* gradient(std::size_t i) const { return tensors[i].gradient; }
  DeviceBuffer<T> activation(std::size_t count, const char* tag) const {
    return context.buffer<T>(count, Category::activations, tag);
  }

  void sum_over_parts(DeviceBuffer<T>& data) const {
    if (sum) (*sum)(context, data.data(), data.size());
  }

  // ---- forward

  /// norm(from), to `to`, which may be null; mean and rstd are new.
  void norm(std::size_t which, const T* from, DeviceBuffer<float>& mean, DeviceBuffer<float>& rstd, T* to) const {
    mean = context.buffer<float>(rows(), Category::activations, "norm mean");
    rstd = context.buffer<float>(rows(), Category::activations, "norm rstd");
    layer_norm_forward(context, from, value(which), value(which + 1), to, mean.data(), rstd.data(), rows(), width);
  }
  void qkv(const T* from, LayerActivations<T>& kept) const {
    kept.qkv = activation(checked_product(checked_product(rows(), inner()), 3), "qkv");
    linear_bias_forward(context, from, value(kQkv), value(kQkv + 1), kept.qkv.data(), rows(), width, 3 * inner());
  }
  /// From qkv to middle = x + attention(…).
  void attend(const Keep& keep, LayerActivations<T>& kept) const {
    const auto attended = [&] { return activation(checked_product(rows(), inner()), "attended"); };
    switch (form) {
      case AttentionForm::textbook:
        kept.probabilities = attention_probabilities<T>(context, attention, kept.qkv.data());
        kept.attended = attended();
        attention_forward<T>(context, attention, kept.qkv.data(), kept.probabilities.data(), kept.attended.data());
        if (!keep.layer || !keep.probabilities) kept.probabilities.reset();
        break;
      case AttentionForm::tiled:
        kept.attended = attended();
        attention_forward_tiled<T>(context, attention, kept.qkv.data(), kept.attended.data());
        break;
      case AttentionForm::fused:
        kept.attended = attended();
        kept.lse = row_values("attention log-sum-exp");
        attention_forward_fused<T>(context, attention, kept.qkv.data(), kept.attended.data(), kept.lse.data());
        if (!keep.layer) kept.lse.reset();
        break;
    }
    if (!keep.layer) kept.qkv.reset();
    middle(kept);
    if (!keep.layer) kept.attended.reset();
  }
  /// x + attention(…), from attended.
  void middle(LayerActivations<T>& kept) const {
    kept.middle = activation(count(), "middle");
    linear_forward(context, kept.attended.data(), value(kProjection), kept.middle.data(), rows(), inner(), width);
    sum_over_parts(kept.middle);
    add_residual(context, x, kept.middle.data(), value(kProjection + 1), kept.middle.data(), rows(), width);
  }
  /// One float a row and head.
  DeviceBuffer<float> row_values(const char* tag) const {
    return context.buffer<float>(checked_product(rows(), attention.heads), Category::activations, tag);
  }
  void expand(const T* from, LayerActivations<T>& kept) const {
    kept.hidden = activation(checked_product(rows(), hidden), "before GELU");
    linear_bias_forward(context, from, value(kExpand), value(kExpand + 1), kept.hidden.data(), rows(), width, hidden);
  }
  void gelu(const Keep& keep, LayerActivations<T>& kept) const {
    if (keep.layer) {
      gelu_beside_hidden("GELU", kept);
    } else {  // nobody will ask what came before GELU
      kept.activated = std::move(kept.hidden);
      bias_activation(context, kept.activated.data(), nullptr, rows(), hidden, Activation::gelu);
    }
  }
  /// A buffer of its own for GELU's output.
  void gelu_beside_hidden(const char* tag, LayerActivations<T>& kept) const {
    kept.activated = activation(kept.hidden.size(), tag);
    bias_activation_keep(context, kept.hidden.data(), nullptr, kept.activated.data(), rows(), hidden, Activation::gelu);
  }
  /// residual + the MLP's second product.
  DeviceBuffer<T> contract(const T* residual, const char* tag, const Keep& keep, LayerActivations<T>& kept) const {
    DeviceBuffer<T> y = activation(count(), tag);
    linear_forward(context, kept.activated.data(), value(kContract), y.data(), rows(), hidden, width);
    sum_over_parts(y);
    add_residual(context, residual, y.data(), value(kContract + 1), y.data(), rows(), width);
    if (!keep.layer || !keep.gelu) kept.activated.reset();
    return y;
  }

  /// From `hidden` to residual + MLP(…), whose GELU is not kept: some rows of it at a time, if the form is by rows.
  DeviceBuffer<T> second_half(const DeviceBuffer<T>& residual, const char* tag, const Keep& keep,
                              LayerActivations<T>& kept) const {
    if (!by_rows || !keep.layer || keep.gelu) {
      gelu(keep, kept);
      return contract(residual.data(), tag, keep, kept);
    }
    DeviceBuffer<T> y = activation(count(), tag);
    contract_by_rows(kept, 0.0f, y.data());
    sum_over_parts(y);
    add_residual(context, residual.data(), y.data(), value(kContract + 1), y.data(), rows(), width);
    return y;
  }
  /// y = beta · y + GELU(hidden) · Wᵀ.
  void contract_by_rows(LayerActivations<T>& kept, float beta, T* y) const {
    DeviceBuffer<T> chunk = activation(checked_product(chunk_rows(), hidden), "GELU of some rows");
    each_chunk([&](std::size_t first, std::size_t count) {
      bias_activation_keep(context, kept.hidden.data() + first * hidden, nullptr, chunk.data(), count, hidden,
                           Activation::gelu);
      gemm(context, false, true, count, width, hidden, 1.0f, chunk.data(), value(kContract), beta, y + first * width);
    });
  }

  // ---- what was dropped, computed once more when it is needed

  void recompute_norm(DeviceBuffer<T>& output, std::size_t which, const T* before, const DeviceBuffer<float>& mean,
                      const DeviceBuffer<float>& rstd) const {
    if (output) return;
    output = activation(count(), "recomputed norm");
    layer_norm_recompute(context, before, mean.data(), rstd.data(), value(which), value(which + 1), output.data(),
                         rows(), width);
  }
  void recompute_middle(LayerActivations<T>& kept) const {
    if (!kept.middle) middle(kept);
  }
  void recompute_gelu(LayerActivations<T>& kept) const {
    if (!kept.activated) gelu_beside_hidden("recomputed GELU", kept);
  }
  /// Rows that are worked on at a time, by rows: a quarter.
  std::size_t chunk_rows() const { return (rows() + 3) / 4; }
  /// Calls body(first, count) for all rows, chunk_rows() at a time.
  template <class Body>
  void each_chunk(Body body) const {
    for (std::size_t first = 0; first < rows(); first += chunk_rows())
      body(first, std::min(chunk_rows(), rows() - first));
  }

  // ---- backward

  void weights(std::size_t which, const DeviceBuffer<T>& dy, const T* input, std::size_t in, std::size_t out,
               bool accumulate) const {
    linear_backward_weight(context, dy.data(), input, gradient(which), gradient(which + 1), rows(), in, out,
                           accumulate);
  }
  /// Consumes the norm's statistics; `into` is dy itself, or the residual that the gradient is added to.
  void norm_backward(std::size_t which, const DeviceBuffer<T>& dy, const T* before, DeviceBuffer<float>& mean,
                     DeviceBuffer<float>& rstd, DeviceBuffer<T>& into, bool accumulate) const {
    layer_norm_backward_weight(context, dy.data(), before, mean.data(), rstd.data(), gradient(which),
                               gradient(which + 1), rows(), width, accumulate);
    layer_norm_backward_input(context, dy.data(), before, mean.data(), rstd.data(), value(which), into.data(), rows(),
                              width, &into != &dy);
    mean.reset();
    rstd.reset();
  }
  /// From d, the gradient of the MLP's output, to that of `hidden`.
  DeviceBuffer<T> contract_backward(const DeviceBuffer<T>& d, LayerActivations<T>& kept, bool accumulate) const {
    if (!kept.activated && by_rows) return contract_backward_by_rows(d, kept, accumulate);
    recompute_gelu(kept);
    weights(kContract, d, kept.activated.data(), hidden, width, accumulate);
    kept.activated.reset();
    DeviceBuffer<T> d_hidden = activation(kept.hidden.size(), "MLP gradient");
    linear_backward_input(context, d.data(), value(kContract), d_hidden.data(), rows(), hidden, width);
    activation_backward(context, d_hidden.data(), kept.hidden.data(), d_hidden.size(), Activation::gelu);
    kept.hidden.reset();
    return d_hidden;
  }
  /// The same where GELU's output was not kept, by rows: some of it at a time, and the gradient takes the place of
  /// `hidden`.
  DeviceBuffer<T> contract_backward_by_rows(const DeviceBuffer<T>& d, LayerActivations<T>& kept,
                                            bool accumulate) const {
    DeviceBuffer<T> chunk = activation(checked_product(chunk_rows(), hidden), "GELU of some rows");
    each_chunk([&](std::size_t first, std::size_t count) {
      T* const before = kept.hidden.data() + first * hidden;
      const T* const dy = d.data() + first * width;
      bias_activation_keep(context, before, nullptr, chunk.data(), count, hidden, Activation::gelu);
      linear_backward_weight(context, dy, chunk.data(), gradient(kContract), gradient(kContract + 1), count, hidden,
                             width, accumulate || first > 0);
      linear_backward_input(context, dy, value(kContract), chunk.data(), count, hidden, width);
      gelu_backward_over(context, chunk.data(), before, count * hidden);
    });
    return std::move(kept.hidden);
  }
  /// From d, the gradient of `middle`, to that of qkv.
  DeviceBuffer<T> attend_backward(const DeviceBuffer<T>& d, LayerActivations<T>& kept, bool accumulate) const {
    kept.middle.reset();
    weights(kProjection, d, kept.attended.data(), inner(), width, accumulate);
    if (form != AttentionForm::fused) kept.attended.reset();
    DeviceBuffer<T> d_attended = activation(checked_product(rows(), inner()), "attended gradient");
    linear_backward_input(context, d.data(), value(kProjection), d_attended.data(), rows(), inner(), width);
    if (form == AttentionForm::tiled)
      return attention_backward_tiled<T>(context, attention, kept.qkv, std::move(d_attended));
    if (form == AttentionForm::fused) {
      DeviceBuffer<float> dots = row_values("attention row dots");
      attention_row_dots<T>(context, attention, kept.attended.data(), d_attended.data(), dots.data());
      kept.attended.reset();
      return attention_backward_fused<T>(context, attention, kept.qkv, kept.lse, dots, std::move(d_attended));
    }
    if (!kept.probabilities) kept.probabilities = attention_probabilities<T>(context, attention, kept.qkv.data());
    return attention_backward<T>(context, attention, kept.qkv, kept.probabilities, std::move(d_attended));
  }
};

// The styles. Forward: the layer's output, or without `output` only what the backward pass reads. Backward: `d` [R, C]
// is the gradient with respect to the output before, and to x afterwards; what `kept` lacks is computed again.

template <class T>
DeviceBuffer<T> gpt_forward(const Block<T>& block, const Keep& keep, LayerActivations<T>& kept, bool output);
template <class T>
void gpt_backward(const Block<T>& block, LayerActivations<T> kept, DeviceBuffer<T>& d, bool accumulate);

template <class T>
DeviceBuffer<T> bert_forward(const Block<T>& block, const Keep& keep, LayerActivations<T>& kept, bool output);
template <class T>
void bert_backward(const Block<T>& block, LayerActivations<T> kept, DeviceBuffer<T>& d, bool accumulate);

}  // namespace oomlab::nn
