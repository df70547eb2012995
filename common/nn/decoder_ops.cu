#include "nn/decoder_ops.h"

#include <cmath>
#include <numbers>
#include <stdexcept>
#include <string>

#include "nn/instances.h"
#include "nn/kernel.h"

namespace oomlab::nn {

// ------------------------------------------------------------------------------------------------------------- rotary

RotaryFrequencies rotary_frequencies(const Rotary& rotary, std::size_t depth) {
  if (depth == 0 || depth % 2 != 0 || depth > kRotaryDepth)
    throw std::invalid_argument("rotary positions turn heads of an even number of values, at most " +
                                std::to_string(kRotaryDepth) + ", not " + std::to_string(depth));
  RotaryFrequencies frequencies{};
  for (std::size_t i = 0; i < depth / 2; ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(depth);
    double f = 1.0 / std::pow(rotary.theta, exponent);
    switch (rotary.scaling) {
      case Rotary::Scaling::none: break;
      case Rotary::Scaling::linear: f /= rotary.factor; break;
      case Rotary::Scaling::llama3: {
        // How many turns the pair makes within the positions that the model first learnt.
        const double turns = static_cast<double>(rotary.original_positions) * f / (2 * std::numbers::pi);
        if (turns < rotary.low) {
          f /= rotary.factor;
        } else if (turns <= rotary.high) {
          const double kept = (turns - rotary.low) / (rotary.high - rotary.low);
          f = (1 - kept) * f / rotary.factor + kept * f;
        }
        break;
      }
    }
    frequencies.of[i] = static_cast<float>(f);
  }
  return frequencies;
}

namespace {

// Sine and cosine of 0 ≤ x < 2^20 to about 1e-7: x − k π/2 with π/2 in three parts, and polynomials on [−π/4, π/4]
// (their coefficients as in Moshier's Cephes library). The same arithmetic on every backend.
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

// A row's cosines and sines come into shared memory once, for all its heads. `back`: the other way round.
template <class T, bool kPacks>
__global__ void rotate_kernel(T* x, std::size_t row_stride, std::size_t rows, std::size_t heads, std::size_t depth,
                              const __grid_constant__ RotaryFrequencies frequencies, RowPositions positions,
                              bool back) {
  using V = std::conditional_t<kPacks, Pack<T>, Single<T>>;
  const std::size_t half = depth / 2, per_head = half / V::size;
  float *const cosines = dynamic_shared<float>(), *const sines = cosines + half;
  for (std::size_t row : row_range(rows)) {
    const float position =
        positions.of_row ? static_cast<float>(positions.of_row[row]) : static_cast<float>(row % positions.seq);
    for (std::size_t i : block_range(half)) {
      const SineCosine turn = sine_cosine(position * frequencies.of[i]);
      cosines[i] = turn.cosine;
      sines[i] = back ? -turn.sine : turn.sine;
    }
    __syncthreads();
    for (std::size_t cell : block_range(heads * per_head)) {
      const std::size_t i = cell % per_head;
      T *const first = x + row * row_stride + cell / per_head * depth, *const second = first + half;
      V a = load<V>(first, i), b = load<V>(second, i);
      each_lane<V>([&](std::size_t k) {
        const float cosine = cosines[i * V::size + k], sine = sines[i * V::size + k];
        const float left = static_cast<float>(a[k]), right = static_cast<float>(b[k]);
        a[k] = static_cast<T>(left * cosine - right * sine);
        b[k] = static_cast<T>(right * cosine + left * sine);
      });
      store(first, i, a);
      store(second, i, b);
    }
    __syncthreads();  // the next row's come to the same place
  }
}

}  // namespace

template <class T>
void rotate_heads(Context& context, T* x, std::size_t row_stride, std::size_t rows, std::size_t heads,
                  std::size_t depth, const RotaryFrequencies& frequencies, RowPositions positions, bool back) {
  const bool packs = row_stride % Pack<T>::size == 0 && packs_fit<T>(depth / 2, x);
  const std::size_t cells = heads * (depth / 2) / (packs ? Pack<T>::size : 1);
  launch(packs ? rotate_kernel<T, true> : rotate_kernel<T, false>,
         shape_for_short_rows(rows, cells, depth * sizeof(float)), context.stream(), x, row_stride, rows, heads, depth,
         frequencies, positions, back);
}

// -------------------------------------------------------------------------------------------------------------- SwiGLU

namespace {

template <class T>
__global__ void swiglu_kernel(const T* gate_up, T* y, std::size_t y_stride, std::size_t rows, std::size_t hidden,
                              bool packs) {
  for (std::size_t row : row_range(rows)) {
    const T *const gate = gate_up + row * 2 * hidden, *const up = gate + hidden;
    T* const to = y + row * y_stride;
    for_packs<T>(BlockRange{}, hidden, packs, [&](auto g, std::size_t i) {
      using V = decltype(g);
      g = load<V>(gate, i);
      const V u = load<V>(up, i);
      each_lane<V>([&](std::size_t k) {
        const float value = static_cast<float>(g[k]);
        g[k] = static_cast<T>(value / (1.0f + exp_of(-value)) * static_cast<float>(u[k]));
      });
      store(to, i, g);
    });
  }
}

// silu'(x) = s · (1 + x · (1 − s)) with s = 1 / (1 + e^−x).
template <class T>
__global__ void swiglu_backward_kernel(const T* dy, T* gate_up, std::size_t rows, std::size_t hidden, bool packs) {
  for (std::size_t row : row_range(rows)) {
    T *const gate = gate_up + row * 2 * hidden, *const up = gate + hidden;
    for_packs<T>(BlockRange{}, hidden, packs, [&](auto d, std::size_t i) {
      using V = decltype(d);
      d = load<V>(dy + row * hidden, i);
      V g = load<V>(gate, i), u = load<V>(up, i);
      each_lane<V>([&](std::size_t k) {
        const float value = static_cast<float>(g[k]), own = static_cast<float>(d[k]);
        const float s = 1.0f / (1.0f + exp_of(-value));
        g[k] = static_cast<T>(own * static_cast<float>(u[k]) * (s * fmaf(value, 1.0f - s, 1.0f)));
        u[k] = static_cast<T>(own * (value * s));
      });
      store(gate, i, g);
      store(up, i, u);
    });
  }
}

}  // namespace

template <class T>
void swiglu_forward(Context& context, const T* gate_up, T* y, std::size_t y_stride, std::size_t rows,
                    std::size_t hidden) {
  const bool packs = y_stride % Pack<T>::size == 0 && packs_fit<T>(hidden, gate_up, y);
  launch(swiglu_kernel<T>, shape_for_packed_rows<T>(rows, hidden), context.stream(), gate_up, y, y_stride, rows, hidden,
         packs);
}

template <class T>
void swiglu_backward(Context& context, const T* dy, T* gate_up, std::size_t rows, std::size_t hidden) {
  launch(swiglu_backward_kernel<T>, shape_for_packed_rows<T>(rows, hidden), context.stream(), dy, gate_up, rows, hidden,
         packs_fit<T>(hidden, dy, gate_up));
}

#define OOMLAB_DECODER(T)                                                                         \
  template void rotate_heads<T>(Context&, T*, std::size_t, std::size_t, std::size_t, std::size_t, \
                                const RotaryFrequencies&, RowPositions, bool);                    \
  template void swiglu_forward<T>(Context&, const T*, T*, std::size_t, std::size_t, std::size_t); \
  template void swiglu_backward<T>(Context&, const T*, T*, std::size_t, std::size_t);
OOMLAB_FOR_EACH_TYPE(OOMLAB_DECODER)

}  // namespace oomlab::nn
