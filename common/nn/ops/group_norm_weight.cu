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
template <class T, bool kPacks, bool kGamma>
struct GroupNormColumns {
  const T *dy, *x, *gamma, *beta;
  const float *mean, *rstd;
  std::size_t pixels, channels, groups;
  unsigned of_group;
  bool silu;

  template <bool kCellPacks, std::size_t lanes>
  __device__ void add(float* sum, std::size_t row, std::size_t column) const {
    float d[lanes], v[lanes], m[lanes], r[lanes], g[lanes], b[lanes];
    load_floats<kCellPacks, lanes>(d, dy + row * channels + column);
    load_floats<kCellPacks, lanes>(v, x + row * channels + column);
    load_floats<kCellPacks, lanes>(g, gamma + column);
    load_floats<kCellPacks, lanes>(b, beta + column);
    const std::size_t image = row / pixels * groups;
    spread(m, mean + image, column, of_group);
    spread(r, rstd + image, column, of_group);
    for (std::size_t k = 0; k < lanes; ++k) {
      const float normal = normal_of(v[k], m[k], r[k]);
      const float before = silu ? d[k] * derivative<Activation::silu>(scaled(normal, g[k], b[k])) : d[k];
      sum[k] += kGamma ? before * normal : before;
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
  const auto sum = [&]<bool kPacks, bool kGamma>(std::bool_constant<kPacks>, std::bool_constant<kGamma>, T* sums) {
    const GroupNormColumns<T, kPacks, kGamma> term{dy,
                                                   x,
                                                   gamma,
                                                   beta,
                                                   mean,
                                                   rstd,
                                                   shape.pixels,
                                                   shape.channels,
                                                   shape.groups,
                                                   static_cast<unsigned>(shape.channels / shape.groups),
                                                   shape.activation == Activation::silu};
    launch_column_sum(context, term, sums, shape.batch * shape.pixels, shape.channels, accumulate);
  };
  const auto both = [&](auto packs) {
    sum(packs, std::true_type{}, dgamma);
    sum(packs, std::false_type{}, dbeta);
  };
  if (packs_fit<T>(shape.channels, dy, x, gamma, beta))
    both(std::true_type{});
  else
    both(std::false_type{});
}

#define OOMLAB_INSTANCES(T)                                                                                   \
  template void group_norm_backward_weight(Context&, const GroupNormShape&, const T*, const T*, const float*, \
                                           const float*, const T*, const T*, T*, T*, bool);
OOMLAB_FOR_EACH_TYPE(OOMLAB_INSTANCES)

}  // namespace oomlab::nn
