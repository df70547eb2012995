// The driver API's virtual memory management: an address range is a mapping without access, physical memory is an
// anonymous file, so it can be mapped again somewhere else with its contents. Capacity is charged when the memory is
// made and given back when its handle is released and its last mapping is gone.

#include <sys/mman.h>
#include <unistd.h>

#include "cuda.h"
#include "runtime.h"

namespace oomlab::host {
namespace {

// Charged from here to the end of its handle and of its last mapping.
struct Memory {
  Memory(std::size_t size, int device) : size(size), device(device) {
    runtime().counted.device_bytes += size;
    ++runtime().counted.device_blocks;
  }
  ~Memory() {
    if (file >= 0) close(file);
    refund(device, size);
    runtime().counted.device_bytes -= size;
    --runtime().counted.device_blocks;
  }
  const std::size_t size;
  const int device;
  int file = -1;  // none: plan mode
};
std::map<CUmemGenericAllocationHandle, std::shared_ptr<Memory>> memories;
std::map<CUdeviceptr, std::size_t> reservations;
CUmemGenericAllocationHandle next_handle = 1;

// The codes have the numbers of the runtime's, whose last error stays as it is.
template <CUresult fault, bool back = false, class Work>
CUresult driver_entry(const char* call, Work&& work) noexcept {
  return static_cast<CUresult>(frame<static_cast<cudaError_t>(fault), back>(call, work));
}

void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }
bool whole(unsigned long long n) { return n % vmm_granule == 0; }

int device_in(const CUmemAllocationProp* p) {
  require(p && p->type == CU_MEM_ALLOCATION_TYPE_PINNED && p->location.type == CU_MEM_LOCATION_TYPE_DEVICE);
  require(p->requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE, cudaErrorNotSupported);
  require_device(p->location.id);
  return p->location.id;
}

bool anything_in(CUdeviceptr address, std::size_t size) {
  const auto next = runtime().blocks.lower_bound(address);
  return find_block(pointer(address)) || (next != runtime().blocks.end() && next->first < address + size);
}

bool reserved(CUdeviceptr address, std::size_t size) {
  const auto next = reservations.upper_bound(address);
  if (next == reservations.begin()) return false;
  const auto& [start, bytes] = *std::prev(next);
  return address - start < bytes && size <= bytes - (address - start);
}

// The mappings that fill a range; refuses when it is not filled by whole ones.
std::vector<Blocks::iterator> mappings(CUdeviceptr address, std::size_t size) {
  std::vector<Blocks::iterator> all;
  CUdeviceptr at = address;
  for (; at < address + size; at += all.back()->second.size) {
    all.push_back(runtime().blocks.find(at));
    require(all.back() != runtime().blocks.end() && all.back()->second.kind == Kind::mapped);
  }
  require(size && at == address + size);
  return all;
}

}  // namespace
}  // namespace oomlab::host

using namespace oomlab::host;

CUresult cuInit(unsigned int flags) {
  return driver_entry<CUDA_ERROR_NOT_INITIALIZED>("cuInit", [&] { require(flags == 0); });
}

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags option) {
  return driver_entry<CUDA_ERROR_UNKNOWN>("cuMemGetAllocationGranularity", [&] {
    require(granularity && option == CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    (void)device_in(properties);
    *granularity = vmm_granule;
  });
}

CUresult cuMemAddressReserve(CUdeviceptr* result, size_t size, size_t alignment, CUdeviceptr,
                             unsigned long long flags) {
  return driver_entry<CUDA_ERROR_OUT_OF_MEMORY>("cuMemAddressReserve", [&] {
    require(result && size && whole(size) && !flags && !(alignment & (alignment - 1)));
    const std::size_t step = std::max(alignment, vmm_granule);
    CUdeviceptr address;
    if (runtime().planning) {
      address = round_up(plan_address(size + step), step);
    } else {  // more than needed, so that an aligned range is inside; the rest goes back
      require(size <= ~std::size_t(0) - step, cudaErrorMemoryAllocation);
      void* const all = mmap(nullptr, size + step, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      require(all != MAP_FAILED, cudaErrorMemoryAllocation);
      const CUdeviceptr start = reinterpret_cast<CUdeviceptr>(all);
      address = round_up(start, step);
      if (address > start) munmap(all, address - start);
      if (address < start + step) munmap(pointer(address + size), start + step - address);
    }
    reservations[address] = size;
    ++runtime().counted.reservations;
    *result = address;
  });
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
  return driver_entry<CUDA_ERROR_UNKNOWN, gives_back>("cuMemAddressFree", [&] {
    const auto found = reservations.find(address);
    require(found != reservations.end() && found->second == size && !anything_in(address, size));
    if (!runtime().planning) munmap(pointer(address), size);
    reservations.erase(found);
    --runtime().counted.reservations;
  });
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* result, size_t size, const CUmemAllocationProp* properties,
                     unsigned long long flags) {
  return driver_entry<CUDA_ERROR_OUT_OF_MEMORY>("cuMemCreate", [&] {
    require(result && size && whole(size) && !flags);
    const int device = device_in(properties);
    make_fit(device, [&] { return charge(device, size); });
    const auto memory = std::make_shared<Memory>(size, device);
    if (!runtime().planning) memory->file = memfd_create("oomlab", MFD_CLOEXEC);
    const bool made = runtime().planning || (memory->file >= 0 && !ftruncate(memory->file, static_cast<off_t>(size)));
    require(made, cudaErrorMemoryAllocation);
    memories.emplace(next_handle, memory);
    ++runtime().counted.vmm_handles;
    *result = next_handle++;
  });
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return driver_entry<CUDA_ERROR_UNKNOWN, gives_back>("cuMemRelease", [&] {
    require(memories.erase(handle));
    --runtime().counted.vmm_handles;
  });
}

CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  return driver_entry<CUDA_ERROR_OUT_OF_MEMORY>("cuMemMap", [&] {
    const auto found = memories.find(handle);
    require(found != memories.end());
    const auto& [number, memory] = *found;
    require(size && whole(size) && whole(address) && !offset && !flags && size <= memory->size &&
            reserved(address, size) && !anything_in(address, size));
    if (memory->file >= 0 &&
        mmap(pointer(address), size, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->file, 0) == MAP_FAILED)
      throw std::bad_alloc();
    runtime().blocks.emplace(address, Block{size, Kind::mapped, memory->device, nullptr, 0, false, memory});
  });
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
  return driver_entry<CUDA_ERROR_UNKNOWN, gives_back>("cuMemUnmap", [&] {
    drain_device(-1);
    for (const auto block : mappings(address, size)) {
      if (!runtime().planning)  // where it fails, the pages stay until the range is given back
        (void)mmap(pointer(block->first), block->second.size, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
      runtime().blocks.erase(block);
    }
  });
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc* list, size_t count) {
  return driver_entry<CUDA_ERROR_UNKNOWN>("cuMemSetAccess", [&] {
    require(size && list && count);
    for (std::size_t i = 0; i < count; ++i) {
      require(list[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
              list[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
      require_device(list[i].location.id);
    }
    for (const auto block : mappings(address, size)) {  // one address space: what one device gets, all have
      block->second.accessible = true;
      if (!runtime().planning) mprotect(pointer(block->first), block->second.size, PROT_READ | PROT_WRITE);
    }
  });
}
