#include "nn/models/image/autoencoder.h"

#include <stdexcept>
#include <string>
#include <utility>

#include "nn/ops/instances.h"

namespace oomlab::image {

namespace {

constexpr float kEps = 1e-6f;

template <class T>
Map<T> middle(Blocks<T>& blocks, const std::string& name, Map<T> x) {
  x = blocks.residual(name + ".resnets.0", x, nullptr);
  x = blocks.attention(name + ".attentions.0", std::move(x));
  return blocks.residual(name + ".resnets.1", x, nullptr);
}

}  // namespace

template <class T>
DeviceBuffer<T> Decoder<T>::forward(Context& context, DeviceBuffer<T> latents, std::size_t batch, nn::InputSize size,
                                    const Form& form) {
  const Phase phase(context.ledger(), "decoder");
  Blocks<T> blocks(context, weights_, form, spec_.groups, kEps);
  Map<T> x{std::move(latents), batch, size, spec_.latent_channels};
  if (spec_.quant_convolutions) x = blocks.convolution("post_quant_conv", x);
  x = blocks.convolution("decoder.conv_in", x);
  x = middle(blocks, "decoder.mid_block", std::move(x));
  const std::size_t levels = spec_.channels.size();
  for (std::size_t up = 0; up < levels; ++up) {
    const std::string block = "decoder.up_blocks." + std::to_string(up);
    for (std::size_t i = 0; i <= spec_.layers_per_block; ++i)
      x = blocks.residual(block + ".resnets." + std::to_string(i), x, nullptr);
    if (up + 1 < levels) x = blocks.upsample(block + ".upsamplers.0.conv", std::move(x));
  }
  return std::move(blocks.end("decoder.conv_norm_out", "decoder.conv_out", std::move(x)).data);
}

template <class T>
DeviceBuffer<T> Encoder<T>::forward(Context& context, DeviceBuffer<T> images, std::size_t batch, nn::InputSize size,
                                    const Form& form) {
  if (size.height % spec_.factor() || size.width % spec_.factor())
    throw std::invalid_argument("images of " + std::to_string(size.height) + " x " + std::to_string(size.width) +
                                " are no multiple of " + std::to_string(spec_.factor()) + " pixels");
  const Phase phase(context.ledger(), "encoder");
  Blocks<T> blocks(context, weights_, form, spec_.groups, kEps);
  Map<T> x{std::move(images), batch, size, spec_.image_channels};
  x = blocks.convolution("encoder.conv_in", x);
  const std::size_t levels = spec_.channels.size();
  for (std::size_t level = 0; level < levels; ++level) {
    const std::string block = "encoder.down_blocks." + std::to_string(level);
    for (std::size_t i = 0; i < spec_.layers_per_block; ++i)
      x = blocks.residual(block + ".resnets." + std::to_string(i), x, nullptr);
    if (level + 1 < levels) x = blocks.downsample(block + ".downsamplers.0.conv", x, false);
  }
  x = middle(blocks, "encoder.mid_block", std::move(x));
  x = blocks.end("encoder.conv_norm_out", "encoder.conv_out", std::move(x));
  if (spec_.quant_convolutions) x = blocks.convolution("quant_conv", x);
  return std::move(x.data);
}

#define OOMLAB_AUTOENCODER(T) \
  template class Decoder<T>;  \
  template class Encoder<T>;
OOMLAB_FOR_EACH_TYPE(OOMLAB_AUTOENCODER)

}  // namespace oomlab::image
