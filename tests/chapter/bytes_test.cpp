// Predicted = plan mode = measured peak allocated bytes: error 0, for every variant of every configuration in the
// chapter's tests/bytes.txt (one command line a row; '#' comments). Rows that begin with "plan:" are far too large to
// run: they are only planned, in at most so many steps, and 200 MB of resident memory.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

#include "process.h"
#include "read_json.h"

namespace {

using namespace oomlab::test;
using nlohmann::json;

struct Row {
  bool plan_only = false;
  std::vector<std::string> arguments;
  std::string text;
};

// In check mode one small run is enough, the one of the fault sweep: what it is for there is to be looked at by
// ThreadSanitizer.
std::vector<Row> smallest() {
  Row row;
  row.arguments = {"--quick", "--steps", "1"};
  std::ifstream file(chapter_folder() + "/tests/faults.txt");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with('-')) continue;
    row.text = line;
    std::istringstream words(line);
    for (std::string word; words >> word;) row.arguments.push_back(word);
  }
  return {row};
}

std::vector<Row> rows() {
  if (slowest_build()) return smallest();
  std::ifstream file(chapter_folder() + "/tests/bytes.txt");
  std::vector<Row> result;
  std::size_t small = 0;
  std::size_t plans = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    Row row;
    row.text = line;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      if (word == "plan:") {
        row.plan_only = true;
      } else {
        row.arguments.push_back(word);
      }
    }
    // A sanitizer finds nothing in a large run that it does not find in a small one, nor in one that EndToEnd makes there, too,
    // and after a few rows only code that it has seen.
    if (slow_build()) {
      const bool is_small = row.text != "--quick" && std::ranges::find(row.arguments, "--quick") != row.arguments.end();
      if (row.plan_only ? ++plans > 2 : !is_small || ++small > 4) continue;
    }
    result.push_back(std::move(row));
  }
  return result;
}

// A machine may have fewer GPUs than a row asks for. The host runtime simulates as many as anybody wants.
bool for_gpus() {
  const std::filesystem::path path = program();
  return std::filesystem::exists(path.parent_path() / "plan" / path.filename());
}
bool too_few_gpus(const Outcome& outcome) {
  return for_gpus() && outcome.exit_code == 64 && outcome.err.find("this machine has") != std::string::npos;
}

std::size_t count_of(const std::string& word, const std::string& text) {
  std::size_t count = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

// `events`: receives how many events its trace has.
json run_for_json(const Row& row, const char* option, Outcome& outcome, std::size_t* events = nullptr) {
  const TemporaryFolder folder;
  auto arguments = row.arguments;
  if (events) arguments.insert(arguments.end(), {"--trace", folder / "trace.json"});
  // A plan judges each claim at the claim's own size: the same for every row, and for what is published, which has no options.
  if (!arguments.empty() && std::string_view(option) == "--plan") arguments.push_back("--no-claims");
  arguments.insert(arguments.end(), {"--quiet", "--json", folder / "result.json", option});
  outcome = run_process(program(), arguments, folder.path());
  if (outcome.exit_code == 2 || too_few_gpus(outcome)) return nullptr;
  EXPECT_EQ(outcome.exit_code, 0) << row.text << " " << option << ": " << outcome.err;
  if (outcome.exit_code != 0) return nullptr;
  if (events) *events = count_of("\"ph\":", read_text(folder / "trace.json"));
  return read_json(read_text(folder / "result.json"));
}

void expect_exact(const json& variant) {
  ASSERT_TRUE(variant.contains("peak_allocated_bytes")) << variant;
  EXPECT_EQ(variant["peak_allocated_bytes"], variant["predicted_bytes"]) << variant["name"];
  EXPECT_EQ(variant["by_category_bytes"], variant["predicted_by_category_bytes"]) << variant["name"];
  EXPECT_GT(variant["peak_allocated_bytes"], 0) << variant["name"];
}

TEST(Bytes, PredictedIsPlannedIsMeasured) {
  std::size_t configurations = 0, variants = 0, left_out = 0;
  for (const Row& row : rows()) {
    if (row.plan_only) continue;
    SCOPED_TRACE(row.text);
    Outcome outcome;
    json planned = run_for_json(row, "--plan", outcome);
    if (outcome.exit_code == 2) GTEST_SKIP() << outcome.err;
    ASSERT_TRUE(planned.is_object());
    const std::string first = planned["variants"][0]["name"];
    Row timed = row;  // the steps whose memory is counted come before those that are timed: one of these is enough
    if (std::ranges::find(row.arguments, "--steps") == row.arguments.end())
      timed.arguments.insert(timed.arguments.end(), {"--steps", "1"});
    const json measured = run_for_json(timed, timing_only(first).c_str(), outcome);
    if (outcome.exit_code == 2) GTEST_SKIP() << outcome.err;
    ++configurations;
    if (too_few_gpus(outcome)) {
      left_out += planned["variants"].size();
      continue;
    }
    ASSERT_TRUE(measured.is_object());
    if (const json& devices = measured["config"]["devices"]; planned["config"]["devices"] != devices) {
      Row same = row;  // by default a plan has more devices than this machine
      same.arguments.insert(same.arguments.end(), {"--devices", std::to_string(devices.get<int>())});
      planned = run_for_json(same, "--plan", outcome);
      ASSERT_TRUE(planned.is_object());
    }
    ASSERT_EQ(planned["variants"].size(), measured["variants"].size());
    for (std::size_t i = 0; i < measured["variants"].size(); ++i) {
      const json &p = planned["variants"][i], &m = measured["variants"][i];
      expect_exact(p);
      if (for_gpus() && m["outcome"] == "skipped") {
        ++left_out;
        continue;
      }
      expect_exact(m);
      EXPECT_EQ(p["peak_allocated_bytes"], m["peak_allocated_bytes"]) << m["name"];
      EXPECT_EQ(p["outcome"], m["outcome"]) << m["name"];
      ASSERT_EQ(p.contains("oom"), m.contains("oom"));
      if (m.contains("oom")) {
        EXPECT_EQ(p["oom"], m["oom"]) << "out of memory at another allocation";
      }
      for (std::size_t phase = 0; phase < m["phases"].size(); ++phase) {
        EXPECT_EQ(p["phases"][phase]["name"], m["phases"][phase]["name"]);
        EXPECT_EQ(p["phases"][phase]["peak_allocated_bytes"], m["phases"][phase]["peak_allocated_bytes"]);
      }
      ++variants;
    }
  }
  EXPECT_GE(configurations, slowest_build() ? 1u : 3u);
  EXPECT_GT(variants, 0u);
  std::printf("%zu configurations, %zu variants, error 0; %zu left out, for want of GPUs\n", configurations, variants,
              left_out);
}

// bench/results/host/ is what the READMEs show. Its bytes, and its claims about bytes, are those of this program,
// planned with the options that it has by itself.
TEST(Bytes, PublishedResultsAreThePlans) {
  const std::string name = std::filesystem::path(program()).filename();
  const std::string path = source_folder() + "/bench/results/host/" + name + ".json";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "nothing is published";
  Outcome outcome;
  const json published = read_json(read_text(path)), planned = run_for_json({}, "--plan", outcome);
  ASSERT_TRUE(planned.is_object()) << outcome.err;
  const auto workload = [](json config) {
    config.erase("plan");
    config.erase("steps");
    for (const char* file : {"data", "text"})  // null, in files of before: not given
      if (config.contains(file) && config[file].is_null()) config.erase(file);
    return config;
  };
  const char* const stale = "run bench/publish";
  EXPECT_EQ(workload(planned["config"]), workload(published["config"])) << stale;
  ASSERT_EQ(planned["variants"].size(), published["variants"].size()) << stale;
  for (std::size_t i = 0; i < planned["variants"].size(); ++i) {
    const json &is = planned["variants"][i], &was = published["variants"][i];
    for (const char* key : {"name", "outcome", "peak_allocated_bytes", "by_category_bytes", "largest_batch"})
      EXPECT_EQ(is.value(key, json()), was.value(key, json())) << is["name"] << " " << key << ": " << stale;
  }
  ASSERT_EQ(planned["claims"].size(), published["claims"].size()) << stale;
  for (std::size_t i = 0; i < planned["claims"].size(); ++i) {
    const json &is = planned["claims"][i], &was = published["claims"][i];
    EXPECT_EQ(is["claim"], was["claim"]) << stale;
    bool figure = false;
    for (const char* key : {"at_size", "measured"}) {
      if (is[key].is_null()) continue;  // measured: not in plan mode
      figure = true;
      const double published_figure = was[key];
      EXPECT_NEAR(is[key].get<double>(), published_figure, 1e-9 * std::abs(published_figure))
          << is["claim"] << " " << key << ": " << stale;
    }
    if (!figure) continue;
    for (const char* key : {"what", "low", "high", "size", "verdict"})
      EXPECT_EQ(is[key], was[key]) << is["claim"] << " " << key << ": " << stale;
  }
}

// A plan's work is in what it allocates and gives back, however large that is: all of it is in the trace. (How long
// plans take is judged by tests/run bench.)
TEST(Bytes, PlansAnySizeInFewSteps) {
  if (slow_build()) GTEST_SKIP() << "a sanitizer finds nothing in a large plan that it does not find in a small one";
  constexpr std::size_t kMostEvents = 100'000;
  std::size_t configurations = 0;
  for (const Row& row : rows()) {
    if (!row.plan_only) continue;
    SCOPED_TRACE(row.text);
    Outcome outcome;
    std::size_t events = 0;
    const json planned = run_for_json(row, "--plan", outcome, &events);
    ASSERT_TRUE(planned.is_object());
    for (const json& variant : planned["variants"]) expect_exact(variant);
    EXPECT_LE(outcome.peak_rss_kib * 1024, 200'000'000);
    EXPECT_GT(events, 0u);
    EXPECT_LE(events, kMostEvents);
    std::printf("%s: %zu events, %ld MiB resident, %s bytes\n", row.text.c_str(), events, outcome.peak_rss_kib / 1024,
                planned["variants"][0]["peak_allocated_bytes"].dump().c_str());
    ++configurations;
  }
  EXPECT_GE(configurations, 1u);
}

}  // namespace
