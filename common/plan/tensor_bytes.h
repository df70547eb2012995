#pragma once
// Bytes of a model's tensors in FP32, for predictions.

#include <cstdint>

#include "plan/optimizer_state.h"
#include "plan/peak.h"

namespace oomlab::nn {

/// What a buffer of `count` floats takes. Throws std::length_error when that does not fit 64 bits.
inline std::uint64_t float_bytes(std::uint64_t count) {
  return round_to_granule(checked_product(count, sizeof(float)));
}

/// Parameters, and beside them the running statistics of norms: each tensor a buffer of its own.
struct TensorBytes {
  std::uint64_t parameters = 0, statistics = 0;

  void add_parameter(std::uint64_t count) { parameters = checked_sum(parameters, float_bytes(count)); }
  /// gamma and beta, running mean and variance.
  void add_norm(std::uint64_t channels) {
    for (int twice = 0; twice < 2; ++twice) {
      add_parameter(channels);
      statistics = checked_sum(statistics, float_bytes(channels));
    }
  }
  ByCategory for_inference() const {
    ByCategory resident;
    resident[Category::parameters] = checked_sum(parameters, statistics);
    return resident;
  }
  /// With gradients, the loss, and the optimizer's state.
  ByCategory for_training(UpdateRule optimizer) const {
    ByCategory resident = for_inference();
    resident[Category::gradients] = parameters;
    resident[Category::optimizer] = checked_product(parameters, state_buffers(optimizer));
    resident[Category::workspace] = float_bytes(1);
    return resident;
  }
};

}  // namespace oomlab::nn
