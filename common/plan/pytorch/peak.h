#pragma once
// The peak of one training step in PyTorch, in closed form: what its eager mode allocates, in the order in which it
// does. What each operator keeps, and what is not counted: operators.h.

#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "plan/pytorch/operators.h"

namespace oomlab::fit {

/// A peak, and whether this way of training is among those that bench/peers/pytorch_training.py compares with PyTorch.
struct PyTorchPeak {
  ByCategory bytes;    ///< parameters, gradients, optimizer, activations, data
  const char* moment;  ///< "loss", "backward pass", "optimizer's step", …
  bool checked;
};

namespace detail {

// The step: layers, and what comes before and after them.
class TorchWalk : TorchOperators {
 public:
  TorchWalk(const nn::TransformerSpec& spec, const PyTorchStep& step) : TorchOperators(spec, step) {}

  PyTorchPeak run() {
    const std::uint64_t parameters = parameters_of(spec_), p4 = checked_product(parameters, sizeof(float));
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
    return {at_peak_, peak_moment_, true};
  }

 private:
  // Layers are alike, so two are counted.
  static std::uint64_t parameters_of(nn::TransformerSpec spec) {
    const std::uint64_t layers = spec.layers;
    spec.layers = 1;
    const std::uint64_t one = spec.parameters();
    spec.layers = 2;
    return checked_sum(one, checked_product(spec.parameters() - one, layers - 1));
  }

  // All layers are alike, so what is live at one moment of a layer changes by the same bytes from layer to layer: it is
  // most in the first or in the last one that is visited.
  template <class Visit>
  void each_layer(Visit visit) {
    const ByCategory before = live_;
    const std::uint64_t cached = cached_;
    visit();
    if (spec_.layers == 1) return;
    cached_ = checked_sum(cached_, checked_product(cached_ - cached, spec_.layers - 2));
    const ByCategory after = live_;
    for (std::size_t i = 0; i < kCategoryCount; ++i) {
      const std::uint64_t a = before.bytes[i], b = after.bytes[i];
      const std::uint64_t change = checked_product(b > a ? b - a : a - b, spec_.layers - 2);
      if (b > a)
        live_.bytes[i] = checked_sum(live_.bytes[i], change);
      else
        live_.bytes[i] -= change;
    }
    visit();
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
    const auto cast = [&](std::uint64_t in, std::uint64_t out, bool bias) { cast_weight(in, out, bias, false); };
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
    if (autocast_) take(rc4_);            // the first norm's output
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
    const std::uint64_t tokens = checked_product(spec_.vocabulary, c_), v4 = checked_product(tokens, sizeof(float));
    if (!spec_.tied) gradient(tokens);
    if (spec_.tied) add(v4);
    take(rc4_);
    if (spec_.tied && autocast_) take(v4);
    if (spec_.tied && !autocast_) replace(v4, 2 * v4);  // a new tensor: the head's gradient is a transposed view
    take(angles_);
  }

  // Norm, logits, loss, and back to the gradient of the last layer's output.
  void head() {
    const std::uint64_t v = spec_.vocabulary, logits = wide(v), narrow = copy(v);
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
};

}  // namespace detail

/// Peak bytes of one training step of PyTorch, by category. Takes microseconds, whatever the number of layers. Throws
/// std::length_error when a figure does not fit 64 bits, std::invalid_argument for a batch, a sequence or layers of 0,
/// and for a bert whose head is not tied.
inline PyTorchPeak pytorch_peak(const nn::TransformerSpec& spec, const PyTorchStep& step) {
  PyTorchPeak peak = detail::TorchWalk(spec, step).run();
  peak.checked = step.precision != DType::fp16 && step.optimizer != TorchOptimizer::adamw_8bit;
  return peak;
}

}  // namespace oomlab::fit
