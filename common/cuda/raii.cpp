#include "cuda/raii.h"

#include <cstdio>

namespace oomlab {

void CublasHandle::destroy() noexcept {
  if (!handle_) return;
  const cublasStatus_t status = cublasDestroy(std::exchange(handle_, nullptr));
  if (status != CUBLAS_STATUS_SUCCESS)
    std::fprintf(stderr, "oomlab: cublasDestroy failed while cleaning up: %s\n", cublasGetStatusString(status));
}

}  // namespace oomlab
