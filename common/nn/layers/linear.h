#pragma once
// A linear layer, y = x Wᵀ + b: whatever its weights are stored as, trained or frozen.
//
// What stores the weights is a type of its own, which multiplies with them: DenseWeights here; in chapter 11 dense
// weights whose products do not depend on the other rows, in chapter 12 quantised ones.
//
// The place of an adapter (LoRA; Hu et al., 2021: y = x Wᵀ + s (x Aᵀ) Bᵀ + b with W frozen) is in Linear: A and B are
// two more DenseWeights, forward() adds their product to y, backward_input() theirs to dx, backward_weights() makes
// their gradients, and needs_input() is true although W is frozen.

#include <concepts>
#include <cstddef>
#include <type_traits>

#include "memory/context.h"
#include "nn/ops/activation.h"
#include "nn/ops/matmul.h"

namespace oomlab::nn {

/// Rows of a matrix, `stride` elements apart.
template <class T>
struct RowsOf {
  const T* data;
  std::size_t stride;
};

/// Weights [out, in] in some form; Value is what x and y are made of. multiply() is y[rows, out] = x[rows, in] · Wᵀ
/// (+ bias[out]) (+ y, with `add`), in the context's stream, and allocates nothing; bias may be null. each_part() calls
/// visit(name, bytes) for what is stored. Where something below the layer is trained, there is multiply_back(), too:
/// dx[rows, in] = dy[rows, out] · W (+ dx, with `add`).
template <class W>
concept StoredWeights = requires(const W w, Context& context, RowsOf<typename W::Value> x, typename W::Value* y,
                                 void (*visit)(const char* name, std::size_t bytes)) {
  { w.in } -> std::convertible_to<std::size_t>;
  { w.out } -> std::convertible_to<std::size_t>;
  w.multiply(context, x, y, y, w.in, true);
  w.each_part(visit);
};

/// Numbers of T (nn/ops/instances.h), one row after the other, multiplied through cuBLAS. Not owned.
template <class T>
struct DenseWeights {
  using Value = T;
  const T* data = nullptr;
  std::size_t in = 0, out = 0;

  void multiply(Context& context, RowsOf<T> x, const std::type_identity_t<T>* bias, T* y, std::size_t rows,
                bool add) const {
    if (bias && add) bias_activation(context, y, bias, rows, out, Activation::none);
    if (bias && !add) repeat_row(context, bias, y, rows, out);
    gemm_strided<T>(context, false, true, rows, out, in, 1.0f, {x.data, x.stride, 0}, {data, in, 0},
                    bias || add ? 1.0f : 0.0f, {y, out, 0}, 1);
  }
  void multiply_back(Context& context, const T* dy, T* dx, std::size_t rows, bool add) const {
    gemm(context, false, false, rows, in, out, 1.0f, dy, data, add ? 1.0f : 0.0f, dx);
  }
  template <class Visit>
  void each_part(Visit visit) const {
    visit("weight", in * out * sizeof(T));
  }
};

/// The layer. Nothing is owned. dy and y are [rows, out], x and dx [rows, in].
template <StoredWeights W>
struct Linear {
  using T = typename W::Value;
  W weights;
  const T* bias = nullptr;  ///< [out], or none
  bool trained = false;     ///< otherwise it is frozen, and has no gradients
  T* d_weights = nullptr;   ///< [out, in]
  T* d_bias = nullptr;      ///< [out], where there is a bias

  std::size_t in() const noexcept { return weights.in; }
  std::size_t out() const noexcept { return weights.out; }
  /// y = x Wᵀ (+ bias) (+ y, with `add`).
  void forward(Context& context, RowsOf<T> x, T* y, std::size_t rows, bool add = false) const {
    weights.multiply(context, x, bias, y, rows, add);
  }
  /// The same without the bias, which somebody else adds: once, where several parts of x are summed up.
  void product(Context& context, RowsOf<T> x, T* y, std::size_t rows, bool add = false) const {
    weights.multiply(context, x, nullptr, y, rows, add);
  }
  /// dx = dy W (+ dx, with `add`). Reads neither x nor y.
  void backward_input(Context& context, const T* dy, T* dx, std::size_t rows, bool add = false) const {
    weights.multiply_back(context, dy, dx, rows, add);
  }
  /// Whether backward_weights() reads x: otherwise nobody has to keep it, or to compute it again.
  bool needs_input() const noexcept { return trained; }
  /// dW and db from dy and x; with `accumulate` added to what is there. Nothing where the layer is frozen.
  void backward_weights(Context& context, const T* dy, const T* x, std::size_t rows, bool accumulate) const {
    if (trained) linear_backward_weight(context, dy, x, d_weights, d_bias, rows, in(), out(), accumulate);
  }
  /// visit(name, bytes) for everything that is stored, but for gradients.
  template <class Visit>
  void each_part(Visit visit) const {
    weights.each_part(visit);
    if (bias) visit("bias", out() * sizeof(T));
  }
};

}  // namespace oomlab::nn
