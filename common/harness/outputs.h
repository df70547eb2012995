#pragma once
// Files that a run writes at its end: whatever can be known to go wrong with them is known before it begins.

#include <string>
#include <utility>
#include <vector>

namespace oomlab {

struct Config;

/// Throws UsageError when `path`, given with `option`, cannot be written; an empty path is none.
void check_output_path(const std::string& option, const std::string& path);

/// Options and the paths given with them.
using NamedPaths = std::vector<std::pair<std::string, std::string>>;

/// Throws UsageError when one of the files that a run writes cannot be written, or would overwrite another one, or a
/// file that an option of the chapter's own names (--weights, --text): by whatever spelling, or through links. `more`:
/// files beside those of the config.
void check_outputs(const Config& config, const NamedPaths& more);

}  // namespace oomlab
