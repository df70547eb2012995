// Attention in one kernel, forward, and in two, backward. A block takes a tile of queries (or of keys) into shared
// memory and meets the others tile by tile; no score is ever stored. The arithmetic is FP32 whatever is stored.
//
// The recurrence (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al., 2022): with
// the maximum m and the sum l of the keys so far, and those of the next tile, m' = max(m, m_tile), and what was summed
// under m is scaled by e^(m − m'). At the end lse = m + ln l. The backward pass gets each probability back as
// e^(score − lse), and the gradient of a score as p · (dp − Σ p dp), where the sum over the row is the dot of the row's
// output with its gradient.
//
// Keys may also come in blocks, one call after the other: then the recurrence goes on from lse, as a maximum, and a sum of
// one, under which the output so far was summed up. With that, the order of blocks changes nothing but rounding.

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "nn/ops/attention_batches.h"
#include "nn/ops/attention_fused_tile.h"
#include "nn/ops/cross_attention.h"
#include "nn/ops/instances.h"
#include "nn/ops/kernel.h"

namespace oomlab::nn {

namespace {

constexpr unsigned kFusedThreads = 512;  // of a block at most: more would not have the registers

// `goes_on`: after other blocks of keys. `lse` may be null.
template <class T, class Out>
__global__ void fused_forward_kernel(const T* __restrict__ all_q, const T* __restrict__ all_k,
                                     const T* __restrict__ all_v, Out* __restrict__ attended, float* __restrict__ lse,
                                     std::size_t matrices, FusedLayout all, bool goes_on) {
  const std::size_t cells = all.tile * all.depth, row_stride = all.key_stride;
  float* const q = dynamic_shared<float>();
  float *const k = q + cells, *const v = k + cells, *const out = v + cells, *const score = out + cells;
  float *const largest = score + 2 * all.tile * all.tile, *const sum = largest + all.tile,
               *const shrink = sum + all.tile;
  const std::size_t tiles = (all.seq + all.tile - 1) / all.tile;
  for (std::size_t block : row_range(matrices * tiles)) {
    const std::size_t matrix = block / tiles, first = block % tiles * all.tile;
    const FusedLayout at = all.of_sequence(matrix / all.heads);
    if (first >= at.seq) continue;  // the sequence is shorter than the longest
    const std::size_t rows = at.rows_from(first);
    take(q, all_q + at.row_of_q(matrix, first), at.query_stride, rows, at);
    for (std::size_t i : block_range(cells)) {
      const std::size_t r = i / at.depth;
      out[i] = 0.0f;
      if (goes_on && r < rows)
        out[i] = static_cast<float>(attended[at.row_of_output(matrix, first + r) + i % at.depth]);
    }
    for (std::size_t r : block_range(at.tile)) {
      const bool from_others = goes_on && r < rows;
      largest[r] = from_others ? lse[at.value_of(matrix, first + r)] : -INFINITY;
      sum[r] = from_others ? 1.0f : 0.0f;
    }
    for (std::size_t key = 0; key < at.seen_by(first + rows - 1); key += at.tile) {
      const std::size_t keys = at.keys_from(key), at_key = at.row_of_key(at.key_matrix(matrix), key);
      __syncthreads();  // the tile before has been read
      take_transposed(k, all_k + at_key, row_stride, keys, at);
      take(v, all_v + at_key, row_stride, keys, at);
      __syncthreads();
      products(score, q, k, at);
      __syncthreads();
      for (std::size_t r : block_range(rows)) {
        float* const line = score + r * at.tile;
        const std::size_t seen = at.seen_by(first + r);
        float now = largest[r];
        for (std::size_t c = 0; c < keys; ++c)
          if (key + c < seen && now < line[c] * at.scale) now = line[c] * at.scale;
        // The first tile of the first block has a key for every query, so `now` is a number.
        shrink[r] = largest[r] == -INFINITY ? 0.0f : exp_of(largest[r] - now);
        float added = 0.0f;
        for (std::size_t c = 0; c < at.tile; ++c) {
          line[c] = c < keys && key + c < seen ? exp_of(line[c] * at.scale - now) : 0.0f;
          added += line[c];
        }
        largest[r] = now;
        sum[r] = sum[r] * shrink[r] + added;
      }
      __syncthreads();
      add_products(
          out, rows, keys, [&](std::size_t r) { return shrink[r]; },
          [&](std::size_t r, std::size_t c) { return score[r * at.tile + c]; }, v, at);
    }
    __syncthreads();
    for (std::size_t i : block_range(rows * at.depth)) {
      const std::size_t r = i / at.depth, column = i % at.depth;
      attended[at.row_of_output(matrix, first + r) + column] = static_cast<Out>(out[i] / sum[r]);
    }
    if (lse)
      for (std::size_t r : block_range(rows)) lse[at.value_of(matrix, first + r)] = largest[r] + logf(sum[r]);
    __syncthreads();  // the next tile of queries begins in the same place
  }
}

template <class T>
__global__ void row_dots_kernel(const T* __restrict__ attended, const T* __restrict__ d_attended,
                                float* __restrict__ dots, std::size_t matrices, FusedLayout all) {
  for (std::size_t i : grid_range(matrices * all.seq)) {
    const std::size_t matrix = i / all.seq, row_of_matrix = i % all.seq;
    const FusedLayout at = all.of_sequence(matrix / all.heads);
    if (row_of_matrix >= at.seq) continue;
    const std::size_t row = at.row_of_output(matrix, row_of_matrix);
    float sum = 0.0f;
    for (std::size_t c = 0; c < at.depth; ++c)
      sum = fmaf(static_cast<float>(attended[row + c]), static_cast<float>(d_attended[row + c]), sum);
    dots[at.value_of(matrix, row_of_matrix)] = sum;
  }
}

// What the backward pass needs of a tile of queries: themselves, the gradients of what they attended to, both
// [tile, depth], and of each row the log-sum-exp and the dot.
struct Queries {
  float *q, *d, *lse, *dot;
};
template <class T>
__device__ void take_queries(const Queries& to, const T* all_q, const T* d_attended, const float* lse,
                             const float* dots, std::size_t matrix, std::size_t first, const FusedLayout& at) {
  const std::size_t rows = at.rows_from(first);
  take(to.q, all_q + at.row_of_q(matrix, first), at.query_stride, rows, at);
  take(to.d, d_attended + at.row_of_output(matrix, first), at.width, rows, at);
  for (std::size_t r : block_range(rows)) {
    to.lse[r] = lse[at.value_of(matrix, first + r)];
    to.dot[r] = dots[at.value_of(matrix, first + r)];
  }
}

// The probabilities of a tile and the gradients of its scores, [tile, tile]. Keys and values come transposed.
__device__ inline void score_gradients(float* p, float* ds, const Queries& queries, std::size_t query, const float* k,
                                       const float* v, std::size_t key, const FusedLayout& at) {
  products(p, queries.q, k, at);
  products(ds, queries.d, v, at);
  __syncthreads();
  const std::size_t rows = at.rows_from(query);
  for (std::size_t i : block_range(at.tile * at.tile)) {
    const std::size_t r = i / at.tile, c = i % at.tile;
    const bool counts = r < rows && key + c < at.seen_by(query + r);
    const float probability = counts ? exp_of(p[i] * at.scale - queries.lse[r]) : 0.0f;
    p[i] = probability;
    ds[i] = counts ? probability * (ds[i] - queries.dot[r]) * at.scale : 0.0f;
  }
  __syncthreads();
}

// The gradient of Q: a block has a tile of queries and meets the keys. `adds`: to what is there.
template <class T, class Out>
__global__ void fused_query_gradient_kernel(const T* __restrict__ all_q, const T* __restrict__ all_k,
                                            const T* __restrict__ all_v, const T* __restrict__ d_attended,
                                            const float* __restrict__ lse, const float* __restrict__ dots,
                                            Out* __restrict__ d_q, std::size_t matrices, FusedLayout all, bool adds) {
  const std::size_t cells = all.tile * all.depth, row_stride = all.key_stride;
  float* const q = dynamic_shared<float>();
  float *const d = q + cells, *const k = d + cells, *const v = k + cells, *const keys_by_row = v + cells,
               *const dq = keys_by_row + cells, *const p = dq + cells, *const ds = p + all.tile * all.tile;
  float* const row_lse = ds + all.tile * all.tile;
  const Queries queries{q, d, row_lse, row_lse + all.tile};
  const std::size_t tiles = (all.seq + all.tile - 1) / all.tile;
  const auto whole = [](std::size_t) { return 1.0f; };
  for (std::size_t block : row_range(matrices * tiles)) {
    const std::size_t matrix = block / tiles, first = block % tiles * all.tile;
    const FusedLayout at = all.of_sequence(matrix / all.heads);
    if (first >= at.seq) continue;  // the sequence is shorter than the longest
    const std::size_t rows = at.rows_from(first);
    take_queries(queries, all_q, d_attended, lse, dots, matrix, first, at);
    const auto place = [&](std::size_t i) {
      return at.row_of_query_gradient(matrix, first + i / at.depth) + i % at.depth;
    };
    for (std::size_t i : block_range(cells))
      dq[i] = adds && i < rows * at.depth ? static_cast<float>(d_q[place(i)]) : 0.0f;
    for (std::size_t key = 0; key < at.seen_by(first + rows - 1); key += at.tile) {
      const std::size_t keys = at.keys_from(key), at_key = at.row_of_key(at.key_matrix(matrix), key);
      __syncthreads();  // the tile before has been read
      take_transposed(k, all_k + at_key, row_stride, keys, at);
      take(keys_by_row, all_k + at_key, row_stride, keys, at);
      take_transposed(v, all_v + at_key, row_stride, keys, at);
      __syncthreads();
      score_gradients(p, ds, queries, first, k, v, key, at);
      add_products(
          dq, rows, keys, whole, [&](std::size_t r, std::size_t c) { return ds[r * at.tile + c]; }, keys_by_row, at);
    }
    __syncthreads();
    for (std::size_t i : block_range(rows * at.depth)) d_q[place(i)] = static_cast<Out>(dq[i]);
    __syncthreads();  // the next tile of queries begins in the same place
  }
}

// The gradients of K and V: a block has a tile of keys and meets the queries that see them, of each head that shares
// them. `adds`: to what is there.
template <class T, class Out>
__global__ void fused_key_gradient_kernel(const T* __restrict__ all_q, const T* __restrict__ all_k,
                                          const T* __restrict__ all_v, const T* __restrict__ d_attended,
                                          const float* __restrict__ lse, const float* __restrict__ dots,
                                          Out* __restrict__ d_k, Out* __restrict__ d_v, std::size_t matrices,
                                          FusedLayout all, bool adds) {
  const std::size_t cells = all.tile * all.depth, row_stride = all.key_stride;
  float* const k = dynamic_shared<float>();
  float *const v = k + cells, *const q = v + cells, *const d = q + cells, *const dk = d + cells, *const dv = dk + cells,
               *const p = dv + cells, *const ds = p + all.tile * all.tile;
  float* const row_lse = ds + all.tile * all.tile;
  const Queries queries{q, d, row_lse, row_lse + all.tile};
  const std::size_t tiles = (all.key_seq + all.tile - 1) / all.tile;
  const auto whole = [](std::size_t) { return 1.0f; };
  for (std::size_t block : row_range(matrices / all.sharers * tiles)) {
    const std::size_t key_matrix = block / tiles, key = block % tiles * all.tile;
    const FusedLayout at = all.of_sequence(key_matrix / all.keys);
    if (key >= at.key_seq) continue;  // the sequence is shorter than the longest
    const std::size_t keys = at.keys_from(key);
    take_transposed(k, all_k + at.row_of_key(key_matrix, key), row_stride, keys, at);
    take_transposed(v, all_v + at.row_of_key(key_matrix, key), row_stride, keys, at);
    const auto place = [&](std::size_t i) { return at.row_of_key(key_matrix, key + i / at.depth) + i % at.depth; };
    for (std::size_t i : block_range(cells)) {
      const bool there = adds && i < keys * at.depth;
      dk[i] = there ? static_cast<float>(d_k[place(i)]) : 0.0f;
      dv[i] = there ? static_cast<float>(d_v[place(i)]) : 0.0f;
    }
    for (std::size_t matrix = key_matrix * at.sharers; matrix < (key_matrix + 1) * at.sharers; ++matrix)
      for (std::size_t first = 0; first < at.seq; first += at.tile) {
        const std::size_t rows = at.rows_from(first);
        if (at.seen_by(first + rows - 1) <= key) continue;
        __syncthreads();  // the tile before has been read
        take_queries(queries, all_q, d_attended, lse, dots, matrix, first, at);
        __syncthreads();
        score_gradients(p, ds, queries, first, k, v, key, at);
        add_products(
            dk, keys, rows, whole, [&](std::size_t c, std::size_t r) { return ds[r * at.tile + c]; }, q, at);
        add_products(
            dv, keys, rows, whole, [&](std::size_t c, std::size_t r) { return p[r * at.tile + c]; }, d, at);
      }
    __syncthreads();
    for (std::size_t i : block_range(keys * at.depth)) {
      d_k[place(i)] = static_cast<Out>(dk[i]);
      d_v[place(i)] = static_cast<Out>(dv[i]);
    }
    __syncthreads();  // the next tile of keys begins in the same place
  }
}

void check_depth(const AttentionShape& shape) {
  if (shape.depth() > kFusedDepth)
    throw std::invalid_argument("fused attention takes heads of up to " + std::to_string(kFusedDepth) +
                                " values, not " + std::to_string(shape.depth()));
}
FusedLayout layout_of(const AttentionShape& shape, std::size_t query_stride, std::size_t key_stride,
                      std::size_t matrices) {
  check_depth(shape);
  const AttentionGroups groups(shape);
  return {.seq = shape.seq,
          .key_seq = shape.key_length(),
          .heads = shape.heads,
          .keys = shape.keys(),
          .sharers = shape.sharers(),
          .depth = shape.depth(),
          .width = shape.width,
          .tile = fused_tile(shape.depth(), matrices),
          .scale = groups.scale(),
          .causal = shape.causal,
          .query_stride = query_stride,
          .key_stride = key_stride,
          .query_gradient_stride = query_stride,
          .queries = {.seq = shape.seq},
          .keys_at = {.seq = shape.key_length()},
          .offsets = shape.packed ? shape.packed->on_device : nullptr};
}
// Of a block of keys and values that lie side by side, and their gradients as well.
FusedLayout layout_of(const AttentionShape& shape, const AttentionBlock& block, std::size_t matrices) {
  FusedLayout at = layout_of(shape, shape.qkv_width(), shape.kv_width(), matrices);
  at.query_gradient_stride = shape.width;
  at.queries = block.queries;
  at.keys_at = block.keys;
  return at;
}

std::uint64_t score_flops(const AttentionShape& shape, std::size_t tile) {
  std::uint64_t flops = 0;
  each_diagonal_block(shape, [&](const AttentionShape& block, std::uint64_t, std::uint64_t) {
    flops += score_product_flops(block, tile);
  });
  return flops;
}
// Of one product of the shape of the scores, by tiles of queries: a tile has no keys that none of them sees.
std::uint64_t block_product_flops(const AttentionShape& shape, const FusedLayout& at) {
  std::uint64_t scores = 0;
  for (std::size_t first = 0; first < at.seq; first += at.tile) {
    const std::size_t rows = std::min(at.tile, at.seq - first);
    scores += rows * at.seen_by(first + rows - 1);
  }
  return 2 * shape.sequences * scores * shape.width;
}

// Of `rows` queries, or keys, a sequence.
LaunchShape shape_for_tiles(const AttentionShape& shape, const FusedLayout& at, std::size_t rows,
                            std::size_t matrices) {
  const std::size_t tiles = (rows + at.tile - 1) / at.tile;
  LaunchShape launch =
      shape_for_rows(checked_product(shape.matrices(), tiles), shared_bytes(at.tile, at.depth, matrices));
  launch.block.x = std::min(launch.block.x, kFusedThreads);
  return launch;
}

template <class T, class Out>
void run_forward(Context& context, const AttentionShape& shape, const FusedLayout& at, const QkvRows<const T>& in,
                 Out* attended, float* lse, bool goes_on) {
  launch(fused_forward_kernel<T, Out>, shape_for_tiles(shape, at, at.seq, kFusedForwardMatrices), context.stream(),
         in.q, in.k, in.v, attended, lse, shape.matrices(), at, goes_on);
}

template <class T, class Out>
void run_backward(Context& context, const AttentionShape& shape, const FusedLayout& at, const QkvRows<const T>& in,
                  const T* d_attended, const float* lse, const float* dots, const QkvRows<Out>& gradients, bool adds) {
  launch(fused_query_gradient_kernel<T, Out>, shape_for_tiles(shape, at, at.seq, kFusedBackwardMatrices),
         context.stream(), in.q, in.k, in.v, d_attended, lse, dots, gradients.q, shape.matrices(), at, adds);
  launch(fused_key_gradient_kernel<T, Out>, shape_for_tiles(shape, at, at.key_seq, kFusedBackwardMatrices),
         context.stream(), in.q, in.k, in.v, d_attended, lse, dots, gradients.k, gradients.v, shape.matrices(), at,
         adds);
}

// Scores and their gradients are computed in both kernels of the backward pass.
constexpr std::uint64_t kForwardProducts = 2, kBackwardProducts = 7;

template <class T>
void whole_forward(Context& context, const AttentionShape& shape, const QkvRows<const T>& in, T* attended, float* lse) {
  const FusedLayout at = layout_of(shape, in.query_stride, in.key_stride, kFusedForwardMatrices);
  context.count_flops(kForwardProducts * score_flops(shape, at.tile));
  run_forward<T>(context, shape, at, in, attended, lse, false);
}
template <class T>
void whole_backward(Context& context, const AttentionShape& shape, const QkvRows<const T>& in, const T* d_attended,
                    const float* lse, const float* dots, const QkvRows<T>& gradients) {
  const FusedLayout at = layout_of(shape, in.query_stride, in.key_stride, kFusedBackwardMatrices);
  context.count_flops(kBackwardProducts * score_flops(shape, at.tile));
  run_backward<T>(context, shape, at, in, d_attended, lse, dots, gradients, false);
}

// Q in qkv, and a block of keys and values kv, all K before all V; or their gradients.
template <class T>
QkvRows<T> with_block(const AttentionShape& shape, T* q, T* kv) {
  return {q, kv, kv + shape.keys() * shape.depth(), shape.qkv_width(), shape.kv_width()};
}

}  // namespace

template <class T>
void attention_forward_fused(Context& context, const AttentionShape& shape, const T* qkv, T* attended, float* lse) {
  whole_forward<T>(context, shape, in_one_buffer(shape, qkv), attended, lse);
}

template <class T>
void attention_row_dots(Context& context, const AttentionShape& shape, const T* attended, const T* d_attended,
                        float* dots) {
  const std::size_t rows = checked_product(shape.matrices(), shape.seq);
  launch(row_dots_kernel<T>, shape_for_items(rows), context.stream(), attended, d_attended, dots, shape.matrices(),
         layout_of(shape, shape.qkv_width(), shape.qkv_width(), kFusedBackwardMatrices));
}

template <class T>
DeviceBuffer<T> attention_backward_fused(Context& context, const AttentionShape& shape, DeviceBuffer<T>& qkv,
                                         DeviceBuffer<float>& lse, DeviceBuffer<float>& dots,
                                         DeviceBuffer<T> d_attended) {
  check_depth(shape);  // before anything is allocated
  auto d_qkv = context.buffer<T>(qkv.size(), Category::activations, "qkv gradient");
  whole_backward<T>(context, shape, in_one_buffer<const T>(shape, qkv.data()), d_attended.data(), lse.data(),
                    dots.data(), in_one_buffer(shape, d_qkv.data()));
  d_attended.reset();
  dots.reset();
  lse.reset();
  qkv.reset();
  return d_qkv;
}

template <class T>
void cross_attention_forward_fused(Context& context, const AttentionShape& shape,
                                   const SeparateQkv<std::type_identity_t<const T>>& in, T* attended, float* lse) {
  whole_forward<T>(context, shape, in_three_buffers<const T>(shape, in.q, in.k, in.v), attended, lse);
}

template <class T>
void cross_attention_backward_fused(Context& context, const AttentionShape& shape,
                                    const SeparateQkv<std::type_identity_t<const T>>& in, const float* lse,
                                    const float* dots, const T* d_attended,
                                    const SeparateQkv<std::type_identity_t<T>>& gradients) {
  whole_backward<T>(context, shape, in_three_buffers<const T>(shape, in.q, in.k, in.v), d_attended, lse, dots,
                    in_three_buffers<T>(shape, gradients.q, gradients.k, gradients.v));
}

template <class T>
void attention_block_forward(Context& context, const AttentionShape& shape, const AttentionBlock& block, const T* qkv,
                             const T* kv, float* attended, float* lse, bool goes_on) {
  const FusedLayout at = layout_of(shape, block, kFusedForwardMatrices);
  context.count_flops(kForwardProducts * block_product_flops(shape, at));
  run_forward<T>(context, shape, at, with_block(shape, qkv, kv), attended, lse, goes_on);
}

template <class T>
void attention_block_backward(Context& context, const AttentionShape& shape, const AttentionBlock& block, const T* qkv,
                              const T* kv, const T* d_attended, const float* lse, const float* dots, float* d_q,
                              float* d_kv) {
  const FusedLayout at = layout_of(shape, block, kFusedBackwardMatrices);
  context.count_flops(kBackwardProducts * block_product_flops(shape, at));
  run_backward<T>(context, shape, at, with_block(shape, qkv, kv), d_attended, lse, dots, with_block(shape, d_q, d_kv),
                  true);
}

#define OOMLAB_FUSED(T)                                                                                              \
  template void attention_forward_fused(Context&, const AttentionShape&, const T*, T*, float*);                      \
  template void attention_row_dots(Context&, const AttentionShape&, const T*, const T*, float*);                     \
  template DeviceBuffer<T> attention_backward_fused(Context&, const AttentionShape&, DeviceBuffer<T>&,               \
                                                    DeviceBuffer<float>&, DeviceBuffer<float>&, DeviceBuffer<T>);    \
  template void attention_block_forward(Context&, const AttentionShape&, const AttentionBlock&, const T*, const T*,  \
                                        float*, float*, bool);                                                       \
  template void attention_block_backward(Context&, const AttentionShape&, const AttentionBlock&, const T*, const T*, \
                                         const T*, const float*, const float*, float*, float*);                      \
  template void cross_attention_forward_fused<T>(Context&, const AttentionShape&, const SeparateQkv<const T>&, T*,   \
                                                 float*);                                                            \
  template void cross_attention_backward_fused<T>(Context&, const AttentionShape&, const SeparateQkv<const T>&,      \
                                                  const float*, const float*, const T*, const SeparateQkv<T>&);
OOMLAB_FOR_EACH_TYPE(OOMLAB_FUSED)

}  // namespace oomlab::nn
