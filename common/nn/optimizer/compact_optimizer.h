#pragma once
// Optimizers by the bytes that they keep (plan/optimizer_state.h has the rules and their bytes).
// Any tensors can be updated, in any order: all of them after the backward pass, or each layer's in it.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "memory/context.h"
#include "nn/models/transformer.h"
#include "nn/ops/values.h"
#include "nn/optimizer/adamw_rule.h"
#include "nn/optimizer/dynamic_code.h"
#include "plan/optimizer_state.h"

namespace oomlab::nn {

struct OptimizerSettings {
  AdamWSettings adamw{};
  /// Adafactor's: the step is min(lr, 1 / √t) of the root mean square of the weights, and clipped by the update's.
  struct Adafactor {
    float lr = 1e-2f, decay = -0.8f, eps1 = 1.1920929e-7f, eps2 = 1e-3f, weight_decay = 0.0f;
  } adafactor{};
  float sgd_lr = 0.05f;
  std::uint64_t seed = 1;  ///< of stochastic rounding
};

/// T is float or __nv_bfloat16.
template <class T>
class CompactOptimizer {
 public:
  /// Tensors `shapes`, whose values are at `values`, not owned. The state is allocated and zeroed, master copies are
  /// taken. Throws OutOfMemory (nothing stays allocated), and std::invalid_argument for stochastic FP32.
  CompactOptimizer(Context& context, std::vector<TensorShape> shapes, std::vector<T*> values, OptimizerForm form,
                   OptimizerSettings settings = {});
  /// A tensor's number, and where its gradient is.
  struct Update {
    std::size_t tensor;
    const T* gradient;
  };
  /// Updates these tensors, as part of the step that end_step() ends. Gradients are multiplied by *factor, a float on
  /// the device; null: 1; if it is 0 nothing is done. Does not wait, and allocates nothing.
  void update(Context& context, std::span<const Update> updates, const float* factor = nullptr);
  void end_step() noexcept { ++steps_; }
  /// Steps done so far.
  std::uint64_t steps() const noexcept { return steps_; }
  const OptimizerForm& form() const noexcept { return form_; }
  /// A hash of the whole state (waits for the stream); 0 in plan mode.
  std::uint64_t fingerprint(Context& context) const;

  /// A tensor's buffers; those that it does not have are empty.
  struct State {
    DeviceBuffer<float> master;
    DeviceBuffer<float> first, second;            ///< moments
    DeviceBuffer<std::uint8_t> codes[2];          ///< of the two moments
    DeviceBuffer<float> absmax[2];                ///< of their blocks
    DeviceBuffer<float> row_means, column_means;  ///< Adafactor's of a matrix; `second` of a vector
  };
  const State& state(std::size_t tensor) const noexcept { return states_[tensor]; }

 private:
  void adafactor(Context& context, const Update& update, const float* factor);
  std::vector<TensorShape> shapes_;
  std::vector<T*> values_;
  OptimizerForm form_;
  OptimizerSettings settings_;
  std::vector<State> states_;
  DeviceBuffer<float> sums_;  // Adafactor's, of one tensor at a time
  std::uint64_t steps_ = 0;
};

/// Numbers in blocks of 256, as codes of 8 bits and an absmax for each block, and back.
void encode_blocks(Context& context, const float* from, std::size_t count, bool with_sign, std::uint8_t* codes,
                   float* absmax);
void decode_blocks(Context& context, const std::uint8_t* codes, const float* absmax, std::size_t count, bool with_sign,
                   float* to);

/// The factor of all gradients: 1 / scale, or less where their norm, divided by scale, is above `clip` (0: never), or 0
/// where it is not finite: such a step is left out. *factor is on the device, and `parts`, factor_parts() floats.
template <class T>
void gradient_factor(Context& context, std::span<const ParameterOf<T>> parameters, float scale, float clip,
                     float* parts, float* factor);
std::size_t factor_parts(std::span<const TensorShape> shapes);

}  // namespace oomlab::nn
