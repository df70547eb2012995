// Adapters of a layer's matrices, and what a layer saves whose weights are frozen.

#include "plan/step_simulation.h"

namespace oomlab::nn {

// x A^T of one adapter after the other, and with dropout what is left of x.
void StepSimulation::adapters_forward(const StepBuffers::OfAdapters& of, bool by_rows) {
  if (of.count == 0) return;
  const std::uint64_t input = by_rows ? of.dropped_chunk : of.dropped_input;
  const std::uint64_t product = by_rows ? buffers_.adapter_chunk : buffers_.adapter_product;
  add(input);
  add(product);
  drop(product);
  drop(input);
}

// x A^T once more, and its gradient.
void StepSimulation::adapters_weight_gradients(const StepBuffers::OfAdapters& of, bool by_rows) {
  if (of.count == 0) return;
  const std::uint64_t input = by_rows ? of.dropped_chunk : of.dropped_input;
  const std::uint64_t product = by_rows ? buffers_.adapter_chunk : buffers_.adapter_product;
  add(input);
  add(product);
  add(product);
  drop(product);
  drop(product);
  drop(input);
}

// The gradient of x A^T, and with dropout that of what was left of x.
void StepSimulation::adapters_input_gradient(const StepBuffers::OfAdapters& of, bool by_rows) {
  adapters_forward(of, by_rows);
}

std::uint64_t StepSimulation::adapter_masks() const {
  return buffers_.qkv_adapters.masks + buffers_.projection_adapters.masks + buffers_.up_adapters.masks +
         buffers_.down_adapters.masks;
}

bool StepSimulation::saves_attention_norm(const Keep& saved) const {
  return saved.layer && saved.norms && reads_input(buffers_.qkv_adapters);
}

bool StepSimulation::saves_mlp_norm(const Keep& saved) const {
  const bool read = reads_input(buffers_.up_adapters) || tiles_mlp();
  return saved.layer && saved.norms && read;
}

// Fused attention reads it for its own gradient, too, and what recomputes the residual behind it reads it anyway.
bool StepSimulation::saves_attention_output(const Keep& saved) const {
  const bool read = reads_input(buffers_.projection_adapters) || levers_.form.attention == AttentionForm::fused;
  return saved.layer && (read || !saved.post_attention_residual);
}

}  // namespace oomlab::nn
