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
#include <vector>

#include "nn/models/resnet.h"
#include "nn/ops/batch_norm.h"
#include "nn/ops/convolution.h"
#include "nn/ops/kernel.h"
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

/// What of every layer a tile of the last one needs.
struct TilePlan {
  std::vector<Region> in, out;  ///< of each unit, in the order of ResNetSpec::units()
  std::vector<Region> blocks;   ///< of each block's input
  Region pool{};                ///< of a pooled stem's output

  TilePlan(const nn::ResNetSpec& spec, const nn::ResNetShapes& shapes, Region tile)
      : in(shapes.units.size()), out(shapes.units.size()), blocks(spec.blocks.size()) {
    std::size_t behind = shapes.units.size();
    for (std::size_t b = spec.blocks.size(); b-- > 0;) {
      const nn::ResidualBlock& block = spec.blocks[b];
      const std::size_t first = behind - block.branch.size() - block.projection.size();
      const std::size_t last = first + block.branch.size() - 1;
      Region needed = tile;
      for (std::size_t i = last + 1; i-- > first;) {
        out[i] = needed;
        in[i] = needed = seen_by(shapes.units[i], needed);
      }
      Region shortcut = tile;
      if (!block.projection.empty()) {
        out[last + 1] = tile;
        in[last + 1] = shortcut = seen_by(shapes.units[last + 1], tile);
      }
      blocks[b] = tile = hull(needed, shortcut);
      behind = first;
    }
    pool = tile;
    out[0] = spec.pooled ? seen_by(shapes.pool, tile) : tile;
    in[0] = seen_by(shapes.units[0], out[0]);
  }
};

/// Calls body(plan, is_first) for the tiles of the last layer, `tiles` along each side, or as many as it has pixels.
template <class Body>
void each_tile(const nn::ResNetSpec& spec, const nn::ResNetShapes& shapes, std::size_t tiles, Body body) {
  const nn::ConvolutionShape& last = shapes.units[shapes.units.size() - 1 - spec.blocks.back().projection.size()];
  const std::size_t down = std::min(tiles, last.out_height), across = std::min(tiles, last.out_width);
  for (std::size_t y = 0; y < down; ++y)
    for (std::size_t x = 0; x < across; ++x) {
      const Region tile{y * last.out_height / down, (y + 1) * last.out_height / down, x * last.out_width / across,
                        (x + 1) * last.out_width / across};
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

/// Inference by tiles: the same logits as nn::ResNet::forward(). `input` [batch, height, width, channels] stays whole
/// on the device. Throws OutOfMemory.
class TiledInference {
 public:
  TiledInference(Context& context, nn::ResNet& model, const nn::ResNetForm& form, std::size_t batch, nn::InputSize size,
                 Statistics statistics = Statistics::running)
      : context_(context),
        model_(model),
        form_(form),
        batch_(batch),
        size_(size),
        shapes_(nn::shapes_of(model.spec(), batch, size)),
        names_(model.spec().units()),
        statistics_(statistics) {}

  /// The logits [batch, classes], by `tiles` ≥ 1 tiles along each side of the last feature map. Frees the input. Throws
  /// std::invalid_argument when it has another size, and with Statistics::of_tile where a tile leaves one value per
  /// channel.
  DeviceBuffer<float> run(DeviceBuffer<float> input, std::size_t tiles) {
    const nn::ResNetSpec& spec = model_.spec();
    nn::require_input(shapes_, input.size());
    const Phase phase(context_.ledger(), "inference");
    const float share = 1.0f / static_cast<float>(shapes_.last_pixels);
    auto features = image(batch_ * spec.features(), "features");
    each_tile(spec, shapes_, tiles, [&](const TilePlan& plan, bool first) {
      const DeviceBuffer<float> last = tile(plan, input);
      const std::size_t pixels = last.size() / features.size();
      nn::global_pool_forward(context_, last.data(), features.data(), batch_, pixels, spec.features(), share, !first);
    });
    input.reset();
    auto logits = image(batch_ * spec.classes, "logits");
    model_.head(context_, features.data(), logits.data(), batch_);
    return logits;
  }

 private:
  using Image = DeviceBuffer<float>;
  Image image(std::size_t elements, const std::string& tag) {
    return context_.buffer<float>(elements, Category::activations, tag);
  }
  // A copy of `part` of x, which is `whole`.
  Image window(const Image& x, const Region& whole, const Region& part, std::size_t channels) {
    Image cut = image(checked_product(batch_, checked_product(part.pixels(), channels)), "tile");
    launch(copy_window_kernel, nn::shape_for_packed_rows<float>(batch_ * part.height(), part.width() * channels),
           context_.stream(), x.data(), cut.data(), batch_, whole, part, channels,
           nn::packs_fit<float>(channels, x.data(), cut.data()));
    return cut;
  }

  // Unit i's piece of its output, from x, which holds the region `has` of its input.
  Image unit(const TilePlan& plan, std::size_t i, const Image& x, const Region& has, const Image* residual,
             nn::Activation activation) {
    const nn::ConvolutionShape shape = part_of(shapes_.units[i], plan.in[i], plan.out[i]);
    const nn::ResNet::UnitTensors u = model_.unit(i);
    Image cut;
    if (has != plan.in[i]) cut = window(x, has, plan.in[i], shape.in_channels);
    Image y = image(shape.output_elements(), names_[i].name + " output");
    nn::convolution_forward(context_, shape, form_.way, cut ? cut.data() : x.data(), u.weight, y.data());
    const float* const added = residual ? residual->data() : nullptr;
    if (statistics_ == Statistics::running) {
      nn::batch_norm_inference(context_, y.data(), u.gamma, u.beta, added, y.data(), u.running, shape.out_pixels(),
                               shape.out_channels, activation);
    } else {
      Image mean = image(shape.out_channels, "mean"), inv_std = image(shape.out_channels, "1/sigma");
      nn::batch_norm_forward(context_, y.data(), u.gamma, u.beta, added, y.data(), mean.data(), inv_std.data(), {},
                             shape.out_pixels(), shape.out_channels, activation);
    }
    return y;
  }

  // THE MITIGATION: all layers on one tile and its halo.
  Image tile(const TilePlan& plan, const Image& input) {
    const nn::ResNetSpec& spec = model_.spec();
    Image x = unit(plan, 0, input, {0, size_.height, 0, size_.width}, nullptr, nn::Activation::relu);
    if (spec.pooled) {
      const nn::ConvolutionShape pool = part_of(shapes_.pool, plan.out[0], plan.pool);
      Image pooled = image(pool.output_elements(), "pool output");
      nn::max_pool_forward<float>(context_, pool, x.data(), pooled.data(), nullptr);
      x = std::move(pooled);
    }
    std::size_t i = 1;
    for (std::size_t b = 0; b < spec.blocks.size(); ++b) {
      const std::size_t last = i + spec.blocks[b].branch.size() - 1, channels = shapes_.units[i].in_channels;
      Image at;
      for (; i < last; ++i)
        at = unit(plan, i, at ? at : x, at ? plan.in[i] : plan.blocks[b], nullptr, nn::Activation::relu);
      if (!spec.blocks[b].projection.empty()) {
        x = unit(plan, last + 1, x, plan.blocks[b], nullptr, nn::Activation::none);
      } else if (plan.blocks[b] != plan.out[last]) {
        x = window(x, plan.blocks[b], plan.out[last], channels);  // the shortcut has no halo
      }
      x = unit(plan, last, at, plan.in[last], &x, nn::Activation::relu);
      i = last + 1 + spec.blocks[b].projection.size();
    }
    return x;
  }

  Context& context_;
  nn::ResNet& model_;
  nn::ResNetForm form_;
  std::size_t batch_;
  nn::InputSize size_;
  nn::ResNetShapes shapes_;
  std::vector<nn::ConvolutionUnit> names_;
  Statistics statistics_;
};

/// Its peak in closed form: the fullest moment of the fullest tile, the input and the features beside it. Running
/// statistics.
inline PeakBytes predict_tiled_inference(const nn::ResNetSpec& spec, std::size_t batch, nn::InputSize size,
                                         std::size_t tiles, const nn::ResNetForm& form) {
  const nn::ResNetShapes shapes = nn::shapes_of(spec, batch, size);
  PeakTracker tracker(nn::resident_for_inference(spec));
  const auto bytes = [](std::size_t elements) { return round_to_granule(checked_product(elements, sizeof(float))); };
  const auto add = [&](std::size_t b) { tracker.add(Category::activations, b); };
  const auto drop = [&](std::size_t b) { tracker.drop(Category::activations, b); };
  const std::size_t input = bytes(shapes.units[0].input_elements());
  add(input);
  add(bytes(batch * spec.features()));
  each_tile(spec, shapes, tiles, [&](const TilePlan& plan, bool) {
    const auto in = [&](std::size_t i) { return bytes(batch * plan.in[i].pixels() * shapes.units[i].in_channels); };
    const auto out = [&](std::size_t i) { return bytes(batch * plan.out[i].pixels() * shapes.units[i].out_channels); };
    const auto unit = [&](std::size_t i, const Region& has) {
      const std::size_t cut = has == plan.in[i] ? 0 : in(i);
      const nn::ConvolutionShape part = part_of(shapes.units[i], plan.in[i], plan.out[i]);
      const std::size_t columns = nn::convolution_workspace(part, form.way, sizeof(float)).columns;
      add(cut), add(out(i));
      tracker.add(Category::workspace, columns), tracker.drop(Category::workspace, columns);
      drop(cut);
    };
    unit(0, {0, size.height, 0, size.width});
    std::size_t x = out(0);
    if (spec.pooled) {
      const std::size_t pooled = bytes(batch * plan.pool.pixels() * shapes.pool.out_channels);
      add(pooled), drop(x);
      x = pooled;
    }
    std::size_t i = 1;
    for (std::size_t b = 0; b < spec.blocks.size(); ++b) {
      const bool projected = !spec.blocks[b].projection.empty();
      const std::size_t last = i + spec.blocks[b].branch.size() - 1;
      std::size_t at = 0;
      for (bool first = true; i < last; ++i, first = false) {
        unit(i, first ? plan.blocks[b] : plan.in[i]);
        drop(at);
        at = out(i);
      }
      if (projected) unit(last + 1, plan.blocks[b]);
      if (projected || plan.blocks[b] != plan.out[last]) {
        if (!projected) add(out(last));  // as large as the shortcut that is cut
        drop(x);
        x = out(last);
      }
      unit(last, plan.in[last]);
      drop(x), drop(at);
      x = out(last);
      i = last + 1 + projected;
    }
    drop(x);
  });
  drop(input);
  add(bytes(batch * spec.classes));
  return tracker.peak();
}

}  // namespace oomlab::input_size
