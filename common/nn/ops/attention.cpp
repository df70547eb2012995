#include "nn/ops/attention.h"

#include "nn/ops/attention_batches.h"
#include "nn/ops/instances.h"
#include "nn/ops/matmul.h"
#include "nn/ops/softmax.h"

namespace oomlab::nn {

template <class T>
DeviceBuffer<T> attention_probabilities(Context& context, const AttentionShape& shape, const T* qkv) {
  const AttentionGroups groups(shape);
  const std::size_t seq = shape.seq, depth = groups.depth();
  auto p = context.buffer<T>(checked_product(shape.matrices(), checked_product(seq, seq)), Category::activations,
                             "attention probabilities");
  const auto q = groups.in_qkv(qkv, 0), k = groups.in_qkv(qkv, 1);
  const auto out = groups.in_squares(p.data());
  for (std::size_t g = 0; g < groups.count(); ++g)
    gemm_strided<T>(context, false, true, seq, seq, depth, 1.0f, groups.of(g, q), groups.of(g, k), 0.0f,
                    groups.of(g, out), groups.matrices());
  softmax_forward(context, p.data(), {shape.matrices(), seq, seq, 0, shape.causal}, groups.scale());
  return p;
}

template <class T>
void attention_forward(Context& context, const AttentionShape& shape, const T* qkv, const T* probabilities,
                       T* attended) {
  const AttentionGroups groups(shape);
  const auto p = groups.in_squares(probabilities), v = groups.in_qkv(qkv, 2);
  const auto out = groups.in_rows(attended);
  for (std::size_t g = 0; g < groups.count(); ++g)
    gemm_strided<T>(context, false, false, shape.seq, groups.depth(), shape.seq, 1.0f, groups.of(g, p), groups.of(g, v),
                    0.0f, groups.of(g, out), groups.matrices());
}

template <class T>
DeviceBuffer<T> attention_backward(Context& context, const AttentionShape& shape, DeviceBuffer<T>& qkv,
                                   DeviceBuffer<T>& probabilities, DeviceBuffer<T> d_attended) {
  const AttentionGroups groups(shape);
  const std::size_t seq = shape.seq, depth = groups.depth();
  auto d_qkv = context.buffer<T>(qkv.size(), Category::activations, "qkv gradient");
  auto d_p = context.buffer<T>(probabilities.size(), Category::activations, "attention gradient");
  const auto in = [&](std::size_t which) { return groups.in_qkv<const T>(qkv.data(), which); };
  const auto out = [&](std::size_t which) { return groups.in_qkv(d_qkv.data(), which); };
  const auto p = groups.in_squares<const T>(probabilities.data()), d = groups.in_rows<const T>(d_attended.data());
  const auto ds = groups.in_squares(d_p.data());
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
  d_attended.reset();
  softmax_backward(context, probabilities.data(), d_p.data(), {shape.matrices(), seq, seq, 0, shape.causal},
                   groups.scale());
  probabilities.reset();
  const auto from = groups.in_squares<const T>(d_p.data());
  product(false, false, depth, seq, from, in(1), out(0));
  product(true, false, depth, seq, from, in(0), out(1));
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
