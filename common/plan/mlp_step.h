#pragma once
// What a step of a multi-layer perceptron needs, in closed form.
//
// Sizes: layer l = 1…L maps width w[l−1] to w[l]; A(l) = granule(4 · batch · w[l]) is one activation.
// All bytes are as the ledger counts them: every buffer on its own rounded to the granule.

#include <cstddef>
#include <cstdint>

#include "plan/model/mlp.h"
#include "plan/optimizer_state.h"
#include "plan/peak.h"

namespace oomlab::nn {

/// granule(4 · batch · w[layer]): one activation, layer = 0…L (0 is the input).
std::uint64_t activation_bytes(const MlpSpec& spec, std::uint64_t batch, std::size_t layer);
/// All parameters; gradients are the same, and so is each state buffer of the optimizer.
std::uint64_t parameter_bytes(const MlpSpec& spec);
/// granule(4 · batch): the labels of a batch (category data).
std::uint64_t label_bytes(std::uint64_t batch);

/// What stays allocated between steps, beside the context's cuBLAS workspace (which no prediction here has, because its
/// size is a choice): parameters, and when training gradients, the loss, and the optimizer's state.
ByCategory resident_for_training(const MlpSpec& spec, UpdateRule optimizer);
/// The same of inference: parameters alone.
ByCategory resident_for_inference(const MlpSpec& spec);

/// Peak of a program with one Context, one Mlp with gradients, one optimizer, and train_step on batches of
/// `batch`. The caller adds its dataset.
PeakBytes predict_training(const MlpSpec& spec, std::uint64_t batch, UpdateRule optimizer);
/// Peak of a program with one Context, one Mlp without gradients, and forward() on inputs of `batch` (no
/// labels).
PeakBytes predict_inference(const MlpSpec& spec, std::uint64_t batch);
/// Floating-point operations of a training step's matrix products, a multiplication and an addition counted as two:
/// 2 · batch · w[l−1] · w[l] for each layer forward, for the gradient of its weight, and, but for the first layer, for
/// that of its input. Exact up to 2^53.
double step_flops(const MlpSpec& spec, std::uint64_t batch);
/// Peak of count_correct() on a Batch (which has labels), above `resident`.
PeakBytes predict_count_correct(const MlpSpec& spec, std::uint64_t batch, const ByCategory& resident);

}  // namespace oomlab::nn
