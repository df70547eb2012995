#pragma once
// Out of memory, as an exception that explains itself.

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "memory/ledger.h"

namespace oomlab {

/// The figures of a report, in bytes.
struct OutOfMemoryFigures {
  std::size_t requested = 0;          ///< asked for
  std::size_t requested_rounded = 0;  ///< counted: rounded to the granule
  Category category{};
  std::size_t live = 0;                  ///< allocated by this ledger
  std::size_t live_requested = 0;        ///< the same blocks, not rounded
  std::size_t reserved = 0;              ///< held by the allocator
  std::size_t limit = kUnlimited;        ///< the budget; kUnlimited when there is none
  bool by_limit = false;                 ///< the budget refused it, not the device
  bool on_host = false;                  ///< of the host's memory (host_memory.h); the device's figures are then 0
  std::size_t limit_used = 0;            ///< by_limit: what the budget counted as live (another ledger's blocks too)
  std::size_t limit_used_by_others = 0;  ///< by_limit: what of that other processes, or ranks, have
  double waited_ms = 0;                  ///< before this was said, for others to give something back
  std::size_t device_free = 0;           ///< as the driver says
  std::size_t device_total = 0;
  std::size_t largest_free_block = 0;  ///< as the allocator says; 0 when it cannot say
  bool cache_released = false;         ///< the allocator had given back what it could before it failed
  int device = 0;
  ByCategory live_by_category;
};

/// Everything known at the moment an allocation failed.
struct OutOfMemoryReport : OutOfMemoryFigures {
  /// The most specific cause that the figures support.
  enum class Cause {
    too_big,        ///< asked for more than the whole limit or device
    live,           ///< live blocks leave too little room: this program needs less, or more memory
    rounding,       ///< would have fit but for rounding to the granule, or to the steps of the device
    fragmented,     ///< enough is free in total, but no single block is large enough
    cached,         ///< enough is held by the allocator's cache and not given back
    other_process,  ///< enough would be free on the device, if other processes did not hold it
  };
  std::string tag;                      ///< what was being allocated
  std::vector<LiveBlock> largest_live;  ///< up to five tags

  Cause cause() const noexcept;
};

/// One line, the wording PyTorch users know:
/// "CUDA out of memory. Tried to allocate 20.00 MiB for layer 3 weight. GPU 0 has a total capacity of …".
std::string headline(const OutOfMemoryReport& report);
/// The full text: the headline, why, the largest live tags, and the chapters that help with this cause, each with the
/// bytes that it is worth here. In Chinese the headline and the names of tags and categories in the list stay as they
/// are: those are what people search for.
std::string explain(const OutOfMemoryReport& report, bool chinese = false);

/// An allocation could not be served. Nothing was allocated, nothing else changed, and the last CUDA error is clear.
/// what() is the headline.
class OutOfMemory : public std::runtime_error {
 public:
  explicit OutOfMemory(OutOfMemoryReport report);
  const OutOfMemoryReport& report() const noexcept { return report_; }

 private:
  OutOfMemoryReport report_;
};

}  // namespace oomlab
