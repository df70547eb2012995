#include "nn/models/image/denoiser.h"

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cuda/check.h"
#include "nn/ops/activation.h"
#include "nn/ops/channels.h"
#include "nn/ops/instances.h"
#include "nn/ops/time_embedding.h"

namespace oomlab::image {

namespace {

constexpr float kEps = 1e-5f;

// "name.3"
std::string at(const std::string& name, std::size_t number) { return name + "." + std::to_string(number); }

void refuse(const UNetSpec& spec, std::size_t text_width, nn::InputSize size, bool has_pooled, bool has_numbers) {
  const std::uint64_t multiple = spec.reduction();
  if (size.height == 0 || size.width == 0 || size.height % multiple || size.width % multiple)
    throw std::invalid_argument("latents of " + std::to_string(size.height) + " x " + std::to_string(size.width) +
                                " are no multiple of " + std::to_string(multiple) + " pixels");
  if (text_width != spec.context)
    throw std::invalid_argument("the denoiser reads rows of " + std::to_string(spec.context) + " values, not of " +
                                std::to_string(text_width));
  if (has_pooled != (spec.added_condition > 0) || has_numbers != (spec.added_condition > 0))
    throw std::invalid_argument(spec.added_condition ? "the denoiser needs added conditions"
                                                     : "the denoiser has no added conditions");
}

// a and b side by side; both are freed.
template <class T>
Map<T> joined(Context& context, Map<T> a, Map<T> b) {
  Map<T> y{{}, a.batch, a.size, a.channels + b.channels};
  y.data = context.buffer<T>(checked_product(y.rows(), y.channels), Category::activations, "with the skip connection");
  nn::concatenate_channels<T>(context, a.data.data(), b.data.data(), y.data.data(), y.rows(), a.channels, b.channels);
  return y;
}

}  // namespace

// What SiLU makes of the embedding: nobody reads it as it is.
template <class T>
DeviceBuffer<T> Denoiser<T>::time_embedding(Context& context, const float* timesteps, std::size_t batch,
                                            const AddedConditions<T>& added) {
  const auto weights =
      added.pooled ? weights_.block({"time_embedding", "add_embedding"}) : weights_.block({"time_embedding"});
  const auto buffer = [&](std::size_t width, const char* tag) {
    return context.buffer<T>(checked_product(batch, width), Category::activations, tag);
  };
  // Two linear layers, SiLU between them. The first one's output, of x, which is freed:
  const auto hidden_of = [&](const std::string& name, DeviceBuffer<T> x) {
    const auto first = weights_.linear(name + ".linear_1");
    DeviceBuffer<T> hidden = buffer(first.out(), "time embedding, hidden");
    first.forward(context, {x.data(), first.in()}, hidden.data(), batch);
    nn::bias_activation<T>(context, hidden.data(), nullptr, batch, first.out(), nn::Activation::silu);
    return hidden;
  };
  DeviceBuffer<T> waves = buffer(spec_.channels.front(), "sinusoids");
  nn::time_embedding<T>(context, timesteps, waves.data(), batch, spec_.channels.front());
  DeviceBuffer<T> hidden = hidden_of("time_embedding", std::move(waves));
  DeviceBuffer<T> time = buffer(spec_.time_width(), "time embedding");
  weights_.linear("time_embedding.linear_2")
      .forward(context, {hidden.data(), hidden.size() / batch}, time.data(), batch);
  hidden.reset();
  if (added.pooled) {
    DeviceBuffer<T> conditions = buffer(spec_.added_condition, "added conditions");
    const std::size_t pooled = spec_.added_condition - 6 * spec_.added_time;
    for (std::size_t i = 0; i < batch; ++i) {  // pooled rows, and sinusoids of six numbers
      T* const to = conditions.data() + i * spec_.added_condition;
      CUDA_CHECK(cudaMemcpyAsync(to, added.pooled + i * pooled, pooled * sizeof(T), cudaMemcpyDeviceToDevice,
                                 context.stream()));
      nn::time_embedding<T>(context, added.numbers + 6 * i, to + pooled, 6, spec_.added_time);
    }
    hidden = hidden_of("add_embedding", std::move(conditions));
    const auto second = weights_.linear("add_embedding.linear_2");
    second.forward(context, {hidden.data(), second.in()}, time.data(), batch, true);
  }
  nn::bias_activation<T>(context, time.data(), nullptr, batch, spec_.time_width(), nn::Activation::silu);
  return time;
}

template <class T>
DeviceBuffer<T> Denoiser<T>::forward(Context& context, const T* latents, const float* timesteps,
                                     const TextRows<T>& text, std::size_t batch, nn::InputSize size, const Form& form,
                                     const AddedConditions<T>& added) {
  refuse(spec_, text.width, size, added.pooled, added.numbers);
  const Phase phase(context.ledger(), "denoiser");
  Blocks<T> blocks(context, weights_, form, spec_.groups, kEps);
  const DeviceBuffer<T> time = time_embedding(context, timesteps, batch, added);
  const std::size_t levels = spec_.levels();

  // Every output on the way down goes up again; the last one is also what the next block reads.
  std::vector<Map<T>> skips;
  skips.push_back(blocks.convolution("conv_in", latents, batch, size, spec_.in_channels));
  for (std::size_t level = 0; level < levels; ++level) {
    const std::string block = at("down_blocks", level);
    for (std::size_t i = 0; i < spec_.layers_per_block; ++i) {
      Map<T> x = blocks.residual(at(block + ".resnets", i), skips.back(), time.data());
      if (spec_.transformers[level])
        x = blocks.transformer(at(block + ".attentions", i), std::move(x), spec_.transformers[level],
                               spec_.heads[level], text);
      skips.push_back(std::move(x));
    }
    if (level + 1 < levels) skips.push_back(blocks.downsample(block + ".downsamplers.0.conv", skips.back(), true));
  }

  Map<T> x = blocks.residual("mid_block.resnets.0", skips.back(), time.data());
  x = blocks.transformer("mid_block.attentions.0", std::move(x), spec_.mid_transformers, spec_.heads.back(), text);
  x = blocks.residual("mid_block.resnets.1", x, time.data());

  for (std::size_t up = 0; up < levels; ++up) {
    const std::size_t level = levels - 1 - up;
    const std::string block = at("up_blocks", up);
    for (std::size_t i = 0; i <= spec_.layers_per_block; ++i) {
      x = joined(context, std::move(x), std::move(skips.back()));
      skips.pop_back();
      x = blocks.residual(at(block + ".resnets", i), x, time.data());
      if (spec_.transformers[level])
        x = blocks.transformer(at(block + ".attentions", i), std::move(x), spec_.transformers[level],
                               spec_.heads[level], text);
    }
    if (level > 0) x = blocks.upsample(block + ".upsamplers.0.conv", std::move(x));
  }
  return std::move(blocks.end("conv_norm_out", "conv_out", std::move(x)).data);
}

#define OOMLAB_DENOISER(T) template class Denoiser<T>;
OOMLAB_FOR_EACH_TYPE(OOMLAB_DENOISER)

}  // namespace oomlab::image
