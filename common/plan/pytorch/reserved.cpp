#include "plan/pytorch/reserved.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <unordered_map>

#include "plan/allocator/policies.h"

namespace oomlab::fit {

Reserved reserved_by_replay(std::span<const MemoryEvent> events, TorchSegments segments, std::uint64_t budget) {
  bench::PyTorchPolicy policy(budget, segments == TorchSegments::expandable);
  std::unordered_map<std::uint64_t, std::uint64_t> blocks;  // live ones, rounded
  Reserved reserved{.peak = 0, .live = 0, .allocated = 0, .fits = true};
  std::uint64_t live = 0;
  for (const MemoryEvent& event : events) {
    if (event.release) {
      const auto found = blocks.find(event.id);
      if (found == blocks.end()) throw std::invalid_argument(fmt::format("block {} is not live", event.id));
      live -= found->second;
      blocks.erase(found);
      if (event.bytes > 0) policy.free(event.id);
      continue;
    }
    const std::uint64_t block = round_to_granule(event.bytes);
    if (!blocks.insert({event.id, block}).second)
      throw std::invalid_argument(fmt::format("block {} is there already", event.id));
    if (event.bytes == 0) continue;  // an empty tensor has no block
    if (!policy.allocate(event.id, event.bytes, event.stream)) {
      reserved.fits = false;
      return reserved;
    }
    live = checked_sum(live, block);
    reserved.live = std::max(reserved.live, live);
    reserved.allocated = std::max(reserved.allocated, policy.allocated());
    reserved.peak = std::max(reserved.peak, policy.reserved());
  }
  return reserved;
}

}  // namespace oomlab::fit
