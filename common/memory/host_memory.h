#pragma once
// The host memory of a rank, counted like device memory: pinned, pageable and managed, each in a ledger of its own, and
// all of them under one budget.

#include <cstddef>

#include "memory/resource.h"
#include "plan/host_bytes.h"

namespace oomlab {

/// How much host memory there is for a rank.
struct HostBudget {
  std::size_t limit = kUnlimited;  ///< bytes, of all ranks of a machine together
  std::size_t of_others = 0;       ///< bytes of it that the other ranks need
};

/// What is allocated here throws OutOfMemory with OutOfMemoryFigures::on_host: refused by the budget, or by the system.
class HostMemory {
 public:
  explicit HostMemory(HostBudget budget = {}) : books_{budget} {}
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  TrackingResource& pinned() noexcept { return pinned_.tracked; }
  TrackingResource& pageable() noexcept { return pageable_.tracked; }
  TrackingResource& managed() noexcept { return managed_.tracked; }
  /// Bytes of all kinds that are allocated now.
  std::size_t live_bytes() const noexcept { return books_.live; }
  /// The most that there was of each kind, by category.
  HostBytes peak() const {
    return {pinned_.ledger.peak_by_category(), pageable_.ledger.peak_by_category(), managed_.ledger.peak_by_category()};
  }

 private:
  struct Books {
    HostBudget budget;
    std::size_t live = 0;
  };
  // Refuses what the budget does not have, before it asks for memory of one kind.
  template <class Upstream>
  class Limited final : public MemoryResource {
   public:
    explicit Limited(Books& books) : books_(books) {}
    void* allocate(std::size_t bytes, cudaStream_t stream) override;
    void deallocate(void* address, std::size_t bytes, cudaStream_t stream) noexcept override;
    std::size_t reserved_bytes() const override { return upstream_.reserved_bytes(); }

   private:
    Books& books_;
    Upstream upstream_;
  };
  template <class Upstream>
  struct Kind {
    explicit Kind(Books& books) : limited(books) {}
    Ledger ledger;
    Limited<Upstream> limited;
    TrackingResource tracked{limited, ledger};
  };

  Books books_;
  Kind<PinnedResource> pinned_{books_};
  Kind<PageableResource> pageable_{books_};
  Kind<ManagedResource> managed_{books_};
};

}  // namespace oomlab
