// Sizes of what networks are made of.

#include <algorithm>
#include <cstdint>
#include <stdexcept>

#include "plan/model/network.h"

namespace oomlab::nn {

std::uint64_t NetworkSpec::channels(std::size_t value) const {
  return value == 0 ? in_channels : layers[value - 1].out;
}

std::uint64_t NetworkSpec::weights(std::size_t i) const {
  const Layer& layer = layers[i];
  const std::uint64_t window = checked_product(layer.kernel, layer.kernel);
  switch (layer.kind) {
    case LayerKind::convolution:
      return layer.shares != Layer::kNone ? 0
                                          : checked_product(window, checked_product(channels(layer.from), layer.out));
    case LayerKind::depthwise: return checked_product(window, layer.out);
    case LayerKind::linear: return checked_product(channels(layer.from), layer.out);
    default: return 0;
  }
}

std::uint64_t NetworkSpec::parameters() const {
  std::uint64_t sum = 0;
  const auto add = [&](std::uint64_t count) { sum = checked_sum(sum, count); };
  for (std::size_t i = 0; i < layers.size(); ++i) {
    add(weights(i));
    if (layers[i].has_norm()) add(checked_product(2, layers[i].out));
    if (layers[i].kind == LayerKind::linear) add(layers[i].out);
    if (layers[i].kind == LayerKind::squeeze_excite) {
      add(checked_product(checked_product(2, layers[i].squeeze), layers[i].out));
      add(checked_sum(layers[i].squeeze, layers[i].out));
    }
  }
  return sum;
}

std::size_t NetworkSpec::norms() const {
  std::size_t count = 0;
  for (const Layer& layer : layers) count += layer.has_norm();
  return count;
}

NetworkShapes shapes_of(const NetworkSpec& spec, std::uint64_t batch, InputSize size) {
  const auto text = [](InputSize s) { return std::to_string(s.height) + " x " + std::to_string(s.width); };
  if (size.height % spec.multiple_of != 0 || size.width % spec.multiple_of != 0)
    throw std::invalid_argument("height and width must be multiples of " + std::to_string(spec.multiple_of) + ", not " +
                                text(size));
  NetworkShapes shapes{.batch = batch, .sizes = {size}, .channels = {spec.in_channels}, .windows = {}};
  for (const Layer& layer : spec.layers) {
    const InputSize in = shapes.sizes[layer.from];
    const std::uint64_t channels = shapes.channels[layer.from];
    InputSize out = in;
    ConvolutionShape window{};
    switch (layer.kind) {
      case LayerKind::convolution:
      case LayerKind::depthwise:
      case LayerKind::max_pool:
        try {
          window = convolution_shape(batch, in.height, in.width, channels, layer.out, layer.kernel, layer.stride,
                                     layer.padding, layer.kind == LayerKind::depthwise ? channels : 1);
        } catch (const std::invalid_argument& error) {
          throw std::invalid_argument(layer.name + ": " + error.what());
        }
        out = {window.out_height, window.out_width};
        break;
      case LayerKind::global_pool: out = {1, 1}; break;
      case LayerKind::upsample:
        out = {checked_product(in.height, layer.factor), checked_product(in.width, layer.factor)};
        break;
      default: break;
    }
    if (layer.also != Layer::kNone) {
      const InputSize other = shapes.sizes[layer.also];
      if (other.height != out.height || other.width != out.width)
        throw std::invalid_argument(layer.name + ": cannot join " + text(out) + " and " + text(other));
      if (layer.has_norm() && shapes.channels[layer.also] != layer.out)
        throw std::invalid_argument(layer.name + ": cannot add values with different numbers of channels");
    }
    shapes.sizes.push_back(out);
    shapes.channels.push_back(layer.out);
    shapes.windows.push_back(window);
    // So that small multiples of these need no check.
    const std::uint64_t elements = shapes.elements(shapes.sizes.size() - 1);
    const std::uint64_t columns = window.batch ? checked_product(window.out_pixels(), window.patch()) : 0;
    if (std::max(elements, columns) > UINT64_MAX / 1024) throw std::length_error("a size does not fit 64 bits");
  }
  return shapes;
}

void require_input(const NetworkShapes& shapes, std::uint64_t elements) {
  if (elements == shapes.elements(0)) return;
  throw std::invalid_argument("input of " + std::to_string(elements) + " values is not a batch of " +
                              std::to_string(shapes.batch) + " images of " + std::to_string(shapes.sizes[0].height) +
                              " x " + std::to_string(shapes.sizes[0].width));
}

}  // namespace oomlab::nn
