#pragma once
// Single values that models keep on the device.

#include <stdexcept>

#include "cuda/backend.h"
#include "cuda/check.h"
#include "memory/context.h"

namespace oomlab::nn {

/// The one value of a buffer, copied from the device (waits for the stream). 0 in plan mode, and of an empty buffer.
template <class T>
T read_value(Context& context, const DeviceBuffer<T>& buffer) {
  T value{};
  if (!buffer || planning()) return value;
  CUDA_CHECK(cudaMemcpyAsync(&value, buffer.data(), sizeof value, cudaMemcpyDeviceToHost, context.stream()));
  context.synchronize();
  return value;
}

/// The same of a loss. Throws std::logic_error for an empty buffer, that of a model that was made without gradients.
inline float read_loss(Context& context, const DeviceBuffer<float>& loss) {
  if (!loss) throw std::logic_error("this model was made without gradients");
  return read_value(context, loss);
}

}  // namespace oomlab::nn
