#pragma once
// For the models that keep their loss on the device.

#include <stdexcept>

#include "cuda/backend.h"
#include "cuda/check.h"
#include "memory/context.h"

namespace oomlab::nn {

/// The one float of `loss`, copied from the device (waits for the stream). 0 in plan mode. Throws std::logic_error for
/// an empty buffer, that of a model that was made without gradients.
inline float read_loss(Context& context, const DeviceBuffer<float>& loss) {
  if (!loss) throw std::logic_error("this model was made without gradients");
  float value = 0;
  if (planning()) return value;
  CUDA_CHECK(cudaMemcpyAsync(&value, loss.data(), sizeof value, cudaMemcpyDeviceToHost, context.stream()));
  context.synchronize();
  return value;
}

}  // namespace oomlab::nn
