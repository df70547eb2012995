#pragma once
// The weights of a model that are stored in fewer bits. Who runs the model knows where the bytes are, and when, and whoever
// implements this knows what they mean.

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "memory/context.h"
#include "nn/layers/linear.h"
#include "plan/model/transformer.h"
#include "plan/quantised/format.h"

namespace oomlab::nn {

/// T is what the weights are decoded to.
template <class T>
class FrozenStore {
 public:
  virtual ~FrozenStore() = default;
  /// The matrix that is tensor i, which somebody's model is bound to; null where the tensor is stored as it is. It lives
  /// as long as this.
  virtual const FrozenMatrix<T>* matrix(std::size_t i) const = 0;
  /// Bytes of tensor i.
  virtual std::size_t bytes(std::size_t i) const = 0;
  /// Where they are from now on; null: not now.
  virtual void bind(std::size_t i, std::byte* at) = 0;

  /// Before the first encode(): memory for pieces of a matrix in FP32 (category workspace). Throws OutOfMemory.
  virtual void begin_encoding(Context& context) = 0;
  /// Writes `count` weights of a tensor in FP32, from number `first` on, to `to` on the device, in stream order.
  using Fill = std::function<void(Context&, std::size_t first, std::size_t count, float* to)>;
  /// Encodes tensor i to where it is.
  virtual void encode(Context& context, std::size_t i, const Fill& fill) = 0;
  /// After the last one. That memory is given back, and room for a decoded part of a matrix is taken (category
  /// workspace), which stays. Throws OutOfMemory.
  virtual void end_encoding(Context& context) = 0;
};

/// Makes a store for these tensors of a model, or of a slice of one.
template <class T>
using MakeFrozenStore = std::function<std::unique_ptr<FrozenStore<T>>(const std::vector<TensorShape>&)>;

}  // namespace oomlab::nn
