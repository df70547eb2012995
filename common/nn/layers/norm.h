#pragma once
// A norm of rows: an RMS norm (llama), or a layer norm.

#include <cstddef>
#include <type_traits>

#include "memory/context.h"
#include "nn/ops/norms.h"

namespace oomlab::nn {

/// What a norm keeps of each row for its backward pass (category activations). An RMS norm has no mean.
struct NormStatistics {
  DeviceBuffer<float> mean, rstd;
};

/// The layer. Nothing is owned. x, y and their gradients are [rows, width].
template <class T>
struct Norm {
  bool rms = false;
  std::size_t width = 0;
  float epsilon = 0;  ///< of an RMS norm
  const T *gamma = nullptr, *beta = nullptr;
  T *d_gamma = nullptr, *d_beta = nullptr;  ///< null where the norm is frozen

  /// Memory for the statistics of `rows` rows, contents undefined. Throws OutOfMemory.
  NormStatistics statistics(Context& context, std::size_t rows) const {
    NormStatistics to;
    if (!rms) to.mean = context.buffer<float>(rows, Category::activations, "norm mean");
    to.rstd = context.buffer<float>(rows, Category::activations, "norm rstd");
    return to;
  }
  /// y = norm(x), and the statistics; with y null these alone.
  void forward(Context& context, const T* x, std::type_identity_t<T>* y, NormStatistics& kept, std::size_t rows) const {
    if (rms)
      rms_norm_forward(context, x, gamma, y, kept.rstd.data(), rows, width, epsilon);
    else
      layer_norm_forward(context, x, gamma, beta, y, kept.mean.data(), kept.rstd.data(), rows, width);
  }
  /// y once more, to the bit. x and y begin with row `first` of those that the statistics are of.
  void recompute(Context& context, const T* x, T* y, const NormStatistics& kept, std::size_t first,
                 std::size_t rows) const {
    const float* const rstd = kept.rstd.data() + first;
    if (rms)
      rms_norm_recompute(context, x, rstd, gamma, y, rows, width);
    else
      layer_norm_recompute(context, x, kept.mean.data() + first, rstd, gamma, beta, y, rows, width);
  }
  /// The gradients of gamma and beta, unless it is frozen, with `accumulate` added to what is there; and dx, which may be dy, with `add`
  /// added to what is there. x, dy and dx begin with row `first`.
  void backward(Context& context, const T* dy, const T* x, const NormStatistics& kept, T* dx, std::size_t first,
                std::size_t rows, bool add, bool accumulate) const {
    const float* const rstd = kept.rstd.data() + first;
    if (rms) {
      if (d_gamma) rms_norm_backward_weight(context, dy, x, rstd, d_gamma, rows, width, accumulate);
      rms_norm_backward_input(context, dy, x, rstd, gamma, dx, rows, width, add);
    } else {
      const float* const mean = kept.mean.data() + first;
      if (d_gamma) layer_norm_backward_weight(context, dy, x, mean, rstd, d_gamma, d_beta, rows, width, accumulate);
      layer_norm_backward_input(context, dy, x, mean, rstd, gamma, dx, rows, width, add);
    }
  }
};

}  // namespace oomlab::nn
