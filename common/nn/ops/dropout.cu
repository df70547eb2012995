#include "nn/ops/dropout.h"

#include "nn/ops/hash.h"
#include "nn/ops/instances.h"
#include "nn/ops/kernel.h"

namespace oomlab::nn {

namespace {

__global__ void draw_mask_kernel(std::uint8_t* mask, MatrixPart p, float kept, std::uint64_t key) {
  for (std::size_t row : row_range(p.rows)) {
    const std::size_t first = (p.first_row + row) * p.all_columns + p.first_column;
    for (std::size_t i : block_range(p.columns))
      mask[row * p.columns + i] = uniform(key, first + i) < 2.0f * kept - 1.0f ? 1 : 0;
  }
}

template <class T>
__global__ void masked_kernel(const T* x, std::size_t stride, const std::uint8_t* mask, float factor, T* y,
                              std::size_t rows, std::size_t width, bool packs) {
  for (std::size_t row : row_range(rows)) {
    const std::uint8_t* const keep = mask + row * width;
    for_packs<T>(BlockRange{}, width, packs, [&](auto v, std::size_t i) {
      using V = decltype(v);
      v = load<V>(x + row * stride, i);
      each_lane<V>([&](std::size_t k) {
        v[k] = static_cast<T>(keep[i * V::size + k] ? factor * static_cast<float>(v[k]) : 0.0f);
      });
      store(y + row * width, i, v);
    });
  }
}

template <class T>
__global__ void add_masked_kernel(T* y, const T* x, const std::uint8_t* mask, float factor, std::size_t count,
                                  bool packs) {
  for_packs<T>(GridRange{}, count, packs, [&](auto v, std::size_t i) {
    using V = decltype(v);
    v = load<V>(y, i);
    const V more = load<V>(x, i);
    const std::size_t first = i * V::size;
    each_lane<V>([&](std::size_t k) {
      if (mask[first + k]) v[k] = static_cast<T>(fmaf(factor, static_cast<float>(more[k]), static_cast<float>(v[k])));
    });
    store(y, i, v);
  });
}

}  // namespace

void draw_mask(Context& context, std::uint8_t* mask, const MatrixPart& part, float kept, std::uint64_t seed,
               std::uint64_t stream) {
  launch(draw_mask_kernel, shape_for_rows(part.rows), context.stream(), mask, part, kept, hash_key(seed, stream));
}

template <class T>
void masked(Context& context, const T* x, std::size_t stride, const std::uint8_t* mask, float factor,
            std::type_identity_t<T>* y, std::size_t rows, std::size_t width) {
  const bool packs = stride % Pack<T>::size == 0 && packs_fit<T>(width, x, y);
  launch(masked_kernel<T>, shape_for_packed_rows<T>(rows, width), context.stream(), x, stride, mask, factor, y, rows,
         width, packs);
}

template <class T>
void add_masked(Context& context, T* y, const std::type_identity_t<T>* x, const std::uint8_t* mask, float factor,
                std::size_t count) {
  launch(add_masked_kernel<T>, shape_for_items(count / Pack<T>::size), context.stream(), y, x, mask, factor, count,
         aligned_for_packs(y, x));
}

#define OOMLAB_INSTANCES(T)                                                                                           \
  template void masked<T>(Context&, const T*, std::size_t, const std::uint8_t*, float, T*, std::size_t, std::size_t); \
  template void add_masked<T>(Context&, T*, const T*, const std::uint8_t*, float, std::size_t);
OOMLAB_FOR_EACH_TYPE(OOMLAB_INSTANCES)

}  // namespace oomlab::nn
