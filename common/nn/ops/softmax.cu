#include "nn/ops/softmax.h"

#include <type_traits>

#include "nn/ops/instances.h"
#include "nn/ops/kernel.h"
#include "nn/ops/softmax_row.h"

namespace oomlab::nn {

namespace {

// softmax(scale · line) over what is seen, in place; the rest becomes 0.
template <class T, bool kPacks>
__device__ void softmax_row(T* line, std::size_t columns, std::size_t seen, float scale) {
  constexpr bool kOnce = std::is_same_v<T, float>;  // in 16 bits what lies in between would be rounded once more
  const float largest = block_max_over<T, kPacks>(line, seen);
  // A sum of all threads' is there when all of them have read and stored theirs: from here on anybody may take them.
  const float inverse = 1.0f / block_exp_sum<T, kPacks, kOnce>(line, seen, largest, scale);
  for_packs<T>(BlockRange{}, seen, kPacks, [&](auto v, std::size_t i) {
    using V = decltype(v);
    v = load<V>(line, i);
    each_lane<V>([&](std::size_t k) {
      const float value = static_cast<float>(v[k]);
      v[k] = static_cast<T>((kOnce ? value : exp_of((value - largest) * scale)) * inverse);
    });
    store(line, i, v);
  });
  for (std::size_t i : block_range(columns - seen)) line[seen + i] = static_cast<T>(0.0f);
}

// line = scale · p · (line − Σ p line). Where p is 0 because it is masked, the line is not read into the sum.
template <class T, bool kPacks>
__device__ void softmax_gradient_row(const T* p_line, T* line, std::size_t columns, std::size_t seen, float scale) {
  // When this sum is there, all threads have read the row.
  const float common = block_sum_over<T>(seen, [&](auto count, std::size_t i, float* sums) {
    float a[count], b[count];
    load_floats<kPacks, count>(a, p_line + i);
    load_floats<kPacks, count>(b, line + i);
    for (std::size_t k = 0; k < count; ++k) sums[k] += a[k] * b[k];
  });
  for_packs<T>(BlockRange{}, seen, kPacks, [&](auto d, std::size_t i) {
    using V = decltype(d);
    d = load<V>(line, i);
    const V v = load<V>(p_line, i);
    each_lane<V>([&](std::size_t k) {
      d[k] = static_cast<T>(static_cast<float>(v[k]) * (static_cast<float>(d[k]) - common) * scale);
    });
    store(line, i, d);
  });
  for (std::size_t i : block_range(columns - seen)) line[seen + i] = static_cast<T>(0.0f);
}

__device__ inline std::size_t seen_in_row(const ScoreTile& tile, std::size_t row) {
  return tile.causal ? tile.first + row % tile.rows + 1 : tile.columns;
}

template <class T, bool kPacks>
__global__ void softmax_kernel(T* x, ScoreTile tile, float scale) {
  for (std::size_t row : row_range(tile.matrices * tile.rows))
    softmax_row<T, kPacks>(x + row * tile.columns, tile.columns, seen_in_row(tile, row), scale);
}

template <class T, bool kPacks>
__global__ void softmax_backward_kernel(const T* p, T* dp, ScoreTile tile, float scale) {
  for (std::size_t row : row_range(tile.matrices * tile.rows))
    softmax_gradient_row<T, kPacks>(p + row * tile.columns, dp + row * tile.columns, tile.columns,
                                    seen_in_row(tile, row), scale);
}

template <class T, bool kPacks>
__global__ void softmax_both_kernel(T* x, T* dp, ScoreTile tile, float scale) {
  for (std::size_t row : row_range(tile.matrices * tile.rows)) {
    const std::size_t at = row * tile.columns, seen = seen_in_row(tile, row);
    softmax_row<T, kPacks>(x + at, tile.columns, seen, scale);
    __syncthreads();  // every probability of the row is there
    softmax_gradient_row<T, kPacks>(x + at, dp + at, tile.columns, seen, scale);
  }
}

}  // namespace

template <class T>
void softmax_forward(Context& context, T* x, const ScoreTile& tile, float scale) {
  launch(packs_fit<T>(tile.columns, x) ? softmax_kernel<T, true> : softmax_kernel<T, false>,
         shape_for_packed_rows<T>(checked_product(tile.matrices, tile.rows), tile.columns), context.stream(), x, tile,
         scale);
}

template <class T>
void softmax_forward_backward(Context& context, T* x, T* dp, const ScoreTile& tile, float scale) {
  launch(packs_fit<T>(tile.columns, x, dp) ? softmax_both_kernel<T, true> : softmax_both_kernel<T, false>,
         shape_for_packed_rows<T>(checked_product(tile.matrices, tile.rows), tile.columns), context.stream(), x, dp,
         tile, scale);
}

template <class T>
void softmax_backward(Context& context, const T* p, T* dp, const ScoreTile& tile, float scale) {
  launch(packs_fit<T>(tile.columns, p, dp) ? softmax_backward_kernel<T, true> : softmax_backward_kernel<T, false>,
         shape_for_packed_rows<T>(checked_product(tile.matrices, tile.rows), tile.columns), context.stream(), p, dp,
         tile, scale);
}

#define OOMLAB_INSTANCES(T)                                                           \
  template void softmax_forward<T>(Context&, T*, const ScoreTile&, float);            \
  template void softmax_backward<T>(Context&, const T*, T*, const ScoreTile&, float); \
  template void softmax_forward_backward<T>(Context&, T*, T*, const ScoreTile&, float);
OOMLAB_FOR_EACH_TYPE(OOMLAB_INSTANCES)

}  // namespace oomlab::nn
