// Attention by tiles of queries. A tile's rows are whole rows of scores, so it is the textbook's arithmetic on fewer
// rows at a time; the backward pass computes each tile's probabilities again.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <optional>

#include "nn/attention_batches.h"
#include "nn/kernel.h"
#include "nn/transformer_ops.h"

namespace oomlab::nn {

std::size_t attention_tile_rows(const AttentionShape& shape) {
  constexpr std::size_t kLeast = 32;  // fewer would make products of a few rows only
  const std::size_t as_attended = checked_product(shape.sequences, shape.width) / AttentionGroups(shape).matrices();
  return std::min(shape.seq, std::max(kLeast, as_attended));
}

namespace {

// One group of one tile after the other.
struct Tile {
  std::size_t group, first, rows;  // queries first…first + rows − 1
  std::size_t seen;                // keys that at least one of them sees
};
template <class Body>
void each_tile_backwards(const AttentionShape& shape, std::size_t group, std::size_t rows_of_tile, Body body) {
  for (std::size_t tiles = (shape.seq + rows_of_tile - 1) / rows_of_tile, t = tiles; t-- > 0;) {
    const std::size_t first = t * rows_of_tile, rows = std::min(rows_of_tile, shape.seq - first);
    body(Tile{group, first, rows, shape.causal ? first + rows : shape.seq});
  }
}

// The probabilities of a tile [matrices, rows, seen], to `to`.
template <class T>
void probabilities_of(Context& context, const AttentionShape& shape, const AttentionGroups& groups, const Tile& tile,
                      const T* qkv, T* to) {
  gemm_strided<T>(context, false, true, tile.rows, tile.seen, groups.depth(), 1.0f,
                  groups.of(tile.group, groups.in_qkv(qkv, 0), tile.first),
                  groups.of(tile.group, groups.in_qkv(qkv, 1)), 0.0f, {to, tile.seen, tile.rows * tile.seen},
                  groups.matrices());
  softmax_forward(context, to, {groups.matrices(), tile.rows, tile.seen, tile.first, shape.causal}, groups.scale());
}

template <class T>
DeviceBuffer<T> make_tile(Context& context, const AttentionShape& shape, const char* tag) {
  const std::size_t matrices = AttentionGroups(shape).matrices();
  return context.buffer<T>(checked_product(checked_product(matrices, attention_tile_rows(shape)), shape.seq),
                           Category::activations, tag);
}

// Sums [matrices, seq, depth] to where K's or V's gradient is: to + matrix · matrix_stride + row · row_stride.
template <class T>
__global__ void rounded_sums_kernel(const float* __restrict__ sums, T* __restrict__ to, std::size_t matrices,
                                    std::size_t seq, std::size_t depth, std::size_t row_stride,
                                    std::size_t matrix_stride, bool packs) {
  for (std::size_t row : row_range(matrices * seq)) {
    const float* const from = sums + row * depth;
    T* const line = to + row / seq * matrix_stride + row % seq * row_stride;
    for_packs<T>(BlockRange{}, depth, packs, [&](auto v, std::size_t i) {
      using V = decltype(v);
      float sum[V::size];
      load_floats<(V::size > 1), V::size>(sum, from + i * V::size);
      each_lane<V>([&](std::size_t k) { v[k] = static_cast<T>(sum[k]); });
      store(line, i, v);
    });
  }
}

}  // namespace

template <class T>
void attention_forward_tiled(Context& context, const AttentionShape& shape, const T* qkv, T* attended) {
  const AttentionGroups groups(shape);
  auto scores = make_tile<T>(context, shape, "attention scores of a tile");
  for (std::size_t g = 0; g < groups.count(); ++g)
    each_tile_backwards(shape, g, attention_tile_rows(shape), [&](const Tile& tile) {
      probabilities_of(context, shape, groups, tile, qkv, scores.data());
      gemm_strided<T>(context, false, false, tile.rows, groups.depth(), tile.seen, 1.0f,
                      {scores.data(), tile.seen, tile.rows * tile.seen}, groups.of(g, groups.in_qkv(qkv, 2)), 0.0f,
                      groups.of(g, groups.in_rows(attended), tile.first), groups.matrices());
    });
}

template <class T>
DeviceBuffer<T> attention_backward_tiled(Context& context, const AttentionShape& shape, DeviceBuffer<T>& qkv,
                                         DeviceBuffer<T> d_attended) {
  const AttentionGroups groups(shape);
  const std::size_t depth = groups.depth(), matrices = groups.matrices(), tile_rows = attention_tile_rows(shape);
  auto d_qkv = context.buffer<T>(qkv.size(), Category::activations, "qkv gradient");
  auto p = make_tile<T>(context, shape, "attention probabilities of a tile");
  auto d_p = make_tile<T>(context, shape, "attention gradient of a tile");
  // Every tile adds to the gradients of K and V: in FP32, rounded once.
  const bool wide = sizeof(T) < sizeof(float) && tile_rows < shape.seq;
  const std::size_t one = checked_product(matrices, checked_product(shape.seq, depth));
  DeviceBuffer<float> sums;
  if (wide) sums = context.buffer<float>(checked_product(one, 2), Category::activations, "key and value gradients");

  const auto q = groups.in_qkv<const T>(qkv.data(), 0), k = groups.in_qkv<const T>(qkv.data(), 1),
             v = groups.in_qkv<const T>(qkv.data(), 2);
  const auto d = groups.in_rows<const T>(d_attended.data());
  const auto dq = groups.in_qkv(d_qkv.data(), 0), dk = groups.in_qkv(d_qkv.data(), 1),
             dv = groups.in_qkv(d_qkv.data(), 2);
  for (std::size_t g = 0; g < groups.count(); ++g) {
    // The last queries come first: they see every key, so their products also clear what was there.
    each_tile_backwards(shape, g, tile_rows, [&](const Tile& tile) {
      const float beta = tile.first + tile.rows == shape.seq ? 0.0f : 1.0f;
      const Strided<const T> p_tile{p.data(), tile.seen, tile.rows * tile.seen};
      const Strided<const T> ds_tile{d_p.data(), tile.seen, tile.rows * tile.seen};
      const auto d_tile = groups.of(g, d, tile.first), q_tile = groups.of(g, q, tile.first);
      const auto add = [&](const Strided<const T>& a, const Strided<const T>& b, std::size_t which,
                           const HeadMatrices<T>& narrow) {
        if (wide)
          gemm_strided<T, float>(context, true, false, tile.seen, depth, tile.rows, 1.0f, a, b, beta,
                                 {sums.data() + which * one, depth, shape.seq * depth}, matrices);
        else
          gemm_strided<T>(context, true, false, tile.seen, depth, tile.rows, 1.0f, a, b, beta, groups.of(g, narrow),
                          matrices);
      };
      probabilities_of<T>(context, shape, groups, tile, qkv.data(), p.data());
      add(p_tile, d_tile, 1, dv);
      gemm_strided<T>(context, false, true, tile.rows, tile.seen, depth, 1.0f, d_tile, groups.of(g, v), 0.0f,
                      {d_p.data(), tile.seen, tile.rows * tile.seen}, matrices);
      softmax_backward(context, p.data(), d_p.data(), {matrices, tile.rows, tile.seen, tile.first, shape.causal},
                       groups.scale());
      gemm_strided<T>(context, false, false, tile.rows, depth, tile.seen, 1.0f, ds_tile, groups.of(g, k), 0.0f,
                      groups.of(g, dq, tile.first), matrices);
      add(ds_tile, q_tile, 0, dk);
    });
    if constexpr (sizeof(T) < sizeof(float))
      for (std::size_t which = 0; wide && which < 2; ++which) {
        const Strided<T> to = groups.of(g, which ? dv : dk);
        launch(rounded_sums_kernel<T>, shape_for_packed_rows<T>(checked_product(matrices, shape.seq), depth),
               context.stream(), sums.data() + which * one, to.data, matrices, shape.seq, depth, to.row_stride,
               to.matrix_stride, packs_fit<T>(depth, to.data, sums.data() + which * one));
      }
  }
  d_attended.reset();
  qkv.reset();
  return d_qkv;
}

#define OOMLAB_TILED(T)                                                                 \
  template void attention_forward_tiled(Context&, const AttentionShape&, const T*, T*); \
  template DeviceBuffer<T> attention_backward_tiled(Context&, const AttentionShape&, DeviceBuffer<T>&, DeviceBuffer<T>);
OOMLAB_TILED(float)
OOMLAB_TILED(__half)
OOMLAB_TILED(__nv_bfloat16)
#undef OOMLAB_TILED

}  // namespace oomlab::nn
