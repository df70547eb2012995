#include "nn/ops/loss.h"

#include <climits>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "nn/ops/instances.h"
#include "nn/ops/kernel.h"
#include "nn/ops/softmax_row.h"

namespace oomlab::nn {

namespace {

// Floats in their order as integers, and back: of integers a compiler vectorises the maximum. A positive NaN is
// above all numbers.
__device__ inline std::int32_t order_of(float x) {
  std::int32_t bits;
  memcpy(&bits, &x, sizeof x);
  return bits ^ ((bits >> 31) & INT_MAX);
}
__device__ inline float float_of(std::int32_t order) {
  order ^= (order >> 31) & INT_MAX;
  float x;
  memcpy(&x, &order, sizeof x);
  return x;
}

__device__ inline float block_max_of(const float* x, std::size_t n, bool packs) {
  std::int32_t largest = order_of(-INFINITY);
  for_packs(BlockRange{}, n, packs, [&](auto v, std::size_t i) {
    using V = decltype(v);
    v = load<V>(x, i);
    each_lane<V>([&](std::size_t k) {
      const std::int32_t order = order_of(v[k]);
      largest = largest < order ? order : largest;
    });
  });
  return float_of(block_max(largest));
}

// Copied in packs: as one object, a compiler for the host copies them through the stack.
template <bool kPacks>
__device__ void copy_lanes(float* to, const float* from) {
  using V = std::conditional_t<kPacks, Pack<float>, Single<float>>;
  for (std::size_t p = 0; p < kLanes<float> / V::size; ++p) store(to, p, load<V>(from, p));
}

// The sum of f(x[i]) over the row, for all threads of the block; with kStore, f(x[i]) also replaces x[i].
template <bool kPacks, bool kStore, class X, class F>
__device__ float block_sum_of(X* x, std::size_t n, F f) {
  float sums[kLanes<float>];
  for (std::size_t k = 0; k < kLanes<float>; ++k) sums[k] = 0.0f;
  for (std::size_t i : block_range(n / kLanes<float>)) {
    alignas(Pack<float>) float v[kLanes<float>];
    copy_lanes<kPacks>(v, x + i * kLanes<float>);
    for (std::size_t k = 0; k < kLanes<float>; ++k) {
      v[k] = f(v[k]);
      sums[k] += v[k];
    }
    if constexpr (kStore) copy_lanes<kPacks>(x + i * kLanes<float>, v);
  }
  float all = 0.0f;
  for (std::size_t k = 0; k < kLanes<float>; ++k) all += sums[k];
  const std::size_t done = n / kLanes<float> * kLanes<float>;
  for (std::size_t i : block_range(n - done)) {
    const float v = f(x[done + i]);
    all += v;
    if constexpr (kStore) x[done + i] = v;
  }
  return block_sum(all);
}

template <bool kPacks>
__global__ void softmax_cross_entropy_kernel(float* logits, const int* labels, float* row_loss, std::size_t rows,
                                             std::size_t classes, float gradient_scale) {
  for (std::size_t row : row_range(rows)) {
    float* x = logits + row * classes;
    const float largest = block_max_of(x, classes, kPacks);
    const float target = x[labels[row]] - largest;
    __syncthreads();  // everybody has read the target and the largest; now x is overwritten
    // When the sum is there, all threads have stored their part of x, which is walked in another way from here on.
    const float sum = block_sum_of<kPacks, true>(x, classes, [&](float value) { return exp_of(value - largest); });
    const float scale = gradient_scale / sum;
    for_packs(BlockRange{}, classes, kPacks, [&](auto v, std::size_t i) {
      using V = decltype(v);
      v = load<V>(x, i);
      each_lane<V>([&](std::size_t k) { v[k] *= scale; });
      store(x, i, v);
    });
    __syncthreads();
    for ([[maybe_unused]] std::size_t once : block_range(1)) {
      x[labels[row]] = (exp_of(target) / sum - 1.0f) * gradient_scale;
      row_loss[row] = logf(sum) - target;
    }
  }
}

// One block: the vector is short, and one order of addition is enough.
__global__ void scaled_sum_kernel(const float* x, std::size_t count, float scale, float* total, bool accumulate) {
  const float sum = block_sum_of<false, false>(x, count, [](float value) { return value; });
  for ([[maybe_unused]] std::size_t once : block_range(1)) *total = (accumulate ? *total : 0.0f) + scale * sum;
}

__global__ void count_correct_kernel(const float* logits, const int* labels, std::size_t rows, std::size_t classes,
                                     unsigned long long* correct, bool accumulate) {
  unsigned long long hits = 0;
  for (std::size_t row : block_range(rows)) {
    const float* x = logits + row * classes;
    std::size_t best = 0;
    for (std::size_t i = 1; i < classes; ++i)
      if (x[best] < x[i]) best = i;
    hits += best == static_cast<std::size_t>(labels[row]);
  }
  hits = block_sum(hits);
  for ([[maybe_unused]] std::size_t once : block_range(1)) *correct = (accumulate ? *correct : 0) + hits;
}

}  // namespace

void softmax_cross_entropy(Context& context, float* logits, const int* labels, float* row_loss, std::size_t rows,
                           std::size_t classes, float gradient_scale) {
  const auto kernel = classes % 4 == 0 && aligned_for_packs(logits) ? softmax_cross_entropy_kernel<true>
                                                                    : softmax_cross_entropy_kernel<false>;
  launch(kernel, shape_for_short_rows(rows, classes / 4), context.stream(), logits, labels, row_loss, rows, classes,
         gradient_scale);
}

void scaled_sum(Context& context, const float* x, std::size_t count, float scale, float* total, bool accumulate) {
  launch(scaled_sum_kernel, shape_for_rows(1), context.stream(), x, count, scale, total, accumulate);
}

void count_correct(Context& context, const float* logits, const int* labels, std::size_t rows, std::size_t classes,
                   unsigned long long* correct, bool accumulate) {
  launch(count_correct_kernel, shape_for_rows(1), context.stream(), logits, labels, rows, classes, correct, accumulate);
}

// ------------------------------------------------------------------------------------------ in any of the types

namespace {

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

#define OOMLAB_INSTANCES(T)                                                                                       \
  template void cross_entropy_with_gradient<T>(Context&, T*, const int*, float*, std::size_t, std::size_t, float, \
                                               const float*);                                                     \
  template void cross_entropy<T>(Context&, const T*, const int*, float*, std::size_t, std::size_t);
OOMLAB_FOR_EACH_TYPE(OOMLAB_INSTANCES)

}  // namespace oomlab::nn
