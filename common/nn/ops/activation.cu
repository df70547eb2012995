#include "nn/ops/activation.h"

#include "nn/ops/activation_math.h"
#include "nn/ops/instances.h"
#include "nn/ops/kernel.h"

namespace oomlab::nn {

namespace {

// One block a row, so that the bias needs no division to be found. What goes into the activation is rounded to T first,
// kept or not: so the two kernels give the same bits, and the backward pass sees what the forward pass saw.
template <class T, Activation A>
__global__ void bias_activation_kernel(T* y, const T* bias, std::size_t rows, std::size_t width, bool packs) {
  for (std::size_t row : row_range(rows)) {
    T* line = y + row * width;
    if (bias) {
      for_packs<T>(BlockRange{}, width, packs, [&](auto v, std::size_t i) {
        using V = decltype(v);
        v = load<V>(line, i);
        const V b = load<V>(bias, i);
        each_lane<V>([&](std::size_t k) {
          const T z = static_cast<T>(static_cast<float>(v[k]) + static_cast<float>(b[k]));
          v[k] = static_cast<T>(activate<A>(static_cast<float>(z)));
        });
        store(line, i, v);
      });
    } else {
      for_packs<T>(BlockRange{}, width, packs, [&](auto v, std::size_t i) {
        using V = decltype(v);
        v = load<V>(line, i);
        each_lane<V>([&](std::size_t k) { v[k] = static_cast<T>(activate<A>(static_cast<float>(v[k]))); });
        store(line, i, v);
      });
    }
  }
}

template <class T, Activation A, bool kBias>
__global__ void bias_activation_keep_kernel(T* __restrict__ z, const T* __restrict__ bias, T* __restrict__ y,
                                            std::size_t rows, std::size_t width, bool packs) {
  for (std::size_t row : row_range(rows)) {
    T* const kept = z + row * width;
    T* const out = y + row * width;
    for_packs<T>(BlockRange{}, width, packs, [=](auto v, std::size_t i) {
      using V = decltype(v);
      v = load<V>(kept, i);
      if constexpr (kBias) {
        const V b = load<V>(bias, i);
        each_lane<V>(
            [&](std::size_t k) { v[k] = static_cast<T>(static_cast<float>(v[k]) + static_cast<float>(b[k])); });
      }
      V a;
      each_lane<V>([&](std::size_t k) { a[k] = static_cast<T>(activate<A>(static_cast<float>(v[k]))); });
      store(out, i, a);
      if constexpr (kBias) store(kept, i, v);
    });
  }
}

// dz takes the place of dy, or of what was saved: `into`. The other one is only read.
template <class T, Activation A, bool kIntoSaved>
__global__ void activation_backward_kernel(T* __restrict__ into, const T* __restrict__ other, std::size_t count,
                                           bool packs) {
  for_packs<T>(GridRange{}, count, packs, [&](auto d, std::size_t i) {
    using V = decltype(d);
    d = load<V>(kIntoSaved ? other : into, i);
    const V s = load<V>(kIntoSaved ? into : other, i);
    each_lane<V>([&](std::size_t k) {
      d[k] = static_cast<T>(static_cast<float>(d[k]) * derivative<A>(static_cast<float>(s[k])));
    });
    store(into, i, d);
  });
}

}  // namespace

template <class T>
void bias_activation(Context& context, T* y, const std::type_identity_t<T>* bias, std::size_t rows, std::size_t width,
                     Activation activation) {
  if (!bias && activation == Activation::none) return;
  const auto kernel =
      with_activation<Activation::none, Activation::relu, Activation::gelu, Activation::hard_sigmoid,
                      Activation::hard_swish, Activation::silu, Activation::quick_gelu, Activation::exact_gelu>(
          "behind a bias", activation,
          []<Activation A>(ActivationConstant<A>) { return bias_activation_kernel<T, A>; });
  launch(kernel, shape_for_packed_rows<T>(rows, width), context.stream(), y, bias, rows, width,
         packs_fit<T>(width, y, bias));
}

template <class T>
void bias_activation_keep(Context& context, T* z, const std::type_identity_t<T>* bias, T* y, std::size_t rows,
                          std::size_t width, Activation activation) {
  const auto kernel = with_activation<Activation::relu, Activation::gelu, Activation::hard_swish>(
      "whose input is kept", activation, [&]<Activation A>(ActivationConstant<A>) {
        return bias ? bias_activation_keep_kernel<T, A, true> : bias_activation_keep_kernel<T, A, false>;
      });
  launch(kernel, shape_for_packed_rows<T>(rows, width), context.stream(), z, bias, y, rows, width,
         packs_fit<T>(width, z, bias, y));
}

template <class T>
void activation_backward(Context& context, T* dy, const std::type_identity_t<T>* saved, std::size_t count,
                         Activation activation) {
  if (activation == Activation::none) return;
  const auto kernel =
      with_activation<Activation::relu, Activation::gelu, Activation::hard_sigmoid, Activation::hard_swish>(
          "with a backward pass", activation,
          []<Activation A>(ActivationConstant<A>) { return activation_backward_kernel<T, A, false>; });
  launch(kernel, shape_for_items(count / Pack<T>::size), context.stream(), dy, saved, count,
         aligned_for_packs(dy, saved));
}

template <class T>
void gelu_backward_over(Context& context, const T* dy, T* z, std::size_t count) {
  launch(activation_backward_kernel<T, Activation::gelu, true>, shape_for_items(count / Pack<T>::size),
         context.stream(), z, dy, count, aligned_for_packs(dy, z));
}

// ------------------------------------------------------------------------------------------- activations behind a norm

namespace {

template <class T, Activation A>
__global__ void norm_activation_backward_kernel(T* __restrict__ dy, const T* __restrict__ z,
                                                const float* __restrict__ gamma, const float* __restrict__ beta,
                                                const float* __restrict__ mean, const float* __restrict__ inv_std,
                                                std::size_t rows, std::size_t channels, bool packs) {
  for (std::size_t row : row_range(rows)) {
    const std::size_t at = row * channels;
    for_packs<T>(BlockRange{}, channels, packs, [&](auto d, std::size_t i) {
      using V = decltype(d);
      d = load<V>(dy + at, i);
      const V x = load<V>(z + at, i);
      each_lane<V>([&](std::size_t k) {
        const std::size_t c = i * V::size + k;
        const float v = normalized(static_cast<float>(x[k]), mean[c], inv_std[c], gamma[c], beta[c]);
        d[k] = static_cast<T>(static_cast<float>(d[k]) * derivative<A>(v));
      });
      store(dy + at, i, d);
    });
  }
}

}  // namespace

template <class T>
void norm_activation_backward(Context& context, T* dy, const T* z, const float* gamma, const float* beta,
                              const float* mean, const float* inv_std, std::size_t rows, std::size_t channels,
                              Activation activation) {
  if (activation == Activation::none) return;
  const auto kernel = with_activation<Activation::relu, Activation::hard_swish>(
      "behind a batch norm", activation,
      []<Activation A>(ActivationConstant<A>) { return norm_activation_backward_kernel<T, A>; });
  launch(kernel, shape_for_packed_rows<T>(rows, channels), context.stream(), dy, z, gamma, beta, mean, inv_std, rows,
         channels, packs_fit<T>(channels, dy, z));
}

#define OOMLAB_INSTANCES(T)                                                                                \
  template void bias_activation<T>(Context&, T*, const T*, std::size_t, std::size_t, Activation);          \
  template void bias_activation_keep<T>(Context&, T*, const T*, T*, std::size_t, std::size_t, Activation); \
  template void activation_backward<T>(Context&, T*, const T*, std::size_t, Activation);                   \
  template void gelu_backward_over<T>(Context&, const T*, T*, std::size_t);                                \
  template void norm_activation_backward(Context&, T*, const T*, const float*, const float*, const float*, \
                                         const float*, std::size_t, std::size_t, Activation);
OOMLAB_FOR_EACH_TYPE(OOMLAB_INSTANCES)

}  // namespace oomlab::nn
