#include "memory/host_memory.h"

#include <algorithm>
#include <new>
#include <utility>

#include "cuda/backend.h"
#include "cuda/check.h"

namespace oomlab {
namespace {

OutOfMemoryReport host_report(std::size_t bytes) {
  OutOfMemoryReport report;
  report.requested = bytes;
  report.requested_rounded = round_to_granule(bytes);
  report.on_host = true;
  return report;
}

constexpr std::align_val_t kAlignment{256};  // as memory of CUDA is

}  // namespace

void* PageableResource::allocate(std::size_t bytes, cudaStream_t stream) {
  const std::size_t rounded = round_to_granule(bytes);
  if (rounded == 0) return nullptr;
  void* address = nullptr;
  if (planning())
    address = PinnedResource().allocate(rounded, stream);
  else
    address = ::operator new(rounded, kAlignment, std::nothrow);
  if (!address) throw OutOfMemory(host_report(bytes));
  reserved_ += rounded;
  return address;
}

void PageableResource::deallocate(void* address, std::size_t bytes, cudaStream_t stream) noexcept {
  if (!address) return;
  reserved_ -= round_to_granule(bytes);
  if (planning()) return PinnedResource().deallocate(address, bytes, stream);
  report_if_failed(cudaStreamSynchronize(stream), "cudaStreamSynchronize");  // a copy may still read or write it
  ::operator delete(address, kAlignment);
}

template <class Upstream>
void* HostMemory::Limited<Upstream>::allocate(std::size_t bytes, cudaStream_t stream) {
  const std::size_t rounded = round_to_granule(bytes);
  if (rounded == 0) return nullptr;
  const HostBudget& budget = books_.budget;
  const std::size_t used = budget.limit == kUnlimited ? books_.live : checked_sum(books_.live, budget.of_others);
  if (rounded > budget.limit - std::min(budget.limit, used)) {
    OutOfMemoryReport report = host_report(bytes);
    report.live = report.live_requested = books_.live;
    report.limit = budget.limit;
    report.limit_used = used;
    report.limit_used_by_others = budget.of_others;
    report.by_limit = true;
    throw OutOfMemory(std::move(report));
  }
  void* address = nullptr;
  try {
    address = upstream_.allocate(rounded, stream);
  } catch (const OutOfMemory& refused) {
    OutOfMemoryReport report = refused.report();
    report.on_host = true;
    throw OutOfMemory(std::move(report));
  }
  books_.live += rounded;
  return address;
}

template <class Upstream>
void HostMemory::Limited<Upstream>::deallocate(void* address, std::size_t bytes, cudaStream_t stream) noexcept {
  if (!address) return;
  upstream_.deallocate(address, round_to_granule(bytes), stream);
  books_.live -= round_to_granule(bytes);
}

template class HostMemory::Limited<PinnedResource>;
template class HostMemory::Limited<PageableResource>;
template class HostMemory::Limited<ManagedResource>;

}  // namespace oomlab
