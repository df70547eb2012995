#include "nn/optimizer/processor_adamw.h"

// A build for any x86-64 has the loop twice, and the second one for processors with fused multiplication and addition:
// without, fmaf is a call.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__FMA__)
#define OOMLAB_FUSED __attribute__((target_clones("arch=haswell", "default")))
#else
#define OOMLAB_FUSED
#endif

namespace oomlab::nn {

namespace {

template <class T>
__attribute__((always_inline)) inline void update(const AdamWFactors& s, const T* gradient, const ProcessorState& from,
                                                  const ProcessorState& to, T* weights, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    float m = from.first[i], v = from.second[i];
    adamw_moments(s, static_cast<float>(gradient[i]), m, v);
    const float w = adamw_weight(s, m, v, from.weight[i]);
    to.first[i] = m, to.second[i] = v, to.weight[i] = w;
    weights[i] = static_cast<T>(w);
  }
}

}  // namespace

OOMLAB_FUSED void processor_adamw(const AdamWFactors& factors, const float* gradient, const ProcessorState& from,
                                  const ProcessorState& to, float* weights, std::size_t count) {
  update(factors, gradient, from, to, weights, count);
}
OOMLAB_FUSED void processor_adamw(const AdamWFactors& factors, const __nv_bfloat16* gradient,
                                  const ProcessorState& from, const ProcessorState& to, __nv_bfloat16* weights,
                                  std::size_t count) {
  update(factors, gradient, from, to, weights, count);
}

}  // namespace oomlab::nn
