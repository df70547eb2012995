// A chapter's quick run, as its users start it. One process for all of these cases, because they look at the same run.

#include <gtest/gtest.h>
#include <stdlib.h>

#include "claims.h"
#include "files.h"
#include "process.h"
#include "read_json.h"

namespace {

using namespace oomlab::test;
using nlohmann::json;

// `streams`: as OOMLAB_HOST_STREAMS names them.
Outcome quick_run(const TemporaryFolder& folder, const char* streams) {
  std::vector<std::string> words = {"--quick", "--steps", "1"};
  words.insert(words.end(), kFiles.begin(), kFiles.end());
  return run_process(program(), words, folder.path(), [streams] { setenv("OOMLAB_HOST_STREAMS", streams, 1); });
}

class QuickRun : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    outcome_ = new Outcome(quick_run(*folder_, "eager"));
  }
  static void TearDownTestSuite() {
    delete outcome_;
    delete folder_;
  }
  void SetUp() override {
    if (outcome_->exit_code == 2) GTEST_SKIP() << outcome_->err;
    ASSERT_EQ(outcome_->exit_code, 0) << outcome_->err;
  }
  static json result() { return read_json(read_text(*folder_ / "result.json")); }

  static inline TemporaryFolder* folder_ = nullptr;
  static inline Outcome* outcome_ = nullptr;
};

TEST_F(QuickRun, PassesSaysSoAndWritesValidFiles) {
  EXPECT_NE(outcome_->out.find("OOM"), std::string::npos) << outcome_->out;  // a chapter meets out of memory
  EXPECT_NE(outcome_->out.find("\nPASS: "), std::string::npos) << outcome_->out;
  expect_valid_files(*folder_, {"result.json"});
  EXPECT_EQ(folder_->entries().size(), 3u);
}

TEST_F(QuickRun, HasTheVerdictsOfAPlanAboutMemory) {
  const TemporaryFolder folder;
  const Outcome plan = run_process(program(), {"--plan", "--json", "result.json"}, folder.path());
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  const Verdicts quick = verdicts_about_memory(result());
  EXPECT_FALSE(quick.empty());
  EXPECT_EQ(quick, verdicts_about_memory(read_json(read_text(folder / "result.json"))));
  for (const auto& [claim, verdict] : quick)  // what names a size has a figure there; the rest may need a GPU
    EXPECT_TRUE(verdict.find("not measured") == std::string::npos || verdict.ends_with(" at null")) << claim;
  expect_readable(outcome_->out);
}

// Where streams put work off as long as CUDA allows, a copy or a kernel that nobody waits for comes too late.
TEST_F(QuickRun, HasTheSameNumbersWithDeferredStreams) {
  const json eager = result();
  if (eager["system"]["backend"] != "host") GTEST_SKIP() << "a setting of the host runtime";
  const TemporaryFolder folder;
  const Outcome outcome = quick_run(folder, "deferred:1");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json deferred = read_json(read_text(folder / "result.json"));
  for (std::size_t i = 0; i < eager["variants"].size(); ++i) {
    const json &is = deferred["variants"][i], &was = eager["variants"][i];
    for (const char* key : {"outcome", "numerics", "by_category_bytes"})
      EXPECT_EQ(is.value(key, json()), was.value(key, json())) << was["name"];
  }
}

}  // namespace
