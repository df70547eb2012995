#pragma once
// A decoder whose largest maps are never whole on the device while something is made of them: an image in strips of rows,
// each with the rows beside it that a convolution sees (a halo).
//
// A group norm sees all pixels, so strips take the statistics of the whole map; the attention in the middle does, too, and
// stands in front of the first strip, where maps are small. So the numbers are those of the whole image, but for the order
// of sums. The price: a map that strips are made of goes to pinned host memory and comes back, and rows of a halo are
// normed twice.

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "cuda/check.h"
#include "nn/models/image/autoencoder.h"
#include "nn/ops/activation.h"
#include "nn/ops/convolution.h"
#include "nn/ops/group_norm.h"
#include "nn/ops/nearest.h"
#include "nn/ops/residual.h"
#include "plan/image/walk.h"

namespace oomlab::image_generation {

using namespace image;

/// On the device or between it and the host.
template <class T>
void copy(Context& context, const T* from, T* to, std::size_t count) {
  CUDA_CHECK(cudaMemcpyAsync(to, from, count * sizeof(T), cudaMemcpyDefault, context.stream()));
}

/// Decodes one image. With Residency::model the decoder's turn must have begun. T is what the decoder's weights are.
template <class T>
class StripDecoder {
 public:
  /// `tile`: latent rows of a strip (plan/image/run.h).
  StripDecoder(Context& context, Decoder<T>& decoder, const Run& run, nn::InputSize latents)
      : context_(context),
        weights_(decoder.weights()),
        spec_(decoder.spec()),
        form_(form_of(run)),
        size_(latents),
        strips_(strips_of(latents.height, tile_of(run, latents.height))) {}

  /// image [factor · height, factor · width, image_channels] from latents [height, width, latent_channels], which are freed.
  /// Phase "decoder". Throws OutOfMemory: what was allocated is free again, the latents, too.
  void decode(DeviceBuffer<T> latents, T* image) {
    const Phase phase(context_.ledger(), "decoder");
    Map<T> x = up_to_the_middle({std::move(latents), 1, size_, spec_.latent_channels});
    std::size_t scale = 1;  // rows of the map for each of the latents'
    for (std::size_t up = 0; up < spec_.channels.size(); ++up) {
      const std::string block = "decoder.up_blocks." + std::to_string(up);
      for (std::size_t i = 0; i <= spec_.layers_per_block; ++i)
        x = residual(block + ".resnets." + std::to_string(i), std::move(x), scale);
      if (up + 1 == spec_.channels.size()) break;
      x = upsample(block + ".upsamplers.0.conv", std::move(x), scale);
      scale *= 2;
    }
    end(x, scale, image);
  }

 private:
  /// Rows first ... first + count − 1 of a map.
  struct Rows {
    std::size_t first, count;
    std::size_t end() const { return first + count; }
  };
  // With one more on each side where the map has one.
  static Rows with_halo(Rows rows, std::size_t height) {
    const std::size_t first = rows.first - (rows.first > 0), end = rows.end() + (rows.end() < height);
    return {first, end - first};
  }
  template <class Body>
  void each_strip(std::size_t scale, Body body) {
    for (const Span& strip : strips_) body(Rows{strip.first * scale, strip.count * scale});
  }

  Map<T> up_to_the_middle(Map<T> x) {
    Blocks<T> blocks(context_, weights_, form_, spec_.groups, kEps);
    if (spec_.quant_convolutions) x = blocks.convolution("post_quant_conv", x);
    x = blocks.convolution("decoder.conv_in", x);
    x = blocks.residual("decoder.mid_block.resnets.0", x, nullptr);
    x = blocks.attention("decoder.mid_block.attentions.0", std::move(x));
    return blocks.residual("decoder.mid_block.resnets.1", x, nullptr);
  }

  // ResnetBlock2D, as Blocks::residual(). Only one map is whole on the device at a time: the input, until all strips of
  // `hidden` are on the host; then the input goes there, and `hidden` comes; then `hidden` goes, and the sum comes.
  Map<T> residual(const std::string& name, Map<T> x, std::size_t scale) {
    const auto weights = weights_.block({name});
    const nn::InputSize size = x.size;
    const std::size_t in = x.channels, out = channels_of(name + ".conv1");
    DeviceBuffer<T> hidden_waits = on_host(x.pixels() * out, "hidden map");
    normed_convolutions(name + ".norm1", name + ".conv1", x, scale, [&](Rows rows, DeviceBuffer<T>& c) {
      copy(context_, c.data(), hidden_waits.data() + rows.first * size.width * out, c.size());
    });
    DeviceBuffer<T> input = on_host(x.data.size(), "input of a block");
    copy(context_, x.data.data(), input.data(), x.data.size());
    x.data.reset();
    Map<T> hidden = from_host(std::move(hidden_waits), size, out, "hidden map");
    DeviceBuffer<T> sum = on_host(hidden.data.size(), "residual block");
    const bool changes = !weights_.shape(name + ".conv_shortcut.weight").empty();
    normed_convolutions(name + ".norm2", name + ".conv2", hidden, scale, [&](Rows rows, DeviceBuffer<T>& c) {
      const std::size_t pixels = rows.count * size.width;
      DeviceBuffer<T> strip = activation(pixels * in, "strip of the input");
      copy(context_, input.data() + rows.first * size.width * in, strip.data(), strip.size());
      if (changes)
        weights_.linear(name + ".conv_shortcut").forward(context_, {strip.data(), in}, c.data(), pixels, true);
      else
        nn::add_residual<T>(context_, strip.data(), c.data(), nullptr, c.data(), pixels, out);
      strip.reset();
      copy(context_, c.data(), sum.data() + rows.first * size.width * out, c.size());
    });
    hidden.data.reset();
    input.reset();
    return from_host(std::move(sum), size, out, "residual block");
  }

  // As Blocks::upsample().
  Map<T> upsample(const std::string& name, Map<T> x, std::size_t scale) {
    const auto weights = weights_.block({name});
    const nn::InputSize size{2 * x.size.height, 2 * x.size.width};
    DeviceBuffer<T> waits = on_host(4 * x.data.size(), "twice the resolution");
    each_strip(scale, [&](Rows rows) {
      const Rows seen = with_halo(rows, x.size.height), made{2 * rows.first, 2 * rows.count};
      const std::size_t row = size.width * x.channels;
      DeviceBuffer<T> larger = activation(2 * seen.count * row, "twice the resolution");
      nn::nearest_forward<T>(context_, x.data.data() + seen.first * x.size.width * x.channels, larger.data(), 1,
                             seen.count, x.size.width, x.channels, 2);
      DeviceBuffer<T> c = activation(made.count * row, "convolution");
      // The halo's row has become two; the convolution sees only the one next to the strip.
      const std::size_t first = with_halo(made, size.height).first;
      convolve(name, larger.data() + (first - 2 * seen.first) * row, made, size, c.data());
      larger.reset();
      copy(context_, c.data(), waits.data() + made.first * row, c.size());
    });
    x.data.reset();
    return from_host(std::move(waits), size, x.channels, "convolution");
  }

  // Norm, SiLU, convolution: to `image`.
  void end(const Map<T>& x, std::size_t scale, T* image) {
    const auto weights = weights_.block({"decoder.conv_norm_out", "decoder.conv_out"});
    const Statistics statistics(*this, "decoder.conv_norm_out", x);
    each_strip(scale, [&](Rows rows) {
      const DeviceBuffer<T> n = normed(statistics, x, with_halo(rows, x.size.height));
      convolve("decoder.conv_out", n.data(), rows, x.size, image + rows.first * x.size.width * spec_.image_channels);
    });
  }

  /// Of the groups of a map, by which all of its strips are normed.
  struct Statistics {
    DeviceBuffer<float> mean, rstd;
    nn::GroupNormShape shape;
    const T *gamma, *beta;

    Statistics(StripDecoder& decoder, const std::string& norm, const Map<T>& x)
        : mean(decoder.context_.template buffer<float>(decoder.spec_.groups, Category::activations, "means")),
          rstd(decoder.context_.template buffer<float>(decoder.spec_.groups, Category::activations, "1 / deviations")),
          shape{1, x.pixels(), x.channels, decoder.spec_.groups, kEps, nn::Activation::silu},
          gamma(decoder.weights_[norm + ".weight"]),
          beta(decoder.weights_[norm + ".bias"]) {
      nn::group_norm_forward<T>(decoder.context_, shape, x.data.data(), gamma, beta, nullptr, mean.data(), rstd.data());
    }
  };

  // Norm and SiLU of some rows.
  DeviceBuffer<T> normed(const Statistics& statistics, const Map<T>& x, Rows rows) {
    const std::size_t row = x.size.width * x.channels;
    DeviceBuffer<T> y = activation(rows.count * row, "norm");
    nn::GroupNormShape shape = statistics.shape;
    shape.pixels = rows.count * x.size.width;
    nn::group_norm_recompute<T>(context_, shape, x.data.data() + rows.first * row, statistics.mean.data(),
                                statistics.rstd.data(), statistics.gamma, statistics.beta, y.data());
    return y;
  }

  // take(rows, strip) with each strip of the convolution of the normed map.
  template <class Take>
  void normed_convolutions(const std::string& norm, const std::string& name, const Map<T>& x, std::size_t scale,
                           Take take) {
    const Statistics statistics(*this, norm, x);
    each_strip(scale, [&](Rows rows) {
      DeviceBuffer<T> n = normed(statistics, x, with_halo(rows, x.size.height));
      DeviceBuffer<T> c = activation(rows.count * x.size.width * channels_of(name), "convolution");
      convolve(name, n.data(), rows, x.size, c.data());
      n.reset();
      take(rows, c);
    });
  }

  // y [rows.count, width, out]: rows of a 3 x 3 convolution with bias of a map of this size. `x` begins with the first row
  // that they see.
  void convolve(const std::string& name, const T* x, Rows rows, nn::InputSize size, T* y) {
    const auto weight = weights_.shape(name + ".weight");
    const std::size_t out = weight[0], in = weight[1];
    const Rows seen = with_halo(rows, size.height);
    const nn::ConvolutionShape shape{.batch = 1,
                                     .height = seen.count,
                                     .width = size.width,
                                     .in_channels = in,
                                     .out_channels = out,
                                     .kernel = 3,
                                     .pad_top = rows.first == 0 ? 1u : 0u,
                                     .pad_left = 1,
                                     .out_height = rows.count,
                                     .out_width = size.width};
    nn::convolution_forward<T>(context_, shape, form_.convolution, x, weights_[name + ".weight"], y);
    nn::bias_activation<T>(context_, y, weights_[name + ".bias"], rows.count * size.width, out, nn::Activation::none);
  }

  std::size_t channels_of(const std::string& convolution) const { return weights_.shape(convolution + ".weight")[0]; }
  DeviceBuffer<T> activation(std::size_t count, const char* tag) {
    return context_.buffer<T>(count, Category::activations, tag);
  }
  DeviceBuffer<T> on_host(std::size_t count, const char* tag) {
    return context_.pinned<T>(count, Category::activations, tag);
  }
  Map<T> from_host(DeviceBuffer<T> waits, nn::InputSize size, std::size_t channels, const char* tag) {
    Map<T> map{activation(waits.size(), tag), 1, size, channels};
    copy(context_, waits.data(), map.data.data(), waits.size());
    return map;
  }

  static constexpr float kEps = 1e-6f;  // as AutoencoderKL has it

  Context& context_;
  WeightStore<T>& weights_;
  const AutoencoderSpec& spec_;
  Form form_;
  nn::InputSize size_;
  std::vector<Span> strips_;  // of latents
};

}  // namespace oomlab::image_generation
