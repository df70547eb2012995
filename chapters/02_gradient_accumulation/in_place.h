#pragma once
// An activation function that overwrites its input, and what the backward pass then reads.
//
//   beside its input   input, output and gradient      12 bytes per element
//   in place           output and gradient              8 bytes per element
//
// The derivative of ReLU can be told from its output, so in place is right. GELU's is computed from its input, which is
// gone: the gradient is wrong. (PyTorch counts the versions of a tensor and refuses that backward pass.)

#include <cmath>
#include <vector>

#include "cuda/backend.h"
#include "harness/chapter.h"
#include "nn/ops/activation.h"
#include "nn/ops/values.h"

namespace oomlab::gradient_accumulation {

/// In place against beside its input.
struct InPlace {
  double bytes = 0;       ///< peak in place / peak beside
  double difference = 0;  ///< of the gradients, relative L2; 0 in plan mode
};

inline InPlace in_place(const Config& config, nn::Activation activation) {
  constexpr std::size_t kRows = 128, kWidth = 64, kCount = kRows * kWidth;
  std::size_t peak[2];
  std::vector<float> gradient[2];
  for (const bool overwrite : {false, true}) {
    Ledger ledger;
    with_context(config, kUnlimited, ledger, [&](Context& context) {
      auto x = context.buffer<float>(kCount, Category::activations, "input");
      nn::fill_uniform(context, x.data(), kCount, 2.0f, 1, 0);
      DeviceBuffer<float> y;
      if (overwrite) {
        nn::bias_activation(context, x.data(), nullptr, kRows, kWidth, activation);
      } else {
        y = context.buffer<float>(kCount, Category::activations, "output");
        nn::bias_activation_keep(context, x.data(), nullptr, y.data(), kRows, kWidth, activation);
      }
      auto dy = context.buffer<float>(kCount, Category::activations, "gradient");
      nn::fill(context, dy.data(), kCount, 1.0f);
      nn::activation_backward(context, dy.data(), x.data(), kCount, activation);
      gradient[overwrite].resize(kCount);
      if (!planning())
        CUDA_CHECK(cudaMemcpyAsync(gradient[overwrite].data(), dy.data(), dy.bytes(), cudaMemcpyDeviceToHost,
                                   context.stream()));
      context.synchronize();
    });
    peak[overwrite] = ledger.peak_by_category()[Category::activations];
  }
  double difference = 0, square = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    difference += std::pow(gradient[1][i] - gradient[0][i], 2);
    square += std::pow(gradient[0][i], 2);
  }
  return {double(peak[1]) / double(peak[0]), square > 0 ? std::sqrt(difference / square) : 0};
}

}  // namespace oomlab::gradient_accumulation
