#pragma once
// Memory resources, in RMM's vocabulary: small classes that allocate from the one below them (their upstream).
//
//   TrackingResource   charges a ledger, explains out-of-memory         (top: what DeviceBuffer talks to)
//   LimitingResource   refuses beyond a budget
//   SharedLimitResource, WaitingResource     one budget for several processes (shared_budget.h)
//   CudaResource | AsyncResource | ManagedResource | PinnedResource | ArenaResource      (bottom)
//
// Contract, tested for each of them by one typed suite: allocate(bytes) returns an address aligned to 256 bytes (CUDA's
// promise), or throws OutOfMemory (nothing changed, last error clear) or CudaError; allocate(0) returns nullptr;
// deallocate() never throws, ignores nullptr, and takes the bytes that allocate() was given. A free that fails is
// written to stderr; the block then counts as given back and is never handed out again.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "memory/ledger.h"
#include "memory/out_of_memory.h"

namespace oomlab {

class MemoryResource {
 public:
  MemoryResource() = default;
  MemoryResource(const MemoryResource&) = delete;
  MemoryResource& operator=(const MemoryResource&) = delete;
  virtual ~MemoryResource() = default;

  /// `bytes` of memory, usable by work queued on `stream` after this call.
  virtual void* allocate(std::size_t bytes, cudaStream_t stream) = 0;
  /// Gives memory back; work queued on `stream` before this call may still use it.
  virtual void deallocate(void* address, std::size_t bytes, cudaStream_t stream) noexcept = 0;
  /// Bytes this resource (with what lies below it) holds from the device: "reserved".
  virtual std::size_t reserved_bytes() const = 0;
  /// Largest request that would be served without asking the device, in bytes; 0 when it cannot tell.
  virtual std::size_t largest_free_block() const { return 0; }
  /// True when it gives cached memory back to the device, and tries again, before it fails: then a failure with enough
  /// cached memory is fragmentation.
  virtual bool releases_cache() const { return false; }
  /// True when allocate(bytes) would fail now, for certain. False also when it cannot tell without trying.
  virtual bool would_refuse(std::size_t /*bytes*/) const { return false; }
};

enum class DirectMemory { device, managed, pinned, pageable };

/// Every allocation is one of the runtime's own, or of the operating system's.
template <DirectMemory kMemory>
class DirectResource final : public MemoryResource {
 public:
  void* allocate(std::size_t bytes, cudaStream_t stream) override;
  void deallocate(void* address, std::size_t bytes, cudaStream_t stream) noexcept override;
  std::size_t reserved_bytes() const override { return reserved_; }

 private:
  std::size_t reserved_ = 0;
};
/// cudaMalloc and cudaFree, which waits for the device.
using CudaResource = DirectResource<DirectMemory::device>;
/// cudaMallocManaged: pages move between host and device on demand.
using ManagedResource = DirectResource<DirectMemory::managed>;
/// cudaMallocHost: page-locked host memory, not device memory.
using PinnedResource = DirectResource<DirectMemory::pinned>;
/// Memory of the operating system: it may be paged out, and a copy to or from a device goes through a buffer of the
/// driver's. In plan mode an address without memory.
using PageableResource = DirectResource<DirectMemory::pageable>;

/// cudaMallocAsync from a pool of its own on the current device, which keeps freed memory up to the release threshold
/// (bytes; by default all of it) until trim(). This is the default of the chapters. It cannot tell its largest free
/// block: the driver says how much of a pool is free, not in what pieces. It has no limit of its own
/// (cudaMemPoolProps::maxSize): a driver takes memory in steps that it does not document, so what fits below such a
/// limit would be another thing on every driver. LimitingResource counts what is allocated.
class AsyncResource final : public MemoryResource {
 public:
  explicit AsyncResource(std::uint64_t release_threshold_bytes = UINT64_MAX);
  ~AsyncResource() override;
  void* allocate(std::size_t bytes, cudaStream_t stream) override;
  void deallocate(void* address, std::size_t bytes, cudaStream_t stream) noexcept override;
  std::size_t reserved_bytes() const override;
  bool releases_cache() const override { return true; }  // the driver does
  /// Gives cached memory beyond `keep_bytes` back to the device, as torch.cuda.empty_cache() does.
  void trim(std::size_t keep_bytes = 0);
  /// Lets other devices reach this memory, where there is a way from them to this one. A pool is its own device's
  /// only; NCCL up to 2.22 has ranks write into their peers' buffers. Throws CudaError.
  void open_to_peers(const std::vector<int>& devices);

 private:
  cudaMemPool_t pool_ = nullptr;
};

/// One upstream block, cut from the front; deallocate() does nothing until reset(). A request that does not fit is
/// refused as by a budget of the arena's size.
class ArenaResource final : public MemoryResource {
 public:
  /// Takes `bytes` (rounded to the granule) from upstream at once.
  ArenaResource(MemoryResource& upstream, std::size_t bytes, cudaStream_t stream);
  ~ArenaResource() override;
  void* allocate(std::size_t bytes, cudaStream_t stream) override;
  void deallocate(void*, std::size_t, cudaStream_t) noexcept override {}
  std::size_t reserved_bytes() const override { return capacity_; }
  std::size_t largest_free_block() const override { return capacity_ - used_; }
  /// Forgets every block at once. The caller answers for nobody using them any more.
  void reset() noexcept { used_ = 0; }

 private:
  MemoryResource& upstream_;
  std::size_t capacity_, used_ = 0;
  cudaStream_t stream_;
  std::byte* base_;
};

/// Refuses what would bring live bytes (rounded to the granule) above a budget, before asking upstream. This is how a
/// laptop, a T4 and an H200 run out of memory at the same allocation.
class LimitingResource final : public MemoryResource {
 public:
  LimitingResource(MemoryResource& upstream, std::size_t limit_bytes) : upstream_(upstream), limit_(limit_bytes) {}
  void* allocate(std::size_t bytes, cudaStream_t stream) override;
  void deallocate(void* address, std::size_t bytes, cudaStream_t stream) noexcept override;
  std::size_t reserved_bytes() const override { return upstream_.reserved_bytes(); }
  std::size_t largest_free_block() const override { return upstream_.largest_free_block(); }
  bool releases_cache() const override { return upstream_.releases_cache(); }
  bool would_refuse(std::size_t bytes) const override {
    return round_to_granule(bytes) > limit_ - live_ || upstream_.would_refuse(bytes);
  }
  std::size_t limit_bytes() const noexcept { return limit_; }
  std::size_t live_bytes() const noexcept { return live_; }

 private:
  MemoryResource& upstream_;
  std::size_t limit_, live_ = 0;
};

/// Charges every block to a ledger under a category and a tag, and turns a bare OutOfMemory from below into one that
/// knows the whole picture. Requests are rounded to the granule here, once, before they go down. Throws Interrupted on
/// Ctrl-C.
class TrackingResource final : public MemoryResource {
 public:
  TrackingResource(MemoryResource& upstream, Ledger& ledger) : upstream_(upstream), ledger_(ledger) {}
  void* allocate(std::size_t bytes, cudaStream_t stream, Category category, std::string_view tag);
  void* allocate(std::size_t bytes, cudaStream_t stream) override {
    return allocate(bytes, stream, Category::workspace, "untagged");
  }
  void deallocate(void* address, std::size_t bytes, cudaStream_t stream) noexcept override;
  std::size_t reserved_bytes() const override { return upstream_.reserved_bytes(); }
  std::size_t largest_free_block() const override { return upstream_.largest_free_block(); }
  bool releases_cache() const override { return upstream_.releases_cache(); }
  Ledger& ledger() const noexcept { return ledger_; }
  /// Tells the ledger what is reserved and what the device says is used, at every allocation and free (off by
  /// default: it costs a driver call each; the memory pass turns it on).
  void observe_device(bool on) noexcept { observe_ = on; }
  bool observes_device() const noexcept { return observe_; }

 private:
  void observe();
  OutOfMemoryReport complete(const OutOfMemoryReport& bare, std::size_t bytes, Category category,
                             std::string_view tag) const;
  MemoryResource& upstream_;
  Ledger& ledger_;
  bool observe_ = false;
};

}  // namespace oomlab
