#pragma once
// The timing pass: every variant's steps under Google Benchmark, in rounds.

#include <vector>

#include "harness/chapter.h"
#include "harness/progress.h"
#include "harness/result.h"

namespace oomlab {

/// Adds to each result the samples per second of every step, and, around them, how fast the machine was. A variant that
/// was not measured is left out, and so is a team on the host runtime: simulated devices share one processor. Out of
/// device memory, which the memory pass did not meet, becomes the row's reason; anything else is thrown.
void run_timing_pass(const Config& config, const std::vector<const Variant*>& variants,
                     std::vector<VariantResult>& results, const Progress& progress);

}  // namespace oomlab
