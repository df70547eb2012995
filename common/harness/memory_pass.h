#pragma once
// The memory pass: what a variant allocates, counted; nothing is timed.

#include <optional>
#include <string>

#include "harness/chapter.h"
#include "harness/progress.h"
#include "harness/result.h"

namespace oomlab {

/// What memory did over time, as the files of --trace and --snapshot: of the first variant.
struct TimelineFiles {
  std::string trace, snapshot;
};

/// What a chapter predicts, and what a context needs beside that. Throws std::length_error for a sum beyond a size_t.
ByCategory with_workspace(const Config& config, ByCategory bytes);

/// As the command line has them; of a rank, without what the others need.
Budgets budgets_of(const Config& config);

/// Runs the steps (Config::memory_steps) of a variant under the budget, and, when that is too small, once more without it. A budget or a
/// device that is too small, and a machine with too few devices, are outcomes; anything else is thrown. `files`, where
/// not null, is filled.
VariantResult run_memory_pass(const Config& config, const std::string& program, const Variant& variant, bool baseline,
                              TimelineFiles* files, const Progress& progress);

/// The largest batch whose predicted peak fits the budget: the prediction grows with the batch, so doubling, then
/// bisection. 0 when not even one sample fits; nothing without a budget, or when the peak does not depend on the batch.
std::optional<std::size_t> largest_batch(const Config& config, const Variant& variant);

}  // namespace oomlab
