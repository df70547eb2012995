#pragma once
// The ranks of a team: a thread each, or, under a launcher, a process each.

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "harness/variant.h"

namespace oomlab {

/// The device also runs out of memory where no ledger looks: a library's own allocations, a kernel's code, a stream.
/// True for these errors, and for OutOfMemory.
bool is_device_out_of_memory(const std::runtime_error& error);

/// Throws VariantSkipped when there are not as many devices (under a launcher: processes) as ranks.
void require_devices(int ranks);

/// Runs body(rank) for each of `ranks`, a thread each, or a process each; in plan mode, where nobody waits for anybody,
/// one after the other. Returns what each returned. Of several exceptions the first one counts, with its rank's name:
/// the others follow from it.
std::vector<std::string> on_ranks(Team& team, const std::vector<int>& ranks,
                                  const std::function<std::string(int)>& body);

}  // namespace oomlab
