#pragma once
// Optimizers: one fused kernel over all tensors, state in buffers of the category "optimizer".
//
//   kind       state, bytes per parameter    update
//   sgd        0                             w -= lr · g
//   momentum   4                             v = momentum · v + g;  w -= lr · v
//   adamw      8                             two moments, bias-corrected; decoupled weight decay

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "memory/context.h"
#include "plan/optimizer.h"

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

/// Applies the gradients. The state is allocated, and zeroed, when the optimizer is made; step() allocates
/// nothing.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// One update of every parameter from its gradient (phase "optimizer").
  virtual void step(Context& context) = 0;
  virtual OptimizerKind kind() const noexcept = 0;
  /// Updates done so far.
  std::uint64_t steps() const noexcept { return steps_; }

 protected:
  explicit Optimizer(std::vector<Parameter> parameters) : parameters_(std::move(parameters)) {}
  std::vector<Parameter> parameters_;
  std::uint64_t steps_ = 0;
};

struct SgdSettings {
  float lr = 0.05f;
  float momentum = 0.0f;  ///< 0: no state at all
};

class Sgd final : public Optimizer {
 public:
  /// Throws OutOfMemory when the state does not fit (nothing stays allocated), std::invalid_argument when a
  /// parameter has no gradient.
  Sgd(Context& context, std::vector<Parameter> parameters, SgdSettings settings = {});
  void step(Context& context) override;
  OptimizerKind kind() const noexcept override;

 private:
  SgdSettings settings_;
  std::vector<DeviceBuffer<float>> velocity_;  // "<name> velocity"
};

struct AdamWSettings {
  float lr = 1e-3f, beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, weight_decay = 0.01f;
};

class AdamW final : public Optimizer {
 public:
  /// As Sgd.
  AdamW(Context& context, std::vector<Parameter> parameters, AdamWSettings settings = {});
  void step(Context& context) override;
  OptimizerKind kind() const noexcept override { return OptimizerKind::adamw; }

 private:
  AdamWSettings settings_;
  std::vector<DeviceBuffer<float>> first_, second_;  // "<name> m", "<name> v"
};

/// One parameter tensor's update on its own, for mitigations that keep their state elsewhere. velocity may be
/// null when momentum is 0.
void sgd_update(Context& context, float* value, const float* gradient, float* velocity, std::size_t count,
                const SgdSettings& settings);
/// `step` counts from 1.
void adamw_update(Context& context, float* value, const float* gradient, float* first, float* second, std::size_t count,
                  const AdamWSettings& settings, std::uint64_t step);

}  // namespace oomlab::nn
