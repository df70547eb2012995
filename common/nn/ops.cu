#include "nn/ops.h"

#include <algorithm>
#include <climits>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "cuda/backend.h"
#include "cuda/check.h"
#include "cuda/dtype_of.h"
#include "nn/activation.h"
#include "nn/column_sum.h"
#include "nn/instances.h"
#include "nn/kernel.h"
#include "plan/interrupt.h"

namespace oomlab::nn {

// ------------------------------------------------------------------------------------------------------------ products

template <class T, class Out>
void gemm_strided(Context& context, bool transpose_a, bool transpose_b, std::size_t m, std::size_t n, std::size_t k,
                  float alpha, Strided<const T> a, Strided<const T> b, float beta, Strided<std::type_identity_t<Out>> c,
                  std::size_t count) {
  check_interrupt();
  context.count_flops(2 * std::uint64_t(m) * n * k * count);
  if (std::max({m, n, k, a.row_stride, b.row_stride, c.row_stride, count}) > INT_MAX) {
    if (planning()) return;
    throw std::length_error("matrix product " + std::to_string(m) + " x " + std::to_string(n) + " x " +
                            std::to_string(k) + " exceeds the 32-bit sizes of cuBLAS");
  }
  if (m == 0 || n == 0 || count == 0) return;
  const auto stride = [](std::size_t elements) { return static_cast<long long>(elements); };
  constexpr cudaDataType of_factors = data_type_of(kDTypeOf<T>);
  constexpr cudaDataType of_sums = data_type_of(kDTypeOf<Out>);
  const bool tf32 = kDTypeOf<T> == DType::fp32 && context.tf32();
  // cuBLAS is column-major, and a row-major matrix read so is its transpose: Cᵀ = op(B)ᵀ op(A)ᵀ.
  CUBLAS_CHECK(cublasGemmStridedBatchedEx(
      context.blas(), transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N,
      static_cast<int>(n), static_cast<int>(m), static_cast<int>(k), &alpha, b.data, of_factors,
      static_cast<int>(b.row_stride), stride(b.matrix_stride), a.data, of_factors, static_cast<int>(a.row_stride),
      stride(a.matrix_stride), &beta, c.data, of_sums, static_cast<int>(c.row_stride), stride(c.matrix_stride),
      static_cast<int>(count), tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

namespace {

template <class T>
__global__ void repeat_row_kernel(const T* __restrict__ row, T* __restrict__ y, std::size_t rows, std::size_t width,
                                  bool packs) {
  for (std::size_t r : row_range(rows)) {
    T* const line = y + r * width;
    for_packs<T>(BlockRange{}, width, packs, [=](auto v, std::size_t i) { store(line, i, load<decltype(v)>(row, i)); });
  }
}

}  // namespace

template <class T>
void linear_bias_forward(Context& context, const T* x, const T* weight, const T* bias, T* y, std::size_t batch,
                         std::size_t in, std::size_t out) {
  launch(repeat_row_kernel<T>, shape_for_packed_rows<T>(batch, out), context.stream(), bias, y, batch, out,
         packs_fit<T>(out, bias, y));
  gemm(context, false, true, batch, out, in, 1.0f, x, weight, 1.0f, y);
}

template <class T>
void linear_backward_weight(Context& context, const T* dy, const T* x, T* dweight, std::type_identity_t<T>* dbias,
                            std::size_t batch, std::size_t in, std::size_t out, bool accumulate) {
  gemm(context, true, false, out, in, batch, 1.0f, dy, x, accumulate ? 1.0f : 0.0f, dweight);
  if (dbias) column_sum(context, dy, dbias, batch, out, accumulate);
}

// --------------------------------------------------------------------------------------------------------- activations

namespace {

// One block a row, so that the bias needs no division to be found. What goes into the activation is rounded to T first,
// kept or not: so the two kernels give the same bits, and the backward pass sees what the forward pass saw.
template <class T, Activation A>
__global__ void bias_activation_kernel(T* y, const T* bias, std::size_t rows, std::size_t width, bool packs) {
  for (std::size_t row : row_range(rows)) {
    T* line = y + row * width;
    if (bias) {
      for_packs<T>(BlockRange{}, width, packs, [&](auto v, std::size_t i) {
        using V = decltype(v);
        v = load<V>(line, i);
        const V b = load<V>(bias, i);
        each_lane<V>([&](std::size_t k) {
          const T z = static_cast<T>(static_cast<float>(v[k]) + static_cast<float>(b[k]));
          v[k] = static_cast<T>(activate<A>(static_cast<float>(z)));
        });
        store(line, i, v);
      });
    } else {
      for_packs<T>(BlockRange{}, width, packs, [&](auto v, std::size_t i) {
        using V = decltype(v);
        v = load<V>(line, i);
        each_lane<V>([&](std::size_t k) { v[k] = static_cast<T>(activate<A>(static_cast<float>(v[k]))); });
        store(line, i, v);
      });
    }
  }
}

template <class T, Activation A, bool kBias>
__global__ void bias_activation_keep_kernel(T* z, const T* bias, T* y, std::size_t rows, std::size_t width,
                                            bool packs) {
  for (std::size_t row : row_range(rows)) {
    T* const kept = z + row * width;
    T* const out = y + row * width;
    for_packs<T>(BlockRange{}, width, packs, [=](auto v, std::size_t i) {
      using V = decltype(v);
      v = load<V>(kept, i);
      if constexpr (kBias) {
        const V b = load<V>(bias, i);
        each_lane<V>(
            [&](std::size_t k) { v[k] = static_cast<T>(static_cast<float>(v[k]) + static_cast<float>(b[k])); });
      }
      V a;
      each_lane<V>([&](std::size_t k) { a[k] = static_cast<T>(activate<A>(static_cast<float>(v[k]))); });
      store(out, i, a);
      if constexpr (kBias) store(kept, i, v);
    });
  }
}

// dz takes the place of dy, or of what was saved: `into`. The other one is only read.
template <class T, Activation A, bool kIntoSaved>
__global__ void activation_backward_kernel(T* __restrict__ into, const T* __restrict__ other, std::size_t count,
                                           bool packs) {
  for_packs<T>(GridRange{}, count, packs, [&](auto d, std::size_t i) {
    using V = decltype(d);
    d = load<V>(kIntoSaved ? other : into, i);
    const V s = load<V>(kIntoSaved ? into : other, i);
    each_lane<V>([&](std::size_t k) {
      d[k] = static_cast<T>(static_cast<float>(d[k]) * derivative<A>(static_cast<float>(s[k])));
    });
    store(into, i, d);
  });
}

}  // namespace

template <class T>
void bias_activation(Context& context, T* y, const std::type_identity_t<T>* bias, std::size_t rows, std::size_t width,
                     Activation activation) {
  if (!bias && activation == Activation::none) return;
  const auto kernel =
      with_activation(activation, []<Activation A>(ActivationConstant<A>) { return bias_activation_kernel<T, A>; });
  launch(kernel, shape_for_packed_rows<T>(rows, width), context.stream(), y, bias, rows, width,
         packs_fit<T>(width, y, bias));
}

template <class T>
void bias_activation_keep(Context& context, T* z, const std::type_identity_t<T>* bias, T* y, std::size_t rows,
                          std::size_t width, Activation activation) {
  const auto kernel = with_activation(activation, [&]<Activation A>(ActivationConstant<A>) {
    return bias ? bias_activation_keep_kernel<T, A, true> : bias_activation_keep_kernel<T, A, false>;
  });
  launch(kernel, shape_for_packed_rows<T>(rows, width), context.stream(), z, bias, y, rows, width,
         packs_fit<T>(width, z, bias, y));
}

template <class T>
void activation_backward(Context& context, T* dy, const std::type_identity_t<T>* saved, std::size_t count,
                         Activation activation) {
  with_activation(activation, [&]<Activation A>(ActivationConstant<A>) {
    if constexpr (A != Activation::none)
      launch(activation_backward_kernel<T, A, false>, shape_for_items(count / Pack<T>::size), context.stream(), dy,
             saved, count, aligned_for_packs(dy, saved));
  });
}

template <class T>
void gelu_backward_over(Context& context, const T* dy, T* z, std::size_t count) {
  launch(activation_backward_kernel<T, Activation::gelu, true>, shape_for_items(count / Pack<T>::size),
         context.stream(), z, dy, count, aligned_for_packs(dy, z));
}

// --------------------------------------------------------------------------------------------------------- column sums

namespace {

template <class T, bool kPacks>
struct ColumnsOf {
  const T* x;
  std::size_t width;
  __device__ float at(std::size_t row, std::size_t column) const { return static_cast<float>(x[row * width + column]); }
  __device__ void add_cell_row(float* sum, std::size_t row, std::size_t column) const {
    float v[kCell];
    load_floats<kPacks, kCell>(v, x + row * width + column);
    for (std::size_t k = 0; k < kCell; ++k) sum[k] += v[k];
  }
};

}  // namespace

template <class T>
void column_sum(Context& context, const T* x, std::type_identity_t<T>* sums, std::size_t rows, std::size_t width,
                bool accumulate) {
  if (packs_fit<T>(width, x))
    launch_column_sum(context, ColumnsOf<T, true>{x, width}, sums, rows, width, accumulate);
  else
    launch_column_sum(context, ColumnsOf<T, false>{x, width}, sums, rows, width, accumulate);
}

// ---------------------------------------------------------------------------------------------------------------- loss

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

// ----------------------------------------------------------------------------------------------------------- instances

#define OOMLAB_INSTANCES(T)                                                                                            \
  template void gemm_strided<T, T>(Context&, bool, bool, std::size_t, std::size_t, std::size_t, float,                 \
                                   Strided<const T>, Strided<const T>, float, Strided<T>, std::size_t);                \
  template void linear_bias_forward<T>(Context&, const T*, const T*, const T*, T*, std::size_t, std::size_t,           \
                                       std::size_t);                                                                   \
  template void linear_backward_weight<T>(Context&, const T*, const T*, T*, T*, std::size_t, std::size_t, std::size_t, \
                                          bool);                                                                       \
  template void bias_activation<T>(Context&, T*, const T*, std::size_t, std::size_t, Activation);                      \
  template void bias_activation_keep<T>(Context&, T*, const T*, T*, std::size_t, std::size_t, Activation);             \
  template void activation_backward<T>(Context&, T*, const T*, std::size_t, Activation);                               \
  template void gelu_backward_over<T>(Context&, const T*, T*, std::size_t);                                            \
  template void column_sum<T>(Context&, const T*, T*, std::size_t, std::size_t, bool);
OOMLAB_FOR_EACH_TYPE(OOMLAB_INSTANCES)
#define OOMLAB_WIDER(T)                                                                                    \
  template void gemm_strided<T, float>(Context&, bool, bool, std::size_t, std::size_t, std::size_t, float, \
                                       Strided<const T>, Strided<const T>, float, Strided<float>, std::size_t);
OOMLAB_WIDER(__half)
OOMLAB_WIDER(__nv_bfloat16)
#undef OOMLAB_WIDER

}  // namespace oomlab::nn
