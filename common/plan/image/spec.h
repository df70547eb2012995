#pragma once
// Models that make an image from a text, one after the other: text encoders, a denoiser that runs once a step, and an
// autoencoder whose decoder makes pixels of what the denoiser made. Sizes, and names and shapes of tensors, as
// diffusers and transformers have them (UNet2DConditionModel, FluxTransformer2DModel, AutoencoderKL, CLIPTextModel,
// T5EncoderModel): a spec says what their config.json says.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace oomlab::image {

enum class TextKind {
  clip,  ///< Radford et al., 2021: causal, learned positions, layer norms with bias in front of attention and MLP
  t5     ///< Raffel et al., 2020, version 1.1: sees all tokens, relative positions, norms without mean, no biases
};
enum class TextActivation {
  quick_gelu,  ///< x · sigmoid(1.702 x)
  gelu,        ///< with the exact error function
  gated_gelu   ///< gelu(x W₀) ⊙ x W₁, with the tanh form of GELU, as T5 has it
};

struct TextEncoderSpec {
  std::string name;  ///< "text_encoder", "text_encoder_2": diffusers' name of the component
  TextKind kind = TextKind::clip;
  std::uint64_t vocabulary = 0;
  std::uint64_t positions = 0;  ///< tokens of a text, padded to so many; of clip also the rows of its position table
  std::uint64_t width = 0, layers = 0, heads = 0, mlp = 0;
  TextActivation activation = TextActivation::quick_gelu;
  std::uint64_t projection = 0;        ///< clip: text_projection [projection, width] of the pooled token; 0: none
  std::uint64_t head_depth = 0;        ///< t5: width of a head; 0: width / heads
  std::uint64_t relative_buckets = 0;  ///< t5: rows of the table of relative positions, in the first layer
  std::uint64_t depth() const { return head_depth ? head_depth : width / heads; }
  std::uint64_t inner() const { return heads * depth(); }  ///< width of Q, and of K and of V
};

/// UNet2DConditionModel. Level i has layers_per_block residual blocks on the way down, one more on the way up, and
/// behind each a transformer of transformers[i] layers (0: none, a DownBlock2D); between levels the resolution is
/// halved. In the middle: a residual block, a transformer of mid_transformers layers, a residual block.
struct UNetSpec {
  std::vector<std::uint64_t> channels, transformers, heads;  ///< of each level
  std::uint64_t layers_per_block = 2;
  std::uint64_t context = 0;  ///< width of the text's rows: cross_attention_dim
  std::uint64_t in_channels = 4, out_channels = 4, groups = 32;
  bool linear_projection = false;  ///< proj_in and proj_out are linear layers, not 1 × 1 convolutions: the same bytes
  std::uint64_t mid_transformers = 1;
  std::uint64_t added_condition = 0;  ///< width of add_embedding's input (SDXL: 2,816); 0: there is none
  std::uint64_t added_time = 0;       ///< width of the sinusoids of each of SDXL's six numbers
  std::uint64_t levels() const { return channels.size(); }
  std::uint64_t time_width() const { return 4 * channels.front(); }
  /// Factor by which the lowest level is smaller than the latents, whose height and width must be multiples of it.
  std::uint64_t reduction() const { return std::uint64_t(1) << (levels() - 1); }
};

/// FluxTransformer2DModel. A token is `patch` × `patch` latent pixels; in_channels are a token's.
struct FluxSpec {
  std::uint64_t width = 0, heads = 0, double_blocks = 0, single_blocks = 0;
  std::uint64_t context = 0;  ///< width of T5's rows
  std::uint64_t pooled = 0;   ///< width of CLIP's pooled row
  std::uint64_t in_channels = 0;
  bool guidance = false;     ///< the strength of guidance is an input, with an embedding of its own
  std::uint64_t time = 256;  ///< width of the sinusoids
  std::uint64_t patch = 2;
  std::uint64_t depth() const { return width / heads; }
};

/// AutoencoderKL: level i has layers_per_block residual blocks in the encoder, one more in the decoder; in the middle a
/// residual block, attention with one head, a residual block.
struct AutoencoderSpec {
  std::uint64_t image_channels = 3;
  std::vector<std::uint64_t> channels;
  std::uint64_t layers_per_block = 2, latent_channels = 4, groups = 32;
  double scaling = 1, shift = 0;   ///< latents = scaling · (z − shift)
  bool quant_convolutions = true;  ///< 1 × 1 convolutions behind the encoder and in front of the decoder
  /// Pixels of an image on each latent pixel's side.
  std::uint64_t factor() const { return std::uint64_t(1) << (channels.size() - 1); }
};

struct PipelineSpec {
  std::string name;   ///< "sd-1.5": as --model takes it
  std::string title;  ///< "Stable Diffusion 1.5"
  std::vector<TextEncoderSpec> text;
  std::variant<UNetSpec, FluxSpec> denoiser;
  AutoencoderSpec autoencoder;
  std::uint64_t size = 0;   ///< pixels on a side, as it was trained
  std::uint64_t steps = 0;  ///< of the denoiser, as the library has it by default
  double guidance = 1;      ///< how far the prediction moves away from the one for no text (Ho and Salimans, 2022)
  const UNetSpec* unet() const { return std::get_if<UNetSpec>(&denoiser); }
  const FluxSpec* flux() const { return std::get_if<FluxSpec>(&denoiser); }
  /// Whether each step needs two predictions, with the text and without.
  bool is_guided() const { return unet() && guidance > 1; }
  std::uint64_t denoiser_context() const;  ///< width of the rows that the denoiser reads
  std::uint64_t context_tokens() const;    ///< and how many of each text
};

/// "down_blocks.0": a module in a list.
inline std::string numbered(const std::string& name, std::uint64_t index) { return name + "." + std::to_string(index); }

/// A tensor as a file of weights has it: PyTorch's order of dimensions (a convolution's are [out, in, height, width]).
struct TensorOf {
  std::string name;
  std::vector<std::uint64_t> shape;
  /// Throws std::length_error where 64 bits do not hold it.
  std::uint64_t elements() const;
};

/// In the order in which a forward pass needs them. Names of CLIP's tensors begin with "text_model." as in published
/// files (but text_projection), whatever version of transformers wrote them.
std::vector<TensorOf> tensors_of(const TextEncoderSpec& spec);
std::vector<TensorOf> tensors_of(const UNetSpec& spec);
std::vector<TensorOf> tensors_of(const FluxSpec& spec);
std::vector<TensorOf> tensors_of(const std::variant<UNetSpec, FluxSpec>& denoiser);
enum class AutoencoderPart { encoder, decoder, both };  ///< quant_conv is the encoder's, post_quant_conv the decoder's
std::vector<TensorOf> tensors_of(const AutoencoderSpec& spec, AutoencoderPart part);

/// Sum of the elements. Throws std::length_error where 64 bits do not hold it.
std::uint64_t parameters(const std::vector<TensorOf>& tensors);

/// Whether the tensor is the matrix of a linear layer that 8 and 4 bits are for (bitsandbytes replaces all of
/// torch.nn.Linear): two dimensions, and no table of an embedding. Convolutions, norms and biases stay as they are.
bool is_linear(const TensorOf& tensor);

/// The names of all pipelines that are known.
inline constexpr std::array kPipelines{"digits", "sd-1.5", "sd-2.1", "sdxl", "flux.1-dev", "flux.1-schnell"};
/// digits: trained in this repository (common/data/digit_images). The others: the published config.json of each
/// component. "flux.1" is flux.1-dev. Throws std::invalid_argument with one line that lists the names.
const PipelineSpec& pipeline_named(std::string_view name);

}  // namespace oomlab::image
