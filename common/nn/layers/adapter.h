#pragma once
// A low-rank adapter of a linear layer (LoRA; Hu et al., 2021): to the outputs first … first + out − 1 it adds
// s (x Aᵀ) Bᵀ. The layer's own weights are frozen; A and B are trained.
//
// It keeps nothing from its forward to its backward pass but, with dropout, a mask: x Aᵀ, r numbers a row, is computed
// again.

#include <cstddef>
#include <cstdint>

#include "memory/context.h"
#include "nn/ops/dropout.h"
#include "nn/ops/matmul.h"

namespace oomlab::nn {

/// Rows of a matrix, `stride` elements apart.
template <class T>
struct RowsOf {
  const T* data;
  std::size_t stride;
};

/// Nothing is owned. x is [rows, in]; y and dy are all outputs of the layer, `outputs` in a row.
template <class T>
struct Adapter {
  std::size_t rank = 0;  ///< r; 0: there is no adapter
  std::size_t in = 0;
  std::size_t first = 0, out = 0;      ///< outputs that it adds to
  float scale = 1;                     ///< s
  const T *a = nullptr, *b = nullptr;  ///< A [r, in], B [out, r]
  T *d_a = nullptr, *d_b = nullptr;    ///< their gradients
  /// Of a dropout: [rows, in], 1 where x is kept, 0 where it is dropped. Null: nothing is dropped.
  const std::uint8_t* mask = nullptr;
  float kept = 1;  ///< the share of x that is kept, on average

  explicit operator bool() const noexcept { return rank != 0; }

  /// y += s (x Aᵀ) Bᵀ. `first_row`: the row of the mask that belongs to row 0 of x. For the time of the call it needs
  /// [rows, r], and with dropout [rows, in] (category activations). Throws OutOfMemory.
  void forward(Context& context, RowsOf<T> x, T* y, std::size_t outputs, std::size_t rows,
               std::size_t first_row) const {
    const DeviceBuffer<T> dropped = drop_some(context, x, rows, first_row);
    const DeviceBuffer<T> h = product(context, x, rows);
    gemm_strided<T>(context, false, true, rows, out, rank, scale, {h.data(), rank, 0}, {b, rank, 0}, 1.0f,
                    {y + first, outputs, 0}, 1);
  }
  /// dx += s (dy B) A. Needs [rows, r], and with dropout [rows, in]. Throws OutOfMemory.
  void backward_input(Context& context, const T* dy, T* dx, std::size_t outputs, std::size_t rows,
                      std::size_t first_row) const {
    const DeviceBuffer<T> dh = product_gradient(context, dy, outputs, rows);
    if (!mask) return gemm(context, false, false, rows, in, rank, 1.0f, dh.data(), a, 1.0f, dx);
    DeviceBuffer<T> d = context.buffer<T>(checked_product(rows, in), Category::activations, "adapter input");
    gemm(context, false, false, rows, in, rank, 1.0f, dh.data(), a, 0.0f, d.data());
    add_masked(context, dx, d.data(), mask + first_row * in, 1 / kept, d.size());
  }
  /// dA and dB, with `accumulate` added to what is there. Needs twice [rows, r], and with dropout [rows, in]. Throws
  /// OutOfMemory.
  void backward_weights(Context& context, const T* dy, RowsOf<T> x, std::size_t outputs, std::size_t rows,
                        std::size_t first_row, bool accumulate) const {
    const float beta = accumulate ? 1.0f : 0.0f;
    const DeviceBuffer<T> dropped = drop_some(context, x, rows, first_row);
    const DeviceBuffer<T> h = product(context, x, rows);
    const DeviceBuffer<T> dh = product_gradient(context, dy, outputs, rows);
    gemm_strided<T>(context, true, false, out, rank, rows, scale, {dy + first, outputs, 0}, {h.data(), rank, 0}, beta,
                    {d_b, rank, 0}, 1);
    gemm_strided<T>(context, true, false, rank, in, rows, 1.0f, {dh.data(), rank, 0}, {x.data, x.stride, 0}, beta,
                    {d_a, in, 0}, 1);
  }
  /// W += s B A: afterwards the layer's weights [outputs, in] alone do what both did, within the rounding of T. With
  /// `sign` −1 it is taken away.
  void merge(Context& context, T* weights, float sign = 1) const {
    gemm(context, false, false, out, in, rank, sign * scale, b, a, 1.0f, weights + first * in);
  }

 private:
  // With dropout x becomes what is left of it, which the result has.
  DeviceBuffer<T> drop_some(Context& context, RowsOf<T>& x, std::size_t rows, std::size_t first_row) const {
    if (!mask) return {};
    DeviceBuffer<T> dropped = context.buffer<T>(checked_product(rows, in), Category::activations, "adapter input");
    masked(context, x.data, x.stride, mask + first_row * in, 1 / kept, dropped.data(), rows, in);
    x = {dropped.data(), in};
    return dropped;
  }
  // x Aᵀ
  DeviceBuffer<T> product(Context& context, RowsOf<T> x, std::size_t rows) const {
    DeviceBuffer<T> h = context.buffer<T>(checked_product(rows, rank), Category::activations, "adapter product");
    gemm_strided<T>(context, false, true, rows, rank, in, 1.0f, {x.data, x.stride, 0}, {a, in, 0}, 0.0f,
                    {h.data(), rank, 0}, 1);
    return h;
  }
  // s dy B, its gradient
  DeviceBuffer<T> product_gradient(Context& context, const T* dy, std::size_t outputs, std::size_t rows) const {
    DeviceBuffer<T> dh = context.buffer<T>(checked_product(rows, rank), Category::activations, "adapter gradient");
    gemm_strided<T>(context, false, false, rows, rank, out, scale, {dy + first, outputs, 0}, {b, rank, 0}, 0.0f,
                    {dh.data(), rank, 0}, 1);
    return dh;
  }
};

}  // namespace oomlab::nn
