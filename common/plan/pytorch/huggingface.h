#pragma once
// The peak of a training step of Hugging Face's own modules (transformers 5, peft) in PyTorch's eager mode: their
// forward functions, statement by statement, on a tape that only counts bytes (tape.h, torch_ops.h). Nothing is fitted
// to measurements. docs/fit_pytorch.md says how far it is from what PyTorch measures of itself.
//
// The step is `model(input_ids=..., labels=..., use_cache=False).loss.backward()` and the optimizer's, of sequences
// without padding, each of `seq` tokens; it is the second step or a later one, so the optimizer's state exists.

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/category.h"
#include "plan/model/huggingface.h"
#include "plan/pytorch/torch_ops.h"

namespace oomlab::fit {

/// Optimizers that differ in bytes. AdamW's moments are in the type of the weights.
enum class HfOptimizer {
  adamw_foreach,  ///< torch.optim.AdamW as a GPU runs it without asking: a list of √v beside the state
  adamw_fused,    ///< fused=True; the Trainer's default
  adamw_8bit,     ///< bitsandbytes' AdamW8bit by the Trainer: embeddings keep 32 bits. Not checked
  adamw_paged,    ///< the same in managed memory: nothing of it need be on the device. Not checked
  adafactor,      ///< transformers' Adafactor: a row's and a column's means of a matrix
  sgd,            ///< torch.optim.SGD without momentum: no state
};
/// torch.optim.AdamW, as a list or fused.
constexpr bool torch_adamw(HfOptimizer optimizer) {
  return optimizer == HfOptimizer::adamw_foreach || optimizer == HfOptimizer::adamw_fused;
}
/// bitsandbytes' AdamW with moments of 8 bits.
constexpr bool eight_bit(HfOptimizer optimizer) {
  return optimizer == HfOptimizer::adamw_8bit || optimizer == HfOptimizer::adamw_paged;
}

/// peft's LoraConfig.
struct HfLora {
  std::uint64_t rank = 16;
  bool all_linear = true;  ///< target_modules="all-linear", or what peft takes by itself: q and v
  double dropout = 0;
  bool four_bits = false;  ///< QLoRA: the base in NF4 with double quantisation. Not checked
  friend auto operator<=>(const HfLora&, const HfLora&) = default;
};

/// How several cards share a step; but for `tensor` each has sequences of its own.
enum class HfParallel {
  ddp,    ///< DistributedDataParallel: buckets of gradients beside everything
  fsdp2,  ///< fully_shard() of each layer, and of the model; weights are gathered, and freed after use
  /// torch.distributed.tensor.parallel: q, k, v, gate and up by columns, o and down by rows, and a head of its own by
  /// columns, its logits gathered. All ranks have the same sequences; embedding, norms and a tied head are whole.
  tensor,
  zero1,  ///< DeepSpeed: the optimizer's state is divided. ZeRO is from reading, not checked
  zero2,  ///< and the gradients
  zero3,  ///< and the weights
};

struct HfRanks {
  HfParallel parallel = HfParallel::ddp;
  std::uint64_t count = 2;         ///< cards
  bool bucket_view = false;        ///< DDP's gradient_as_bucket_view
  std::optional<DType> compute{};  ///< FSDP2's MixedPrecisionPolicy: param_dtype, in which layers are gathered
  std::optional<DType> reduce{};   ///< and its reduce_dtype; nothing: in the type of the weights
  /// ZeRO's. The model is in `weights` as a whole, adapters too: "bf16": {"enabled": true} and weights = bf16.
  bool offload_optimizer = false;   ///< "offload_optimizer": {"device": "cpu"}
  bool offload_parameters = false;  ///< "offload_param", of stage 3
  std::optional<bool> overlap{};    ///< "overlap_comm"; nothing: at stage 3 only
  std::uint64_t bucket = 0;  ///< "reduce_bucket_size", values. 0: 5e8, and at stage 3 Trainer's "auto", width squared
  friend auto operator<=>(const HfRanks&, const HfRanks&) = default;
};

/// How a decoder's loss is computed of its last hidden states.
enum class HfLoss {
  full,     ///< as transformers do: logits of all tokens, in FP32
  chunked,  ///< eight chunks of tokens, each with logits of its own that the backward pass computes again. Not checked
  liger,    ///< Liger's fused linear cross entropy: gradients come with the loss, a chunk at a time. Not checked
};

struct HfStep {
  std::uint64_t batch = 1, seq = 1;  ///< of one forward and backward pass
  std::uint64_t micro_batches = 1;   ///< gradient accumulation
  DType weights = DType::fp32;       ///< in which the model is loaded; adapters are FP32 in any case
  std::optional<DType> autocast{};   ///< torch.autocast around the forward pass
  bool checkpoint = false;           ///< gradient_checkpointing_enable()
  bool eager_attention = false;      ///< attn_implementation="eager", or "sdpa"
  HfLoss loss = HfLoss::full;
  HfOptimizer optimizer = HfOptimizer::adamw_foreach;
  std::optional<HfLora> lora{};            ///< nothing: all parameters are trained
  std::optional<HfRanks> ranks{};          ///< nothing: one card. `batch` is a rank's
  TorchDevice device = TorchDevice::cuda;  ///< whose operators
  /// For what remembers peaks: steps that differ in any member are different steps.
  friend auto operator<=>(const HfStep&, const HfStep&) = default;
};

struct HfPeak {
  ByCategory bytes;       ///< at the peak; of rank 0, whose share is the largest
  const char* moment;     ///< "forward pass", "loss", "backward pass", "optimizer's step"
  std::uint64_t trained;  ///< parameters with a gradient
  std::uint64_t host;     ///< bytes that a rank has in its host's memory (offloading)
  bool checked;           ///< this way of training is among those that bench/peers/huggingface_training.py measures
  std::vector<MemoryEvent> events{};  ///< of two steps, where they were asked for
};

/// Peak bytes of one step, by category. `recorded`: with every allocation and release in order, of a first step, too,
/// which makes the optimizer's state. Takes milliseconds.
/// Throws std::length_error where a figure does not fit 64 bits, std::invalid_argument for a step of nothing, a sequence
/// longer than the model's, or a combination that does not exist, in one line.
HfPeak huggingface_peak(const nn::HfShape& shape, const HfStep& step, bool recorded = false);

}  // namespace oomlab::fit
