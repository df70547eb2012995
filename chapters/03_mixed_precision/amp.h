#pragma once
// The other design of mixed precision, in closed form: the model stays FP32, and a matrix product reads 16-bit copies
// of its weights. That is PyTorch's AMP (torch.autocast with a GradScaler; formerly Apex O1). This chapter's program
// stores 16 bits and keeps FP32 masters (Apex O2, Megatron-LM); it does not run AMP.
//
//   bytes per parameter   FP32 weight 4 + its 16-bit copy, kept for the backward pass 2 + FP32 gradient 4 + moments 8,
//                         18 in all
//
// Activations follow from which operation computes in which type. Matrix products and GELU give 16 bits. Norms, softmax
// and the loss compute in FP32, and a sum with an FP32 residual is FP32. So beside what a 16-bit layer keeps,
//   * the inputs of its two norms, and of the head's, have 4 bytes per element, not 2;
//   * softmax keeps its FP32 output, and the product with V a 16-bit copy of it: 4 + 2 bytes, where FP32 has 4;
// and the loss reads an FP32 copy of the logits.

#include "train/precision.h"

namespace oomlab::mixed_precision {

using namespace train;

/// Bytes of training with AMP by category, at the moment of the loss. There the peak is wherever the vocabulary is as
/// large as in published models.
inline ByCategory amp_bytes(const nn::TransformerSpec& spec, std::size_t sequences, std::size_t seq) {
  const std::size_t residual = nn::residual_bytes(spec, 2, sequences, seq), rows = sequences * seq;
  const std::size_t probabilities = checked_product(rows * spec.heads, seq) * sizeof(float);
  ByCategory bytes = predict_precision(spec, sequences, seq, Precision::fp16);
  bytes[Category::parameters] = nn::tensor_bytes(spec, 4) + nn::tensor_bytes(spec, 2);
  bytes[Category::gradients] = nn::tensor_bytes(spec, 4);
  bytes[Category::optimizer] = 2 * nn::tensor_bytes(spec, 4) + nn::scale_state_bytes();
  bytes[Category::activations] += spec.layers * (2 * residual + probabilities) + residual +
                                  nn::embedding_bytes(spec, 4, sequences, seq) -
                                  nn::embedding_bytes(spec, 2, sequences, seq) + rows * spec.vocabulary * sizeof(float);
  return bytes;
}

}  // namespace oomlab::mixed_precision
