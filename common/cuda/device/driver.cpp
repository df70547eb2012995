// The driver API's virtual memory management, loaded at run time. A program linked against libcuda would not even start
// on a machine without a driver, where it should list its variants, plan, and say clearly that there is no device.

#include <cuda.h>
#include <dlfcn.h>

namespace {

template <class Function>
Function* load(const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return library ? reinterpret_cast<Function*>(dlsym(library, name)) : nullptr;
}

}  // namespace

#define OOMLAB_FORWARD(name, parameters, arguments)                         \
  CUresult CUDAAPI name parameters {                                        \
    static auto* const function = load<CUresult CUDAAPI parameters>(#name); \
    return function ? function arguments : CUDA_ERROR_NO_DEVICE;            \
  }

extern "C" {
OOMLAB_FORWARD(cuInit, (unsigned int flags), (flags))
OOMLAB_FORWARD(cuMemGetAllocationGranularity,
               (size_t * granularity, const CUmemAllocationProp* properties, CUmemAllocationGranularity_flags option),
               (granularity, properties, option))
OOMLAB_FORWARD(cuMemAddressReserve,
               (CUdeviceptr * address, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags),
               (address, size, alignment, hint, flags))
OOMLAB_FORWARD(cuMemAddressFree, (CUdeviceptr address, size_t size), (address, size))
OOMLAB_FORWARD(cuMemCreate,
               (CUmemGenericAllocationHandle * handle, size_t size, const CUmemAllocationProp* properties,
                unsigned long long flags),
               (handle, size, properties, flags))
OOMLAB_FORWARD(cuMemRelease, (CUmemGenericAllocationHandle handle), (handle))
OOMLAB_FORWARD(cuMemMap,
               (CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                unsigned long long flags),
               (address, size, offset, handle, flags))
OOMLAB_FORWARD(cuMemUnmap, (CUdeviceptr address, size_t size), (address, size))
OOMLAB_FORWARD(cuMemSetAccess, (CUdeviceptr address, size_t size, const CUmemAccessDesc* access, size_t count),
               (address, size, access, count))
}
