#include "pipelines_torch.h"

#include <algorithm>

#include "plan/bytes.h"

namespace oomlab::fit {

namespace {

// diffusers' Decoder, without a gradient: what a line assigns to lives until it is assigned to again, and a module's
// input until the module returns, because its caller has it.
class Decoding {
 public:
  Decoding(const image::AutoencoderSpec& spec, DType dtype, std::uint64_t images, nn::InputSize latents)
      : spec_(spec), element_(element_bytes(dtype)), images_(images), size_(latents) {}

  ByCategory peak() {
    const std::uint64_t latents = map(spec_.latent_channels);
    tracker_.add(Category::activations, checked_product(2, latents));  // behind post_quant_conv, too
    channels_ = spec_.channels.back();
    tracker_.add(Category::activations, map(channels_));
    residual(channels_);
    attention();
    residual(channels_);
    for (std::size_t level = spec_.channels.size(); level-- > 0;) {
      for (std::uint64_t i = 0; i <= spec_.layers_per_block; ++i) residual(spec_.channels[level]);
      if (level > 0) upsample();
    }
    meanwhile({map(channels_), map(channels_)});  // conv_norm_out's and conv_act's
    convolve(map(channels_), map(spec_.image_channels));
    return tracker_.peak().at_peak;
  }

 private:
  std::uint64_t map(std::uint64_t channels) const {
    const std::uint64_t pixels = checked_product(checked_product(images_, size_.height), size_.width);
    return round_to_granule(checked_product(checked_product(pixels, channels), element_));
  }
  void meanwhile(std::initializer_list<std::uint64_t> buffers, std::uint64_t workspace = 0) {
    for (const std::uint64_t bytes : buffers) tracker_.add(Category::activations, bytes);
    tracker_.add(Category::workspace, workspace);
    tracker_.drop(Category::workspace, workspace);
    for (const std::uint64_t bytes : buffers) tracker_.drop(Category::activations, bytes);
  }
  // Tensor cores take channels last: cuDNN copies what is read, and what is written.
  void convolve(std::uint64_t in, std::uint64_t out) { meanwhile({in, out}, checked_sum(in, out)); }
  void become(std::uint64_t from, std::uint64_t to) {
    tracker_.add(Category::activations, to);
    tracker_.drop(Category::activations, from);
  }
  void residual(std::uint64_t out) {
    const std::uint64_t in = map(channels_), made = map(out);
    meanwhile({in, in});      // norm1's and SiLU's
    convolve(in, made);       // conv1 of SiLU's
    meanwhile({made, made});  // norm2's and SiLU's
    convolve(made, made);     // conv2
    // conv2's, conv_shortcut's, their sum, and that divided by output_scale_factor
    meanwhile({made, channels_ == out ? 0 : made, made, made});
    become(in, made);
    channels_ = out;
  }
  void attention() {
    const std::uint64_t one = map(channels_);
    meanwhile({one, one, one, one, one});  // what is normed, Q, K, V, what is attended
  }
  void upsample() {
    const std::uint64_t in = map(channels_);
    size_ = {checked_product(size_.height, 2), checked_product(size_.width, 2)};
    convolve(map(channels_), map(channels_));  // what is interpolated
    become(in, map(channels_));
  }

  const image::AutoencoderSpec& spec_;
  const std::uint64_t element_, images_;
  nn::InputSize size_;
  std::uint64_t channels_ = 0;
  PeakTracker tracker_;
};

}  // namespace

ByCategory decode_bytes(const image::AutoencoderSpec& spec, DType dtype, std::uint64_t images, nn::InputSize latents,
                        bool sliced, std::uint64_t tile) {
  const std::uint64_t at_once = sliced ? std::min<std::uint64_t>(images, 1) : images;
  const bool tiled = tile > 0 && std::max(latents.height, latents.width) > tile;
  const nn::InputSize part =
      tiled ? nn::InputSize{std::min<std::uint64_t>(latents.height, tile), std::min<std::uint64_t>(latents.width, tile)}
            : latents;
  ByCategory bytes = Decoding(spec, dtype, at_once, part).peak();
  // The pixels of all images, and once more while torch.cat() puts slices together; all tiles wait as slices do.
  const std::uint64_t factor = spec.factor();
  const std::uint64_t pixels =
      checked_product(checked_product(latents.height, factor), checked_product(latents.width, factor));
  const std::uint64_t output =
      checked_product(checked_product(checked_product(images, pixels), spec.image_channels), element_bytes(dtype));
  if (!sliced && !tiled) return bytes;
  std::uint64_t& activations = bytes[Category::activations];
  activations = checked_sum(activations, output);
  if (bytes.total() < checked_product(2, output)) bytes = ByCategory{}, activations = checked_product(2, output);
  return bytes;
}

std::uint64_t scores_bytes(const image::UNetSpec& spec, DType dtype, std::uint64_t images, nn::InputSize latents) {
  std::uint64_t most = 0;
  for (std::size_t level = 0; level < spec.levels(); ++level) {
    if (spec.transformers[level] == 0) continue;
    const std::uint64_t tokens = checked_product(latents.height >> level, latents.width >> level);
    most = std::max(most, checked_product(checked_product(checked_product(tokens, tokens), spec.heads[level]),
                                          checked_product(images, element_bytes(dtype))));
  }
  return most;
}

}  // namespace oomlab::fit
