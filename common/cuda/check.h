#pragma once
// Every CUDA and cuBLAS return code is checked, and becomes a typed exception.
//
// A failed call also leaves its code behind as the thread's "last error", where it would be blamed on the
// next kernel launch. So a check that throws always reads the last error too, which clears it
// (sticky errors, after which the context is lost, stay: nothing can clear those).

#include <cublas_v2.h>
#include <cuda.h>
#include <cuda_runtime.h>

#include <stdexcept>

namespace oomlab {

/// A CUDA runtime call failed. what() names the error, the call, and where it stands.
class CudaError : public std::runtime_error {
 public:
  CudaError(cudaError_t code, const char* call, const char* file, int line);
  cudaError_t code() const noexcept { return code_; }

 private:
  cudaError_t code_;
};

/// A cuBLAS call failed. what() names the status, the call, and where it stands.
class CublasError : public std::runtime_error {
 public:
  CublasError(cublasStatus_t status, const char* call, const char* file, int line);
  cublasStatus_t status() const noexcept { return status_; }

 private:
  cublasStatus_t status_;
};

/// Base of errors that say no more than that another rank failed first: what counts is that rank's error.
class AnotherRankFailed {
 public:
  virtual ~AnotherRankFailed() = default;
};

/// Clears the thread's last CUDA error and throws CudaError. Called by CUDA_CHECK.
[[noreturn]] void throw_cuda_error(cudaError_t code, const char* call, const char* file, int line);
/// Throws CublasError. Called by CUBLAS_CHECK.
[[noreturn]] void throw_cublas_error(cublasStatus_t status, const char* call, const char* file, int line);

/// For destructors, which must not throw: a failed call is written to stderr, once, and its last error cleared.
void report_if_failed(cudaError_t code, const char* call) noexcept;

}  // namespace oomlab

#define CUDA_CHECK(call)                                                                                \
  do {                                                                                                  \
    const cudaError_t oomlab_code = (call);                                                             \
    if (oomlab_code != cudaSuccess) ::oomlab::throw_cuda_error(oomlab_code, #call, __FILE__, __LINE__); \
  } while (false)

/// For the driver API, whose codes have the numbers of the runtime's.
#define CU_CHECK(call)                                                                                \
  do {                                                                                                \
    const CUresult oomlab_result = (call);                                                            \
    if (oomlab_result != CUDA_SUCCESS)                                                                \
      ::oomlab::throw_cuda_error(static_cast<cudaError_t>(oomlab_result), #call, __FILE__, __LINE__); \
  } while (false)

#define CUBLAS_CHECK(call)                                                    \
  do {                                                                        \
    const cublasStatus_t oomlab_status = (call);                              \
    if (oomlab_status != CUBLAS_STATUS_SUCCESS)                               \
      ::oomlab::throw_cublas_error(oomlab_status, #call, __FILE__, __LINE__); \
  } while (false)
