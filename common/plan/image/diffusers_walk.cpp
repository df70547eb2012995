#include "plan/image/diffusers_walk.h"

#include <algorithm>

#include "plan/image/simulation.h"
#include "plan/image/walk.h"
#include "plan/peak.h"

namespace oomlab::image {

namespace {

using Attention = DiffusersRun::Attention;

// Live tensors. free() is where the last variable that names a tensor gets another value, or its function returns.
class Frames {
 public:
  /// `workspace`: convolutions have what is assumed of cuDNN's.
  explicit Frames(std::uint64_t element_bytes, bool workspace = false)
      : element_bytes_(element_bytes), workspace_(workspace) {}
  std::uint64_t make(std::uint64_t elements) { return make_of(elements, element_bytes_); }
  std::uint64_t make_of(std::uint64_t elements, std::uint64_t element_bytes) {
    const std::uint64_t bytes = round_to_granule(checked_product(elements, element_bytes));
    tracker_.add(Category::activations, bytes);
    return bytes;
  }
  void free(std::uint64_t tensor) { tracker_.drop(Category::activations, tensor); }
  template <class... More>
  void free(std::uint64_t tensor, More... more) {
    free(tensor);
    free(more...);
  }
  void meanwhile(std::uint64_t elements) { free(make(elements)); }
  /// A convolution of a tensor that is there: its output.
  std::uint64_t convolve(std::uint64_t in_elements, std::uint64_t out_elements) {
    const std::uint64_t output = make(out_elements);
    if (!workspace_) return output;
    const std::uint64_t copies =
        round_to_granule(checked_product(checked_sum(in_elements, out_elements), element_bytes_));
    tracker_.add(Category::workspace, copies);
    tracker_.drop(Category::workspace, copies);
    return output;
  }
  const PeakBytes& at_peak() const { return tracker_.peak(); }
  std::uint64_t peak() const { return tracker_.peak_bytes(); }

 private:
  std::uint64_t element_bytes_;
  bool workspace_;
  PeakTracker tracker_;
};

// ResnetBlock2D of what its caller names. has_time: what is added to each image's pixels makes another tensor.
std::uint64_t resnet_block(Frames& frames, std::uint64_t pixels, std::uint64_t in, std::uint64_t out, bool has_time) {
  const std::uint64_t normed = frames.make(pixels * in), activated = frames.make(pixels * in);
  frames.free(normed);
  std::uint64_t hidden = frames.convolve(pixels * in, pixels * out);  // conv1
  frames.free(activated);
  if (has_time) {
    const std::uint64_t with_time = frames.make(pixels * out);
    frames.free(hidden);
    hidden = with_time;
  }
  const std::uint64_t normed_again = frames.make(pixels * out);
  frames.free(hidden);
  const std::uint64_t activated_again = frames.make(pixels * out);
  frames.free(normed_again);
  const std::uint64_t second = frames.convolve(pixels * out, pixels * out);  // conv2
  frames.free(activated_again);
  const std::uint64_t shortcut = in == out ? 0 : frames.make(pixels * out);
  const std::uint64_t sum = frames.make(pixels * out), scaled = frames.make(pixels * out);
  frames.free(second, shortcut, sum);
  return scaled;
}

// Attention of a U-Net's transformer or an autoencoder, of rows that its caller names. Gives what it returns.
std::uint64_t attention_module(Frames& frames, Attention form, std::uint64_t images, std::uint64_t rows,
                               std::uint64_t key_rows, std::uint64_t heads, std::uint64_t width) {
  const std::uint64_t all = images * rows * width;
  const std::uint64_t q = frames.make(all);
  const std::uint64_t k = frames.make(images * key_rows * width), v = frames.make(images * key_rows * width);
  std::uint64_t attended;
  if (form == Attention::sdpa) {
    attended = frames.make(all);
  } else {
    // Heads become the batch, which copies; then baddbmm's empty input, its scores, and their softmax.
    const bool sliced = form == Attention::sliced;
    const std::uint64_t q_heads = frames.make(all), k_heads = frames.make(images * key_rows * width),
                        v_heads = frames.make(images * key_rows * width);
    const std::uint64_t matrices = sliced ? std::max<std::uint64_t>(1, heads / 2) : images * heads;
    const std::uint64_t pairs = checked_product(matrices, checked_product(rows, key_rows));
    const std::uint64_t output = sliced ? frames.make(all) : 0;
    const std::uint64_t empty = frames.make(pairs);
    const std::uint64_t scores = frames.make(pairs);
    frames.free(empty);
    const std::uint64_t probabilities = frames.make(pairs);
    frames.free(scores);
    attended = sliced ? output : frames.make(all);
    if (sliced) frames.meanwhile(matrices * rows * width / heads);
    frames.free(probabilities, q_heads, k_heads, v_heads);
  }
  const std::uint64_t projected = frames.make(all);
  frames.free(attended);
  const std::uint64_t scaled = frames.make(all);
  frames.free(projected, q, k, v);
  return scaled;
}

class UNet {
 public:
  UNet(const UNetSpec& spec, const DiffusersRun& run, std::uint64_t images, std::uint64_t latents, std::uint64_t tokens)
      : spec_(spec), run_(run), frames_(element_bytes(run.dtype)), images_(images), side_(latents), tokens_(tokens) {}

  std::uint64_t peak() {
    const std::uint64_t inputs = images_ * side_ * side_ * spec_.in_channels;
    if (run_.guidance_passes == 2) {  // the latents, and scaled; the prediction of the first pass; both texts
      for (int i = 0; i < 3; ++i) frames_.make(inputs);
      frames_.make(2 * images_ * tokens_ * spec_.context);
    } else {  // the latents, the same twice, and scaled; the text
      frames_.make(inputs / 2);
      frames_.make(inputs);
      frames_.make(images_ * tokens_ * spec_.context);
    }
    channels_ = spec_.channels.front();
    x_ = frames_.make(pixels() * channels_);
    wait();
    for (std::uint64_t level = 0; level < spec_.levels(); ++level) down(level);
    resnet(spec_.channels.back(), true);
    transformer(spec_.mid_transformers, spec_.heads.back());
    resnet(spec_.channels.back(), false);
    for (std::uint64_t level = spec_.levels(); level-- > 0;) up(level);
    const std::uint64_t normed = frames_.make(pixels() * channels_);
    frames_.free(x_);
    frames_.meanwhile(pixels() * channels_);
    frames_.free(normed);
    return frames_.peak();
  }

 private:
  struct Waiting {
    std::uint64_t tensor, channels;
  };
  std::uint64_t pixels() const { return images_ * side_ * side_; }
  void wait() { waiting_.push_back({x_, channels_}); }

  void resnet(std::uint64_t out, bool input_stays) {
    const std::uint64_t output = resnet_block(frames_, pixels(), channels_, out, true);
    if (!input_stays) frames_.free(x_);
    x_ = output;
    channels_ = out;
  }

  void down(std::uint64_t level) {
    for (std::uint64_t i = 0; i < spec_.layers_per_block; ++i) {
      resnet(spec_.channels[level], true);
      transformer(spec_.transformers[level], spec_.heads[level]);
      wait();
    }
    if (level + 1 == spec_.levels()) return;
    side_ /= 2;
    x_ = frames_.make(pixels() * channels_);
    wait();
  }

  // The block's input, and all that waited for it, have names until it returns.
  void up(std::uint64_t level) {
    const std::uint64_t input = x_;
    std::vector<std::uint64_t> joined;
    for (std::uint64_t i = 0; i <= spec_.layers_per_block; ++i) {
      const Waiting skip = waiting_.back();
      waiting_.pop_back();
      joined.push_back(skip.tensor);
      const std::uint64_t both = frames_.make(pixels() * (channels_ + skip.channels));
      if (i > 0) frames_.free(x_);
      x_ = both;
      channels_ += skip.channels;
      resnet(spec_.channels[level], false);
      transformer(spec_.transformers[level], spec_.heads[level]);
    }
    if (level > 0) {
      side_ *= 2;
      const std::uint64_t nearest = frames_.make(pixels() * channels_), output = frames_.make(pixels() * channels_);
      frames_.free(nearest, x_);
      x_ = output;
    }
    frames_.free(input);
    for (const std::uint64_t tensor : joined) frames_.free(tensor);
  }

  // Transformer2DModel: its caller's tensor is also its residual.
  void transformer(std::uint64_t layers, std::uint64_t heads) {
    if (layers == 0) return;
    const std::uint64_t all = pixels() * channels_;
    const std::uint64_t normed = frames_.make(all);
    std::uint64_t y = frames_.make(all);
    frames_.free(normed);
    for (std::uint64_t i = 0; i < layers; ++i) {
      const std::uint64_t output = transformer_block(heads);
      frames_.free(y);
      y = output;
    }
    const std::uint64_t projected = frames_.make(all);
    frames_.free(y);
    const std::uint64_t output = frames_.make(all);
    frames_.free(projected, x_);
    x_ = output;
  }

  // BasicTransformerBlock of rows that its caller names.
  std::uint64_t transformer_block(std::uint64_t heads) {
    const std::uint64_t all = pixels() * channels_, rows = side_ * side_;
    std::uint64_t normed = frames_.make(all);
    std::uint64_t attended = attention_module(frames_, run_.attention, images_, rows, rows, heads, channels_);
    const std::uint64_t first = frames_.make(all);
    const std::uint64_t normed_again = frames_.make(all);
    frames_.free(normed);
    normed = normed_again;
    const std::uint64_t crossed = attention_module(frames_, run_.attention, images_, rows, tokens_, heads, channels_);
    frames_.free(attended);
    attended = crossed;
    const std::uint64_t second = frames_.make(all);
    frames_.free(first);
    const std::uint64_t last_normed = frames_.make(all);
    frames_.free(normed);
    const std::uint64_t wide = frames_.make(8 * all), gate = frames_.make(4 * all), gated = frames_.make(4 * all);
    frames_.free(wide, gate);
    const std::uint64_t narrow = frames_.make(all);
    frames_.free(gated);
    const std::uint64_t output = frames_.make(all);
    frames_.free(narrow, last_normed, second, attended);
    return output;
  }

  const UNetSpec& spec_;
  const DiffusersRun& run_;
  Frames frames_;
  std::uint64_t images_, side_, tokens_;
  std::uint64_t x_ = 0, channels_ = 0;
  std::vector<Waiting> waiting_;
};

// A single block of FluxTransformer2DModel is where most is live: what it was called with, which are parts of one
// tensor; both joined; the normed rows; the MLP's 4 W; q, k, v; and rotary positions of q, in FP32: the turned half, both
// factors and their products.
std::uint64_t flux_peak(const FluxSpec& spec, const DiffusersRun& run, std::uint64_t images, std::uint64_t latents,
                        std::uint64_t tokens) {
  Frames frames(element_bytes(run.dtype));
  const std::uint64_t pixels = latents / spec.patch * (latents / spec.patch);
  const std::uint64_t rows = images * (pixels + tokens), all = rows * spec.width;
  frames.make(images * pixels * spec.in_channels);
  frames.make(images * tokens * spec.context);
  frames.make_of(2 * (pixels + tokens) * spec.depth(), sizeof(float));
  frames.make(3 * images * spec.width);
  frames.make(all);  // the block's input
  frames.make(all);  // joined
  frames.make(all);  // normed
  const std::uint64_t before = frames.make(4 * all);
  const std::uint64_t hidden = frames.make(4 * all);
  frames.free(before);
  const std::uint64_t q = frames.make(all), k = frames.make(all), v = frames.make(all);
  const std::uint64_t turned = frames.make(all);
  const std::uint64_t wide = frames.make_of(all, sizeof(float)), cosine = frames.make_of(all, sizeof(float));
  frames.free(wide);
  const std::uint64_t wide_turned = frames.make_of(all, sizeof(float)), sine = frames.make_of(all, sizeof(float));
  frames.free(wide_turned);
  const std::uint64_t sum = frames.make_of(all, sizeof(float));
  frames.free(cosine, sine, turned, sum);
  const std::uint64_t attended = frames.make(all);
  frames.free(q, k, v);
  const std::uint64_t joined = frames.make(5 * all);
  frames.free(attended, hidden, joined);
  return frames.peak();
}

// AutoencoderKL.decode(): the input of a block has a name until the block returns.
PeakBytes decoded_peak(const AutoencoderSpec& spec, std::uint64_t element_bytes, std::uint64_t images,
                       std::uint64_t side, bool workspace) {
  Frames frames(element_bytes, workspace);
  std::uint64_t pixels = images * side * side, channels = spec.channels.back();
  frames.make(pixels * spec.latent_channels);
  std::uint64_t x = frames.make(pixels * channels);
  const auto replace = [&](std::uint64_t output) {
    frames.free(x);
    x = output;
  };
  replace(resnet_block(frames, pixels, channels, channels, false));
  const std::uint64_t normed = frames.make(pixels * channels);
  const std::uint64_t attended =
      attention_module(frames, Attention::sdpa, images, side * side, side * side, 1, channels);
  frames.free(normed);
  replace(attended);
  replace(resnet_block(frames, pixels, channels, channels, false));
  for (std::size_t level = spec.channels.size(); level-- > 0;) {
    const std::uint64_t input = x;
    for (std::uint64_t i = 0; i <= spec.layers_per_block; ++i) {
      const std::uint64_t output = resnet_block(frames, pixels, channels, spec.channels[level], false);
      channels = spec.channels[level];
      if (i > 0) frames.free(x);
      x = output;
    }
    if (level > 0) {
      pixels *= 4;
      const std::uint64_t nearest = frames.make(pixels * channels);
      const std::uint64_t output = frames.convolve(pixels * channels, pixels * channels);
      frames.free(nearest);
      replace(output);
    }
    frames.free(input);
  }
  replace(frames.make(pixels * channels));  // norm
  replace(frames.make(pixels * channels));  // SiLU
  frames.convolve(pixels * channels, pixels * spec.image_channels);
  return frames.at_peak();
}

}  // namespace

std::uint64_t text_activations(const TextEncoderSpec& spec, std::uint64_t texts, std::uint64_t element_bytes) {
  Frames frames(element_bytes);
  const std::uint64_t rows = texts * spec.positions;
  const std::uint64_t hidden_layers =
      spec.kind == TextKind::t5 && spec.activation == TextActivation::gated_gelu ? 4 : 2;
  frames.make(rows * spec.width);  // the residual, the normed rows, and what the layer was called with
  frames.make(rows * spec.width);
  frames.make(rows * spec.width);
  // T5 has a bias of the scores, and computes them as matrices, with a softmax in FP32.
  if (spec.kind == TextKind::t5) {
    const std::uint64_t scores = texts * spec.heads * spec.positions * spec.positions;
    frames.make(spec.heads * spec.positions * spec.positions);
    const std::uint64_t in_layer = frames.make(scores), wide = frames.make_of(2 * scores, sizeof(float));
    frames.free(in_layer, wide);
  }
  frames.meanwhile(std::max(5 * rows * spec.inner(), hidden_layers * rows * spec.mlp));
  return frames.peak();
}

std::uint64_t denoiser_activations(const PipelineSpec& spec, const DiffusersRun& run, std::uint64_t images,
                                   std::uint64_t latents) {
  if (spec.flux()) return flux_peak(*spec.flux(), run, images, latents, spec.context_tokens());
  return UNet(*spec.unet(), run, images, latents, spec.context_tokens()).peak();
}

DecoderPasses decoder_passes(const PipelineSpec& spec, const DiffusersRun& run, std::uint64_t latents) {
  const std::uint64_t trained = spec.size / spec.autoencoder.factor();
  const bool is_sliced = run.vae_slicing && run.batch > 1;
  const std::uint64_t slices = is_sliced ? run.batch : 1, images = is_sliced ? 1 : run.batch;
  if (!run.vae_tiling || latents <= trained) return {latents, images, slices};
  const std::uint64_t step = trained - trained / 4;  // tiles overlap by a quarter
  const std::uint64_t on_a_side = (latents + step - 1) / step;
  return {trained, images, checked_product(slices, checked_product(on_a_side, on_a_side))};
}

PeakBytes decoder_peak(const PipelineSpec& spec, const DiffusersRun& run, std::uint64_t element_bytes,
                       std::uint64_t latents) {
  const AutoencoderSpec& autoencoder = spec.autoencoder;
  const DecoderPasses passes = decoder_passes(spec, run, latents);
  PeakBytes peak = decoded_peak(autoencoder, element_bytes, passes.images, passes.side, run.assumed_workspace);
  // Slices and tiles wait until the last one is there; then they are put together.
  const std::uint64_t side = checked_product(latents, autoencoder.factor());
  const std::uint64_t of_image =
      checked_product(autoencoder.image_channels * element_bytes, checked_product(side, side));
  const std::uint64_t tiles = passes.side < latents ? checked_product(2 * passes.images, of_image) : 0;
  const std::uint64_t slices = passes.images < run.batch ? checked_product(run.batch, of_image) : 0;
  std::uint64_t& activations = peak.at_peak[Category::activations];
  activations = checked_sum({activations, tiles, slices});
  PeakBytes joined;
  joined.at_peak[Category::activations] = checked_product(2, slices);
  return later_peak(peak, joined);
}

}  // namespace oomlab::image
