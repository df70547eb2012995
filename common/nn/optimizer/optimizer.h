#pragma once
// Optimizers: a rule (plan/optimizer_state.h has them, and the bytes that each keeps), for weights stored as T. All
// tensors of a step are updated by one launch, or by a few. Any of them can be updated, in any order: all after the
// backward pass, or each layer's in it.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "memory/context.h"
#include "plan/model/transformer.h"
#include "plan/optimizer_state.h"

namespace oomlab::nn {

/// One trainable tensor: not owned.
template <class T>
struct ParameterOf {
  std::string name;  ///< "layer 3 weight"
  T* value = nullptr;
  T* gradient = nullptr;  ///< null when the model was made without gradients
  std::size_t count = 0;
};
using Parameter = ParameterOf<float>;

struct AdamWSettings {
  float lr = 1e-3f, beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, weight_decay = 0.01f;
};
struct SgdSettings {
  float lr = 0.05f;
  float momentum = 0.9f;  ///< of UpdateRule::momentum
};
/// Adafactor's: the step is min(lr, 1 / √t) of the root mean square of the weights, and clipped by the update's.
struct AdafactorSettings {
  float lr = 1e-2f, decay = -0.8f, eps1 = 1.1920929e-7f, eps2 = 1e-3f, weight_decay = 0.0f;
};
/// Of all rules; one reads its own.
struct OptimizerSettings {
  AdamWSettings adamw{};
  AdafactorSettings adafactor{};
  SgdSettings sgd{};
  std::uint64_t seed = 1;  ///< of stochastic rounding
};

/// Floats on the device that a step reads, for what the host does not know and does not wait for. Null: there is no
/// such float.
struct StepOnDevice {
  const float* factor = nullptr;  ///< what gradients are multiplied by (without: 1); where it is 0 nothing is done
  const float* bias_corrections = nullptr;  ///< AdamW's two (BiasCorrections), where steps may be left out
};

/// T is float, __half or __nv_bfloat16.
template <class T>
class Optimizer {
 public:
  /// Tensors `shapes`, whose values are at `values`, not owned. The state is allocated (category optimizer, tag "<name>
  /// m" and the like) and zeroed, and master copies are taken. Throws OutOfMemory (nothing stays allocated), and
  /// std::invalid_argument for FP32 with a master copy, and for stochastic rounding to anything but BF16.
  Optimizer(Context& context, std::vector<TensorShape> shapes, std::vector<T*> values, OptimizerForm form,
            OptimizerSettings settings = {});
  /// A model's parameters, for step(). Throws as the other one, and std::invalid_argument for a parameter without a
  /// gradient, and for
  /// Adafactor and wide embeddings, which ask for more of a tensor than its count.
  Optimizer(Context& context, const std::vector<ParameterOf<T>>& parameters, OptimizerForm form = {},
            OptimizerSettings settings = {});

  /// One update of every parameter from its gradient (phase "optimizer"). Does not wait, and allocates nothing.
  void step(Context& context, StepOnDevice on_device = {});

  /// A tensor's number, and where its gradient is.
  struct Update {
    std::size_t tensor;
    const T* gradient;
  };
  /// Updates these tensors, as part of the step that end_step() ends. Does not wait, and allocates nothing.
  void update(Context& context, std::span<const Update> updates, StepOnDevice on_device = {});
  void end_step() noexcept { ++steps_; }

  /// Steps done so far.
  std::uint64_t steps() const noexcept { return steps_; }
  const OptimizerForm& form() const noexcept { return form_; }
  const OptimizerSettings& settings() const noexcept { return settings_; }
  /// A hash of the whole state (waits for the stream); 0 in plan mode.
  std::uint64_t fingerprint(Context& context) const;

  /// A tensor's buffers; those that it does not have are empty.
  struct State {
    DeviceBuffer<float> master;
    DeviceBuffer<float> first, second;            ///< moments; the velocity is the first
    DeviceBuffer<std::uint8_t> codes[2];          ///< of the two moments
    DeviceBuffer<float> absmax[2];                ///< of their blocks
    DeviceBuffer<float> row_means, column_means;  ///< Adafactor's of a matrix; `second` of a vector
  };
  const State& state(std::size_t tensor) const noexcept { return states_[tensor]; }

 private:
  void adamw_8(Context& context, std::span<const Update> updates, StepOnDevice on_device);
  void adafactor(Context& context, const Update& update, const float* factor);
  std::uint32_t rounding_key(std::size_t tensor) const noexcept;

  std::vector<TensorShape> shapes_;
  std::vector<T*> values_;
  std::vector<Update> all_;  // of step()
  OptimizerForm form_;
  OptimizerSettings settings_;
  std::vector<State> states_;
  DeviceBuffer<float> sums_;  // Adafactor's, of one tensor at a time
  std::uint64_t steps_ = 0;
};

/// AdamW for one tensor in FP32, for mitigations that keep its state elsewhere: value[count] and its moments
/// first[count] and second[count] are updated in place. `step` counts from 1.
void adamw_update(Context& context, float* value, const float* gradient, float* first, float* second, std::size_t count,
                  const AdamWSettings& settings, std::uint64_t step);

}  // namespace oomlab::nn
