#pragma once
// A base in fewer bits for the trainer (nn/layers/frozen_store.h): frozen_base.h's matrices in memory that is somebody else's, such
// as a shard of a layer, or a layer that comes from host memory.

#include "nn/layers/frozen_store.h"

namespace oomlab::adapters {

/// Of the tensors that a quantised model has in fewer bits (quantised::is_quantised()). T is float, __half or
/// __nv_bfloat16. Throws as quantised::parts_of().
template <class T>
std::unique_ptr<nn::FrozenStore<T>> make_frozen_store(const std::vector<nn::TensorShape>& shapes,
                                                         const quantised::Format& format);

/// Makes such stores of one format; nothing where that leaves weights as they are.
template <class T>
nn::MakeFrozenStore<T> frozen_stores(const quantised::Format& format) {
  if (format.scheme == quantised::Scheme::as_is) return {};
  return [format](const std::vector<nn::TensorShape>& shapes) { return make_frozen_store<T>(shapes, format); };
}

}  // namespace oomlab::adapters
