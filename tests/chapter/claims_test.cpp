// A claim about memory is judged at the size that it names, so its verdict must not depend on the size of the run; and
// what is printed must read as a person would write it.

#include <gtest/gtest.h>

#include <map>

#include "process.h"
#include "read_json.h"

namespace {

using namespace oomlab::test;
using nlohmann::json;

struct Judged {
  std::map<std::string, std::string> verdicts;  // of claims about memory, by their text
  std::string out, baseline;
};

Judged run(const std::vector<std::string>& size, std::string& problem) {
  const TemporaryFolder folder;
  auto arguments = size;
  arguments.insert(arguments.end(), {"--steps", "1", "--json", "result.json"});
  const Outcome outcome = run_process(program(), arguments, folder.path());
  Judged judged{{}, outcome.out, ""};
  if (outcome.exit_code == 2) problem = outcome.err;
  EXPECT_TRUE(outcome.exit_code == 0 || outcome.exit_code == 2) << outcome.err;
  if (outcome.exit_code != 0) return judged;
  const json result = read_json(read_text(folder / "result.json"));
  judged.baseline = result["variants"][0]["name"];
  for (const json& claim : result["claims"])
    if (claim["about"] == "memory")
      judged.verdicts[claim["claim"]] = claim["verdict_text"].get<std::string>() + " at " + claim["size"].dump();
  return judged;
}

/// What a person would not write.
void expect_readable(const std::string& out) {
  for (const char* unreadable : {"e+0", "e+1", ": nan", ": inf"})
    EXPECT_EQ(out.find(unreadable), std::string::npos) << unreadable << " in\n" << out;
}

TEST(Claims, AboutMemoryHaveOneVerdictAtAnySize) {
  std::string problem;
  const Judged quick = run({"--quick"}, problem), planned = run({"--plan"}, problem);
  if (!problem.empty()) GTEST_SKIP() << problem;
  EXPECT_FALSE(quick.verdicts.empty());
  EXPECT_EQ(quick.verdicts, planned.verdicts);
  for (const auto& [claim, verdict] : quick.verdicts)  // what names a size has a figure there; the rest may need a GPU
    EXPECT_TRUE(verdict.find("not measured") == std::string::npos || verdict.ends_with(" at null")) << claim;
  expect_readable(quick.out);
}

// A run at the default size takes long on a processor, and bench/results has one of each chapter, whose claims are held to the plan's
// (Bytes.PublishedResultsAreThePlans).
TEST(Claims, OfAFullRunAreThoseOfItsPlan) {
  std::string problem;
  const Judged planned = run({"--plan"}, problem);
  // No claim about memory asks how long a step takes, so that is measured for one variant only.
  const Judged full = run({timing_only(planned.baseline)}, problem);
  if (!problem.empty()) GTEST_SKIP() << problem;
  EXPECT_FALSE(full.verdicts.empty());
  EXPECT_EQ(planned.verdicts, full.verdicts);
  expect_readable(full.out);
}

}  // namespace
