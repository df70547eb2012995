// The gradients of group norm's gamma and beta: a file of its own, since sums over columns are compiled for a long time.

#include "nn/ops/activation_math.h"
#include "nn/ops/column_sum_kernel.h"
#include "nn/ops/group_norm.h"
#include "nn/ops/group_norm_kernel.h"
#include "nn/ops/instances.h"
#include "nn/ops/kernel.h"

namespace oomlab::nn {

namespace {

// Of a channel: the gradient of beta, or with x normalised as a factor that of gamma.
template <class T, Activation A, bool kPacks, bool kGamma>
struct GroupNormColumns {
  const T *dy, *x, *gamma, *beta;
  const float *mean, *rstd;
  std::size_t pixels, channels, groups;
  unsigned of_group;

  template <bool kCellPacks, std::size_t lanes>
  __device__ void add(float* sum, std::size_t row, std::size_t column) const {
    float d[lanes];
    load_floats<kCellPacks, lanes>(d, dy + row * channels + column);
    if constexpr (kGamma || A != Activation::none) {
      float v[lanes], m[lanes], r[lanes], g[lanes], b[lanes];
      load_floats<kCellPacks, lanes>(v, x + row * channels + column);
      load_floats<kCellPacks, lanes>(g, gamma + column);
      load_floats<kCellPacks, lanes>(b, beta + column);
      const std::size_t image = row / pixels * groups;
      spread(m, mean + image, column, of_group);
      spread(r, rstd + image, column, of_group);
      for (std::size_t k = 0; k < lanes; ++k) {
        const float normal = normal_of(v[k], m[k], r[k]);
        const float before = d[k] * derivative<A>(scaled(normal, g[k], b[k]));
        sum[k] += kGamma ? before * normal : before;
      }
    } else {
      for (std::size_t k = 0; k < lanes; ++k) sum[k] += d[k];
    }
  }
  __device__ float at(std::size_t row, std::size_t column) const {
    float sum = 0.0f;
    add<false, 1>(&sum, row, column);
    return sum;
  }
  __device__ void add_cell_row(float* sum, std::size_t row, std::size_t column) const {
    add<kPacks, kCell>(sum, row, column);
  }
};

}  // namespace

template <class T>
void group_norm_backward_weight(Context& context, const GroupNormShape& shape, const T* dy, const T* x,
                                const float* mean, const float* rstd, const T* gamma, const T* beta, T* dgamma,
                                T* dbeta, bool accumulate) {
  check_group_norm(shape);
  const std::size_t rows = shape.batch * shape.pixels;
  const auto both = [&]<Activation A, bool kPacks>(ActivationConstant<A>, std::bool_constant<kPacks>) {
    const auto columns = [&]<bool kGamma>(std::bool_constant<kGamma>, T* sums) {
      const GroupNormColumns<T, A, kPacks, kGamma> term{
          dy,           x,
          gamma,        beta,
          mean,         rstd,
          shape.pixels, shape.channels,
          shape.groups, static_cast<unsigned>(shape.channels / shape.groups)};
      launch_column_sum(context, term, sums, rows, shape.channels, accumulate);
    };
    columns(std::true_type{}, dgamma);
    columns(std::false_type{}, dbeta);
  };
  with_norm_activation(shape.activation, [&](auto activation) {
    if (packs_fit<T>(shape.channels, dy, x, gamma, beta))
      both(activation, std::true_type{});
    else
      both(activation, std::false_type{});
  });
}

#define OOMLAB_INSTANCES(T)                                                                                   \
  template void group_norm_backward_weight(Context&, const GroupNormShape&, const T*, const T*, const float*, \
                                           const float*, const T*, const T*, T*, T*, bool);
OOMLAB_FOR_EACH_TYPE(OOMLAB_INSTANCES)

}  // namespace oomlab::nn
