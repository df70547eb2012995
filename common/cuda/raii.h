#pragma once
// Owners of CUDA objects: made in the constructor (which throws CudaError or CublasError), destroyed in the
// destructor (which never throws), move-only.

#include <utility>

#include "cuda/check.h"

namespace oomlab {

/// A stream that does not synchronise with the default stream.
class Stream {
 public:
  Stream() { CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() {
    if (stream_) report_if_failed(cudaStreamDestroy(stream_), "cudaStreamDestroy");
  }
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  operator cudaStream_t() const noexcept { return stream_; }
  /// Waits for all work queued so far. Throws CudaError, also for errors of that work.
  void synchronize() const { CUDA_CHECK(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// A timing event.
class Event {
 public:
  Event() { CUDA_CHECK(cudaEventCreate(&event_)); }
  ~Event() {
    if (event_) report_if_failed(cudaEventDestroy(event_), "cudaEventDestroy");
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  operator cudaEvent_t() const noexcept { return event_; }
  void record(cudaStream_t stream) { CUDA_CHECK(cudaEventRecord(event_, stream)); }
  void synchronize() const { CUDA_CHECK(cudaEventSynchronize(event_)); }

 private:
  cudaEvent_t event_ = nullptr;
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
    CUBLAS_CHECK(cublasCreate(&handle_));
    try {
      CUBLAS_CHECK(cublasSetStream(handle_, stream));
      CUBLAS_CHECK(cublasSetMathMode(handle_, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));
    } catch (...) {
      destroy();
      throw;
    }
  }
  ~CublasHandle() { destroy(); }
  CublasHandle(CublasHandle&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  CublasHandle& operator=(CublasHandle&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  operator cublasHandle_t() const noexcept { return handle_; }

 private:
  void destroy() noexcept;
  cublasHandle_t handle_ = nullptr;
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
