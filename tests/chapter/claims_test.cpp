// A claim about memory is judged at the size that it names, so its verdict must not depend on the size of the run; and
// what is printed must read as a person would write it.

#include <gtest/gtest.h>

#include "claims.h"
#include "process.h"
#include "read_json.h"

namespace {

using namespace oomlab::test;
using nlohmann::json;

// The result of a run with one step.
json run(const TemporaryFolder& folder, std::vector<std::string> arguments, Outcome& outcome) {
  arguments.insert(arguments.end(), {"--steps", "1", "--json", "result.json"});
  outcome = run_process(program(), arguments, folder.path());
  EXPECT_TRUE(outcome.exit_code == 0 || outcome.exit_code == 2) << outcome.err;
  return outcome.exit_code == 0 ? read_json(read_text(folder / "result.json")) : json();
}

// A run at the default size takes long on a processor, and bench/results has one of each chapter, whose claims are held to the plan's
// (Bytes.PublishedResultsAreThePlans).
TEST(Claims, OfAFullRunAreThoseOfItsPlan) {
  const TemporaryFolder folder;
  Outcome outcome;
  const json planned = run(folder, {"--plan"}, outcome);
  if (outcome.exit_code == 2) GTEST_SKIP() << outcome.err;
  // No claim about memory asks how long a step takes, so that is measured for one variant only.
  const json full = run(folder, {timing_only(planned["variants"][0]["name"])}, outcome);
  if (outcome.exit_code == 2) GTEST_SKIP() << outcome.err;
  EXPECT_FALSE(verdicts_about_memory(full).empty());
  EXPECT_EQ(verdicts_about_memory(planned), verdicts_about_memory(full));
  expect_readable(outcome.out);
}

}  // namespace
