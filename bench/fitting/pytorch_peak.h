#pragma once
// The peak of one training step in PyTorch, in closed form: what its eager mode allocates, in the order in which it does.
//
// The step is that of bench/peers/torch_models.py: plain modules, F.scaled_dot_product_attention, F.cross_entropy of
// FP32 logits, no dropout, zero_grad(set_to_none=True), torch.optim.AdamW, and torch.utils.checkpoint
// (use_reentrant=False) around each layer. It is the second step or a later one: AdamW's state exists.
//
// Where the terms are from: PyTorch's tools/autograd/derivatives.yaml says what a backward pass needs of each operator.
//
//   operator              keeps until its backward pass
//   linear (addmm, mm)    its input, its weight
//   layer_norm            its input, mean and rstd (FP32, one of each a row); not its output
//   RMS norm, written out x (of pow and mul), rsqrt (one a row), x · rsqrt (of the product with the weight)
//   scaled_dot_product…   q, k, v, its output, logsumexp (FP32, one a row and head)
//   gelu, silu            their input
//   a · b                 both; of the rotary positions, whose cos and sin need no gradient, these only
//   a + b                 nothing
//   log_softmax, nll_loss the former's output [R, V]; its gradient and its input's stand beside it for a moment
//   embedding             the tokens; its gradient is dense, and of a tied one the head's is added to it
//
// Under autocast a linear layer casts its input and its weight, and both copies are kept: an input that three layers
// read has three copies. Copies of weights are also cached until the autocast region ends. Sums of a 16-bit and an FP32
// value are FP32, so the residual is FP32. Gradients of weights are 16-bit for a moment, then FP32.
//
// Not counted: what a device's kernels take for themselves (workspaces of BLAS, the tiles of attention, casts within an
// operator), an allocator's rounding, and a context.

#include <algorithm>
#include <stdexcept>

#include "harness/card.h"
#include "memory/bytes.h"
#include "memory/ledger.h"
#include "nn/transformer.h"

namespace oomlab::fit {

/// AdamW's forms that differ in bytes.
enum class TorchOptimizer {
  adamw_foreach,  ///< what a GPU gets without asking: a list of √v of all parameters, 4 bytes each, during the step
  adamw_fused,    ///< fused=True: nothing beside the state
  adamw_8bit,     ///< bitsandbytes' AdamW8bit: two bytes a parameter and two FP32 scales for every 256; not checked
};

struct PyTorchStep {
  std::size_t batch = 1, seq = 1;          ///< of one forward and backward pass
  Arithmetic precision = Arithmetic::fp32;  ///< bf16, fp16: autocast. fp16, which needs a GradScaler, is not checked
  bool checkpoint = false;                  ///< torch.utils.checkpoint around each layer
  TorchOptimizer optimizer = TorchOptimizer::adamw_foreach;
};

/// A peak, and whether this way of training is among those that bench/peers/pytorch_training.py compares with PyTorch.
struct PyTorchPeak {
  ByCategory bytes;    ///< parameters, gradients, optimizer, activations, data
  const char* moment;  ///< "loss", "backward pass", "optimizer's step", …
  bool checked;
};

namespace detail {

class TorchWalk {
 public:
  TorchWalk(const nn::TransformerSpec& spec, const PyTorchStep& step)
      : spec_(spec),
        autocast_(step.precision != Arithmetic::fp32),
        checkpoint_(step.checkpoint),
        optimizer_(step.optimizer),
        e_(autocast_ ? 2 : 4),
        rows_(checked_product(step.batch, step.seq)),
        c_(spec.width),
        keys_(checked_product(spec.keys(), spec.depth())),
        f_(spec.hidden()),
        rc4_(wide(c_)),
        rce_(values(c_)),
        rf_(values(f_)),
        stats_(checked_product(rows_, 2 * sizeof(float))),
        lse_(checked_product(checked_product(rows_, spec.heads), sizeof(float))),
        angles_(spec.llama() ? checked_product(checked_product(step.seq, spec.depth()), 2 * sizeof(float)) : 0),
        places_(checked_product(checked_product(step.seq, c_), sizeof(float))) {
    if (rows_ == 0 || spec.layers == 0) throw std::invalid_argument("a step has at least one token and one layer");
    if (spec.bert() && !spec.tied) throw std::invalid_argument("the head of bert is tied to the token embedding");
  }

  PyTorchPeak run() {
    const std::size_t parameters = spec_.parameters(), p4 = checked_product(parameters, sizeof(float));
    live_[Category::parameters] = p4;
    live_[Category::optimizer] = optimizer_ == TorchOptimizer::adamw_8bit
                                     ? checked_sum(checked_product(parameters, 2), checked_product(parameters / 256, 8))
                                     : checked_product(p4, 2);
    live_[Category::data] = checked_product(rows_, 2 * sizeof(std::int64_t));  // tokens and targets
    moment_ = "forward pass";
    embed();
    each_layer([&] { checkpoint_ ? forward_checkpointed() : forward_layer(false); });
    head();
    moment_ = "backward pass";
    each_layer([&] { backward_layer(); });
    embed_backward();
    if (live_[Category::activations] != 0 || live_[Category::gradients] != p4)
      throw std::logic_error("what PyTorch keeps and what it frees do not agree");
    moment_ = "optimizer's step";
    if (optimizer_ == TorchOptimizer::adamw_foreach) add(p4, Category::optimizer);
    at_peak_.checked = true;
    return at_peak_;
  }

 private:
  // Bytes of [R, columns] in FP32, and in the type of the products.
  std::size_t wide(std::size_t columns) const { return checked_product(checked_product(rows_, columns), sizeof(float)); }
  std::size_t values(std::size_t columns) const { return checked_product(checked_product(rows_, columns), e_); }
  // A copy that autocast makes of an FP32 tensor.
  std::size_t copy(std::size_t columns) const { return autocast_ ? values(columns) : 0; }
  // Of an FP32 input of a product: its copy, or itself.
  std::size_t input(std::size_t columns) const { return values(columns); }
  static std::size_t matrix(std::size_t in, std::size_t out, std::size_t bytes) {
    return checked_product(checked_product(in, out), bytes);
  }

  void add(std::size_t bytes, Category category = Category::activations) {
    live_[category] = checked_sum(live_[category], bytes);
    const std::size_t total = live_.total();
    if (total <= most_) return;
    most_ = total;
    at_peak_.bytes = live_;
    at_peak_.moment = moment_;
  }
  void take(std::size_t bytes) {
    std::size_t& live = live_[Category::activations];
    if (bytes > live) throw std::logic_error("PyTorch frees what it does not have");
    live -= bytes;
  }
  void replace(std::size_t by, std::size_t what) { add(by), take(what); }
  void gradient(std::size_t count) { add(checked_product(count, sizeof(float)), Category::gradients); }

  // All layers are alike, so what is live at one moment of a layer changes by the same bytes from layer to layer: it is
  // most in the first or in the last one that is visited.
  template <class Visit>
  void each_layer(Visit visit) {
    const ByCategory before = live_;
    const std::size_t cached = cached_;
    visit();
    if (spec_.layers == 1) return;
    cached_ = checked_sum(cached_, checked_product(cached_ - cached, spec_.layers - 2));
    const ByCategory after = live_;
    for (std::size_t i = 0; i < kCategoryCount; ++i) {
      const std::size_t a = before.bytes[i], b = after.bytes[i];
      const std::size_t change = checked_product(b > a ? b - a : a - b, spec_.layers - 2);
      if (b > a)
        live_.bytes[i] = checked_sum(live_.bytes[i], change);
      else
        live_.bytes[i] -= change;
    }
    visit();
  }

  // ------------------------------------------------------------------------------------------------- operators

  // `narrow`: the input has 16 bits already under autocast, and is kept by whoever made it.
  void linear(std::size_t in, std::size_t out, bool bias, bool narrow = false) {
    if (autocast_) {
      if (!narrow) add(copy(in));
      cast_weight(in, out, bias);
    }
    add(values(out));
  }
  // `kept`: the backward pass needs the weight's copy. Nobody needs the bias's.
  void cast_weight(std::size_t in, std::size_t out, bool bias, bool kept = true) {
    if (!autocast_) return;
    const std::size_t of_bias = bias ? 2 * out : 0;
    add(matrix(in, out, 2)), add(of_bias);
    cached_ = checked_sum(cached_, kept ? of_bias : checked_sum(of_bias, matrix(in, out, 2)));
  }
  void end_autocast() { take(cached_), cached_ = 0; }

  // Of the product's output the gradient is live; `consumed`: its bytes, where nobody else needs it. `saved`: what of
  // the input nobody else keeps any more.
  void linear_backward(std::size_t in, std::size_t out, bool bias, std::size_t saved, std::size_t consumed,
                       bool narrow = false) {
    add(values(in));
    if (autocast_) {
      add(matrix(in, out, 2));
      take(checked_sum(consumed, saved));
      take(matrix(in, out, 2));  // the weight's copy
      if (!narrow) replace(wide(in), copy(in));
      gradient(checked_product(in, out));
      take(matrix(in, out, 2));
    } else {
      gradient(checked_product(in, out));
      take(checked_sum(consumed, saved));
    }
    if (bias) gradient(out);
  }
  // From the residual's FP32 gradient, which stays.
  void linear_backward_of_sum(std::size_t in, bool bias, std::size_t saved) {
    linear_backward(in, c_, bias, saved, copy(c_), true);
  }

  void layer_norm() { add(checked_sum(rc4_, stats_)); }
  // Frees its input, its statistics and the gradient that comes.
  void layer_norm_backward() {
    add(rc4_);
    gradient(2 * c_);
    take(rc4_), take(rc4_), take(stats_);
  }
  // The same within a residual, whose gradient takes the new one in place.
  void residual_norm_backward() {
    layer_norm_backward();
    take(rc4_);
  }

  void rms_norm() {
    add(rc4_), take(rc4_);  // x²
    add(stats_ / 2);        // 1 / √mean(x²)
    add(rc4_), add(rc4_);   // x times that, and that times the weight
  }
  // `residual`: the gradient is added to one that is there.
  void rms_norm_backward(bool residual) {
    replace(2 * rc4_, 3 * rc4_);  // to x · rsqrt, and to the weight before it is summed
    gradient(c_);
    replace(2 * rc4_, 2 * rc4_);  // to x, and to rsqrt before it is summed
    if (residual) take(rc4_);
    take(stats_ / 2);
    replace(4 * rc4_, 4 * rc4_);  // through the mean and the square, added to the gradient of x
    take(rc4_);                   // x
  }

  void attend() { add(checked_sum(rce_, lse_)); }
  void attend_backward() {
    add(3 * rce_);
    take(rce_), take(3 * rce_), take(lse_), take(rce_);  // gradient, q k v, logsumexp, output
  }

  // x · cos + turned x · sin, of `columns`: FP32, because cos and sin are. x stays.
  void rotary(std::size_t columns) {
    const std::size_t w = wide(columns), x = values(columns);
    add(w);
    add(x / 2), add(x), take(x / 2);
    add(w), take(x);
    add(w), take(2 * w);
  }
  void rotary_backward(std::size_t columns) {
    const std::size_t w = wide(columns);
    add(w), add(w / 2), add(w), take(w), take(w / 2), take(w);
    if (autocast_) replace(values(columns), w);
  }

  // ---------------------------------------------------------------------------------------------------- layers

  // Before: the layer's input x. Afterwards its output and what is kept. `again`: for the backward pass of a
  // checkpointed layer; it stops when all that must be kept is there.
  void forward_layer(bool again) {
    switch (spec_.style) {
      case nn::TransformerSpec::Style::gpt: return forward_gpt(again);
      case nn::TransformerSpec::Style::bert: return forward_bert(again);
      case nn::TransformerSpec::Style::llama: return forward_llama(again);
    }
  }
  // Its output; and copies of its weights, which stay cached. What it has in between is less than when it runs again.
  void forward_checkpointed() {
    const auto cast = [&](std::size_t in, std::size_t out, bool bias) { cast_weight(in, out, bias, false); };
    const bool biases = !spec_.llama();
    add(rc4_);
    cast(c_, c_, spec_.qkv_bias), cast(c_, keys_, spec_.qkv_bias), cast(c_, keys_, spec_.qkv_bias);
    cast(c_, c_, biases), cast(c_, f_, biases), cast(f_, c_, biases);
    if (spec_.llama()) cast(c_, f_, biases);
  }

  void forward_gpt(bool again) {
    layer_norm();
    linear(c_, 3 * c_, true);
    if (autocast_) take(rc4_);  // the norm's output: the product keeps a copy
    attend();
    linear(c_, c_, true, true);
    replace(rc4_, rce_);
    mlp_forward(again);
  }
  void mlp_forward(bool again) {
    layer_norm();
    linear(c_, f_, true);
    if (autocast_) take(rc4_);
    add(rf_);
    if (again) return cast_weight(f_, c_, true), end_autocast();
    linear(f_, c_, true, true);
    replace(rc4_, rce_);
  }
  void backward_gpt() {
    if (autocast_) add(copy(c_));
    if (checkpoint_) forward_gpt(true);
    mlp_backward();
    residual_norm_backward();
    if (autocast_) add(copy(c_));
    linear_backward_of_sum(c_, true, 0);
    attend_backward();
    replace(3 * rce_, 3 * rce_);  // the three gradients become one
    linear_backward(c_, 3 * c_, true, input(c_), 3 * rce_);
    residual_norm_backward();
  }
  // GELU's. A copy of the gradient is there under autocast.
  void mlp_backward() {
    linear_backward_of_sum(f_, true, rf_);
    replace(rf_, 2 * rf_);
    linear_backward(c_, f_, true, input(c_), rf_);
  }

  void forward_bert(bool again) {
    for (int i = 0; i < 3; ++i) linear(c_, c_, true);
    attend();
    linear(c_, c_, true, true);
    replace(rc4_, rce_);
    layer_norm();
    linear(c_, f_, true);
    add(rf_);
    linear(f_, c_, true, true);
    replace(rc4_, rce_);
    layer_norm();
    if (autocast_) take(rc4_);           // the first norm's output
    if (autocast_ && !again) take(rc4_);  // x: only copies of it are kept
    if (again) take(rc4_), end_autocast();
  }
  void backward_bert() {
    if (checkpoint_) forward_bert(true);
    layer_norm_backward();
    if (autocast_) add(copy(c_));
    mlp_backward();
    take(rc4_);  // added to the residual's gradient
    layer_norm_backward();
    if (autocast_) add(copy(c_));
    linear_backward_of_sum(c_, true, 0);
    attend_backward();
    for (int i = 0; i < 3; ++i) linear_backward(c_, c_, true, copy(c_), rce_), take(rc4_);
    if (!autocast_ || checkpoint_) take(rc4_);  // x
  }

  void forward_llama(bool again) {
    const bool groups = keys_ < c_, bias = spec_.qkv_bias;
    rms_norm();
    linear(c_, c_, bias), linear(c_, keys_, bias), linear(c_, keys_, bias);
    rotary(c_), rotary(keys_);
    take(rce_), take(values(keys_));  // q and k before that
    if (groups) {                     // k and v for every head
      add(rc4_), add(rce_);
      take(wide(keys_)), take(values(keys_));
    }
    if (autocast_) add(2 * copy(c_));  // of q and k
    attend();
    if (autocast_) take(rc4_);  // the norm's output: the products keep copies
    linear(c_, c_, false, true);
    replace(rc4_, rce_);
    rms_norm();
    linear(c_, f_, false), add(rf_);
    linear(c_, f_, false), add(rf_);
    if (again) {
      cast_weight(f_, c_, false), end_autocast();
    } else {
      linear(f_, c_, false, true);
      replace(rc4_, rce_);
    }
    if (autocast_) take(3 * rc4_);  // q, k and the norm's output, until the function returns
  }
  void backward_llama() {
    const bool groups = keys_ < c_, bias = spec_.qkv_bias;
    const auto added = [&] { replace(rc4_, 2 * rc4_); };
    if (autocast_) add(copy(c_));
    if (checkpoint_) forward_llama(true);
    linear_backward_of_sum(f_, false, rf_);
    replace(2 * rf_, 3 * rf_);
    linear_backward(c_, f_, false, copy(c_), rf_);
    replace(rf_, 2 * rf_);
    linear_backward(c_, f_, false, input(c_), rf_), added();
    rms_norm_backward(true);
    if (autocast_) add(copy(c_));
    linear_backward_of_sum(c_, false, 0);
    attend_backward();
    if (autocast_) replace(2 * rc4_, 2 * copy(c_));
    if (groups) add(wide(keys_)), add(values(keys_)), take(rc4_), take(rce_);
    rotary_backward(keys_), rotary_backward(c_);
    linear_backward(c_, keys_, bias, copy(c_), values(keys_));
    linear_backward(c_, keys_, bias, copy(c_), values(keys_)), added();
    linear_backward(c_, c_, bias, input(c_), rce_), added();
    rms_norm_backward(true);
  }

  void backward_layer() {
    switch (spec_.style) {
      case nn::TransformerSpec::Style::gpt: return backward_gpt();
      case nn::TransformerSpec::Style::bert: return backward_bert();
      case nn::TransformerSpec::Style::llama: return backward_llama();
    }
  }

  // ------------------------------------------------------------------------------------------------------ ends

  void embed() {
    add(angles_);
    add(rc4_);
    if (!spec_.llama()) add(places_), add(rc4_), take(places_), take(rc4_);
    if (!spec_.bert()) return;
    add(rc4_), replace(rc4_, 2 * rc4_);  // the types; the sum, which the norm keeps
    layer_norm();
  }
  void embed_backward() {
    if (spec_.bert()) layer_norm_backward(), gradient(2 * c_);
    if (!spec_.llama()) {
      add(places_);
      gradient(checked_product(spec_.positions, c_));
      take(places_);
    }
    const std::size_t tokens = checked_product(spec_.vocabulary, c_), v4 = checked_product(tokens, sizeof(float));
    if (!spec_.tied) gradient(tokens);
    if (spec_.tied) add(v4);
    take(rc4_);
    if (spec_.tied && autocast_) take(v4);
    if (spec_.tied && !autocast_) replace(v4, 2 * v4);  // a new tensor: the head's gradient is a transposed view
    take(angles_);
  }

  // Norm, logits, loss, and back to the gradient of the last layer's output.
  void head() {
    const std::size_t v = spec_.vocabulary, logits = wide(v), narrow = copy(v);
    const bool bert = spec_.bert();
    if (bert) {  // dense, GELU and the norm have 16 bits under autocast
      linear(c_, c_, true);
      add(rce_);
      if (autocast_) take(rc4_);
      add(checked_sum(rce_, autocast_ ? stats_ / 2 : stats_));
    } else if (spec_.llama()) {
      rms_norm();
    } else {
      layer_norm();
    }
    linear(c_, v, bert, bert);
    if (autocast_ && !bert) take(rc4_);
    moment_ = "loss";
    if (autocast_) add(logits);  // in FP32
    add(logits);
    take(logits), take(narrow);
    end_autocast();
    add(2 * logits), take(2 * logits);
    if (autocast_) replace(narrow, logits);
    linear_backward(c_, v, bert, input(c_), values(v), bert);
    if (bert) {
      add(rce_), gradient(2 * c_), take(2 * rce_), take(autocast_ ? stats_ / 2 : stats_);
      replace(rce_, 2 * rce_);
      linear_backward(c_, c_, true, input(c_), rce_);
    } else if (spec_.llama()) {
      rms_norm_backward(false);
    } else {
      layer_norm_backward();
    }
  }

  const nn::TransformerSpec& spec_;
  const bool autocast_, checkpoint_;
  const TorchOptimizer optimizer_;
  const std::size_t e_, rows_, c_, keys_, f_, rc4_, rce_, rf_, stats_, lse_, angles_, places_;
  std::size_t cached_ = 0;  // copies that nothing but autocast's cache keeps
  ByCategory live_;
  std::size_t most_ = 0;
  const char* moment_ = "";
  PyTorchPeak at_peak_{};
};

}  // namespace detail

/// Peak bytes of one training step of PyTorch, by category. Takes microseconds, whatever the number of layers. Throws
/// std::length_error when a figure does not fit 64 bits, std::invalid_argument for a batch, a sequence or layers of 0, and
/// for a bert whose head is not tied.
inline PyTorchPeak pytorch_peak(const nn::TransformerSpec& spec, const PyTorchStep& step) {
  PyTorchPeak peak = detail::TorchWalk(spec, step).run();
  peak.checked = step.precision != Arithmetic::fp16 && step.optimizer != TorchOptimizer::adamw_8bit;
  return peak;
}

}  // namespace oomlab::fit
