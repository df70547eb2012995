#include "nn/ops/upsample.h"

#include "nn/ops/enlarged.h"
#include "nn/ops/instances.h"
#include "nn/ops/kernel.h"

namespace oomlab::nn {

namespace {

// Where output pixel i of a line lies among its `size` input pixels, which are 2 · factor apart.
__device__ inline std::size_t place_of(std::size_t i, std::size_t factor, std::size_t size) {
  const std::size_t last = 2 * factor * (size - 1), place = 2 * i + 1 > factor ? 2 * i + 1 - factor : 0;
  return place < last ? place : last;
}

// The input pixels that an output pixel lies between, and the second one's weight.
struct Neighbours {
  std::size_t low, high;
  float weight;
};
__device__ inline Neighbours neighbours_of(std::size_t i, std::size_t factor, std::size_t size) {
  const std::size_t apart = 2 * factor, place = place_of(i, factor, size), low = place / apart;
  return {low, low + 1 < size ? low + 1 : low, static_cast<float>(place - low * apart) / static_cast<float>(apart)};
}

// The output pixels that input pixel `at` has a part in, and the part.
struct Outputs {
  std::size_t at, factor, size;
  __device__ std::size_t first() const { return at == 0 ? 0 : at * factor - factor + (factor + 1) / 2; }
  __device__ std::size_t end() const { return at + 1 == size ? size * factor : at * factor + factor + factor / 2; }
  __device__ float weight(std::size_t i) const {
    const std::size_t place = place_of(i, factor, size), here = 2 * factor * at;
    const std::size_t distance = place < here ? here - place : place - here;
    return static_cast<float>(2 * factor - distance) / static_cast<float>(2 * factor);
  }
};

template <class T>
__global__ void upsample_kernel(Enlarged s, const T* __restrict__ x, T* __restrict__ y, bool packs) {
  for (std::size_t pixel : row_range(s.batch * s.out_height() * s.out_width())) {
    const std::size_t line = pixel / s.out_width();
    const Neighbours v = neighbours_of(line % s.out_height(), s.factor, s.height);
    const Neighbours h = neighbours_of(pixel % s.out_width(), s.factor, s.width);
    const T* const image = x + line / s.out_height() * s.height * s.width * s.channels;
    const T* const upper = image + v.low * s.width * s.channels;
    const T* const lower = image + v.high * s.width * s.channels;
    const float right = h.weight, left = 1.0f - right, below = v.weight, above = 1.0f - below;
    for_packs<T>(BlockRange{}, s.channels, packs, [&](auto out, std::size_t i) {
      using V = decltype(out);
      const V a = load<V>(upper + h.low * s.channels, i), b = load<V>(upper + h.high * s.channels, i);
      const V c = load<V>(lower + h.low * s.channels, i), d = load<V>(lower + h.high * s.channels, i);
      each_lane<V>([&](std::size_t k) {
        out[k] = static_cast<T>(above * (left * static_cast<float>(a[k]) + right * static_cast<float>(b[k])) +
                                below * (left * static_cast<float>(c[k]) + right * static_cast<float>(d[k])));
      });
      store(y + pixel * s.channels, i, out);
    });
  }
}

// A thread has more values in flight here than the registers of 1,024 threads hold; see at_most().
constexpr unsigned kUpsampleBackwardThreads = 512;

template <class T>
__global__ void upsample_backward_kernel(Enlarged s, const T* __restrict__ dy, T* __restrict__ dx, bool packs) {
  for (std::size_t pixel : row_range(s.batch * s.height * s.width)) {
    const std::size_t line = pixel / s.width;
    const Outputs v{line % s.height, s.factor, s.height}, h{pixel % s.width, s.factor, s.width};
    const T* const image = dy + line / s.height * s.out_height() * s.out_width() * s.channels;
    gather_gradient(dx + pixel * s.channels, s.channels, packs, [&](auto add) {
      for (std::size_t oy = v.first(); oy < v.end(); ++oy) {
        const T* const out = image + oy * s.out_width() * s.channels;
        const float of_line = v.weight(oy);
        for (std::size_t ox = h.first(); ox < h.end(); ++ox) add(out + ox * s.channels, of_line * h.weight(ox));
      }
    });
  }
}

}  // namespace

template <class T>
void upsample_forward(Context& context, const T* x, T* y, std::size_t batch, std::size_t height, std::size_t width,
                      std::size_t channels, std::size_t factor) {
  const Enlarged s = enlarged(batch, height, width, channels, factor);
  launch(upsample_kernel<T>, shape_for_packed_rows<T>(batch * s.out_height() * s.out_width(), channels),
         context.stream(), s, x, y, packs_fit<T>(channels, x, y));
}

template <class T>
void upsample_backward(Context& context, const T* dy, T* dx, std::size_t batch, std::size_t height, std::size_t width,
                       std::size_t channels, std::size_t factor) {
  const Enlarged s = enlarged(batch, height, width, channels, factor);
  launch(upsample_backward_kernel<T>,
         at_most(kUpsampleBackwardThreads, shape_for_packed_rows<T>(batch * height * width, channels)),
         context.stream(), s, dy, dx, packs_fit<T>(channels, dy, dx));
}

#define OOMLAB_INSTANCES(T)                                                                                   \
  template void upsample_forward(Context&, const T*, T*, std::size_t, std::size_t, std::size_t, std::size_t,  \
                                 std::size_t);                                                                \
  template void upsample_backward(Context&, const T*, T*, std::size_t, std::size_t, std::size_t, std::size_t, \
                                  std::size_t);
OOMLAB_FOR_EACH_TYPE(OOMLAB_INSTANCES)

}  // namespace oomlab::nn
