#include "memory/resource.h"

#include <cstdint>
#include <new>
#include <utility>

#include "cuda/backend.h"
#include "cuda/check.h"
#include "plan/interrupt.h"

namespace oomlab {
namespace {

OutOfMemoryReport bare_report(std::size_t bytes, std::size_t rounded) {
  OutOfMemoryReport report;
  report.requested = bytes;
  report.requested_rounded = rounded;
  return report;
}

// What every allocating call of the runtime needs: an out-of-memory code is a report, any other a CudaError.
void check_allocation(cudaError_t code, const char* call, std::size_t bytes, std::size_t rounded) {
  if (code == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    throw OutOfMemory(bare_report(bytes, rounded));
  }
  if (code != cudaSuccess) throw_cuda_error(code, call, __FILE__, __LINE__);
}

std::uint64_t pool_attribute(cudaMemPool_t pool, cudaMemPoolAttr attribute) {
  std::uint64_t value = 0;
  CUDA_CHECK(cudaMemPoolGetAttribute(pool, attribute, &value));
  return value;
}

constexpr std::align_val_t kPageableAlignment{256};  // as memory of CUDA is

}  // namespace

// ------------------------------------------------------------------------------------------------------ DirectResource

template <DirectMemory kMemory>
void* DirectResource<kMemory>::allocate(std::size_t bytes, cudaStream_t) {
  const std::size_t rounded = round_to_granule(bytes);
  if (rounded == 0) return nullptr;
  void* address = nullptr;
  if constexpr (kMemory == DirectMemory::device)
    check_allocation(cudaMalloc(&address, rounded), "cudaMalloc", bytes, rounded);
  else if constexpr (kMemory == DirectMemory::managed)
    check_allocation(cudaMallocManaged(&address, rounded), "cudaMallocManaged", bytes, rounded);
  else if (kMemory == DirectMemory::pinned || planning())
    check_allocation(cudaMallocHost(&address, rounded), "cudaMallocHost", bytes, rounded);
  else
    address = ::operator new(rounded, kPageableAlignment, std::nothrow);
  if (!address) throw OutOfMemory(bare_report(bytes, rounded));
  reserved_ += rounded;
  return address;
}

template <DirectMemory kMemory>
void DirectResource<kMemory>::deallocate(void* address, std::size_t bytes, cudaStream_t stream) noexcept {
  if (!address) return;
  if constexpr (kMemory == DirectMemory::pinned || kMemory == DirectMemory::pageable) {
    // Neither promises to wait, and a copy on the stream may still read or write the block.
    report_if_failed(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    if (kMemory == DirectMemory::pinned || planning())
      report_if_failed(cudaFreeHost(address), "cudaFreeHost");
    else
      ::operator delete(address, kPageableAlignment);
  } else {
    report_if_failed(cudaFree(address), "cudaFree");
  }
  reserved_ -= round_to_granule(bytes);
}

template class DirectResource<DirectMemory::device>;
template class DirectResource<DirectMemory::managed>;
template class DirectResource<DirectMemory::pinned>;
template class DirectResource<DirectMemory::pageable>;

// ------------------------------------------------------------------------------------------------------- AsyncResource

AsyncResource::AsyncResource(std::uint64_t release_threshold_bytes) {
  int device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device;
  CUDA_CHECK(cudaMemPoolCreate(&pool_, &properties));
  const cudaError_t code = cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &release_threshold_bytes);
  if (code == cudaSuccess) return;
  (void)cudaGetLastError();
  report_if_failed(cudaMemPoolDestroy(pool_), "cudaMemPoolDestroy");
  throw_cuda_error(code, "cudaMemPoolSetAttribute", __FILE__, __LINE__);
}

AsyncResource::~AsyncResource() { report_if_failed(cudaMemPoolDestroy(pool_), "cudaMemPoolDestroy"); }

void* AsyncResource::allocate(std::size_t bytes, cudaStream_t stream) {
  const std::size_t rounded = round_to_granule(bytes);
  if (rounded == 0) return nullptr;
  void* address = nullptr;
  check_allocation(cudaMallocFromPoolAsync(&address, rounded, pool_, stream), "cudaMallocFromPoolAsync", bytes,
                   rounded);
  return address;
}

void AsyncResource::deallocate(void* address, std::size_t, cudaStream_t stream) noexcept {
  if (address) report_if_failed(cudaFreeAsync(address, stream), "cudaFreeAsync");
}

std::size_t AsyncResource::reserved_bytes() const { return pool_attribute(pool_, cudaMemPoolAttrReservedMemCurrent); }

void AsyncResource::open_to_peers(const std::vector<int>& devices) {
  int own = 0;
  CUDA_CHECK(cudaGetDevice(&own));
  std::vector<cudaMemAccessDesc> peers;
  for (const int device : devices) {
    int reachable = 0;
    if (device != own) CUDA_CHECK(cudaDeviceCanAccessPeer(&reachable, device, own));
    if (!reachable) continue;
    cudaMemAccessDesc& peer = peers.emplace_back();
    peer.location.type = cudaMemLocationTypeDevice;
    peer.location.id = device;
    peer.flags = cudaMemAccessFlagsProtReadWrite;
  }
  if (!peers.empty()) CUDA_CHECK(cudaMemPoolSetAccess(pool_, peers.data(), peers.size()));
}

void AsyncResource::trim(std::size_t keep_bytes) { CUDA_CHECK(cudaMemPoolTrimTo(pool_, keep_bytes)); }

// ------------------------------------------------------------------------------------------------------- ArenaResource

ArenaResource::ArenaResource(MemoryResource& upstream, std::size_t bytes, cudaStream_t stream)
    : upstream_(upstream),
      capacity_(round_to_granule(bytes)),
      stream_(stream),
      base_(static_cast<std::byte*>(upstream.allocate(capacity_, stream))) {}

ArenaResource::~ArenaResource() { upstream_.deallocate(base_, capacity_, stream_); }

void* ArenaResource::allocate(std::size_t bytes, cudaStream_t) {
  const std::size_t rounded = round_to_granule(bytes);
  if (rounded == 0) return nullptr;
  if (rounded > capacity_ - used_) {
    OutOfMemoryReport report = bare_report(bytes, rounded);
    report.live = report.limit_used = used_;
    report.limit = report.reserved = capacity_;
    report.by_limit = true;
    report.largest_free_block = capacity_ - used_;
    throw OutOfMemory(std::move(report));
  }
  void* address = base_ + used_;
  used_ += rounded;
  return address;
}

// ---------------------------------------------------------------------------------------------------- LimitingResource

void* LimitingResource::allocate(std::size_t bytes, cudaStream_t stream) {
  const std::size_t rounded = round_to_granule(bytes);
  if (rounded == 0) return nullptr;
  if (rounded > limit_ - live_) {
    OutOfMemoryReport report = bare_report(bytes, rounded);
    report.live = report.live_requested = report.limit_used = live_;
    report.limit = limit_;
    report.by_limit = true;
    throw OutOfMemory(std::move(report));
  }
  void* address = upstream_.allocate(rounded, stream);
  live_ += rounded;
  return address;
}

void LimitingResource::deallocate(void* address, std::size_t bytes, cudaStream_t stream) noexcept {
  if (!address) return;
  const std::size_t rounded = round_to_granule(bytes);
  upstream_.deallocate(address, rounded, stream);
  live_ -= rounded;
}

// ---------------------------------------------------------------------------------------------------- TrackingResource

void* TrackingResource::allocate(std::size_t bytes, cudaStream_t stream, Category category, std::string_view tag) {
  check_interrupt();
  const std::size_t rounded = round_to_granule(bytes);
  if (rounded == 0) return nullptr;
  void* address = nullptr;
  try {
    address = upstream_.allocate(rounded, stream);
  } catch (const OutOfMemory& bare) {
    OutOfMemoryReport report = complete(bare.report(), bytes, category, tag);
    ledger_.note_out_of_memory(bytes, rounded, category, tag, report.device_free);
    throw OutOfMemory(std::move(report));
  }
  try {
    if (observe_) observe();  // before the charge, so that its event knows what is reserved now
    ledger_.charge(address, bytes, rounded, category, tag);
  } catch (...) {
    upstream_.deallocate(address, rounded, stream);
    throw;
  }
  return address;
}

void TrackingResource::deallocate(void* address, std::size_t bytes, cudaStream_t stream) noexcept {
  if (!address) return;
  upstream_.deallocate(address, round_to_granule(bytes), stream);
  if (observe_) {
    try {
      observe();
    } catch (...) {  // a figure less; the block is free all the same
    }
  }
  ledger_.release(address);
}

void TrackingResource::observe() {
  std::size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  ledger_.note_reserved(upstream_.reserved_bytes(), total - free);
}

OutOfMemoryReport TrackingResource::complete(const OutOfMemoryReport& bare, std::size_t bytes, Category category,
                                             std::string_view tag) const {
  constexpr std::size_t kTags = 5;
  OutOfMemoryReport report = bare;
  report.requested = bytes;
  report.category = category;
  report.tag = tag;
  report.live = ledger_.live_bytes();
  report.live_requested = ledger_.live_requested();
  report.live_by_category = ledger_.live_by_category();
  report.largest_live = ledger_.largest_live(kTags);
  if (!report.by_limit) report.limit = ledger_.limit_bytes();
  if (planning() || report.on_host) return report;  // no device is behind it
  // A device in trouble may refuse to be asked, too. What it does not say is missing in the report, no more.
  if (cudaGetDevice(&report.device) != cudaSuccess) (void)cudaGetLastError();
  if (cudaMemGetInfo(&report.device_free, &report.device_total) != cudaSuccess) {
    (void)cudaGetLastError();
    report.device_free = report.device_total = 0;
  }
  try {
    report.reserved = upstream_.reserved_bytes();
    report.largest_free_block = upstream_.largest_free_block();
    report.cache_released = upstream_.releases_cache();
  } catch (const CudaError&) {
  }
  return report;
}

}  // namespace oomlab
