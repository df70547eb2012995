#include "nn/ops/group_norm.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

#include "nn/ops/activation_math.h"
#include "nn/ops/column_sum_kernel.h"
#include "nn/ops/group_norm_kernel.h"
#include "nn/ops/instances.h"
#include "nn/ops/kernel.h"

namespace oomlab::nn {

namespace {

// Channels last, a group of 10 channels is 20 bytes here and 20 bytes there. So a block takes a unit: as few groups side
// by side, of one image, as make whole packs. A cell is a pack's columns of kCell pixels, whose sums stay in registers.
// Cells of all packs of a unit lie side by side, and `below` of them below each other, until the pixels are done. (To split
// an image's pixels over blocks would need scratch memory, which every byte formula would have to know.)
constexpr unsigned kGroupNormThreads = kCellsOfBlock;  // more would have no cell, and not the registers; see at_most()

struct UnitLayout {
  std::size_t pixels, channels;
  unsigned of_group;         // channels of a group
  unsigned groups, columns;  // of a unit
  unsigned units;            // of an image
  unsigned across, below;    // cells
  float eps;
  __host__ __device__ unsigned cells() const { return across * below; }
  __device__ float values() const { return static_cast<float>(pixels * of_group); }  // of a group
  // Where a unit's first pixel begins, and its first group; units of all images follow each other.
  __device__ std::size_t first_value(std::size_t unit) const {
    return unit / units * pixels * channels + unit % units * columns;
  }
  __device__ std::size_t first_group(std::size_t unit) const { return unit * groups; }
  __device__ std::size_t first_channel(std::size_t unit) const { return unit % units * columns; }
};

// With packs of `lanes` values; 1: values one by one, groups one by one.
UnitLayout layout_of(const GroupNormShape& shape, std::size_t lanes) {
  const std::size_t of_group = shape.channels / shape.groups, groups = lanes / std::gcd(of_group, lanes);
  const std::size_t columns = groups * of_group, across = columns / lanes;
  const std::size_t cells_of_pixels = std::max<std::size_t>(1, (shape.pixels + kCell - 1) / kCell);
  const std::size_t below = std::clamp<std::size_t>(kCellsOfBlock / across, 1, cells_of_pixels);
  return {shape.pixels,
          shape.channels,
          static_cast<unsigned>(of_group),
          static_cast<unsigned>(groups),
          static_cast<unsigned>(columns),
          static_cast<unsigned>(shape.groups / groups),
          static_cast<unsigned>(across),
          static_cast<unsigned>(below),
          shape.eps};
}
template <class T, class... Pointers>
bool units_of_packs(const GroupNormShape& shape, Pointers... pointers) {
  if (!packs_fit<T>(shape.channels, pointers...)) return false;
  const UnitLayout at = layout_of(shape, Pack<T>::size);
  return shape.groups % at.groups == 0 && at.columns <= kGroupNormChannels;
}

// body(cell, pack, first pixel, pixels) for every cell; a cell has one owner throughout.
template <class Body>
__device__ void each_cell(const UnitLayout& at, Body body) {
  for (std::size_t top = 0; top < at.pixels; top += at.below * kCell)
    for (std::size_t i : block_range(at.cells())) {
      const unsigned cell = static_cast<unsigned>(i), row = cell / at.across;
      const std::size_t pixel = top + row * kCell;
      if (pixel < at.pixels)
        body(cell, cell - row * at.across, pixel, at.pixels - pixel < kCell ? at.pixels - pixel : kCell);
    }
}
// f(pixel) for those of a cell; all kCell are written out, so that their loads do not wait for each other.
template <class F>
__device__ void each_pixel(std::size_t first, std::size_t count, F f) {
  if (count == kCell)
    for (std::size_t i = 0; i < kCell; ++i) f(first + i);
  else
    for (std::size_t i = 0; i < count; ++i) f(first + i);
}

// sums[s][g] = the sum of what add(parts, pixel) adds to parts[s][k] for lane k of a cell's pack, over a unit's columns of
// group g; begin(pack) gives `add`. `partial` is room for kSums floats of each lane of each cell: a lane's lie side by
// side.
template <class V, std::size_t kSums, class Begin>
__device__ void sum_groups(const UnitLayout& at, float* partial, float* sums, Begin begin) {
  const unsigned cells = at.cells(), planes = kSums * V::size;
  for (std::size_t i : block_range(planes * cells)) partial[i] = 0.0f;
  __syncthreads();
  each_cell(at, [&](unsigned cell, unsigned pack, std::size_t first, std::size_t count) {
    const auto add = begin(pack);
    float parts[kSums][V::size];
    for (std::size_t s = 0; s < kSums; ++s)
      for (std::size_t k = 0; k < V::size; ++k) parts[s][k] = partial[(s * V::size + k) * cells + cell];
    each_pixel(first, count, [&](std::size_t pixel) { add(parts, pixel); });
    for (std::size_t s = 0; s < kSums; ++s)
      for (std::size_t k = 0; k < V::size; ++k) partial[(s * V::size + k) * cells + cell] = parts[s][k];
  });
  __syncthreads();
  for (unsigned rows = at.below; rows > 1;) {
    const unsigned half = (rows + 1) / 2, added = (rows - half) * at.across;
    for (std::size_t i : block_range(planes * added)) {
      const std::size_t plane = i / added * cells, cell = i % added;
      partial[plane + cell] += partial[plane + half * at.across + cell];
    }
    __syncthreads();
    rows = half;
  }
  for (std::size_t i : block_range(kSums * at.groups)) {
    const float* const of = partial + i / at.groups * V::size * cells;
    const std::size_t first = i % at.groups * at.of_group;
    float sum = 0.0f;
    for (std::size_t column = first; column < first + at.of_group; ++column)
      sum += of[column % V::size * cells + column / V::size];
    sums[i] = sum;
  }
  __syncthreads();
}

// y, mean and rstd may be null.
template <class T, class V>
__global__ void group_norm_kernel(const T* x, const T* gamma, const T* beta, T* y, float* __restrict__ mean_out,
                                  float* __restrict__ rstd_out, Activation activation, std::size_t units,
                                  UnitLayout at) {
  float* const partial = dynamic_shared<float>();
  float *const mean = partial + V::size * at.cells(), *const rstd = mean + at.groups;
  for (std::size_t unit : row_range(units)) {
    const std::size_t first = at.first_value(unit);
    const auto value_of = [&](unsigned pack, std::size_t pixel) {
      return load<V>(x + first + pixel * at.channels, pack);
    };
    sum_groups<V, 1>(at, partial, mean, [&](unsigned pack) {
      return [&, pack](auto& parts, std::size_t pixel) {
        const V v = value_of(pack, pixel);
        each_lane<V>([&](std::size_t k) { parts[0][k] += static_cast<float>(v[k]); });
      };
    });
    for (std::size_t g : block_range(at.groups)) mean[g] /= at.values();
    __syncthreads();
    sum_groups<V, 1>(at, partial, rstd, [&](unsigned pack) {
      struct {
        float of[V::size];
      } centre;
      spread(centre.of, mean, pack * V::size, at.of_group);
      return [&, pack, centre](auto& parts, std::size_t pixel) {
        const V v = value_of(pack, pixel);
        each_lane<V>([&](std::size_t k) {
          const float distance = static_cast<float>(v[k]) - centre.of[k];
          parts[0][k] += distance * distance;
        });
      };
    });
    for (std::size_t g : block_range(at.groups)) {
      rstd[g] = 1.0f / sqrtf(rstd[g] / at.values() + at.eps);
      if (mean_out) {
        mean_out[at.first_group(unit) + g] = mean[g];
        rstd_out[at.first_group(unit) + g] = rstd[g];
      }
    }
    __syncthreads();
    const auto write = [&]<Activation A>(ActivationConstant<A>) {
      each_cell(at, [&](unsigned, unsigned pack, std::size_t first_pixel, std::size_t count) {
        float m[V::size], r[V::size];
        spread(m, mean, pack * V::size, at.of_group);
        spread(r, rstd, pack * V::size, at.of_group);
        const V g = load<V>(gamma + at.first_channel(unit), pack), b = load<V>(beta + at.first_channel(unit), pack);
        each_pixel(first_pixel, count, [&](std::size_t pixel) {
          V v = value_of(pack, pixel);
          each_lane<V>([&](std::size_t k) {
            const float normal = normal_of(static_cast<float>(v[k]), m[k], r[k]);
            v[k] = static_cast<T>(activate<A>(scaled(normal, static_cast<float>(g[k]), static_cast<float>(b[k]))));
          });
          store(y + first + pixel * at.channels, pack, v);
        });
      });
    };
    if (y && activation == Activation::silu)
      write(ActivationConstant<Activation::silu>{});
    else if (y)
      write(ActivationConstant<Activation::none>{});
    __syncthreads();  // the next unit's sums come to the same place
  }
}

// Where the statistics are known, a block has whole pixels.
template <class T, Activation A>
__global__ void group_norm_recompute_kernel(const T* x, const float* __restrict__ mean, const float* __restrict__ rstd,
                                            const T* gamma, const T* beta, T* y, std::size_t rows, std::size_t pixels,
                                            std::size_t channels, std::size_t groups, unsigned of_group, bool packs) {
  for (std::size_t row : row_range(rows)) {
    const std::size_t at = row * channels, image = row / pixels * groups;
    for_packs<T>(BlockRange{}, channels, packs, [&](auto v, std::size_t i) {
      using V = decltype(v);
      float m[V::size], r[V::size];
      spread(m, mean + image, i * V::size, of_group);
      spread(r, rstd + image, i * V::size, of_group);
      v = load<V>(x + at, i);
      const V g = load<V>(gamma, i), b = load<V>(beta, i);
      each_lane<V>([&](std::size_t k) {
        const float normal = normal_of(static_cast<float>(v[k]), m[k], r[k]);
        v[k] = static_cast<T>(activate<A>(scaled(normal, static_cast<float>(g[k]), static_cast<float>(b[k]))));
      });
      store(y + at, i, v);
    });
  }
}

// A pack of one pixel in the backward pass, in floats: x normalised, and the gradient of that.
template <class V, Activation A>
struct Gradients {
  float mean[V::size], rstd[V::size], gamma[V::size], beta[V::size];
  __device__ float normal(std::size_t k, float x) const { return normal_of(x, mean[k], rstd[k]); }
  __device__ float of_normal(std::size_t k, float d, float normal) const {
    return d * derivative<A>(scaled(normal, gamma[k], beta[k])) * gamma[k];
  }
};

// With h = normalised x and g its gradient:  dx = rstd · (g − mean(g) − h · mean(g · h)).
template <class T, class V, Activation A>
__global__ void group_norm_backward_kernel(const T* dy, const T* x, const float* __restrict__ mean,
                                           const float* __restrict__ rstd, const T* gamma, const T* beta, T* dx,
                                           bool add, std::size_t units, UnitLayout at) {
  float* const partial = dynamic_shared<float>();
  float *const g_mean = partial + 2 * V::size * at.cells(), *const gh_mean = g_mean + at.groups;
  for (std::size_t unit : row_range(units)) {
    const std::size_t first = at.first_value(unit);
    const auto known = [&](unsigned pack) {
      Gradients<V, A> all;
      spread(all.mean, mean + at.first_group(unit), pack * V::size, at.of_group);
      spread(all.rstd, rstd + at.first_group(unit), pack * V::size, at.of_group);
      const V g = load<V>(gamma + at.first_channel(unit), pack), b = load<V>(beta + at.first_channel(unit), pack);
      each_lane<V>([&](std::size_t k) {
        all.gamma[k] = static_cast<float>(g[k]);
        all.beta[k] = static_cast<float>(b[k]);
      });
      return all;
    };
    sum_groups<V, 2>(at, partial, g_mean, [&](unsigned pack) {
      return [&, pack, all = known(pack)](auto& parts, std::size_t pixel) {
        const std::size_t row = first + pixel * at.channels;
        const V d = load<V>(dy + row, pack), v = load<V>(x + row, pack);
        each_lane<V>([&](std::size_t k) {
          const float normal = all.normal(k, static_cast<float>(v[k]));
          const float g = all.of_normal(k, static_cast<float>(d[k]), normal);
          parts[0][k] += g;
          parts[1][k] += g * normal;
        });
      };
    });
    for (std::size_t i : block_range(2 * at.groups)) g_mean[i] /= at.values();
    __syncthreads();
    each_cell(at, [&](unsigned, unsigned pack, std::size_t first_pixel, std::size_t count) {
      const Gradients<V, A> all = known(pack);
      float of_g[V::size], of_gh[V::size];
      spread(of_g, g_mean, pack * V::size, at.of_group);
      spread(of_gh, gh_mean, pack * V::size, at.of_group);
      each_pixel(first_pixel, count, [&](std::size_t pixel) {
        const std::size_t row = first + pixel * at.channels;
        V d = load<V>(dy + row, pack), old{};
        const V v = load<V>(x + row, pack);
        if (add) old = load<V>(dx + row, pack);
        each_lane<V>([&](std::size_t k) {
          const float normal = all.normal(k, static_cast<float>(v[k]));
          const float g = all.of_normal(k, static_cast<float>(d[k]), normal);
          const float own = all.rstd[k] * (g - of_g[k] - normal * of_gh[k]);
          d[k] = static_cast<T>(add ? static_cast<float>(old[k]) + own : own);
        });
        store(dx + row, pack, d);
      });
    });
    __syncthreads();  // the next unit's sums come to the same place
  }
}

// Starts a kernel of units, with kSums floats a lane of each cell and two a group of shared memory.
template <std::size_t kSums, class Kernel, class... Arguments>
void launch_units(Context& context, const GroupNormShape& shape, std::size_t lanes, Kernel kernel,
                  Arguments... arguments) {
  const UnitLayout at = layout_of(shape, lanes);
  const std::size_t units = shape.batch * at.units;
  const std::size_t shared = (kSums * lanes * at.cells() + 2 * at.groups) * sizeof(float);
  launch(kernel, at_most(kGroupNormThreads, shape_for_short_rows(units, at.cells(), shared)), context.stream(),
         arguments..., units, at);
}

}  // namespace

void check_group_norm(const GroupNormShape& shape) {
  with_norm_activation(shape.activation, [](auto) {});
  if (shape.groups == 0 || shape.channels % shape.groups != 0)
    throw std::invalid_argument("group norm: " + std::to_string(shape.channels) + " channels are not " +
                                std::to_string(shape.groups) + " equal groups");
  if (shape.channels / shape.groups > kGroupNormChannels)
    throw std::invalid_argument("group norm takes groups of up to " + std::to_string(kGroupNormChannels) +
                                " channels, not " + std::to_string(shape.channels / shape.groups));
  checked_product(shape.batch, checked_product(shape.pixels, shape.channels));
}

template <class T>
void group_norm_forward(Context& context, const GroupNormShape& shape, const T* x, const T* gamma, const T* beta,
                        std::type_identity_t<T>* y, float* mean, float* rstd) {
  check_group_norm(shape);
  T* const here = mean ? nullptr : y;  // with the statistics kept, another kernel does the rest faster
  if (units_of_packs<T>(shape, x, gamma, beta, y))
    launch_units<1>(context, shape, Pack<T>::size, group_norm_kernel<T, Pack<T>>, x, gamma, beta, here, mean, rstd,
                    shape.activation);
  else
    launch_units<1>(context, shape, 1, group_norm_kernel<T, Single<T>>, x, gamma, beta, here, mean, rstd,
                    shape.activation);
  if (mean && y) group_norm_recompute(context, shape, x, mean, rstd, gamma, beta, y);
}

template <class T>
void group_norm_recompute(Context& context, const GroupNormShape& shape, const T* x, const float* mean,
                          const float* rstd, const T* gamma, const T* beta, T* y) {
  check_group_norm(shape);
  const std::size_t rows = shape.batch * shape.pixels;
  with_norm_activation(shape.activation, [&]<Activation A>(ActivationConstant<A>) {
    launch(group_norm_recompute_kernel<T, A>, shape_for_packed_rows<T>(rows, shape.channels), context.stream(), x, mean,
           rstd, gamma, beta, y, rows, shape.pixels, shape.channels, shape.groups,
           static_cast<unsigned>(shape.channels / shape.groups), packs_fit<T>(shape.channels, x, gamma, beta, y));
  });
}

template <class T>
void group_norm_backward_input(Context& context, const GroupNormShape& shape, const T* dy, const T* x,
                               const float* mean, const float* rstd, const T* gamma, const T* beta, T* dx, bool add) {
  check_group_norm(shape);
  with_norm_activation(shape.activation, [&]<Activation A>(ActivationConstant<A>) {
    if (units_of_packs<T>(shape, dy, x, gamma, beta, dx))
      launch_units<2>(context, shape, Pack<T>::size, group_norm_backward_kernel<T, Pack<T>, A>, dy, x, mean, rstd,
                      gamma, beta, dx, add);
    else
      launch_units<2>(context, shape, 1, group_norm_backward_kernel<T, Single<T>, A>, dy, x, mean, rstd, gamma, beta,
                      dx, add);
  });
}

#define OOMLAB_INSTANCES(T)                                                                                            \
  template void group_norm_forward(Context&, const GroupNormShape&, const T*, const T*, const T*, T*, float*, float*); \
  template void group_norm_recompute(Context&, const GroupNormShape&, const T*, const float*, const float*, const T*,  \
                                     const T*, T*);                                                                    \
  template void group_norm_backward_input(Context&, const GroupNormShape&, const T*, const T*, const float*,           \
                                          const float*, const T*, const T*, T*, bool);
OOMLAB_FOR_EACH_TYPE(OOMLAB_INSTANCES)

}  // namespace oomlab::nn
