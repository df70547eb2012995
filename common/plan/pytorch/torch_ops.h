#pragma once
// PyTorch's eager operators on a tape (tape.h): what each allocates, what it keeps for its backward pass, and what that
// allocates. From tools/autograd/derivatives.yaml, torch/csrc/autograd/FunctionsManual.cpp and aten/src/ATen/native.
// No operator looks at values. Counts are of values; R is a tensor's rows, whatever its first dimensions are.
//
// Where a CPU and a GPU differ: `TorchDevice`. Both are measured (bench/peers/huggingface_training.py); of the GPU's,
// what no setting that was measured has is read in the same sources.
//
//   dropout        a CPU keeps the mask in the type of the values; a GPU keeps one byte for each
//   attention      with dropout a CPU has no fused kernel, and computes scores; a GPU has one
//   autocast       a GPU computes norms, softmax and powers in FP32. Of 16-bit logits it takes the log-softmax in 16
//                  bits, and only the loss of it in FP32
//   softmax(x, dtype=torch.float32)   a GPU's kernel does so of FP16; BF16 it copies to FP32 first, as a CPU does

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/pytorch/tape.h"

namespace oomlab::fit {

enum class TorchDevice { cpu, cuda };

/// Queries, keys and values of an attention: [B, H, S, d], keys and values of Hk heads and `keys` tokens.
struct AttentionShape {
  std::uint64_t batch, heads, kv_heads, seq, depth;
  bool causal;
  std::uint64_t keys;
  std::uint64_t rows() const { return checked_product(batch, seq); }
  std::uint64_t queries() const { return checked_product(checked_product(rows(), heads), depth); }
  std::uint64_t scores() const { return checked_product(checked_product(checked_product(batch, heads), seq), keys); }
  std::uint64_t groups() const { return heads / kv_heads; }
};

class Torch {
 public:
  Torch(Tape& tape, TorchDevice device, std::optional<DType> autocast)
      : tape_(tape), device_(device), autocast_(autocast) {}

  Tape& tape() { return tape_; }
  TorchDevice device() const { return device_; }
  /// The end of an autocast region: copies of weights are freed.
  void end_autocast();

  // ------------------------------------------------------------------------------------------------------ products
  /// x · Wᵀ + b of rows of `in`.
  Tensor linear(const Tensor& x, Parameter& weight, Parameter* bias, std::uint64_t in, std::uint64_t out);
  /// bitsandbytes' 4-bit product: the weight is decoded to 16 bits, [in, out], for as long as the product takes, forward
  /// and backward.
  Tensor linear_4bit(const Tensor& x, std::uint64_t in, std::uint64_t out, DType compute, Parameter* bias);
  /// A product of batches, with `out` values.
  Tensor bmm(const Tensor& a, const Tensor& b, std::uint64_t out);
  /// torch.nn.functional.grouped_mm() of rows of `in`, sorted by experts, and a weight [experts, out, in]. It is computed in
  /// the type of the weight, under autocast, too.
  Tensor grouped(const Tensor& x, Parameter& weight, std::uint64_t in, std::uint64_t out);
  Tensor embedding(std::uint64_t rows, Parameter& weight, std::uint64_t width, const Tensor& tokens);
  /// scaled_dot_product_attention, its output as [B, S, H · d].
  /// `mask`: of one byte a pair of tokens, or none.
  Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, const AttentionShape& shape,
                   double dropout);

  // --------------------------------------------------------------------------------------------------- value by value
  Tensor cast(const Tensor& x, DType dtype);
  Tensor add(const Tensor& a, const Tensor& b);
  Tensor mul(const Tensor& a, const Tensor& b);
  /// x times, or divided by, a number.
  Tensor scale(const Tensor& x);
  /// A number plus x.
  Tensor shift(const Tensor& x);
  Tensor neg(const Tensor& x);
  /// x to a power that is a number.
  Tensor power(const Tensor& x);
  Tensor tanh(const Tensor& x);
  Tensor silu(const Tensor& x) { return of_input(x); }
  Tensor gelu(const Tensor& x) { return of_input(x); }
  Tensor dropout(const Tensor& x, double p);

  // ---------------------------------------------------------------------------------------------------------- by rows
  Tensor mean(const Tensor& x, std::uint64_t rows);
  /// To `count` sums.
  Tensor sum(const Tensor& x, std::uint64_t count);
  Tensor rsqrt(const Tensor& x);
  Tensor softmax(const Tensor& x);
  /// softmax(x, dtype=torch.float32).
  Tensor softmax_fp32(const Tensor& x);
  Tensor layer_norm(const Tensor& x, Parameter& weight, Parameter& bias, std::uint64_t rows);
  /// Of logits [R, V]: log-softmax and the mean of R losses.
  Tensor cross_entropy(const Tensor& logits, const Tensor& targets);
  /// Liger's fused product with W [out, in] and cross entropy, of rows of `in`. The forward pass makes the logits of a
  /// chunk of rows after the other, turns them into their gradient in place, and adds up those of x and of W; the backward
  /// pass hands these on. Read in liger_kernel/ops/fused_linear_cross_entropy.py, of version 0.6.
  Tensor fused_cross_entropy(const Tensor& x, Parameter& weight, std::uint64_t in, std::uint64_t out);

  // ------------------------------------------------------------------------------------------------------------ shapes
  /// Another view of x. `copied_back`: its gradient comes in another layout, and is copied to this one.
  Tensor view(const Tensor& x, bool copied_back = false);
  /// x in another layout.
  Tensor contiguous(const Tensor& x);
  /// A part of x, as a view; its gradient is as large as x.
  Tensor slice(const Tensor& x, std::uint64_t count);
  /// Parts of x, as views; their gradients are put together.
  std::vector<Tensor> split(const Tensor& x, const std::vector<std::uint64_t>& counts);
  Tensor concatenate(const Tensor& a, const Tensor& b);
  /// x[index], `count` values in a new tensor.
  Tensor select(const Tensor& x, const Tensor& index, std::uint64_t count);
  /// x for each of `groups` heads.
  Tensor repeat(const Tensor& x, std::uint64_t groups);

  // ------------------------------------------------------------------------------------------------------------- ranks
  // Of torch.distributed's functional collectives, which make new tensors.
  /// All ranks' x, added up.
  Tensor summed(const Tensor& x);
  /// x; its gradient is all ranks' added up.
  Tensor summed_back(const Tensor& x);
  /// All `ranks` ranks' parts of rows, side by side. The gradient is this rank's part again.
  Tensor gathered(const Tensor& x, std::uint64_t ranks);

 private:
  Tensor cast_leaf(Parameter& parameter);
  Tensor of_input(const Tensor& x);
  Tensor product(const Tensor& a, const Tensor& b, std::uint64_t out);
  Tensor scores_and_values(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionShape& shape,
                           double dropout);

  Tape& tape_;
  TorchDevice device_;
  std::optional<DType> autocast_;
  std::vector<Parameter*> cached_;
};

}  // namespace oomlab::fit
