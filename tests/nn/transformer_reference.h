#pragma once
// The transformer's operators on the host in double precision, forward only: their gradients are central differences.

#include <cmath>
#include <cstddef>
#include <vector>

#include "reference.h"

namespace oomlab::test {

inline Vector embedding(const std::vector<int>& tokens, const Vector& token, const Vector& position, std::size_t seq,
                        std::size_t width) {
  Vector x(tokens.size() * width);
  for (std::size_t r = 0; r < tokens.size(); ++r)
    for (std::size_t c = 0; c < width; ++c)
      x[r * width + c] = token[std::size_t(tokens[r]) * width + c] + position[r % seq * width + c];
  return x;
}

struct LayerNorm {
  Vector y, mean, rstd;
};
inline LayerNorm layer_norm(const Vector& x, const Vector& gamma, const Vector& beta, std::size_t rows) {
  const std::size_t width = gamma.size();
  LayerNorm norm{Vector(x.size()), Vector(rows), Vector(rows)};
  for (std::size_t r = 0; r < rows; ++r) {
    const double* row = x.data() + r * width;
    double mean = 0, variance = 0;
    for (std::size_t c = 0; c < width; ++c) mean += row[c] / double(width);
    for (std::size_t c = 0; c < width; ++c) variance += (row[c] - mean) * (row[c] - mean) / double(width);
    norm.mean[r] = mean;
    norm.rstd[r] = 1 / std::sqrt(variance + 1e-5);
    for (std::size_t c = 0; c < width; ++c) norm.y[r * width + c] = (row[c] - mean) * norm.rstd[r] * gamma[c] + beta[c];
  }
  return norm;
}

inline Vector softmax(const Vector& x, std::size_t matrices, std::size_t seq, double scale, bool causal) {
  Vector p(x.size());
  for (std::size_t row = 0; row < matrices * seq; ++row) {
    const std::size_t seen = causal ? row % seq + 1 : seq;
    double largest = -INFINITY, sum = 0;
    for (std::size_t c = 0; c < seen; ++c) largest = std::max(largest, scale * x[row * seq + c]);
    for (std::size_t c = 0; c < seen; ++c) sum += std::exp(scale * x[row * seq + c] - largest);
    for (std::size_t c = 0; c < seen; ++c) p[row * seq + c] = std::exp(scale * x[row * seq + c] - largest) / sum;
  }
  return p;
}

/// Σ a[i] b[i]: turns a tensor into the scalar whose gradient is looked at.
inline double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace oomlab::test
