#include "plan/mlp_step.h"

#include <algorithm>
#include <vector>

#include "plan/bytes.h"

namespace oomlab::nn {

std::uint64_t activation_bytes(const MlpSpec& spec, std::uint64_t batch, std::size_t l) {
  return round_to_granule(checked_product(checked_product(batch, spec.widths[l]), sizeof(float)));
}

std::uint64_t parameter_bytes(const MlpSpec& spec) {
  // Σ over layers: granule(4 · w[l−1] · w[l]) + granule(4 · w[l])
  std::uint64_t sum = 0;
  for (std::size_t l = 1; l <= spec.layers(); ++l) {
    const std::uint64_t weights = checked_product(checked_product(spec.widths[l - 1], spec.widths[l]), sizeof(float));
    sum = checked_sum(
        sum, checked_sum(round_to_granule(weights), round_to_granule(checked_product(spec.widths[l], sizeof(float)))));
  }
  return sum;
}

std::uint64_t label_bytes(std::uint64_t batch) { return round_to_granule(checked_product(batch, sizeof(int))); }

ByCategory resident_for_inference(const MlpSpec& spec) {
  ByCategory resident;
  resident[Category::parameters] = parameter_bytes(spec);
  return resident;
}

ByCategory resident_for_training(const MlpSpec& spec, OptimizerKind optimizer) {
  ByCategory resident = resident_for_inference(spec);
  resident[Category::workspace] += round_to_granule(sizeof(float));  // the loss
  resident[Category::gradients] = parameter_bytes(spec);
  resident[Category::optimizer] = checked_product(parameter_bytes(spec), state_buffers(optimizer));
  return resident;
}

// Training keeps, with L layers and A(l) = activation_bytes(l):
//
//   K(0) = A(0)                     the input
//   K(l) = A(l), GELU: 2 A(l)       hidden layers: the output; GELU also what came before it
//   A(L)                            the logits
//
// Memory is fullest at one of these moments, in this order:
//
//   the loss        K(0) + … + K(L−1) + A(L) + R               R: the row losses (workspace)
//   backward of l   K(0) + … + K(l−2) + S(l−1) + A(l) + A(l−1)  for l = L…2
//
// There A(l) is the gradient that came down (at l = L in the logits' own buffer), A(l−1) the one going
// further down, and S(l−1) = A(l−1) what the activation's derivative needs (no activation: 0). Layer l−1's
// output was last read by the weight gradient just before; ReLU's derivative needs it, GELU's does not.
//
// Backward frees what lies above, so the sums differ only by their widest layers: neither moment always wins.
PeakBytes predict_training(const MlpSpec& spec, std::uint64_t batch, OptimizerKind optimizer) {
  const std::size_t layers = spec.layers();
  const auto a = [&](std::size_t l) { return activation_bytes(spec, batch, l); };
  const std::uint64_t copies = spec.activation == Activation::gelu ? 2 : 1;

  std::vector<std::uint64_t> kept_below(layers + 1, 0);  // kept_below[l] = K(0) + … + K(l−1)
  for (std::size_t l = 0; l < layers; ++l)
    kept_below[l + 1] = checked_sum(kept_below[l], l == 0 ? a(0) : checked_product(a(l), copies));

  PeakBytes peak{resident_for_training(spec, optimizer)};
  peak.at_peak[Category::data] += label_bytes(batch);
  PeakBytes loss = peak;
  loss.at_peak[Category::activations] = checked_sum(kept_below[layers], a(layers));
  loss.at_peak[Category::workspace] += round_to_granule(checked_product(batch, sizeof(float)));
  PeakBytes largest = loss;
  for (std::size_t l = layers; l >= 2; --l) {
    const std::uint64_t derivative = spec.activation == Activation::none ? 0 : a(l - 1);
    PeakBytes layer = peak;
    layer.at_peak[Category::activations] =
        checked_sum(checked_sum(kept_below[l - 1], derivative), checked_sum(a(l), a(l - 1)));
    largest = later_peak(largest, layer);
  }
  return largest;
}

// Inference holds a layer's input and its output: the largest A(l−1) + A(l).
PeakBytes predict_inference(const MlpSpec& spec, std::uint64_t batch) {
  std::uint64_t pair = 0;
  for (std::size_t l = 1; l <= spec.layers(); ++l)
    pair = std::max(pair, checked_sum(activation_bytes(spec, batch, l - 1), activation_bytes(spec, batch, l)));
  PeakBytes peak{resident_for_inference(spec)};
  peak.at_peak[Category::activations] = pair;
  return peak;
}

double step_flops(const MlpSpec& spec, std::uint64_t batch) {
  double flops = 0;
  for (std::size_t l = 1; l <= spec.layers(); ++l)
    flops += (l == 1 ? 4.0 : 6.0) * static_cast<double>(spec.widths[l - 1]) * static_cast<double>(spec.widths[l]);
  return flops * static_cast<double>(batch);
}

// Inference on top of `resident`, with the labels and one counter beside it.
PeakBytes predict_count_correct(const MlpSpec& spec, std::uint64_t batch, const ByCategory& resident) {
  PeakBytes peak{resident};
  peak.at_peak[Category::activations] += predict_inference(spec, batch).at_peak[Category::activations];
  peak.at_peak[Category::data] += label_bytes(batch);
  peak.at_peak[Category::workspace] += round_to_granule(sizeof(unsigned long long));
  return peak;
}

}  // namespace oomlab::nn
