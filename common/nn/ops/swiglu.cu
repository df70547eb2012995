#include "nn/ops/swiglu.h"

#include <cmath>

#include "nn/ops/instances.h"
#include "nn/ops/kernel.h"

namespace oomlab::nn {

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
        const float s = sigmoid(value);
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

#define OOMLAB_INSTANCES(T)                                                                       \
  template void swiglu_forward<T>(Context&, const T*, T*, std::size_t, std::size_t, std::size_t); \
  template void swiglu_backward<T>(Context&, const T*, T*, std::size_t, std::size_t);
OOMLAB_FOR_EACH_TYPE(OOMLAB_INSTANCES)

}  // namespace oomlab::nn
