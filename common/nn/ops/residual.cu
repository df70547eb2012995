#include "nn/ops/residual.h"

#include "nn/ops/instances.h"
#include "nn/ops/kernel.h"

namespace oomlab::nn {

namespace {

template <class T>
__global__ void add_residual_kernel(const T* x, const T* y, const T* bias, T* out, std::size_t rows, std::size_t width,
                                    bool packs) {
  for (std::size_t row : row_range(rows))
    for_packs<T>(BlockRange{}, width, packs, [&](auto v, std::size_t i) {
      using V = decltype(v);
      v = load<V>(x + row * width, i);
      const V w = load<V>(y + row * width, i);
      V b{};
      if (bias) b = load<V>(bias, i);
      each_lane<V>([&](std::size_t k) {
        v[k] = static_cast<T>(static_cast<float>(v[k]) + (static_cast<float>(w[k]) + static_cast<float>(b[k])));
      });
      store(out + row * width, i, v);
    });
}

}  // namespace

template <class T>
void add_residual(Context& context, const T* x, const T* y, const std::type_identity_t<T>* bias, T* out,
                  std::size_t rows, std::size_t width) {
  launch(add_residual_kernel<T>, shape_for_packed_rows<T>(rows, width), context.stream(), x, y, bias, out, rows, width,
         packs_fit<T>(width, x, y, bias, out));
}

namespace {

template <class T>
__global__ void add_kernel(T* y, const T* __restrict__ x, std::size_t count, bool packs) {
  for_packs<T>(GridRange{}, count, packs, [&](auto v, std::size_t i) {
    using V = decltype(v);
    v = load<V>(y, i);
    const V more = load<V>(x, i);
    each_lane<V>([&](std::size_t k) { v[k] = static_cast<T>(static_cast<float>(v[k]) + static_cast<float>(more[k])); });
    store(y, i, v);
  });
}

}  // namespace

template <class T>
void add_to(Context& context, T* y, const T* x, std::size_t count) {
  launch(add_kernel<T>, shape_for_items(count / Pack<T>::size), context.stream(), y, x, count, aligned_for_packs(y, x));
}

#define OOMLAB_INSTANCES(T)                                                                            \
  template void add_residual<T>(Context&, const T*, const T*, const T*, T*, std::size_t, std::size_t); \
  template void add_to(Context&, T*, const T*, std::size_t);
OOMLAB_FOR_EACH_TYPE(OOMLAB_INSTANCES)

}  // namespace oomlab::nn
