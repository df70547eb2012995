#pragma once
// A decoder as a step of generation sees it: where its tensors are, which of its layers are on the device, and what a
// row of a step is.

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cuda/backend.h"
#include "cuda/check.h"
#include "kv_cache.h"
#include "nn/models/transformer.h"

namespace oomlab::inference {

/// A token of a step.
struct Row {
  int token;
  KvCache::Id request;
  std::size_t position;  ///< of the token in its request, from 0
  bool answers;          ///< the token after it is wanted
};

/// The tensors of a layer. Matrix: of numbers of T, one after the other, unless somebody stores them otherwise.
template <class T, class Matrix = T>
struct DecoderLayer {
  const T* norm1 = nullptr;            ///< [C]
  const Matrix* qkv = nullptr;         ///< [(H + 2 Hk) · d, C]
  const T* qkv_bias = nullptr;         ///< [(H + 2 Hk) · d], or none
  const Matrix* projection = nullptr;  ///< [C, C]
  const T* norm2 = nullptr;            ///< [C]
  const Matrix* gate_up = nullptr;     ///< [2F, C]
  const Matrix* contract = nullptr;    ///< [C, F]
};
/// All of them. Nothing is owned.
template <class T>
struct DecoderWeights {
  const T* token = nullptr;  ///< [V, C]
  std::vector<DecoderLayer<T>> layers;
  const T* final_gamma = nullptr;  ///< [C]
  const T* head = nullptr;         ///< [V, C]; tied: the token embedding
};

inline std::size_t tensors_of_layer(const nn::TransformerSpec& spec) { return spec.qkv_bias ? 7 : 6; }
/// The layer, from 0, that tensor i of nn::tensors_of() belongs to; spec.layers where it belongs to none.
inline std::size_t layer_of_tensor(const nn::TransformerSpec& spec, std::size_t i) {
  return i == 0 ? spec.layers : std::min(spec.layers, (i - 1) / tensors_of_layer(spec));
}

/// Of tensors in the order of nn::tensors_of().
template <class T>
DecoderWeights<T> decoder_weights(const nn::TransformerSpec& spec, std::span<const T* const> tensors) {
  auto next = tensors.begin();
  DecoderWeights<T> weights{.token = *next++, .layers = std::vector<DecoderLayer<T>>(spec.layers)};
  for (DecoderLayer<T>& layer : weights.layers) {
    layer.norm1 = *next++;
    layer.qkv = *next++;
    if (spec.qkv_bias) layer.qkv_bias = *next++;
    layer.projection = *next++;
    layer.norm2 = *next++;
    layer.gate_up = *next++;
    layer.contract = *next++;
  }
  weights.final_gamma = *next++;
  weights.head = spec.tied ? weights.token : *next;
  return weights;
}
/// Of a model that is whole on the device, and lives as long.
template <class T>
DecoderWeights<T> decoder_weights(nn::Transformer<T>& model) {
  std::vector<const T*> tensors;
  for (const auto& tensor : model.parameters()) tensors.push_back(tensor.value);
  return decoder_weights<T>(model.spec(), tensors);
}

/// The tensors of a decoder, all but those of its last layers on the device; those in host memory.
template <class T>
class PlacedWeights {
 public:
  /// Writes tensor i of nn::tensors_of() to `to` on the device, on the context's stream.
  using Fill = std::function<void(Context&, std::size_t i, T* to, std::size_t count)>;

  /// The last `on_processor` layers first, each tensor by way of the device (category parameters, tag "on its way to
  /// the processor"); then the others, which stay (category parameters). Throws OutOfMemory.
  PlacedWeights(Context& context, const nn::TransformerSpec& spec, std::size_t on_processor, const Fill& fill)
      : on_processor_(on_processor) {
    const std::vector<nn::TensorShape> shapes = nn::tensors_of(spec);
    std::vector<const T*> tensors(shapes.size());
    for (const bool processor : {true, false})
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        if (there(spec, on_processor, i) != processor) continue;
        const std::size_t count = shapes[i].count();
        auto buffer =
            context.buffer<T>(count, Category::parameters, processor ? "on its way to the processor" : shapes[i].name);
        fill(context, i, buffer.data(), count);
        if (processor) {
          tensors[i] = to_host(context, buffer);
        } else {
          tensors[i] = buffer.data();
          device_.push_back(std::move(buffer));
        }
      }
    weights_ = decoder_weights<T>(spec, tensors);
  }

  /// The tensors of the last on_processor() layers are in host memory.
  const DecoderWeights<T>& weights() const noexcept { return weights_; }
  std::size_t on_processor() const noexcept { return on_processor_; }

 private:
  static bool there(const nn::TransformerSpec& spec, std::size_t on_processor, std::size_t i) {
    const std::size_t layer = layer_of_tensor(spec, i);
    return layer < spec.layers && layer + on_processor >= spec.layers;
  }
  const T* to_host(Context& context, const DeviceBuffer<T>& buffer) {
    if (planning()) return nullptr;
    std::vector<T>& values = host_.emplace_back(buffer.size());
    CUDA_CHECK(cudaMemcpyAsync(values.data(), buffer.data(), buffer.bytes(), cudaMemcpyDeviceToHost, context.stream()));
    context.synchronize();
    return values.data();
  }

  std::size_t on_processor_;
  std::vector<DeviceBuffer<T>> device_;
  std::vector<std::vector<T>> host_;
  DecoderWeights<T> weights_;
};

}  // namespace oomlab::inference
