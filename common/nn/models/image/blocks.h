#pragma once
// What the models of images are made of, once for all of them: residual blocks, attention, and what changes the
// resolution. Inference only. Images are channels last (nn/ops/convolution.h).
//
// Every block brings its weights when it begins (WeightStore::block()), and what it allocates is freed as soon as its
// last reader has run. plan/image/walk.h lists the same allocations, in order.

#include <cstddef>
#include <string>
#include <vector>

#include "memory/context.h"
#include "nn/models/image/weights.h"
#include "plan/attention.h"
#include "plan/image/run.h"
#include "plan/model/activation.h"
#include "plan/model/convolution.h"

namespace oomlab::image {

/// How a pass computes; what memory it takes depends on that, and its numbers but for rounding do not.
struct Form {
  PixelAttention attention = PixelAttention::textbook;
  nn::ConvolutionWay convolution = nn::ConvolutionWay::tiled;
};
/// That of a run.
inline Form form_of(const Run& run) { return {run.attention, run.convolution}; }

/// Images of `channels` values a pixel: [batch, height, width, channels] on the device.
template <class T>
struct Map {
  DeviceBuffer<T> data;
  std::size_t batch = 0;
  nn::InputSize size{};
  std::size_t channels = 0;

  std::size_t pixels() const { return checked_product(size.height, size.width); }
  std::size_t rows() const { return checked_product(batch, pixels()); }
};

/// What attention reads beside the image's own pixels: rows of a text, [batch, tokens, width] on the device.
template <class T>
struct TextRows {
  const T* data = nullptr;
  std::size_t tokens = 0, width = 0;
};

/// The blocks of a model whose tensors `weights` has. Names are those of tensors, without what stands behind the last
/// dot. All throw OutOfMemory: what a block has allocated is free again.
template <class T>
class Blocks {
 public:
  Blocks(Context& context, WeightStore<T>& weights, const Form& form, std::size_t groups, float eps)
      : context_(context), weights_(weights), form_(form), groups_(groups), eps_(eps) {}

  /// A convolution of `kernel` × `kernel` with bias; a block of its own.
  Map<T> convolution(const std::string& name, const Map<T>& x);
  /// The same of [batch, height, width, channels] that somebody else has.
  Map<T> convolution(const std::string& name, const T* x, std::size_t batch, nn::InputSize size, std::size_t channels);
  /// One with stride 2, which halves the image. `padded`: by one pixel on all sides; otherwise below and on the right
  /// alone, as AutoencoderKL's encoder has it.
  Map<T> downsample(const std::string& name, const Map<T>& x, bool padded);
  /// Each pixel becomes four, then a convolution. x is freed in between.
  Map<T> upsample(const std::string& name, Map<T> x);
  /// Norm, SiLU, convolution: the end of a model.
  Map<T> end(const std::string& norm, const std::string& name, Map<T> x);
  /// ResnetBlock2D: x + convolution(SiLU(norm(convolution(SiLU(norm(x))) + time))), x through a 1 × 1 convolution where the
  /// number of channels changes. `time`: what SiLU has made of the time embedding, [batch, in], or null.
  Map<T> residual(const std::string& name, const Map<T>& x, const T* time);
  /// Transformer2DModel: `layers` times attention over the pixels, attention to the text, and an MLP.
  Map<T> transformer(const std::string& name, Map<T> x, std::size_t layers, std::size_t heads, const TextRows<T>& text);
  /// Attention with one head, over the pixels: in the middle of an autoencoder.
  Map<T> attention(const std::string& name, Map<T> x);

  DeviceBuffer<T> activation(std::size_t count, const char* tag) {
    return context_.buffer<T>(count, Category::activations, tag);
  }

 private:
  Map<T> like(const Map<T>& x, std::size_t channels, nn::InputSize size, const char* tag);
  Map<T> convolved(const std::string& name, const T* x, const Map<T>& as, const char* tag, std::size_t stride = 1,
                   bool padded = true);
  Map<T> convolved(const std::string& name, const Map<T>& x, const char* tag) {
    return convolved(name, x.data.data(), x, tag);
  }
  void norm(const std::string& name, const Map<T>& x, Map<T>& y, float eps, nn::Activation activation);
  void transformer_layer(const std::string& name, Map<T>& x, std::size_t heads, const TextRows<T>& text);
  DeviceBuffer<T> projected(const std::string& name, const T* x, std::size_t rows, const char* tag);
  void attend_and_add(const std::string& name, DeviceBuffer<T> normed, Map<T>& x, std::size_t heads,
                      const TextRows<T>& text);
  DeviceBuffer<T> layer_norm(const std::string& name, const Map<T>& x);

  Context& context_;
  WeightStore<T>& weights_;
  Form form_;
  std::size_t groups_;
  float eps_;
};

/// softmax(Q·Kᵀ / √depth) · V in one of the three forms; Q, K and V are freed. Returns [sequences, seq, width]. Throws
/// OutOfMemory, and as nn/ops/cross_attention.h.
template <class T>
DeviceBuffer<T> attended(Context& context, const nn::AttentionShape& shape, PixelAttention form, DeviceBuffer<T> q,
                         DeviceBuffer<T> k, DeviceBuffer<T> v);

}  // namespace oomlab::image
