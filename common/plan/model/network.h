#pragma once
// Networks of images that are a list of layers, each of which reads what earlier ones made: MobileNet, U-Net, residual
// networks and lighter forms of them. Names, layers, sizes.
//
// Values are numbered: 0 is the input, i what layers[i − 1] made, [batch, height, width, channels], channels last. A
// layer reads `from` and perhaps `also`, both made before it. The last layer makes the logits: of each image, or of
// each pixel (a segmenter).

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "plan/bytes.h"
#include "plan/model/activation.h"
#include "plan/model/convolution.h"
#include "plan/model/resnet.h"

namespace oomlab::nn {

enum class LayerKind {
  /// A convolution without bias, a batch norm, the value `also` added (or none), an activation. Keeps the convolution's
  /// output z and the norm's mean and 1/σ.
  convolution,
  /// The same with one filter for each channel: out = channels of `from`.
  depthwise,
  /// y = activation(x Wᵀ + b) for the channels of each pixel, or of each image behind a global_pool. Keeps what the
  /// activation saw, where that is hard swish.
  linear,
  /// Squeeze and excitation (Hu et al., 2017): y = x ⊙ hard sigmoid(W₂ relu(W₁ m + b₁) + b₂), m the mean of x over the
  /// pixels of an image. `squeeze` channels between the two. Keeps m, the hidden channels and the factors.
  squeeze_excite,
  /// Maxima of windows of kernel × kernel pixels. Keeps a byte for each output.
  max_pool,
  /// The mean over all pixels of an image.
  global_pool,
  /// `factor` times as high and as wide, bilinear, corners not aligned.
  upsample,
  /// The channels of `from`, then those of `also`.
  concatenate,
};

/// Preconditions, of which shapes_of() checks those that it says: every value but the last is read by a layer; the last
/// layer has no activation. `out` equals the channels of `from` in depthwise, squeeze_excite, pools and upsample, the
/// sum of both in concatenate, and those of `also` where something is added. Only kind convolution may share a weight,
/// with an earlier layer whose weight has the same size.
struct Layer {
  static constexpr std::size_t kNone = SIZE_MAX;

  std::string name;  ///< "stage 2 block 1 conv 1"
  LayerKind kind;
  std::size_t from = 0, also = kNone;  ///< numbers of values
  std::uint64_t out = 0;               ///< channels that it makes
  std::uint64_t kernel = 1, stride = 1, padding = 0;
  Activation activation = Activation::none;  ///< none, relu or hard_swish; behind a sum none or relu
  std::uint64_t squeeze = 0, factor = 1;
  /// A convolution that has no weight of its own: the number of the earlier layer (from 0) whose weight it uses. The
  /// norm is its own.
  std::size_t shares = kNone;

  bool has_norm() const noexcept { return kind == LayerKind::convolution || kind == LayerKind::depthwise; }
};

struct NetworkSpec {
  std::string name;
  std::uint64_t in_channels = 3, classes = 0;
  bool per_pixel = false;         ///< logits of each pixel, not of each image
  std::uint64_t multiple_of = 1;  ///< the input's height and width must be
  std::vector<Layer> layers;

  /// Channels of a value.
  std::uint64_t channels(std::size_t value) const;
  /// Elements of layer i's weight: of a convolution's [out, kernel, kernel, in] or [kernel, kernel, channels], of a
  /// linear layer's [out, in]. 0: it has none of its own.
  std::uint64_t weights(std::size_t layer) const;
  /// Everything that is trained; running statistics are not.
  std::uint64_t parameters() const;
  /// Layers that have a norm, with their running statistics.
  std::size_t norms() const;
};

/// Reads a model name, those of parse_resnet() among them:
///   mobilenet:WIDTH     a 3 × 3 convolution to WIDTH channels, then depthwise separable blocks (a 3 × 3 depthwise
///                       convolution, then a 1 × 1) to 2, 2, 4 and 4 times WIDTH, the first and third with stride 2;
///                       10 classes
///   mobilenet-v1        Howard et al., 2017, 1,000 classes
///   mobilenet-v3-large  Howard et al., 2019, 1,000 classes (eps and momentum of the norms are ours, nn/ops/batch_norm.h)
///   unet:DEPTH-WIDTH    Ronneberger et al., 2015, with padding, norms, and bilinear upsampling: DEPTH levels of two
///                       3 × 3 convolutions, WIDTH · 2^level wide, with a 2 × 2 max pool behind each; below them two of
///                       WIDTH · 2^DEPTH; then up again: twice the resolution, joined in front of what the level made
///                       on the way down, and two convolutions; 11 classes for each pixel
///   two-branch:WIDTH    a segmenter as Fast-SCNN (Poudel et al., 2019), smaller: a 3 × 3 stem to WIDTH channels and a
///                       separable block to twice that, both with stride 2, so that a quarter of the resolution is
///                       left. The branch for context goes on to a sixteenth: separable blocks with strides 2, 2 and 1,
///                       and a 1 × 1, all to 4 · WIDTH; it is upsampled 4 times. The branch for detail is a 1 × 1 to 4
///                       · WIDTH. Their sum, a separable block, 11 classes, upsampled 4 times: for each pixel
/// Throws std::invalid_argument with one line that says what is allowed.
NetworkSpec parse_network(std::string_view text);
/// Those that have a name of their own.
inline constexpr std::array kNamedNetworks{"mobilenet-v1", "mobilenet-v3-large", "resnet18", "resnet50"};

/// A lighter form of a residual network.
struct ResNetChange {
  std::uint64_t width_percent = 100;  ///< of the channels of each layer but input and head, rounded, at least one
  bool separable = false;             ///< each 3 × 3 convolution of a block becomes a depthwise and a 1 × 1
  bool shared = false;                ///< convolutions of a stage that have equal sizes use the first one's weight
};
/// A residual network as a list of layers. Throws std::invalid_argument for a width of 0 %.
NetworkSpec network_of(const ResNetSpec& spec, const ResNetChange& change = {});

/// Height, width and channels of every value, and the convolution of each layer that has a window.
struct NetworkShapes {
  std::uint64_t batch;
  std::vector<InputSize> sizes;           ///< of value 0, 1, …
  std::vector<std::uint64_t> channels;    ///< of value 0, 1, …
  std::vector<ConvolutionShape> windows;  ///< of layer 0, 1, …; only of convolutions and pools
  std::uint64_t pixels(std::size_t value) const { return checked_product(sizes[value].height, sizes[value].width); }
  std::uint64_t rows(std::size_t value) const { return checked_product(batch, pixels(value)); }
  std::uint64_t elements(std::size_t value) const { return checked_product(rows(value), channels[value]); }
  /// Rows of logits, which is the number of labels: the batch, or all of its pixels.
  std::uint64_t labels() const { return rows(sizes.size() - 1); }
};
/// Throws std::invalid_argument, with one line, when a layer would see less than its kernel, when values that are
/// joined or added differ in size, or when the input's height or width is not a multiple of spec.multiple_of;
/// std::length_error when a figure does not fit 64 bits.
NetworkShapes shapes_of(const NetworkSpec& spec, std::uint64_t batch, InputSize size);
/// Throws std::invalid_argument, with one line, unless `elements` is the size of a batch of such images.
void require_input(const NetworkShapes& shapes, std::uint64_t elements);

}  // namespace oomlab::nn
