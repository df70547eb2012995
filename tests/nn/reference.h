#pragma once
// The same mathematics on the host in double precision, written for clarity; checked against its own central
// differences before it judges the kernels.

#include <cmath>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "plan/model/activation.h"

namespace oomlab::test {

using Vector = std::vector<double>;

inline double activate(double x, nn::Activation a) {
  if (a == nn::Activation::relu) return x > 0 ? x : 0;
  if (a == nn::Activation::gelu) return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  if (a == nn::Activation::hard_sigmoid) return std::fmin(std::fmax(x + 3, 0), 6) / 6;
  if (a == nn::Activation::hard_swish) return x * std::fmin(std::fmax(x + 3, 0), 6) / 6;
  if (a == nn::Activation::silu) return x / (1 + std::exp(-x));
  if (a == nn::Activation::quick_gelu) return x / (1 + std::exp(-1.702 * x));
  if (a == nn::Activation::exact_gelu) return x * (1 + std::erf(x * M_SQRT1_2)) / 2;
  return x;
}
inline double activate_derivative(double x, nn::Activation a) {
  if (a == nn::Activation::relu) return x > 0 ? 1 : 0;
  if (a == nn::Activation::gelu) {
    const double c = std::sqrt(2 / M_PI), t = std::tanh(c * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
  }
  if (a == nn::Activation::hard_sigmoid) return x > -3 && x < 3 ? 1.0 / 6 : 0;
  if (a == nn::Activation::hard_swish) return x <= -3 ? 0 : x >= 3 ? 1 : (2 * x + 3) / 6;
  if (a == nn::Activation::silu) {
    const double s = 1 / (1 + std::exp(-x));
    return s * (1 + x * (1 - s));
  }
  return 1;
}

/// x[rows, in] · w[out, in]ᵀ + b.
inline Vector linear(const Vector& x, const Vector& w, const Vector& b, std::size_t rows, std::size_t in,
                     std::size_t out) {
  Vector y(rows * out);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t o = 0; o < out; ++o) {
      double sum = b.empty() ? 0 : b[o];
      for (std::size_t i = 0; i < in; ++i) sum += x[r * in + i] * w[o * in + i];
      y[r * out + o] = sum;
    }
  return y;
}
struct LinearGradients {
  Vector dx, dw, db;
};
inline LinearGradients linear_backward(const Vector& dy, const Vector& x, const Vector& w, std::size_t rows,
                                       std::size_t in, std::size_t out) {
  LinearGradients g{Vector(rows * in), Vector(out * in), Vector(out)};
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t o = 0; o < out; ++o) {
      const double d = dy[r * out + o];
      g.db[o] += d;
      for (std::size_t i = 0; i < in; ++i) {
        g.dx[r * in + i] += d * w[o * in + i];
        g.dw[o * in + i] += d * x[r * in + i];
      }
    }
  return g;
}

struct Loss {
  Vector rows;       // loss of each row
  Vector gradients;  // of their mean
  double mean = 0;
};
inline Loss cross_entropy(const Vector& logits, const std::vector<int>& labels, std::size_t classes) {
  const std::size_t rows = labels.size();
  Loss loss{Vector(rows), Vector(logits.size()), 0};
  for (std::size_t r = 0; r < rows; ++r) {
    const double* x = logits.data() + r * classes;
    double largest = x[0], sum = 0;
    for (std::size_t i = 0; i < classes; ++i) largest = std::max(largest, x[i]);
    for (std::size_t i = 0; i < classes; ++i) sum += std::exp(x[i] - largest);
    for (std::size_t i = 0; i < classes; ++i)
      loss.gradients[r * classes + i] = (std::exp(x[i] - largest) / sum - (int(i) == labels[r] ? 1 : 0)) / double(rows);
    loss.rows[r] = std::log(sum) + largest - x[labels[r]];
    loss.mean += loss.rows[r] / double(rows);
  }
  return loss;
}

/// A whole multi-layer perceptron: parameters in the order of Mlp::parameters().
struct ReferenceMlp {
  std::vector<std::size_t> widths;
  nn::Activation activation;
  std::vector<Vector> parameters;  // weight 1, bias 1, weight 2, …

  struct Result {
    double loss;
    std::vector<Vector> gradients;
  };
  Result run(const Vector& input, const std::vector<int>& labels) const {
    const std::size_t rows = labels.size(), layers = widths.size() - 1;
    std::vector<Vector> before(layers + 1), after(layers + 1);
    after[0] = input;
    for (std::size_t l = 1; l <= layers; ++l) {
      before[l] = linear(after[l - 1], parameters[2 * l - 2], parameters[2 * l - 1], rows, widths[l - 1], widths[l]);
      after[l] = before[l];
      if (l < layers)
        for (double& v : after[l]) v = activate(v, activation);
    }
    Loss loss = cross_entropy(after[layers], labels, widths.back());
    Result result{loss.mean, std::vector<Vector>(2 * layers)};
    Vector dz = std::move(loss.gradients);
    for (std::size_t l = layers; l >= 1; --l) {
      LinearGradients g = linear_backward(dz, after[l - 1], parameters[2 * l - 2], rows, widths[l - 1], widths[l]);
      result.gradients[2 * l - 2] = std::move(g.dw);
      result.gradients[2 * l - 1] = std::move(g.db);
      dz = std::move(g.dx);
      if (l > 1)
        for (std::size_t i = 0; i < dz.size(); ++i) dz[i] *= activate_derivative(before[l - 1][i], activation);
    }
    return result;
  }
};

/// d f / d x by central differences.
inline Vector central_differences(Vector x, const std::function<double(const Vector&)>& f, double step = 1e-5) {
  Vector gradient(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    x[i] = at + step;
    const double above = f(x);
    x[i] = at - step;
    const double below = f(x);
    x[i] = at;
    gradient[i] = (above - below) / (2 * step);
  }
  return gradient;
}

}  // namespace oomlab::test
