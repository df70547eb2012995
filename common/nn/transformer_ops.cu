#include "nn/transformer_ops.h"

#include <cmath>

#include "nn/instances.h"
#include "nn/kernel.h"

namespace oomlab::nn {

// ------------------------------------------------------------------------------------------------------------ residual

namespace {

template <class T>
__global__ void add_residual_kernel(const T* x, const T* y, const T* bias, T* out, std::size_t rows, std::size_t width,
                                    bool packs) {
  for (std::size_t row : row_range(rows))
    for_packs<T>(BlockRange{}, width, packs, [&](auto v, std::size_t i) {
      using V = decltype(v);
      v = load<V>(x + row * width, i);
      const V w = load<V>(y + row * width, i);
      V b{};
      if (bias) b = load<V>(bias, i);
      each_lane<V>([&](std::size_t k) {
        v[k] = static_cast<T>(static_cast<float>(v[k]) + (static_cast<float>(w[k]) + static_cast<float>(b[k])));
      });
      store(out + row * width, i, v);
    });
}

}  // namespace

template <class T>
void add_residual(Context& context, const T* x, const T* y, const std::type_identity_t<T>* bias, T* out,
                  std::size_t rows, std::size_t width) {
  launch(add_residual_kernel<T>, shape_for_packed_rows<T>(rows, width), context.stream(), x, y, bias, out, rows, width,
         packs_fit<T>(width, x, y, bias, out));
}

// ------------------------------------------------------------------------------------------------------------- softmax

namespace {

template <class T, bool kPacks>
__device__ float block_max_over(const T* x, std::size_t n) {
  constexpr std::size_t lanes = kLanes<T>;
  float largest[lanes];
  for (std::size_t k = 0; k < lanes; ++k) largest[k] = -INFINITY;
  for (std::size_t i : block_range(n / lanes)) {
    float v[lanes];
    load_floats<kPacks, lanes>(v, x + i * lanes);
    for (std::size_t k = 0; k < lanes; ++k) largest[k] = largest[k] < v[k] ? v[k] : largest[k];
  }
  float all = largest[0];
  for (std::size_t k = 1; k < lanes; ++k) all = all < largest[k] ? largest[k] : all;
  const std::size_t done = n / lanes * lanes;
  for (std::size_t i : block_range(n - done)) {
    const float v = static_cast<float>(x[done + i]);
    all = all < v ? v : all;
  }
  return block_max(all);
}

// The sum of e^(scale · (x − largest)), which with kStore also takes the place of x.
template <class T, bool kPacks, bool kStore, class X>
__device__ float block_exp_sum(X* x, std::size_t n, float largest, float scale) {
  return block_sum_over<T>(n, [&](auto count, std::size_t i, float* sums) {
    float v[count];
    load_floats<kPacks, count>(v, x + i);
    for (std::size_t k = 0; k < count; ++k) {
      v[k] = exp_of((v[k] - largest) * scale);
      sums[k] += v[k];
    }
    if constexpr (kStore) store_floats<kPacks, count>(x + i, v);
  });
}

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

template <class T, bool kPacks>
__global__ void cross_entropy_gradient_kernel(T* logits, const int* labels, float* row_loss, std::size_t rows,
                                              std::size_t classes, float gradient_scale, const float* device_scale) {
  const float factor = device_scale ? gradient_scale * *device_scale : gradient_scale;
  for (std::size_t row : row_range(rows)) {
    T* line = logits + row * classes;
    const int label = labels[row];
    const bool counts = label >= 0;
    const float largest = block_max_over<T, kPacks>(line, classes);
    const float sum = block_exp_sum<T, kPacks, false>(line, classes, largest, 1.0f);
    const float target = counts ? static_cast<float>(line[label]) - largest : 0.0f;
    const float scale = counts ? factor / sum : 0.0f;
    __syncthreads();  // everybody has read the row
    for_packs<T>(BlockRange{}, classes, kPacks, [&](auto v, std::size_t i) {
      using V = decltype(v);
      v = load<V>(line, i);
      each_lane<V>([&](std::size_t k) { v[k] = static_cast<T>(exp_of(static_cast<float>(v[k]) - largest) * scale); });
      store(line, i, v);
    });
    __syncthreads();
    for ([[maybe_unused]] std::size_t once : block_range(1)) {
      if (counts) line[label] = static_cast<T>((exp_of(target) / sum - 1.0f) * factor);
      row_loss[row] = counts ? logf(sum) - target : 0.0f;
    }
  }
}

template <class T, bool kPacks>
__global__ void cross_entropy_kernel(const T* logits, const int* labels, float* row_loss, std::size_t rows,
                                     std::size_t classes) {
  for (std::size_t row : row_range(rows)) {
    const T* const line = logits + row * classes;
    const int label = labels[row];
    const float largest = block_max_over<T, kPacks>(line, classes);
    const float sum = block_exp_sum<T, kPacks, false>(line, classes, largest, 1.0f);
    for ([[maybe_unused]] std::size_t once : block_range(1))
      row_loss[row] = label >= 0 ? logf(sum) - (static_cast<float>(line[label]) - largest) : 0.0f;
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

template <class T>
void cross_entropy_with_gradient(Context& context, T* logits, const int* labels, float* row_loss, std::size_t rows,
                                 std::size_t classes, float gradient_scale, const float* scale_on_device) {
  launch(
      packs_fit<T>(classes, logits) ? cross_entropy_gradient_kernel<T, true> : cross_entropy_gradient_kernel<T, false>,
      shape_for_packed_rows<T>(rows, classes), context.stream(), logits, labels, row_loss, rows, classes,
      gradient_scale, scale_on_device);
}

template <class T>
void cross_entropy(Context& context, const T* logits, const int* labels, float* row_loss, std::size_t rows,
                   std::size_t classes) {
  launch(packs_fit<T>(classes, logits) ? cross_entropy_kernel<T, true> : cross_entropy_kernel<T, false>,
         shape_for_packed_rows<T>(rows, classes), context.stream(), logits, labels, row_loss, rows, classes);
}

// --------------------------------------------------------------------------------------------------------- instances

#define OOMLAB_INSTANCES(T)                                                                                       \
  template void add_residual<T>(Context&, const T*, const T*, const T*, T*, std::size_t, std::size_t);            \
  template void softmax_forward<T>(Context&, T*, const ScoreTile&, float);                                        \
  template void softmax_backward<T>(Context&, const T*, T*, const ScoreTile&, float);                             \
  template void softmax_forward_backward<T>(Context&, T*, T*, const ScoreTile&, float);                           \
  template void cross_entropy_with_gradient<T>(Context&, T*, const int*, float*, std::size_t, std::size_t, float, \
                                               const float*);                                                     \
  template void cross_entropy<T>(Context&, const T*, const int*, float*, std::size_t, std::size_t);
OOMLAB_FOR_EACH_TYPE(OOMLAB_INSTANCES)

}  // namespace oomlab::nn
