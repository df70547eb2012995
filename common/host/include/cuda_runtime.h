#pragma once
// The CUDA runtime API, as far as the course uses it, implemented on the host: genuine CUDA sources are compiled by a
// C++ compiler and run with no GPU. Names, signatures, enumerators and their values are those of CUDA 13.0, so what
// compiles here compiles there. What is not implemented is not declared: using it does not compile.
//
// Where host and GPU differ:
//   - a kernel runs with one thread a block (check mode: a few real ones), whatever blockDim was asked for; threadIdx,
//     blockIdx, blockDim and gridDim are one-dimensional: a kernel walks the ranges of oomlab_block.h. Not so for kernels
//     that readers write (bench/puzzling): there a block has all of its threads, in three dimensions;
//   - there is no static shared memory (__shared__ is not defined; a lesson's is rewritten, oomlab_lesson.h), at most
//     48 KiB of the dynamic kind, and no warp operation;
//   - a device's capacity is a number (oomlab_host.h), and cudaMalloc charges it in steps of 512 bytes.

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#define CUDART_VERSION 13000

// ------------------------------------------------------------------------------------------------- language extensions

// As nvcc does, everything that a kernel calls becomes part of it: a call left in a loop keeps it from being
// vectorised.
#define __global__ __attribute__((flatten))
#define __device__
#define __host__
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __grid_constant__

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

#ifdef OOMLAB_HOST_THREADS  // a block has several
extern constinit thread_local uint3 threadIdx;
extern constinit thread_local dim3 blockDim;
#else
inline constexpr uint3 threadIdx{0, 0, 0};
inline constexpr dim3 blockDim{1, 1, 1};
#endif
extern constinit thread_local uint3 blockIdx;
extern constinit thread_local dim3 gridDim;

// --------------------------------------------------------------------------------------------------------------- types

typedef enum cudaError {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInitializationError = 3,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidMemcpyDirection = 21,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorLaunchOutOfResources = 701,
  cudaErrorNotSupported = 801,
  cudaErrorUnknown = 999
} cudaError_t;

typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
typedef struct CUmemPoolHandle_st* cudaMemPool_t;

enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4
};
enum cudaMemLocationType { cudaMemLocationTypeDevice = 1, cudaMemLocationTypeHost = 2 };
struct cudaMemLocation {
  enum cudaMemLocationType type;
  int id;
};
enum cudaMemAllocationType { cudaMemAllocationTypePinned = 1 };
enum cudaMemAllocationHandleType { cudaMemHandleTypeNone = 0 };
struct cudaMemPoolProps {  // the members that somebody sets
  enum cudaMemAllocationType allocType;
  enum cudaMemAllocationHandleType handleTypes;
  struct cudaMemLocation location;
};
enum cudaMemPoolAttr {
  cudaMemPoolAttrReleaseThreshold = 4,
  cudaMemPoolAttrReservedMemCurrent = 5,
  cudaMemPoolAttrReservedMemHigh = 6,
  cudaMemPoolAttrUsedMemCurrent = 7,
  cudaMemPoolAttrUsedMemHigh = 8
};
enum cudaMemAccessFlags { cudaMemAccessFlagsProtReadWrite = 3 };
struct cudaMemAccessDesc {
  struct cudaMemLocation location;
  enum cudaMemAccessFlags flags;
};
enum cudaMemoryAdvise {
  cudaMemAdviseSetReadMostly = 1,
  cudaMemAdviseSetPreferredLocation = 3,
  cudaMemAdviseSetAccessedBy = 5
};
enum cudaMemRangeAttribute {
  cudaMemRangeAttributePreferredLocation = 2,
  cudaMemRangeAttributeLastPrefetchLocation = 4
};
enum { cudaCpuDeviceId = -1, cudaInvalidDeviceId = -2 };

/// The members of the real structure that somebody reads, under their real names. Compute capability is 0.0 here.
struct cudaDeviceProp {
  char name[256];
  int major;
  int minor;
};
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrPageableMemoryAccess = 88,
  cudaDevAttrConcurrentManagedAccess = 89
};

typedef struct cudaLaunchAttribute_st cudaLaunchAttribute;  // none is implemented: numAttrs must be 0
typedef struct cudaLaunchConfig_st {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned int numAttrs;
} cudaLaunchConfig_t;

#define cudaStreamNonBlocking 0x01
#define cudaMemAttachGlobal 0x01

// ----------------------------------------------------------------------------------------------------------- functions

cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);

cudaError_t cudaRuntimeGetVersion(int* runtimeVersion);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attr, int device);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDeviceCanAccessPeer(int* canAccessPeer, int device, int peerDevice);

cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cudaMalloc(void** devPtr, size_t size);
cudaError_t cudaFree(void* devPtr);
cudaError_t cudaMallocHost(void** ptr, size_t size);
cudaError_t cudaFreeHost(void* ptr);
cudaError_t cudaMallocManaged(void** devPtr, size_t size, unsigned int flags = cudaMemAttachGlobal);
cudaError_t cudaMemPrefetchAsync(const void* devPtr, size_t count, cudaMemLocation location, unsigned int flags,
                                 cudaStream_t stream = 0);
cudaError_t cudaMemAdvise(const void* devPtr, size_t count, cudaMemoryAdvise advice, cudaMemLocation location);
cudaError_t cudaMemRangeGetAttribute(void* data, size_t dataSize, cudaMemRangeAttribute attribute, const void* devPtr,
                                     size_t count);

cudaError_t cudaMallocAsync(void** devPtr, size_t size, cudaStream_t hStream);
cudaError_t cudaMallocFromPoolAsync(void** ptr, size_t size, cudaMemPool_t memPool, cudaStream_t stream);
cudaError_t cudaFreeAsync(void* devPtr, cudaStream_t hStream);
cudaError_t cudaMemPoolCreate(cudaMemPool_t* memPool, const cudaMemPoolProps* poolProps);
cudaError_t cudaMemPoolDestroy(cudaMemPool_t memPool);
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t memPool, size_t minBytesToKeep);
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t memPool, cudaMemPoolAttr attr, void* value);
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t memPool, cudaMemPoolAttr attr, void* value);
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t memPool, const cudaMemAccessDesc* descList, size_t count);
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* memPool, int device);

cudaError_t cudaMemcpy(void* dst, const void* src, size_t count, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t count, cudaMemcpyKind kind, cudaStream_t stream = 0);
cudaError_t cudaMemset(void* devPtr, int value, size_t count);
cudaError_t cudaMemsetAsync(void* devPtr, int value, size_t count, cudaStream_t stream = 0);

cudaError_t cudaStreamCreate(cudaStream_t* pStream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* pStream, unsigned int flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags = 0);
cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = 0);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end);
cudaError_t cudaEventDestroy(cudaEvent_t event);

// --------------------------------------------------------------------------------------- typed forms, as CUDA has them

template <class T>
cudaError_t cudaMalloc(T** devPtr, size_t size) {
  return cudaMalloc((void**)(void*)devPtr, size);
}
template <class T>
cudaError_t cudaMallocHost(T** ptr, size_t size) {
  return cudaMallocHost((void**)(void*)ptr, size);
}
template <class T>
cudaError_t cudaMallocManaged(T** devPtr, size_t size, unsigned int flags = cudaMemAttachGlobal) {
  return cudaMallocManaged((void**)(void*)devPtr, size, flags);
}
template <class T>
cudaError_t cudaMallocAsync(T** ptr, size_t size, cudaStream_t stream) {
  return cudaMallocAsync((void**)(void*)ptr, size, stream);
}

// -------------------------------------------------------------------------------------------------------------- launch

namespace oomlab::host::detail {

/// `copy` copies the closure, which is a kernel with its arguments: so that it outlives the call.
cudaError_t launch(const cudaLaunchConfig_t* config, const void* function, const void* closure,
                   std::function<void()> (*copy)(const void* closure)) noexcept;

/// Where a block has several threads: where they meet and exchange values.
void block_barrier();
void* block_slot(unsigned thread);
/// The calling block's dynamic shared memory.
void* block_shared();
/// Blocks that can run at the same time.
unsigned concurrent_blocks();

}  // namespace oomlab::host::detail

/// Arguments are converted to the kernel's parameter types and copied before the call returns.
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments), "one argument for each parameter of the kernel");
  const auto call = [kernel, values = std::tuple<std::remove_cv_t<Parameters>...>(static_cast<Parameters>(
                                 std::forward<Arguments>(arguments))...)] { std::apply(kernel, values); };
  return oomlab::host::detail::launch(config, reinterpret_cast<const void*>(kernel), &call, [](const void* closure) {
    return std::function<void()>(*static_cast<decltype(call)*>(closure));
  });
}

/// All threads of the block arrive before any goes on.
inline void __syncthreads() {
#ifdef OOMLAB_HOST_THREADS
  oomlab::host::detail::block_barrier();
#endif
}

inline int atomicAdd(int* p, int v) { return std::atomic_ref(*p).fetch_add(v, std::memory_order_relaxed); }
inline unsigned atomicAdd(unsigned* p, unsigned v) {
  return std::atomic_ref(*p).fetch_add(v, std::memory_order_relaxed);
}
inline unsigned long long atomicAdd(unsigned long long* p, unsigned long long v) {
  return std::atomic_ref(*p).fetch_add(v, std::memory_order_relaxed);
}
inline float atomicAdd(float* p, float v) { return std::atomic_ref(*p).fetch_add(v, std::memory_order_relaxed); }
inline double atomicAdd(double* p, double v) { return std::atomic_ref(*p).fetch_add(v, std::memory_order_relaxed); }
