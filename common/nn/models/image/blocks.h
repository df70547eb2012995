#pragma once
// What the models of images are made of, once for all of them: residual blocks, attention, and what changes the
// resolution. Images are channels last (nn/ops/convolution.h).
//
// Every block brings its weights when it begins (WeightStore::block()), and what it allocates is freed as soon as its
// last reader has run. plan/image/walk.h lists the same allocations, in order. A training step has some blocks keep what
// their backward pass reads (blocks_backward.h); without a place for it they keep nothing.

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "memory/context.h"
#include "nn/layers/norm.h"
#include "nn/models/image/lora.h"
#include "nn/models/image/weights.h"
#include "nn/ops/group_norm.h"
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

/// What a residual block keeps for its backward pass.
template <class T>
struct KeptResidual {
  std::string name;
  std::shared_ptr<const Map<T>> x;  ///< its input, which may wait for its way up, too
  Map<T> hidden;                    ///< what the second norm reads
  nn::NormStatistics norm1, norm2;  ///< [batch, groups] each
};
/// What attention keeps. Of textbook attention lse is empty, of fused attention the probabilities are, and of attention in
/// tiles both.
template <class T>
struct KeptAttention {
  DeviceBuffer<T> x;  ///< what the norm in front of it reads
  nn::NormStatistics norm;
  DeviceBuffer<T> q, k, v, probabilities, attended;
  DeviceBuffer<float> lse;
};
template <class T>
struct KeptMlp {
  DeviceBuffer<T> x;  ///< as of attention
  nn::NormStatistics norm;
  DeviceBuffer<T> gated;  ///< values and gates
};
template <class T>
struct KeptTransformerLayer {
  KeptAttention<T> pixels, text;
  KeptMlp<T> mlp;
};
template <class T>
struct KeptTransformer {
  std::string name;
  std::size_t heads = 1;
  bool reaches_x = false;  ///< whether something below it is trained: otherwise x and its norm are not kept
  Map<T> x;                ///< its input
  nn::NormStatistics norm;
  std::vector<KeptTransformerLayer<T>> layers;
};
/// What the end of a model keeps.
template <class T>
struct KeptEnd {
  std::string norm_name, name;
  Map<T> x;
  nn::NormStatistics norm;
};

/// The blocks of a model whose tensors `weights` has. Names are those of tensors, without what stands behind the last
/// dot. `adapters`, where not null, are added to the layers that have some. All throw OutOfMemory: what a block has
/// allocated is free again.
template <class T>
class Blocks {
 public:
  Blocks(Context& context, WeightStore<T>& weights, const Form& form, std::size_t groups, float eps,
         LoraAdapters<T>* adapters = nullptr)
      : context_(context), weights_(weights), form_(form), groups_(groups), eps_(eps), adapters_(adapters) {}

  /// A convolution of `kernel` × `kernel` with bias; a block of its own.
  Map<T> convolution(const std::string& name, const Map<T>& x);
  /// The same of [batch, height, width, channels] that somebody else has.
  Map<T> convolution(const std::string& name, const T* x, std::size_t batch, nn::InputSize size, std::size_t channels);
  /// One with stride 2, which halves the image. `padded`: by one pixel on all sides; otherwise below and on the right
  /// alone, as AutoencoderKL's encoder has it.
  Map<T> downsample(const std::string& name, const Map<T>& x, bool padded);
  /// Each pixel becomes four, then a convolution. x is freed in between.
  Map<T> upsample(const std::string& name, Map<T> x);
  /// Norm, SiLU, convolution: the end of a model. `kept` has its names, and gets x.
  Map<T> end(const std::string& norm, const std::string& name, Map<T> x, KeptEnd<T>* kept = nullptr);
  /// ResnetBlock2D: x + convolution(SiLU(norm(convolution(SiLU(norm(x))) + time))), x through a 1 × 1 convolution where the
  /// number of channels changes. `time`: what SiLU has made of the time embedding, [batch, in], or null. Of `kept` all but
  /// name and x is filled in.
  Map<T> residual(const std::string& name, const Map<T>& x, const T* time, KeptResidual<T>* kept = nullptr);
  /// Transformer2DModel: `layers` times attention over the pixels, attention to the text, and an MLP. `kept` says whether
  /// it reaches x; the rest is filled in.
  Map<T> transformer(const std::string& name, Map<T> x, std::size_t layers, std::size_t heads, const TextRows<T>& text,
                     KeptTransformer<T>* kept = nullptr);
  /// Attention with one head, over the pixels: in the middle of an autoencoder.
  Map<T> attention(const std::string& name, Map<T> x);

  DeviceBuffer<T> activation(std::size_t count, const char* tag) {
    return context_.buffer<T>(count, Category::activations, tag);
  }

 protected:
  static constexpr float kAttentionEps = 1e-6f;  ///< of a transformer's first norm, whatever the others have
  static std::string layer_name(const std::string& transformer, std::size_t layer) {
    return transformer + ".transformer_blocks." + std::to_string(layer);
  }
  /// Shaped as x but for these; contents undefined.
  Map<T> like(const Map<T>& x, std::size_t channels, nn::InputSize size, const char* tag);
  /// Of images like `as`, whose data are not read.
  nn::ConvolutionShape shape_of(const std::string& name, const Map<T>& as, std::size_t stride = 1,
                                bool padded = true) const;
  nn::GroupNormShape shape_of_norm(const Map<T>& x, float eps, nn::Activation activation) const {
    return {x.batch, x.pixels(), x.channels, groups_, eps, activation};
  }
  nn::AttentionShape shape_of_attention(const Map<T>& x, std::size_t heads, const TextRows<T>& text) const;
  /// A linear layer, and its adapter where it has one.
  nn::Linear<nn::BaseWeights<T>> linear(const std::string& name) const;

  Context& context_;
  WeightStore<T>& weights_;
  Form form_;
  std::size_t groups_;
  float eps_;
  LoraAdapters<T>* adapters_;

 private:
  Map<T> convolved(const std::string& name, const T* x, const Map<T>& as, const char* tag, std::size_t stride = 1,
                   bool padded = true);
  Map<T> convolved(const std::string& name, const Map<T>& x, const char* tag) {
    return convolved(name, x.data.data(), x, tag);
  }
  void norm(const std::string& name, const Map<T>& x, Map<T>& y, float eps, nn::Activation activation,
            nn::NormStatistics* kept = nullptr);
  nn::NormStatistics statistics(std::size_t count);
  void transformer_layer(const std::string& name, Map<T>& x, std::size_t heads, const TextRows<T>& text,
                         KeptTransformerLayer<T>* kept);
  DeviceBuffer<T> projected(const std::string& name, const T* x, std::size_t rows, const char* tag);
  void attend_and_add(const std::string& name, DeviceBuffer<T> normed, Map<T>& x, std::size_t heads,
                      const TextRows<T>& text, KeptAttention<T>* kept = nullptr);
  void add_linear(const std::string& name, const DeviceBuffer<T>& from, Map<T>& x, DeviceBuffer<T>* kept);
  DeviceBuffer<T> layer_norm(const std::string& name, const Map<T>& x, nn::NormStatistics* kept);
};

/// softmax(Q·Kᵀ / √depth) · V in one of the three forms; Q, K and V are freed, or kept. Returns [sequences, seq, width].
/// Throws OutOfMemory, and as nn/ops/cross_attention.h.
template <class T>
DeviceBuffer<T> attended(Context& context, const nn::AttentionShape& shape, PixelAttention form, DeviceBuffer<T> q,
                         DeviceBuffer<T> k, DeviceBuffer<T> v, KeptAttention<T>* kept = nullptr);

}  // namespace oomlab::image
