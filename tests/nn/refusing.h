#pragma once
// Memory that one allocation is refused.

#include <cstddef>

#include "cuda/check.h"
#include "memory/resource.h"

namespace oomlab::test {

/// Refuses the k-th allocation after arm(k), once; none after arm(0).
class Refusing final : public MemoryResource {
 public:
  void* allocate(std::size_t bytes, cudaStream_t stream) override {
    if (left_ && --left_ == 0) {
      OutOfMemoryReport report;
      report.requested = report.requested_rounded = bytes;
      throw OutOfMemory(report);
    }
    return upstream_.allocate(bytes, stream);
  }
  void deallocate(void* address, std::size_t bytes, cudaStream_t stream) noexcept override {
    upstream_.deallocate(address, bytes, stream);
  }
  std::size_t reserved_bytes() const override { return upstream_.reserved_bytes(); }
  void arm(std::size_t k) { left_ = k; }

 private:
  CudaResource upstream_;
  std::size_t left_ = 0;
};

}  // namespace oomlab::test
