#pragma once
// Inference of four linear layers, each twice as wide as the one before, with FP16 weights: dense, or 2:4 sparse in the
// packed form.

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "data/device_dataset.h"
#include "harness/chapter.h"
#include "nn/ops/activation.h"
#include "nn/ops/values.h"
#include "plan/peak.h"
#include "sparse.h"

namespace oomlab::lighter_models {

inline constexpr std::size_t kLinearLayers = 4;
/// Rows of a dense weight that exist while a packed one is made.
inline constexpr std::size_t kRowsAtATime = 32;

/// Numbers of FP32 in 16 bits.
inline __global__ void to_half_kernel(const float* __restrict__ x, __half* __restrict__ y, std::size_t count) {
  for (std::size_t i : grid_range(count)) y[i] = static_cast<__half>(x[i]);
}

class LinearInference final : public Workload {
 public:
  /// Layers inputs → 2 · inputs → … → 16 · inputs, a ReLU behind each. A packed layer is made from kRowsAtATime rows of
  /// a dense one at a time. Throws OutOfMemory, and std::invalid_argument when packed rows are not whole groups of
  /// four.
  LinearInference(Context& context, const data::Dataset& dataset, std::size_t inputs, bool packed, std::size_t batch)
      : context_(context), images_(context, dataset), inputs_(inputs), batch_(batch) {
    for (std::size_t l = 0; l < kLinearLayers; ++l) {
      const std::size_t in = inputs << l, out = 2 * in;
      const std::string name = "layer " + std::to_string(l + 1);
      const float bound = std::sqrt(6.0f / static_cast<float>(in));
      if (packed) packed_.emplace_back(context, out, in, name);
      const std::size_t rows = packed ? std::min(out, kRowsAtATime) : out;
      auto weight = context.buffer<__half>(checked_product(rows, in), Category::parameters, name + " weight");
      for (std::size_t first = 0; first < out; first += rows) {
        const std::size_t here = std::min(rows, out - first);
        nn::fill_uniform(context, weight.data(), here * in, bound, kSeed + first, l);
        if (packed) packed_.back().pack_rows(context, weight.data(), first, here);
      }
      if (!packed) dense_.push_back(std::move(weight));
    }
  }

  void step() override {
    auto read = context_.buffer<float>(checked_product(batch_, inputs_), Category::activations, "input");
    images_.batch(context_, first_, batch_, inputs_, read.data(), nullptr);
    auto x = context_.buffer<__half>(read.size(), Category::activations, "input, FP16");
    launch(to_half_kernel, shape_for_items(x.size()), context_.stream(), read.data(), x.data(), x.size());
    read.reset();
    for (std::size_t l = 0; l < kLinearLayers; ++l) {
      const std::size_t in = inputs_ << l, out = 2 * in;
      auto y = context_.buffer<__half>(checked_product(batch_, out), Category::activations, "output");
      if (packed_.empty())
        multiply_dense(context_, x.data(), dense_[l].data(), y.data(), batch_, in, out);
      else
        packed_[l].multiply(context_, x.data(), y.data(), batch_);
      nn::bias_activation(context_, y.data(), nullptr, batch_, out, nn::Activation::relu);
      x = std::move(y);
    }
    hash_ = nn::fingerprint(context_, x.data(), x.bytes());
    first_ += batch_;
  }
  std::size_t samples_per_step() const override { return batch_; }
  /// There is no loss.
  double figure() override { return 0; }
  std::uint64_t fingerprint() override { return hash_; }

  static ByCategory predicted(const data::Dataset& dataset, std::size_t inputs, bool packed, std::size_t batch) {
    PeakTracker tracker;
    tracker.add(Category::data, data::device_bytes(dataset));
    const auto halves = [](std::size_t count) { return round_to_granule(checked_product(count, sizeof(__half))); };
    for (std::size_t l = 0; l < kLinearLayers; ++l) {
      const std::size_t in = checked_product(inputs, std::size_t(1) << l), out = checked_product(2, in);
      if (packed) tracker.add(Category::parameters, two_of_four_bytes(out, in));
      const std::size_t dense = halves(checked_product(packed ? std::min(out, kRowsAtATime) : out, in));
      tracker.add(Category::parameters, dense);
      if (packed) tracker.drop(Category::parameters, dense);
    }
    const auto activation = [&](std::size_t l) { return halves(checked_product(batch, inputs << l)); };
    const std::size_t read = round_to_granule(checked_product(checked_product(batch, inputs), sizeof(float)));
    tracker.add(Category::activations, read);
    tracker.add(Category::activations, activation(0));
    tracker.drop(Category::activations, read);
    for (std::size_t l = 0; l < kLinearLayers; ++l) {
      tracker.add(Category::activations, activation(l + 1));
      tracker.drop(Category::activations, activation(l));
    }
    return tracker.peak().at_peak;
  }

 private:
  static constexpr std::uint64_t kSeed = 1;

  Context& context_;
  data::DeviceDataset images_;
  std::vector<DeviceBuffer<__half>> dense_;
  std::vector<TwoOfFour> packed_;
  std::size_t inputs_, batch_, first_ = 0;
  std::uint64_t hash_ = 0;
};

}  // namespace oomlab::lighter_models
