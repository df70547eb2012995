// The driver API's virtual memory management: an address range is a mapping without access, physical memory is an
// anonymous file, so it can be mapped again somewhere else with its contents. Capacity is charged when the memory is
// made and given back when its handle is released and its last mapping is gone.

#include <sys/mman.h>
#include <unistd.h>

#include "cuda.h"
#include "runtime.h"

namespace oomlab::host {
namespace {

struct Memory {
  std::size_t size;
  int device, file;  // file -1: plan mode
  int mappings = 0;
  bool released = false;
};
std::map<CUmemGenericAllocationHandle, Memory> memories;
std::map<CUdeviceptr, std::size_t> reservations;
CUmemGenericAllocationHandle next_handle = 1;

template <class Work>
CUresult driver_entry(const char* call, CUresult fault, bool gives_back, Work&& work) noexcept {
  const bool fails = fault_point(call);
  if (fails && !gives_back) return fault;
  const RuntimeScope scope;
  try {
    Lock lock = lock_runtime();
    const CUresult result = work(lock);
    return fails ? fault : result;
  } catch (...) {
    return static_cast<CUresult>(error_of_current_exception());
  }
}

void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }
bool whole(unsigned long long n) { return n % vmm_granule == 0; }

CUresult check_properties(const CUmemAllocationProp* p) {
  if (!p || p->type != CU_MEM_ALLOCATION_TYPE_PINNED || p->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return CUDA_ERROR_INVALID_VALUE;
  if (p->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_NOT_SUPPORTED;
  return valid_device(p->location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

bool reserved(CUdeviceptr address, std::size_t size) {
  auto found = reservations.upper_bound(address);
  if (found == reservations.begin()) return false;
  --found;
  const std::size_t start = address - found->first;
  return start < found->second && size <= found->second - start;
}

// Calls visit(block) for each mapping in a range, if whole mappings fill it; false otherwise.
template <class Visit>
bool for_mappings(CUdeviceptr address, std::size_t size, Visit visit) {
  auto& blocks = runtime().blocks;
  CUdeviceptr at = address;
  for (const bool act : {false, true}) {
    for (at = address; at < address + size;) {
      const auto found = blocks.find(at);
      if (found == blocks.end() || found->second.kind != Kind::mapped) return false;
      at += found->second.size;
      if (act) visit(found);
    }
    if (at != address + size) return false;
  }
  return true;
}

void free_if_over(std::map<CUmemGenericAllocationHandle, Memory>::iterator memory) {
  if (!memory->second.released || memory->second.mappings) return;
  if (memory->second.file >= 0) close(memory->second.file);
  refund(memory->second.device, memory->second.size);
  runtime().live.device_bytes -= memory->second.size;
  --runtime().live.device_blocks;
  memories.erase(memory);
}

}  // namespace
}  // namespace oomlab::host

using namespace oomlab::host;

CUresult cuInit(unsigned int flags) {
  return driver_entry("cuInit", CUDA_ERROR_NOT_INITIALIZED, false,
                      [&](Lock&) { return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; });
}

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags option) {
  return driver_entry("cuMemGetAllocationGranularity", CUDA_ERROR_UNKNOWN, false, [&](Lock&) {
    if (!granularity || option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) return CUDA_ERROR_INVALID_VALUE;
    const CUresult error = check_properties(properties);
    if (error == CUDA_SUCCESS) *granularity = vmm_granule;
    return error;
  });
}

CUresult cuMemAddressReserve(CUdeviceptr* result, size_t size, size_t alignment, CUdeviceptr,
                             unsigned long long flags) {
  return driver_entry("cuMemAddressReserve", CUDA_ERROR_OUT_OF_MEMORY, false, [&](Lock&) {
    if (!result || !size || !whole(size) || flags || (alignment & (alignment - 1))) return CUDA_ERROR_INVALID_VALUE;
    const std::size_t step = std::max(alignment, vmm_granule);
    CUdeviceptr address;
    if (runtime().planning) {
      address = round_up(plan_address(size + step), step);
    } else {  // more than needed, so that an aligned range is inside; the rest goes back
      if (size > ~std::size_t(0) - step) return CUDA_ERROR_OUT_OF_MEMORY;
      void* const all = mmap(nullptr, size + step, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (all == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
      const CUdeviceptr start = reinterpret_cast<CUdeviceptr>(all);
      address = round_up(start, step);
      if (address > start) munmap(all, address - start);
      if (address < start + step) munmap(pointer(address + size), start + step - address);
    }
    reservations[address] = size;
    ++runtime().live.reservations;
    *result = address;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
  return driver_entry("cuMemAddressFree", CUDA_ERROR_UNKNOWN, true, [&](Lock&) {
    const auto found = reservations.find(address);
    if (found == reservations.end() || found->second != size) return CUDA_ERROR_INVALID_VALUE;
    const auto mapped = runtime().blocks.lower_bound(address);
    if (mapped != runtime().blocks.end() && mapped->first < address + size) return CUDA_ERROR_INVALID_VALUE;
    if (!runtime().planning) munmap(pointer(address), size);
    reservations.erase(found);
    --runtime().live.reservations;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* result, size_t size, const CUmemAllocationProp* properties,
                     unsigned long long flags) {
  return driver_entry("cuMemCreate", CUDA_ERROR_OUT_OF_MEMORY, false, [&](Lock& lock) {
    if (!result || !size || !whole(size) || flags) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = check_properties(properties)) return error;
    const int device = properties->location.id;
    if (!charge(device, size)) {
      drain_device(lock, device);
      trim_pools(device, true);
      if (!charge(device, size)) return CUDA_ERROR_OUT_OF_MEMORY;
    }
    int file = -1;
    if (!runtime().planning) {
      file = memfd_create("oomlab", MFD_CLOEXEC);
      if (file < 0 || ftruncate(file, static_cast<off_t>(size)) != 0) {
        if (file >= 0) close(file);
        refund(device, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
      }
    }
    memories.emplace(next_handle, Memory{size, device, file});
    Live& live = runtime().live;
    live.device_bytes += size;
    ++live.device_blocks;
    ++live.vmm_handles;
    *result = next_handle++;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return driver_entry("cuMemRelease", CUDA_ERROR_UNKNOWN, true, [&](Lock&) {
    const auto memory = memories.find(handle);
    if (memory == memories.end() || memory->second.released) return CUDA_ERROR_INVALID_VALUE;
    memory->second.released = true;
    --runtime().live.vmm_handles;
    free_if_over(memory);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  return driver_entry("cuMemMap", CUDA_ERROR_OUT_OF_MEMORY, false, [&](Lock&) {
    const auto memory = memories.find(handle);
    if (memory == memories.end() || memory->second.released || !size || !whole(size) || !whole(address) || offset ||
        flags || size > memory->second.size || !reserved(address, size))
      return CUDA_ERROR_INVALID_VALUE;
    const auto next = runtime().blocks.lower_bound(address);
    if (find_block(pointer(address)) || (next != runtime().blocks.end() && next->first < address + size))
      return CUDA_ERROR_INVALID_VALUE;  // something is mapped there
    const int file = memory->second.file;
    if (file >= 0 && mmap(pointer(address), size, PROT_NONE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED)
      return CUDA_ERROR_OUT_OF_MEMORY;
    Block block{size, 0, Kind::mapped, memory->second.device, nullptr, handle, nullptr};
    block.accessible = false;
    runtime().blocks.emplace(address, block);
    ++memory->second.mappings;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
  return driver_entry("cuMemUnmap", CUDA_ERROR_UNKNOWN, true, [&](Lock& lock) {
    drain_device(lock, -1);
    const bool ok = size && for_mappings(address, size, [&](auto block) {
                      if (!runtime().planning)  // where it fails, the pages stay until the range is given back
                        (void)mmap(reinterpret_cast<void*>(block->first), block->second.size, PROT_NONE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
                      const auto memory = memories.find(block->second.offset);
                      --memory->second.mappings;
                      runtime().blocks.erase(block);
                      free_if_over(memory);
                    });
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc* list, size_t count) {
  return driver_entry("cuMemSetAccess", CUDA_ERROR_UNKNOWN, false, [&](Lock&) {
    if (!size || !list || !count) return CUDA_ERROR_INVALID_VALUE;
    int protection = PROT_NONE;  // one address space: the most that any device gets
    for (std::size_t i = 0; i < count; ++i) {
      if (list[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
      if (!valid_device(list[i].location.id)) return CUDA_ERROR_INVALID_DEVICE;
      if (list[i].flags & CU_MEM_ACCESS_FLAGS_PROT_READ) protection |= PROT_READ;
      if (list[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) protection |= PROT_WRITE;
    }
    const bool ok = for_mappings(address, size, [&](auto block) {
      block->second.accessible = protection != PROT_NONE;
      if (!runtime().planning) mprotect(reinterpret_cast<void*>(block->first), block->second.size, protection);
    });
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}
