#pragma once
// The loss of a batch whose samples are on several ranks.

#include "cuda/check.h"
#include "cuda/nccl.h"
#include "memory/context.h"
#include "nn/ops/values.h"

namespace oomlab::train {

/// The sum of the losses of all ranks of `world`, on each of them. `mine`: this rank's, on the device, or null where
/// another rank has it; `room`: on the device, for one float. Throws CudaError and NcclError.
inline float loss_of_all(Context& context, Communicator& world, const float* mine, float* room) {
  nn::fill(context, room, 1, 0.0f);
  if (mine) CUDA_CHECK(cudaMemcpyAsync(room, mine, sizeof(float), cudaMemcpyDeviceToDevice, context.stream()));
  world.all_reduce(room, 1, context.stream());
  float loss = 0;
  CUDA_CHECK(cudaMemcpyAsync(&loss, room, sizeof loss, cudaMemcpyDeviceToHost, context.stream()));
  world.wait(context.stream());
  return loss;
}

}  // namespace oomlab::train
