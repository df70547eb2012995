#pragma once
// Inference by tiles with a halo: a network sees an image piece by piece, and computes what it would have computed from
// all of it, but for rounding.
//
// A pixel of a convolution's output sees kernel × kernel pixels of its input, so a tile of the last layer sees a larger
// piece of each layer before it: the tile and a halo around it. Walking the layers backwards, seen_by() finds these
// pieces; walking forwards, each layer computes its piece and no more. Zeros are padded only where the image ends.
//
// The peak is that of one tile with its halo, the input, and the features. The price: pixels in a halo are computed
// once for every tile that needs them. The result is that of the whole image as long as every layer looks at a few
// pixels around each pixel. A batch norm with running statistics does; one that takes statistics of what it sees
// (training mode, instance and group norm) or squeeze and excitation does not: a tile has other statistics than the
// image.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "nn/models/network.h"
#include "nn/ops/activation.h"
#include "nn/ops/batch_norm.h"
#include "nn/ops/convolution.h"
#include "nn/ops/kernel.h"
#include "nn/ops/matmul.h"
#include "nn/ops/pooling.h"

namespace oomlab::input_size {

/// Rows top … bottom − 1 and columns left … right − 1 of an image.
struct Region {
  std::size_t top, bottom, left, right;
  __host__ __device__ std::size_t height() const { return bottom - top; }
  __host__ __device__ std::size_t width() const { return right - left; }
  std::size_t pixels() const { return height() * width(); }
  friend bool operator==(const Region&, const Region&) = default;
};
/// The smallest one that has both.
inline Region hull(const Region& a, const Region& b) {
  return {std::min(a.top, b.top), std::max(a.bottom, b.bottom), std::min(a.left, b.left), std::max(a.right, b.right)};
}

/// What a convolution (or a pool) of the whole image must see of its input for a region of its output: the halo is
/// kernel − stride rows and columns, both sides together (negative: fewer than the tile has), less at the image's
/// border.
inline Region seen_by(const nn::ConvolutionShape& whole, const Region& out) {
  const auto first = [&](std::size_t at, std::size_t pad) {
    return at * whole.stride - std::min(at * whole.stride, pad);
  };
  const auto end = [&](std::size_t at, std::size_t pad, std::size_t size) {
    const std::size_t reached = (at - 1) * whole.stride + whole.kernel;
    return std::min(size, reached - std::min(reached, pad));
  };
  return {first(out.top, whole.pad_top), end(out.bottom, whole.pad_top, whole.height), first(out.left, whole.pad_left),
          end(out.right, whole.pad_left, whole.width)};
}

/// The same convolution from a region of its input to one of its output: padded only where the image ends.
inline nn::ConvolutionShape part_of(nn::ConvolutionShape shape, const Region& in, const Region& out) {
  shape.pad_top -= std::min(shape.pad_top, out.top * shape.stride);
  shape.pad_left -= std::min(shape.pad_left, out.left * shape.stride);
  shape.height = in.height(), shape.width = in.width();
  shape.out_height = out.height(), shape.out_width = out.width();
  return shape;
}

/// The layers that tiles go through: all before the mean over the pixels. Throws std::invalid_argument for a network
/// that has others than convolutions and pools there, or no such mean.
inline std::size_t tiled_layers(const nn::NetworkSpec& spec) {
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const nn::Layer& layer = spec.layers[i];
    if (layer.kind == nn::LayerKind::global_pool && layer.from == i && i + 2 == spec.layers.size()) return i;
    if (!layer.has_norm() && layer.kind != nn::LayerKind::max_pool) break;
  }
  throw std::invalid_argument("'" + spec.name + "' is no chain of convolutions and pools with a mean behind it");
}

/// What a tile of the last of these layers needs: of each value (numbered as in plan/model/network.h) a region, and of
/// each layer what it reads of its input, which may be less: a shortcut beside it has no halo.
struct TilePlan {
  std::vector<Region> values;
  std::vector<Region> seen;

  TilePlan(const nn::NetworkSpec& spec, const nn::NetworkShapes& shapes, const Region& tile) {
    const std::size_t layers = tiled_layers(spec);
    values.resize(layers + 1);
    seen.resize(layers);
    std::vector<bool> is_needed(layers + 1, false);
    const auto need = [&](std::size_t value, const Region& region) {
      values[value] = is_needed[value] ? hull(values[value], region) : region;
      is_needed[value] = true;
    };
    need(layers, tile);
    for (std::size_t i = layers; i-- > 0;) {
      const nn::Layer& layer = spec.layers[i];
      seen[i] = seen_by(shapes.windows[i], values[i + 1]);
      need(layer.from, seen[i]);
      if (layer.also != nn::Layer::kNone) need(layer.also, values[i + 1]);
    }
    values[0] = {0, shapes.sizes[0].height, 0, shapes.sizes[0].width};  // the input stays whole
  }
};

/// The last of these layers that reads each value.
inline std::vector<std::size_t> last_readers(const nn::NetworkSpec& spec) {
  std::vector<std::size_t> last(tiled_layers(spec) + 1, SIZE_MAX);
  for (std::size_t i = 0; i + 1 < last.size(); ++i) {
    last[spec.layers[i].from] = i;
    if (spec.layers[i].also != nn::Layer::kNone) last[spec.layers[i].also] = i;
  }
  return last;
}

/// Calls body(plan, is_first) for the tiles of the last layer, `tiles` along each side, or as many as it has pixels.
template <class Body>
void each_tile(const nn::NetworkSpec& spec, const nn::NetworkShapes& shapes, std::size_t tiles, Body body) {
  const auto [height, width] = shapes.sizes[tiled_layers(spec)];
  const std::size_t down = std::min(tiles, height), across = std::min(tiles, width);
  for (std::size_t y = 0; y < down; ++y)
    for (std::size_t x = 0; x < across; ++x) {
      const Region tile{y * height / down, (y + 1) * height / down, x * width / across, (x + 1) * width / across};
      body(TilePlan(spec, shapes, tile), y == 0 && x == 0);
    }
}

/// to[batch, part] = that region of from[batch, whole], channels last.
__global__ inline void copy_window_kernel(const float* __restrict__ from, float* __restrict__ to, std::size_t batch,
                                          Region whole, Region part, std::size_t channels, bool packs) {
  for (std::size_t row : row_range(batch * part.height())) {
    const std::size_t image = row / part.height(), line = row % part.height() + part.top - whole.top;
    const float* const in =
        from + ((image * whole.height() + line) * whole.width() + part.left - whole.left) * channels;
    float* const out = to + row * part.width() * channels;
    nn::for_packs<float>(nn::BlockRange{}, part.width() * channels, packs, [&](auto v, std::size_t i) {
      using V = decltype(v);
      nn::store(out, i, nn::load<V>(in, i));
    });
  }
}

/// What a batch norm subtracts and divides by in inference: what training has seen, which is exact tile by tile; or
/// what it sees itself, which is not.
enum class Statistics { running, of_tile };

/// Inference by tiles: the same logits as nn::Network::forward(). `input` [batch, height, width, channels] stays whole
/// on the device. Throws OutOfMemory, and std::invalid_argument as tiled_layers().
class TiledInference {
 public:
  TiledInference(Context& context, nn::Network& model, const nn::NetworkForm& form, std::size_t batch,
                 nn::InputSize size, Statistics statistics = Statistics::running)
      : context_(context),
        model_(model),
        form_(form),
        batch_(batch),
        shapes_(nn::shapes_of(model.spec(), batch, size)),
        last_reader_(last_readers(model.spec())),
        values_(last_reader_.size()),
        statistics_(statistics) {}

  /// The logits [batch, classes], by `tiles` ≥ 1 tiles along each side of the last feature map. Frees the input. Throws
  /// std::invalid_argument when it has another size, and with Statistics::of_tile where a tile leaves one value per
  /// channel.
  DeviceBuffer<float> run(DeviceBuffer<float> input, std::size_t tiles) {
    const nn::NetworkSpec& spec = model_.spec();
    nn::require_input(shapes_, input.size());
    const Phase phase(context_.ledger(), "inference");
    const std::size_t layers = last_reader_.size() - 1, channels = shapes_.channels[layers];
    const float share = 1.0f / static_cast<float>(shapes_.pixels(layers));
    auto features = image(checked_product(batch_, channels), "features");
    values_[0] = std::move(input);
    each_tile(spec, shapes_, tiles, [&](const TilePlan& plan, bool first) {
      for (std::size_t i = 0; i < layers; ++i) layer(plan, i);
      nn::global_pool_forward(context_, values_[layers].data(), features.data(), batch_, plan.values[layers].pixels(),
                              channels, share, !first);
      values_[layers].reset();
    });
    values_[0].reset();
    auto logits = image(batch_ * spec.classes, "logits");
    const nn::Network::LayerTensors head = model_.tensors(layers + 1);
    nn::linear_forward(context_, features.data(), head.weight, logits.data(), batch_, channels, spec.classes);
    nn::bias_activation(context_, logits.data(), head.shift, batch_, spec.classes, nn::Activation::none);
    return logits;
  }

 private:
  using Image = DeviceBuffer<float>;
  Image image(std::size_t elements, const std::string& tag) {
    return context_.buffer<float>(elements, Category::activations, tag);
  }
  // A copy of that part of a value.
  Image window(std::size_t value, const Region& whole, const Region& part) {
    const std::size_t channels = shapes_.channels[value];
    Image cut = image(checked_product(batch_, checked_product(part.pixels(), channels)), "tile");
    launch(copy_window_kernel, nn::shape_for_packed_rows<float>(batch_ * part.height(), part.width() * channels),
           context_.stream(), values_[value].data(), cut.data(), batch_, whole, part, channels,
           nn::packs_fit<float>(channels, values_[value].data(), cut.data()));
    return cut;
  }
  void free_after(std::size_t i, std::size_t value) {
    if (value != 0 && value != nn::Layer::kNone && last_reader_[value] == i) values_[value].reset();
  }

  // THE MITIGATION: each layer computes what the tile needs of it, from a tile of its input and a halo around it.
  void layer(const TilePlan& plan, std::size_t i) {
    const nn::Layer& layer = model_.spec().layers[i];
    const nn::ConvolutionShape shape = part_of(shapes_.windows[i], plan.seen[i], plan.values[i + 1]);
    Image shortcut;  // without the halo
    if (layer.also != nn::Layer::kNone && plan.values[layer.also] != plan.values[i + 1]) {
      shortcut = window(layer.also, plan.values[layer.also], plan.values[i + 1]);
      free_after(i, layer.also);
    }
    Image cut;
    if (plan.values[layer.from] != plan.seen[i]) cut = window(layer.from, plan.values[layer.from], plan.seen[i]);
    const float* const x = cut ? cut.data() : values_[layer.from].data();
    Image& y = values_[i + 1] = image(shape.output_elements(), layer.name + " output");
    if (layer.kind == nn::LayerKind::max_pool) {
      nn::max_pool_forward<float>(context_, shape, x, y.data(), nullptr);
    } else {
      const nn::Network::LayerTensors tensors = model_.tensors(i);
      if (layer.kind == nn::LayerKind::depthwise)
        nn::depthwise_forward(context_, shape, x, tensors.weight, y.data());
      else
        nn::convolution_forward(context_, shape, form_.way, x, tensors.weight, y.data());
      const float* const added = layer.also == nn::Layer::kNone ? nullptr
                                 : shortcut                     ? shortcut.data()
                                                                : values_[layer.also].data();
      norm(shape, tensors, added, y, layer.activation);
    }
    free_after(i, layer.from);
    free_after(i, layer.also);
  }
  void norm(const nn::ConvolutionShape& shape, const nn::Network::LayerTensors& tensors, const float* added, Image& y,
            nn::Activation activation) {
    const std::size_t rows = shape.out_pixels(), channels = shape.out_channels;
    if (statistics_ == Statistics::running)
      return nn::batch_norm_inference(context_, y.data(), tensors.scale, tensors.shift, added, y.data(),
                                      tensors.running, rows, channels, activation);
    Image mean = image(channels, "mean"), inv_std = image(channels, "1/sigma");
    nn::batch_norm_forward(context_, y.data(), tensors.scale, tensors.shift, added, y.data(), mean.data(),
                           inv_std.data(), {}, rows, channels, activation);
  }

  Context& context_;
  nn::Network& model_;
  nn::NetworkForm form_;
  std::size_t batch_;
  nn::NetworkShapes shapes_;
  std::vector<std::size_t> last_reader_;
  std::vector<Image> values_;  // of the tile at hand; 0 is the whole input
  Statistics statistics_;
};

/// Its peak in closed form: the fullest moment of the fullest tile, the input and the features beside it. Running
/// statistics.
inline PeakBytes predict_tiled_inference(const nn::NetworkSpec& spec, std::size_t batch, nn::InputSize size,
                                         std::size_t tiles, const nn::NetworkForm& form) {
  const nn::NetworkShapes shapes = nn::shapes_of(spec, batch, size);
  const std::vector<std::size_t> last_reader = last_readers(spec);
  const std::size_t layers = last_reader.size() - 1;
  PeakTracker tracker(nn::resident_for_inference(spec));
  const auto bytes = [&](const Region& region, std::size_t channels) {
    return round_to_granule(checked_product(checked_product(batch, region.pixels()), channels * sizeof(float)));
  };
  const auto add = [&](std::size_t b) { tracker.add(Category::activations, b); };
  const auto drop = [&](std::size_t b) { tracker.drop(Category::activations, b); };
  const std::size_t input = bytes({0, size.height, 0, size.width}, shapes.channels[0]);
  add(input);
  add(round_to_granule(batch * shapes.channels[layers] * sizeof(float)));  // the features
  each_tile(spec, shapes, tiles, [&](const TilePlan& plan, bool) {
    const auto value = [&](std::size_t v) { return bytes(plan.values[v], shapes.channels[v]); };
    for (std::size_t i = 0; i < layers; ++i) {
      const nn::Layer& layer = spec.layers[i];
      const nn::ConvolutionShape part = part_of(shapes.windows[i], plan.seen[i], plan.values[i + 1]);
      const bool adds = layer.also != nn::Layer::kNone, cuts = plan.values[layer.from] != plan.seen[i];
      const bool cuts_shortcut = adds && plan.values[layer.also] != plan.values[i + 1];
      const std::size_t cut = cuts ? bytes(plan.seen[i], shapes.channels[layer.from]) : 0;
      if (cuts_shortcut) add(value(i + 1));  // as large as what it is added to
      if (cuts_shortcut && last_reader[layer.also] == i) drop(value(layer.also));
      add(cut);
      add(value(i + 1));
      if (layer.kind == nn::LayerKind::convolution) {
        const std::size_t columns = nn::convolution_workspace(part, form.way, sizeof(float)).columns;
        tracker.add(Category::workspace, columns);
        tracker.drop(Category::workspace, columns);
      }
      drop(cut);
      if (cuts_shortcut) drop(value(i + 1));
      if (adds && !cuts_shortcut && last_reader[layer.also] == i) drop(value(layer.also));
      if (layer.from != 0 && last_reader[layer.from] == i && layer.from != layer.also) drop(value(layer.from));
    }
    drop(value(layers));
  });
  drop(input);
  add(round_to_granule(batch * spec.classes * sizeof(float)));
  return tracker.peak();
}

}  // namespace oomlab::input_size
