// Attention by tiles of queries. A tile's rows are whole rows of scores, so it is the textbook's arithmetic on fewer
// rows at a time; the backward pass computes each tile's probabilities again.

#include "nn/ops/attention_batches.h"
#include "nn/ops/cross_attention.h"
#include "nn/ops/instances.h"
#include "nn/ops/kernel.h"
#include "nn/ops/matmul.h"
#include "nn/ops/softmax.h"

namespace oomlab::nn {

namespace {

// One after the other.
struct Tile {
  std::size_t group, matrix, matrices;  // matrices of the group: matrix, matrix + 1, …
  std::size_t first, rows;              // queries first, first + 1, …
  std::size_t seen;                     // keys that at least one of them sees
  template <class T>
  Strided<T> squares(T* scores) const {
    return {scores, seen, rows * seen};
  }
  ScoreTile in(const AttentionShape& shape) const { return {matrices, rows, seen, first, shape.causal}; }
};
// The tiles of some matrices, the last queries first.
template <class Body>
void each_tile_backwards(const AttentionShape& shape, std::size_t group, std::size_t matrix, std::size_t matrices,
                         Body body) {
  const std::size_t rows_of_tile = attention_tile(shape).rows;
  for (std::size_t tiles = (shape.seq + rows_of_tile - 1) / rows_of_tile, t = tiles; t-- > 0;) {
    const std::size_t first = t * rows_of_tile, rows = std::min(rows_of_tile, shape.seq - first);
    body(Tile{group, matrix, matrices, first, rows, shape.causal ? first + rows : shape.key_length()});
  }
}
// Calls body(group, matrix, matrices) for all matrices, as many as a tile has at a time. Those that share keys follow
// each other.
template <class Body>
void each_batch(const AttentionShape& shape, Body body) {
  const AttentionGroups groups(shape);
  const std::size_t of_tile = attention_tile(shape).matrices, sharers = shape.sharers();
  for (std::size_t first = 0; first < groups.count(); first += sharers)
    for (std::size_t m = 0; m < groups.matrices(); m += of_tile)
      for (std::size_t g = first; g < first + sharers; ++g) body(g, m, std::min(of_tile, groups.matrices() - m));
}

// The scores of a tile [matrices, rows, seen], to `to`.
template <class T>
void scores_of(Context& context, const AttentionGroups& groups, const Tile& tile, const QkvRows<const T>& qkv, T* to) {
  gemm_strided<T>(context, false, true, tile.rows, tile.seen, groups.depth(), 1.0f,
                  groups.of(tile.group, groups.in_qkv(qkv, 0), tile.matrix, tile.first),
                  groups.of(tile.group, groups.in_qkv(qkv, 1), tile.matrix), 0.0f, tile.squares(to), tile.matrices);
}

// Elements of what of_block() says, of the block that has most.
template <class OfBlock>
std::size_t most_of_blocks(const AttentionShape& shape, OfBlock of_block) {
  std::size_t most = 0;
  each_diagonal_block(shape, [&](const AttentionShape& block, std::size_t, std::size_t) {
    most = std::max<std::size_t>(most, of_block(block));
  });
  return most;
}

template <class T>
DeviceBuffer<T> make_tile(Context& context, const AttentionShape& shape, const char* tag) {
  const std::size_t elements = most_of_blocks(shape, [](const AttentionShape& block) {
    const AttentionTile tile = attention_tile(block);
    return checked_product(checked_product(tile.matrices, tile.rows), block.key_length());
  });
  return context.buffer<T>(elements, Category::activations, tag);
}

// Every tile, and every head that shares them, adds to the gradients of K and V: in FP32, rounded once. Elements of the
// sums of either; 0 where what is added to has room for all bits.
template <class T>
std::size_t sums_of_keys(const AttentionShape& block) {
  const AttentionTile tile = attention_tile(block);
  const bool several = tile.rows < block.seq || block.sharers() > 1;
  if (sizeof(T) == sizeof(float) || !several) return 0;
  return checked_product(tile.matrices, checked_product(block.key_length(), block.depth()));
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

// Sums [matrices, seq, depth], rounded. Of FP32 there are none: what it adds up needs no other place.
template <class T>
void store_sums(Context& context, const float* sums, const Strided<T>& to, std::size_t matrices, std::size_t seq,
                std::size_t depth) {
  if constexpr (sizeof(T) < sizeof(float))
    launch(rounded_sums_kernel<T>, shape_for_packed_rows<T>(checked_product(matrices, seq), depth), context.stream(),
           sums, to.data, matrices, seq, depth, to.row_stride, to.matrix_stride, packs_fit<T>(depth, to.data, sums));
}

template <class T>
void tiles_forward(Context& context, const AttentionShape& shape, const QkvRows<const T>& qkv, T* scores, T* attended) {
  const AttentionGroups groups(shape);
  each_batch(shape, [&](std::size_t group, std::size_t matrix, std::size_t matrices) {
    each_tile_backwards(shape, group, matrix, matrices, [&](const Tile& tile) {
      scores_of<T>(context, groups, tile, qkv, scores);
      softmax_forward(context, scores, tile.in(shape), groups.scale());
      gemm_strided<T>(context, false, false, tile.rows, groups.depth(), tile.seen, 1.0f, tile.squares<const T>(scores),
                      groups.of(group, groups.in_qkv(qkv, 2), matrix), 0.0f,
                      groups.of(group, groups.in_rows(attended), matrix, tile.first), matrices);
    });
  });
}

// p, d_p and sums are room for a tile's probabilities and their gradient, and for sums_of_keys() of K and of V.
template <class T>
void tiles_backward(Context& context, const AttentionShape& shape, const QkvRows<const T>& qkv, const T* d_attended,
                    T* p, T* d_p, float* sums, const QkvRows<T>& d_qkv) {
  const AttentionGroups groups(shape);
  const std::size_t depth = groups.depth(), keys = shape.key_length(), one = sums_of_keys<T>(shape);
  const bool wide = one > 0;
  const auto q = groups.in_qkv(qkv, 0), k = groups.in_qkv(qkv, 1), v = groups.in_qkv(qkv, 2);
  const auto d = groups.in_rows(d_attended);
  const auto dq = groups.in_qkv(d_qkv, 0), dk = groups.in_qkv(d_qkv, 1), dv = groups.in_qkv(d_qkv, 2);
  each_batch(shape, [&](std::size_t group, std::size_t matrix, std::size_t matrices) {
    // The last queries come first: they see every key, so their products also clear what was there.
    each_tile_backwards(shape, group, matrix, matrices, [&](const Tile& tile) {
      const float beta = tile.first + tile.rows == shape.seq && groups.first_of_keys(group) ? 0.0f : 1.0f;
      const auto p_tile = tile.squares<const T>(p), ds_tile = tile.squares<const T>(d_p);
      const auto d_tile = groups.of(group, d, matrix, tile.first), q_tile = groups.of(group, q, matrix, tile.first);
      const auto add = [&](const Strided<const T>& a, const Strided<const T>& b, std::size_t which,
                           const HeadMatrices<T>& narrow) {
        if (wide)
          gemm_strided<T, float>(context, true, false, tile.seen, depth, tile.rows, 1.0f, a, b, beta,
                                 {sums + which * one, depth, keys * depth}, matrices);
        else
          gemm_strided<T>(context, true, false, tile.seen, depth, tile.rows, 1.0f, a, b, beta,
                          groups.of(group, narrow, matrix), matrices);
      };
      scores_of<T>(context, groups, tile, qkv, p);
      gemm_strided<T>(context, false, true, tile.rows, tile.seen, depth, 1.0f, d_tile, groups.of(group, v, matrix),
                      0.0f, tile.squares(d_p), matrices);
      softmax_forward_backward(context, p, d_p, tile.in(shape), groups.scale());
      add(p_tile, d_tile, 1, dv);
      gemm_strided<T>(context, false, false, tile.rows, depth, tile.seen, 1.0f, ds_tile, groups.of(group, k, matrix),
                      0.0f, groups.of(group, dq, matrix, tile.first), matrices);
      add(ds_tile, q_tile, 0, dk);
    });
    for (std::size_t which = 0; wide && groups.last_of_keys(group) && which < 2; ++which)
      store_sums(context, sums + which * one, groups.of(group, which ? dv : dk, matrix), matrices, keys, depth);
  });
}

template <class T>
void run_forward(Context& context, const AttentionShape& shape, const QkvRows<const T>& qkv, T* attended) {
  auto scores = make_tile<T>(context, shape, "attention scores of a tile");
  each_diagonal_block(shape, [&](const AttentionShape& block, std::size_t row, std::size_t) {
    tiles_forward<T>(context, block, qkv.from(row), scores.data(), attended + row * shape.width);
  });
}

template <class T>
void run_backward(Context& context, const AttentionShape& shape, const QkvRows<const T>& qkv, const T* d_attended,
                  const QkvRows<T>& d_qkv) {
  auto p = make_tile<T>(context, shape, "attention probabilities of a tile");
  auto d_p = make_tile<T>(context, shape, "attention gradient of a tile");
  DeviceBuffer<float> sums;
  if (const std::size_t one = most_of_blocks(shape, sums_of_keys<T>))
    sums = context.buffer<float>(checked_product(one, 2), Category::activations, "key and value gradients");
  each_diagonal_block(shape, [&](const AttentionShape& block, std::size_t row, std::size_t) {
    tiles_backward<T>(context, block, qkv.from(row), d_attended + row * shape.width, p.data(), d_p.data(), sums.data(),
                      d_qkv.from(row));
  });
}

}  // namespace

template <class T>
void attention_forward_tiled(Context& context, const AttentionShape& shape, const T* qkv, T* attended) {
  run_forward<T>(context, shape, in_one_buffer(shape, qkv), attended);
}

template <class T>
DeviceBuffer<T> attention_backward_tiled(Context& context, const AttentionShape& shape, DeviceBuffer<T>& qkv,
                                         DeviceBuffer<T> d_attended) {
  auto d_qkv = context.buffer<T>(qkv.size(), Category::activations, "qkv gradient");
  run_backward<T>(context, shape, in_one_buffer<const T>(shape, qkv.data()), d_attended.data(),
                  in_one_buffer(shape, d_qkv.data()));
  d_attended.reset();
  qkv.reset();
  return d_qkv;
}

template <class T>
void cross_attention_forward_tiled(Context& context, const AttentionShape& shape,
                                   const SeparateQkv<std::type_identity_t<const T>>& in, T* attended) {
  run_forward<T>(context, shape, in_three_buffers<const T>(shape, in.q, in.k, in.v), attended);
}

template <class T>
void cross_attention_backward_tiled(Context& context, const AttentionShape& shape,
                                    const SeparateQkv<std::type_identity_t<const T>>& in, const T* d_attended,
                                    const SeparateQkv<std::type_identity_t<T>>& gradients) {
  run_backward<T>(context, shape, in_three_buffers<const T>(shape, in.q, in.k, in.v), d_attended,
                  in_three_buffers<T>(shape, gradients.q, gradients.k, gradients.v));
}

#define OOMLAB_TILED(T)                                                                                             \
  template void attention_forward_tiled(Context&, const AttentionShape&, const T*, T*);                             \
  template DeviceBuffer<T> attention_backward_tiled(Context&, const AttentionShape&, DeviceBuffer<T>&,              \
                                                    DeviceBuffer<T>);                                               \
  template void cross_attention_forward_tiled<T>(Context&, const AttentionShape&, const SeparateQkv<const T>&, T*); \
  template void cross_attention_backward_tiled<T>(Context&, const AttentionShape&, const SeparateQkv<const T>&,     \
                                                  const T*, const SeparateQkv<T>&);
OOMLAB_FOR_EACH_TYPE(OOMLAB_TILED)

}  // namespace oomlab::nn
