// The harness must tell a good chapter from a bad one: every check that it makes is provoked here.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "harness/chapter.h"
#include "harness/json_writer.h"
#include "harness/result.h"
#include "harness/timing.h"

namespace {

using namespace oomlab;
using nlohmann::json;

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
  split[Category::workspace] = kBlasWorkspaceBytes;
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
  if (FILE* file = std::fopen(path.c_str(), "rb")) {
    ran.result = json::parse(file);
    std::fclose(file);
    std::remove(path.c_str());
  }
  return ran;
}

Chapter good() {
  Chapter chapter;
  chapter.title = "a toy";
  chapter.variants = {toy("large", 100'000), toy("small", 1'000)};
  return chapter;
}

class Harness : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
      (void)cudaGetLastError();
      GTEST_SKIP() << "no device";
    }
  }
};

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
  EXPECT_EQ(large["throughput"]["repetitions"], 3);
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
  const Ran ran = run(good(), {"--budget", std::to_string(kBlasWorkspaceBytes + 150'000)});
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

TEST_F(Harness, TheLargestBatchIsTheLargestThatFits) {
  const std::size_t budget = kBlasWorkspaceBytes + 123'456;
  const Ran ran = run(good(), {"--budget", std::to_string(budget)});
  std::size_t largest = 0;  // by brute force
  for (std::size_t batch = 1; batch < 1'000; ++batch)
    if (toy_bytes(1'000 * batch).total() <= budget) largest = batch;
  EXPECT_GT(largest, 1u);
  EXPECT_EQ(ran.result["variants"][1]["largest_batch"], largest);
  EXPECT_EQ(ran.result["variants"][0]["largest_batch"], 0);
  EXPECT_TRUE(run(good()).result["variants"][0]["largest_batch"].is_null());
}

TEST_F(Harness, ClaimsGetVerdictsAndDoNotFailTheRun) {
  Chapter chapter = good();
  chapter.claims = {{"it holds", "answer", 41, 43, [](const auto&) { return 42.0; }},
                    {"it does not", "answer", 0, 1, [](const auto&) { return 42.0; }},
                    {"nobody knows", "answer", 0, 1, [](const auto&) { return std::nullopt; }}};
  const Ran ran = run(chapter);
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_EQ(ran.result["claims"][0]["verdict"], "holds");
  EXPECT_EQ(ran.result["claims"][1]["verdict"], "does not hold");
  EXPECT_EQ(ran.result["claims"][2]["verdict"], "not measured");
}

TEST_F(Harness, FindingsAndFailedChecksOfAChapterAreReported) {
  Chapter chapter = good();
  chapter.after = [](const auto& results, Report& report) {
    report.line("a finding");
    report.figure("variants_seen", static_cast<double>(results.size()));
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
  EXPECT_EQ(large["peak_allocated_bytes"], toy_bytes(100'000).total());
  EXPECT_NE(large["reason"].get<std::string>().find("not timed, out of memory"), std::string::npos);
  EXPECT_FALSE(large.contains("throughput")) << large["throughput"];
  EXPECT_EQ(small["throughput"]["repetitions"], 3);
}

TEST_F(Harness, EveryStepIsTimedOnce) {
  for (const int steps : {1, 2, 4, 5}) {
    const Ran ran = run(good(), {"--steps", std::to_string(steps)});
    EXPECT_EQ(ran.result["variants"][0]["throughput"]["repetitions"], steps);
  }
}

TEST_F(Harness, TheFirstStepWarmsUpAndIsNotTimed) {
  Ledger ledger;
  with_context(Config{}, kUnlimited, ledger, [](Context& context) {
    Toy work(context, 1'000, 0, 42);
    std::size_t told = 0;
    EXPECT_EQ(time_steps(context, work, 3, [&](double) { ++told; }).size(), 3u);
    EXPECT_EQ(told, 3u);
    EXPECT_EQ(work.figure(), 4);
  });
}

TEST(ResultJson, HasTheSpreadOfTheRates) {
  RunResult run;
  VariantResult variant;
  for (int rate = 11; rate >= 1; --rate) {
    variant.samples_per_second.push_back(rate);
    variant.reference_rates.push_back(100 * rate);
  }
  run.variants = {variant};
  const json throughput = json::parse(result_json(run))["variants"][0]["throughput"];
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
