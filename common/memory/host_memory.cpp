#include "memory/host_memory.h"

#include <algorithm>
#include <utility>

namespace oomlab {

template <class Upstream>
void* HostMemory::Limited<Upstream>::allocate(std::size_t bytes, cudaStream_t stream) {
  const std::size_t rounded = round_to_granule(bytes);
  if (rounded == 0) return nullptr;
  const HostBudget& budget = books_.budget;
  const std::size_t used = budget.limit == kUnlimited ? books_.live : checked_sum(books_.live, budget.of_others);
  if (rounded > budget.limit - std::min(budget.limit, used)) {
    OutOfMemoryReport report;
    report.requested = bytes;
    report.requested_rounded = rounded;
    report.on_host = true;
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
