#include "nn/optimizer/compact_optimizer.h"

#include <cfloat>
#include <stdexcept>
#include <string>

#include "cuda/backend.h"
#include "cuda/check.h"
#include "nn/ops/values.h"
#include "nn/optimizer/tensor_table.h"
#include "nn/optimizer/updated_weights.h"

namespace oomlab::nn {

// ------------------------------------------------------------------------------------------------------------- kernels

namespace {

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
  std::uint8_t *first, *second;         // codes
  float *first_absmax, *second_absmax;  // one for each block
  std::size_t count;
  std::uint32_t key;
};
struct BothCodes {
  DynamicCode with_sign, without;
};
struct BlockAtWork {
  float values_of_first[256], values_of_second[256];  // of their codes
  float first[kCodeBlock], second[kCodeBlock];        // the new moments
};
// The largest absolute value of a thread's share of n numbers, which are finite: their bits are in order, and a
// compiler for the host vectorises a maximum of integers.
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
// x, or 0 where the mask is 0. In integers: a compiler for the host moves what led to x behind a choice between floats,
// and without masks of its own, as AVX2 has none, it cannot vectorise that.
__device__ inline float masked(float x, std::uint32_t mask) {
  std::uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  bits &= mask;
  memcpy(&x, &bits, sizeof x);
  return x;
}
// Loops of the kernel below, as functions of arrays that do not overlap: or after each store of a byte all else would
// have to be read again, and a compiler for the host would not vectorise.
template <class T>
__device__ inline void new_moments(const AdamWFactors& s, float f, const T* __restrict__ gradient,
                                   const std::uint8_t* __restrict__ first, const std::uint8_t* __restrict__ second,
                                   float first_scale, float second_scale, const float* __restrict__ values_of_first,
                                   const float* __restrict__ values_of_second, float* __restrict__ new_first,
                                   float* __restrict__ new_second, std::size_t n) {
#pragma GCC ivdep
  for (std::size_t i : block_range(n)) {
    const int code = first[i];
    new_first[i] = values_of_first[code] * first_scale;
  }
#pragma GCC ivdep
  for (std::size_t i : block_range(n)) {
    const int code = second[i];
    new_second[i] = values_of_second[code] * second_scale;
  }
#pragma GCC ivdep
  for (std::size_t i : block_range(n)) {
    const float g = static_cast<float>(gradient[i]) * f;
    float m = new_first[i], v = new_second[i];
    adamw_moments(s, g, m, v);
    const std::uint32_t finite = fabsf(g) <= FLT_MAX ? ~0u : 0u;  // or it would spoil 256 moments
    new_first[i] = masked(m, finite);
    v = masked(v, finite);
    new_second[i] = v < FLT_MAX ? v : FLT_MAX;
  }
}
// Moments times `scale` as codes. First moments have a sign, and keep it.
template <bool kWithSign>
__device__ inline void encode(const float* __restrict__ moments, float scale, const float* __restrict__ bound,
                              std::uint8_t* __restrict__ codes, std::size_t n) {
  const auto store = [&](std::size_t i, float x, int code) {
    codes[i] = static_cast<std::uint8_t>(kWithSign ? with_own_sign(code, x) : code);
  };
  unsigned unsure = 0;
#pragma GCC ivdep
  for (std::size_t i : block_range(n)) {
    const float x = moments[i] * scale, count = count_of_codes<kWithSign>(x);
    store(i, x, code_at<kWithSign>(count, x));
    unsure |= is_unsure<kWithSign>(count) ? 1u : 0u;
  }
  if (unsure)  // hardly ever
    for (std::size_t i : block_range(n)) {
      const float x = moments[i] * scale;
      store(i, x, corrected(bound, codes[i], x));
    }
}
constexpr std::size_t kTensorsOf8Bits = 384;  // with the codes, as many as a kernel's parameters have room for

// A block of codes is a block's work: its moments are new numbers in shared memory until their absmax is known.
template <class T, WeightForm kForm>
__global__ void adamw_8_kernel(const __grid_constant__ TensorTable<AdamW8Tensor<T>, kTensorsOf8Bits> table,
                               const __grid_constant__ BothCodes codes, AdamWFactors s, const float* factor) {
  const float f = factor_or_1(factor);
  if (f == 0.0f) return;
  BlockAtWork* const work = dynamic_shared<BlockAtWork>();
  for (std::size_t q : block_range(256)) {
    work->values_of_first[q] = codes.with_sign.value[q];
    work->values_of_second[q] = codes.without.value[q];
  }
  __syncthreads();
  for (std::size_t at = 0; at < table.size; ++at) {
    const AdamW8Tensor<T> t = table.tensors[at];
    const Weights<T, kForm> weights{t.value, t.master, t.key};
    for (std::size_t block : row_range((t.count + kCodeBlock - 1) / kCodeBlock)) {
      const std::size_t begin = block * kCodeBlock;
      const std::size_t n = t.count - begin < kCodeBlock ? t.count - begin : kCodeBlock;
      const float first_scale = t.first_absmax[block], second_scale = t.second_absmax[block];
      new_moments(s, f, t.gradient + begin, t.first + begin, t.second + begin, first_scale, second_scale,
                  work->values_of_first, work->values_of_second, work->first, work->second, n);
      const float first_most = block_max(largest_of(work->first, n)),
                  second_most = block_max(largest_of(work->second, n));
      for (std::size_t i : block_range(n)) {
        float w[1];
        weights.template load<false, 1>(w, begin + i);
        w[0] = adamw_weight(s, work->first[i], work->second[i], w[0]);
        weights.template store<false, 1>(w, begin + i);
      }
      encode<true>(work->first, code_scale(first_most), codes.with_sign.bound, t.first + begin, n);
      encode<false>(work->second, code_scale(second_most), codes.without.bound, t.second + begin, n);
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
                 each_lane<V>([&](std::size_t k) { w[k] = sgd_weight(lr, g[k] * f, w[k]); });
                 weights.template store<kPacks, lanes>(w, i * lanes);
               });
}

template <class T>
__global__ void master_copy_kernel(const T* value, float* master, std::size_t count) {
  for (std::size_t i : grid_range(count)) master[i] = static_cast<float>(value[i]);
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
      sums = std::max(sums, 2 * shape.rows + kAdafactorScalars);
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
          return AdamW8Tensor<T>{values_[u.tensor], u.gradient,         s.master.data(),    s.codes[0].data(),
                                 s.codes[1].data(), s.absmax[0].data(), s.absmax[1].data(), shapes_[u.tensor].count(),
                                 key(u.tensor)};
        },
        BothCodes{kSignedCode, kUnsignedCode}, factors, factor);
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

}  // namespace oomlab::nn
