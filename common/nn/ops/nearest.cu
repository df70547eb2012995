#include "nn/ops/nearest.h"

#include "nn/ops/enlarged.h"
#include "nn/ops/instances.h"
#include "nn/ops/kernel.h"

namespace oomlab::nn {

namespace {

// Where a pixel's square begins in the enlarged image, in pixels.
__device__ inline std::size_t square_of(const Enlarged& s, std::size_t pixel) {
  const std::size_t line = pixel / s.width, column = pixel % s.width;  // lines of all images follow each other
  return line * s.factor * s.out_width() + column * s.factor;
}

template <class T>
__global__ void nearest_kernel(Enlarged s, const T* __restrict__ x, T* __restrict__ y, bool packs) {
  for (std::size_t pixel : row_range(s.batch * s.height * s.width)) {
    const std::size_t square = square_of(s, pixel);
    for_packs<T>(BlockRange{}, s.channels, packs, [&](auto v, std::size_t i) {
      v = load<decltype(v)>(x + pixel * s.channels, i);
      for (std::size_t dy = 0; dy < s.factor; ++dy)
        for (std::size_t dx = 0; dx < s.factor; ++dx) store(y + (square + dy * s.out_width() + dx) * s.channels, i, v);
    });
  }
}

template <class T>
__global__ void nearest_backward_kernel(Enlarged s, const T* __restrict__ dy, T* __restrict__ dx, bool packs) {
  for (std::size_t pixel : row_range(s.batch * s.height * s.width)) {
    const std::size_t square = square_of(s, pixel);
    gather_gradient(dx + pixel * s.channels, s.channels, packs, [&](auto add) {
      for (std::size_t row = 0; row < s.factor; ++row)
        for (std::size_t column = 0; column < s.factor; ++column)
          add(dy + (square + row * s.out_width() + column) * s.channels, 1.0f);
    });
  }
}

}  // namespace

template <class T>
void nearest_forward(Context& context, const T* x, T* y, std::size_t batch, std::size_t height, std::size_t width,
                     std::size_t channels, std::size_t factor) {
  const Enlarged s = enlarged(batch, height, width, channels, factor);
  launch(nearest_kernel<T>, shape_for_packed_rows<T>(batch * height * width, channels), context.stream(), s, x, y,
         packs_fit<T>(channels, x, y));
}

template <class T>
void nearest_backward(Context& context, const T* dy, T* dx, std::size_t batch, std::size_t height, std::size_t width,
                      std::size_t channels, std::size_t factor) {
  const Enlarged s = enlarged(batch, height, width, channels, factor);
  launch(nearest_backward_kernel<T>, shape_for_packed_rows<T>(batch * height * width, channels), context.stream(), s,
         dy, dx, packs_fit<T>(channels, dy, dx));
}

#define OOMLAB_INSTANCES(T)                                                                                  \
  template void nearest_forward(Context&, const T*, T*, std::size_t, std::size_t, std::size_t, std::size_t,  \
                                std::size_t);                                                                \
  template void nearest_backward(Context&, const T*, T*, std::size_t, std::size_t, std::size_t, std::size_t, \
                                 std::size_t);
OOMLAB_FOR_EACH_TYPE(OOMLAB_INSTANCES)

}  // namespace oomlab::nn
