// The models that are lists of layers: names, layers, and lighter forms of residual networks.

#include <algorithm>
#include <map>
#include <stdexcept>
#include <tuple>

#include "plan/model/bad_model.h"
#include "plan/model/network.h"

namespace oomlab::nn {

namespace {

constexpr std::uint64_t kSegmentClasses = 11;  // ten digits, and what is no digit
constexpr std::uint64_t kMostNetworkWidth = 1 << 20, kMostDepth = 12;

// Adds layers to a spec. Each function returns the number of the value that it makes.
class Builder {
 public:
  explicit Builder(NetworkSpec& spec) : spec_(spec) {}

  std::size_t add(Layer layer) {
    spec_.layers.push_back(std::move(layer));
    return spec_.layers.size();
  }
  std::size_t convolution(const std::string& name, std::size_t from, std::uint64_t out, std::uint64_t kernel,
                          std::uint64_t stride, Activation activation, std::size_t also = Layer::kNone) {
    return add({.name = name,
                .kind = LayerKind::convolution,
                .from = from,
                .also = also,
                .out = out,
                .kernel = kernel,
                .stride = stride,
                .padding = kernel / 2,
                .activation = activation});
  }
  std::size_t depthwise(const std::string& name, std::size_t from, std::uint64_t kernel, std::uint64_t stride,
                        Activation activation) {
    return add({.name = name,
                .kind = LayerKind::depthwise,
                .from = from,
                .out = spec_.channels(from),
                .kernel = kernel,
                .stride = stride,
                .padding = kernel / 2,
                .activation = activation});
  }
  // A 3 × 3 convolution in two steps: each channel on its own, then 1 × 1.
  std::size_t separable(const std::string& name, std::size_t from, std::uint64_t out, std::uint64_t stride,
                        Activation activation = Activation::relu, std::size_t also = Layer::kNone) {
    from = depthwise(name + " depthwise", from, 3, stride, Activation::relu);
    return convolution(name + " pointwise", from, out, 1, 1, activation, also);
  }
  std::size_t squeeze_excite(const std::string& name, std::size_t from, std::uint64_t squeeze) {
    return add({.name = name,
                .kind = LayerKind::squeeze_excite,
                .from = from,
                .out = spec_.channels(from),
                .squeeze = squeeze});
  }
  std::size_t max_pool(const std::string& name, std::size_t from, std::uint64_t kernel, std::uint64_t padding) {
    return add({.name = name,
                .kind = LayerKind::max_pool,
                .from = from,
                .out = spec_.channels(from),
                .kernel = kernel,
                .stride = 2,
                .padding = padding});
  }
  std::size_t global_pool(std::size_t from) {
    return add({.name = "global pool", .kind = LayerKind::global_pool, .from = from, .out = spec_.channels(from)});
  }
  std::size_t upsample(const std::string& name, std::size_t from, std::uint64_t factor) {
    return add(
        {.name = name, .kind = LayerKind::upsample, .from = from, .out = spec_.channels(from), .factor = factor});
  }
  std::size_t concatenate(const std::string& name, std::size_t from, std::size_t also) {
    return add({.name = name,
                .kind = LayerKind::concatenate,
                .from = from,
                .also = also,
                .out = checked_sum(spec_.channels(from), spec_.channels(also))});
  }
  std::size_t linear(const std::string& name, std::size_t from, std::uint64_t out,
                     Activation activation = Activation::none) {
    return add({.name = name, .kind = LayerKind::linear, .from = from, .out = out, .activation = activation});
  }
  void classify(std::size_t from) { linear("head", global_pool(from), spec_.classes); }

 private:
  NetworkSpec& spec_;
};

std::string block_name(std::size_t number) { return "block " + std::to_string(number); }

NetworkSpec mobilenet(std::uint64_t width) {
  NetworkSpec spec{.name = {}, .classes = 10, .layers = {}};
  Builder build(spec);
  std::size_t x = build.convolution("stem", 0, width, 3, 1, Activation::relu);
  const std::uint64_t times[] = {2, 2, 4, 4};
  for (std::size_t b = 0; b < 4; ++b) x = build.separable(block_name(b + 1), x, times[b] * width, b % 2 ? 1 : 2);
  build.classify(x);
  return spec;
}

NetworkSpec mobilenet_v1() {
  NetworkSpec spec{.name = {}, .classes = 1000, .layers = {}};
  Builder build(spec);
  std::size_t x = build.convolution("stem", 0, 32, 3, 2, Activation::relu);
  const struct {
    std::uint64_t out, stride;
  } blocks[] = {{64, 1},  {128, 2}, {128, 1}, {256, 2}, {256, 1},  {512, 2}, {512, 1},
                {512, 1}, {512, 1}, {512, 1}, {512, 1}, {1024, 2}, {1024, 1}};
  for (std::size_t b = 0; b < std::size(blocks); ++b)
    x = build.separable(block_name(b + 1), x, blocks[b].out, blocks[b].stride);
  build.classify(x);
  return spec;
}

// A number of channels near `count` that is a multiple of 8, and not less than nine tenths of it.
std::uint64_t multiple_of_eight(std::uint64_t count) {
  const std::uint64_t near = std::max<std::uint64_t>(8, (count + 4) / 8 * 8);
  return 10 * near < 9 * count ? near + 8 : near;
}

NetworkSpec mobilenet_v3_large() {
  constexpr auto relu = Activation::relu, swish = Activation::hard_swish;
  NetworkSpec spec{.name = {}, .classes = 1000, .layers = {}};
  Builder build(spec);
  std::size_t x = build.convolution("stem", 0, 16, 3, 2, swish);
  const struct {
    std::uint64_t kernel, expanded, out;
    bool squeezed;
    Activation activation;
    std::uint64_t stride;
  } blocks[] = {{3, 16, 16, false, relu, 1},   {3, 64, 24, false, relu, 2},   {3, 72, 24, false, relu, 1},
                {5, 72, 40, true, relu, 2},    {5, 120, 40, true, relu, 1},   {5, 120, 40, true, relu, 1},
                {3, 240, 80, false, swish, 2}, {3, 200, 80, false, swish, 1}, {3, 184, 80, false, swish, 1},
                {3, 184, 80, false, swish, 1}, {3, 480, 112, true, swish, 1}, {3, 672, 112, true, swish, 1},
                {5, 672, 160, true, swish, 2}, {5, 960, 160, true, swish, 1}, {5, 960, 160, true, swish, 1}};
  for (std::size_t b = 0; b < std::size(blocks); ++b) {
    const auto& block = blocks[b];
    const std::string name = block_name(b + 1);
    std::size_t y = x;
    if (block.expanded != spec.channels(x))
      y = build.convolution(name + " expand", y, block.expanded, 1, 1, block.activation);
    y = build.depthwise(name + " depthwise", y, block.kernel, block.stride, block.activation);
    if (block.squeezed) y = build.squeeze_excite(name, y, multiple_of_eight(block.expanded / 4));
    const bool residual = block.stride == 1 && block.out == spec.channels(x);
    x = build.convolution(name + " project", y, block.out, 1, 1, Activation::none, residual ? x : Layer::kNone);
  }
  x = build.convolution("last", x, 960, 1, 1, swish);
  x = build.linear("classifier", build.global_pool(x), 1280, swish);
  build.linear("head", x, spec.classes);
  return spec;
}

NetworkSpec unet(std::uint64_t depth, std::uint64_t width) {
  NetworkSpec spec{.name = {},
                   .classes = kSegmentClasses,
                   .per_pixel = true,
                   .multiple_of = std::uint64_t(1) << depth,
                   .layers = {}};
  Builder build(spec);
  const auto two = [&](const std::string& name, std::size_t from, std::uint64_t level) {
    from = build.convolution(name + " conv 1", from, width << level, 3, 1, Activation::relu);
    return build.convolution(name + " conv 2", from, width << level, 3, 1, Activation::relu);
  };
  std::size_t x = 0;
  std::vector<std::size_t> skipped;
  for (std::uint64_t level = 0; level < depth; ++level) {
    const std::string name = "down " + std::to_string(level + 1);
    skipped.push_back(two(name, x, level));
    x = build.max_pool(name + " pool", skipped.back(), 2, 0);
  }
  x = two("bottom", x, depth);
  for (std::size_t level = skipped.size(); level-- > 0;) {
    const std::string name = "up " + std::to_string(level + 1);
    x = build.upsample(name + " upsample", x, 2);
    x = two(name, build.concatenate(name + " join", x, skipped[level]), level);
  }
  build.linear("head", x, spec.classes);
  return spec;
}

NetworkSpec two_branch(std::uint64_t width) {
  NetworkSpec spec{.name = {}, .classes = kSegmentClasses, .per_pixel = true, .multiple_of = 16, .layers = {}};
  Builder build(spec);
  std::size_t x = build.convolution("stem", 0, width, 3, 2, Activation::relu);
  const std::size_t detail = build.separable("down", x, 2 * width, 2);
  x = build.separable("context 1", detail, 4 * width, 2);
  x = build.separable("context 2", x, 4 * width, 2);
  x = build.separable("context 3", x, 4 * width, 1);
  x = build.convolution("context 4", x, 4 * width, 1, 1, Activation::none);
  x = build.upsample("context upsample", x, 4);
  x = build.convolution("fuse", detail, 4 * width, 1, 1, Activation::relu, x);
  x = build.separable("last", x, 4 * width, 1);
  build.upsample("upsample", build.linear("head", x, spec.classes), 4);
  return spec;
}

}  // namespace

NetworkSpec parse_network(std::string_view typed) {
  const std::string name = lower_case(typed);
  const std::string_view text = name;
  const auto named = [&](NetworkSpec spec) {
    spec.name = std::string(text);
    return spec;
  };
  const auto width_in_range = [&](std::uint64_t width) {
    if (width < 1 || width > kMostNetworkWidth)
      bad_model(text, "has a width out of range: 1 to " + std::to_string(kMostNetworkWidth));
  };
  if (text == "mobilenet-v1") return named(mobilenet_v1());
  if (text == "mobilenet-v3-large") return named(mobilenet_v3_large());
  std::uint64_t numbers[2] = {};
  const std::span<std::uint64_t> one(numbers, 1);
  constexpr std::string_view kMobileNet = "mobilenet:", kUNet = "unet:", kTwoBranch = "two-branch:";
  if (text.starts_with(kMobileNet)) {
    read_numbers(text, kMobileNet, "is not a number; write mobilenet:WIDTH, for example mobilenet:16", one);
    width_in_range(numbers[0]);
    return named(mobilenet(numbers[0]));
  }
  if (text.starts_with(kTwoBranch)) {
    read_numbers(text, kTwoBranch, "is not a number; write two-branch:WIDTH, for example two-branch:8", one);
    width_in_range(numbers[0]);
    return named(two_branch(numbers[0]));
  }
  if (text.starts_with(kUNet)) {
    read_numbers(text, kUNet, "is not two numbers; write unet:DEPTH-WIDTH, for example unet:3-8", numbers);
    if (numbers[0] < 1 || numbers[0] > kMostDepth)
      bad_model(text, "has a depth out of range: 1 to " + std::to_string(kMostDepth));
    width_in_range(numbers[1]);
    return named(unet(numbers[0], numbers[1]));
  }
  if (text.starts_with("resnet")) return network_of(parse_resnet(text));
  unknown_model(text, kNamedNetworks, "mobilenet:WIDTH, unet:DEPTH-WIDTH, two-branch:WIDTH, resnet:STAGES-WIDTH");
}

NetworkSpec network_of(const ResNetSpec& resnet, const ResNetChange& change) {
  if (change.width_percent == 0) throw std::invalid_argument("a width of 0 % leaves no channels");
  NetworkSpec spec{.name = resnet.name, .in_channels = resnet.in_channels(), .classes = resnet.classes, .layers = {}};
  if (change.width_percent != 100) spec.name += " at " + std::to_string(change.width_percent) + " % width";
  if (change.separable) spec.name += ", separable";
  if (change.shared) spec.name += ", shared";
  const auto width = [&](std::uint64_t channels) {
    return std::max<std::uint64_t>(1, checked_sum(checked_product(channels, change.width_percent), 50) / 100);
  };
  Builder build(spec);
  // The first convolution of each size, by what its stage is called.
  std::map<std::tuple<std::string, std::uint64_t, std::uint64_t, std::uint64_t>, std::size_t> first;
  const auto unit = [&](const ConvolutionUnit& u, std::size_t from, Activation activation, std::size_t also) {
    if (change.separable && u.kernel == 3 && from != 0)
      return build.separable(u.name, from, width(u.out), u.stride, activation, also);
    const std::size_t value = build.convolution(u.name, from, width(u.out), u.kernel, u.stride, activation, also);
    Layer& layer = spec.layers.back();
    layer.padding = u.padding;
    if (change.shared && from != 0) {
      const std::string stage = u.name.substr(0, u.name.find(" block"));
      const auto [it, is_first] = first.try_emplace({stage, spec.channels(from), layer.out, u.kernel}, value - 1);
      if (!is_first) layer.shares = it->second;
    }
    return value;
  };
  std::size_t x = unit(resnet.stem, 0, Activation::relu, Layer::kNone);
  if (resnet.pooled) x = build.max_pool("pool", x, 3, 1);
  for (const ResidualBlock& block : resnet.blocks) {
    std::size_t y = x;
    for (std::size_t i = 0; i + 1 < block.branch.size(); ++i)
      y = unit(block.branch[i], y, Activation::relu, Layer::kNone);
    if (!block.projection.empty()) x = unit(block.projection.front(), x, Activation::none, Layer::kNone);
    x = unit(block.branch.back(), y, Activation::relu, x);
  }
  build.classify(x);
  return spec;
}

}  // namespace oomlab::nn
