#include "nn/compact_optimizer.h"

#include <cfloat>
#include <stdexcept>
#include <string>

#include "cuda/backend.h"
#include "cuda/check.h"
#include "nn/named.h"
#include "nn/ops.h"
#include "nn/tensor_table.h"

namespace oomlab::nn {

const char* name_of(UpdateRule rule) noexcept {
  switch (rule) {
    case UpdateRule::adamw: return "adamw";
    case UpdateRule::adamw8: return "adamw8";
    case UpdateRule::adafactor: return "adafactor";
    case UpdateRule::sgd: return "sgd";
  }
  return "?";
}
UpdateRule parse_update_rule(std::string_view name) {
  return parse_named("optimizer", name,
                     {UpdateRule::adamw, UpdateRule::adamw8, UpdateRule::adafactor, UpdateRule::sgd});
}
const char* name_of(WeightForm form) noexcept {
  switch (form) {
    case WeightForm::stored: return "stored";
    case WeightForm::master: return "master";
    case WeightForm::stochastic: return "stochastic";
  }
  return "?";
}

// ------------------------------------------------------------------------------------------------------------ its bytes

namespace {

std::size_t blocks_of(std::size_t count) { return count / kCodeBlock + (count % kCodeBlock != 0); }

// Of every array of a tensor's state: elements, and bytes of each.
template <class Visit>
void visit_state(const TensorShape& shape, const OptimizerForm& form, Visit visit) {
  const std::size_t n = shape.count();
  if (form.weights == WeightForm::master) visit(n, sizeof(float));
  switch (form.rule) {
    case UpdateRule::sgd: return;
    case UpdateRule::adafactor:
      if (shape.rows == 1) return visit(n, sizeof(float));
      visit(shape.rows, sizeof(float)), visit(shape.columns, sizeof(float));
      return;
    case UpdateRule::adamw:
    case UpdateRule::adamw8:
      for (int moment = 0; moment < 2; ++moment)
        if (has_8_bit_moments(shape, form))
          visit(n, std::size_t(1)), visit(blocks_of(n), sizeof(float));
        else
          visit(n, sizeof(float));
  }
}

// Floats of Adafactor's sums: two for each row, and what is made of them.
constexpr std::size_t kScalars = 4;
std::size_t sums_of(const TensorShape& shape) { return checked_sum(checked_product(shape.rows, 2), kScalars); }

}  // namespace

bool has_8_bit_moments(const TensorShape& shape, const OptimizerForm& form) {
  const bool embeds = shape.unit == "token" || shape.unit == "embedding";
  return form.rule == UpdateRule::adamw8 && shape.count() >= kLeastOf8Bits && !(form.wide_embeddings && embeds);
}
std::size_t state_bytes(const TensorShape& shape, const OptimizerForm& form) {
  std::size_t sum = 0;
  visit_state(shape, form, [&](std::size_t count, std::size_t size) {
    sum = checked_sum(sum, round_to_granule(checked_product(count, size)));
  });
  return sum;
}
std::size_t exact_state_bytes(const TensorShape& shape, const OptimizerForm& form) {
  std::size_t sum = 0;
  visit_state(shape, form,
              [&](std::size_t count, std::size_t size) { sum = checked_sum(sum, checked_product(count, size)); });
  return sum;
}
ByCategory optimizer_bytes(const TransformerSpec& spec, const OptimizerForm& form) {
  ByCategory bytes;
  std::size_t sums = 0;
  for (const TensorShape& shape : tensors_of(spec)) {
    bytes[Category::optimizer] = checked_sum(bytes[Category::optimizer], state_bytes(shape, form));
    if (shape.rows > 1) sums = std::max(sums, sums_of(shape));
  }
  if (form.rule == UpdateRule::adafactor) bytes[Category::workspace] = round_to_granule(sums * sizeof(float));
  return bytes;
}

// ------------------------------------------------------------------------------------------------------------- kernels

namespace {

// A tensor's weights, as an update reads and writes them: lanes at a time, from element `at` on.
template <class T, WeightForm kForm>
struct Weights {
  T* value;
  float* master;
  std::uint32_t key;  // of stochastic rounding

  template <bool kPacks, std::size_t lanes>
  __device__ void load(float* w, std::size_t at) const {
    if constexpr (kForm == WeightForm::master)
      load_floats<kPacks, lanes>(w, master + at);
    else
      load_floats<kPacks, lanes>(w, value + at);
  }
  template <bool kPacks, std::size_t lanes>
  __device__ void store(float* w, std::size_t at) const {
    if constexpr (kForm == WeightForm::master) store_floats<kPacks, lanes>(master + at, w);
    if constexpr (kForm == WeightForm::stochastic)
      for (std::size_t k = 0; k < lanes; ++k)
        w[k] = static_cast<float>(rounded_at_random(w[k], random_bits(key, at + k), T{}));
    store_floats<kPacks, lanes>(value + at, w);  // to the nearest, where it is none of T yet
  }
};

__device__ inline float factor_or_1(const float* factor) { return factor ? *factor : 1.0f; }

template <class T>
struct AdamWTensor {
  T* value;
  const T* gradient;
  float *master, *first, *second;
  std::size_t count;
  std::uint32_t key;
};
template <class T, WeightForm kForm>
__global__ void adamw_32_kernel(const __grid_constant__ TensorTable<AdamWTensor<T>, kTensorsOfLaunch> table,
                                AdamWFactors s, const float* factor) {
  const float f = factor_or_1(factor);
  if (f == 0.0f) return;
  for (std::size_t at = 0; at < table.size; ++at) {
    const AdamWTensor<T> t = table.tensors[at];
    const Weights<T, kForm> weights{t.value, t.master, t.key};
    const bool packs = aligned_for_packs(t.value, t.gradient, t.master, t.first, t.second);
    for_packs<T>(GridRange{}, t.count, packs, [&](auto pack, std::size_t i) {
      using V = decltype(pack);
      constexpr std::size_t lanes = V::size;
      constexpr bool kPacks = lanes > 1;
      float w[lanes], g[lanes], m[lanes], v[lanes];
      load_floats<kPacks, lanes>(g, t.gradient + i * lanes);
      load_floats<kPacks, lanes>(m, t.first + i * lanes);
      load_floats<kPacks, lanes>(v, t.second + i * lanes);
      weights.template load<kPacks, lanes>(w, i * lanes);
      each_lane<V>([&](std::size_t k) {
        adamw_moments(s, g[k] * f, m[k], v[k]);
        w[k] = adamw_weight(s, m[k], v[k], w[k]);
      });
      store_floats<kPacks, lanes>(t.first + i * lanes, m);
      store_floats<kPacks, lanes>(t.second + i * lanes, v);
      weights.template store<kPacks, lanes>(w, i * lanes);
    });
  }
}

template <class T>
struct AdamW8Tensor {
  T* value;
  const T* gradient;
  float* master;
  std::uint8_t *first, *second;           // codes
  float *first_absmax, *second_absmax;    // one for each block
  std::size_t count;
  std::uint32_t key;
};
struct BothCodes {
  DynamicCode with_sign, without;
};
struct BlockAtWork {
  BothCodes codes;
  float first[kCodeBlock], second[kCodeBlock];  // the new moments
};
// The largest absolute value of a thread's share of n numbers, which are finite: their bits are in order, and a compiler
// for the host vectorises a maximum of integers.
__device__ inline float largest_of(const float* x, std::size_t n) {
  std::int32_t most = 0;
  for (std::size_t i : block_range(n)) {
    std::int32_t bits;
    memcpy(&bits, x + i, sizeof bits);
    bits &= 0x7fffffff;
    most = most < bits ? bits : most;
  }
  float largest;
  memcpy(&largest, &most, sizeof largest);
  return largest;
}
// Two loops of the kernel below, as functions of arrays that do not overlap: or after each store of a byte all else would
// have to be read again, and a compiler for the host would not vectorise.
template <class T>
__device__ inline void new_moments(const AdamWFactors& s, float f, const T* __restrict__ gradient,
                                   const std::uint8_t* __restrict__ first, const std::uint8_t* __restrict__ second,
                                   float first_scale, float second_scale, const BothCodes& codes,
                                   float* __restrict__ new_first, float* __restrict__ new_second, std::size_t n) {
  const float *const __restrict__ of_first = codes.with_sign.value, *const __restrict__ of_second = codes.without.value;
#pragma GCC ivdep
  for (std::size_t i : block_range(n)) {
    const int code = first[i];
    new_first[i] = of_first[code] * first_scale;
  }
#pragma GCC ivdep
  for (std::size_t i : block_range(n)) {
    const int code = second[i];
    new_second[i] = of_second[code] * second_scale;
  }
#pragma GCC ivdep
  for (std::size_t i : block_range(n)) {
    const float g = static_cast<float>(gradient[i]) * f;
    float m = new_first[i], v = new_second[i];
    adamw_moments(s, g, m, v);
    const bool finite = fabsf(g) <= FLT_MAX;  // or it would spoil 256 moments
    m = finite ? m : 0.0f, v = finite ? v : 0.0f;
    new_first[i] = m;
    new_second[i] = v < FLT_MAX ? v : FLT_MAX;
  }
}
__device__ inline void encode_moments(const float* __restrict__ first, float to_first,
                                      const float* __restrict__ first_bound, const float* __restrict__ second,
                                      float to_second, const float* __restrict__ second_bound,
                                      std::uint8_t* __restrict__ first_codes, std::uint8_t* __restrict__ second_codes,
                                      std::size_t n) {
#pragma GCC ivdep
  for (std::size_t i : block_range(n))
    first_codes[i] = static_cast<std::uint8_t>(signed_code_of(first_bound, first[i] * to_first));
#pragma GCC ivdep
  for (std::size_t i : block_range(n))
    second_codes[i] = static_cast<std::uint8_t>(code_of<false>(second_bound, second[i] * to_second));
}
constexpr std::size_t kTensorsOf8Bits = 384;  // with the codes, as many as a kernel's parameters have room for

// A block of codes is a block's work: its moments are new numbers in shared memory until their absmax is known.
template <class T, WeightForm kForm>
__global__ void adamw_8_kernel(const __grid_constant__ TensorTable<AdamW8Tensor<T>, kTensorsOf8Bits> table,
                               const __grid_constant__ BothCodes codes, AdamWFactors s, const float* factor) {
  const float f = factor_or_1(factor);
  if (f == 0.0f) return;
  BlockAtWork* const work = dynamic_shared<BlockAtWork>();
  for (std::size_t q : block_range(kCodeBlock)) {
    work->codes.with_sign.value[q] = codes.with_sign.value[q], work->codes.with_sign.bound[q] = codes.with_sign.bound[q];
    work->codes.without.value[q] = codes.without.value[q], work->codes.without.bound[q] = codes.without.bound[q];
  }
  __syncthreads();
  for (std::size_t at = 0; at < table.size; ++at) {
    const AdamW8Tensor<T> t = table.tensors[at];
    const Weights<T, kForm> weights{t.value, t.master, t.key};
    for (std::size_t block : row_range((t.count + kCodeBlock - 1) / kCodeBlock)) {
      const std::size_t begin = block * kCodeBlock;
      const std::size_t n = t.count - begin < kCodeBlock ? t.count - begin : kCodeBlock;
      const float first_scale = t.first_absmax[block], second_scale = t.second_absmax[block];
      new_moments(s, f, t.gradient + begin, t.first + begin, t.second + begin, first_scale, second_scale, work->codes,
                  work->first, work->second, n);
      const float first_most = block_max(largest_of(work->first, n)),
                  second_most = block_max(largest_of(work->second, n));
      for (std::size_t i : block_range(n)) {
        float w[1];
        weights.template load<false, 1>(w, begin + i);
        w[0] = adamw_weight(s, work->first[i], work->second[i], w[0]);
        weights.template store<false, 1>(w, begin + i);
      }
      encode_moments(work->first, code_scale(first_most), work->codes.with_sign.bound, work->second,
                     code_scale(second_most), work->codes.without.bound, t.first + begin, t.second + begin, n);
      for ([[maybe_unused]] std::size_t once : block_range(1))
        t.first_absmax[block] = first_most, t.second_absmax[block] = second_most;
      __syncthreads();  // the next block's moments take the same place
    }
  }
}

template <class T, WeightForm kForm>
__global__ void sgd_weights_kernel(Weights<T, kForm> weights, const T* gradient, std::size_t count, float lr,
                                   const float* factor) {
  const float f = factor_or_1(factor);
  if (f == 0.0f) return;
  for_packs<T>(GridRange{}, count, aligned_for_packs(weights.value, weights.master, gradient),
               [&](auto pack, std::size_t i) {
                 using V = decltype(pack);
                 constexpr std::size_t lanes = V::size;
                 constexpr bool kPacks = lanes > 1;
                 float w[lanes], g[lanes];
                 load_floats<kPacks, lanes>(g, gradient + i * lanes);
                 weights.template load<kPacks, lanes>(w, i * lanes);
                 each_lane<V>([&](std::size_t k) { w[k] = fmaf(-lr, g[k] * f, w[k]); });
                 weights.template store<kPacks, lanes>(w, i * lanes);
               });
}

// ---- Adafactor. Of a matrix: sums over rows, sums over columns, what follows from them, the update's size, the update.

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

// ---- codes alone

template <bool kWithSign>
__global__ void encode_blocks_kernel(const float* from, std::size_t count, const __grid_constant__ DynamicCode code,
                                     std::uint8_t* codes, float* absmax) {
  for (std::size_t block : row_range((count + kCodeBlock - 1) / kCodeBlock)) {
    const std::size_t begin = block * kCodeBlock, n = count - begin < kCodeBlock ? count - begin : kCodeBlock;
    float most = 0.0f;
    for (std::size_t i : block_range(n)) most = fmaxf(most, fabsf(from[begin + i]));
    most = block_max(most);
    for (std::size_t i : block_range(n))
      codes[begin + i] = static_cast<std::uint8_t>(code_of<kWithSign>(code.bound, from[begin + i] * code_scale(most)));
    for ([[maybe_unused]] std::size_t once : block_range(1)) absmax[block] = most;
  }
}
__global__ void decode_blocks_kernel(const std::uint8_t* codes, const float* absmax, std::size_t count,
                                     const __grid_constant__ DynamicCode code, float* to) {
  for (std::size_t i : grid_range(count)) to[i] = code.value[codes[i]] * absmax[i / kCodeBlock];
}

// ---- the factor of all gradients

constexpr std::size_t kOfPart = 65536;  // gradients whose squares one block adds up
template <class T>
__global__ void squares_kernel(const T* gradient, std::size_t count, float* parts) {
  for (std::size_t part : row_range((count + kOfPart - 1) / kOfPart)) {
    const T* const from = gradient + part * kOfPart;
    const std::size_t n = count - part * kOfPart < kOfPart ? count - part * kOfPart : kOfPart;
    const float sum = block_sum_over<T>(n, [&](auto some, std::size_t i, float* sums) {
      for (std::size_t k = 0; k < decltype(some)::value; ++k) {
        const auto g = static_cast<float>(from[i + k]);
        sums[k] = fmaf(g, g, sums[k]);
      }
    });
    for ([[maybe_unused]] std::size_t once : block_range(1)) parts[part] = sum;
  }
}
__global__ void factor_kernel(const float* parts, std::size_t count, float scale, float clip, float* factor) {
  float square = 0.0f;
  for (std::size_t i : block_range(count)) square += parts[i];
  square = block_sum(square);
  for ([[maybe_unused]] std::size_t once : block_range(1)) {
    const float norm = sqrtf(square) / scale;
    *factor = !(norm <= FLT_MAX) ? 0.0f : clip > 0.0f && norm > clip ? clip / norm / scale : 1.0f / scale;
  }
}

template <class T>
__global__ void master_copy_kernel(const T* value, float* master, std::size_t count) {
  for (std::size_t i : grid_range(count)) master[i] = static_cast<float>(value[i]);
}

// call(form) with the form of the weights as a constant.
template <class T, class Call>
void with_form(WeightForm form, Call call) {
  if constexpr (std::is_same_v<T, float>) {  // FP32 weights are their own master copy
    call(std::integral_constant<WeightForm, WeightForm::stored>{});
  } else {
    switch (form) {
      case WeightForm::stored: return call(std::integral_constant<WeightForm, WeightForm::stored>{});
      case WeightForm::master: return call(std::integral_constant<WeightForm, WeightForm::master>{});
      case WeightForm::stochastic: return call(std::integral_constant<WeightForm, WeightForm::stochastic>{});
    }
  }
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------- optimizer

template <class T>
CompactOptimizer<T>::CompactOptimizer(Context& context, std::vector<TensorShape> shapes, std::vector<T*> values,
                                      OptimizerForm form, OptimizerSettings settings)
    : shapes_(std::move(shapes)), values_(std::move(values)), form_(form), settings_(settings) {
  if (std::is_same_v<T, float> && form.weights != WeightForm::stored)
    throw std::invalid_argument("weights in FP32 have no master copy and are not rounded");
  std::size_t sums = 0;
  for (std::size_t i = 0; i < shapes_.size(); ++i) {
    const TensorShape& shape = shapes_[i];
    const std::size_t n = shape.count();
    State state;
    const auto zeroed = [&]<class V>(V, std::size_t count, const char* what) {
      DeviceBuffer<V> buffer = context.buffer<V>(count, Category::optimizer, shape.name + what);
      CUDA_CHECK(cudaMemsetAsync(buffer.data(), 0, buffer.bytes(), context.stream()));
      return buffer;
    };
    if (form.weights == WeightForm::master) {
      state.master = context.buffer<float>(n, Category::optimizer, shape.name + " master");
      launch(master_copy_kernel<T>, shape_for_items(n), context.stream(), values_[i], state.master.data(), n);
    }
    if (has_8_bit_moments(shape, form)) {
      for (int moment = 0; moment < 2; ++moment) {
        state.codes[moment] = zeroed(std::uint8_t{}, n, moment ? " v codes" : " m codes");
        state.absmax[moment] = zeroed(float{}, blocks_of(n), moment ? " v absmax" : " m absmax");
      }
    } else if (form.rule == UpdateRule::adamw || form.rule == UpdateRule::adamw8) {
      state.first = zeroed(float{}, n, " m");
      state.second = zeroed(float{}, n, " v");
    } else if (form.rule == UpdateRule::adafactor && shape.rows == 1) {
      state.second = zeroed(float{}, n, " v");
    } else if (form.rule == UpdateRule::adafactor) {
      state.row_means = zeroed(float{}, shape.rows, " v of rows");
      state.column_means = zeroed(float{}, shape.columns, " v of columns");
      sums = std::max(sums, sums_of(shape));
    }
    states_.push_back(std::move(state));
  }
  if (sums != 0) sums_ = context.buffer<float>(sums, Category::workspace, "Adafactor's sums");
}

template <class T>
void CompactOptimizer<T>::update(Context& context, std::span<const Update> updates, const float* factor) {
  const std::uint64_t step = steps_ + 1;
  const auto key = [&](std::size_t tensor) { return rounding_key(settings_.seed, step, tensor); };
  if (form_.rule == UpdateRule::adafactor) {
    for (const Update& update : updates) adafactor(context, update, factor);
    return;
  }
  with_form<T>(form_.weights, [&](auto form) {
    if (form_.rule == UpdateRule::sgd) {
      for (const Update& u : updates) {
        const std::size_t n = shapes_[u.tensor].count();
        const Weights<T, form()> weights{values_[u.tensor], states_[u.tensor].master.data(), key(u.tensor)};
        launch(sgd_weights_kernel<T, form()>, shape_for_items(n / Pack<T>::size), context.stream(), weights, u.gradient,
               n, settings_.sgd_lr, factor);
      }
      return;
    }
    std::vector<Update> wide, narrow;
    for (const Update& u : updates) (states_[u.tensor].first ? wide : narrow).push_back(u);
    const AdamWFactors factors = adamw_factors(settings_.adamw, step);
    launch_over_tensors(
        adamw_32_kernel<T, form()>, context.stream(), wide.size(), Pack<T>::size,
        [&](std::size_t i) {
          const Update& u = wide[i];
          State& s = states_[u.tensor];
          return AdamWTensor<T>{values_[u.tensor], u.gradient,      s.master.data(),
                                s.first.data(),    s.second.data(), shapes_[u.tensor].count(),
                                key(u.tensor)};
        },
        factors, factor);
    launch_over_tables(
        adamw_8_kernel<T, form()>, context.stream(), narrow.size(),
        [](std::size_t largest) { return shape_for_rows(blocks_of(largest), sizeof(BlockAtWork)); },
        [&](std::size_t i) {
          const Update& u = narrow[i];
          State& s = states_[u.tensor];
          return AdamW8Tensor<T>{values_[u.tensor],       u.gradient,
                                 s.master.data(),         s.codes[0].data(),
                                 s.codes[1].data(),       s.absmax[0].data(),
                                 s.absmax[1].data(),      shapes_[u.tensor].count(),
                                 key(u.tensor)};
        },
        BothCodes{kSignedCode, kUnsignedCode}, factors, factor);
  });
}

template <class T>
void CompactOptimizer<T>::adafactor(Context& context, const Update& u, const float* factor) {
  const OptimizerSettings::Adafactor& a = settings_.adafactor;
  const auto t = static_cast<double>(steps_ + 1);
  const AdafactorStep s{static_cast<float>(std::pow(t, static_cast<double>(a.decay))),
                        static_cast<float>(std::min(static_cast<double>(a.lr), 1.0 / std::sqrt(t))), a.eps1, a.eps2,
                        1.0f - a.lr * a.weight_decay};
  const TensorShape& shape = shapes_[u.tensor];
  State& state = states_[u.tensor];
  const std::size_t rows = shape.rows, columns = shape.columns;
  const cudaStream_t stream = context.stream();
  const std::uint32_t key = rounding_key(settings_.seed, steps_ + 1, u.tensor);
  with_form<T>(form_.weights, [&](auto form) {
    const Weights<T, form()> weights{values_[u.tensor], state.master.data(), key};
    if (rows == 1)
      return launch(adafactor_vector_kernel<T, form()>, shape_for_rows(1), stream, weights, u.gradient,
                    state.second.data(), columns, s, factor);
    float *const scalars = sums_.data(), *const squares = scalars + kScalars;
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

template <class T>
std::uint64_t CompactOptimizer<T>::fingerprint(Context& context) const {
  std::uint64_t hash = kFingerprintStart;
  const auto add = [&](const auto& buffer) {
    if (buffer) hash = nn::fingerprint(context, buffer.data(), buffer.bytes(), hash);
  };
  for (const State& s : states_) {
    add(s.master), add(s.first), add(s.second), add(s.row_means), add(s.column_means);
    for (int moment = 0; moment < 2; ++moment) add(s.codes[moment]), add(s.absmax[moment]);
  }
  return hash;
}

template class CompactOptimizer<float>;
template class CompactOptimizer<__nv_bfloat16>;

// ------------------------------------------------------------------------------------------------------------ functions

void encode_blocks(Context& context, const float* from, std::size_t count, bool with_sign, std::uint8_t* codes,
                   float* absmax) {
  launch(with_sign ? encode_blocks_kernel<true> : encode_blocks_kernel<false>, shape_for_rows(blocks_of(count)),
         context.stream(), from, count, with_sign ? kSignedCode : kUnsignedCode, codes, absmax);
}
void decode_blocks(Context& context, const std::uint8_t* codes, const float* absmax, std::size_t count, bool with_sign,
                   float* to) {
  launch(decode_blocks_kernel, shape_for_items(count), context.stream(), codes, absmax, count,
         with_sign ? kSignedCode : kUnsignedCode, to);
}

std::size_t factor_parts(std::span<const TensorShape> shapes) {
  std::size_t parts = 0;
  for (const TensorShape& shape : shapes) parts += (shape.count() + kOfPart - 1) / kOfPart;
  return parts;
}
template <class T>
void gradient_factor(Context& context, std::span<const ParameterOf<T>> parameters, float scale, float clip,
                     float* parts, float* factor) {
  std::size_t count = 0;
  for (const ParameterOf<T>& p : parameters) {
    const std::size_t of_tensor = (p.count + kOfPart - 1) / kOfPart;
    launch(squares_kernel<T>, shape_for_rows(of_tensor), context.stream(), p.gradient, p.count, parts + count);
    count += of_tensor;
  }
  launch(factor_kernel, shape_for_rows(1), context.stream(), parts, count, scale, clip, factor);
}
template void gradient_factor<float>(Context&, std::span<const ParameterOf<float>>, float, float, float*, float*);
template void gradient_factor<__nv_bfloat16>(Context&, std::span<const ParameterOf<__nv_bfloat16>>, float, float, float*,
                                             float*);

}  // namespace oomlab::nn
