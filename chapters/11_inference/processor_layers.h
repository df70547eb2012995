#pragma once
// What to do when a model does not fit the device at any price: its last layers run on the processor. Their weights and
// their part of the cache lie in host memory; what travels is one row of the residual for each token, down and up
// again: C numbers instead of the layer's millions. It is as slow as a processor is, and it runs.
//
// The arithmetic is that of the device's layers, in plain C++ and in FP32: equal within rounding, not bit by bit.

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <span>
#include <vector>

#include "cuda/backend.h"
#include "cuda/check.h"
#include "decoder.h"
#include "nn/ops/rotary.h"
#include "plan/interrupt.h"

namespace oomlab::inference {

template <class T>
class ProcessorLayers {
 public:
  /// The last `count` layers of `weights`, whose tensors are in host memory and live as long. The cache must have as
  /// many processor_layers.
  ProcessorLayers(const nn::TransformerSpec& spec, const DecoderWeights<T>& weights, std::size_t count)
      : spec_(spec), layers_(weights.layers.end() - static_cast<std::ptrdiff_t>(count), weights.layers.end()) {
    frequencies_ = nn::rotary_frequencies(spec.rotary, spec.depth());
  }
  std::size_t layers() const noexcept { return layers_.size(); }

  /// x [rows, C] on the device: down, through the layers, and up again (waits for the stream).
  void run(Context& context, const KvCache& cache, std::span<const Row> rows, T* x) const {
    const std::size_t c = spec_.width;
    std::vector<T> residual(rows.size() * c);
    const std::size_t bytes = residual.size() * sizeof(T);
    CUDA_CHECK(cudaMemcpyAsync(residual.data(), x, bytes, cudaMemcpyDeviceToHost, context.stream()));
    context.synchronize();
    if (!planning())
      for (std::size_t r = 0; r < rows.size(); ++r) {
        Numbers row(residual.begin() + static_cast<std::ptrdiff_t>(r * c),
                    residual.begin() + static_cast<std::ptrdiff_t>((r + 1) * c));
        for (std::size_t l = 0; l < layers_.size(); ++l) layer(layers_[l], Place{cache, rows[r], l}, row);
        std::transform(row.begin(), row.end(), residual.begin() + static_cast<std::ptrdiff_t>(r * c),
                       [](float v) { return static_cast<T>(v); });
      }
    CUDA_CHECK(cudaMemcpyAsync(x, residual.data(), bytes, cudaMemcpyHostToDevice, context.stream()));
  }

 private:
  using Numbers = std::vector<float>;
  struct Place {
    const KvCache& cache;
    const Row& row;
    std::size_t layer;
    // The key of a position, `depth` numbers; behind the keys of all heads lie the values.
    float* key(std::size_t head, std::size_t at) const {
      const CacheShape& s = cache.shape();
      float* const block = cache.processor_block(row.request, at / s.block_tokens);
      return block + ((layer * 2 * s.kv_heads + head) * s.block_tokens + at % s.block_tokens) * s.depth;
    }
    float* value(std::size_t head, std::size_t at) const { return key(head + cache.shape().kv_heads, at); }
  };

  void layer(const DecoderLayer<T>& w, const Place& place, Numbers& x) const {
    Numbers qkv = product(norm(x, w.norm1), w.qkv, spec_.qkv_width());
    if (w.qkv_bias)
      for (std::size_t i = 0; i < qkv.size(); ++i) qkv[i] += static_cast<float>(w.qkv_bias[i]);
    turn(qkv, place.row.position);
    store(qkv, place);
    add(x, product(attend(qkv, place), w.projection, spec_.width));
    add(x, product(swiglu(product(norm(x, w.norm2), w.gate_up, 2 * spec_.hidden())), w.contract, spec_.width));
  }

  Numbers norm(const Numbers& x, const T* gamma) const {
    const float squares = std::inner_product(x.begin(), x.end(), x.begin(), 0.0f);
    const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(x.size()) + spec_.epsilon);
    Numbers y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] * rstd * static_cast<float>(gamma[i]);
    return y;
  }
  static Numbers product(const Numbers& x, const T* weight, std::size_t out) {
    check_interrupt();  // of a large model a step takes minutes here
    Numbers y(out, 0.0f);
    for (float& sum : y)
      for (const float v : x) sum += v * static_cast<float>(*weight++);
    return y;
  }
  static void add(Numbers& x, const Numbers& y) {
    std::transform(x.begin(), x.end(), y.begin(), x.begin(), std::plus<>());
  }
  Numbers swiglu(const Numbers& gate_up) const {
    const std::size_t hidden = spec_.hidden();
    Numbers y(hidden);
    for (std::size_t i = 0; i < hidden; ++i) y[i] = gate_up[i] / (1.0f + std::exp(-gate_up[i])) * gate_up[hidden + i];
    return y;
  }
  // Rotary positions, half-split, of the heads of Q and K.
  void turn(Numbers& qkv, std::size_t position) const {
    const std::size_t depth = spec_.depth(), half = depth / 2;
    for (std::size_t head = 0; head < spec_.heads + spec_.keys(); ++head)
      for (std::size_t i = 0; i < half; ++i) {
        float &a = qkv[head * depth + i], &b = qkv[head * depth + half + i];
        const float angle = static_cast<float>(position) * frequencies_.of[i];
        const float cosine = std::cos(angle), sine = std::sin(angle), turned = a * cosine - b * sine;
        b = b * cosine + a * sine;
        a = turned;
      }
  }
  void store(const Numbers& qkv, const Place& place) const {
    const std::size_t depth = spec_.depth();
    for (std::size_t head = 0; head < 2 * spec_.keys(); ++head)  // keys, then values
      std::copy_n(qkv.begin() + static_cast<std::ptrdiff_t>((spec_.heads + head) * depth), depth,
                  place.key(head, place.row.position));
  }
  Numbers attend(const Numbers& qkv, const Place& place) const {
    const std::size_t depth = spec_.depth(), group = spec_.heads / spec_.keys(), positions = place.row.position + 1;
    const float factor = 1.0f / std::sqrt(static_cast<float>(depth));
    Numbers attended(spec_.width, 0.0f), p(positions);
    for (std::size_t head = 0; head < spec_.heads; ++head) {
      const float* const query = qkv.data() + head * depth;
      for (std::size_t at = 0; at < positions; ++at)
        p[at] = std::inner_product(query, query + depth, place.key(head / group, at), 0.0f) * factor;
      const float largest = *std::max_element(p.begin(), p.end());
      for (float& v : p) v = std::exp(v - largest);
      const float sum = std::accumulate(p.begin(), p.end(), 0.0f);
      for (std::size_t at = 0; at < positions; ++at)
        for (std::size_t c = 0; c < depth; ++c)
          attended[head * depth + c] += p[at] / sum * place.value(head / group, at)[c];
    }
    return attended;
  }

  nn::TransformerSpec spec_;
  std::vector<DecoderLayer<T>> layers_;
  nn::RotaryFrequencies frequencies_;
};

}  // namespace oomlab::inference
