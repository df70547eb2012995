#pragma once
// Whole runs whose ledger is then looked at.

#include <memory>

#include "nn/models/mlp.h"
#include "nn/ops/values.h"

namespace oomlab::test {

inline std::unique_ptr<nn::Optimizer> make_optimizer(Context& context, nn::Mlp& model, nn::OptimizerKind kind) {
  if (kind == nn::OptimizerKind::adamw) return std::make_unique<nn::AdamW>(context, model.parameters());
  return std::make_unique<nn::Sgd>(context, model.parameters(),
                                   nn::SgdSettings{0.05f, kind == nn::OptimizerKind::momentum ? 0.9f : 0.0f});
}

inline nn::Batch zero_batch(Context& context, const nn::MlpSpec& spec, std::size_t batch) {
  nn::Batch made = nn::make_batch(context, batch, spec.inputs());
  nn::fill(context, made.input.data(), made.input.size(), 0.5f);
  CUDA_CHECK(cudaMemsetAsync(made.labels.data(), 0, made.labels.bytes(), context.stream()));
  return made;
}

/// Trains for some steps; afterwards nothing is live in the ledger any more.
inline void train(Ledger& ledger, const nn::MlpSpec& spec, std::size_t batch, nn::OptimizerKind kind, int steps) {
  CudaResource resource;
  Context context(resource, ledger);
  nn::Mlp model(context, spec, 1, true);
  const auto optimizer = make_optimizer(context, model, kind);
  for (int s = 0; s < steps; ++s) model.train_step(context, zero_batch(context, spec, batch), *optimizer);
}

}  // namespace oomlab::test
