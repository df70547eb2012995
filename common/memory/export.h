#pragma once
// The timeline of a ledger as the contents of files that other tools open.

#include <string>

#include "memory/ledger.h"

namespace oomlab {

/// Chrome / Perfetto trace-event JSON: a counter track (allocated, reserved; bytes) a device, the phases as slices,
/// on a second row the work of the processor beside them, an instant event where memory ran out. Needs a ledger that
/// recorded its timeline.
std::string chrome_trace(const Ledger& ledger, int device, const std::string& process_name);

/// A snapshot for PyTorch's memory_viz page (pickle protocol 2 to 4): the timeline as device trace, and what is live
/// now as segments whose blocks tile them. Frames carry `program`, the tag, and the phase.
std::string memory_snapshot(const Ledger& ledger, int device, const std::string& program);

}  // namespace oomlab
