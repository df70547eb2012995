#include "nn/attention.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>

#include "nn/ops.h"
#include "nn/transformer_ops.h"

namespace oomlab::nn {
namespace {

// Where Q, K and V of one sequence lie in qkv[S, 3, H, D]: one matrix a head.
template <class T>
struct Heads {
  Strided<T> q, k, v;
};
template <class T>
Heads<T> heads_of(const AttentionShape& shape, T* qkv, std::size_t sequence) {
  T* const first = qkv + sequence * shape.seq * 3 * shape.width;
  const std::size_t row = 3 * shape.width, depth = shape.width / shape.heads;
  return {{first, row, depth}, {first + shape.width, row, depth}, {first + 2 * shape.width, row, depth}};
}

// The probabilities of one sequence: one matrix a head.
template <class T>
Strided<T> matrices_of(const AttentionShape& shape, T* probabilities, std::size_t sequence) {
  const std::size_t matrix = shape.seq * shape.seq;
  return {probabilities + sequence * shape.heads * matrix, shape.seq, matrix};
}

// The values of one sequence [S, H, D].
template <class T>
Strided<T> rows_of(const AttentionShape& shape, T* attended, std::size_t sequence) {
  return {attended + sequence * shape.seq * shape.width, shape.width, shape.width / shape.heads};
}

float scale_of(const AttentionShape& shape) { return 1.0f / std::sqrt(static_cast<float>(shape.width / shape.heads)); }

}  // namespace

template <class T>
DeviceBuffer<T> attention_probabilities(Context& context, const AttentionShape& shape, const T* qkv) {
  const std::size_t seq = shape.seq, depth = shape.width / shape.heads;
  auto p = context.buffer<T>(checked_product(shape.matrices(), checked_product(seq, seq)), Category::activations,
                             "attention probabilities");
  for (std::size_t b = 0; b < shape.sequences; ++b) {
    const auto in = heads_of(shape, qkv, b);
    gemm_strided<T>(context, false, true, seq, seq, depth, 1.0f, in.q, in.k, 0.0f, matrices_of(shape, p.data(), b),
                    shape.heads);
  }
  softmax_forward(context, p.data(), shape.matrices(), seq, scale_of(shape), shape.causal);
  return p;
}

template <class T>
void attention_forward(Context& context, const AttentionShape& shape, const T* qkv, const T* probabilities,
                       T* attended) {
  const std::size_t seq = shape.seq, depth = shape.width / shape.heads;
  for (std::size_t b = 0; b < shape.sequences; ++b)
    gemm_strided<T>(context, false, false, seq, depth, seq, 1.0f, matrices_of(shape, probabilities, b),
                    heads_of(shape, qkv, b).v, 0.0f, rows_of(shape, attended, b), shape.heads);
}

template <class T>
DeviceBuffer<T> attention_backward(Context& context, const AttentionShape& shape, DeviceBuffer<T>& qkv,
                                   DeviceBuffer<T>& probabilities, DeviceBuffer<T> d_attended) {
  const std::size_t seq = shape.seq, depth = shape.width / shape.heads;
  auto d_qkv = context.buffer<T>(qkv.size(), Category::activations, "qkv gradient");
  auto d_p = context.buffer<T>(probabilities.size(), Category::activations, "attention gradient");
  const auto in = [&](std::size_t b) { return heads_of<const T>(shape, qkv.data(), b); };
  const auto out = [&](std::size_t b) { return heads_of(shape, d_qkv.data(), b); };
  for (std::size_t b = 0; b < shape.sequences; ++b) {
    const auto d = rows_of<const T>(shape, d_attended.data(), b);
    gemm_strided<T>(context, true, false, seq, depth, seq, 1.0f, matrices_of<const T>(shape, probabilities.data(), b),
                    d, 0.0f, out(b).v, shape.heads);
    gemm_strided<T>(context, false, true, seq, seq, depth, 1.0f, d, in(b).v, 0.0f, matrices_of(shape, d_p.data(), b),
                    shape.heads);
  }
  d_attended.reset();
  softmax_backward(context, probabilities.data(), d_p.data(), shape.matrices(), seq, scale_of(shape), shape.causal);
  probabilities.reset();
  for (std::size_t b = 0; b < shape.sequences; ++b) {
    const auto d = matrices_of<const T>(shape, d_p.data(), b);
    gemm_strided<T>(context, false, false, seq, depth, seq, 1.0f, d, in(b).k, 0.0f, out(b).q, shape.heads);
    gemm_strided<T>(context, true, false, seq, depth, seq, 1.0f, d, in(b).q, 0.0f, out(b).k, shape.heads);
  }
  qkv.reset();
  return d_qkv;
}

#define OOMLAB_ATTENTION(T)                                                                                        \
  template DeviceBuffer<T> attention_probabilities(Context&, const AttentionShape&, const T*);                     \
  template void attention_forward(Context&, const AttentionShape&, const T*, const T*, T*);                        \
  template DeviceBuffer<T> attention_backward(Context&, const AttentionShape&, DeviceBuffer<T>&, DeviceBuffer<T>&, \
                                              DeviceBuffer<T>);
OOMLAB_ATTENTION(float)
OOMLAB_ATTENTION(__half)
OOMLAB_ATTENTION(__nv_bfloat16)
#undef OOMLAB_ATTENTION

}  // namespace oomlab::nn
