#include "nn/ops/batch_norm.h"

#include <stdexcept>

#include "nn/ops/activation_math.h"
#include "nn/ops/column_sum_kernel.h"
#include "nn/ops/instances.h"
#include "nn/ops/kernel.h"

namespace oomlab::nn {

namespace {

// What a channel's statistics add up, scaled so that the sum is a mean.
enum class Statistic { mean, variance };
template <class T, Statistic kStatistic, bool kPacks>
struct StatisticColumns {
  const T* x;
  const float* mean;  // for the variance: subtracting it first keeps a small variance beside a large mean
  std::size_t width;
  float scale;

  __device__ float of(float value, std::size_t column) const {
    if constexpr (kStatistic == Statistic::mean) return value * scale;
    const float distance = value - mean[column];
    return distance * distance * scale;
  }
  __device__ float at(std::size_t row, std::size_t column) const {
    return of(static_cast<float>(x[row * width + column]), column);
  }
  __device__ void add_cell_row(float* sum, std::size_t row, std::size_t column) const {
    float values[kCell];
    load_floats<kPacks, kCell>(values, x + row * width + column);
    for (std::size_t k = 0; k < kCell; ++k) sum[k] += of(values[k], column + k);
  }
};

// Variances become 1/σ, and running statistics move.
__global__ void inv_std_kernel(const float* __restrict__ mean, float* __restrict__ inv_std, BatchNormState running,
                               std::size_t channels, float unbiased, BatchNormSettings settings) {
  for (std::size_t c : grid_range(channels)) {
    const float variance = inv_std[c];
    inv_std[c] = 1.0f / sqrtf(variance + settings.eps);
    if (!running.running_mean) continue;
    const float kept = 1.0f - settings.momentum;
    running.running_mean[c] = kept * running.running_mean[c] + settings.momentum * mean[c];
    running.running_variance[c] = kept * running.running_variance[c] + settings.momentum * (variance * unbiased);
  }
}

// kVariance: the scale is of a variance, as running statistics have it; otherwise of 1/σ.
template <class T, bool kVariance, Activation A>
__global__ void normalize_kernel(const T* x, const float* __restrict__ gamma, const float* __restrict__ beta,
                                 const T* residual, T* y, const float* __restrict__ mean,
                                 const float* __restrict__ scale, std::size_t rows, std::size_t channels, float eps,
                                 bool packs) {
  for (std::size_t row : row_range(rows)) {
    const std::size_t at = row * channels;
    for_packs<T>(BlockRange{}, channels, packs, [&](auto v, std::size_t i) {
      using V = decltype(v);
      V r{};
      v = load<V>(x + at, i);
      if (residual) r = load<V>(residual + at, i);
      each_lane<V>([&](std::size_t k) {
        const std::size_t c = i * V::size + k;
        const float inv_std = kVariance ? 1.0f / sqrtf(scale[c] + eps) : scale[c];
        float z = normalized(static_cast<float>(v[k]), mean[c], inv_std, gamma[c], beta[c]);
        if (residual) z += static_cast<float>(r[k]);
        v[k] = static_cast<T>(z == z ? activate<A>(z) : z);  // NaN stays NaN, behind a ReLU, too
      });
      store(y + at, i, v);
    });
  }
}

// dy, or dy · x̂.
template <class T, bool kGamma, bool kPacks>
struct BatchNormColumns {
  const T *dy, *x;
  const float *mean, *inv_std;
  std::size_t width;

  __device__ float of(float d, float value, std::size_t column) const {
    return kGamma ? d * ((value - mean[column]) * inv_std[column]) : d;
  }
  __device__ float at(std::size_t row, std::size_t column) const {
    const std::size_t i = row * width + column;
    return of(static_cast<float>(dy[i]), kGamma ? static_cast<float>(x[i]) : 0.0f, column);
  }
  __device__ void add_cell_row(float* sum, std::size_t row, std::size_t column) const {
    float d[kCell], values[kCell] = {};
    load_floats<kPacks, kCell>(d, dy + row * width + column);
    if constexpr (kGamma) load_floats<kPacks, kCell>(values, x + row * width + column);
    for (std::size_t k = 0; k < kCell; ++k) sum[k] += of(d[k], values[k], column + k);
  }
};

// dx = gamma / σ · (dy − mean of dy − x̂ · mean of dy · x̂), where x was.
template <class T>
__global__ void batch_norm_backward_kernel(T* x, const T* __restrict__ dy, const float* __restrict__ gamma,
                                           const float* __restrict__ mean, const float* __restrict__ inv_std,
                                           const float* __restrict__ dgamma, const float* __restrict__ dbeta,
                                           std::size_t rows, std::size_t channels, float one_row, bool packs) {
  for (std::size_t row : row_range(rows)) {
    const std::size_t at = row * channels;
    for_packs<T>(BlockRange{}, channels, packs, [&](auto v, std::size_t i) {
      using V = decltype(v);
      v = load<V>(x + at, i);
      const V d = load<V>(dy + at, i);
      each_lane<V>([&](std::size_t k) {
        const std::size_t c = i * V::size + k;
        const float normal = (static_cast<float>(v[k]) - mean[c]) * inv_std[c];
        const float centered = static_cast<float>(d[k]) - one_row * (dbeta[c] + normal * dgamma[c]);
        v[k] = static_cast<T>(gamma[c] * inv_std[c] * centered);
      });
      store(x + at, i, v);
    });
  }
}

template <class T, bool kVariance>
void normalize(Context& context, const T* x, const float* gamma, const float* beta, const T* residual, T* y,
               const float* mean, const float* scale, std::size_t rows, std::size_t channels, Activation activation,
               float eps) {
  const auto kernel = with_activation<Activation::none, Activation::relu, Activation::hard_swish>(
      "behind a batch norm", activation,
      []<Activation A>(ActivationConstant<A>) { return normalize_kernel<T, kVariance, A>; });
  launch(kernel, shape_for_packed_rows<T>(rows, channels), context.stream(), x, gamma, beta, residual, y, mean, scale,
         rows, channels, eps, packs_fit<T>(channels, x, residual, y));
}

// work(true_type) where packs may be read.
template <class T, class Work, class... Pointers>
void with_packs(std::size_t width, Work work, Pointers... pointers) {
  if (packs_fit<T>(width, pointers...))
    work(std::true_type{});
  else
    work(std::false_type{});
}

}  // namespace

template <class T>
void batch_norm_forward(Context& context, const T* x, const float* gamma, const float* beta, const T* residual, T* y,
                        float* mean, float* inv_std, BatchNormState running, std::size_t rows, std::size_t channels,
                        Activation activation, const BatchNormSettings& settings) {
  if (rows < 2) throw std::invalid_argument("batch norm needs more than one value per channel when training");
  const auto n = static_cast<float>(rows);
  with_packs<T>(
      channels,
      [&]<bool kPacks>(std::bool_constant<kPacks>) {
        launch_column_sum(context, StatisticColumns<T, Statistic::mean, kPacks>{x, nullptr, channels, 1.0f / n}, mean,
                          rows, channels, false);
        launch_column_sum(context, StatisticColumns<T, Statistic::variance, kPacks>{x, mean, channels, 1.0f / n},
                          inv_std, rows, channels, false);
      },
      x);
  launch(inv_std_kernel, shape_for_items(channels), context.stream(), mean, inv_std, running, channels, n / (n - 1.0f),
         settings);
  normalize<T, false>(context, x, gamma, beta, residual, y, mean, inv_std, rows, channels, activation, settings.eps);
}

template <class T>
void batch_norm_again(Context& context, const T* x, const float* gamma, const float* beta, T* y, const float* mean,
                      const float* inv_std, std::size_t rows, std::size_t channels, Activation activation) {
  normalize<T, false>(context, x, gamma, beta, nullptr, y, mean, inv_std, rows, channels, activation, 0.0f);
}

template <class T>
void batch_norm_inference(Context& context, const T* x, const float* gamma, const float* beta, const T* residual, T* y,
                          BatchNormState running, std::size_t rows, std::size_t channels, Activation activation,
                          const BatchNormSettings& settings) {
  normalize<T, true>(context, x, gamma, beta, residual, y, running.running_mean, running.running_variance, rows,
                     channels, activation, settings.eps);
}

template <class T>
void batch_norm_backward(Context& context, T* x, const T* dy, const float* gamma, const float* mean,
                         const float* inv_std, float* dgamma, float* dbeta, std::size_t rows, std::size_t channels) {
  with_packs<T>(
      channels,
      [&]<bool kPacks>(std::bool_constant<kPacks>) {
        launch_column_sum(context, BatchNormColumns<T, true, kPacks>{dy, x, mean, inv_std, channels}, dgamma, rows,
                          channels, false);
        launch_column_sum(context, BatchNormColumns<T, false, kPacks>{dy, x, mean, inv_std, channels}, dbeta, rows,
                          channels, false);
      },
      x, dy);
  launch(batch_norm_backward_kernel<T>, shape_for_packed_rows<T>(rows, channels), context.stream(), x, dy, gamma, mean,
         inv_std, dgamma, dbeta, rows, channels, 1.0f / static_cast<float>(rows), packs_fit<T>(channels, x, dy));
}

#define OOMLAB_INSTANCES(T)                                                                                           \
  template void batch_norm_forward(Context&, const T*, const float*, const float*, const T*, T*, float*, float*,      \
                                   BatchNormState, std::size_t, std::size_t, Activation, const BatchNormSettings&);   \
  template void batch_norm_again(Context&, const T*, const float*, const float*, T*, const float*, const float*,      \
                                 std::size_t, std::size_t, Activation);                                               \
  template void batch_norm_inference(Context&, const T*, const float*, const float*, const T*, T*, BatchNormState,    \
                                     std::size_t, std::size_t, Activation, const BatchNormSettings&);                 \
  template void batch_norm_backward(Context&, T*, const T*, const float*, const float*, const float*, float*, float*, \
                                    std::size_t, std::size_t);
OOMLAB_FOR_EACH_TYPE(OOMLAB_INSTANCES)

}  // namespace oomlab::nn
