#include "nn/ops/swiglu.h"

#include <cmath>

#include "nn/ops/gated.h"
#include "nn/ops/instances.h"
#include "nn/ops/kernel.h"

namespace oomlab::nn {

namespace {

// The first half is the gate, the second one is let through. silu'(x) = s · (1 + x · (1 − s)) with s = 1 / (1 + e^−x).
struct Swiglu {
  static __device__ float of(float gate, float up) { return gate / (1.0f + exp_of(-gate)) * up; }
  static __device__ Halves gradients(float dy, float gate, float up) {
    const float s = sigmoid(gate);
    return {dy * up * (s * fmaf(gate, 1.0f - s, 1.0f)), dy * (gate * s)};
  }
};

template <class T>
__global__ void swiglu_kernel(const T* gate_up, T* y, std::size_t y_stride, std::size_t rows, std::size_t hidden,
                              bool packs) {
  for (std::size_t row : row_range(rows))
    gated_row<Swiglu>(gate_up + row * 2 * hidden, y + row * y_stride, hidden, packs);
}

template <class T>
__global__ void swiglu_backward_kernel(const T* dy, T* gate_up, std::size_t rows, std::size_t hidden, bool packs) {
  for (std::size_t row : row_range(rows))
    gated_row_backward<Swiglu>(dy + row * hidden, gate_up + row * 2 * hidden, hidden, packs);
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
