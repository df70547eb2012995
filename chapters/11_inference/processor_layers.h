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
#include "nn/layers/decoder_layer.h"
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
        for (std::size_t l = 0; l < layers_.size(); ++l) {
          const Pass pass{spec_, frequencies_, cache, rows[r], l};
          nn::decoder_layer(pass, layers_[l], row);
        }
        std::transform(row.begin(), row.end(), residual.begin() + static_cast<std::ptrdiff_t>(r * c),
                       [](float v) { return static_cast<T>(v); });
      }
    CUDA_CHECK(cudaMemcpyAsync(x, residual.data(), bytes, cudaMemcpyHostToDevice, context.stream()));
  }

 private:
  using Numbers = std::vector<float>;
  using Linear = nn::Linear<RowWeights<T>>;
  /// A row's pass through a layer (nn::decoder_layer()).
  struct Pass {
    const nn::TransformerSpec& spec;
    const nn::RotaryFrequencies& frequencies;
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

    Numbers norm(const nn::Norm<T>& norm, const Numbers& x) const {
      const float squares = std::inner_product(x.begin(), x.end(), x.begin(), 0.0f);
      const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(x.size()) + spec.epsilon);
      Numbers y(x.size());
      for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] * rstd * static_cast<float>(norm.gamma[i]);
      return y;
    }
    Numbers linear(const Linear& linear, const Numbers& x) const {
      check_interrupt();  // of a large model a step takes minutes here
      Numbers y(linear.out(), 0.0f);
      const T* weight = linear.weights.data;
      for (float& sum : y)
        for (const float v : x) sum += v * static_cast<float>(*weight++);
      for (std::size_t i = 0; linear.bias && i < y.size(); ++i) y[i] += static_cast<float>(linear.bias[i]);
      return y;
    }
    Numbers& residual(const Linear& linear, const Numbers& from, Numbers& x) const {
      const Numbers y = this->linear(linear, from);
      std::transform(x.begin(), x.end(), y.begin(), x.begin(), std::plus<>());
      return x;
    }
    Numbers activate(const Numbers& gate_up) const {
      const std::size_t hidden = spec.hidden();
      Numbers y(hidden);
      for (std::size_t i = 0; i < hidden; ++i) y[i] = gate_up[i] / (1.0f + std::exp(-gate_up[i])) * gate_up[hidden + i];
      return y;
    }
    // Rotary positions, half-split, of the heads of Q and K.
    void rotate(Numbers& qkv) const {
      const std::size_t depth = spec.depth(), half = depth / 2;
      for (std::size_t head = 0; head < spec.heads + spec.keys(); ++head)
        for (std::size_t i = 0; i < half; ++i) {
          float &a = qkv[head * depth + i], &b = qkv[head * depth + half + i];
          const float angle = static_cast<float>(row.position) * frequencies.of[i];
          const float cosine = std::cos(angle), sine = std::sin(angle), turned = a * cosine - b * sine;
          b = b * cosine + a * sine;
          a = turned;
        }
    }
    Numbers attend(const Numbers& qkv) const {
      const std::size_t depth = spec.depth(), group = spec.heads / spec.keys(), positions = row.position + 1;
      for (std::size_t head = 0; head < 2 * spec.keys(); ++head)  // keys, then values
        std::copy_n(qkv.begin() + static_cast<std::ptrdiff_t>((spec.heads + head) * depth), depth,
                    key(head, row.position));
      const float factor = 1.0f / std::sqrt(static_cast<float>(depth));
      Numbers attended(spec.width, 0.0f), p(positions);
      for (std::size_t head = 0; head < spec.heads; ++head) {
        const float* const query = qkv.data() + head * depth;
        for (std::size_t at = 0; at < positions; ++at)
          p[at] = std::inner_product(query, query + depth, key(head / group, at), 0.0f) * factor;
        const float largest = *std::max_element(p.begin(), p.end());
        for (float& v : p) v = std::exp(v - largest);
        const float sum = std::accumulate(p.begin(), p.end(), 0.0f);
        for (std::size_t at = 0; at < positions; ++at)
          for (std::size_t c = 0; c < depth; ++c)
            attended[head * depth + c] += p[at] / sum * value(head / group, at)[c];
      }
      return attended;
    }
  };

  nn::TransformerSpec spec_;
  std::vector<nn::DecoderLayer<RowWeights<T>>> layers_;
  nn::RotaryFrequencies frequencies_;
};

}  // namespace oomlab::inference
