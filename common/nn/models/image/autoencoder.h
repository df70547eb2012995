#pragma once
// The two halves of diffusers' AutoencoderKL, inference only (Kingma and Welling, 2013; Rombach et al., 2022): images are
// encoded as latents, factor() times smaller on a side, and decoded from them.

#include <cstddef>

#include "memory/context.h"
#include "nn/models/image/blocks.h"
#include "nn/models/image/weights.h"

namespace oomlab::image {

/// What a decoder and an encoder are made of. T is what weights and activations are stored as: float, __half or
/// __nv_bfloat16.
template <class T>
class AutoencoderHalf {
 public:
  const AutoencoderSpec& spec() const noexcept { return spec_; }
  /// With Residency::model a stage() of these must be there while forward() runs; with the others it is nothing.
  WeightStore<T>& weights() noexcept { return weights_; }

 protected:
  AutoencoderHalf(Context& context, const AutoencoderSpec& spec, AutoencoderPart part, Residency residency,
                  const ReadTensor& read)
      : spec_(spec), weights_(context, tensors_of(spec, part), residency, read) {}

  AutoencoderSpec spec_;
  WeightStore<T> weights_;
};

template <class T>
class Decoder : public AutoencoderHalf<T> {
 public:
  /// Throws as WeightStore().
  Decoder(Context& context, const AutoencoderSpec& spec, Residency residency, const ReadTensor& read)
      : AutoencoderHalf<T>(context, spec, AutoencoderPart::decoder, residency, read) {}

  /// Images [batch, factor · height, factor · width, image_channels], a new buffer of activations, from latents [batch,
  /// height, width, latent_channels], which are freed as soon as they were read. As AutoencoderKL.decode(): the latents are
  /// those that a denoiser ends with, divided by spec().scaling, plus spec().shift. Phase "decoder". Throws OutOfMemory:
  /// what the pass had allocated is free again, the latents, too.
  DeviceBuffer<T> forward(Context& context, DeviceBuffer<T> latents, std::size_t batch, nn::InputSize size,
                          const Form& form);

 private:
  using AutoencoderHalf<T>::spec_;
  using AutoencoderHalf<T>::weights_;
};

template <class T>
class Encoder : public AutoencoderHalf<T> {
 public:
  /// Throws as WeightStore().
  Encoder(Context& context, const AutoencoderSpec& spec, Residency residency, const ReadTensor& read)
      : AutoencoderHalf<T>(context, spec, AutoencoderPart::encoder, residency, read) {}

  /// Of each latent pixel the means and the logarithms of the variances, [batch, height / factor, width / factor, 2 ·
  /// latent_channels], a new buffer of activations, from images [batch, height, width, image_channels], which are freed as
  /// soon as they were read. As AutoencoderKL.encode().latent_dist.parameters. Phase "encoder". Throws as
  /// Decoder::forward(), and std::invalid_argument where the size is no multiple of spec().factor().
  DeviceBuffer<T> forward(Context& context, DeviceBuffer<T> images, std::size_t batch, nn::InputSize size,
                          const Form& form);

 private:
  using AutoencoderHalf<T>::spec_;
  using AutoencoderHalf<T>::weights_;
};

}  // namespace oomlab::image
