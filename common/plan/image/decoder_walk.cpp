#include <algorithm>
#include <map>

#include "plan/image/walk.h"

namespace oomlab::image {

std::uint64_t tile_of(const Run& run, std::uint64_t height) {
  return run.tile ? std::min(run.tile, height) : (height + 1) / 2;
}

namespace {

std::vector<Span> spans(std::uint64_t size, std::uint64_t tile, std::uint64_t step) {
  std::vector<Span> all;
  for (std::uint64_t first = 0; first < size; first += step) all.push_back({first, std::min(tile, size - first)});
  return all;
}

}  // namespace

std::vector<Span> strips_of(std::uint64_t size, std::uint64_t tile) { return spans(size, tile, tile); }
std::vector<Span> blended_tiles_of(std::uint64_t size, std::uint64_t tile) {
  return spans(size, tile, tile - tile / 4);
}

namespace {

class DecoderWalk {
 public:
  DecoderWalk(Simulation& simulation, Weights& weights, const AutoencoderSpec& spec)
      : simulation_(simulation), weights_(weights), spec_(spec) {}

  // All of it, of latents that it releases.
  Buffer whole(Buffer latents, std::uint64_t batch, nn::InputSize size) {
    weights_.read();
    batch_ = batch;
    size_ = size;
    to_the_middle(latents);
    for (std::uint64_t up = 0; up < levels(); ++up) {
      const std::uint64_t level = levels() - 1 - up;
      for (std::uint64_t i = 0; i <= spec_.layers_per_block; ++i)
        residual(numbered(numbered("decoder.up_blocks", up) + ".resnets", i), spec_.channels[level]);
      if (level == 0) break;
      Buffer lease = weights_.block(upsampler(up));
      x_ = upsampled(simulation_, x_, batch_, size_, channels_);
      size_ = doubled(size_);
      weights_.end(lease);
    }
    Buffer lease = weights_.block({"decoder.conv_norm_out", "decoder.conv_out"});
    const Buffer images = simulation_.convolution(same_size(batch_, size_, channels_, spec_.image_channels));
    simulation_.free(x_);
    weights_.end(lease);
    return images;
  }

  // One image, to an output that is there; `tile` rows of latents in a strip.
  void in_strips(Buffer latents, nn::InputSize size, std::uint64_t tile) {
    weights_.read();
    batch_ = 1;
    size_ = size;
    to_the_middle(latents);
    for (std::uint64_t up = 0; up < levels(); ++up) {
      const std::uint64_t level = levels() - 1 - up;
      rows_ = tile << up;
      for (std::uint64_t i = 0; i <= spec_.layers_per_block; ++i)
        residual_in_strips(numbered(numbered("decoder.up_blocks", up) + ".resnets", i), spec_.channels[level]);
      if (level > 0) upsampled_in_strips(upsampler(up));
    }
    Buffer lease = weights_.block({"decoder.conv_norm_out", "decoder.conv_out"});
    Buffer mean = statistics(), rstd = statistics();
    for (const Span& strip : strips_of(size_.height, rows_)) {
      Buffer normed = simulation_.rows(with_halo(strip) * size_.width, channels_);
      simulation_.convolve(strip_shape(strip, size_, channels_, spec_.image_channels));
      simulation_.free(normed);
    }
    simulation_.free({&mean, &rstd, &x_});
    weights_.end(lease);
  }

 private:
  std::uint64_t levels() const { return spec_.channels.size(); }
  std::uint64_t pixels() const { return checked_product(batch_, checked_product(size_.height, size_.width)); }
  static std::string upsampler(std::uint64_t up) { return numbered("decoder.up_blocks", up) + ".upsamplers.0"; }

  void to_the_middle(Buffer latents) {
    channels_ = spec_.channels.back();
    Buffer lease;
    if (spec_.quant_convolutions) {
      lease = weights_.block("post_quant_conv");
      const Buffer output = simulation_.linear(pixels(), spec_.latent_channels, spec_.latent_channels);
      simulation_.free(latents);
      latents = output;
      weights_.end(lease);
    }
    lease = weights_.block("decoder.conv_in");
    x_ = simulation_.convolution(same_size(batch_, size_, spec_.latent_channels, channels_));
    simulation_.free(latents);
    weights_.end(lease);
    residual("decoder.mid_block.resnets.0", channels_);
    lease = weights_.block("decoder.mid_block.attentions.0");
    Buffer normed = simulation_.rows(pixels(), channels_);
    Buffer q = simulation_.linear(pixels(), channels_, channels_);
    Buffer k = simulation_.linear(pixels(), channels_, channels_);
    Buffer v = simulation_.linear(pixels(), channels_, channels_);
    simulation_.free(normed);
    Buffer attended =
        simulation_.attention({batch_, checked_product(size_.height, size_.width), 1, channels_, false}, q, k, v);
    simulation_.add_linear(pixels(), channels_, channels_);
    simulation_.free(attended);
    weights_.end(lease);
    residual("decoder.mid_block.resnets.1", channels_);
  }

  void residual(const std::string& name, std::uint64_t out) {
    Buffer lease = weights_.block(name);
    x_ = residual_block(simulation_, x_, false, batch_, size_, channels_, out, 0);
    channels_ = out;
    weights_.end(lease);
  }

  // ---- in strips

  Buffer statistics() { return simulation_.floats(spec_.groups); }
  // Rows of a strip, and one more on each side where there is one.
  std::uint64_t with_halo(const Span& strip) const {
    return strip.count + (strip.first > 0) + (strip.first + strip.count < size_.height);
  }
  // A convolution that makes the rows of a strip of an image of this size from those rows and their halo.
  nn::ConvolutionShape strip_shape(const Span& strip, nn::InputSize size, std::uint64_t in, std::uint64_t out) const {
    const bool is_first = strip.first == 0, is_last = strip.first + strip.count == size.height;
    return {.batch = 1,
            .height = strip.count + !is_first + !is_last,
            .width = size.width,
            .in_channels = in,
            .out_channels = out,
            .kernel = 3,
            .pad_top = is_first ? 1u : 0u,
            .pad_left = 1,
            .out_height = strip.count,
            .out_width = size.width};
  }
  std::uint64_t map_bytes(std::uint64_t rows, std::uint64_t width, std::uint64_t channels) const {
    return checked_product(checked_product(checked_product(rows, width), channels), simulation_.element_bytes());
  }
  Buffer map_on_host(nn::InputSize size, std::uint64_t channels) {
    return simulation_.pinned(map_bytes(size.height, size.width, channels), Category::activations);
  }
  // From the host, whole.
  Buffer map_from(Buffer& on_host, nn::InputSize size, std::uint64_t channels) {
    const Buffer map = simulation_.rows(checked_product(size.height, size.width), channels);
    simulation_.copies(map_bytes(size.height, size.width, channels));
    simulation_.free_pinned(on_host);
    return map;
  }
  // norm, SiLU and a convolution of a map `in` channels wide: the strip's result, which somebody stores.
  Buffer convolved(const Span& strip, std::uint64_t in, std::uint64_t out) {
    Buffer normed = simulation_.rows(with_halo(strip) * size_.width, in);
    const Buffer result = simulation_.convolution(strip_shape(strip, size_, in, out));
    simulation_.free(normed);
    return result;
  }
  void store(Buffer& strip, std::uint64_t rows, std::uint64_t width, std::uint64_t channels) {
    simulation_.copies(map_bytes(rows, width, channels));
    simulation_.free(strip);
  }

  void residual_in_strips(const std::string& name, std::uint64_t out) {
    Buffer lease = weights_.block(name);
    const std::uint64_t in = channels_;
    Buffer mean = statistics(), rstd = statistics();
    Buffer hidden_on_host = map_on_host(size_, out);
    for (const Span& strip : strips_of(size_.height, rows_)) {
      Buffer result = convolved(strip, in, out);
      store(result, strip.count, size_.width, out);
    }
    simulation_.free({&mean, &rstd});
    Buffer input_on_host = map_on_host(size_, in);
    store(x_, size_.height, size_.width, in);
    Buffer hidden = map_from(hidden_on_host, size_, out);
    mean = statistics();
    rstd = statistics();
    Buffer output_on_host = map_on_host(size_, out);
    for (const Span& strip : strips_of(size_.height, rows_)) {
      Buffer result = convolved(strip, out, out);
      Buffer shortcut = simulation_.rows(strip.count * size_.width, in);
      simulation_.copies(map_bytes(strip.count, size_.width, in));
      if (in != out) simulation_.add_linear(strip.count * size_.width, out, in);
      simulation_.free(shortcut);
      store(result, strip.count, size_.width, out);
    }
    simulation_.free({&mean, &rstd, &hidden});
    simulation_.free_pinned(input_on_host);
    channels_ = out;
    x_ = map_from(output_on_host, size_, out);
    weights_.end(lease);
  }

  void upsampled_in_strips(const std::string& name) {
    Buffer lease = weights_.block(name);
    const nn::InputSize twice = doubled(size_);
    Buffer output_on_host = map_on_host(twice, channels_);
    for (const Span& strip : strips_of(size_.height, rows_)) {
      Buffer nearest = simulation_.rows(2 * with_halo(strip) * twice.width, channels_);
      Buffer result =
          simulation_.convolution(strip_shape({2 * strip.first, 2 * strip.count}, twice, channels_, channels_));
      simulation_.free(nearest);
      store(result, 2 * strip.count, twice.width, channels_);
    }
    simulation_.free(x_);
    size_ = twice;
    x_ = map_from(output_on_host, size_, channels_);
    weights_.end(lease);
  }

  Simulation& simulation_;
  Weights& weights_;
  const AutoencoderSpec& spec_;
  std::uint64_t batch_ = 0, channels_ = 0;
  std::uint64_t rows_ = 0;  // of a strip at this level
  nn::InputSize size_{};
  Buffer x_;
};

}  // namespace

namespace {

// How many spans there are of each length: tiles of one size are alike.
std::map<std::uint64_t, std::uint64_t> lengths_of(const std::vector<Span>& spans) {
  std::map<std::uint64_t, std::uint64_t> counts;
  for (const Span& span : spans) ++counts[span.count];
  return counts;
}

}  // namespace

Buffer decode(Simulation& simulation, Weights& weights, const AutoencoderSpec& spec, Buffer latents,
              std::uint64_t images, nn::InputSize size) {
  const Run& run = simulation.run();
  if (run.decoder == DecoderCut::whole) return DecoderWalk(simulation, weights, spec).whole(latents, images, size);
  const auto pixels_of = [&](nn::InputSize of_latents) {
    return checked_product(checked_product(of_latents.height, of_latents.width),
                           checked_product(spec.factor(), spec.factor()));
  };
  const auto cut_out = [&](nn::InputSize part) {
    return simulation.rows(checked_product(part.height, part.width), spec.latent_channels);
  };
  const Buffer output = simulation.rows(checked_product(images, pixels_of(size)), spec.image_channels);
  const std::uint64_t tile = tile_of(run, size.height);
  const auto decode_part = [&](nn::InputSize part) {
    Buffer decoded = DecoderWalk(simulation, weights, spec).whole(cut_out(part), 1, part);
    simulation.free(decoded);
  };
  const Work before = simulation.work();
  if (run.decoder == DecoderCut::images) {
    decode_part(size);
  } else if (run.decoder == DecoderCut::halo) {
    DecoderWalk(simulation, weights, spec).in_strips(cut_out(size), size, tile);
  } else {
    for (const auto& [height, rows] : lengths_of(blended_tiles_of(size.height, tile))) {
      for (const auto& [width, columns] : lengths_of(blended_tiles_of(size.width, tile))) {
        const Work before_tile = simulation.work();
        decode_part({height, width});
        simulation.repeat(before_tile, rows * columns - 1);
      }
    }
  }
  simulation.repeat(before, images - 1);  // all images are alike
  simulation.free(latents);
  return output;
}

}  // namespace oomlab::image
