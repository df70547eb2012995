#pragma once
// The operators of images on the host in double precision, written for clarity. Gradients of what is linear follow from
// the same loop as its value; tests check them, and the batch norm's, against central differences.

#include <cmath>
#include <cstddef>
#include <vector>

#include "nn/ops/convolution.h"
#include "transformer_reference.h"

namespace oomlab::test {

using nn::ConvolutionShape;

/// f(output pixel, input pixel, place in the window) for everything that a window sees; what is outside, it does not.
template <class F>
void for_each_pixel_seen(const ConvolutionShape& s, F f) {
  for (std::size_t b = 0; b < s.batch; ++b)
    for (std::size_t oy = 0; oy < s.out_height; ++oy)
      for (std::size_t ox = 0; ox < s.out_width; ++ox)
        for (std::size_t ky = 0; ky < s.kernel; ++ky)
          for (std::size_t kx = 0; kx < s.kernel; ++kx) {
            const std::size_t y = oy * s.stride + ky, x = ox * s.stride + kx;  // in the padded image
            if (y < s.pad_top || y - s.pad_top >= s.height || x < s.pad_left || x - s.pad_left >= s.width) continue;
            f((b * s.out_height + oy) * s.out_width + ox, (b * s.height + y - s.pad_top) * s.width + x - s.pad_left,
              ky * s.kernel + kx);
          }
}

/// f(output, input, weight), the indices of three elements, for every product that a convolution adds up.
template <class F>
void for_each_product(const ConvolutionShape& s, F f) {
  const std::size_t in = s.in_channels / s.groups, out = s.out_channels / s.groups;
  for_each_pixel_seen(s, [&](std::size_t out_pixel, std::size_t in_pixel, std::size_t place) {
    for (std::size_t o = 0; o < s.out_channels; ++o)
      for (std::size_t c = 0; c < in; ++c)
        f(out_pixel * s.out_channels + o, in_pixel * s.in_channels + o / out * in + c,
          (o * s.kernel * s.kernel + place) * in + c);
  });
}

inline Vector convolution(const ConvolutionShape& s, const Vector& x, const Vector& w) {
  Vector y(s.output_elements());
  for_each_product(s, [&](std::size_t o, std::size_t i, std::size_t k) { y[o] += x[i] * w[k]; });
  return y;
}
struct ConvolutionGradients {
  Vector dx, dw;
};
inline ConvolutionGradients convolution_backward(const ConvolutionShape& s, const Vector& dy, const Vector& x,
                                                 const Vector& w) {
  ConvolutionGradients g{Vector(x.size()), Vector(w.size())};
  for_each_product(s, [&](std::size_t o, std::size_t i, std::size_t k) {
    g.dx[i] += dy[o] * w[k];
    g.dw[k] += dy[o] * x[i];
  });
  return g;
}

/// A depthwise convolution's weights, [channels, kernel, kernel, 1] of a convolution in groups, as [kernel, kernel,
/// channels].
template <class T>
std::vector<T> depthwise_weights(const ConvolutionShape& s, const std::vector<T>& w) {
  const std::size_t places = s.kernel * s.kernel;
  std::vector<T> turned(w.size());
  for (std::size_t i = 0; i < w.size(); ++i) turned[i % places * s.out_channels + i / places] = w[i];
  return turned;
}

/// An image that becomes larger by a whole factor; sizes are of the smaller one.
struct Enlargement {
  std::size_t batch, height, width, channels, factor;
  std::size_t inputs() const { return batch * height * width * channels; }
  std::size_t outputs() const { return inputs() * factor * factor; }
  /// The element of the smaller image that an element of the larger one lies on.
  std::size_t input_of(std::size_t output) const {
    const std::size_t pixel = output / channels, line = pixel / (width * factor), image = line / (height * factor);
    const std::size_t y = line % (height * factor) / factor, x = pixel % (width * factor) / factor;
    return ((image * height + y) * width + x) * channels + output % channels;
  }
};
inline const Enlargement kEnlargements[] = {{1, 1, 1, 1, 2},  {2, 3, 5, 3, 2}, {1, 5, 2, 8, 3}, {2, 4, 3, 12, 4},
                                            {1, 1, 7, 16, 2}, {1, 3, 2, 1, 5}, {2, 3, 2, 4, 1}};

struct BatchNorm {
  Vector y, mean, variance, inv_std;  ///< the variance of the batch itself: divided by n
};
/// No residual: empty. `over`: the statistics to use instead of the batch's own.
inline BatchNorm batch_norm(const Vector& x, const Vector& gamma, const Vector& beta, const Vector& residual,
                            nn::Activation activation = nn::Activation::none, double eps = 1e-5,
                            const BatchNorm* over = nullptr) {
  const std::size_t channels = gamma.size(), rows = x.size() / channels;
  BatchNorm n{Vector(x.size()), Vector(channels), Vector(channels), Vector(channels)};
  for (std::size_t i = 0; i < x.size(); ++i) n.mean[i % channels] += x[i] / double(rows);
  for (std::size_t i = 0; i < x.size(); ++i)
    n.variance[i % channels] += (x[i] - n.mean[i % channels]) * (x[i] - n.mean[i % channels]) / double(rows);
  if (over) n.mean = over->mean, n.variance = over->variance;
  for (std::size_t c = 0; c < channels; ++c) n.inv_std[c] = 1 / std::sqrt(n.variance[c] + eps);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t c = i % channels;
    n.y[i] = (x[i] - n.mean[c]) * n.inv_std[c] * gamma[c] + beta[c] + (residual.empty() ? 0 : residual[i]);
    n.y[i] = activate(n.y[i], activation);
  }
  return n;
}
struct BatchNormGradients {
  Vector dx, dgamma, dbeta;
};
inline BatchNormGradients batch_norm_backward(const Vector& dy, const Vector& x, const Vector& gamma,
                                              double eps = 1e-5) {
  const std::size_t channels = gamma.size(), rows = x.size() / channels;
  const BatchNorm n = batch_norm(x, gamma, Vector(channels), {}, nn::Activation::none, eps);
  BatchNormGradients g{Vector(x.size()), Vector(channels), Vector(channels)};
  const auto hat = [&](std::size_t i) { return (x[i] - n.mean[i % channels]) * n.inv_std[i % channels]; };
  for (std::size_t i = 0; i < x.size(); ++i) {
    g.dgamma[i % channels] += dy[i] * hat(i);
    g.dbeta[i % channels] += dy[i];
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t c = i % channels;
    g.dx[i] = gamma[c] * n.inv_std[c] * (dy[i] - (g.dbeta[c] + hat(i) * g.dgamma[c]) / double(rows));
  }
  return g;
}

struct MaxPool {
  Vector y;
  std::vector<std::size_t> from;  ///< of each output, the input that it is: among equals the first
};
inline MaxPool max_pool(const ConvolutionShape& s, const Vector& x) {
  const std::size_t channels = s.in_channels;
  MaxPool pool{Vector(s.output_elements()), std::vector<std::size_t>(s.output_elements(), SIZE_MAX)};
  for_each_pixel_seen(s, [&](std::size_t out_pixel, std::size_t in_pixel, std::size_t) {
    for (std::size_t c = 0; c < channels; ++c) {
      const std::size_t o = out_pixel * channels + c, i = in_pixel * channels + c;
      if (pool.from[o] == SIZE_MAX || x[i] > pool.y[o]) pool.y[o] = x[i], pool.from[o] = i;
    }
  });
  return pool;
}
inline Vector max_pool_backward(const MaxPool& pool, const Vector& dy, std::size_t inputs) {
  Vector dx(inputs);
  for (std::size_t o = 0; o < dy.size(); ++o) dx[pool.from[o]] += dy[o];
  return dx;
}

/// With dy, its gradient; without, the value: the mean over the pixels that exist.
inline Vector average_pool(const ConvolutionShape& s, const Vector& x_or_dy, bool backward) {
  const std::size_t channels = s.in_channels;
  Vector seen(s.out_pixels()), result(backward ? s.input_elements() : s.output_elements());
  for_each_pixel_seen(s, [&](std::size_t out_pixel, std::size_t, std::size_t) { seen[out_pixel] += 1; });
  for_each_pixel_seen(s, [&](std::size_t out_pixel, std::size_t in_pixel, std::size_t) {
    const std::size_t to = backward ? in_pixel : out_pixel, from = backward ? out_pixel : in_pixel;
    for (std::size_t c = 0; c < channels; ++c)
      result[to * channels + c] += x_or_dy[from * channels + c] / seen[out_pixel];
  });
  return result;
}

}  // namespace oomlab::test
