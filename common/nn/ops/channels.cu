#include "nn/ops/channels.h"

#include <algorithm>
#include <functional>

#include "nn/ops/instances.h"
#include "nn/ops/kernel.h"
#include "plan/bytes.h"

namespace oomlab::nn {

namespace {

template <class T>
__device__ void copy_row(const T* from, T* to, std::size_t n, bool packs) {
  for_packs<T>(BlockRange{}, n, packs, [=](auto v, std::size_t i) { store(to, i, load<decltype(v)>(from, i)); });
}

template <class T>
__global__ void concatenate_kernel(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ y,
                                   std::size_t rows, std::size_t a_channels, std::size_t b_channels, bool packs) {
  for (std::size_t row : row_range(rows)) {
    T* const both = y + row * (a_channels + b_channels);
    copy_row(a + row * a_channels, both, a_channels, packs);
    copy_row(b + row * b_channels, both + a_channels, b_channels, packs);
  }
}

template <class T>
__global__ void split_kernel(const T* __restrict__ dy, T* __restrict__ da, T* __restrict__ db, std::size_t rows,
                             std::size_t a_channels, std::size_t b_channels, bool packs) {
  for (std::size_t row : row_range(rows)) {
    const T* const both = dy + row * (a_channels + b_channels);
    copy_row(both, da + row * a_channels, a_channels, packs);
    copy_row(both + a_channels, db + row * b_channels, b_channels, packs);
  }
}

template <class T>
bool both_fit(const T* a, std::size_t a_channels, const T* b, std::size_t b_channels, const T* joined) {
  return packs_fit<T>(a_channels, a, joined) && packs_fit<T>(b_channels, b);
}

}  // namespace

template <class T>
void concatenate_channels(Context& context, const T* a, const T* b, T* y, std::size_t rows, std::size_t a_channels,
                          std::size_t b_channels) {
  checked_product(rows, checked_sum(a_channels, b_channels));
  launch(concatenate_kernel<T>, shape_for_packed_rows<T>(rows, std::max(a_channels, b_channels)), context.stream(), a,
         b, y, rows, a_channels, b_channels, both_fit(a, a_channels, b, b_channels, y));
}

template <class T>
void split_channels(Context& context, const T* dy, T* da, T* db, std::size_t rows, std::size_t a_channels,
                    std::size_t b_channels) {
  checked_product(rows, checked_sum(a_channels, b_channels));
  launch(split_kernel<T>, shape_for_packed_rows<T>(rows, std::max(a_channels, b_channels)), context.stream(), dy, da,
         db, rows, a_channels, b_channels, both_fit<T>(da, a_channels, db, b_channels, dy));
}

// -------------------------------------------------------------------------------- a shift, or a factor, for a channel

namespace {

// y = Operation(x, own), of two floats: `own` has one value for all pixels of an image's channel.
template <class T, class Operation>
__global__ void per_channel_kernel(const T* x, const T* __restrict__ own, T* y, std::size_t rows, std::size_t pixels,
                                   std::size_t channels, bool packs) {
  for (std::size_t row : row_range(rows)) {
    const std::size_t at = row * channels, image = row / pixels * channels;
    for_packs<T>(BlockRange{}, channels, packs, [&](auto v, std::size_t i) {
      using V = decltype(v);
      v = load<V>(x + at, i);
      const V o = load<V>(own + image, i);
      each_lane<V>([&](std::size_t k) {
        v[k] = static_cast<T>(Operation{}(static_cast<float>(v[k]), static_cast<float>(o[k])));
      });
      store(y + at, i, v);
    });
  }
}

template <class T>
__global__ void scale_backward_factors_kernel(const T* __restrict__ dy, const T* __restrict__ x,
                                              T* __restrict__ dfactors, std::size_t batch, std::size_t pixels,
                                              std::size_t channels, bool packs) {
  for (std::size_t image : row_range(batch))
    for_packs<T>(BlockRange{}, channels, packs, [&](auto v, std::size_t i) {
      using V = decltype(v);
      float sum[V::size];
      sum_in_parts(sum, pixels, [&](float* part, std::size_t pixel) {
        const std::size_t at = (image * pixels + pixel) * channels;
        v = load<V>(x + at, i);
        const V d = load<V>(dy + at, i);
        each_lane<V>([&](std::size_t k) { part[k] += static_cast<float>(d[k]) * static_cast<float>(v[k]); });
      });
      each_lane<V>([&](std::size_t k) { v[k] = static_cast<T>(sum[k]); });
      store(dfactors + image * channels, i, v);
    });
}

template <class T>
__global__ void scale_backward_input_kernel(T* __restrict__ dy, const T* __restrict__ factors,
                                            const T* __restrict__ dmean, float share, std::size_t rows,
                                            std::size_t pixels, std::size_t channels, bool packs) {
  for (std::size_t row : row_range(rows)) {
    const std::size_t at = row * channels, image = row / pixels * channels;
    for_packs<T>(BlockRange{}, channels, packs, [&](auto v, std::size_t i) {
      using V = decltype(v);
      v = load<V>(dy + at, i);
      const V f = load<V>(factors + image, i), m = load<V>(dmean + image, i);
      each_lane<V>([&](std::size_t k) {
        v[k] = static_cast<T>(static_cast<float>(v[k]) * static_cast<float>(f[k]) + share * static_cast<float>(m[k]));
      });
      store(dy + at, i, v);
    });
  }
}

// The pixels of a batch, whose values have addresses.
std::size_t rows_of(std::size_t batch, std::size_t pixels, std::size_t channels) {
  const std::size_t rows = checked_product(batch, pixels);
  checked_product(rows, channels);
  return rows;
}

template <class Operation, class T>
void launch_per_channel(Context& context, const T* x, const T* own, T* y, std::size_t batch, std::size_t pixels,
                        std::size_t channels) {
  const std::size_t rows = rows_of(batch, pixels, channels);
  launch(per_channel_kernel<T, Operation>, shape_for_packed_rows<T>(rows, channels), context.stream(), x, own, y, rows,
         pixels, channels, packs_fit<T>(channels, x, own, y));
}

}  // namespace

template <class T>
void shift_channels(Context& context, const T* x, const T* shifts, T* y, std::size_t batch, std::size_t pixels,
                    std::size_t channels) {
  launch_per_channel<std::plus<float>>(context, x, shifts, y, batch, pixels, channels);
}

template <class T>
void scale_channels(Context& context, const T* x, const T* factors, T* y, std::size_t batch, std::size_t pixels,
                    std::size_t channels) {
  launch_per_channel<std::multiplies<float>>(context, x, factors, y, batch, pixels, channels);
}

template <class T>
void scale_channels_backward_factors(Context& context, const T* dy, const T* x, T* dfactors, std::size_t batch,
                                     std::size_t pixels, std::size_t channels) {
  rows_of(batch, pixels, channels);
  launch(scale_backward_factors_kernel<T>, shape_for_packed_rows<T>(batch, channels), context.stream(), dy, x, dfactors,
         batch, pixels, channels, packs_fit<T>(channels, dy, x, dfactors));
}

template <class T>
void scale_channels_backward_input(Context& context, T* dy, const T* factors, const T* dmean, float share,
                                   std::size_t batch, std::size_t pixels, std::size_t channels) {
  const std::size_t rows = rows_of(batch, pixels, channels);
  launch(scale_backward_input_kernel<T>, shape_for_packed_rows<T>(rows, channels), context.stream(), dy, factors, dmean,
         share, rows, pixels, channels, packs_fit<T>(channels, dy, factors, dmean));
}

#define OOMLAB_INSTANCES(T)                                                                                      \
  template void concatenate_channels(Context&, const T*, const T*, T*, std::size_t, std::size_t, std::size_t);   \
  template void split_channels(Context&, const T*, T*, T*, std::size_t, std::size_t, std::size_t);               \
  template void shift_channels(Context&, const T*, const T*, T*, std::size_t, std::size_t, std::size_t);         \
  template void scale_channels(Context&, const T*, const T*, T*, std::size_t, std::size_t, std::size_t);         \
  template void scale_channels_backward_factors(Context&, const T*, const T*, T*, std::size_t, std::size_t,      \
                                                std::size_t);                                                    \
  template void scale_channels_backward_input(Context&, T*, const T*, const T*, float, std::size_t, std::size_t, \
                                              std::size_t);
OOMLAB_FOR_EACH_TYPE(OOMLAB_INSTANCES)

}  // namespace oomlab::nn
