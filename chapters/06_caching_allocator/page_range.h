#pragma once
// Device memory in pages under one large range of addresses: CUDA's virtual memory management, wrapped once.

#include <cuda.h>

#include <cstddef>
#include <vector>

#include "cuda/check.h"

namespace oomlab::caching_allocator {

/// A range of addresses, pages of which have memory. Addresses cost nothing, so the range is larger than the device.
class PageRange {
 public:
  /// Reserves at least `address_bytes` of addresses on the current device. Throws CudaError.
  explicit PageRange(std::size_t address_bytes) {
    CU_CHECK(cuInit(0));
    CUDA_CHECK(cudaGetDevice(&properties_.location.id));
    properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CU_CHECK(cuMemGetAllocationGranularity(&page_bytes_, &properties_, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    bytes_ = (address_bytes / page_bytes_ + 1) * page_bytes_;
    CU_CHECK(cuMemAddressReserve(&base_, bytes_, 0, 0, 0));
  }
  /// Gives everything back. The caller answers for nobody using it any more.
  ~PageRange() {
    for (std::size_t page = 0; page < handles_.size(); ++page)
      if (handles_[page] && take(page)) give_back(taken_);
    for (const CUmemGenericAllocationHandle handle : lost_) give_back(handle);
    report_if_failed(static_cast<cudaError_t>(cuMemAddressFree(base_, bytes_)), "cuMemAddressFree");
  }
  PageRange(const PageRange&) = delete;
  PageRange& operator=(const PageRange&) = delete;

  std::size_t page_bytes() const { return page_bytes_; }
  std::size_t pages() const { return bytes_ / page_bytes_; }
  /// Pages that have memory, the ones in lost_pages() included.
  std::size_t mapped() const { return mapped_; }
  bool is_mapped(std::size_t page) const { return page < handles_.size() && handles_[page]; }
  void* address(std::size_t offset) const { return reinterpret_cast<void*>(base_ + offset); }
  std::size_t offset(const void* address) const { return reinterpret_cast<CUdeviceptr>(address) - base_; }

  /// Books for pages up to `end`. Throws std::bad_alloc: nothing has changed.
  void make_room(std::size_t end) {
    if (handles_.size() < end) handles_.resize(end);
    lost_.reserve(lost_.size() + handles_.size());
  }

  /// One page of memory from the device. False: out of memory. Throws CudaError.
  bool create(CUmemGenericAllocationHandle& handle) {
    const CUresult result = cuMemCreate(&handle, page_bytes_, &properties_, 0);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) return false;
    CU_CHECK(result);
    return true;
  }
  void give_back(CUmemGenericAllocationHandle handle) noexcept {
    report_if_failed(static_cast<cudaError_t>(cuMemRelease(handle)), "cuMemRelease");
  }
  /// Puts memory under a page, without access.
  CUresult put(std::size_t page, CUmemGenericAllocationHandle handle) noexcept {
    const CUresult result = cuMemMap(base_ + page * page_bytes_, page_bytes_, 0, handle, 0);
    if (result != CUDA_SUCCESS) return result;
    handles_[page] = handle;
    ++mapped_;
    return result;
  }
  CUresult allow_access(std::size_t first, std::size_t count) noexcept {
    const CUmemAccessDesc access{properties_.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return cuMemSetAccess(base_ + first * page_bytes_, count * page_bytes_, &access, 1);
  }
  /// Takes the memory from under a page; it is in taken() then. False: the driver reported an error, so nobody knows
  /// what is there now: the page must not be used again, and its memory is kept until the end.
  bool take(std::size_t page) noexcept {
    const CUresult result = cuMemUnmap(base_ + page * page_bytes_, page_bytes_);
    report_if_failed(static_cast<cudaError_t>(result), "cuMemUnmap");
    taken_ = handles_[page];
    handles_[page] = 0;
    if (result == CUDA_SUCCESS) {
      --mapped_;
      return true;
    }
    lost_.push_back(taken_);  // make_room() has reserved it
    return false;
  }
  CUmemGenericAllocationHandle taken() const { return taken_; }
  std::size_t lost_pages() const { return lost_.size(); }

 private:
  CUmemAllocationProp properties_{};
  std::size_t page_bytes_ = 0, bytes_ = 0, mapped_ = 0;
  CUdeviceptr base_ = 0;
  CUmemGenericAllocationHandle taken_ = 0;
  std::vector<CUmemGenericAllocationHandle> handles_, lost_;  // by page; 0: none
};

}  // namespace oomlab::caching_allocator
