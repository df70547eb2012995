#pragma once
// Training in FP16 or BF16 (Micikevicius et al., "Mixed precision training", 2018): the model is stored as T, the
// optimizer keeps an FP32 master copy of the weights, and gradients too small for FP16 are saved by multiplying the
// loss by a scale, which the optimizer divides out again.
//
//   bytes per parameter   T 2 + gradient 2 + master weights 4 + two moments 8 = 16, which is what FP32 needs, too:
//                         4 + 4 + 8. Only activations are halved.
//
// The scale is dynamic: a step whose gradients overflow is skipped and halves it, `growth_interval` good steps in a row
// double it. All of this is decided on the device; the host never waits.

#include <cstdint>
#include <vector>

#include "cuda/dtype_of.h"
#include "nn/files/state_file.h"
#include "nn/optimizer/adamw_rule.h"
#include "nn/optimizer/optimizer.h"
#include "plan/levers.h"

namespace oomlab::nn {

struct LossScaling {
  float initial = 1;                     ///< 1: none; 65536 is usual for FP16
  bool dynamic = false;                  ///< false: the scale stays, and every step is done, whatever its gradients
  std::uint32_t growth_interval = 2000;  ///< good steps in a row, after which the scale doubles

  static LossScaling none() { return {}; }
  static LossScaling dynamic_from(float initial, std::uint32_t growth_interval = 2000) {
    return {initial, true, growth_interval};
  }
};

/// The loss scale and what goes with it, on the device.
struct ScaleState {
  float scale;
  float overflow;            ///< blocks that saw a gradient that is not finite, in this step; of all ranks, a sum
  std::uint32_t good_steps;  ///< in a row
  std::uint32_t skipped;     ///< steps, since the beginning
  std::uint32_t steps;       ///< done
  float factor;              ///< what this step's gradients are multiplied by: 1 / scale, or 0 where it is skipped
  BiasCorrections corrections;
};
static_assert(sizeof(ScaleState) == kScaleStateBytes, "a prediction counts it");

/// A loss scale, decided on the device (one ScaleState, category optimizer). In a step: look_at() all gradients, begin(),
/// an update with on_device(), end().
class LossScale {
 public:
  /// Throws OutOfMemory.
  LossScale(Context& context, LossScaling scaling);
  /// What the gradients must be multiplied by: forward_backward()'s scale_on_device.
  const float* scale_on_device() const noexcept { return &state_.data()->scale; }
  /// Whether any of `count` gradients is not finite. None of these waits.
  template <class T>
  void look_at(Context& context, const T* gradients, std::size_t count);
  /// The same of all gradients of a model.
  template <class T>
  void look_at_all(Context& context, const std::vector<ParameterOf<T>>& parameters);
  /// On the device, not 0 when one was not: several ranks add theirs up.
  float* overflow() noexcept { return &state_.data()->overflow; }
  /// Decides whether the step is done, and with which corrections of AdamW.
  void begin(Context& context, const AdamWSettings& settings);
  StepOnDevice on_device() const noexcept { return {&state_.data()->factor, &state_.data()->corrections.rate}; }
  /// The scale of the next step.
  void end(Context& context);
  /// What gradients are multiplied by after begin(), 0 where the step is left out (waits for the stream).
  float factor(Context& context) const { return state(context).factor; }
  /// Copied from the device (waits for the stream). All zero in plan mode.
  ScaleState state(Context& context) const;
  /// For what saves it.
  DeviceBuffer<ScaleState>& buffer() noexcept { return state_; }

 private:
  LossScaling scaling_;
  DeviceBuffer<ScaleState> state_;
};

/// An optimizer for a model of T with a loss scale. Beside the optimizer's state there is one ScaleState (category
/// optimizer).
template <class T>
class ScaledOptimizer {
 public:
  /// Without a form: AdamW, and a master copy where T has 16 bits. Of form.weights `stored`, in 16 bits, updates
  /// smaller than what T resolves are lost. Throws as Optimizer.
  ScaledOptimizer(Context& context, std::vector<ParameterOf<T>> parameters, LossScaling scaling,
                  OptimizerSettings settings = {}, OptimizerForm form = {.weights = plan::usual_weights(kDTypeOf<T>)});
  /// What the gradients must be multiplied by: forward_backward()'s scale_on_device.
  const float* scale_on_device() const noexcept { return scale_.scale_on_device(); }
  /// One update (phase "optimizer"), or none if a gradient is not finite and the scale is dynamic. Does not wait.
  void step(Context& context);
  /// Copied from the device (waits for the stream). All zero in plan mode.
  ScaleState state(Context& context) const { return scale_.state(context); }
  /// A parameter's buffers.
  const typename Optimizer<T>::State& state_of(std::size_t parameter) const noexcept {
    return optimizer_.state(parameter);
  }
  /// Weights and optimizer state, for save_state() and load_state(): training goes on from them with the same bits.
  std::vector<StateTensor> state_tensors();

 private:
  std::vector<ParameterOf<T>> parameters_;
  Optimizer<T> optimizer_;
  LossScale scale_;
};

}  // namespace oomlab::nn
