#pragma once
// A denoiser: diffusers' UNet2DConditionModel (Ronneberger et al., 2015; Rombach et al., "High-resolution image synthesis with
// latent diffusion models", 2022). It predicts the noise in latents that are as noisy as a timestep says, for a text. Its
// weights are frozen; adapters on its attention can be trained (denoiser_training.h).

#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include "memory/context.h"
#include "nn/models/image/blocks.h"
#include "nn/models/image/weights.h"

namespace oomlab::image {

/// What SDXL's denoiser is told beside the text: the texts' pooled rows, and six numbers of each image (its size before it
/// was cropped, the crop's corner, the size that is wanted). On the device; both null where the spec has no added_condition.
template <class T>
struct AddedConditions {
  const T* pooled = nullptr;       ///< [batch, added_condition − 6 · added_time]
  const float* numbers = nullptr;  ///< [batch, 6]
};

// ---- what a forward pass of training keeps, block by block

struct Halved {
  std::string name;
  nn::InputSize size;  ///< before
};
struct Doubled {
  std::string name;
};
/// x and what had waited for it, side by side.
struct Joined {
  std::size_t x_channels, skip_channels;
  bool skip_trained;  ///< whether something in front of what had waited is trained
};
/// From here x goes two ways.
struct Waited {};
/// Blocks in the order of the forward pass, from the first one that is trained.
template <class T>
using Tape =
    std::vector<std::variant<KeptResidual<T>, KeptTransformer<T>, KeptEnd<T>, Halved, Doubled, Joined, Waited>>;

/// T is what weights and activations are stored as: float, __half or __nv_bfloat16.
template <class T>
class Denoiser {
 public:
  /// Throws as WeightStore(). `encode`: in fewer bits, as there.
  Denoiser(Context& context, const UNetSpec& spec, Residency residency, const ReadTensor& read,
           const nn::MakeFrozenStore<T>& encode = {})
      : spec_(spec), weights_(context, tensors_of(spec), residency, read, encode) {}

  const UNetSpec& spec() const noexcept { return spec_; }
  /// With Residency::model a stage() of these must be there while forward() runs; with the others it is nothing.
  WeightStore<T>& weights() noexcept { return weights_; }
  /// From now on these are added to the layers that they belong to; null: none. Not owned.
  /// backward() writes their gradients.
  void set_adapters(LoraAdapters<T>* adapters) noexcept { adapters_ = adapters; }

  /// The noise [batch, height, width, out_channels], a new buffer of activations, from latents [batch, height, width,
  /// in_channels], one timestep an image, and text rows [batch, tokens, spec().context]. Phase "denoiser". Throws
  /// OutOfMemory: what the pass had allocated is free again, and the next pass gives what this one would have;
  /// std::invalid_argument where the size is no multiple of spec().reduction(), or rows or conditions do not fit. `tape`,
  /// where not null, gets what backward() reads.
  DeviceBuffer<T> forward(Context& context, const T* latents, const float* timesteps, const TextRows<T>& text,
                          std::size_t batch, nn::InputSize size, const Form& form, const AddedConditions<T>& added = {},
                          Tape<T>* tape = nullptr);
  /// From d [batch, height, width, out_channels], the gradient of what forward() returned, to the gradients of the adapters,
  /// which are overwritten. Text, batch, size and form are those of forward(), and all weights are on the device. d is freed,
  /// and the tape block by block. Phase "backward". Throws OutOfMemory: what is left of the tape is its caller's.
  void backward(Context& context, Tape<T>& tape, DeviceBuffer<T> d, const TextRows<T>& text, std::size_t batch,
                nn::InputSize size, const Form& form);

 private:
  DeviceBuffer<T> time_embedding(Context& context, const float* timesteps, std::size_t batch,
                                 const AddedConditions<T>& added);
  UNetSpec spec_;
  WeightStore<T> weights_;
  LoraAdapters<T>* adapters_ = nullptr;
};

}  // namespace oomlab::image
