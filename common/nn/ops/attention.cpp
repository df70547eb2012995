#include "nn/ops/attention.h"

#include "nn/ops/attention_batches.h"
#include "nn/ops/instances.h"
#include "nn/ops/matmul.h"
#include "nn/ops/softmax.h"

namespace oomlab::nn {

namespace {

template <class T>
void block_probabilities(Context& context, const AttentionShape& shape, const T* qkv, T* p) {
  const AttentionGroups groups(shape);
  const std::size_t seq = shape.seq, depth = groups.depth();
  const auto q = groups.in_qkv(qkv, 0), k = groups.in_qkv(qkv, 1);
  const auto out = groups.in_squares(p);
  for (std::size_t g = 0; g < groups.count(); ++g)
    gemm_strided<T>(context, false, true, seq, seq, depth, 1.0f, groups.of(g, q), groups.of(g, k), 0.0f,
                    groups.of(g, out), groups.matrices());
  softmax_forward(context, p, {shape.matrices(), seq, seq, 0, shape.causal}, groups.scale());
}

template <class T>
void block_forward(Context& context, const AttentionShape& shape, const T* qkv, const T* probabilities, T* attended) {
  const AttentionGroups groups(shape);
  const auto p = groups.in_squares(probabilities), v = groups.in_qkv(qkv, 2);
  const auto out = groups.in_rows(attended);
  for (std::size_t g = 0; g < groups.count(); ++g)
    gemm_strided<T>(context, false, false, shape.seq, groups.depth(), shape.seq, 1.0f, groups.of(g, p), groups.of(g, v),
                    0.0f, groups.of(g, out), groups.matrices());
}

// d_p is room for the gradient of the probabilities.
template <class T>
void block_backward(Context& context, const AttentionShape& shape, const T* qkv, const T* probabilities,
                    const T* d_attended, T* d_p, T* d_qkv) {
  const AttentionGroups groups(shape);
  const std::size_t seq = shape.seq, depth = groups.depth();
  const auto in = [&](std::size_t which) { return groups.in_qkv(qkv, which); };
  const auto out = [&](std::size_t which) { return groups.in_qkv(d_qkv, which); };
  const auto p = groups.in_squares(probabilities), d = groups.in_rows(d_attended);
  const auto ds = groups.in_squares(d_p);
  // One product a group, C = op(A) op(B); heads that share keys add to what is theirs together.
  const auto product = [&](bool transpose_a, bool transpose_b, std::size_t n, std::size_t k,
                           const HeadMatrices<const T>& a, const HeadMatrices<const T>& b, const HeadMatrices<T>& c) {
    const bool shared = c.sharer_stride == 0;
    for (std::size_t g = 0; g < groups.count(); ++g)
      gemm_strided<T>(context, transpose_a, transpose_b, seq, n, k, 1.0f, groups.of(g, a), groups.of(g, b),
                      shared && !groups.first_of_keys(g) ? 1.0f : 0.0f, groups.of(g, c), groups.matrices());
  };
  product(true, false, depth, seq, p, d, out(2));
  product(false, true, seq, depth, d, in(2), ds);
  softmax_backward(context, probabilities, d_p, {shape.matrices(), seq, seq, 0, shape.causal}, groups.scale());
  const auto from = groups.in_squares<const T>(d_p);
  product(false, false, depth, seq, from, in(1), out(0));
  product(true, false, depth, seq, from, in(0), out(1));
}

}  // namespace

template <class T>
DeviceBuffer<T> attention_probabilities(Context& context, const AttentionShape& shape, const T* qkv) {
  auto p = context.buffer<T>(shape.scores(), Category::activations, "attention probabilities");
  each_diagonal_block(shape, [&](const AttentionShape& block, std::size_t row, std::size_t score) {
    block_probabilities(context, block, qkv + row * shape.qkv_width(), p.data() + score);
  });
  return p;
}

template <class T>
void attention_forward(Context& context, const AttentionShape& shape, const T* qkv, const T* probabilities,
                       T* attended) {
  each_diagonal_block(shape, [&](const AttentionShape& block, std::size_t row, std::size_t score) {
    block_forward(context, block, qkv + row * shape.qkv_width(), probabilities + score, attended + row * shape.width);
  });
}

template <class T>
DeviceBuffer<T> attention_backward(Context& context, const AttentionShape& shape, DeviceBuffer<T>& qkv,
                                   DeviceBuffer<T>& probabilities, DeviceBuffer<T> d_attended) {
  auto d_qkv = context.buffer<T>(qkv.size(), Category::activations, "qkv gradient");
  auto d_p = context.buffer<T>(probabilities.size(), Category::activations, "attention gradient");
  each_diagonal_block(shape, [&](const AttentionShape& block, std::size_t row, std::size_t score) {
    const std::size_t in_qkv = row * shape.qkv_width();
    block_backward<T>(context, block, qkv.data() + in_qkv, probabilities.data() + score,
                      d_attended.data() + row * shape.width, d_p.data() + score, d_qkv.data() + in_qkv);
  });
  d_attended.reset();
  probabilities.reset();
  qkv.reset();
  return d_qkv;
}

#define OOMLAB_ATTENTION(T)                                                                                        \
  template DeviceBuffer<T> attention_probabilities(Context&, const AttentionShape&, const T*);                     \
  template void attention_forward(Context&, const AttentionShape&, const T*, const T*, T*);                        \
  template DeviceBuffer<T> attention_backward(Context&, const AttentionShape&, DeviceBuffer<T>&, DeviceBuffer<T>&, \
                                              DeviceBuffer<T>);
OOMLAB_FOR_EACH_TYPE(OOMLAB_ATTENTION)

}  // namespace oomlab::nn
