#pragma once
// From results to text: tables and what stands below them (result.cpp), and the JSON (result_json.cpp). With --lang zh
// what stands below a table is Chinese, and begins with what the table's heads mean.

#include <optional>
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
  const Card* card = nullptr;  ///< whose least times are shown; null: none
  std::vector<VariantResult> variants;
  std::vector<ClaimResult> claims;
  std::vector<std::pair<std::string, double>> findings;
  std::vector<Table> tables;
  std::vector<std::string> failures;  ///< one line each; empty: PASS
};

/// An outcome and an agreement as tables and result files have them.
const char* name_of(VariantResult::Outcome outcome);
const char* name_of(Agreement::Kind kind);
/// Seconds of a step, as they were measured.
std::optional<double> seconds_of(const VariantResult& variant);

/// "2.00 GiB", or "none" for kUnlimited.
std::string format_limit(std::size_t bytes);

/// The banner: title, model, batch, budget, device.
std::string banner(const RunResult& run);
/// Side by side: a row a variant, and the footnotes.
std::string comparison_table(const RunResult& run);
/// The least time of each variant's step on the run's card (plan/card.h); of a team, of the rank that needs longest.
/// Nothing when there is no card, or a variant's operations are not known.
std::optional<LeastTime> least_time_of(const RunResult& run, const VariantResult& variant);
/// These, and the share that measured steps have of their bound, side by side. Empty when there is no card.
std::string least_time_table(const RunResult& run);
/// What grows from step to step, a line each; or that nothing does, where it was looked for.
std::string growth_lines(const RunResult& run);
/// The claims, each with the figure that was measured, the range, and the verdict.
std::string claims_table(const RunResult& run);
/// A line for each check that failed, and the verdict: PASS, FAIL or NOT RUN.
std::string verdict_line(const RunResult& run);
/// Peak bytes of each phase of a step, by category.
std::string phase_table(const VariantResult& result, bool chinese);

/// The JSON text that result.schema.json describes, ending in a newline.
std::string result_json(const RunResult& run);

}  // namespace oomlab
