#pragma once
// One layer of a transformer at work. What the styles of a block share is here; where the norms stand has a file of its
// own (pre_norm_block.cpp: gpt and llama; bert_block.cpp). Part of the model: others include transformer.h.

#include <algorithm>
#include <functional>

#include "nn/models/transformer.h"
#include "nn/ops/activation.h"
#include "nn/ops/attention.h"
#include "nn/ops/matmul.h"
#include "nn/ops/norms.h"
#include "nn/ops/residual.h"
#include "nn/ops/rotary.h"
#include "nn/ops/swiglu.h"
#include "plan/model/transformer_tensors.h"

namespace oomlab::nn {

/// A layer's tensors, batch and sizes, for the time of one pass through it.
template <class T>
struct Block {
  // A layer's tensors; a weight is followed by its bias, a gamma by its beta. Where they are says LayerSlots.
  static constexpr std::size_t kQkv = 0, kProjection = 2, kNorm1 = 4, kExpand = 6, kContract = 8, kNorm2 = 10;

  Context& context;
  const TransformerSpec& spec;
  AttentionShape attention;  ///< of this part
  AttentionForm form;
  bool by_rows;  ///< StepForm's
  const T* x;    ///< the layer's input [R, C]
  const ParameterOf<T>* tensors;
  LayerSlots slots;
  std::size_t width, hidden;  ///< C; F of this part
  bool first_part;            ///< the one that adds what the parts have in common
  const std::function<void(Context&, T* data, std::size_t count)>* sum;  ///< over the parts; null: there is one

  std::size_t rows() const { return attention.sequences * attention.seq; }
  std::size_t inner() const { return attention.width; }
  std::size_t count() const { return checked_product(rows(), width); }
  /// Of a row before the MLP's activation.
  std::size_t before() const { return spec.llama() ? 2 * hidden : hidden; }
  /// Null where the style has no such tensor.
  const T* value(std::size_t i) const { return slots.at[i] < 0 ? nullptr : tensors[slots.at[i]].value; }
  T* gradient(std::size_t i) const { return slots.at[i] < 0 ? nullptr : tensors[slots.at[i]].gradient; }
  DeviceBuffer<T> activation(std::size_t count, const char* tag) const {
    return context.buffer<T>(count, Category::activations, tag);
  }

  void sum_over_parts(DeviceBuffer<T>& data) const {
    if (sum) (*sum)(context, data.data(), data.size());
  }

  // ---- forward

  /// norm(from), to `to`, which may be null; mean and rstd are new.
  void norm(std::size_t which, const T* from, DeviceBuffer<float>& mean, DeviceBuffer<float>& rstd, T* to) const {
    if (!spec.llama()) mean = context.buffer<float>(rows(), Category::activations, "norm mean");
    rstd = context.buffer<float>(rows(), Category::activations, "norm rstd");
    if (spec.llama())
      rms_norm_forward(context, from, value(which), to, rstd.data(), rows(), width, spec.epsilon);
    else
      layer_norm_forward(context, from, value(which), value(which + 1), to, mean.data(), rstd.data(), rows(), width);
  }
  /// y = from · Wᵀ, and the bias, where there is one.
  void linear(const T* from, std::size_t weight, T* y, std::size_t in, std::size_t out) const {
    if (value(weight + 1))
      linear_bias_forward(context, from, value(weight), value(weight + 1), y, rows(), in, out);
    else
      linear_forward(context, from, value(weight), y, rows(), in, out);
  }
  void qkv(const T* from, LayerActivations<T>& kept) const {
    kept.qkv = activation(checked_product(rows(), attention.qkv_width()), "qkv");
    linear(from, kQkv, kept.qkv.data(), width, attention.qkv_width());
    if (spec.llama()) rotate(kept.qkv.data(), false);
  }
  /// The heads of Q and K, each row's to its position.
  void rotate(T* of_qkv, bool back) const {
    rotate_heads(context, of_qkv, attention.qkv_width(), rows(), attention.heads + attention.keys(), attention.depth(),
                 rotary_frequencies(spec.rotary, attention.depth()), {.seq = attention.seq}, back);
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
    kept.hidden = activation(checked_product(rows(), before()), spec.llama() ? "gate and up" : "before GELU");
    linear(from, kExpand, kept.hidden.data(), width, before());
  }
  void activate(const Keep& keep, LayerActivations<T>& kept) const {
    if (keep.layer) {
      activate_beside_hidden(spec.llama() ? "SwiGLU" : "GELU", kept);
    } else {  // nobody will ask what came before
      kept.activated = std::move(kept.hidden);
      T* const data = kept.activated.data();
      if (spec.llama())
        swiglu_forward(context, data, data, before(), rows(), hidden);
      else
        bias_activation(context, data, nullptr, rows(), hidden, Activation::gelu);
    }
  }
  /// A buffer of its own for the activation's output.
  void activate_beside_hidden(const char* tag, LayerActivations<T>& kept) const {
    kept.activated = activation(checked_product(rows(), hidden), tag);
    activate_rows(kept.hidden.data(), kept.activated.data(), rows());
  }
  /// From some rows before the activation to as many after it.
  void activate_rows(T* from, T* to, std::size_t count) const {
    if (spec.llama())
      swiglu_forward(context, from, to, hidden, count, hidden);
    else
      bias_activation_keep(context, from, nullptr, to, count, hidden, Activation::gelu);
  }
  /// residual + the MLP's second product.
  DeviceBuffer<T> contract(const T* residual, const char* tag, const Keep& keep, LayerActivations<T>& kept) const {
    DeviceBuffer<T> y = activation(count(), tag);
    const std::size_t row_stride = kept.activated.size() / rows();  // SwiGLU's output may lie where gate and up lay
    gemm_strided<T>(context, false, true, rows(), width, hidden, 1.0f, {kept.activated.data(), row_stride, 0},
                    {value(kContract), hidden, 0}, 0.0f, {y.data(), width, 0}, 1);
    sum_over_parts(y);
    add_residual(context, residual, y.data(), value(kContract + 1), y.data(), rows(), width);
    if (!keep.layer || !keep.gelu) kept.activated.reset();
    return y;
  }

  /// From `hidden` to residual + MLP(…), whose activation is not kept: some rows of it at a time, if the form is by
  /// rows.
  DeviceBuffer<T> second_half(const DeviceBuffer<T>& residual, const char* tag, const Keep& keep,
                              LayerActivations<T>& kept) const {
    if (!by_rows || !keep.layer || keep.gelu) {
      activate(keep, kept);
      return contract(residual.data(), tag, keep, kept);
    }
    DeviceBuffer<T> y = activation(count(), tag);
    contract_by_rows(kept, 0.0f, y.data());
    sum_over_parts(y);
    add_residual(context, residual.data(), y.data(), value(kContract + 1), y.data(), rows(), width);
    return y;
  }
  /// y = beta · y + activation(hidden) · Wᵀ.
  void contract_by_rows(LayerActivations<T>& kept, float beta, T* y) const {
    DeviceBuffer<T> chunk = activation(checked_product(chunk_rows(), hidden), "activation of some rows");
    each_chunk([&](std::size_t first, std::size_t count) {
      activate_rows(kept.hidden.data() + first * before(), chunk.data(), count);
      gemm(context, false, true, count, width, hidden, 1.0f, chunk.data(), value(kContract), beta, y + first * width);
    });
  }

  // ---- what was dropped, computed once more when it is needed

  void recompute_norm(DeviceBuffer<T>& output, std::size_t which, const T* before, const DeviceBuffer<float>& mean,
                      const DeviceBuffer<float>& rstd) const {
    if (output) return;
    output = activation(count(), "recomputed norm");
    recompute_norm_rows(which, before, mean.data(), rstd.data(), output.data(), rows());
  }
  /// Of an RMS norm `mean` is not read.
  void recompute_norm_rows(std::size_t which, const T* before, const float* mean, const float* rstd, T* output,
                           std::size_t count) const {
    if (spec.llama())
      rms_norm_recompute(context, before, rstd, value(which), output, count, width);
    else
      layer_norm_recompute(context, before, mean, rstd, value(which), value(which + 1), output, count, width);
  }
  void recompute_middle(LayerActivations<T>& kept) const {
    if (!kept.middle) middle(kept);
  }
  void recompute_activation(LayerActivations<T>& kept) const {
    if (!kept.activated) activate_beside_hidden(spec.llama() ? "recomputed SwiGLU" : "recomputed GELU", kept);
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
    norm_backward_rows(which, dy.data(), before, mean.data(), rstd.data(), into.data(), rows(), &into != &dy,
                       accumulate);
    mean.reset();
    rstd.reset();
  }
  /// `add`: to what is there.
  void norm_backward_rows(std::size_t which, const T* dy, const T* before, const float* mean, const float* rstd,
                          T* into, std::size_t count, bool add, bool accumulate) const {
    if (spec.llama()) {
      rms_norm_backward_weight(context, dy, before, rstd, gradient(which), count, width, accumulate);
      rms_norm_backward_input(context, dy, before, rstd, value(which), into, count, width, add);
    } else {
      layer_norm_backward_weight(context, dy, before, mean, rstd, gradient(which), gradient(which + 1), count, width,
                                 accumulate);
      layer_norm_backward_input(context, dy, before, mean, rstd, value(which), into, count, width, add);
    }
  }
  /// From d, the gradient of the MLP's output, to that of `hidden`.
  DeviceBuffer<T> contract_backward(const DeviceBuffer<T>& d, LayerActivations<T>& kept, bool accumulate) const {
    if (!kept.activated && by_rows) return contract_backward_by_rows(d, kept, accumulate);
    recompute_activation(kept);
    weights(kContract, d, kept.activated.data(), hidden, width, accumulate);
    kept.activated.reset();
    DeviceBuffer<T> d_hidden = activation(checked_product(rows(), hidden), "MLP gradient");
    linear_backward_input(context, d.data(), value(kContract), d_hidden.data(), rows(), hidden, width);
    if (spec.llama()) {  // whose gradient takes the place of gate and up
      swiglu_backward(context, d_hidden.data(), kept.hidden.data(), rows(), hidden);
      return std::move(kept.hidden);
    }
    activation_backward(context, d_hidden.data(), kept.hidden.data(), d_hidden.size(), Activation::gelu);
    kept.hidden.reset();
    return d_hidden;
  }
  /// The same where the activation's output was not kept, by rows: some of it at a time, and the gradient takes the
  /// place of `hidden`.
  DeviceBuffer<T> contract_backward_by_rows(const DeviceBuffer<T>& d, LayerActivations<T>& kept,
                                            bool accumulate) const {
    DeviceBuffer<T> chunk = activation(checked_product(chunk_rows(), hidden), "activation of some rows");
    each_chunk([&](std::size_t first, std::size_t count) {
      T* const from = kept.hidden.data() + first * before();
      const T* const dy = d.data() + first * width;
      activate_rows(from, chunk.data(), count);
      linear_backward_weight(context, dy, chunk.data(), gradient(kContract), gradient(kContract + 1), count, hidden,
                             width, accumulate || first > 0);
      linear_backward_input(context, dy, value(kContract), chunk.data(), count, hidden, width);
      if (spec.llama())
        swiglu_backward(context, chunk.data(), from, count, hidden);
      else
        gelu_backward_over(context, chunk.data(), from, count * hidden);
    });
    return std::move(kept.hidden);
  }
  /// From d, the gradient of `middle`, to that of qkv.
  DeviceBuffer<T> attend_backward(const DeviceBuffer<T>& d, LayerActivations<T>& kept, bool accumulate) const {
    DeviceBuffer<T> d_qkv = scores_backward(d, kept, accumulate);
    if (spec.llama()) rotate(d_qkv.data(), true);
    return d_qkv;
  }
  DeviceBuffer<T> scores_backward(const DeviceBuffer<T>& d, LayerActivations<T>& kept, bool accumulate) const {
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

/// gpt2 and llama: norm, attention, residual; norm, MLP, residual. Returns x of the next layer [R, C], or an empty
/// buffer. Throws OutOfMemory; what was allocated is freed.
template <class T>
DeviceBuffer<T> pre_norm_forward(const Block<T>& block, const Keep& keep, LayerActivations<T>& kept, bool output);
/// Its backward pass. Gradients of the layer's tensors are overwritten, or added to with `accumulate`.
template <class T>
void pre_norm_backward(const Block<T>& block, LayerActivations<T> kept, DeviceBuffer<T>& d, bool accumulate);

/// bert: the norms come after the residuals. As pre_norm_forward().
template <class T>
DeviceBuffer<T> bert_forward(const Block<T>& block, const Keep& keep, LayerActivations<T>& kept, bool output);
/// Its backward pass, as pre_norm_backward().
template <class T>
void bert_backward(const Block<T>& block, LayerActivations<T> kept, DeviceBuffer<T>& d, bool accumulate);

}  // namespace oomlab::nn
