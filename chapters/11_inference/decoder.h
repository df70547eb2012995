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
#include "nn/layers/decoder_layer.h"
#include "nn/models/transformer.h"
#include "row_products.h"

namespace oomlab::inference {

/// A token of a step.
struct Row {
  int token;
  KvCache::Id request;
  std::size_t position;  ///< of the token in its request, from 0
  bool answers;          ///< the token after it is wanted
};

/// Weights [out, in] that a step multiplies its rows with, whatever rows those are (row_products.h). Of a layer on the
/// processor they are in host memory.
template <class T>
struct RowWeights : nn::DenseWeights<T> {
  void multiply(Context& context, RowsOf<T> x, const T* bias, T* y, std::size_t rows, bool add) const {
    row_products<T>(context, x, this->data, bias, y, rows, this->in, this->out, add);
  }
};
/// All of them. Nothing is owned.
template <class T>
struct DecoderWeights {
  const T* token = nullptr;  ///< [V, C]
  std::vector<nn::DecoderLayer<RowWeights<T>>> layers;
  const T* final_gamma = nullptr;  ///< [C]
  const T* head = nullptr;         ///< [V, C]; tied: the token embedding
};

/// Where, among nn::tensors_of(), the tensors of layer l begin; those of the head, where l is spec.layers.
inline std::size_t first_of_layer(const nn::TransformerSpec& spec, std::size_t l) {
  return 1 + l * static_cast<std::size_t>(nn::layer_slots(spec).count);
}
/// The layer, from 0, that tensor i of nn::tensors_of() belongs to; spec.layers where it belongs to none.
inline std::size_t layer_of_tensor(const nn::TransformerSpec& spec, std::size_t i) {
  return i == 0 ? spec.layers : std::min(spec.layers, (i - 1) / static_cast<std::size_t>(nn::layer_slots(spec).count));
}

/// Of tensors in the order of nn::tensors_of().
template <class T>
DecoderWeights<T> decoder_weights(const nn::TransformerSpec& spec, std::span<const T* const> tensors) {
  DecoderWeights<T> weights;
  weights.token = tensors.front();
  for (std::size_t l = 0; l < spec.layers; ++l) {
    const T* const* const of_layer = &tensors[first_of_layer(spec, l)];
    weights.layers.push_back(nn::make_decoder_layer<RowWeights<T>>(
        spec, 1,
        [&](int i, std::size_t in, std::size_t out) {
          return RowWeights<T>{{of_layer[i], in, out}};
        },
        [&](int i) { return i < 0 ? nullptr : of_layer[i]; }));
  }
  weights.final_gamma = tensors[first_of_layer(spec, spec.layers)];
  weights.head = spec.tied ? weights.token : tensors.back();
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
