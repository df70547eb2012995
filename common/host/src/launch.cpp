// Kernel launches: the call. What runs a grid's blocks is in blocks.cpp.

#include <utility>

#include "runtime.h"

namespace oomlab::host::detail {

cudaError_t launch(const cudaLaunchConfig_t* config, const void* function, const void* closure,
                   std::function<void()> (*copy)(const void*)) noexcept {
  return entry<cudaErrorLaunchOutOfResources>("cudaLaunchKernelEx", [&] {
    require(config && function);
    require(config->numAttrs == 0, cudaErrorNotSupported);
    const dim3 g = config->gridDim, b = config->blockDim;
    require(count(g) && g.x <= 2147483647 && g.y <= 65535 && g.z <= 65535 && count(b) && count(b) <= 1024 &&
                b.z <= 64 && config->dynamicSmemBytes <= most_shared,
            cudaErrorInvalidConfiguration);
    require(has_shape(g, b), cudaErrorNotSupported);
    CUstream_st& stream = find_stream(config->stream);
    require(stream.device == current_device(), cudaErrorInvalidResourceHandle);
    ++runtime().work[stream.device].launches;
    if (runtime().planning) return;
    execute(stream, [config = *config, kernel = copy(closure)] {
      run_grid(config.gridDim, config.blockDim, config.dynamicSmemBytes, kernel);
    });
  });
}

}  // namespace oomlab::host::detail
