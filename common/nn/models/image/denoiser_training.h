#pragma once
// Training adapters on a denoiser's attention (Hu et al., "LoRA", 2021), as diffusers' train_text_to_image_lora.py does: the
// denoiser is told latents to which noise was added, and learns to predict that noise. Its loss is the mean square of the
// difference (Ho et al., "Denoising diffusion probabilistic models", 2020). plan/image/walk.h lists a step's allocations.

#include <cstddef>
#include <cstdint>

#include "memory/context.h"
#include "nn/models/image/denoiser.h"
#include "nn/models/image/lora.h"
#include "nn/optimizer/mixed_precision.h"

namespace oomlab::image {

/// A batch on the device. Nothing is owned.
template <class T>
struct NoisyBatch {
  const T *latents, *noise;  ///< [batch, height, width, in_channels]: latents with noise, and the noise in them
  const float* timesteps;    ///< [batch]
  TextRows<T> text;
  AddedConditions<T> added;
  std::size_t batch;
  nn::InputSize size;
};

/// T is what the denoiser is stored as. Adapters and gradients are stored as T, AdamW's moments in FP32; of 16 bits there is a
/// copy of the adapters in FP32, too, which gets the updates. In FP16 the loss is scaled by a constant.
template <class T>
class DenoiserTraining {
 public:
  /// The denoiser must outlive this, and its weights be resident (std::invalid_argument otherwise). Throws OutOfMemory
  /// (nothing stays allocated), and as LoraAdapters().
  DenoiserTraining(Context& context, Denoiser<T>& denoiser, const LoraForm& form, std::uint64_t seed,
                   const nn::AdamWSettings& adamw);
  ~DenoiserTraining() { denoiser_.set_adapters(nullptr); }
  DenoiserTraining(const DenoiserTraining&) = delete;
  DenoiserTraining& operator=(const DenoiserTraining&) = delete;

  /// Forward, loss, backward, update. Does not wait. Throws OutOfMemory: what the step had allocated is free again, nothing was
  /// updated, and the next try gives the same bits.
  void step(Context& context, const NoisyBatch<T>& batch, const Form& form);
  /// The same without the update: the gradients are those of the loss, times loss_scale().
  void gradients(Context& context, const NoisyBatch<T>& batch, const Form& form);
  /// Of the last batch (waits for the stream).
  double loss(Context& context) const;
  LoraAdapters<T>& adapters() noexcept { return adapters_; }
  static float loss_scale() noexcept;

 private:
  Denoiser<T>& denoiser_;
  LoraAdapters<T> adapters_;
  nn::ScaledOptimizer<T> optimizer_;
  DeviceBuffer<float> loss_;
};

}  // namespace oomlab::image
