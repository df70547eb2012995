#pragma once
// Whole runs whose ledger is then looked at.

#include <memory>

#include "nn/models/mlp.h"
#include "nn/ops/values.h"

namespace oomlab::test {

inline nn::Optimizer<float> make_optimizer(Context& context, nn::Mlp& model, nn::UpdateRule rule) {
  return {context, model.parameters(), {rule}};
}

inline nn::Batch zero_batch(Context& context, const nn::MlpSpec& spec, std::size_t batch) {
  nn::Batch made = nn::make_batch(context, batch, spec.inputs());
  nn::fill(context, made.input.data(), made.input.size(), 0.5f);
  CUDA_CHECK(cudaMemsetAsync(made.labels.data(), 0, made.labels.bytes(), context.stream()));
  return made;
}

/// Trains for some steps; afterwards nothing is live in the ledger any more.
inline void train(Ledger& ledger, const nn::MlpSpec& spec, std::size_t batch, nn::UpdateRule kind, int steps) {
  CudaResource resource;
  Context context(resource, ledger);
  nn::Mlp model(context, spec, 1, true);
  auto optimizer = make_optimizer(context, model, kind);
  for (int s = 0; s < steps; ++s) model.train_step(context, zero_batch(context, spec, batch), optimizer);
}

}  // namespace oomlab::test
