#pragma once
// Included before a reader's file, by the compiler's command line. The calls of the CUDA runtime by which memory comes, goes and is
// copied become calls of a Spy, which knows the line, counts the bytes, and refuses what is over the puzzle's budget. The reader's
// file is as any CUDA program: nothing in it knows of this.

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace oomlab::puzzle {

/// One call in the reader's file.
struct Spy {
  const char* call;       ///< "cudaMalloc"
  const char* arguments;  ///< as they stand there: "&scores, n * sizeof(float)"
  int line;

  cudaError_t allocate(void** address, std::size_t bytes) const;
  cudaError_t allocate_pinned(void** address, std::size_t bytes) const;
  cudaError_t release(void* address) const;
  cudaError_t release_pinned(void* address) const;
  cudaError_t free_memory(std::size_t* free, std::size_t* total) const;
  cudaError_t last_error(bool forget) const;

  template <class T>
  cudaError_t allocate(T** address, std::size_t bytes, cudaStream_t = nullptr) const {
    return allocate(reinterpret_cast<void**>(address), bytes);
  }
  template <class T>
  cudaError_t allocate_pinned(T** address, std::size_t bytes) const {
    return allocate_pinned(reinterpret_cast<void**>(address), bytes);
  }
  template <class T>
  cudaError_t release(T* address, cudaStream_t) const {
    return release(address);
  }
  /// Any other call: done as it is, unless it is this one's turn to fail.
  template <class Call>
  cudaError_t pass(Call&& done) const {
    if (const cudaError_t error = enter()) return leave(error);
    return leave(done());
  }

 private:
  cudaError_t enter() const;  ///< the device's memory may be touched; an error where this call is to fail
  cudaError_t leave(cudaError_t error) const;
};

/// While a kernel is started, and on the host runtime run.
struct Launching {
  explicit Launching(const cudaLaunchConfig_t& config);
  ~Launching();
  /// Notes the shape of a launch that failed.
  cudaError_t done(cudaError_t error) const;

 private:
  const cudaLaunchConfig_t& config_;
};
template <class... Parameters, class... Arguments>
cudaError_t launch(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...), Arguments&&... arguments) {
  const Launching launching(*config);
  return launching.done(cudaLaunchKernelEx(config, kernel, std::forward<Arguments>(arguments)...));
}

}  // namespace oomlab::puzzle

#define OOMLAB_SPY(call, ...) (::oomlab::puzzle::Spy{#call, #__VA_ARGS__, __LINE__})
#define OOMLAB_PASS(call, ...) OOMLAB_SPY(call, __VA_ARGS__).pass([&] { return (call)(__VA_ARGS__); })
#define cudaMalloc(...) OOMLAB_SPY(cudaMalloc, __VA_ARGS__).allocate(__VA_ARGS__)
#define cudaMallocAsync(...) OOMLAB_SPY(cudaMallocAsync, __VA_ARGS__).allocate(__VA_ARGS__)
#define cudaMallocHost(...) OOMLAB_SPY(cudaMallocHost, __VA_ARGS__).allocate_pinned(__VA_ARGS__)
#define cudaFree(...) OOMLAB_SPY(cudaFree, __VA_ARGS__).release(__VA_ARGS__)
#define cudaFreeAsync(...) OOMLAB_SPY(cudaFreeAsync, __VA_ARGS__).release(__VA_ARGS__)
#define cudaFreeHost(...) OOMLAB_SPY(cudaFreeHost, __VA_ARGS__).release_pinned(__VA_ARGS__)
#define cudaMemGetInfo(...) OOMLAB_SPY(cudaMemGetInfo, __VA_ARGS__).free_memory(__VA_ARGS__)
#define cudaGetLastError() OOMLAB_SPY(cudaGetLastError, ).last_error(true)
#define cudaPeekAtLastError() OOMLAB_SPY(cudaPeekAtLastError, ).last_error(false)
#define cudaMemcpy(...) OOMLAB_PASS(cudaMemcpy, __VA_ARGS__)
#define cudaMemcpyAsync(...) OOMLAB_PASS(cudaMemcpyAsync, __VA_ARGS__)
#define cudaMemset(...) OOMLAB_PASS(cudaMemset, __VA_ARGS__)
#define cudaMemsetAsync(...) OOMLAB_PASS(cudaMemsetAsync, __VA_ARGS__)
#define cudaDeviceSynchronize() OOMLAB_PASS(cudaDeviceSynchronize, )
#define cudaStreamCreate(...) OOMLAB_PASS(cudaStreamCreate, __VA_ARGS__)
#define cudaStreamCreateWithFlags(...) OOMLAB_PASS(cudaStreamCreateWithFlags, __VA_ARGS__)
#define cudaStreamDestroy(...) OOMLAB_PASS(cudaStreamDestroy, __VA_ARGS__)
#define cudaStreamSynchronize(...) OOMLAB_PASS(cudaStreamSynchronize, __VA_ARGS__)
#define cudaStreamWaitEvent(...) OOMLAB_PASS(cudaStreamWaitEvent, __VA_ARGS__)
#define cudaEventCreate(...) OOMLAB_PASS(cudaEventCreate, __VA_ARGS__)
#define cudaEventRecord(...) OOMLAB_PASS(cudaEventRecord, __VA_ARGS__)
#define cudaEventSynchronize(...) OOMLAB_PASS(cudaEventSynchronize, __VA_ARGS__)
#define cudaEventDestroy(...) OOMLAB_PASS(cudaEventDestroy, __VA_ARGS__)

#ifdef OOMLAB_HOST_THREADS  // not where nvcc compiles: there a launch is counted by on_gpu.cpp
#include "blocks/device_functions.h"
#define cudaLaunchKernelEx ::oomlab::puzzle::launch
#include <oomlab_lesson.h>
#endif
