#pragma once
// What angles are turned into: by rotary positions, and by the embedding of a timestep.

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

namespace oomlab::nn {

/// Sine and cosine of 0 ≤ x < 2^20 to about 1e-7: x − k π/2 with π/2 in three parts, and polynomials on [−π/4, π/4]
/// (their coefficients as in Moshier's Cephes library). The same arithmetic on every backend.
struct SineCosine {
  float sine, cosine;
};
__device__ inline SineCosine sine_cosine(float x) {
  const float magic = 12582912.0f;  // 1.5 · 2^23: adding it rounds to an integer
  const float k = (x * 0.636619772f + magic) - magic;
  float r = fmaf(-k, 1.57079637f, x);
  r = fmaf(k, 4.37113883e-8f, r);
  r = fmaf(k, 1.71512449e-15f, r);
  const float square = r * r;
  float s = fmaf(square, -1.9515295891e-4f, 8.3321608736e-3f);
  s = fmaf(square, s, -1.6666654611e-1f);
  s = fmaf(square * r, s, r);
  float c = fmaf(square, 2.443315711809948e-5f, -1.388731625493765e-3f);
  c = fmaf(square, c, 4.166664568298827e-2f);
  c = fmaf(square * square, c, fmaf(square, -0.5f, 1.0f));
  const auto quarter = static_cast<std::int32_t>(k) & 3;
  const float sine = quarter & 1 ? c : s, cosine = quarter & 1 ? s : c;
  return {quarter & 2 ? -sine : sine, (quarter + 1) & 2 ? -cosine : cosine};
}

}  // namespace oomlab::nn
