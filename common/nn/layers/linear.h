#pragma once
// A linear layer, y = x Wᵀ + b: whatever its weights are stored as, trained or frozen, with adapters or without.
//
// What stores the weights is a type of its own, which multiplies with them: DenseWeights here, and BaseWeights, whose
// matrix may be a FrozenMatrix that somebody else stores; in chapter 11 dense weights whose products do not depend on the
// other rows, in chapter 12 quantised ones.

#include <array>
#include <concepts>
#include <cstddef>
#include <type_traits>

#include "memory/context.h"
#include "nn/layers/adapter.h"
#include "nn/ops/activation.h"
#include "nn/ops/matmul.h"

namespace oomlab::nn {

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

/// A frozen matrix [out, in] that is stored in a way of its own: of an adapter's base in fewer bits (Dettmers et al.,
/// "QLoRA", 2023; chapter 14). As StoredWeights.
template <class T>
class FrozenMatrix {
 public:
  virtual ~FrozenMatrix() = default;
  virtual void multiply(Context& context, RowsOf<T> x, const T* bias, T* y, std::size_t rows, bool add) const = 0;
  virtual void multiply_back(Context& context, const T* dy, T* dx, std::size_t rows, bool add) const = 0;
  virtual std::size_t stored_bytes() const = 0;
};

/// Dense weights; or, where `frozen` is not null, what it stores.
template <class T>
struct BaseWeights {
  using Value = T;
  const T* data = nullptr;
  std::size_t in = 0, out = 0;
  const FrozenMatrix<T>* frozen = nullptr;

  void multiply(Context& context, RowsOf<T> x, const std::type_identity_t<T>* bias, T* y, std::size_t rows,
                bool add) const {
    if (frozen) return frozen->multiply(context, x, bias, y, rows, add);
    dense().multiply(context, x, bias, y, rows, add);
  }
  void multiply_back(Context& context, const T* dy, T* dx, std::size_t rows, bool add) const {
    if (frozen) return frozen->multiply_back(context, dy, dx, rows, add);
    dense().multiply_back(context, dy, dx, rows, add);
  }
  template <class Visit>
  void each_part(Visit visit) const {
    visit("weight", frozen ? frozen->stored_bytes() : in * out * sizeof(T));
  }

 private:
  DenseWeights<T> dense() const { return {data, in, out}; }
};

/// Adapters of a layer at most: of Q, K and V, which are one matrix.
inline constexpr std::size_t kLayerAdapters = 3;

/// The layer. Nothing is owned. dy and y are [rows, out], x and dx [rows, in]. `first_row` is the number of row 0 among
/// those that an adapter's mask is for.
template <StoredWeights W>
struct Linear {
  using T = typename W::Value;
  W weights;
  const T* bias = nullptr;  ///< [out], or none
  bool trained = false;     ///< otherwise it is frozen, and has no gradients
  T* d_weights = nullptr;   ///< [out, in]
  T* d_bias = nullptr;      ///< [out], where there is a bias

  std::array<Adapter<T>, kLayerAdapters> adapters{};  ///< of a frozen layer; those with rank 0 are none

  std::size_t in() const noexcept { return weights.in; }
  std::size_t out() const noexcept { return weights.out; }
  bool adapted() const noexcept {
    bool any = false;
    for (const Adapter<T>& adapter : adapters) any = any || adapter;
    return any;
  }
  /// y = x Wᵀ (+ b) (+ y, with `add`) + what adapters add. Throws OutOfMemory where there are some.
  void forward(Context& context, RowsOf<T> x, T* y, std::size_t rows, bool add = false,
               std::size_t first_row = 0) const {
    weights.multiply(context, x, bias, y, rows, add);
    add_adapters(context, x, y, rows, first_row);
  }
  /// The same without the bias, which somebody else adds: once, where several parts of x are summed up.
  void product(Context& context, RowsOf<T> x, T* y, std::size_t rows, bool add = false,
               std::size_t first_row = 0) const {
    weights.multiply(context, x, nullptr, y, rows, add);
    add_adapters(context, x, y, rows, first_row);
  }
  /// dx = dy W (+ dx, with `add`) + what goes through adapters. Reads neither x nor y. Throws OutOfMemory where there
  /// are some.
  void backward_input(Context& context, const T* dy, T* dx, std::size_t rows, bool add = false,
                      std::size_t first_row = 0) const {
    weights.multiply_back(context, dy, dx, rows, add);
    for (const Adapter<T>& adapter : adapters)
      if (adapter) adapter.backward_input(context, dy, dx, out(), rows, first_row);
  }
  /// Whether backward_weights() reads x: otherwise nobody has to keep it, or to compute it again.
  bool needs_input() const noexcept { return trained || adapted(); }
  /// dW and db from dy and x, or those of the adapters; with `accumulate` added to what is there. Nothing where the
  /// layer is frozen and has none. Throws OutOfMemory where there are some.
  void backward_weights(Context& context, const T* dy, const T* x, std::size_t rows, bool accumulate,
                        std::size_t first_row = 0) const {
    if (trained) linear_backward_weight(context, dy, x, d_weights, d_bias, rows, in(), out(), accumulate);
    for (const Adapter<T>& adapter : adapters)
      if (adapter) adapter.backward_weights(context, dy, {x, in()}, out(), rows, first_row, accumulate);
  }
  /// visit(name, bytes) for everything that is stored, but for gradients.
  template <class Visit>
  void each_part(Visit visit) const {
    weights.each_part(visit);
    if (bias) visit("bias", out() * sizeof(T));
  }

 private:
  void add_adapters(Context& context, RowsOf<T> x, T* y, std::size_t rows, std::size_t first_row) const {
    for (const Adapter<T>& adapter : adapters)
      if (adapter) adapter.forward(context, x, y, out(), rows, first_row);
  }
};

}  // namespace oomlab::nn
