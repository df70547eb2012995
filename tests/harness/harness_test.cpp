// The harness must tell a good chapter from a bad one: every check that it makes is provoked here.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "../device.h"
#include "cuda/backend.h"
#include "harness/benchmark_flags.h"
#include "harness/chapter.h"
#include "harness/cli.h"
#include "harness/filter.h"
#include "harness/outputs.h"
#include "harness/result.h"
#include "harness/timing.h"
#include "harness/watch.h"
#include "plan/json_writer.h"
#include "plan/names.h"
#include "read_json.h"

namespace {

using namespace oomlab;
using nlohmann::json;
using oomlab::test::read_json;

constexpr Option<std::size_t> kSeq{"seq", "Tokens per sequence"};

/// Holds `bytes` between steps and `bytes` more during one; its figure counts steps, from `offset`.
class Toy final : public Workload {
 public:
  Toy(Context& context, std::size_t bytes, double offset, std::uint64_t weights)
      : context_(context),
        figure_(offset),
        weights_(weights),
        held_(context.buffer<char>(bytes, Category::parameters, "held")) {}
  void step() override {
    const Phase phase(context_.ledger(), "toy");
    const auto more = context_.buffer<char>(held_.size(), Category::activations, "more");
    figure_ += 1;
  }
  std::size_t samples_per_step() const override { return 1; }
  double figure() override { return figure_; }
  std::uint64_t fingerprint() override { return weights_; }

 private:
  Context& context_;
  double figure_;
  std::uint64_t weights_;
  DeviceBuffer<char> held_;
};

ByCategory toy_bytes(std::size_t bytes) {
  ByCategory split;
  split[Category::parameters] = split[Category::activations] = round_to_granule(bytes);
  return split;
}

Variant toy(const char* name, std::size_t bytes, double offset = 0, const Agreement& agreement = {},
            std::uint64_t weights = 42) {
  Variant variant;
  variant.name = name;
  variant.batch = 1;
  variant.predicted = [bytes](std::size_t batch) { return toy_bytes(bytes * batch); };
  variant.agreement = agreement;
  variant.make = [=](Context& context, std::size_t batch) -> std::unique_ptr<Workload> {
    return std::make_unique<Toy>(context, bytes * batch, offset, weights);
  };
  return variant;
}

struct Ran {
  int exit_code;
  json result;
  std::string out, err;
};

Ran run(const Chapter& chapter, std::vector<std::string> options = {}) {
  // Tests run side by side, each in a process of its own.
  const std::string path = testing::TempDir() + "/harness_test." + std::to_string(getpid()) + ".json";
  std::remove(path.c_str());
  std::vector<std::string> words = {"99_toy", "--json", path};
  words.insert(words.end(), options.begin(), options.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  const Defaults defaults{.model = "toy", .batch = 1, .steps = 3, .budget = kUnlimited};
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Ran ran{};
  ran.exit_code = run_chapter(static_cast<int>(argv.size()), argv.data(), defaults, defaults,
                              [&chapter](const Config&) { return chapter; });
  ran.out = testing::internal::GetCapturedStdout();
  ran.err = testing::internal::GetCapturedStderr();
  if (std::ifstream file(path); file) {
    ran.result = read_json(file);
    std::remove(path.c_str());
  }
  return ran;
}

// So many steps; more where times need seconds.
void expect_timed(const json& variant, int steps) {
  const int timed = variant["throughput"]["repetitions"];
  EXPECT_GE(timed, steps);
  EXPECT_TRUE(timed == steps || timing_needs().seconds_a_round > 0) << timed;
}

Chapter good() {
  Chapter chapter;
  chapter.title = "a toy";
  chapter.variants = {toy("large", 100'000), toy("small", 1'000)};
  return chapter;
}

class Harness : public testing::Test {
 protected:
  void SetUp() override { SKIP_WITHOUT_DEVICE(); }
};

TEST(CommandLineOf, APublishedModelBringsItsOwnDefaults) {
  const Defaults huge{.batch = 1, .steps = 2, .budget = 80, .options = {{kSeq, 2048}}};
  const Defaults large{
      .batch = 8, .steps = 3, .budget = 24, .options = {{kSeq, 512}}, .published_models = "huge", .published = &huge};
  const Defaults full{.model = "toy",
                      .batch = 4,
                      .steps = 6,
                      .budget = 9,
                      .options = {{kSeq, 16}},
                      .published_models = "a b",
                      .published = &large};
  const auto parse = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "99_toy");
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    return parse_command_line(static_cast<int>(argv.size()), argv.data(), "99_toy", full, full).config;
  };
  EXPECT_EQ(parse({}).options[kSeq], 16u);
  EXPECT_EQ(parse({"--model", "unknown"}).options[kSeq], 16u);
  EXPECT_EQ(parse({"--model", "b"}).options[kSeq], 512u);
  EXPECT_EQ(parse({"--model", "b"}).budget, 24u);
  EXPECT_EQ(parse({"--model", "b", "--batch", "3"}).batch, 3u);
  EXPECT_EQ(parse({"--model", "huge"}).options[kSeq], 2048u);
  EXPECT_EQ(parse({"--model", "huge"}).steps, 2u);
}

TEST_F(Harness, AGoodChapterPasses) {
  const Ran ran = run(good());
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_TRUE(ran.result["passed"]);
  ASSERT_EQ(ran.result["variants"].size(), 2u);
  const json& large = ran.result["variants"][0];
  EXPECT_EQ(large["role"], "baseline");
  EXPECT_EQ(large["peak_allocated_bytes"], kBlasWorkspaceBytes + 2 * 100'352);
  EXPECT_GE(large["peak_reserved_bytes"], large["peak_allocated_bytes"]);
  EXPECT_GE(large["peak_device_used_bytes"], large["peak_allocated_bytes"]);
  EXPECT_EQ(large["numerics"]["figures"], (std::vector<double>{1, 2}));
  expect_timed(large, 3);
  EXPECT_EQ(large["phases"][0]["name"], "setup");
  EXPECT_EQ(large["phases"][1]["name"], "toy");
  EXPECT_EQ(large["phases"][1]["peak_allocated_bytes"], kBlasWorkspaceBytes + 2 * 100'352);
  EXPECT_NE(ran.out.find("PASS"), std::string::npos);
}

TEST_F(Harness, AWrongPredictionFails) {
  Chapter chapter = good();
  chapter.variants[1].predicted = [](std::size_t) {
    ByCategory split = toy_bytes(1'000);
    split[Category::workspace] += 512;
    return split;
  };
  const Ran ran = run(chapter);
  EXPECT_EQ(ran.exit_code, 1);
  ASSERT_EQ(ran.result["failures"].size(), 1u);
  EXPECT_NE(ran.result["failures"][0].get<std::string>().find("small"), std::string::npos);
  EXPECT_NE(ran.out.find("FAIL"), std::string::npos);
}

TEST_F(Harness, TheRightSumWithTheWrongSplitFails) {
  Chapter chapter = good();
  chapter.variants[0].predicted = [](std::size_t) {
    ByCategory split = toy_bytes(100'000);
    split[Category::workspace] += 512;
    split[Category::parameters] -= 512;
    return split;
  };
  const Ran ran = run(chapter);
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_NE(ran.out.find("  split  "), std::string::npos) << "an error of 0 would be no error\n" << ran.out;
}

TEST_F(Harness, NumbersThatDisagreeFail) {
  Chapter chapter = good();
  chapter.variants[1] = toy("small", 1'000, 1e-9);  // bit-equal is asked for
  const Ran ran = run(chapter);
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_FALSE(ran.result["variants"][1]["numerics"]["agrees"]);
  chapter.variants[1] = toy("small", 1'000, 0, {}, 43);  // the same losses from other weights
  EXPECT_EQ(run(chapter).exit_code, 1);

  Agreement loose;
  loose.kind = Agreement::Kind::within_tolerance;
  loose.tolerance = 1e-6;
  chapter.variants[1] = toy("small", 1'000, 1e-9, loose);
  EXPECT_EQ(run(chapter).exit_code, 0);
  chapter.variants[1] = toy("small", 1'000, 1e-3, loose);
  EXPECT_EQ(run(chapter).exit_code, 1);
  chapter.variants[1] = toy("small", 1'000, std::nan(""), loose);
  EXPECT_EQ(run(chapter).exit_code, 1);
  chapter.variants[1] = toy("small", 1'000, 5, differs_by_design("it is five more"));
  const Ran by_design = run(chapter);
  EXPECT_EQ(by_design.exit_code, 0);
  EXPECT_NE(by_design.out.find("it is five more"), std::string::npos);
}

TEST_F(Harness, OutOfMemoryIsARow) {
  const Ran ran = run(good(), {"--budget", std::to_string(kBlasWorkspaceBytes + 150'000), "--workspace", "8MiB"});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  const json &large = ran.result["variants"][0], &small = ran.result["variants"][1];
  EXPECT_EQ(large["outcome"], "oom");
  EXPECT_EQ(large["oom"]["tag"], "more");
  EXPECT_EQ(large["oom"]["requested_bytes"], 100'000);
  EXPECT_EQ(large["oom"]["live_bytes"], kBlasWorkspaceBytes + 100'352);
  EXPECT_TRUE(large["oom"]["by_budget"]);
  EXPECT_EQ(large["peak_allocated_bytes"], kBlasWorkspaceBytes + 2 * 100'352) << "measured without the budget";
  EXPECT_FALSE(large["throughput"]["within_budget"]);
  EXPECT_EQ(small["outcome"], "ok");
  EXPECT_NE(ran.out.find("OOM: asked for 98.00 KiB (more), had 48.48 KiB"), std::string::npos) << ran.out;
}

TEST(OomLine, SaysWhenItIsFreeInPieces) {
  constexpr std::size_t kMiB = std::size_t(1) << 20;
  OutOfMemoryReport report;
  report.tag = "x";
  report.requested = report.requested_rounded = 16 * kMiB;
  report.limit = 64 * kMiB, report.limit_used = report.reserved = 60 * kMiB;
  report.live = report.live_requested = 28 * kMiB;
  report.by_limit = report.cache_released = true;
  report.largest_free_block = 5 * kMiB;
  EXPECT_EQ(oom_line(report), "OOM: asked for 16.00 MiB (x), had 36.00 MiB in pieces, the largest 5.00 MiB");
  report.largest_free_block = 3 * kMiB;  // smaller than what the budget has left
  EXPECT_EQ(oom_line(report), "OOM: asked for 16.00 MiB (x), had 36.00 MiB in pieces, the largest 4.00 MiB");
  report.live = report.live_requested = 60 * kMiB;
  EXPECT_EQ(oom_line(report), "OOM: asked for 16.00 MiB (x), had 4.00 MiB");
  EXPECT_EQ(oom_line(report, /*chinese=*/true), "显存不足：要申请 16.00 MiB（x），只剩 4.00 MiB");
}

// In Chinese tables are as they are in English; what their heads mean and what became of a variant stand below them.
// The file is the same.
TEST_F(Harness, BelowTablesItSpeaksChinese) {
  const std::vector<std::string> options = {
      "--budget", std::to_string(kBlasWorkspaceBytes + 150'000), "--workspace", "8MiB", "--memory-steps", "10"};
  std::vector<std::string> chinese = options;
  chinese.insert(chinese.end(), {"--lang", "zh"});
  Chapter chapter = good();
  chapter.variants[1].agreement = differs_by_design("another model");
  chapter.claims = {{.text = "no_grad saves the activations",
                     .what = "share of the activations' bytes that inference does not need",
                     .range = at_least(0.8),
                     .size = "16 layers, all 1,024 wide",
                     .at_size = [] { return 0.9; },
                     .measure = [](const Results&) { return 0.5; },
                     .here = "rounding counts in a model this small"}};
  chapter.after = [](const Results&, Report& report) {
    report.line("losses kept with their graphs: 512 bytes more in each step");
    report.line("a line that has no Chinese: 512 bytes");
    report.line("largest batch under 2.00 MiB: 85, found in 13 trials");
    report.table({"one", "gpt2, batch 4, seq 512: 335.2 million parameters", {{"what"}}, {{"x"}}});
  };
  const Ran ours = run(chapter, options), theirs = run(chapter, chinese);
  EXPECT_EQ(theirs.exit_code, ours.exit_code);
  std::istringstream lines(ours.out);
  std::string first;
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("variant")) first = line.substr(0, line.find("samples/s"));
  ASSERT_FALSE(first.empty()) << ours.out;
  EXPECT_NE(theirs.out.find(first), std::string::npos) << theirs.out;
  for (const char* const part :
       {"各列：variant 方案；under budget 预算之下", "显存没有增长：2 种方案在 10 步",
        "PASS：预测的峰值 2 个中有 2 个精确到字节", "small：有意不同：换了模型\n",
        "说法“no_grad 省下激活”\n      推理不需要的激活字节占比：0.9（16 层，宽度都是 1,024）；"
        "成立条件：至少 0.8；判定：成立\n      本次运行：0.5（模型这么小，取整不能忽略）\n",
        "loss 连同计算图一起留着：每步多占 512 字节\n", "a line that has no Chinese: 512 bytes\n",
        "2.00 MiB 之下最大的 batch：85，试了 13 次\n", "gpt2，batch 4，seq 512：3.352 亿个参数\nwhat\n"})
    EXPECT_NE(theirs.out.find(part), std::string::npos) << theirs.out;
  EXPECT_EQ(ours.out.find("各列"), std::string::npos) << ours.out;
  EXPECT_EQ(theirs.result["variants"][0]["reason"], ours.result["variants"][0]["reason"]);
}

TEST_F(Harness, TheLargestBatchIsTheLargestThatFits) {
  const std::size_t budget = kBlasWorkspaceBytes + 123'456;
  const Ran ran = run(good(), {"--budget", std::to_string(budget), "--workspace", "8MiB"});
  std::size_t largest = 0;  // by brute force
  for (std::size_t batch = 1; batch < 1'000; ++batch)
    if (kBlasWorkspaceBytes + toy_bytes(1'000 * batch).total() <= budget) largest = batch;
  EXPECT_GT(largest, 1u);
  EXPECT_EQ(ran.result["variants"][1]["largest_batch"], largest);
  EXPECT_EQ(ran.result["variants"][0]["largest_batch"], 0);
  EXPECT_TRUE(run(good()).result["variants"][0]["largest_batch"].is_null());
}

// ------------------------------------------------------------------------------------------------------------- claims

Claim claim_of(const char* text, About about, Range range, std::optional<double> figure) {
  Claim claim{.text = text, .about = about, .what = "answer", .range = range};
  claim.measure = [figure](const Results&) { return figure; };
  return claim;
}

TEST_F(Harness, ClaimsGetVerdictsAndDoNotFailTheRun) {
  Chapter chapter = good();
  chapter.claims = {claim_of("it holds", About::numbers, between(41, 43), 42),
                    claim_of("it does not", About::numbers, at_most(1), 42),
                    claim_of("nobody knows", About::numbers, at_most(1), std::nullopt),
                    claim_of("it is faster", About::time, at_least(2), 1)};
  chapter.claims[3].holds_where = [] { return "never"; };
  const Ran ran = run(chapter);
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_EQ(ran.result["claims"][0]["verdict"], "holds");
  EXPECT_EQ(ran.result["claims"][1]["verdict"], "does not hold");
  EXPECT_TRUE(ran.result["claims"][1]["low"].is_null());
  EXPECT_EQ(ran.result["claims"][2]["verdict"], "not measured");
  const bool host = ran.result["system"]["backend"] == "host";
  EXPECT_EQ(ran.result["claims"][3]["verdict"], host ? "not judged" : "holds for some sizes");
  EXPECT_EQ(ran.result["claims"][3]["measured"], 1);
  EXPECT_NE(ran.out.find("answer: 42, expected 41 to 43: holds"), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("answer: 42, expected at most 1: does not hold"), std::string::npos);
  EXPECT_NE(ran.out.find(host ? "expected at least 2: host: not judged" : "at least 2: never"), std::string::npos);
  const Ran without = run(chapter, {"--no-claims"});
  EXPECT_EQ(without.exit_code, 0);
  EXPECT_TRUE(without.result["claims"].empty());
  EXPECT_EQ(without.out.find("answer: 42"), std::string::npos);
}

// A claim about memory is judged at the size that it names, whatever this run is; what is true for some sizes says
// which.
TEST_F(Harness, MemoryIsJudgedAtItsSize) {
  Chapter chapter = good();
  Claim claim{.text = "half is saved", .about = About::memory, .what = "share saved", .range = at_least(0.5)};
  claim.size = "a real model";
  claim.at_size = [] { return 0.6; };
  claim.measure = [](const Results& r) { return r.saved("small", "small", figures::peak); };
  claim.here = "a toy";
  chapter.claims = {claim, claim, claim};
  chapter.claims[1].at_size = [] { return 0.4; };
  chapter.claims[2].at_size = chapter.claims[1].at_size;
  chapter.claims[2].from_batch = [] { return std::optional<std::size_t>(9); };
  chapter.claims.push_back(claim);
  chapter.claims[3].about = About::numbers;
  const Ran ran = run(chapter);
  EXPECT_EQ(ran.result["claims"][0]["verdict"], "holds");
  EXPECT_EQ(ran.result["claims"][0]["measured"], 0);
  EXPECT_EQ(ran.result["claims"][1]["verdict"], "does not hold");
  EXPECT_EQ(ran.result["claims"][2]["verdict"], "holds for some sizes");
  EXPECT_EQ(ran.result["claims"][2]["verdict_text"], "holds from batch 9 on");
  EXPECT_EQ(ran.result["claims"][2]["from_batch"], 9);
  EXPECT_FALSE(ran.result["claims"][1].contains("from_batch"));
  EXPECT_EQ(ran.result["claims"][3]["verdict"], "holds");
  EXPECT_NE(
      ran.out.find("share saved: 0.6 for a real model, expected at least 0.5: holds\n      in this run: 0 (a toy)\n"),
      std::string::npos)
      << ran.out;
  EXPECT_EQ(run(chapter, {"--filter", "large"}).result["claims"][0]["verdict"], "holds");
}

TEST_F(Harness, ResultsAreLookedUpByName) {
  Chapter chapter = good();
  chapter.after = [](const Results& results, Report& report) {
    report.figure("ratio", results.ratio("large", "small", figures::bytes(Category::parameters)).value());
    report.figure("saved", results.saved("small", "large", figures::bytes(Category::parameters)).value());
    report.check(!results.ratio("large", "smal", figures::peak) && !results.find("no such"),
                 "a name that is not there");
    report.check(!results.value("small", figures::bytes(Category::data)).has_value() ||
                     !results.ratio("large", "small", figures::bytes(Category::data)),
                 "nothing divided by nothing");
  };
  const Ran ran = run(chapter);
  EXPECT_EQ(ran.exit_code, 0) << ran.out;
  EXPECT_EQ(ran.result["findings"]["ratio"], 100'352.0 / 1'024);
  EXPECT_EQ(ran.result["findings"]["saved"], 1 - 1'024.0 / 100'352);
}

TEST(Ranges, ReadLikeEnglish) {
  EXPECT_EQ(describe(at_least(1.2)), "at least 1.2");
  EXPECT_EQ(describe(at_most(0.5)), "at most 0.5");
  EXPECT_EQ(describe(between(0.5, 0.75)), "0.5 to 0.75");
  EXPECT_EQ(describe(exactly(1)), "1");
  EXPECT_TRUE(between(0.5, 0.75).has(0.75) && !between(0.5, 0.75).has(0.751) && at_least(0.5).has(1e9));
}

TEST(Claims, HoldFromASizeOn) {
  for (const std::size_t first : {1, 2, 3, 4, 5, 7, 8, 9, 490, 65536, 65537})
    EXPECT_EQ(holds_from([first](std::size_t size) { return size >= first; }), first);
  EXPECT_EQ(holds_from([](std::size_t) { return false; }), std::nullopt);
}

// ---------------------------------------------------------------------------------------------------------- workspace

TEST_F(Harness, TheWorkspaceIsCountedAndNeverHidesWhatAChapterShows) {
  EXPECT_EQ(default_workspace(kUnlimited), kBlasWorkspaceBytes);
  EXPECT_EQ(default_workspace(std::size_t(80) << 30), kBlasWorkspaceBytes);
  EXPECT_EQ(default_workspace(100'000'000), 5'000'000 / kGranule * kGranule);
  EXPECT_EQ(default_workspace(1), kGranule);
  const std::size_t budget = 10 << 20;
  const json by_default = run(good(), {"--budget", "10MiB"}).result,
             given = run(good(), {"--workspace", "12345"}).result;
  EXPECT_EQ(by_default["config"]["workspace_bytes"], default_workspace(budget));
  EXPECT_EQ(by_default["variants"][0]["by_category_bytes"]["workspace"], default_workspace(budget));
  EXPECT_EQ(given["config"]["workspace_bytes"], 12'345);
  EXPECT_EQ(given["variants"][0]["by_category_bytes"]["workspace"], round_to_granule(12'345));
}

// A chapter's own options: in --help, checked, with their defaults, in the line above the table, in the result file.
TEST_F(Harness, AChaptersOwnOptions) {
  static constexpr Option<std::size_t> stage{"a-stage", "Which stage", 0, 3};
  static constexpr Option<std::string> form{"form", "Which form", "round square"}, file{"file", "A file"};
  static constexpr Option<std::string> model_file{"config", "A file that says which model", "", true};
  static constexpr Option<bool> twice{"twice", "Does it twice"};
  const Defaults full{.model = "toy",
                      .batch = 1,
                      .steps = 1,
                      .budget = kUnlimited,
                      .options = {kSeq, {stage, 2}, {form, "round"}, file, model_file, twice}};
  const Defaults quick{.model = "toy", .batch = 1, .steps = 1, .budget = kUnlimited, .options = {{form, "square"}}};
  const auto parse = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "99_toy");
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    return parse_command_line(int(argv.size()), argv.data(), "99_toy", full, quick);
  };
  const OptionValues untouched = parse({}).config.options, quickly = parse({"--quick"}).config.options;
  EXPECT_EQ(untouched.find(kSeq), std::nullopt);
  EXPECT_EQ(untouched.find(file), std::nullopt);
  EXPECT_THROW((void)untouched[kSeq], std::bad_optional_access);
  EXPECT_EQ(untouched[stage], 2u);
  EXPECT_EQ(quickly[stage], 2u) << "what --quick does not name is as in a full run";
  EXPECT_EQ(untouched[form], "round");
  EXPECT_EQ(quickly[form], "square");
  EXPECT_FALSE(untouched[twice]);
  const OptionValues given =
      parse({"--seq", "9", "--a-stage", "0", "--form", "square", "--file", "x y", "--twice"}).config.options;
  EXPECT_EQ(given[kSeq], 9u);
  EXPECT_EQ(given[stage], 0u);
  EXPECT_EQ(given[form], "square");
  EXPECT_EQ(given[file], "x y");
  EXPECT_TRUE(given[twice]);
  EXPECT_EQ(parse({}).config.model, "toy");
  EXPECT_EQ(parse({"--config", "m.json"}).config.model, "m.json") << "it says which model, in place of --model";
  EXPECT_EQ(parse({"--config", "m.json"}).config.options[model_file], "m.json");

  for (const auto& [words, says] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--seq", "0"}, "--seq '0' is not allowed; write a whole number, 1 or more"},
           {{"--a-stage", "4"}, "--a-stage '4' is not allowed; write a whole number, 0 to 3"},
           {{"--a-stage=-1"}, "--a-stage '-1' is not allowed; write a whole number, 0 to 3"},
           {{"--a-stage", ""}, "--a-stage needs a value"},
           {{"--form", "flat"}, "--form 'flat' is unknown; known: round, square"},
           {{"--file", ""}, "--file needs a value"},
           {{"--config", "m.json", "--model", "toy"}, "--config and --model both say which model; give one of them"},
           {{"--data", "x"}, "'--data' is not an option of this program; see --help"}}) {
    try {
      (void)parse(words);
      ADD_FAILURE() << words[0] << " is accepted";
    } catch (const UsageError& error) {
      EXPECT_EQ(error.what(), says);
    }
  }
  const std::string help = parse({"--help"}).text;
  for (const char* says : {"--a-stage 2 --form round", "--a-stage 2 --form square", "Which stage", "A file", "--twice"})
    EXPECT_NE(help.find(says), std::string::npos) << says << " in " << help;

  RunResult result;
  result.config = parse({"--a-stage", "1", "--twice"}).config;
  const std::string line = banner(result);
  EXPECT_NE(line.find("batch 1, a-stage 1, form round, twice, budget"), std::string::npos) << line;
  const json config = read_json(result_json(result))["config"];
  EXPECT_EQ(config["a_stage"], 1);
  EXPECT_EQ(config["form"], "round");
  EXPECT_EQ(config["twice"], true);
  EXPECT_FALSE(config.contains("seq") || config.contains("file"));
}

// Whoever names a published model gets the batch, sequence and budget that go with it; what they give themselves
// counts.
TEST(PublishedModels, BringTheirDefaults) {
  const Defaults huge{.batch = 3, .steps = 1, .budget = 3000, .devices = 3, .options = {{kSeq, 30}}};
  const Defaults large{.batch = 2,
                       .steps = 1,
                       .budget = 2000,
                       .devices = 2,
                       .options = {{kSeq, 20}},
                       .published_models = "huge",
                       .published = &huge};
  const Defaults full{.model = "toy",
                      .batch = 1,
                      .steps = 1,
                      .budget = 1000,
                      .devices = 1,
                      .options = {{kSeq, 10}},
                      .published_models = "one two",
                      .published = &large};
  const auto parse = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "99_toy");
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    return parse_command_line(int(argv.size()), argv.data(), "99_toy", full, full).config;
  };
  for (const auto& [model, n] : {std::pair("toy", 1u), std::pair("on", 1u), std::pair("two", 2u), std::pair("huge", 3u),
                                 std::pair("Two", 2u), std::pair("HUGE", 3u)}) {
    const Config config = parse({"--model", model});
    EXPECT_EQ(config.model, lower_case(model));
    EXPECT_EQ(config.batch, n) << model;
    EXPECT_EQ(config.options[kSeq], 10 * n);
    EXPECT_EQ(config.budget, 1000 * n);
    EXPECT_EQ(config.devices, int(n));
    EXPECT_EQ(config.workspace, default_workspace(config.budget));
  }
  const Config given = parse({"--model", "one", "--batch", "7", "--budget", "8000"});
  EXPECT_EQ(given.batch, 7);
  EXPECT_EQ(given.budget, 8000);
  EXPECT_EQ(given.options[kSeq], 20);
}

TEST_F(Harness, FindingsAndFailedChecksOfAChapterAreReported) {
  Chapter chapter = good();
  chapter.after = [](const auto& results, Report& report) {
    report.line("a finding");
    report.figure("variants_seen", static_cast<double>(std::distance(results.begin(), results.end())));
    report.check(true, "fine");
    report.check(false, "the sky is not green");
  };
  const Ran ran = run(chapter);
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_EQ(ran.result["findings"]["variants_seen"], 2);
  EXPECT_EQ(ran.result["failures"], json({"the sky is not green"}));
  EXPECT_NE(ran.out.find("a finding\n"), std::string::npos);
}

TEST_F(Harness, FilterSelectsVariants) {
  const Ran ran = run(good(), {"--filter", "^sm"});
  ASSERT_EQ(ran.result["variants"].size(), 1u);
  EXPECT_EQ(ran.result["variants"][0]["name"], "small");
  EXPECT_FALSE(ran.result["variants"][0]["numerics"]["compared"]);
}

TEST(Filters, TakeATimeThatDoesNotDependOnTheExpression) {
  const std::string name = "bf16, 8-bit, in backward, checkpoints of four layers each";
  EXPECT_FALSE(matches_filter("((((.*)*)*)*)*zz", name));
  EXPECT_FALSE(matches_filter("(.|.)*(.|.)*(.|.)*(.|.)*(.|.)*(.|.)*zz", name));
  EXPECT_TRUE(matches_filter("^(bf16|fp32), (master|8-bit)", name));
  EXPECT_TRUE(matches_filter("", name));
  for (const std::string& bad :
       {std::string(30'000, '('), std::string(500, '(') + std::string(500, ')') + "x",
        std::string("(((a{100}){100}){100})"), std::string("a{1000000}"), std::string("["), std::string("\\1")})
    EXPECT_THROW(check_filter("--filter", bad), UsageError) << bad.substr(0, 40);
}

TEST(Filters, OfGoogleBenchmarkMayLeaveOut) {
  EXPECT_TRUE(matches_benchmark_filter("", "adamw"));
  EXPECT_TRUE(matches_benchmark_filter("all", "adamw"));
  EXPECT_TRUE(matches_benchmark_filter("^ad", "adamw"));
  EXPECT_FALSE(matches_benchmark_filter("-^ad", "adamw"));
  EXPECT_TRUE(matches_benchmark_filter("-^ad", "sgd"));
}

TEST(Outputs, OverwriteNeitherEachOtherNorAnInput) {
  const std::string path = testing::TempDir() + "/outputs_test." + std::to_string(getpid());
  std::ofstream(path) << "precious";
  Config config;
  config.json = path + ".json";
  config.trace = testing::TempDir() + "/./outputs_test." + std::to_string(getpid()) + ".json";
  EXPECT_THROW(check_outputs(config, {}), UsageError);
  config.trace = path + ".trace";
  EXPECT_NO_THROW(check_outputs(config, {}));
  EXPECT_THROW(check_outputs(config, {{"--save", path + ".trace"}}), UsageError);
  config.options.set("text", testing::TempDir() + "/./outputs_test." + std::to_string(getpid()));
  EXPECT_NO_THROW(check_outputs(config, {}));
  config.json = path;
  EXPECT_THROW(check_outputs(config, {}), UsageError);
  std::remove(path.c_str());
}

TEST_F(Harness, NothingMeasuredIsNoPass) {
  Chapter chapter = good();
  for (Variant& variant : chapter.variants)
    variant.make = [](Context&, std::size_t) -> std::unique_ptr<Workload> { throw VariantSkipped("not here"); };
  const Ran ran = run(chapter);
  EXPECT_EQ(ran.exit_code, 2);
  EXPECT_EQ(ran.out.find("PASS"), std::string::npos) << ran.out;
  EXPECT_NE(ran.err.find("no variant can run here: large: not here\n"), std::string::npos) << ran.err;
  EXPECT_EQ(ran.result["passed"], false) << "and what there is to tell is in the file";
}

TEST_F(Harness, ExceptionsBecomeExitCodesAndOneLine) {
  const auto throwing = [](auto exception) {
    Chapter chapter = good();
    chapter.variants[0].make = [exception](Context&, std::size_t) -> std::unique_ptr<Workload> { throw exception; };
    return run(chapter, {"--quiet"});
  };
  const Ran cuda = throwing(CudaError(cudaErrorInvalidValue, "call", "file", 1));
  EXPECT_EQ(cuda.exit_code, 1);
  EXPECT_NE(cuda.err.find("cudaErrorInvalidValue"), std::string::npos);
  EXPECT_TRUE(cuda.result.is_null()) << "no result file";
  EXPECT_EQ(throwing(std::bad_alloc()).exit_code, 1);
  EXPECT_EQ(throwing(UsageError("no")).exit_code, 64);
  EXPECT_EQ(throwing(CannotRunHere("no")).exit_code, 2);
}

TEST_F(Harness, AFailureInTheTimingPassIsNotLost) {
  Chapter chapter = good();
  auto calls = std::make_shared<int>(0);
  const auto make = chapter.variants[1].make;
  chapter.variants[1].make = [=](Context& context, std::size_t batch) {
    if (++*calls > 1) throw CudaError(cudaErrorUnknown, "the second time", "file", 1);
    return make(context, batch);
  };
  const Ran ran = run(chapter);
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_NE(ran.err.find("the second time"), std::string::npos) << ran.err;
}

// Somebody else may have taken the memory since the memory pass: bytes stand, times lack, and the rest is timed.
TEST_F(Harness, OutOfMemoryInTheTimingPassIsPartOfTheRow) {
  Chapter chapter = good();
  auto calls = std::make_shared<int>(0);
  const auto make = chapter.variants[0].make;
  chapter.variants[0].make = [=](Context& context, std::size_t batch) {
    if (++*calls > 1) throw CudaError(cudaErrorMemoryAllocation, "the second time", "file", 1);
    return make(context, batch);
  };
  const Ran ran = run(chapter);
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  const json &large = ran.result["variants"][0], &small = ran.result["variants"][1];
  EXPECT_EQ(large["outcome"], "ok");
  EXPECT_EQ(large["peak_allocated_bytes"], kBlasWorkspaceBytes + toy_bytes(100'000).total());
  EXPECT_NE(large["reason"].get<std::string>().find("not timed, out of memory"), std::string::npos);
  EXPECT_FALSE(large.contains("throughput")) << large["throughput"];
  expect_timed(small, 3);
}

// What the driver calls used has in it what is not this run's.
TEST_F(Harness, WhatWasInUseBeforeIsTold) {
  constexpr std::size_t kOthers = std::size_t(6) << 20;
  const Ran alone = run(good());
  void* others = nullptr;
  ASSERT_EQ(cudaSuccess, cudaMalloc(&others, kOthers));
  const Ran beside = run(good());
  ASSERT_EQ(cudaSuccess, cudaFree(others));
  for (std::size_t i = 0; i < 2; ++i) {
    const json &without = alone.result["variants"][i], &with = beside.result["variants"][i];
    EXPECT_GE(with["device_used_before_bytes"], without["device_used_before_bytes"].get<std::size_t>() + kOthers);
    const bool host = alone.result["system"]["backend"] == "host";  // where nobody else has anything
    EXPECT_TRUE(!host || with["device_used_before_bytes"] == kOthers) << with["device_used_before_bytes"];
    EXPECT_GE(with["peak_device_used_bytes"].get<std::size_t>(),
              with["device_used_before_bytes"].get<std::size_t>() + with["peak_reserved_bytes"].get<std::size_t>());
    EXPECT_EQ(with["peak_allocated_bytes"], without["peak_allocated_bytes"]);
  }
  EXPECT_NE(beside.out.find("were in use before a variant began"), std::string::npos) << beside.out;
}

// A library, or the driver, runs out of memory where no ledger looks: with the budget, or without it.
TEST_F(Harness, OutOfMemoryOutsideTheLedgerIsARow) {
  for (const int failing : {1, 2}) {
    Chapter chapter = good();
    auto calls = std::make_shared<int>(0);
    const auto make = chapter.variants[1].make;
    chapter.variants[1].make = [=](Context& context, std::size_t batch) {
      if (++*calls == 1 && failing == 1) throw CublasError(CUBLAS_STATUS_ALLOC_FAILED, "cublasCreate", "file", 1);
      if (*calls == 2) throw CudaError(cudaErrorMemoryAllocation, "cudaStreamCreate", "file", 1);
      if (failing == 2) (void)context.buffer<char>(std::size_t(1) << 30, Category::activations, "too large");
      return make(context, batch);
    };
    const Ran ran = run(chapter, {"--budget", "16MiB"});
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    const json& row = ran.result["variants"][1];
    EXPECT_EQ(row["outcome"], "oom");
    const auto reason = row["reason"].get<std::string>();
    EXPECT_NE(reason.find("out of memory outside the ledger: "), std::string::npos) << reason;
    EXPECT_EQ(failing == 2, reason.find("asked for 1.00 GiB") != std::string::npos) << reason;
    EXPECT_EQ(failing == 2, reason.find("; without the budget: ") != std::string::npos) << reason;
  }
}

TEST_F(Harness, WhatADeviceCannotDoIsSkippedWithTheReason) {
  for (const bool products : {true, false}) {
    Chapter chapter = good();
    chapter.variants[1].make = [products](Context&, std::size_t) -> std::unique_ptr<Workload> {
      if (products) throw CublasError(CUBLAS_STATUS_NOT_SUPPORTED, "cublasGemmEx", "file", 1);
      throw CudaError(cudaErrorNotSupported, "cuMemCreate", "file", 1);
    };
    const Ran ran = run(chapter);
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    const json& row = ran.result["variants"][1];
    EXPECT_EQ(row["outcome"], "skipped");
    EXPECT_EQ(row["reason"].get<std::string>().find("this device cannot do it: "), 0u) << row["reason"];
  }
}

/// Fills, copies, and multiplies: so much of each.
class Busy final : public Workload {
 public:
  explicit Busy(Context& context)
      : context_(context), data_(context.buffer<float>(1024, Category::parameters, "data")) {}
  void step() override {
    const cudaStream_t stream = context_.stream();
    const Phase all(context_.ledger(), "all of it");
    CUDA_CHECK(cudaMemsetAsync(data_.data(), 0, 4096, stream));
    for (int twice = 0; twice < 2; ++twice) {
      const Phase phase(context_.ledger(), "copies");
      CUDA_CHECK(cudaMemcpyAsync(data_.data(), data_.data() + 512, 1000, cudaMemcpyDeviceToDevice, stream));
    }
    const float one = 1, zero = 0;
    CUBLAS_CHECK(cublasSgemm(context_.blas(), CUBLAS_OP_N, CUBLAS_OP_N, 4, 4, 4, &one, data_.data(), 4, data_.data(), 4,
                             &zero, data_.data() + 512, 4));
  }
  std::size_t samples_per_step() const override { return 1; }
  double figure() override { return 1; }
  std::uint64_t fingerprint() override { return 42; }

 private:
  Context& context_;
  DeviceBuffer<float> data_;
};

TEST_F(Harness, WhatAStepAsksOfTheDeviceIsCounted) {
  if (!device_work()) GTEST_SKIP() << "not on this backend";
  Chapter chapter = good();
  for (Variant& variant : chapter.variants) {
    variant.predicted = [](std::size_t) { return ByCategory{{4096}}; };
    variant.make = [](Context& context, std::size_t) { return std::make_unique<Busy>(context); };
  }
  const Ran ran = run(chapter);
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  const json& row = ran.result["variants"][0];
  EXPECT_EQ(row["work"], read_json(R"({"launches": 0, "gemms": 1, "gemm_flops": 128, "copied_bytes": 2000,
                                     "filled_bytes": 4096})"));
  std::map<std::string, json> phases;
  for (const json& phase : row["phases"]) phases[phase["name"]] = phase;
  // Two steps of the memory pass.
  EXPECT_EQ(phases["all of it"]["visits"], 2);
  EXPECT_EQ(phases["copies"]["visits"], 4);
  EXPECT_EQ(phases["all of it"]["work"]["gemms"], 2);
  EXPECT_EQ(phases["all of it"]["work"]["filled_bytes"], 8192);
  EXPECT_EQ(phases["copies"]["work"]["copied_bytes"], 4000);
  EXPECT_EQ(phases["copies"]["work"]["filled_bytes"], 0);
}

/// Keeps a loss after each step.
class Leaky final : public Workload {
 public:
  explicit Leaky(Context& context)
      : context_(context), held_(context.buffer<char>(512, Category::parameters, "held")) {}
  void step() override {
    const Phase phase(context_.ledger(), "toy");
    losses_.push_back(context_.buffer<char>(100'000, Category::activations, "kept loss"));
  }
  std::size_t samples_per_step() const override { return 1; }
  double figure() override { return 1; }
  std::uint64_t fingerprint() override { return 42; }

 private:
  Context& context_;
  DeviceBuffer<char> held_;
  std::vector<DeviceBuffer<char>> losses_;
};

Chapter with_a_leak(std::size_t memory_steps) {
  Chapter chapter = good();
  chapter.variants.push_back(toy("leaky", 1'000, 0, differs_by_design("it leaks")));
  chapter.variants[2].predicted = [=](std::size_t) {
    ByCategory split;
    split[Category::parameters] = 512, split[Category::activations] = memory_steps * 100'352;
    return split;
  };
  chapter.variants[2].make = [](Context& context, std::size_t) { return std::make_unique<Leaky>(context); };
  return chapter;
}

TEST_F(Harness, MemoryThatGrowsIsNamed) {
  const Ran ran = run(with_a_leak(10), {"--memory-steps", "10", "--budget", "8MiB", "--workspace", "1KiB"});
  EXPECT_EQ(ran.exit_code, 0) << ran.out;
  for (const int clean : {0, 1}) EXPECT_EQ(ran.result["variants"][clean]["growth"], json::array());
  ASSERT_EQ(ran.result["variants"][2]["growth"].size(), 1u);
  const json& growth = ran.result["variants"][2]["growth"][0];
  EXPECT_EQ(growth["loop"], "step");
  EXPECT_EQ(growth["found_in"], 10);
  EXPECT_EQ(growth["since"], 1);
  EXPECT_EQ(growth["bytes_a_round"], 100'352);
  EXPECT_EQ(growth["tags"][0]["tag"], "kept loss");
  EXPECT_EQ(growth["exceeds_budget_in"], 84);  // (8 MiB - 1,536) / 100,352 = 83.6
  EXPECT_FALSE(ran.result["variants"][2].contains("series")) << "only where it is asked for";
  EXPECT_NE(ran.out.find("\nleaky GROWS: 98.00 KiB more after each step, since step 1 of 10: kept loss"),
            std::string::npos)
      << ran.out;
  const Ran clean = run(good(), {"--memory-steps", "10"});
  EXPECT_NE(clean.out.find("no memory grows: 2 variants"), std::string::npos) << clean.out;
  EXPECT_EQ(clean.result["config"]["memory_steps"], 10);
}

// Under the budget the seventh step fails. Without it ten are run, and the report says the seventh, too.
TEST_F(Harness, TheStepThatExceedsTheBudgetIsTheOneThatFailed) {
  const Ran ran = run(with_a_leak(10), {"--memory-steps", "10", "--budget", "604KiB", "--workspace", "1KiB"});
  const json& leaky = ran.result["variants"][2];
  EXPECT_EQ(leaky["outcome"], "oom");
  EXPECT_EQ(leaky["oom"]["live_bytes"], 1'024 + 512 + 6 * 100'352);
  EXPECT_EQ(leaky["growth"][0]["exceeds_budget_in"], 7);
  EXPECT_NE(ran.out.find("step 7 exceeded the budget"), std::string::npos) << ran.out;
}

TEST_F(Harness, SeriesAreOfEachStep) {
  const Ran ran = run(with_a_leak(3), {"--memory-steps", "3", "--series"});
  EXPECT_EQ(ran.exit_code, 0) << ran.out;
  const json &large = ran.result["variants"][0]["series"], &leaky = ran.result["variants"][2]["series"];
  const std::size_t fixed = kBlasWorkspaceBytes + 512;
  EXPECT_EQ(leaky["allocated_bytes"],
            (std::vector<std::size_t>{fixed + 100'352, fixed + 2 * 100'352, fixed + 3 * 100'352}));
  EXPECT_EQ(leaky["by_category_bytes"]["activations"], (std::vector<std::size_t>{100'352, 2 * 100'352, 3 * 100'352}));
  EXPECT_EQ(large["allocated_bytes"], std::vector<std::size_t>(3, kBlasWorkspaceBytes + 100'352));
  EXPECT_EQ(large["peak_allocated_bytes"], std::vector<std::size_t>(3, kBlasWorkspaceBytes + 2 * 100'352));
  EXPECT_EQ(large["by_category_bytes"]["activations"], std::vector<std::size_t>(3, 100'352));
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_GE(large["reserved_bytes"][i], large["allocated_bytes"][i]);
    EXPECT_GE(large["device_used_bytes"][i], large["reserved_bytes"][i]);
  }
  EXPECT_EQ(large["samples_per_second"].size(), ran.result["variants"][0]["throughput"]["repetitions"]);
}

TEST(Series, AStepsPeakIsItsOwn) {
  Ledger ledger;
  MemoryWatch watch(ledger, "toy", 2, kUnlimited, nullptr);
  Loop loop(ledger, "step");
  ledger.charge(&ledger, 4'096, 4'096, Category::activations, "in the first step only");
  ledger.release(&ledger);
  loop.end_round();
  loop.end_round();
  ASSERT_EQ(watch.steps().size(), 2u);
  EXPECT_EQ(watch.steps()[0].peak_allocated, 4'096u);
  EXPECT_EQ(watch.steps()[0].at_peak[Category::activations], 4'096u);
  EXPECT_EQ(watch.steps()[1].peak_allocated, 0u);
  EXPECT_EQ(watch.steps()[1].at_peak.total(), 0u);
}

TEST_F(Harness, WatchTellsEachPhaseAndStepAndDisturbsNothing) {
  const Ran plain = run(good(), {"--memory-steps", "3"}), watched = run(good(), {"--memory-steps", "3", "--watch"}),
            quiet = run(good(), {"--watch", "--quiet"});
  for (const char* line :
       {"  large, setup: 8.10 MiB live, peak 8.10 MiB\n", "  small, step 2 of 3, toy: 8.00 MiB live, peak 8.00 MiB\n",
        "  large, step 3 of 3: 8.10 MiB live, peak 8.19 MiB\n"})
    EXPECT_NE(watched.err.find(line), std::string::npos) << watched.err;
  EXPECT_EQ(watched.err.find('\r'), std::string::npos) << "no terminal";
  EXPECT_EQ(plain.err.find(" live, peak "), std::string::npos) << plain.err;
  EXPECT_EQ(watched.out.find(" live, peak "), std::string::npos) << watched.out;
  EXPECT_EQ(quiet.err + quiet.out, "");
  for (const char* key : {"peak_allocated_bytes", "by_category_bytes", "work", "numerics"})
    EXPECT_EQ(plain.result["variants"][0].value(key, json()), watched.result["variants"][0].value(key, json())) << key;
  EXPECT_FALSE(watched.result["variants"][0].contains("series"));
}

// On a terminal it is one line, written over, never wider than the window, and gone when the next one is written.
TEST_F(Harness, WatchFitsTheTerminal) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_TRUE(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
  const int window = open(ptsname(terminal), O_RDWR | O_NOCTTY);
  ASSERT_GE(window, 0);
  const winsize size{.ws_row = 24, .ws_col = 30, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(ioctl(window, TIOCSWINSZ, &size), 0);
  EXPECT_EQ(WatchLine::columns_of(window), 30u);
  std::string shown;
  std::thread reader([&] {
    char buffer[4096];
    for (ssize_t n; (n = read(terminal, buffer, sizeof buffer)) > 0;) shown.append(buffer, std::size_t(n));
  });
  std::fflush(stderr);
  const int before = dup(STDERR_FILENO);
  dup2(window, STDERR_FILENO);
  {
    Ledger ledger;
    WatchLine line;
    MemoryWatch watch(ledger, "a name with an \u00e9, longer than this window is", 2, kUnlimited, &line);
    Loop loop(ledger, "step");
    for (int i = 0; i < 2; ++i) loop.end_round();
  }
  std::fflush(stderr);
  dup2(before, STDERR_FILENO);
  close(before), close(window);
  reader.join();
  close(terminal);
  EXPECT_EQ(shown.find('\n'), std::string::npos) << shown;
  EXPECT_NE(shown.find("\r  a name with an \u00e9, longer th\x1b[K"), std::string::npos) << shown;
  EXPECT_TRUE(shown.ends_with("\r\x1b[K")) << shown;
  EXPECT_EQ(WatchLine::cut("abc", 3), "abc");
  EXPECT_EQ(WatchLine::cut("a\u00e9bc\n", 2), "a\u00e9");
}

/// A step that takes long: it asks for memory a hundred thousand times. In the tenth there is a signal.
class Long final : public Workload {
 public:
  Long(Context& context, std::size_t& asked, int signal) : context_(context), asked_(asked), signal_(signal) {}
  void step() override {
    for (int i = 0; i < 100'000; ++i) {
      if (++asked_ == 10) std::raise(signal_);
      (void)context_.buffer<char>(1'000, Category::activations, "one of many");
    }
  }
  std::size_t samples_per_step() const override { return 1; }
  double figure() override { return 0; }
  std::uint64_t fingerprint() override { return 0; }

 private:
  Context& context_;
  std::size_t& asked_;
  int signal_;
};

// Not only between two steps: one may take minutes. (In plans: tests/hostile/signals_test.py.)
TEST_F(Harness, ASignalIsHeardInsideAStep) {
  for (const int signal : {SIGINT, SIGTERM}) {
    std::size_t asked = 0;
    Chapter chapter = good();
    chapter.variants[0].make = [&](Context& context, std::size_t) -> std::unique_ptr<Workload> {
      return std::make_unique<Long>(context, asked, signal);
    };
    const Ran ran = run(chapter);
    EXPECT_EQ(ran.exit_code, 130) << ran.err;
    EXPECT_EQ(asked, 10u);
    EXPECT_TRUE(ran.result.is_null());
    EXPECT_NE(ran.err.find("99_toy: interrupted; no result was written\n"), std::string::npos) << ran.err;
  }
}

TEST_F(Harness, OperationsThatAreNotThePredictedOnesFail) {
  if (!device_work()) GTEST_SKIP() << "not on this backend";
  for (const double predicted : {128.0, 127.0}) {
    Chapter chapter = good();
    chapter.variants.resize(1);
    chapter.variants[0].predicted = [](std::size_t) { return ByCategory{{4096}}; };
    chapter.variants[0].make = [](Context& context, std::size_t) { return std::make_unique<Busy>(context); };
    chapter.variants[0].flops = [=](std::size_t) { return predicted; };
    const Ran ran = run(chapter);
    EXPECT_EQ(ran.exit_code, predicted == 128 ? 0 : 1);
    EXPECT_EQ(ran.out.find("large: matrix products of 128 operations in a step, predicted 127") == std::string::npos,
              predicted == 128)
        << ran.out;
    EXPECT_EQ(ran.result["variants"][0]["flops"], predicted);
    EXPECT_FALSE(ran.result["variants"][0].contains("least_time")) << "times of the host runtime are no GPU's";
    EXPECT_EQ(ran.out.find("least time"), std::string::npos) << ran.out;
  }
}

TEST_F(Harness, Tf32IsRecordedAndToleratesMore) {
  Chapter chapter = good();
  chapter.variants[1] = toy("close", 1'000, 5e-4, {Agreement::Kind::within_tolerance, 1e-6, ""});
  const Ran exact = run(chapter), rounded = run(chapter, {"--tf32"});
  if (rounded.exit_code == 2) GTEST_SKIP() << rounded.err;
  EXPECT_EQ(exact.exit_code, 1);
  EXPECT_FALSE(exact.result["config"].contains("tf32"));
  EXPECT_EQ(exact.out.find("TF32"), std::string::npos);
  EXPECT_EQ(rounded.exit_code, 0) << rounded.out;
  EXPECT_EQ(rounded.result["config"]["tf32"], true);
  EXPECT_NE(rounded.out.find("FP32 products in TF32"), std::string::npos);
  EXPECT_NE(rounded.out.find("within 1e-03"), std::string::npos) << "what is tolerated is shown";
  chapter.variants[1] = toy("far", 1'000, 1e-2, {Agreement::Kind::within_tolerance, 1e-6, ""});
  EXPECT_EQ(run(chapter, {"--tf32"}).exit_code, 1) << "not more than that";
  chapter.variants[1] = toy("other bits", 1'000, 1e-9);
  EXPECT_EQ(run(chapter, {"--tf32"}).exit_code, 1) << "bit-equal stays bit-equal";
}

TEST_F(Harness, EveryStepIsTimedOnce) {
  for (const int steps : {1, 2, 4, 5}) {
    const Ran ran = run(good(), {"--steps", std::to_string(steps)});
    expect_timed(ran.result["variants"][0], steps);
  }
}

TEST_F(Harness, TheFirstStepWarmsUpAndIsNotTimed) {
  Ledger ledger;
  with_context(Config{}, kUnlimited, ledger, [](Context& context) {
    Toy work(context, 1'000, 0, 42);
    std::size_t told = 0;
    EXPECT_EQ(time_steps(context, work, {3}, [&](double) { ++told; }).size(), 3u);
    EXPECT_EQ(told, 3u);
    EXPECT_EQ(work.figure(), 4);
  });
}

// A clock that goes on by 10 ms each time somebody looks.
double played_clock() {
  static double now = 0;
  return now += 0.01;
}

TEST_F(Harness, ALongerWarmUpIsNotTimedEither) {
  Ledger ledger;
  with_context(Config{}, kUnlimited, ledger, [](Context& context) {
    Toy work(context, 1'000, 0, 42);
    EXPECT_EQ(time_steps(context, work, {.steps = 3, .warm_up_seconds = 0.055, .now = played_clock}).size(), 3u);
    EXPECT_EQ(work.figure(), 6 + 3) << "the first step, one each time the clock says no more than 50 ms, and the timed";
    EXPECT_EQ(time_steps(context, work, {.steps = 3, .warm_up_steps = 7}).size(), 3u);
    EXPECT_EQ(work.figure(), 9 + 10);
  });
}

// Whatever a step takes: as many as make up the seconds, and not one more.
TEST_F(Harness, ShortStepsAreTimedUntilTheyMakeUpTheSeconds) {
  Ledger ledger;
  with_context(Config{}, kUnlimited, ledger, [](Context& context) {
    Toy work(context, 1'000, 0, 42);
    const double wanted = 0.05;
    double sum = 0;
    const auto steps = time_steps(context, work, {.steps = 1, .seconds = wanted}, [&](double s) { sum += s; });
    EXPECT_GE(sum, wanted);
    EXPECT_TRUE(steps.size() == 1 || sum - steps.back() < wanted) << "and no longer";
  });
}

TEST(Pace, OfATeamIsInSteps) {
  const Pace pace{.steps = 3, .warm_up_seconds = 0.5, .seconds = 0.25};
  const Pace slow = in_steps(pace, 1), fast = in_steps(pace, 0.0625), unknown = in_steps(pace, 0);
  EXPECT_EQ(slow.steps, 3u);
  EXPECT_EQ(slow.warm_up_steps, 1u);
  EXPECT_EQ(fast.steps, 4u);
  EXPECT_EQ(fast.warm_up_steps, 8u);
  EXPECT_EQ(unknown.steps, 3u);
  for (const Pace& p : {slow, fast, unknown})
    EXPECT_EQ(p.seconds + p.warm_up_seconds, 0) << "ranks do not look at clocks";
}

TEST(Benchmarks, MayTimeMoreStepsThanPromised) {
  std::size_t ticks = 0;
  run_benchmarks(3, {{"eager", [&](std::size_t steps, const std::function<void(double)>& tick) {
                        for (std::size_t i = 0; i < steps + 5; ++i, ++ticks) tick(1e-6);
                      }}});
  EXPECT_EQ(ticks, 3 + kTimingRounds * 5);
}

TEST(ResultJson, HasTheSpreadOfTheRates) {
  RunResult run;
  VariantResult variant;
  for (int rate = 11; rate >= 1; --rate) {
    variant.samples_per_second.push_back(rate);
    variant.reference_rates.push_back(100 * rate);
  }
  run.variants = {variant};
  const json throughput = read_json(result_json(run))["variants"][0]["throughput"];
  for (const auto& [rates, scale] : {std::pair(throughput, 1), std::pair(throughput["reference"], 100)}) {
    EXPECT_EQ(rates["p10"], 2 * scale);
    EXPECT_EQ(rates["median"], 6 * scale);
    EXPECT_EQ(rates["p90"], 10 * scale);
  }
  EXPECT_EQ(throughput["repetitions"], 11);
}

TEST(Quantile, InterpolatesLikeEverybodyElse) {
  EXPECT_EQ(quantile({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(quantile({4, 1, 3, 2}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(quantile({0, 10}, 0.1), 1);
  EXPECT_EQ(quantile({7}, 0.9), 7);
  EXPECT_THROW(quantile({}, 0.5), std::invalid_argument);
  EXPECT_EQ(median({5, 1, 9}), 5);
}

}  // namespace
