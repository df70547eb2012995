#include "nn/models/image/blocks.h"

#include <utility>

#include "cuda/check.h"
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

template <class T>
Map<T> Blocks<T>::like(const Map<T>& x, std::size_t channels, nn::InputSize size, const char* tag) {
  Map<T> y{{}, x.batch, size, channels};
  y.data = activation(checked_product(y.rows(), channels), tag);
  return y;
}

template <class T>
nn::NormStatistics Blocks<T>::statistics(std::size_t count) {
  nn::NormStatistics to;
  to.mean = context_.buffer<float>(count, Category::activations, "norm mean");
  to.rstd = context_.buffer<float>(count, Category::activations, "norm rstd");
  return to;
}

template <class T>
void Blocks<T>::norm(const std::string& name, const Map<T>& x, Map<T>& y, float eps, nn::Activation activation,
                     nn::NormStatistics* kept) {
  if (kept) *kept = statistics(checked_product(x.batch, groups_));
  nn::group_norm_forward<T>(context_, shape_of_norm(x, eps, activation), x.data.data(), weights_[name + ".weight"],
                            weights_[name + ".bias"], y.data.data(), kept ? kept->mean.data() : nullptr,
                            kept ? kept->rstd.data() : nullptr);
}

template <class T>
nn::ConvolutionShape Blocks<T>::shape_of(const std::string& name, const Map<T>& as, std::size_t stride,
                                         bool padded) const {
  const auto weight = weights_.shape(name + ".weight");
  const std::size_t out = weight[0], kernel = weight[2];
  nn::ConvolutionShape shape =
      nn::convolution_shape(as.batch, as.size.height, as.size.width, as.channels, out, kernel, stride, kernel / 2);
  if (!padded) shape.pad_top = shape.pad_left = 0;  // what is missing is below and on the right
  return shape;
}

template <class T>
nn::Linear<nn::BaseWeights<T>> Blocks<T>::linear(const std::string& name) const {
  auto layer = weights_.linear(name);
  if (adapters_) layer.adapters.front() = adapters_->of(name);
  return layer;
}

// Of x, which is shaped as `as`. The weights must be there.
template <class T>
Map<T> Blocks<T>::convolved(const std::string& name, const T* x, const Map<T>& as, const char* tag, std::size_t stride,
                            bool padded) {
  const nn::ConvolutionShape shape = shape_of(name, as, stride, padded);
  Map<T> y = like(as, shape.out_channels, {shape.out_height, shape.out_width}, tag);
  nn::convolution_forward<T>(context_, shape, form_.convolution, x, weights_[name + ".weight"], y.data.data());
  nn::bias_activation<T>(context_, y.data.data(), weights_[name + ".bias"], y.rows(), y.channels, nn::Activation::none);
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
Map<T> Blocks<T>::end(const std::string& norm_name, const std::string& name, Map<T> x, KeptEnd<T>* kept) {
  const auto weights = weights_.block({norm_name, name});
  if (!kept) {
    norm(norm_name, x, x, eps_, nn::Activation::silu);
    return convolved(name, x, "output");
  }
  Map<T> normed = like(x, x.channels, x.size, "norm");
  norm(norm_name, x, normed, eps_, nn::Activation::silu, &kept->norm);
  Map<T> y = convolved(name, normed, "output");
  kept->x = std::move(x);
  return y;
}

template <class T>
Map<T> Blocks<T>::residual(const std::string& name, const Map<T>& x, const T* time, KeptResidual<T>* kept) {
  const auto weights = weights_.block({name});
  Map<T> normed = like(x, x.channels, x.size, "norm");
  norm(name + ".norm1", x, normed, eps_, nn::Activation::silu, kept ? &kept->norm1 : nullptr);
  Map<T> hidden = convolved(name + ".conv1", normed, "convolution");
  normed.data.reset();
  if (time) {
    const auto projection = weights_.linear(name + ".time_emb_proj");
    DeviceBuffer<T> shifts = activation(checked_product(x.batch, hidden.channels), "time of a block");
    projection.forward(context_, {time, projection.in()}, shifts.data(), x.batch);
    nn::shift_channels<T>(context_, hidden.data.data(), shifts.data(), hidden.data.data(), x.batch, x.pixels(),
                          hidden.channels);
  }
  if (kept) normed = like(hidden, hidden.channels, hidden.size, "norm");
  Map<T>& second = kept ? normed : hidden;  // in place, unless somebody will read what was there
  norm(name + ".norm2", hidden, second, eps_, nn::Activation::silu, kept ? &kept->norm2 : nullptr);
  Map<T> y = convolved(name + ".conv2", second, "residual block");
  second.data.reset();
  if (kept) kept->hidden = std::move(hidden);
  if (x.channels == y.channels)
    nn::add_to<T>(context_, y.data.data(), x.data.data(), y.data.size());
  else  // a convolution of 1 × 1
    weights_.linear(name + ".conv_shortcut")
        .forward(context_, {x.data.data(), x.channels}, y.data.data(), y.rows(), true);
  return y;
}

template <class T>
DeviceBuffer<T> attended(Context& context, const nn::AttentionShape& shape, PixelAttention form, DeviceBuffer<T> q,
                         DeviceBuffer<T> k, DeviceBuffer<T> v, KeptAttention<T>* kept) {
  if (form == PixelAttention::fused && shape.depth() > nn::kFusedDepth) form = PixelAttention::tiled;
  DeviceBuffer<T> y, probabilities;
  DeviceBuffer<float> lse;
  const auto make_output = [&] {
    y = context.buffer<T>(checked_product(shape.rows(), shape.width), Category::activations, "attended");
  };
  const nn::SeparateQkv<const T> in{q.data(), k.data(), v.data()};
  switch (form) {
    case PixelAttention::textbook:
      probabilities = nn::cross_attention_probabilities<T>(context, shape, q.data(), k.data());
      if (!kept) q.reset();
      if (!kept) k.reset();
      make_output();
      nn::cross_attention_forward<T>(context, shape, probabilities.data(), v.data(), y.data());
      break;
    case PixelAttention::tiled:
      make_output();
      nn::cross_attention_forward_tiled<T>(context, shape, in, y.data());
      break;
    case PixelAttention::fused:
      if (kept) lse = context.buffer<float>(checked_product(shape.matrices(), shape.seq), Category::activations, "lse");
      make_output();
      nn::cross_attention_forward_fused<T>(context, shape, in, y.data(), lse.data());
      break;
  }
  if (kept) {
    kept->q = std::move(q);
    kept->k = std::move(k);
    kept->v = std::move(v);
    kept->probabilities = std::move(probabilities);
    kept->lse = std::move(lse);
  }
  return y;
}

// A linear layer of `rows` rows, to a new buffer.
template <class T>
DeviceBuffer<T> Blocks<T>::projected(const std::string& name, const T* x, std::size_t rows, const char* tag) {
  const auto layer = linear(name);
  DeviceBuffer<T> y = activation(checked_product(rows, layer.out()), tag);
  layer.forward(context_, {x, layer.in()}, y.data(), rows);
  return y;
}

// x += a linear layer of `from`: in place, or, where x is kept, in a copy, which takes its place.
template <class T>
void Blocks<T>::add_linear(const std::string& name, const DeviceBuffer<T>& from, Map<T>& x, DeviceBuffer<T>* kept) {
  if (kept) {
    DeviceBuffer<T> sum = activation(x.data.size(), "transformer");
    CUDA_CHECK(cudaMemcpyAsync(sum.data(), x.data.data(), sum.bytes(), cudaMemcpyDeviceToDevice, context_.stream()));
    *kept = std::move(x.data);
    x.data = std::move(sum);
  }
  const auto layer = linear(name);
  layer.forward(context_, {from.data(), layer.in()}, x.data.data(), x.rows(), true);
}

template <class T>
nn::AttentionShape Blocks<T>::shape_of_attention(const Map<T>& x, std::size_t heads, const TextRows<T>& text) const {
  return {.sequences = x.batch,
          .seq = x.pixels(),
          .heads = heads,
          .width = x.channels,
          .causal = false,
          .key_seq = text.data ? text.tokens : x.pixels()};
}

// x += the output layer of what the normed pixels attend to: the rows of a text, or, where there is none, each other.
template <class T>
void Blocks<T>::attend_and_add(const std::string& name, DeviceBuffer<T> normed, Map<T>& x, std::size_t heads,
                               const TextRows<T>& text, KeptAttention<T>* kept) {
  const nn::AttentionShape shape = shape_of_attention(x, heads, text);
  const std::size_t key_rows = checked_product(x.batch, shape.key_seq);
  DeviceBuffer<T> q = projected(name + ".to_q", normed.data(), x.rows(), "queries");
  if (text.data) normed.reset();
  const T* const from = text.data ? text.data : normed.data();
  DeviceBuffer<T> k = projected(name + ".to_k", from, key_rows, "keys");
  DeviceBuffer<T> v = projected(name + ".to_v", from, key_rows, "values");
  normed.reset();
  DeviceBuffer<T> y = attended<T>(context_, shape, form_.attention, std::move(q), std::move(k), std::move(v), kept);
  add_linear(name + ".to_out.0", y, x, kept ? &kept->x : nullptr);
  if (kept) kept->attended = std::move(y);
}

template <class T>
DeviceBuffer<T> Blocks<T>::layer_norm(const std::string& name, const Map<T>& x, nn::NormStatistics* kept) {
  DeviceBuffer<T> y = activation(x.data.size(), "norm");
  if (kept) *kept = statistics(x.rows());
  nn::layer_norm_forward<T>(context_, x.data.data(), weights_[name + ".weight"], weights_[name + ".bias"], y.data(),
                            kept ? kept->mean.data() : nullptr, kept ? kept->rstd.data() : nullptr, x.rows(),
                            x.channels);
  return y;
}

template <class T>
void Blocks<T>::transformer_layer(const std::string& name, Map<T>& x, std::size_t heads, const TextRows<T>& text,
                                  KeptTransformerLayer<T>* kept) {
  KeptAttention<T>* const of_pixels = kept ? &kept->pixels : nullptr;
  KeptAttention<T>* const of_text = kept ? &kept->text : nullptr;
  KeptMlp<T>* const of_mlp = kept ? &kept->mlp : nullptr;
  const auto norm_of = [](auto* part) { return part ? &part->norm : nullptr; };
  attend_and_add(name + ".attn1", layer_norm(name + ".norm1", x, norm_of(of_pixels)), x, heads, {}, of_pixels);
  attend_and_add(name + ".attn2", layer_norm(name + ".norm2", x, norm_of(of_text)), x, heads, text, of_text);
  DeviceBuffer<T> normed = layer_norm(name + ".norm3", x, norm_of(of_mlp));
  DeviceBuffer<T> gated = projected(name + ".ff.net.0.proj", normed.data(), x.rows(), "values and gates");
  normed.reset();
  const std::size_t width = linear(name + ".ff.net.2").in();
  DeviceBuffer<T> hidden = activation(checked_product(x.rows(), width), "GEGLU");
  nn::geglu_forward<T>(context_, gated.data(), hidden.data(), x.rows(), width);
  if (kept) kept->mlp.gated = std::move(gated);
  gated.reset();
  add_linear(name + ".ff.net.2", hidden, x, kept ? &kept->mlp.x : nullptr);
}

template <class T>
Map<T> Blocks<T>::transformer(const std::string& name, Map<T> x, std::size_t layers, std::size_t heads,
                              const TextRows<T>& text, KeptTransformer<T>* kept) {
  const bool keeps_x = kept && kept->reaches_x;
  if (kept) kept->layers.resize(layers);
  if (keeps_x) kept->x = {{}, x.batch, x.size, x.channels};
  Map<T> hidden{{}, x.batch, x.size, x.channels};
  for (std::size_t i = 0; i < layers; ++i) {
    const std::string layer = layer_name(name, i);
    const bool first = i == 0, last = i + 1 == layers;
    std::vector<std::string> names{layer};
    if (first) names.insert(names.end(), {name + ".norm", name + ".proj_in"});
    if (last) names.push_back(name + ".proj_out");
    const auto weights = weights_.block(names);
    if (first) {
      Map<T> normed = like(x, x.channels, x.size, "norm");
      norm(name + ".norm", x, normed, kAttentionEps, nn::Activation::none, keeps_x ? &kept->norm : nullptr);
      hidden.data = projected(name + ".proj_in", normed.data.data(), x.rows(), "transformer");
    }
    transformer_layer(layer, hidden, heads, text, kept ? &kept->layers[i] : nullptr);
    if (last) add_linear(name + ".proj_out", hidden.data, x, keeps_x ? &kept->x.data : nullptr);
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
                                    DeviceBuffer<T>, DeviceBuffer<T>, KeptAttention<T>*);
OOMLAB_FOR_EACH_TYPE(OOMLAB_IMAGE_BLOCKS)

}  // namespace oomlab::image
