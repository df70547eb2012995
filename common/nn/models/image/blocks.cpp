#include "nn/models/image/blocks.h"

#include <utility>

#include "nn/ops/activation.h"
#include "nn/ops/channels.h"
#include "nn/ops/convolution.h"
#include "nn/ops/cross_attention.h"
#include "nn/ops/geglu.h"
#include "nn/ops/group_norm.h"
#include "nn/ops/instances.h"
#include "nn/ops/nearest.h"
#include "nn/ops/norms.h"
#include "nn/ops/residual.h"

namespace oomlab::image {

namespace {

constexpr float kAttentionEps = 1e-6f;  // of the norm in front of it, whatever the others have

}  // namespace

template <class T>
Map<T> Blocks<T>::like(const Map<T>& x, std::size_t channels, nn::InputSize size, const char* tag) {
  Map<T> y{{}, x.batch, size, channels};
  y.data = activation(checked_product(y.rows(), channels), tag);
  return y;
}

template <class T>
void Blocks<T>::norm(const std::string& name, const Map<T>& x, Map<T>& y, float eps, nn::Activation activation) {
  nn::group_norm_forward<T>(context_, {x.batch, x.pixels(), x.channels, groups_, eps, activation}, x.data.data(),
                            weights_[name + ".weight"], weights_[name + ".bias"], y.data.data(), nullptr, nullptr);
}

// Of x, which is shaped as `as`. The weights must be there.
template <class T>
Map<T> Blocks<T>::convolved(const std::string& name, const T* x, const Map<T>& as, const char* tag, std::size_t stride,
                            bool padded) {
  const auto weight = weights_.shape(name + ".weight");
  const std::size_t out = weight[0], kernel = weight[2];
  nn::ConvolutionShape shape =
      nn::convolution_shape(as.batch, as.size.height, as.size.width, as.channels, out, kernel, stride, kernel / 2);
  if (!padded) shape.pad_top = shape.pad_left = 0;  // what is missing is below and on the right
  Map<T> y = like(as, out, {shape.out_height, shape.out_width}, tag);
  nn::convolution_forward<T>(context_, shape, form_.convolution, x, weights_[name + ".weight"], y.data.data());
  nn::bias_activation<T>(context_, y.data.data(), weights_[name + ".bias"], y.rows(), out, nn::Activation::none);
  return y;
}

template <class T>
Map<T> Blocks<T>::convolution(const std::string& name, const Map<T>& x) {
  return convolution(name, x.data.data(), x.batch, x.size, x.channels);
}

template <class T>
Map<T> Blocks<T>::convolution(const std::string& name, const T* x, std::size_t batch, nn::InputSize size,
                              std::size_t channels) {
  const auto weights = weights_.block({name});
  return convolved(name, x, {{}, batch, size, channels}, "convolution");
}

template <class T>
Map<T> Blocks<T>::downsample(const std::string& name, const Map<T>& x, bool padded) {
  const auto weights = weights_.block({name});
  return convolved(name, x.data.data(), x, "half the resolution", 2, padded);
}

template <class T>
Map<T> Blocks<T>::upsample(const std::string& name, Map<T> x) {
  const auto weights = weights_.block({name});
  Map<T> larger = like(x, x.channels, {2 * x.size.height, 2 * x.size.width}, "twice the resolution");
  nn::nearest_forward<T>(context_, x.data.data(), larger.data.data(), x.batch, x.size.height, x.size.width, x.channels,
                         2);
  x.data.reset();
  return convolved(name, larger, "convolution");
}

template <class T>
Map<T> Blocks<T>::end(const std::string& norm_name, const std::string& name, Map<T> x) {
  const auto weights = weights_.block({norm_name, name});
  norm(norm_name, x, x, eps_, nn::Activation::silu);
  return convolved(name, x, "output");
}

template <class T>
Map<T> Blocks<T>::residual(const std::string& name, const Map<T>& x, const T* time) {
  const auto weights = weights_.block({name});
  Map<T> normed = like(x, x.channels, x.size, "norm");
  norm(name + ".norm1", x, normed, eps_, nn::Activation::silu);
  Map<T> hidden = convolved(name + ".conv1", normed, "convolution");
  normed.data.reset();
  if (time) {
    const auto projection = weights_.linear(name + ".time_emb_proj");
    DeviceBuffer<T> shifts = activation(checked_product(x.batch, hidden.channels), "time of a block");
    projection.forward(context_, {time, projection.in()}, shifts.data(), x.batch);
    nn::shift_channels<T>(context_, hidden.data.data(), shifts.data(), hidden.data.data(), x.batch, x.pixels(),
                          hidden.channels);
  }
  norm(name + ".norm2", hidden, hidden, eps_, nn::Activation::silu);
  Map<T> y = convolved(name + ".conv2", hidden, "residual block");
  hidden.data.reset();
  if (x.channels == y.channels)
    nn::add_to<T>(context_, y.data.data(), x.data.data(), y.data.size());
  else  // a convolution of 1 × 1
    weights_.linear(name + ".conv_shortcut")
        .forward(context_, {x.data.data(), x.channels}, y.data.data(), y.rows(), true);
  return y;
}

template <class T>
DeviceBuffer<T> attended(Context& context, const nn::AttentionShape& shape, PixelAttention form, DeviceBuffer<T> q,
                         DeviceBuffer<T> k, DeviceBuffer<T> v) {
  const auto output = [&] {
    return context.buffer<T>(checked_product(shape.rows(), shape.width), Category::activations, "attended");
  };
  if (form == PixelAttention::textbook) {
    DeviceBuffer<T> probabilities = nn::cross_attention_probabilities<T>(context, shape, q.data(), k.data());
    q.reset();
    k.reset();
    DeviceBuffer<T> y = output();
    nn::cross_attention_forward<T>(context, shape, probabilities.data(), v.data(), y.data());
    return y;
  }
  DeviceBuffer<T> y = output();
  const nn::SeparateQkv<const T> in{q.data(), k.data(), v.data()};
  if (form == PixelAttention::tiled)
    nn::cross_attention_forward_tiled<T>(context, shape, in, y.data());
  else
    nn::cross_attention_forward_fused<T>(context, shape, in, y.data(), nullptr);
  return y;
}

// A linear layer of `rows` rows, to a new buffer.
template <class T>
DeviceBuffer<T> Blocks<T>::projected(const std::string& name, const T* x, std::size_t rows, const char* tag) {
  const auto layer = weights_.linear(name);
  DeviceBuffer<T> y = activation(checked_product(rows, layer.out()), tag);
  layer.forward(context_, {x, layer.in()}, y.data(), rows);
  return y;
}

// x += the output layer of what the normed pixels attend to: the rows of a text, or, where there is none, each other.
template <class T>
void Blocks<T>::attend_and_add(const std::string& name, DeviceBuffer<T> normed, Map<T>& x, std::size_t heads,
                               const TextRows<T>& text) {
  DeviceBuffer<T> q = projected(name + ".to_q", normed.data(), x.rows(), "queries");
  if (text.data) normed.reset();
  const T* const from = text.data ? text.data : normed.data();
  const std::size_t tokens = text.data ? text.tokens : x.pixels();
  DeviceBuffer<T> k = projected(name + ".to_k", from, checked_product(x.batch, tokens), "keys");
  DeviceBuffer<T> v = projected(name + ".to_v", from, checked_product(x.batch, tokens), "values");
  normed.reset();
  const nn::AttentionShape shape{
      .sequences = x.batch, .seq = x.pixels(), .heads = heads, .width = x.channels, .causal = false, .key_seq = tokens};
  const DeviceBuffer<T> y = attended<T>(context_, shape, form_.attention, std::move(q), std::move(k), std::move(v));
  weights_.linear(name + ".to_out.0").forward(context_, {y.data(), x.channels}, x.data.data(), x.rows(), true);
}

template <class T>
DeviceBuffer<T> Blocks<T>::layer_norm(const std::string& name, const Map<T>& x) {
  DeviceBuffer<T> y = activation(x.data.size(), "norm");
  nn::layer_norm_forward<T>(context_, x.data.data(), weights_[name + ".weight"], weights_[name + ".bias"], y.data(),
                            nullptr, nullptr, x.rows(), x.channels);
  return y;
}

template <class T>
void Blocks<T>::transformer_layer(const std::string& name, Map<T>& x, std::size_t heads, const TextRows<T>& text) {
  attend_and_add(name + ".attn1", layer_norm(name + ".norm1", x), x, heads, {});
  attend_and_add(name + ".attn2", layer_norm(name + ".norm2", x), x, heads, text);
  DeviceBuffer<T> normed = layer_norm(name + ".norm3", x);
  DeviceBuffer<T> gated = projected(name + ".ff.net.0.proj", normed.data(), x.rows(), "values and gates");
  normed.reset();
  const auto down = weights_.linear(name + ".ff.net.2");
  DeviceBuffer<T> hidden = activation(checked_product(x.rows(), down.in()), "GEGLU");
  nn::geglu_forward<T>(context_, gated.data(), hidden.data(), x.rows(), down.in());
  gated.reset();
  down.forward(context_, {hidden.data(), down.in()}, x.data.data(), x.rows(), true);
}

template <class T>
Map<T> Blocks<T>::transformer(const std::string& name, Map<T> x, std::size_t layers, std::size_t heads,
                              const TextRows<T>& text) {
  Map<T> hidden{{}, x.batch, x.size, x.channels};
  for (std::size_t i = 0; i < layers; ++i) {
    const std::string layer = name + ".transformer_blocks." + std::to_string(i);
    const bool first = i == 0, last = i + 1 == layers;
    std::vector<std::string> names{layer};
    if (first) names.insert(names.end(), {name + ".norm", name + ".proj_in"});
    if (last) names.push_back(name + ".proj_out");
    const auto weights = weights_.block(names);
    if (first) {
      Map<T> normed = like(x, x.channels, x.size, "norm");
      norm(name + ".norm", x, normed, kAttentionEps, nn::Activation::none);
      hidden.data = projected(name + ".proj_in", normed.data.data(), x.rows(), "transformer");
    }
    transformer_layer(layer, hidden, heads, text);
    if (!last) continue;
    const auto out = weights_.linear(name + ".proj_out");
    out.forward(context_, {hidden.data.data(), out.in()}, x.data.data(), x.rows(), true);
  }
  return x;
}

template <class T>
Map<T> Blocks<T>::attention(const std::string& name, Map<T> x) {
  const auto weights = weights_.block({name});
  Map<T> normed = like(x, x.channels, x.size, "norm");
  norm(name + ".group_norm", x, normed, kAttentionEps, nn::Activation::none);
  attend_and_add(name, std::move(normed.data), x, 1, {});
  return x;
}

#define OOMLAB_IMAGE_BLOCKS(T)                                                                            \
  template class Blocks<T>;                                                                               \
  template DeviceBuffer<T> attended(Context&, const nn::AttentionShape&, PixelAttention, DeviceBuffer<T>, \
                                    DeviceBuffer<T>, DeviceBuffer<T>);
OOMLAB_FOR_EACH_TYPE(OOMLAB_IMAGE_BLOCKS)

}  // namespace oomlab::image
