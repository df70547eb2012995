#include "nn/models/image/blocks_backward.h"

#include <utility>

#include "nn/ops/convolution.h"
#include "nn/ops/cross_attention.h"
#include "nn/ops/geglu.h"
#include "nn/ops/group_norm.h"
#include "nn/ops/instances.h"
#include "nn/ops/nearest.h"
#include "nn/ops/norms.h"

namespace oomlab::image {

// Of a convolution of images like `as`.
template <class T>
Map<T> BackwardBlocks<T>::convolution_input(const std::string& name, const Map<T>& d, const Map<T>& as,
                                            std::size_t stride) {
  Map<T> dx = like(as, as.channels, as.size, "gradient of an image");
  nn::convolution_backward_input<T>(context_, shape_of(name, as, stride), form_.convolution, d.data.data(),
                                    weights_[name + ".weight"], dx.data.data());
  return dx;
}

// dx may be dy. The statistics are freed.
template <class T>
void BackwardBlocks<T>::norm(const std::string& name, const Map<T>& x, nn::NormStatistics& kept, float eps,
                             nn::Activation activation, const DeviceBuffer<T>& dy, DeviceBuffer<T>& dx, bool add) {
  nn::group_norm_backward_input<T>(context_, shape_of_norm(x, eps, activation), dy.data(), x.data.data(),
                                   kept.mean.data(), kept.rstd.data(), weights_[name + ".weight"],
                                   weights_[name + ".bias"], dx.data(), add);
  kept = {};
}

// Adds to dx. x and its statistics are freed.
template <class T>
void BackwardBlocks<T>::layer_norm(const std::string& name, DeviceBuffer<T>& x, nn::NormStatistics& kept,
                                   const DeviceBuffer<T>& dy, Map<T>& dx) {
  nn::layer_norm_backward_input<T>(context_, dy.data(), x.data(), kept.mean.data(), kept.rstd.data(),
                                   weights_[name + ".weight"], dx.data.data(), dx.rows(), dx.channels, true);
  x.reset();
  kept = {};
}

template <class T>
Map<T> BackwardBlocks<T>::end(KeptEnd<T>& kept, Map<T> d) {
  Map<T> dx = convolution_input(kept.name, d, kept.x);
  d.data.reset();
  norm(kept.norm_name, kept.x, kept.norm, eps_, nn::Activation::silu, dx.data, dx.data, false);
  return dx;
}

template <class T>
Map<T> BackwardBlocks<T>::downsample(const std::string& name, nn::InputSize size, Map<T> d) {
  return convolution_input(name, d, {{}, d.batch, size, d.channels}, 2);
}

template <class T>
Map<T> BackwardBlocks<T>::upsample(const std::string& name, Map<T> d) {
  const Map<T> larger = convolution_input(name, d, {{}, d.batch, d.size, d.channels});
  d.data.reset();
  Map<T> dx = like(d, d.channels, {d.size.height / 2, d.size.width / 2}, "gradient of an image");
  nn::nearest_backward<T>(context_, larger.data.data(), dx.data.data(), dx.batch, dx.size.height, dx.size.width,
                          dx.channels, 2);
  return dx;
}

template <class T>
Map<T> BackwardBlocks<T>::residual(KeptResidual<T>& kept, Map<T> d) {
  const Map<T>& x = *kept.x;
  Map<T> d_hidden = convolution_input(kept.name + ".conv2", d, kept.hidden);
  norm(kept.name + ".norm2", kept.hidden, kept.norm2, eps_, nn::Activation::silu, d_hidden.data, d_hidden.data, false);
  kept.hidden.data.reset();
  // What was added to the hidden channels, of the time, has no gradient that anybody wants.
  Map<T> dx = convolution_input(kept.name + ".conv1", d_hidden, x);
  d_hidden.data.reset();
  const bool same_channels = x.channels == d.channels;
  if (same_channels) {
    norm(kept.name + ".norm1", x, kept.norm1, eps_, nn::Activation::silu, dx.data, d.data, true);
    std::swap(dx, d);
  } else {
    norm(kept.name + ".norm1", x, kept.norm1, eps_, nn::Activation::silu, dx.data, dx.data, false);
    linear(kept.name + ".conv_shortcut").backward_input(context_, d.data.data(), dx.data.data(), dx.rows(), true);
  }
  kept.x.reset();
  return dx;
}

template <class T>
Map<T> BackwardBlocks<T>::transformer(KeptTransformer<T>& kept, Map<T> d) {
  Map<T> dy = like(d, d.channels, d.size, "gradient of a transformer");
  linear(kept.name + ".proj_out").backward_input(context_, d.data.data(), dy.data.data(), d.rows());
  for (std::size_t i = kept.layers.size(); i-- > 0;) {
    const std::string layer = Base::layer_name(kept.name, i);
    KeptTransformerLayer<T>& of_layer = kept.layers[i];
    mlp(layer, of_layer.mlp, dy);
    attention(layer, 2, of_layer.text, dy, kept.heads, text_, true);
    attention(layer, 1, of_layer.pixels, dy, kept.heads, {}, i > 0 || kept.reaches_x);
  }
  if (!kept.reaches_x) return {};
  DeviceBuffer<T> d_normed = activation(d.data.size(), "gradient of a norm");
  linear(kept.name + ".proj_in").backward_input(context_, dy.data.data(), d_normed.data(), d.rows());
  dy.data.reset();
  norm(kept.name + ".norm", kept.x, kept.norm, kAttentionEps, nn::Activation::none, d_normed, d.data, true);
  kept.x.data.reset();
  return d;
}

template <class T>
void BackwardBlocks<T>::mlp(const std::string& layer, KeptMlp<T>& kept, Map<T>& d) {
  const auto up = linear(layer + ".ff.net.0.proj"), down = linear(layer + ".ff.net.2");
  DeviceBuffer<T> d_hidden = activation(checked_product(d.rows(), down.in()), "gradient of GEGLU");
  down.backward_input(context_, d.data.data(), d_hidden.data(), d.rows());
  nn::geglu_backward<T>(context_, d_hidden.data(), kept.gated.data(), d.rows(), down.in());
  d_hidden.reset();
  DeviceBuffer<T> d_normed = activation(d.data.size(), "gradient of a norm");
  up.backward_input(context_, kept.gated.data(), d_normed.data(), d.rows());
  kept.gated.reset();
  layer_norm(layer + ".norm3", kept.x, kept.norm, d_normed, d);
}

namespace {

template <class T>
struct QkvGradients {
  DeviceBuffer<T> q, k, v;
};

// Frees what attention has kept, but for x and its norm.
template <class T>
QkvGradients<T> attended_backward(Context& context, const nn::AttentionShape& shape, PixelAttention form,
                                  KeptAttention<T>& kept, DeviceBuffer<T> d_attended) {
  DeviceBuffer<float> dots;
  if (form == PixelAttention::fused) {
    dots = context.buffer<float>(kept.lse.size(), Category::activations, "dots");
    nn::attention_row_dots<T>(context, shape, kept.attended.data(), d_attended.data(), dots.data());
  }
  kept.attended.reset();
  const auto like = [&](const DeviceBuffer<T>& x, const char* tag) {
    return context.buffer<T>(x.size(), Category::activations, tag);
  };
  QkvGradients<T> d;
  d.q = like(kept.q, "gradient of queries");
  d.k = like(kept.k, "gradient of keys");
  d.v = like(kept.v, "gradient of values");
  const nn::SeparateQkv<const T> in{kept.q.data(), kept.k.data(), kept.v.data()};
  const nn::SeparateQkv<T> out{d.q.data(), d.k.data(), d.v.data()};
  switch (form) {
    case PixelAttention::textbook:
      nn::cross_attention_backward<T>(context, shape, in, kept.probabilities.data(), d_attended.data(), out);
      break;
    case PixelAttention::tiled:
      nn::cross_attention_backward_tiled<T>(context, shape, in, d_attended.data(), out);
      break;
    case PixelAttention::fused:
      nn::cross_attention_backward_fused<T>(context, shape, in, kept.lse.data(), dots.data(), d_attended.data(), out);
      break;
  }
  for (DeviceBuffer<T>* const read : {&kept.q, &kept.k, &kept.v, &kept.probabilities}) read->reset();
  kept.lse.reset();
  return d;
}

}  // namespace

// d becomes the gradient of the attention's input; where nothing in front of it is trained, it is not.
template <class T>
void BackwardBlocks<T>::attention(const std::string& layer, int number, KeptAttention<T>& kept, Map<T>& d,
                                  std::size_t heads, const TextRows<T>& text, bool reaches_x) {
  const std::string name = layer + ".attn" + std::to_string(number),
                    norm_name = layer + ".norm" + std::to_string(number);
  const auto q = linear(name + ".to_q"), k = linear(name + ".to_k"), v = linear(name + ".to_v");
  const auto out = linear(name + ".to_out.0");
  const nn::AttentionShape shape = shape_of_attention(d, heads, text);
  const std::size_t rows = d.rows(), key_rows = checked_product(d.batch, shape.key_seq);

  out.backward_weights(context_, d.data.data(), kept.attended.data(), rows, false);
  DeviceBuffer<T> d_attended = activation(d.data.size(), "gradient of attended");
  out.backward_input(context_, d.data.data(), d_attended.data(), rows);
  QkvGradients<T> to = attended_backward<T>(context_, shape, form_.attention, kept, std::move(d_attended));

  DeviceBuffer<T> normed = activation(d.data.size(), "norm");
  nn::layer_norm_recompute<T>(context_, kept.x.data(), kept.norm.mean.data(), kept.norm.rstd.data(),
                              weights_[norm_name + ".weight"], weights_[norm_name + ".bias"], normed.data(), rows,
                              d.channels);
  const T* const from = text.data ? text.data : normed.data();
  q.backward_weights(context_, to.q.data(), normed.data(), rows, false);
  k.backward_weights(context_, to.k.data(), from, key_rows, false);
  v.backward_weights(context_, to.v.data(), from, key_rows, false);
  normed.reset();
  if (!reaches_x) return;

  if (text.data) {  // the text is given
    to.k.reset();
    to.v.reset();
  }
  DeviceBuffer<T> d_normed = activation(d.data.size(), "gradient of a norm");
  q.backward_input(context_, to.q.data(), d_normed.data(), rows);
  to.q.reset();
  if (!text.data) {
    k.backward_input(context_, to.k.data(), d_normed.data(), rows, true);
    to.k.reset();
    v.backward_input(context_, to.v.data(), d_normed.data(), rows, true);
    to.v.reset();
  }
  layer_norm(norm_name, kept.x, kept.norm, d_normed, d);
}

#define OOMLAB_BACKWARD_BLOCKS(T) template class BackwardBlocks<T>;
OOMLAB_FOR_EACH_TYPE(OOMLAB_BACKWARD_BLOCKS)

}  // namespace oomlab::image
