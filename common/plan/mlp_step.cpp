#include "plan/mlp_step.h"

#include <algorithm>
#include <vector>

#include "plan/tensor_bytes.h"

namespace oomlab::nn {

std::uint64_t activation_bytes(const MlpSpec& spec, std::uint64_t batch, std::size_t layer) {
  return float_bytes(checked_product(batch, spec.widths[layer]));
}

std::uint64_t parameter_bytes(const MlpSpec& spec) {
  std::uint64_t sum = 0;
  for (std::size_t layer = 1; layer <= spec.layers(); ++layer) {
    const std::uint64_t weight = float_bytes(checked_product(spec.widths[layer - 1], spec.widths[layer]));
    const std::uint64_t bias = float_bytes(spec.widths[layer]);
    sum = checked_sum(sum, checked_sum(weight, bias));
  }
  return sum;
}

std::uint64_t label_bytes(std::uint64_t batch) { return round_to_granule(checked_product(batch, sizeof(int))); }

ByCategory resident_for_inference(const MlpSpec& spec) {
  ByCategory resident;
  resident[Category::parameters] = parameter_bytes(spec);
  return resident;
}

ByCategory resident_for_training(const MlpSpec& spec, UpdateRule optimizer) {
  ByCategory resident = resident_for_inference(spec);
  resident[Category::workspace] += float_bytes(1);  // the loss
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
PeakBytes predict_training(const MlpSpec& spec, std::uint64_t batch, UpdateRule optimizer) {
  const std::size_t layers = spec.layers();
  const auto activation = [&](std::size_t layer) { return activation_bytes(spec, batch, layer); };
  const std::uint64_t copies = spec.activation == Activation::gelu ? 2 : 1;

  std::vector<std::uint64_t> saved_below(layers + 1, 0);  // saved_below[l] = K(0) + … + K(l−1)
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const std::uint64_t saved = layer == 0 ? activation(0) : checked_product(activation(layer), copies);
    saved_below[layer + 1] = checked_sum(saved_below[layer], saved);
  }

  PeakBytes always{resident_for_training(spec, optimizer)};
  always.at_peak[Category::data] += label_bytes(batch);

  PeakBytes loss = always;
  loss.at_peak[Category::activations] = checked_sum(saved_below[layers], activation(layers));
  loss.at_peak[Category::workspace] += float_bytes(batch);  // row losses

  PeakBytes peak = loss;
  for (std::size_t layer = layers; layer >= 2; --layer) {
    const std::uint64_t derivative = spec.activation == Activation::none ? 0 : activation(layer - 1);
    const std::uint64_t gradients = checked_sum(activation(layer), activation(layer - 1));
    PeakBytes backward = always;
    backward.at_peak[Category::activations] = checked_sum(checked_sum(saved_below[layer - 1], derivative), gradients);
    peak = later_peak(peak, backward);
  }
  return peak;
}

// Inference holds a layer's input and its output: the largest A(l−1) + A(l).
PeakBytes predict_inference(const MlpSpec& spec, std::uint64_t batch) {
  std::uint64_t peak_activations = 0;
  for (std::size_t layer = 1; layer <= spec.layers(); ++layer) {
    const std::uint64_t output = activation_bytes(spec, batch, layer);
    const std::uint64_t input = activation_bytes(spec, batch, layer - 1);
    peak_activations = std::max(peak_activations, checked_sum(input, output));
  }
  PeakBytes peak{resident_for_inference(spec)};
  peak.at_peak[Category::activations] = peak_activations;
  return peak;
}

double step_flops(const MlpSpec& spec, std::uint64_t batch) {
  double flops = 0;
  for (std::size_t layer = 1; layer <= spec.layers(); ++layer) {
    const double per_weight = layer == 1 ? 4.0 : 6.0;
    flops += per_weight * static_cast<double>(spec.widths[layer - 1]) * static_cast<double>(spec.widths[layer]);
  }
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
