#include "cuda/check.h"

#include <fmt/format.h>

#include <cstdio>
#include <string_view>

namespace oomlab {
namespace {

std::string_view base_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

CudaError::CudaError(cudaError_t code, const char* call, const char* file, int line)
    : std::runtime_error(fmt::format("{}: {} in {} ({}:{})", cudaGetErrorName(code), cudaGetErrorString(code), call,
                                     base_name(file), line)),
      code_(code) {}

CublasError::CublasError(cublasStatus_t status, const char* call, const char* file, int line)
    : std::runtime_error(fmt::format("{}: {} in {} ({}:{})", cublasGetStatusName(status), cublasGetStatusString(status),
                                     call, base_name(file), line)),
      status_(status) {}

void throw_cuda_error(cudaError_t code, const char* call, const char* file, int line) {
  (void)cudaGetLastError();
  throw CudaError(code, call, file, line);
}

void throw_cublas_error(cublasStatus_t status, const char* call, const char* file, int line) {
  (void)cudaGetLastError();  // cuBLAS may have left one behind too
  throw CublasError(status, call, file, line);
}

void report_if_failed(cudaError_t code, const char* call) noexcept {
  if (code == cudaSuccess) return;
  (void)cudaGetLastError();
  std::fprintf(stderr, "oomlab: %s failed while cleaning up: %s\n", call, cudaGetErrorString(code));
}

}  // namespace oomlab
