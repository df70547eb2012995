#pragma once
// What PyTorch's eager mode allocates and frees for the operators of one training step (peak.h).
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

#include <cstdint>
#include <stdexcept>

#include "plan/bytes.h"
#include "plan/card.h"
#include "plan/category.h"
#include "plan/model/transformer.h"

namespace oomlab::fit {

/// AdamW's forms that differ in bytes.
enum class TorchOptimizer {
  adamw_foreach,  ///< what a GPU gets without asking: a list of √v of all parameters, 4 bytes each, during the step
  adamw_fused,    ///< fused=True: nothing beside the state
  adamw_8bit,     ///< bitsandbytes' AdamW8bit: two bytes per parameter and two FP32 scales for every 256; not checked
};

struct PyTorchStep {
  std::uint64_t batch = 1, seq = 1;  ///< of one forward and backward pass
  DType precision = DType::fp32;     ///< bf16, fp16: autocast. fp16, which needs a GradScaler, is not checked
  bool checkpoint = false;           ///< torch.utils.checkpoint around each layer
  TorchOptimizer optimizer = TorchOptimizer::adamw_foreach;
};

namespace detail {

// What is live, and what each operator adds to it and takes from it, forward and backward.
class TorchOperators {
 protected:
  TorchOperators(const nn::TransformerSpec& spec, const PyTorchStep& step)
      : spec_(spec),
        autocast_(step.precision != DType::fp32),
        checkpoint_(step.checkpoint),
        optimizer_(step.optimizer),
        e_(element_bytes(step.precision)),
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

  // Bytes of [R, columns] in FP32, and in the type of the products.
  std::uint64_t wide(std::uint64_t columns) const {
    return checked_product(checked_product(rows_, columns), sizeof(float));
  }
  std::uint64_t values(std::uint64_t columns) const { return checked_product(checked_product(rows_, columns), e_); }
  // A copy that autocast makes of an FP32 tensor.
  std::uint64_t copy(std::uint64_t columns) const { return autocast_ ? values(columns) : 0; }
  // Of an FP32 input of a product: its copy, or itself.
  std::uint64_t input(std::uint64_t columns) const { return values(columns); }
  static std::uint64_t matrix(std::uint64_t in, std::uint64_t out, std::uint64_t bytes) {
    return checked_product(checked_product(in, out), bytes);
  }

  void add(std::uint64_t bytes, Category category = Category::activations) {
    live_[category] = checked_sum(live_[category], bytes);
    const std::uint64_t total = live_.total();
    if (total <= most_) return;
    most_ = total;
    at_peak_ = live_;
    peak_moment_ = moment_;
  }
  void take(std::uint64_t bytes) {
    std::uint64_t& live = live_[Category::activations];
    if (bytes > live) throw std::logic_error("PyTorch frees what it does not have");
    live -= bytes;
  }
  void replace(std::uint64_t by, std::uint64_t what) { add(by), take(what); }
  void gradient(std::uint64_t count) { add(checked_product(count, sizeof(float)), Category::gradients); }

  // ------------------------------------------------------------------------------------------------- operators

  // `narrow`: the input has 16 bits already under autocast, and is kept by whoever made it.
  void linear(std::uint64_t in, std::uint64_t out, bool bias, bool narrow = false) {
    if (autocast_) {
      if (!narrow) add(copy(in));
      cast_weight(in, out, bias);
    }
    add(values(out));
  }
  // `kept`: the backward pass needs the weight's copy. Nobody needs the bias's.
  void cast_weight(std::uint64_t in, std::uint64_t out, bool bias, bool kept = true) {
    if (!autocast_) return;
    const std::uint64_t of_bias = bias ? 2 * out : 0;
    add(matrix(in, out, 2)), add(of_bias);
    cached_ = checked_sum(cached_, kept ? of_bias : checked_sum(of_bias, matrix(in, out, 2)));
  }
  void end_autocast() { take(cached_), cached_ = 0; }

  // Of the product's output the gradient is live; `consumed`: its bytes, where nobody else needs it. `saved`: what of
  // the input nobody else keeps any more.
  void linear_backward(std::uint64_t in, std::uint64_t out, bool bias, std::uint64_t saved, std::uint64_t consumed,
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
  void linear_backward_of_sum(std::uint64_t in, bool bias, std::uint64_t saved) {
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
  void rotary(std::uint64_t columns) {
    const std::uint64_t w = wide(columns), x = values(columns);
    add(w);
    add(x / 2), add(x), take(x / 2);
    add(w), take(x);
    add(w), take(2 * w);
  }
  void rotary_backward(std::uint64_t columns) {
    const std::uint64_t w = wide(columns);
    add(w), add(w / 2), add(w), take(w), take(w / 2), take(w);
    if (autocast_) replace(values(columns), w);
  }

  const nn::TransformerSpec& spec_;
  const bool autocast_, checkpoint_;
  const TorchOptimizer optimizer_;
  const std::uint64_t e_, rows_, c_, keys_, f_, rc4_, rce_, rf_, stats_, lse_, angles_, places_;
  std::uint64_t cached_ = 0;  // copies that nothing but autocast's cache keeps
  ByCategory live_;
  std::uint64_t most_ = 0;
  const char* moment_ = "";
  ByCategory at_peak_;
  const char* peak_moment_ = "";
};

}  // namespace detail

}  // namespace oomlab::fit
