#include "memory/context.h"

#include "cuda/check.h"

namespace oomlab {

Context::Context(MemoryResource& upstream, Ledger& ledger, std::size_t workspace_bytes, bool tf32, HostBudget host)
    : memory_(upstream, ledger),
      blas_(stream_),
      workspace_(memory_, stream_, workspace_bytes, Category::workspace, "cuBLAS workspace"),
      tf32_(tf32),
      host_memory_(host) {
  // After cublasSetStream, which forgets the workspace.
  CUBLAS_CHECK(cublasSetWorkspace(blas_, workspace_.data(), workspace_.bytes()));
}

Context::~Context() { report_if_failed(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

}  // namespace oomlab
