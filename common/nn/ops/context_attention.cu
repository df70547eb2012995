#include "nn/ops/context_attention.h"

#include <utility>
#include <vector>

#include "cuda/check.h"
#include "nn/ops/instances.h"
#include "nn/ops/kernel.h"

namespace oomlab::nn {

namespace {

// Rows of `seq` a sequence, distances in elements.
template <class T>
struct RowsAt {
  T* data;
  std::size_t row_stride, seq, sequence_stride;
  __host__ __device__ T* row(std::size_t r) const { return data + r / seq * sequence_stride + r % seq * row_stride; }
};
// Rows that all follow each other.
template <class T>
RowsAt<T> side_by_side(T* data, std::size_t row_stride, std::size_t rows) {
  return {data, row_stride, rows, 0};
}

template <class T>
__global__ void copy_columns_kernel(RowsAt<const T> from, RowsAt<T> to, std::size_t rows, std::size_t columns,
                                    bool packs) {
  for (std::size_t row : row_range(rows))
    for_packs<T>(BlockRange{}, columns, packs, [&](auto v, std::size_t i) {
      using V = decltype(v);
      store(to.row(row), i, load<V>(from.row(row), i));
    });
}
template <class T>
void copy_columns(Context& context, const RowsAt<const T>& from, const RowsAt<T>& to, std::size_t rows,
                  std::size_t columns) {
  const bool strides =
      (from.row_stride | to.row_stride | from.sequence_stride | to.sequence_stride) % Pack<T>::size == 0;
  launch(copy_columns_kernel<T>, shape_for_packed_rows<T>(rows, columns), context.stream(), from, to, rows, columns,
         strides && packs_fit<T>(columns, from.data, to.data));
}

// FP32 to T: columns of rows `stride` apart.
template <class T>
__global__ void round_columns_kernel(const float* __restrict__ from, T* __restrict__ to, std::size_t stride,
                                     std::size_t rows, std::size_t columns, bool packs) {
  for (std::size_t row : row_range(rows))
    for_packs<T>(BlockRange{}, columns, packs, [&](auto v, std::size_t i) {
      using V = decltype(v);
      float value[V::size];
      load_floats<(V::size > 1), V::size>(value, from + row * columns + i * V::size);
      each_lane<V>([&](std::size_t k) { v[k] = static_cast<T>(value[k]); });
      store(to + row * stride, i, v);
    });
}
template <class T>
void round_columns(Context& context, const float* from, T* to, std::size_t stride, std::size_t rows,
                   std::size_t columns) {
  const bool packs = stride % Pack<T>::size == 0 && packs_fit<T>(columns, from, to);
  launch(round_columns_kernel<T>, shape_for_packed_rows<T>(rows, columns), context.stream(), from, to, stride, rows,
         columns, packs);
}

std::size_t rows_of(const AttentionShape& shape) { return shape.sequences * shape.seq; }

template <class T>
DeviceBuffer<T> activations(Context& context, std::size_t rows, std::size_t columns, const char* tag) {
  return context.buffer<T>(checked_product(rows, columns), Category::activations, tag);
}
DeviceBuffer<float> zeros(Context& context, std::size_t rows, std::size_t columns, const char* tag) {
  DeviceBuffer<float> sums = activations<float>(context, rows, columns, tag);
  CUDA_CHECK(cudaMemsetAsync(sums.data(), 0, sums.bytes(), context.stream()));
  return sums;
}

// ---- ring

constexpr const char* kBlockTag = "keys and values going round";

// Own keys and values, side by side.
template <class T>
DeviceBuffer<T> own_block(Context& context, const AttentionShape& shape, const T* qkv) {
  DeviceBuffer<T> block = activations<T>(context, rows_of(shape), shape.kv_width(), kBlockTag);
  copy_columns<T>(context, side_by_side<const T>(qkv + shape.width, shape.qkv_width(), rows_of(shape)),
                  side_by_side<T>(block.data(), shape.kv_width(), rows_of(shape)), rows_of(shape), shape.kv_width());
  return block;
}
// The block of step `step` began at the rank so many before this one.
AttentionBlock block_of(const AttentionShape& shape, const TokenRanks& ranks, std::size_t step) {
  const std::size_t from = (ranks.rank + ranks.ranks - step) % ranks.ranks;
  const std::size_t all = shape.seq * ranks.ranks;
  return {.queries = ranks.share_of(ranks.rank, all, shape.causal), .keys = ranks.share_of(from, all, shape.causal)};
}

}  // namespace

template <class T>
DeviceBuffer<T> ring_attention_forward(Context& context, const AttentionShape& shape, const TokenRanks& ranks,
                                       const T* qkv, float* lse) {
  const std::size_t rows = rows_of(shape);
  DeviceBuffer<T> block = own_block(context, shape, qkv);
  DeviceBuffer<float> sums = activations<float>(context, rows, shape.width, "attended in FP32");
  for (std::size_t step = 0; step < ranks.ranks; ++step) {
    DeviceBuffer<T> next;
    if (step + 1 < ranks.ranks) {
      next = activations<T>(context, rows, shape.kv_width(), kBlockTag);
      ranks.pass_on(context, {{block.data(), next.data(), block.bytes()}});
    }
    attention_block_forward<T>(context, shape, block_of(shape, ranks, step), qkv, block.data(), sums.data(), lse,
                               step > 0);
    block = std::move(next);
  }
  DeviceBuffer<T> attended = activations<T>(context, rows, shape.width, "attended");
  round_columns<T>(context, sums.data(), attended.data(), shape.width, rows, shape.width);
  return attended;
}

template <class T>
DeviceBuffer<T> ring_attention_backward(Context& context, const AttentionShape& shape, const TokenRanks& ranks,
                                        DeviceBuffer<T>& qkv, DeviceBuffer<float>& lse, DeviceBuffer<float>& dots,
                                        DeviceBuffer<T> d_attended) {
  constexpr const char* kGradientTag = "gradients of keys and values going round";
  const std::size_t rows = rows_of(shape);
  DeviceBuffer<T> block = own_block(context, shape, qkv.data());
  DeviceBuffer<float> d_q = zeros(context, rows, shape.width, "query gradient in FP32");
  DeviceBuffer<float> d_block = zeros(context, rows, shape.kv_width(), kGradientTag);
  for (std::size_t step = 0; step < ranks.ranks; ++step) {
    attention_block_backward<T>(context, shape, block_of(shape, ranks, step), qkv.data(), block.data(),
                                d_attended.data(), lse.data(), dots.data(), d_q.data(), d_block.data());
    DeviceBuffer<float> d_next = activations<float>(context, rows, shape.kv_width(), kGradientTag);
    DeviceBuffer<T> next;
    if (step + 1 < ranks.ranks) {
      next = activations<T>(context, rows, shape.kv_width(), kBlockTag);
      ranks.pass_on(context,
                    {{block.data(), next.data(), block.bytes()}, {d_block.data(), d_next.data(), d_block.bytes()}});
    } else {  // home
      ranks.pass_on(context, {{d_block.data(), d_next.data(), d_block.bytes()}});
    }
    block = std::move(next);
    d_block = std::move(d_next);
  }
  d_attended.reset();
  dots.reset();
  lse.reset();
  qkv.reset();
  DeviceBuffer<T> d_qkv = activations<T>(context, rows, shape.qkv_width(), "qkv gradient");
  round_columns<T>(context, d_q.data(), d_qkv.data(), shape.qkv_width(), rows, shape.width);
  round_columns<T>(context, d_block.data(), d_qkv.data() + shape.width, shape.qkv_width(), rows, shape.kv_width());
  return d_qkv;
}

// ---- Ulysses

namespace {

// Columns of a row of all heads that go to one rank, and where they are in a row of its own heads.
struct HeadColumns {
  std::size_t in_all, in_own, count;
};
std::vector<HeadColumns> head_columns(const AttentionShape& of_rows, const TokenRanks& ranks, HeadRows which,
                                      std::size_t rank) {
  const std::size_t depth = of_rows.depth();
  const std::size_t queries = of_rows.heads / ranks.ranks * depth;
  const std::size_t keys = of_rows.keys() / ranks.ranks * depth;
  std::vector<HeadColumns> columns{{rank * queries, 0, queries}};
  if (which == HeadRows::attended) return columns;
  const std::size_t first_key = of_rows.heads * depth;
  const std::size_t first_value = first_key + of_rows.keys() * depth;
  columns.push_back({first_key + rank * keys, queries, keys});
  columns.push_back({first_value + rank * keys, queries + keys, keys});
  return columns;
}

// What of a tensor goes to rank `peer`, or comes from it: of own rows its heads, of own heads its tokens. Side by side it
// is a part of what is exchanged.
template <class T>
struct ExchangedRows {
  const AttentionShape& of_rows;
  const TokenRanks& ranks;
  HeadRows which;
  std::size_t all_columns() const { return which == HeadRows::qkv ? of_rows.qkv_width() : of_rows.width; }
  std::size_t own_columns() const { return all_columns() / ranks.ranks; }
  std::size_t rows() const { return rows_of(of_rows); }
  std::size_t part() const { return rows() * own_columns(); }
  // copy(columns) for each group of heads that goes to rank `rank`.
  template <class Copy>
  void each_columns(std::size_t rank, Copy copy) const {
    for (const HeadColumns& columns : head_columns(of_rows, ranks, which, rank)) copy(columns);
  }
  template <class U>
  RowsAt<U> columns_of_rows(U* data, const HeadColumns& columns) const {
    return side_by_side<U>(data + columns.in_all, all_columns(), rows());
  }
  template <class U>
  RowsAt<U> columns_of_part(U* data, std::size_t peer, const HeadColumns& columns) const {
    return side_by_side<U>(data + peer * part() + columns.in_own, own_columns(), rows());
  }
  template <class U>
  RowsAt<U> whole_part(U* data, std::size_t peer) const {
    return side_by_side<U>(data + peer * part(), own_columns(), rows());
  }
  // The peer's tokens, of all sequences, among all tokens of own heads.
  template <class U>
  RowsAt<U> tokens_of(U* data, std::size_t peer) const {
    return {data + peer * of_rows.seq * own_columns(), own_columns(), of_rows.seq,
            ranks.ranks * of_rows.seq * own_columns()};
  }
  DeviceBuffer<T> exchanged(Context& context, DeviceBuffer<T> own, const char* tag) const {
    DeviceBuffer<T> others = activations<T>(context, own.size(), 1, tag);
    ranks.exchange(context, own.data(), others.data(), part() * sizeof(T));
    return others;
  }
};

}  // namespace

AttentionShape shape_of_heads(const AttentionShape& of_rows, const TokenRanks& ranks) {
  if (!ranks.ulysses()) return of_rows;
  AttentionShape shape = of_rows;
  shape.seq = checked_product(of_rows.seq, ranks.ranks);
  shape.heads = of_rows.heads / ranks.ranks;
  shape.width = of_rows.width / ranks.ranks;
  shape.kv_heads = of_rows.keys() / ranks.ranks;
  return shape;
}

template <class T>
DeviceBuffer<T> rows_to_heads(Context& context, const AttentionShape& of_rows, const TokenRanks& ranks, HeadRows which,
                              DeviceBuffer<T> rows, const char* tag) {
  const ExchangedRows<T> at{of_rows, ranks, which};
  DeviceBuffer<T> own = activations<T>(context, rows.size(), 1, tag);
  for (std::size_t peer = 0; peer < ranks.ranks; ++peer)
    at.each_columns(peer, [&](const HeadColumns& columns) {
      copy_columns<T>(context, at.template columns_of_rows<const T>(rows.data(), columns),
                      at.template columns_of_part<T>(own.data(), peer, columns), at.rows(), columns.count);
    });
  rows.reset();
  DeviceBuffer<T> others = at.exchanged(context, std::move(own), tag);
  DeviceBuffer<T> heads = activations<T>(context, others.size(), 1, tag);
  for (std::size_t peer = 0; peer < ranks.ranks; ++peer)
    copy_columns<T>(context, at.template whole_part<const T>(others.data(), peer),
                    at.template tokens_of<T>(heads.data(), peer), at.rows(), at.own_columns());
  return heads;
}

template <class T>
DeviceBuffer<T> heads_to_rows(Context& context, const AttentionShape& of_rows, const TokenRanks& ranks, HeadRows which,
                              DeviceBuffer<T> heads, const char* tag) {
  const ExchangedRows<T> at{of_rows, ranks, which};
  DeviceBuffer<T> own = activations<T>(context, heads.size(), 1, tag);
  for (std::size_t peer = 0; peer < ranks.ranks; ++peer)
    copy_columns<T>(context, at.template tokens_of<const T>(heads.data(), peer),
                    at.template whole_part<T>(own.data(), peer), at.rows(), at.own_columns());
  heads.reset();
  DeviceBuffer<T> others = at.exchanged(context, std::move(own), tag);
  DeviceBuffer<T> rows = activations<T>(context, others.size(), 1, tag);
  for (std::size_t peer = 0; peer < ranks.ranks; ++peer)
    at.each_columns(peer, [&](const HeadColumns& columns) {
      copy_columns<T>(context, at.template columns_of_part<const T>(others.data(), peer, columns),
                      at.template columns_of_rows<T>(rows.data(), columns), at.rows(), columns.count);
    });
  return rows;
}

#define OOMLAB_CONTEXT(T)                                                                                        \
  template DeviceBuffer<T> ring_attention_forward(Context&, const AttentionShape&, const TokenRanks&, const T*,  \
                                                  float*);                                                       \
  template DeviceBuffer<T> ring_attention_backward(Context&, const AttentionShape&, const TokenRanks&,           \
                                                   DeviceBuffer<T>&, DeviceBuffer<float>&, DeviceBuffer<float>&, \
                                                   DeviceBuffer<T>);                                             \
  template DeviceBuffer<T> rows_to_heads(Context&, const AttentionShape&, const TokenRanks&, HeadRows,           \
                                         DeviceBuffer<T>, const char*);                                          \
  template DeviceBuffer<T> heads_to_rows(Context&, const AttentionShape&, const TokenRanks&, HeadRows,           \
                                         DeviceBuffer<T>, const char*);
OOMLAB_FOR_EACH_TYPE(OOMLAB_CONTEXT)

}  // namespace oomlab::nn
