// A chapter from end to end, as its users start it (its quick run: quick_run_test.cpp). What all chapters share in the command line is
// tested in tests/harness/cli_test.cpp.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "files.h"
#include "process.h"
#include "read_json.h"

namespace {

using namespace oomlab::test;
using nlohmann::json;
using Words = std::vector<std::string>;

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// A program that repeats a step holds the same bytes at the same points of each: in 200 planned steps nothing grows. A
// plan leaves out steps and micro-batches that repeat each other, unless each is watched: no figure shows which of the
// two.
TEST(EndToEnd, NothingGrowsInManySteps) {
  const TemporaryFolder folder;
  json results[2];
  for (const bool watched : {false, true}) {
    const Words watch = watched ? Words{"--watch"} : Words{"--quiet"};
    const Outcome outcome = run_process(
        program(), Words{"--quick", "--plan", "--memory-steps", "200", "--series", "--json", "result.json"} + watch,
        folder.path());
    if (outcome.exit_code == 2) GTEST_SKIP() << outcome.err;
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    results[watched] = read_json(read_text(folder / "result.json"))["variants"];
    for (json& variant : results[watched]) {
      EXPECT_EQ(variant.value("growth", json()), json::array()) << variant["name"] << ", or it was not looked at";
      if (watched) {
        EXPECT_EQ(variant["numerics"]["figures"].size(), 200u) << variant["name"];
      }
      variant["numerics"].erase("figures");  // of steps that were gone through
    }
  }
  EXPECT_EQ(results[false], results[true]);
}

TEST(EndToEnd, PlansAndBudgetsOfAnySizeGiveValidFiles) {
  const TemporaryFolder folder;
  Words results;
  for (const Words& words :
       {Words{"--plan", "--budget", "none"}, Words{"--steps", "1", "--budget", "1KiB"},
        Words{"--plan", "--budget", "1B"}, Words{"--plan", "--card", "t4", "--memory-steps", "12", "--series"}}) {
    const std::string result = "result" + std::to_string(results.size()) + ".json";
    const Outcome outcome = run_process(program(), Words{"--quick", "--json", result} + words, folder.path());
    if (outcome.exit_code == 2) GTEST_SKIP() << outcome.err;
    EXPECT_EQ(outcome.exit_code, 0) << words.back() << ": " << outcome.err;
    results.push_back(result);
  }
  EXPECT_EQ(run_process(program(), Words{"--quick", "--plan"} + kFiles, folder.path()).exit_code, 0);
  results.insert(results.begin(), "result.json");
  expect_valid_files(folder, results);
}

TEST(EndToEnd, BadInputCostsOneLine) {
  const TemporaryFolder folder;
  std::vector<std::pair<Words, const char*>> refused = {
      {{"--nosuch"}, "--nosuch"},
      {{"--model", "nosuch"}, "nosuch"},
      {{"--filter", "^nothing-like-this$"}, "nothing-like-this"},
      {{"--plan", "--batch", "18446744073709551615"}, "18446744073709551615"}};
  // One model each that is too large and one of another kind.
  const std::string known = run_process(program(), {"--model", "nosuch"}, folder.path()).err;
  const auto knows = [&](const char* kind) { return known.find(kind) != std::string::npos; };
  if (knows("gpt:")) {
    refused.push_back({{"--plan", "--model", "gpt:9-1-2000000000"}, "gpt:9-1-2000000000"});
    refused.push_back({{"--plan", "--model", "mlp:64-10"}, "is unknown"});
  } else if (knows("mlp:")) {
    refused.push_back({{"--plan", "--model", "mlp:2000000000-1000000000-10"}, "more bytes"});
    refused.push_back({{"--plan", "--model", "gpt:1-1-8"}, "is unknown"});
  } else if (knows("sdxl")) {
    refused.push_back({{"--plan", "--model", "sdxl", "--size", "1000000"}, "1 to 16384"});
    refused.push_back({{"--plan", "--model", "gpt:1-1-8"}, "is no pipeline"});
  } else {
    refused.push_back({{"--plan", "--model", "resnet:12-1000000"}, "more bytes"});
    refused.push_back({{"--plan", "--model", "mlp:64-10"}, "is unknown"});
  }
  // An old spelling is told the new one.
  const std::string help = run_process(program(), {"--help"}, folder.path()).out;
  if (help.find("--weight-update ") != help.npos) refused.push_back({{"--weights", "master"}, "--weight-update"});
  if (help.find("--checkpoint ") != help.npos) refused.push_back({{"--checkpoint", "--plan"}, "needs a value: none"});
  for (const auto& [words, mentions] : refused) {
    const Outcome outcome = run_process(program(), Words{"--quick"} + words + kFiles, folder.path());
    EXPECT_EQ(outcome.exit_code, 64) << words.back() << ": " << outcome.err;
    EXPECT_EQ(count_lines(outcome.err), 1u) << outcome.err;
    EXPECT_NE(outcome.err.find(mentions), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
  EXPECT_TRUE(folder.entries().empty()) << folder.entries().front();
}

TEST(EndToEnd, AFullDiskCostsOneLineAndNoOldResult) {
  const auto run_on_a_full_disk = [](const TemporaryFolder& folder) {
    return run_process(program(), {"--quick", "--plan", "--quiet", "--json", "result.json"}, folder.path(), [] {
      // The smallest disk there is: files of this process may not grow beyond 1 KiB. The streams of the child are
      // files too, so --quiet.
      const rlimit limit{1024, 1024};
      setrlimit(RLIMIT_FSIZE, &limit);
      signal(SIGXFSZ, SIG_IGN);
    });
  };
  const TemporaryFolder empty, old;
  std::ofstream(old / "result.json") << "precious";
  for (const TemporaryFolder* folder : {&empty, &old}) {
    const Outcome outcome = run_on_a_full_disk(*folder);
    if (outcome.exit_code == 2) GTEST_SKIP() << outcome.err;
    EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
    EXPECT_EQ(count_lines(outcome.err), 1u) << outcome.err;
    EXPECT_NE(outcome.err.find("result.json"), std::string::npos) << outcome.err;
  }
  EXPECT_TRUE(empty.entries().empty()) << empty.entries().front();
  EXPECT_EQ(read_text(old / "result.json"), "precious");
  EXPECT_EQ(old.entries(), std::vector<std::string>{"result.json"});
}

// A process that runs: how much it has written to its standard output, once that is a file, and how much it has worked.
struct Running {
  bool ended = false;
  std::uintmax_t bytes = 0;
  long ticks = 0;  ///< of the processor's, a hundred a second

  explicit Running(pid_t pid) {
    const std::string folder = "/proc/" + std::to_string(pid);
    std::error_code error;
    if (std::filesystem::is_regular_file(folder + "/fd/1", error))
      bytes = std::filesystem::file_size(folder + "/fd/1", error);
    const std::string stat = read_text(folder + "/stat");
    std::istringstream fields(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
    std::string word = "Z";  // what is over has no stat, or this state
    fields >> word;
    ended = word == "Z";
    for (int field = 4; field <= 15 && fields >> word; ++field)
      if (field >= 14) ticks += std::stol(word);
  }
};

TEST(EndToEnd, CtrlCLeavesNoResult) {
  // Interrupted at different moments of a run that would take long: at once, when it has begun, and at work.
  using Reached = bool (*)(const Running&);
  const std::pair<const char*, Reached> moments[] = {
      {"at once", [](const Running&) { return true; }},
      {"begun", [](const Running& run) { return run.bytes > 0; }},
      {"at work", [](const Running& run) { return run.bytes > 0 && run.ticks >= 20; }}};
  for (const auto& [moment, reached] : moments) {
    const TemporaryFolder folder;
    const Outcome outcome =
        run_process(program(), Words{"--quick", "--steps", "100000000"} + kFiles, folder.path(), {}, [&](pid_t pid) {
          for (Running run(pid); !run.ended && !reached(run); run = Running(pid)) usleep(1000);
          kill(pid, SIGINT);
        });
    if (outcome.exit_code == 2) GTEST_SKIP() << outcome.err;
    // 130 from the handler, or from the signal itself when it came before there was a handler.
    EXPECT_EQ(outcome.exit_code, 130) << moment << ": " << outcome.err;
    EXPECT_TRUE(folder.entries().empty()) << moment << ": " << folder.entries().front();
  }
}

}  // namespace
