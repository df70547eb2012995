#pragma once
// Allocation traces: what a program asked for and gave back, in order. Read from three formats and written in one.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "memory/files.h"

namespace oomlab::bench {

/// A trace cannot be used. what() is one line that names the file and, for text, the line.
class TraceError : public BadFile {
 public:
  using BadFile::BadFile;
};

struct TraceEvent {
  bool allocates;
  std::size_t id;        ///< of the block, 0…blocks−1
  std::size_t bytes;     ///< asked for
  std::uint64_t stream;  ///< 0: the default stream
};
struct Trace {
  std::string name;
  std::size_t blocks = 0;
  std::vector<TraceEvent> events;  ///< each block is allocated once, and freed at most once, later
  /// Largest sum of live bytes, each block rounded to the granule.
  std::size_t live_peak() const;
};

/// RMM's log: "Thread,Time,Action,Pointer,Size,Stream"; actions allocate, free, and allocate failure (ignored, for
/// nothing was allocated). Throws TraceError.
Trace parse_rmm_csv(std::string_view text, const std::string& name);
/// MiniMalloc's "id,lower,upper,size": a buffer lives from lower up to, not including, upper; at one time frees come
/// first. Sizes are multiplied by `scale`. Throws TraceError.
Trace parse_minimalloc_csv(std::string_view text, const std::string& name, std::size_t scale);
/// PyTorch's memory snapshot (torch.cuda.memory._dump_snapshot): the alloc and free_completed events of one device's
/// trace. Blocks that were live before recording began are allocated first. Every pickle opcode that would name a class
/// or call something is refused. Throws TraceError.
Trace parse_snapshot(std::string_view bytes, const std::string& name);
/// Chooses by content. Throws TraceError, and BadFile for a file that cannot be read, or has more than 4 GiB.
Trace read_trace(const std::string& path, std::size_t minimalloc_scale = 1024);

/// As parse_rmm_csv() reads it.
std::string rmm_csv(const Trace& trace);

}  // namespace oomlab::bench
