#pragma once
// Owners of CUDA objects: made in the constructor (which throws CudaError or CublasError), destroyed in the
// destructor (which never throws), move-only.

#include <cstdio>
#include <memory>
#include <type_traits>

#include "cuda/check.h"

namespace oomlab {

/// Gives a handle back; a failure is written to stderr.
struct Destroy {
  void operator()(cudaStream_t stream) const noexcept {
    report_if_failed(cudaStreamDestroy(stream), "cudaStreamDestroy");
  }
  void operator()(cudaEvent_t event) const noexcept { report_if_failed(cudaEventDestroy(event), "cudaEventDestroy"); }
  void operator()(cublasHandle_t handle) const noexcept {
    const cublasStatus_t status = cublasDestroy(handle);
    if (status != CUBLAS_STATUS_SUCCESS)
      std::fprintf(stderr, "oomlab: cublasDestroy failed while cleaning up: %s\n", cublasGetStatusString(status));
  }
};
template <class Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy>;

/// A stream that does not synchronise with the default stream.
class Stream {
 public:
  Stream() {
    cudaStream_t made = nullptr;
    CUDA_CHECK(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
    stream_.reset(made);
  }
  operator cudaStream_t() const noexcept { return stream_.get(); }
  /// Waits for all work queued so far. Throws CudaError, also for errors of that work.
  void synchronize() const { CUDA_CHECK(cudaStreamSynchronize(*this)); }

 private:
  Owned<cudaStream_t> stream_;
};

/// A timing event.
class Event {
 public:
  Event() {
    cudaEvent_t made = nullptr;
    CUDA_CHECK(cudaEventCreate(&made));
    event_.reset(made);
  }
  operator cudaEvent_t() const noexcept { return event_.get(); }
  void record(cudaStream_t stream) { CUDA_CHECK(cudaEventRecord(*this, stream)); }
  void synchronize() const { CUDA_CHECK(cudaEventSynchronize(*this)); }

 private:
  Owned<cudaEvent_t> event_;
};

/// Milliseconds of device time between two recorded events; waits for the second one.
inline float elapsed_ms(const Event& start, const Event& stop) {
  stop.synchronize();
  float ms = 0;
  CUDA_CHECK(cudaEventElapsedTime(&ms, start, stop));
  return ms;
}

/// A cuBLAS handle bound to one stream. Products of 16-bit matrices are added up in FP32: left to itself, cuBLAS may
/// add the parts of a long sum in 16 bits (cuBLAS documentation, cublasMath_t).
class CublasHandle {
 public:
  explicit CublasHandle(cudaStream_t stream) {
    cublasHandle_t made = nullptr;
    CUBLAS_CHECK(cublasCreate(&made));
    handle_.reset(made);
    CUBLAS_CHECK(cublasSetStream(made, stream));
    CUBLAS_CHECK(cublasSetMathMode(made, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));
  }
  operator cublasHandle_t() const noexcept { return handle_.get(); }

 private:
  Owned<cublasHandle_t> handle_;
};

/// Makes `device` the current device for a scope.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    CUDA_CHECK(cudaGetDevice(&previous_));
    CUDA_CHECK(cudaSetDevice(device));
  }
  ~DeviceGuard() { report_if_failed(cudaSetDevice(previous_), "cudaSetDevice"); }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
};

}  // namespace oomlab
