// AdamW with moments of 8 bits: part of optimizer.h.

#include <cfloat>
#include <cstring>

#include "nn/ops/instances.h"
#include "nn/optimizer/adamw_rule.h"
#include "nn/optimizer/dynamic_code.h"
#include "nn/optimizer/tensor_table.h"
#include "nn/optimizer/updated_weights.h"

namespace oomlab::nn {

namespace {

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
                               const __grid_constant__ BothCodes codes, AdamWFactors s, StepOnDevice on_device) {
  const float f = factor_or_1(on_device.factor);
  if (f == 0.0f) return;
  correct_bias(s, on_device.bias_corrections);
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

}  // namespace

template <class T>
void Optimizer<T>::adamw_8(Context& context, std::span<const Update> updates, StepOnDevice on_device) {
  with_form<T>(form_.weights, [&](auto form) {
    launch_over_tables(
        adamw_8_kernel<T, form()>, context.stream(), updates.size(),
        [](std::size_t largest) { return shape_for_rows(blocks_of(largest), sizeof(BlockAtWork)); },
        [&](std::size_t i) {
          const Update& u = updates[i];
          State& s = states_[u.tensor];
          return AdamW8Tensor<T>{
              values_[u.tensor],     u.gradient,         s.master.data(),    s.codes[0].data(),
              s.codes[1].data(),     s.absmax[0].data(), s.absmax[1].data(), shapes_[u.tensor].count(),
              rounding_key(u.tensor)};
        },
        BothCodes{kSignedCode, kUnsignedCode}, adamw_factors(settings_.adamw, steps_ + 1), on_device);
  });
}

#define OOMLAB_ADAMW_8(T) template void Optimizer<T>::adamw_8(Context&, std::span<const Update>, StepOnDevice);
OOMLAB_FOR_EACH_TYPE(OOMLAB_ADAMW_8)

}  // namespace oomlab::nn
