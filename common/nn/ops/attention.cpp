#include "nn/ops/attention.h"

#include "nn/ops/attention_batches.h"
#include "nn/ops/cross_attention.h"
#include "nn/ops/instances.h"
#include "nn/ops/matmul.h"
#include "nn/ops/softmax.h"

namespace oomlab::nn {

namespace {

template <class T>
void block_probabilities(Context& context, const AttentionShape& shape, const QkvRows<const T>& qkv, T* p) {
  const AttentionGroups groups(shape);
  const std::size_t seq = shape.seq, keys = shape.key_length(), depth = groups.depth();
  const auto q = groups.in_qkv(qkv, 0), k = groups.in_qkv(qkv, 1);
  const auto out = groups.in_squares(p);
  for (std::size_t g = 0; g < groups.count(); ++g)
    gemm_strided<T>(context, false, true, seq, keys, depth, 1.0f, groups.of(g, q), groups.of(g, k), 0.0f,
                    groups.of(g, out), groups.matrices());
  softmax_forward(context, p, {shape.matrices(), seq, keys, 0, shape.causal}, groups.scale());
}

template <class T>
void block_forward(Context& context, const AttentionShape& shape, const QkvRows<const T>& qkv, const T* probabilities,
                   T* attended) {
  const AttentionGroups groups(shape);
  const auto p = groups.in_squares(probabilities), v = groups.in_qkv(qkv, 2);
  const auto out = groups.in_rows(attended);
  for (std::size_t g = 0; g < groups.count(); ++g)
    gemm_strided<T>(context, false, false, shape.seq, groups.depth(), shape.key_length(), 1.0f, groups.of(g, p),
                    groups.of(g, v), 0.0f, groups.of(g, out), groups.matrices());
}

// d_p is room for the gradient of the probabilities.
template <class T>
void block_backward(Context& context, const AttentionShape& shape, const QkvRows<const T>& qkv, const T* probabilities,
                    const T* d_attended, T* d_p, const QkvRows<T>& d_qkv) {
  const AttentionGroups groups(shape);
  const std::size_t seq = shape.seq, keys = shape.key_length(), depth = groups.depth();
  const auto in = [&](std::size_t which) { return groups.in_qkv(qkv, which); };
  const auto out = [&](std::size_t which) { return groups.in_qkv(d_qkv, which); };
  const auto p = groups.in_squares(probabilities), d = groups.in_rows(d_attended);
  const auto ds = groups.in_squares(d_p);
  // One product a group, C = op(A) op(B); heads that share keys add to what is theirs together.
  const auto product = [&](bool transpose_a, bool transpose_b, std::size_t m, std::size_t n, std::size_t k,
                           const HeadMatrices<const T>& a, const HeadMatrices<const T>& b, const HeadMatrices<T>& c) {
    const bool shared = c.sharer_stride == 0;
    for (std::size_t g = 0; g < groups.count(); ++g)
      gemm_strided<T>(context, transpose_a, transpose_b, m, n, k, 1.0f, groups.of(g, a), groups.of(g, b),
                      shared && !groups.first_of_keys(g) ? 1.0f : 0.0f, groups.of(g, c), groups.matrices());
  };
  product(true, false, keys, depth, seq, p, d, out(2));
  product(false, true, seq, keys, depth, d, in(2), ds);
  softmax_backward(context, probabilities, d_p, {shape.matrices(), seq, keys, 0, shape.causal}, groups.scale());
  const auto from = groups.in_squares<const T>(d_p);
  product(false, false, seq, depth, keys, from, in(1), out(0));
  product(true, false, keys, depth, seq, from, in(0), out(1));
}

}  // namespace

template <class T>
DeviceBuffer<T> attention_probabilities(Context& context, const AttentionShape& shape, const T* qkv) {
  auto p = context.buffer<T>(shape.scores(), Category::activations, "attention probabilities");
  const QkvRows<const T> in = in_one_buffer(shape, qkv);
  each_diagonal_block(shape, [&](const AttentionShape& block, std::size_t row, std::size_t score) {
    block_probabilities<T>(context, block, in.from(row), p.data() + score);
  });
  return p;
}

template <class T>
void attention_forward(Context& context, const AttentionShape& shape, const T* qkv, const T* probabilities,
                       T* attended) {
  const QkvRows<const T> in = in_one_buffer(shape, qkv);
  each_diagonal_block(shape, [&](const AttentionShape& block, std::size_t row, std::size_t score) {
    block_forward<T>(context, block, in.from(row), probabilities + score, attended + row * shape.width);
  });
}

template <class T>
DeviceBuffer<T> attention_backward(Context& context, const AttentionShape& shape, DeviceBuffer<T>& qkv,
                                   DeviceBuffer<T>& probabilities, DeviceBuffer<T> d_attended) {
  auto d_qkv = context.buffer<T>(qkv.size(), Category::activations, "qkv gradient");
  auto d_p = context.buffer<T>(probabilities.size(), Category::activations, "attention gradient");
  const QkvRows<const T> in = in_one_buffer<const T>(shape, qkv.data());
  const QkvRows<T> out = in_one_buffer(shape, d_qkv.data());
  each_diagonal_block(shape, [&](const AttentionShape& block, std::size_t row, std::size_t score) {
    block_backward<T>(context, block, in.from(row), probabilities.data() + score, d_attended.data() + row * shape.width,
                      d_p.data() + score, out.from(row));
  });
  d_attended.reset();
  probabilities.reset();
  qkv.reset();
  return d_qkv;
}

template <class T>
DeviceBuffer<T> cross_attention_probabilities(Context& context, const AttentionShape& shape, const T* q, const T* k) {
  const QkvRows<const T> in = in_three_buffers<const T>(shape, q, k, nullptr);
  auto p = context.buffer<T>(shape.scores(), Category::activations, "attention probabilities");
  block_probabilities<T>(context, shape, in, p.data());
  return p;
}

template <class T>
void cross_attention_forward(Context& context, const AttentionShape& shape, const T* probabilities, const T* v,
                             T* attended) {
  block_forward<T>(context, shape, in_three_buffers<const T>(shape, nullptr, nullptr, v), probabilities, attended);
}

template <class T>
void cross_attention_backward(Context& context, const AttentionShape& shape,
                              const SeparateQkv<std::type_identity_t<const T>>& in, const T* probabilities,
                              const T* d_attended, const SeparateQkv<std::type_identity_t<T>>& gradients) {
  const QkvRows<const T> rows = in_three_buffers<const T>(shape, in.q, in.k, in.v);
  auto d_p = context.buffer<T>(shape.scores(), Category::activations, "attention gradient");
  block_backward<T>(context, shape, rows, probabilities, d_attended, d_p.data(),
                    in_three_buffers<T>(shape, gradients.q, gradients.k, gradients.v));
}

#define OOMLAB_ATTENTION(T)                                                                                         \
  template DeviceBuffer<T> attention_probabilities(Context&, const AttentionShape&, const T*);                      \
  template void attention_forward(Context&, const AttentionShape&, const T*, const T*, T*);                         \
  template DeviceBuffer<T> attention_backward(Context&, const AttentionShape&, DeviceBuffer<T>&, DeviceBuffer<T>&,  \
                                              DeviceBuffer<T>);                                                     \
  template DeviceBuffer<T> cross_attention_probabilities(Context&, const AttentionShape&, const T*, const T*);      \
  template void cross_attention_forward(Context&, const AttentionShape&, const T*, const T*, T*);                   \
  template void cross_attention_backward<T>(Context&, const AttentionShape&, const SeparateQkv<const T>&, const T*, \
                                            const T*, const SeparateQkv<T>&);
OOMLAB_FOR_EACH_TYPE(OOMLAB_ATTENTION)

}  // namespace oomlab::nn
