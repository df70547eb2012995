// Adafactor: part of optimizer.h. Of a matrix: sums over rows, sums over columns, what follows from them, the update's
// size, the update.

#include <cmath>

#include "nn/ops/instances.h"
#include "nn/optimizer/updated_weights.h"

namespace oomlab::nn {

namespace {

struct AdafactorStep {
  float not_beta2;  // t^-0.8
  float rho;        // min(lr, 1 / √t)
  float eps1, eps2, keep;
};
enum Scalar : std::size_t { kMeanOfRows, kStep, kFactor };  // in the first place of the sums

__device__ inline float toward(float from, float to, float share) { return fmaf(share, to - from, from); }
// g / √(the estimate of its second moment).
__device__ inline float adafactor_update(const AdafactorStep& s, float g, float second) {
  const float least = s.eps1 * s.eps1;
  return g / sqrtf(second < least ? least : second);
}

template <class T, WeightForm kForm>
__global__ void adafactor_rows_kernel(Weights<T, kForm> weights, const T* gradient, float* row_means, float* squares,
                                      std::size_t rows, std::size_t columns, AdafactorStep s, const float* factor) {
  const float f = factor_or_1(factor);
  if (f == 0.0f) return;
  for (std::size_t row : row_range(rows)) {
    const std::size_t begin = row * columns;
    const float of_gradients = block_sum_over<T>(columns, [&](auto count, std::size_t i, float* sums) {
      for (std::size_t k = 0; k < decltype(count)::value; ++k) {
        const float g = static_cast<float>(gradient[begin + i + k]) * f;
        sums[k] = fmaf(g, g, sums[k]);
      }
    });
    const float of_weights = block_sum_over<T>(columns, [&](auto count, std::size_t i, float* sums) {
      float w[decltype(count)::value];
      weights.template load<false, decltype(count)::value>(w, begin + i);
      for (std::size_t k = 0; k < decltype(count)::value; ++k) sums[k] = fmaf(w[k], w[k], sums[k]);
    });
    for ([[maybe_unused]] std::size_t once : block_range(1)) {
      row_means[row] = toward(row_means[row], of_gradients / static_cast<float>(columns), s.not_beta2);
      squares[row] = of_weights;
    }
  }
}
constexpr std::size_t kColumnsOfBlock = 256;
template <class T>
__global__ void adafactor_columns_kernel(const T* gradient, float* column_means, std::size_t rows, std::size_t columns,
                                         AdafactorStep s, const float* factor) {
  const float f = factor_or_1(factor);
  if (f == 0.0f) return;
  float* const sums = dynamic_shared<float>();
  for (std::size_t part : row_range((columns + kColumnsOfBlock - 1) / kColumnsOfBlock)) {
    const std::size_t begin = part * kColumnsOfBlock;
    const std::size_t n = columns - begin < kColumnsOfBlock ? columns - begin : kColumnsOfBlock;
    for (std::size_t i : block_range(n)) sums[i] = 0.0f;
    for (std::size_t row = 0; row < rows; ++row)
      for (std::size_t i : block_range(n)) {  // a thread has the same columns in every row
        const float g = static_cast<float>(gradient[row * columns + begin + i]) * f;
        sums[i] = fmaf(g, g, sums[i]);
      }
    for (std::size_t i : block_range(n))
      column_means[begin + i] = toward(column_means[begin + i], sums[i] / static_cast<float>(rows), s.not_beta2);
    __syncthreads();
  }
}
// One block: the mean of the rows' means, and how large a step is.
__global__ void adafactor_step_kernel(const float* row_means, const float* squares, float* scalars, std::size_t rows,
                                      std::size_t columns, AdafactorStep s, const float* factor) {
  if (factor_or_1(factor) == 0.0f) return;
  float mean = 0.0f, square = 0.0f;
  for (std::size_t row : block_range(rows)) mean += row_means[row], square += squares[row];
  mean = block_sum(mean) / static_cast<float>(rows), square = block_sum(square);
  for ([[maybe_unused]] std::size_t once : block_range(1)) {
    const float size = sqrtf(square / static_cast<float>(rows) / static_cast<float>(columns));
    scalars[kMeanOfRows] = mean < s.eps1 ? s.eps1 : mean;
    scalars[kStep] = (size < s.eps2 ? s.eps2 : size) * s.rho;
  }
}
template <class T>
__global__ void adafactor_size_kernel(const T* gradient, const float* row_means, const float* column_means,
                                      const float* scalars, float* squares, std::size_t rows, std::size_t columns,
                                      AdafactorStep s, const float* factor) {
  const float f = factor_or_1(factor);
  if (f == 0.0f) return;
  const float mean = scalars[kMeanOfRows];
  for (std::size_t row : row_range(rows)) {
    const float of_row = row_means[row] / mean;
    const float sum = block_sum_over<T>(columns, [&](auto count, std::size_t i, float* sums) {
      for (std::size_t k = 0; k < decltype(count)::value; ++k) {
        const float g = static_cast<float>(gradient[row * columns + i + k]) * f;
        const float u = adafactor_update(s, g, of_row * column_means[i + k]);
        sums[k] = fmaf(u, u, sums[k]);
      }
    });
    for ([[maybe_unused]] std::size_t once : block_range(1)) squares[row] = sum;
  }
}
// One block: the step, smaller where the update is large.
__global__ void adafactor_clip_kernel(const float* squares, float* scalars, std::size_t rows, std::size_t columns,
                                      const float* factor) {
  if (factor_or_1(factor) == 0.0f) return;
  float square = 0.0f;
  for (std::size_t row : block_range(rows)) square += squares[row];
  square = block_sum(square);
  for ([[maybe_unused]] std::size_t once : block_range(1)) {
    const float size = sqrtf(square / static_cast<float>(rows) / static_cast<float>(columns));
    scalars[kFactor] = scalars[kStep] / (size < 1.0f ? 1.0f : size);
  }
}
template <class T, WeightForm kForm>
__global__ void adafactor_update_kernel(Weights<T, kForm> weights, const T* gradient, const float* row_means,
                                        const float* column_means, const float* scalars, std::size_t rows,
                                        std::size_t columns, AdafactorStep s, const float* factor) {
  const float f = factor_or_1(factor);
  if (f == 0.0f) return;
  const float mean = scalars[kMeanOfRows], step = scalars[kFactor];
  for (std::size_t row : row_range(rows)) {
    const float of_row = row_means[row] / mean;
    for (std::size_t i : block_range(columns)) {
      const std::size_t at = row * columns + i;
      const float u = adafactor_update(s, static_cast<float>(gradient[at]) * f, of_row * column_means[i]);
      float w[1];
      weights.template load<false, 1>(w, at);
      w[0] = fmaf(-step, u, s.keep * w[0]);
      weights.template store<false, 1>(w, at);
    }
  }
}
// All of it for a vector, one block.
template <class T, WeightForm kForm>
__global__ void adafactor_vector_kernel(Weights<T, kForm> weights, const T* gradient, float* second, std::size_t count,
                                        AdafactorStep s, const float* factor) {
  const float f = factor_or_1(factor);
  if (f == 0.0f) return;
  float of_weights = 0.0f, of_update = 0.0f;
  for (std::size_t i : block_range(count)) {
    const float g = static_cast<float>(gradient[i]) * f;
    second[i] = toward(second[i], g * g, s.not_beta2);
    const float u = adafactor_update(s, g, second[i]);
    float w[1];
    weights.template load<false, 1>(w, i);
    of_weights = fmaf(w[0], w[0], of_weights), of_update = fmaf(u, u, of_update);
  }
  const auto n = static_cast<float>(count);
  const float size = sqrtf(block_sum(of_weights) / n), change = sqrtf(block_sum(of_update) / n);
  const float step = (size < s.eps2 ? s.eps2 : size) * s.rho / (change < 1.0f ? 1.0f : change);
  for (std::size_t i : block_range(count)) {
    float w[1];
    weights.template load<false, 1>(w, i);
    w[0] = fmaf(-step, adafactor_update(s, static_cast<float>(gradient[i]) * f, second[i]), s.keep * w[0]);
    weights.template store<false, 1>(w, i);
  }
}

}  // namespace

template <class T>
void Optimizer<T>::adafactor(Context& context, const Update& u, const float* factor) {
  const AdafactorSettings& a = settings_.adafactor;
  const auto t = static_cast<double>(steps_ + 1);
  const AdafactorStep s{static_cast<float>(std::pow(t, static_cast<double>(a.decay))),
                        static_cast<float>(std::min(static_cast<double>(a.lr), 1.0 / std::sqrt(t))), a.eps1, a.eps2,
                        1.0f - a.lr * a.weight_decay};
  const TensorShape& shape = shapes_[u.tensor];
  State& state = states_[u.tensor];
  const std::size_t rows = shape.rows, columns = shape.columns;
  const cudaStream_t stream = context.stream();
  const std::uint32_t key = rounding_key(u.tensor);
  with_form<T>(form_.weights, [&](auto form) {
    const Weights<T, form()> weights{values_[u.tensor], state.master.data(), key};
    if (rows == 1)
      return launch(adafactor_vector_kernel<T, form()>, shape_for_rows(1), stream, weights, u.gradient,
                    state.second.data(), columns, s, factor);
    float *const scalars = sums_.data(), *const squares = scalars + kAdafactorScalars;
    float *const of_rows = state.row_means.data(), *const of_columns = state.column_means.data();
    launch(adafactor_rows_kernel<T, form()>, shape_for_rows(rows), stream, weights, u.gradient, of_rows, squares, rows,
           columns, s, factor);
    launch(adafactor_columns_kernel<T>,
           shape_for_rows((columns + kColumnsOfBlock - 1) / kColumnsOfBlock, kColumnsOfBlock * sizeof(float)), stream,
           u.gradient, of_columns, rows, columns, s, factor);
    launch(adafactor_step_kernel, shape_for_rows(1), stream, of_rows, squares, scalars, rows, columns, s, factor);
    launch(adafactor_size_kernel<T>, shape_for_rows(rows), stream, u.gradient, of_rows, of_columns, scalars, squares,
           rows, columns, s, factor);
    launch(adafactor_clip_kernel, shape_for_rows(1), stream, squares, scalars, rows, columns, factor);
    launch(adafactor_update_kernel<T, form()>, shape_for_rows(rows), stream, weights, u.gradient, of_rows, of_columns,
           scalars, rows, columns, s, factor);
  });
}

#define OOMLAB_ADAFACTOR(T) template void Optimizer<T>::adafactor(Context&, const Update&, const float*);
OOMLAB_FOR_EACH_TYPE(OOMLAB_ADAFACTOR)

}  // namespace oomlab::nn
