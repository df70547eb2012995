#pragma once
// What PyTorch's caching allocator holds from the device for a step: its simulated allocations and releases, replayed
// by the allocator's published rules (plan/allocator/policies.h). Those rules are held against cases worked out by hand,
// against another way of writing them on recorded traces, and against PyTorch's own allocator on an H100, which holds
// the same to four digits on these traces (bench/results/peers). Of a step an H100 held up to some percent less or more
// (docs/fit_pytorch.md): say "by replay".

#include <cstdint>
#include <span>

#include "plan/bytes.h"
#include "plan/pytorch/tape.h"

namespace oomlab::fit {

enum class TorchSegments {
  native,      ///< as PyTorch comes
  expandable,  ///< PYTORCH_ALLOC_CONF=expandable_segments:True
};

struct Reserved {
  std::uint64_t peak;  ///< most bytes held from the device, as torch.cuda.max_memory_reserved() says
  std::uint64_t live;  ///< most bytes that are live at once, in blocks of 512
  /// Most bytes of blocks in use, as torch.cuda.max_memory_allocated() says: a large block is up to 1 MiB too large
  /// where the rest of it would be too small for another.
  std::uint64_t allocated;
  bool fits;  ///< nothing was refused. If false, the figures are those up to the first refusal
};

/// `events`: of HfPeak, in order, from an empty allocator on. `budget`: bytes that the device has for it; under a budget
/// the allocator gives cached memory back before it fails. Streams have pools of their own, as there. Throws
/// std::invalid_argument, in one line, for a release of what is not live, or an identifier that is used twice.
Reserved reserved_by_replay(std::span<const MemoryEvent> events, TorchSegments segments,
                            std::uint64_t budget = kUnlimited);

}  // namespace oomlab::fit
