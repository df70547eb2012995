#include "nn/optimizer/cpu_update.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <type_traits>

#include "nn/optimizer/dynamic_code.h"

// A build for any x86-64 has the loop twice, and the second one for processors with fused multiplication and addition:
// without, fmaf is a call.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__FMA__)
#define OOMLAB_FUSED __attribute__((target_clones("arch=haswell", "default")))
#else
#define OOMLAB_FUSED
#endif
#define OOMLAB_INLINE __attribute__((always_inline)) inline

namespace oomlab::nn {

namespace {

// The step and the tensor are taken by value: beside a reference, the compiler has to assume that a store of a float changes
// them, and reads them anew for each number.
template <class T>
OOMLAB_INLINE float weight_of(const TensorOnHost<T>& t, std::size_t i) {
  return t.master ? t.master[i] : static_cast<float>(t.weights[i]);
}
template <class T>
OOMLAB_INLINE void store_weight(const CpuStep& step, const TensorOnHost<T>& t, std::size_t i, float w) {
  if (t.master) t.master[i] = w;
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    if (step.form.weights == WeightForm::stochastic)
      w = static_cast<float>(rounded_at_random(w, random_bits(t.rounding_key, i)));
  t.weights[i] = static_cast<T>(w);
}

template <class T>
OOMLAB_INLINE void sgd(const CpuStep step, const TensorOnHost<T> t, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    const float g = static_cast<float>(t.gradient[i]) * step.factor;
    store_weight(step, t, i, sgd_weight(step.sgd_lr, g, weight_of(t, i)));
  }
}

template <class T>
OOMLAB_INLINE void adamw(const CpuStep step, const TensorOnHost<T> t, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    const float g = static_cast<float>(t.gradient[i]) * step.factor;
    float m = t.first[i];
    float v = t.second[i];
    adamw_moments(step.adamw, g, m, v);
    t.first[i] = m;
    t.second[i] = v;
    store_weight(step, t, i, adamw_weight(step.adamw, m, v, weight_of(t, i)));
  }
}

// One block of codes: its moments are floats until the largest of them is known.
template <class T>
OOMLAB_INLINE void adamw_8(const CpuStep& step, const TensorOnHost<T>& t, std::size_t begin, std::size_t end) {
  float first[kCodeBlock];
  float second[kCodeBlock];
  const std::size_t block = begin / kCodeBlock;
  float first_most = 0;
  float second_most = 0;
  for (std::size_t i = begin; i < end; ++i) {
    float& m = first[i - begin];
    float& v = second[i - begin];
    m = kSignedCode.value[t.codes[0][i]] * t.absmax[0][block];
    v = kUnsignedCode.value[t.codes[1][i]] * t.absmax[1][block];
    const float g = static_cast<float>(t.gradient[i]) * step.factor;
    adamw_moments(step.adamw, g, m, v);
    if (!(std::fabs(g) <= FLT_MAX)) m = v = 0;  // or it would spoil 256 moments
    v = v < FLT_MAX ? v : FLT_MAX;
    first_most = std::max(first_most, std::fabs(m));
    second_most = std::max(second_most, std::fabs(v));
    store_weight(step, t, i, adamw_weight(step.adamw, m, v, weight_of(t, i)));
  }
  const float first_scale = code_scale(first_most);
  const float second_scale = code_scale(second_most);
  for (std::size_t i = begin; i < end; ++i) {
    const float m = first[i - begin] * first_scale;
    const float v = second[i - begin] * second_scale;
    t.codes[0][i] = static_cast<std::uint8_t>(with_own_sign(code_of<true>(kSignedCode.bound, m), m));
    t.codes[1][i] = static_cast<std::uint8_t>(code_of<false>(kUnsignedCode.bound, v));
  }
  t.absmax[0][block] = first_most;
  t.absmax[1][block] = second_most;
}

template <class T>
OOMLAB_INLINE void update(const CpuStep& step, const TensorOnHost<T>& t, std::size_t begin, std::size_t end) {
  if (step.form.rule == UpdateRule::sgd) return sgd(step, t, begin, end);
  if (!t.codes[0]) return adamw(step, t, begin, end);
  for (std::size_t block = begin; block < end; block += kCodeBlock)
    adamw_8(step, t, block, std::min(end, block + kCodeBlock));
}

}  // namespace

OOMLAB_FUSED void cpu_update(const CpuStep& step, const TensorOnHost<float>& tensor, std::size_t begin,
                             std::size_t end) {
  update(step, tensor, begin, end);
}
OOMLAB_FUSED void cpu_update(const CpuStep& step, const TensorOnHost<__half>& tensor, std::size_t begin,
                             std::size_t end) {
  update(step, tensor, begin, end);
}
OOMLAB_FUSED void cpu_update(const CpuStep& step, const TensorOnHost<__nv_bfloat16>& tensor, std::size_t begin,
                             std::size_t end) {
  update(step, tensor, begin, end);
}

}  // namespace oomlab::nn
