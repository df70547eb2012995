#pragma once
// From results to text: the table, the JSON.

#include <string>
#include <vector>

#include "harness/chapter.h"
#include "harness/system.h"

namespace oomlab {

/// Everything a run found out.
struct RunResult {
  std::string program, title;
  Config config;
  SystemInfo system;
  std::vector<VariantResult> variants;
  std::vector<ClaimResult> claims;
  std::vector<std::pair<std::string, double>> findings;
  std::vector<std::string> failures;  ///< one line each; empty: PASS
};

/// "2.00 GiB", or "none" for kUnlimited.
std::string format_limit(std::size_t bytes);

/// The banner: title, model, batch, budget, device.
std::string banner(const RunResult& run);
/// Side by side: a row a variant, and the footnotes.
std::string comparison_table(const RunResult& run);
std::string claims_table(const RunResult& run);
std::string verdict_line(const RunResult& run);
std::string phase_table(const VariantResult& result);

/// The JSON text that result.schema.json describes, ending in a newline.
std::string result_json(const RunResult& run);

}  // namespace oomlab
