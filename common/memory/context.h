#pragma once
// What an operator needs to run: tracked memory, a stream, a cuBLAS handle with a counted workspace.

#include <cstddef>
#include <cstdint>

#include "cuda/raii.h"
#include "memory/device_buffer.h"
#include "memory/host_memory.h"
#include "memory/resource.h"
#include "plan/blas_workspace.h"

namespace oomlab {

/// `bytes` without the cuBLAS workspace. Predictions of operators and models leave it out: its size is the caller's choice.
inline ByCategory without_workspace(ByCategory bytes, std::size_t workspace_bytes = kBlasWorkspaceBytes) {
  bytes[Category::workspace] -= round_to_granule(workspace_bytes);
  return bytes;
}

class Context {
 public:
  /// Uses the current device. Allocates the workspace (category workspace, tag "cuBLAS workspace"), which is given to
  /// cuBLAS explicitly: left alone, cuBLAS allocates its own, which no ledger sees. `tf32`: products of
  /// FP32 matrices may round their operands to TF32, 10 bits of mantissa, and run on tensor cores. `host`: what there is
  /// of the host's memory.
  /// Throws OutOfMemory, CudaError, CublasError; then nothing stays allocated.
  Context(MemoryResource& upstream, Ledger& ledger, std::size_t workspace_bytes = kBlasWorkspaceBytes,
          bool tf32 = false, HostBudget host = {});
  /// Waits for the stream.
  ~Context();

  TrackingResource& memory() noexcept { return memory_; }
  HostMemory& host_memory() noexcept { return host_memory_; }
  Ledger& ledger() noexcept { return memory_.ledger(); }
  cudaStream_t stream() const noexcept { return stream_; }
  cublasHandle_t blas() const noexcept { return blas_; }
  bool tf32() const noexcept { return tf32_; }
  /// Floating-point operations of the matrix products queued so far, in kernels of ours or in cuBLAS, a multiplication
  /// and an addition counted as two; in plan mode, of those that would have been.
  std::uint64_t flops() const noexcept { return flops_; }
  void count_flops(std::uint64_t flops) noexcept { flops_ += flops; }
  /// Waits for everything queued on the stream. Throws CudaError.
  void synchronize() const { stream_.synchronize(); }

  /// A buffer of `count` elements on this context's stream, contents undefined.
  template <class T>
  DeviceBuffer<T> buffer(std::size_t count, Category category, std::string_view tag) {
    return DeviceBuffer<T>(memory_, stream_, count, category, tag);
  }
  /// The same in pinned host memory.
  template <class T>
  DeviceBuffer<T> pinned(std::size_t count, Category category, std::string_view tag) {
    return DeviceBuffer<T>(host_memory_.pinned(), stream_, count, category, tag);
  }

 private:
  Stream stream_;
  TrackingResource memory_;
  CublasHandle blas_;
  DeviceBuffer<std::byte> workspace_;
  std::uint64_t flops_ = 0;
  bool tf32_;
  HostMemory host_memory_;
};

}  // namespace oomlab
