#include "nn/ops/geglu.h"

#include "nn/ops/gated.h"
#include "nn/ops/instances.h"
#include "nn/ops/kernel.h"

namespace oomlab::nn {

namespace {

// The first half is let through, the second one is the gate.
struct Geglu {
  static __device__ float of(float value, float gate) { return value * (gate * normal_share(gate)); }
  static __device__ Halves gradients(float dy, float value, float gate) {
    const float share = normal_share(gate);
    return {dy * (gate * share), dy * value * fmaf(gate, normal_density(gate), share)};
  }
};

template <class T>
__global__ void geglu_kernel(const T* __restrict__ x, T* __restrict__ y, std::size_t rows, std::size_t width,
                             bool packs) {
  for (std::size_t row : row_range(rows)) gated_row<Geglu>(x + row * 2 * width, y + row * width, width, packs);
}

template <class T>
__global__ void geglu_backward_kernel(const T* __restrict__ dy, T* x, std::size_t rows, std::size_t width, bool packs) {
  for (std::size_t row : row_range(rows))
    gated_row_backward<Geglu>(dy + row * width, x + row * 2 * width, width, packs);
}

}  // namespace

template <class T>
void geglu_forward(Context& context, const T* x, T* y, std::size_t rows, std::size_t width) {
  launch(geglu_kernel<T>, shape_for_packed_rows<T>(rows, width), context.stream(), x, y, rows, width,
         packs_fit<T>(width, x, y));
}

template <class T>
void geglu_backward(Context& context, const T* dy, T* x, std::size_t rows, std::size_t width) {
  launch(geglu_backward_kernel<T>, shape_for_packed_rows<T>(rows, width), context.stream(), dy, x, rows, width,
         packs_fit<T>(width, dy, x));
}

#define OOMLAB_INSTANCES(T)                                                      \
  template void geglu_forward(Context&, const T*, T*, std::size_t, std::size_t); \
  template void geglu_backward(Context&, const T*, T*, std::size_t, std::size_t);
OOMLAB_FOR_EACH_TYPE(OOMLAB_INSTANCES)

}  // namespace oomlab::nn
