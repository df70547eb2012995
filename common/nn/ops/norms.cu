// Layer norm and RMS norm.

#include "nn/ops/norms.h"

#include <cmath>

#include "nn/ops/column_sum.h"
#include "nn/ops/column_sum_kernel.h"
#include "nn/ops/instances.h"
#include "nn/ops/kernel.h"

namespace oomlab::nn {

namespace {

constexpr float kEpsilon = 1e-5f;

// An RMS norm is a layer norm that subtracts no mean and adds no beta.
struct LayerNorm {};
struct RmsNorm {};
template <class N>
inline constexpr bool kCentred = std::is_same_v<N, LayerNorm>;

// What a row is walked in: where packs fit, they fill it.
template <class T, bool kPacks>
using Step = std::conditional_t<kPacks, Pack<T>, Single<T>>;

// The row's normalised and scaled values, from its statistics.
template <class T, class N, bool kPacks>
__device__ void normalise(const T* x, const T* gamma, const T* beta, T* y, std::size_t width, float mean, float rstd) {
  using V = Step<T, kPacks>;
  for (std::size_t i : block_range(width / V::size)) {
    V v = load<V>(x, i);
    const V g = load<V>(gamma, i);
    V b{};
    if constexpr (kCentred<N>) b = load<V>(beta, i);
    each_lane<V>([&](std::size_t k) {
      const float value = static_cast<float>(v[k]), factor = static_cast<float>(g[k]);
      if constexpr (kCentred<N>)
        v[k] = static_cast<T>(fmaf((value - mean) * rstd, factor, static_cast<float>(b[k])));
      else
        v[k] = static_cast<T>(value * rstd * factor);
    });
    store(y, i, v);
  }
}

// The sum of the squared distances from `mean`.
template <class T, bool kPacks>
__device__ float block_sum_of_squares(const T* x, std::size_t width, float mean) {
  return block_sum_over<T>(width, [&](auto count, std::size_t i, float* sums) {
    float v[count];
    load_floats<kPacks, count>(v, x + i);
    for (std::size_t k = 0; k < count; ++k) sums[k] += (v[k] - mean) * (v[k] - mean);
  });
}

// `mean_out` and `rstd_out` may be null.
template <class T, bool kPacks>
__global__ void layer_norm_kernel(const T* x, const T* gamma, const T* beta, T* y, float* mean_out, float* rstd_out,
                                  std::size_t rows, std::size_t width) {
  for (std::size_t row : row_range(rows)) {
    const T* from = x + row * width;
    const float mean = block_sum_over<T>(width,
                                         [&](auto count, std::size_t i, float* sums) {
                                           float v[count];
                                           load_floats<kPacks, count>(v, from + i);
                                           for (std::size_t k = 0; k < count; ++k) sums[k] += v[k];
                                         }) /
                       static_cast<float>(width);
    const float variance = block_sum_of_squares<T, kPacks>(from, width, mean) / static_cast<float>(width);
    const float rstd = 1.0f / sqrtf(variance + kEpsilon);
    if (y) normalise<T, LayerNorm, kPacks>(from, gamma, beta, y + row * width, width, mean, rstd);
    for ([[maybe_unused]] std::size_t once : block_range(1)) {
      if (mean_out) mean_out[row] = mean;
      if (rstd_out) rstd_out[row] = rstd;
    }
  }
}

// `rstd_out` may be null.
template <class T, bool kPacks>
__global__ void rms_norm_kernel(const T* x, const T* gamma, T* y, float* rstd_out, std::size_t rows, std::size_t width,
                                float epsilon) {
  for (std::size_t row : row_range(rows)) {
    const T* from = x + row * width;
    const float square = block_sum_of_squares<T, kPacks>(from, width, 0.0f) / static_cast<float>(width);
    const float rstd = 1.0f / sqrtf(square + epsilon);
    normalise<T, RmsNorm, kPacks>(from, gamma, nullptr, y + row * width, width, 0.0f, rstd);
    if (rstd_out)
      for ([[maybe_unused]] std::size_t once : block_range(1)) rstd_out[row] = rstd;
  }
}

// Of an RMS norm mean and beta are null.
template <class T, class N, bool kPacks>
__global__ void norm_recompute_kernel(const T* x, const float* mean, const float* rstd, const T* gamma, const T* beta,
                                      T* y, std::size_t rows, std::size_t width) {
  for (std::size_t row : row_range(rows)) {
    const float centre = kCentred<N> ? mean[row] : 0.0f;
    normalise<T, N, kPacks>(x + row * width, gamma, beta, y + row * width, width, centre, rstd[row]);
  }
}

// A thread has more values in flight here than the registers of 1,024 threads hold.
constexpr unsigned kNormBackwardThreads = 512;

// With g = dy · gamma and h = (x − mean) · rstd:  dx = rstd · (g − mean(g) − h · mean(g · h)). Of an RMS norm mean and
// mean(g) are 0.
template <class T, class N, bool kPacks>
__global__ void __launch_bounds__(kNormBackwardThreads)
    norm_backward_kernel(const T* dy, const T* x, const float* mean_in, const float* rstd_in, const T* gamma, T* dx,
                         std::size_t rows, std::size_t width, bool add) {
  for (std::size_t row : row_range(rows)) {
    const std::size_t at = row * width;
    const float rstd = rstd_in[row], share = 1.0f / static_cast<float>(width);
    float mean = 0.0f, g_mean = 0.0f;
    if constexpr (kCentred<N>) {
      mean = mean_in[row];
      g_mean = share * block_sum_over<T>(width, [&](auto count, std::size_t i, float* sums) {
                 float d[count], g[count];
                 load_floats<kPacks, count>(d, dy + at + i);
                 load_floats<kPacks, count>(g, gamma + i);
                 for (std::size_t k = 0; k < count; ++k) sums[k] += d[k] * g[k];
               });
    }
    const float gh_mean = share * block_sum_over<T>(width, [&](auto count, std::size_t i, float* sums) {
                            float d[count], v[count];
                            load_floats<kPacks, count>(d, dy + at + i);
                            load_floats<kPacks, count>(v, gamma + i);
                            for (std::size_t k = 0; k < count; ++k) d[k] *= v[k];
                            load_floats<kPacks, count>(v, x + at + i);
                            for (std::size_t k = 0; k < count; ++k) sums[k] += d[k] * ((v[k] - mean) * rstd);
                          });
    // dx may be dy: a sum of all threads' is there when all of them have read theirs.
    using V = Step<T, kPacks>;
    for (std::size_t i : block_range(width / V::size)) {
      V d = load<V>(dy + at, i);
      const V g = load<V>(gamma, i), v = load<V>(x + at, i);
      V old{};
      if (add) old = load<V>(dx + at, i);
      each_lane<V>([&](std::size_t k) {
        const float hat = (static_cast<float>(v[k]) - mean) * rstd;
        const float own = rstd * (static_cast<float>(d[k]) * static_cast<float>(g[k]) - g_mean - hat * gh_mean);
        d[k] = static_cast<T>(add ? static_cast<float>(old[k]) + own : own);
      });
      store(dx + at, i, d);
    }
  }
}

// dy · (x − mean) · rstd.
template <class T, class N, bool kPacks>
struct NormColumns {
  const T *dy, *x;
  const float *mean, *rstd;
  std::size_t width;
  __device__ float centre(std::size_t row) const { return kCentred<N> ? mean[row] : 0.0f; }
  __device__ float at(std::size_t row, std::size_t column) const {
    const std::size_t i = row * width + column;
    return static_cast<float>(dy[i]) * (static_cast<float>(x[i]) - centre(row)) * rstd[row];
  }
  __device__ void add_cell_row(float* sum, std::size_t row, std::size_t column) const {
    float d[kCell], v[kCell];
    load_floats<kPacks, kCell>(d, dy + row * width + column);
    load_floats<kPacks, kCell>(v, x + row * width + column);
    const float m = centre(row), r = rstd[row];
    for (std::size_t k = 0; k < kCell; ++k) sum[k] += d[k] * (v[k] - m) * r;
  }
};

template <class N, class T>
void norm_backward_gamma(Context& context, const T* dy, const T* x, const float* mean, const float* rstd, T* dgamma,
                         std::size_t rows, std::size_t width, bool accumulate) {
  if (packs_fit<T>(width, dy, x))
    launch_column_sum(context, NormColumns<T, N, true>{dy, x, mean, rstd, width}, dgamma, rows, width, accumulate);
  else
    launch_column_sum(context, NormColumns<T, N, false>{dy, x, mean, rstd, width}, dgamma, rows, width, accumulate);
}

}  // namespace

template <class T>
void layer_norm_forward(Context& context, const T* x, const T* gamma, const T* beta, std::type_identity_t<T>* y,
                        float* mean, float* rstd, std::size_t rows, std::size_t width) {
  const auto kernel = packs_fit<T>(width, x, gamma, beta, y) ? layer_norm_kernel<T, true> : layer_norm_kernel<T, false>;
  launch(kernel, shape_for_packed_rows<T>(rows, width), context.stream(), x, gamma, beta, y, mean, rstd, rows, width);
}

template <class T>
void layer_norm_recompute(Context& context, const T* x, const float* mean, const float* rstd, const T* gamma,
                          const T* beta, T* y, std::size_t rows, std::size_t width) {
  const auto kernel = packs_fit<T>(width, x, gamma, beta, y) ? norm_recompute_kernel<T, LayerNorm, true>
                                                             : norm_recompute_kernel<T, LayerNorm, false>;
  launch(kernel, shape_for_packed_rows<T>(rows, width), context.stream(), x, mean, rstd, gamma, beta, y, rows, width);
}

template <class T>
void layer_norm_backward_input(Context& context, const T* dy, const T* x, const float* mean, const float* rstd,
                               const T* gamma, T* dx, std::size_t rows, std::size_t width, bool add) {
  const auto kernel = packs_fit<T>(width, dy, x, gamma, dx) ? norm_backward_kernel<T, LayerNorm, true>
                                                            : norm_backward_kernel<T, LayerNorm, false>;
  launch(kernel, at_most(kNormBackwardThreads, shape_for_packed_rows<T>(rows, width)), context.stream(), dy, x, mean,
         rstd, gamma, dx, rows, width, add);
}

template <class T>
void layer_norm_backward_weight(Context& context, const T* dy, const T* x, const float* mean, const float* rstd,
                                T* dgamma, T* dbeta, std::size_t rows, std::size_t width, bool accumulate) {
  norm_backward_gamma<LayerNorm>(context, dy, x, mean, rstd, dgamma, rows, width, accumulate);
  column_sum(context, dy, dbeta, rows, width, accumulate);
}

template <class T>
void rms_norm_forward(Context& context, const T* x, const T* gamma, T* y, float* rstd, std::size_t rows,
                      std::size_t width, float epsilon) {
  launch(packs_fit<T>(width, x, gamma, y) ? rms_norm_kernel<T, true> : rms_norm_kernel<T, false>,
         shape_for_packed_rows<T>(rows, width), context.stream(), x, gamma, y, rstd, rows, width, epsilon);
}

template <class T>
void rms_norm_recompute(Context& context, const T* x, const float* rstd, const T* gamma, T* y, std::size_t rows,
                        std::size_t width) {
  const auto kernel = packs_fit<T>(width, x, gamma, y) ? norm_recompute_kernel<T, RmsNorm, true>
                                                       : norm_recompute_kernel<T, RmsNorm, false>;
  launch(kernel, shape_for_packed_rows<T>(rows, width), context.stream(), x, static_cast<const float*>(nullptr), rstd,
         gamma, static_cast<const T*>(nullptr), y, rows, width);
}

template <class T>
void rms_norm_backward_input(Context& context, const T* dy, const T* x, const float* rstd, const T* gamma, T* dx,
                             std::size_t rows, std::size_t width, bool add) {
  const auto kernel = packs_fit<T>(width, dy, x, gamma, dx) ? norm_backward_kernel<T, RmsNorm, true>
                                                            : norm_backward_kernel<T, RmsNorm, false>;
  launch(kernel, at_most(kNormBackwardThreads, shape_for_packed_rows<T>(rows, width)), context.stream(), dy, x,
         static_cast<const float*>(nullptr), rstd, gamma, dx, rows, width, add);
}

template <class T>
void rms_norm_backward_weight(Context& context, const T* dy, const T* x, const float* rstd, T* dgamma, std::size_t rows,
                              std::size_t width, bool accumulate) {
  norm_backward_gamma<RmsNorm>(context, dy, x, nullptr, rstd, dgamma, rows, width, accumulate);
}

#define OOMLAB_NORMS(T)                                                                                               \
  template void layer_norm_forward<T>(Context&, const T*, const T*, const T*, T*, float*, float*, std::size_t,        \
                                      std::size_t);                                                                   \
  template void layer_norm_recompute<T>(Context&, const T*, const float*, const float*, const T*, const T*, T*,       \
                                        std::size_t, std::size_t);                                                    \
  template void layer_norm_backward_input<T>(Context&, const T*, const T*, const float*, const float*, const T*, T*,  \
                                             std::size_t, std::size_t, bool);                                         \
  template void layer_norm_backward_weight<T>(Context&, const T*, const T*, const float*, const float*, T*, T*,       \
                                              std::size_t, std::size_t, bool);                                        \
  template void rms_norm_forward<T>(Context&, const T*, const T*, T*, float*, std::size_t, std::size_t, float);       \
  template void rms_norm_recompute<T>(Context&, const T*, const float*, const T*, T*, std::size_t, std::size_t);      \
  template void rms_norm_backward_input<T>(Context&, const T*, const T*, const float*, const T*, T*, std::size_t,     \
                                           std::size_t, bool);                                                        \
  template void rms_norm_backward_weight<T>(Context&, const T*, const T*, const float*, T*, std::size_t, std::size_t, \
                                            bool);
OOMLAB_FOR_EACH_TYPE(OOMLAB_NORMS)

}  // namespace oomlab::nn
