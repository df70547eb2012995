#pragma once
// Which device a run, and each of its ranks, has.

#include "harness/cli.h"
#include "harness/progress.h"

namespace oomlab {

/// Makes the device of the command line current; `--device auto` becomes the one with the most free memory, and
/// `progress` hears what is on each. Throws CannotRunHere where there is no CUDA device, UsageError for a device that
/// does not exist, for more devices than there are, and where they are too few for the ranks that were asked for
/// (`asked_with` is Chapter::ranks_asked_with).
void choose_device(CommandLine& line, int most_ranks, const char* asked_with, const Progress& progress);

/// The device of a rank: rank r has device r, counted from the first one of this run; of several processes, each counts
/// on its own host. In plan mode all ranks have one.
int device_of(const Config& config, int rank);

/// The devices that a team's ranks have in this process: what their memory must be open to. Throws CudaError.
std::vector<int> devices_of_team(const Config& config, int ranks);

/// Tells which devices the ranks get, and what else is on them. Throws RankFailed where one cannot be asked.
void say_devices(const Config& config, int ranks, const Progress& progress);

}  // namespace oomlab
