#include "nn/ops/rotary.h"

#include <cmath>
#include <numbers>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "nn/ops/instances.h"
#include "nn/ops/kernel.h"
#include "nn/ops/sine_cosine.h"

namespace oomlab::nn {

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

// A row's cosines and sines come into shared memory once, for all its heads. `back`: the other way round.
template <class T, bool kPacks>
__global__ void rotate_kernel(T* x, std::size_t row_stride, std::size_t rows, std::size_t heads, std::size_t depth,
                              const __grid_constant__ RotaryFrequencies frequencies, RowPositions positions,
                              bool back) {
  using V = std::conditional_t<kPacks, Pack<T>, Single<T>>;
  const std::size_t half = depth / 2, per_head = half / V::size;
  float *const cosines = dynamic_shared<float>(), *const sines = cosines + half;
  for (std::size_t row : row_range(rows)) {
    const TokenShare& tokens = positions.tokens;
    const float position = positions.of_row ? static_cast<float>(positions.of_row[row])
                                            : static_cast<float>(tokens.position(row % tokens.seq));
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

#define OOMLAB_INSTANCES(T)                                                                       \
  template void rotate_heads<T>(Context&, T*, std::size_t, std::size_t, std::size_t, std::size_t, \
                                const RotaryFrequencies&, RowPositions, bool);
OOMLAB_FOR_EACH_TYPE(OOMLAB_INSTANCES)

}  // namespace oomlab::nn
