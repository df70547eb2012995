// What a chapter does with its command line, once for each kind of chapter: on images, on text, on several devices. The
// chapter's main() is called in this process (linked with --wrap=main), because nearly all that is asked here is
// refused before anything runs; the tests that do run something start it as a program.

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "../chapter/process.h"
#include "read_json.h"

extern "C" int __real_main(int argc, char** argv);
extern "C" int __wrap_main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

namespace {

using namespace oomlab::test;
using nlohmann::json;
using Words = std::vector<std::string>;

// The chapter, called here, in `folder`.
Outcome call(Words arguments, const std::string& folder) {
  arguments.insert(arguments.begin(), std::filesystem::path(program()).filename());
  std::vector<char*> argv;
  for (std::string& word : arguments) argv.push_back(word.data());
  argv.push_back(nullptr);
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder);
  Outcome outcome;
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  outcome.exit_code = __real_main(static_cast<int>(arguments.size()), argv.data());
  outcome.out = testing::internal::GetCapturedStdout();
  outcome.err = testing::internal::GetCapturedStderr();
  std::filesystem::current_path(before);
  return outcome;
}

struct Bad {
  const char* name;
  Words arguments;
  const char* mentions;  // what the line must say
};

void PrintTo(const Bad& bad, std::ostream* out) { *out << bad.name; }

const std::string& help() {
  static const std::string text = call({"--help"}, "/").out;
  return text;
}

// Whether this chapter has an option: chapters on text have others than chapters on images.
bool offers(const std::string& option) { return help().find(" " + option + " ") != std::string::npos; }

class CliBadInput : public testing::TestWithParam<Bad> {};

TEST_P(CliBadInput, CostsOneLineAndExitCode64) {
  const TemporaryFolder folder;
  Words arguments = {"--quick"};
  arguments.insert(arguments.end(), GetParam().arguments.begin(), GetParam().arguments.end());
  const Outcome outcome = call(arguments, folder.path());
  EXPECT_EQ(outcome.exit_code, 64) << outcome.err;
  EXPECT_EQ(count_lines(outcome.err), 1u) << outcome.err;
  // Chapters on images and chapters on text have options and models of their own; the others' are refused as unknown.
  const std::string option = GetParam().arguments[0];
  std::string mentions = GetParam().mentions;
  const bool always = option == "--nosuch" || option[0] != '-' || option.find('=') != option.npos;
  if (!always && !offers(option)) mentions = "'" + option + "' is not an option";
  EXPECT_NE(outcome.err.find(mentions), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_TRUE(folder.entries().empty()) << folder.entries().front();
}

INSTANTIATE_TEST_SUITE_P(
    All, CliBadInput,
    testing::Values(
        Bad{"BudgetUnit", {"--budget", "12parsecs"}, "12parsecs"}, Bad{"BudgetZero", {"--budget", "0"}, "0"},
        Bad{"BudgetNegative", {"--budget=-1MiB"}, "-1MiB"},
        Bad{"BudgetHuge", {"--budget", "99999999999TiB"}, "99999999999TiB"},
        Bad{"WorkspaceUnit", {"--workspace", "12parsecs"}, "12parsecs"},
        Bad{"WorkspaceZero", {"--workspace", "0"}, "0"}, Bad{"WorkspaceEmpty", {"--workspace", ""}, "--workspace"},
        Bad{"BatchZero", {"--batch", "0"}, "--batch '0'"}, Bad{"BatchNegative", {"--batch=-3"}, "-3"},
        Bad{"BatchWord", {"--batch", "many"}, "many"}, Bad{"BatchAndMore", {"--batch", "12x"}, "12x"},
        Bad{"DeviceAndMore", {"--device", "0x"}, "0x"},
        Bad{"BatchOverflow", {"--batch", "99999999999999999999"}, "99999999999999999999"},
        Bad{"StepsZero", {"--steps", "0"}, "--steps '0'"}, Bad{"Model", {"--model", "nosuch"}, "nosuch"},
        Bad{"ModelEmpty", {"--model", ""}, "model"}, Bad{"Filter", {"--filter", "("}, "'('"},
        Bad{"FilterMatchesNothing", {"--filter", "^nothing-like-this$"}, "nothing-like-this"},
        Bad{"Device", {"--device", "99"}, "99"}, Bad{"DeviceWord", {"--device", "gpu"}, "gpu"},
        Bad{"Language", {"--lang", "fr"}, "--lang 'fr' is unknown; known: en, zh"},
        Bad{"LanguageEmpty", {"--lang", ""}, "--lang"}, Bad{"DeviceNegative", {"--device=-1"}, "-1"},
        Bad{"Devices", {"--devices", "999"}, "999"},
        Bad{"CardUnknown", {"--card", "rtx-9999", "--plan"}, "--card 'rtx-9999' is unknown; nearest: "},
        Bad{"CardWithoutPlan", {"--card", "t4"}, "--card goes with --plan"},
        Bad{"CardEmpty", {"--card", "", "--plan"}, "--card"}, Bad{"Option", {"--nosuch"}, "--nosuch"},
        Bad{"Argument", {"nosuch"}, "nosuch"}, Bad{"MissingValue", {"--batch"}, "--batch"},
        Bad{"BenchmarkFlag", {"--benchmark_nosuch=1"}, "--benchmark_nosuch"},
        Bad{"BenchmarkFormat", {"--benchmark_format=bogus"}, "bogus"},
        Bad{"BenchmarkFilter", {"--benchmark_filter=("}, "'('"},
        Bad{"BenchmarkFilterMatchesNothing", {"--benchmark_filter=nothing-like-this"}, "nothing-like-this"},
        Bad{"BenchmarkNumber", {"--benchmark_repetitions=abc"}, "abc"},
        Bad{"BenchmarkRepetitionsBelowZero", {"--benchmark_repetitions=-1"}, "-1"},
        Bad{"BenchmarkHalfARepetition", {"--benchmark_repetitions=1.5"}, "1.5"},
        Bad{"BenchmarkTimeThatIsNoNumber", {"--benchmark_min_time=nan"}, "nan"},
        Bad{"BenchmarkOutFolder", {"--benchmark_out=missing/b.json"}, "missing"},
        Bad{"DataEmpty", {"--data", ""}, "--data"}, Bad{"JsonEmpty", {"--json", ""}, "--json"},
        Bad{"FilterEmpty", {"--filter", ""}, "--filter"}, Bad{"LineBreak", {"--model", "a\nb"}, "a\\x0ab"},
        Bad{"SameFileTwice", {"--json", "x", "--trace", "x"}, "'x'"}, Bad{"SeqZero", {"--seq", "0"}, "--seq '0'"},
        Bad{"SeqWord", {"--seq", "long"}, "long"}, Bad{"SeqLongerThanPositions", {"--seq", "100000"}, "100000"},
        Bad{"SeqEmpty", {"--seq", ""}, "--seq"}, Bad{"TextMissing", {"--text", "missing"}, "missing"},
        Bad{"TextFolder", {"--text", "/"}, "'/'"},
        Bad{"TextEmpty", {"--text", "/dev/null"}, "'/dev/null' is a device, not a file"},
        Bad{"TextNoName", {"--text", ""}, "--text"}, Bad{"PrecisionUnknown", {"--precision", "fp12"}, "fp12"},
        Bad{"PrecisionEmpty", {"--precision", ""}, "--precision"},
        Bad{"MicroBatchZero", {"--micro-batch", "0"}, "--micro-batch '0'"},
        Bad{"MicroBatchThatDoesNotDivide", {"--micro-batch", "3", "--batch", "8"}, "--micro-batch"},
        Bad{"MemoryStepsZero", {"--memory-steps", "0"}, "--memory-steps '0'"},
        Bad{"SeriesWithoutJson", {"--series"}, "--json"},
        Bad{"JsonFolder", {"--json", "missing/result.json"}, "missing"}, Bad{"JsonIsFolder", {"--json", "/"}, "folder"},
        Bad{"TraceFolder", {"--trace", "missing/trace.json"}, "missing"},
        Bad{"SnapshotFolder", {"--snapshot", "missing/snapshot.pickle"}, "missing"},
        Bad{"DataFolder", {"--data", "missing"}, "missing"}),
    [](const auto& info) { return std::string(info.param.name); });

// ------------------------------------------------------------------------------------------------- --data

void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

std::string big_endian(std::uint32_t value) {
  return {char(value >> 24), char(value >> 16), char(value >> 8), char(value)};
}

std::string idx_images(std::uint32_t count) {
  return big_endian(2051) + big_endian(count) + big_endian(8) + big_endian(8) + std::string(count * 64, '\x55');
}

std::string idx_labels(std::uint32_t count) {
  std::string text = big_endian(2049) + big_endian(count);
  for (std::uint32_t i = 0; i < count; ++i) text += char(i % 10);
  return text;
}

void expect_data_refused(const std::string& images, const std::string& labels, const char* mentions) {
  const TemporaryFolder folder;
  if (!offers("--data")) GTEST_SKIP() << "no --data";
  const std::string data = folder / "data";
  std::filesystem::create_directory(data);
  if (!images.empty()) write(data + "/images-idx3-ubyte", images);
  if (!labels.empty()) write(data + "/labels-idx1-ubyte", labels);
  const Outcome outcome = call({"--quick", "--data", "data", "--json", "result.json"}, folder.path());
  EXPECT_EQ(outcome.exit_code, 64) << outcome.err;
  EXPECT_EQ(count_lines(outcome.err), 1u) << outcome.err;
  EXPECT_NE(outcome.err.find(mentions), std::string::npos) << outcome.err;
  EXPECT_EQ(folder.entries(), std::vector<std::string>{"data"});
}

TEST(CliData, EmptyFolderIsRefused) { expect_data_refused("", "", "data"); }
TEST(CliData, WrongMagicIsRefused) {
  expect_data_refused("\x01\x02\x03\x04" + idx_images(20).substr(4), idx_labels(20), "magic");
}
TEST(CliData, TruncatedImagesAreRefused) {
  const std::string images = idx_images(20);
  expect_data_refused(images.substr(0, images.size() - 1), idx_labels(20), "images-idx3-ubyte");
}
TEST(CliData, TruncatedHeaderIsRefused) {
  expect_data_refused(idx_images(20).substr(0, 10), idx_labels(20), "images-idx3-ubyte");
}
TEST(CliData, TruncatedLabelsAreRefused) {
  expect_data_refused(idx_images(20), idx_labels(20).substr(0, 20), "labels-idx1-ubyte");
}
TEST(CliData, DifferentCountsAreRefused) { expect_data_refused(idx_images(20), idx_labels(19), "19"); }

TEST(CliRuns, AValidFolderIsUsed) {
  if (!offers("--data")) GTEST_SKIP() << "no --data";
  const TemporaryFolder folder;
  write(folder / "images-idx3-ubyte", idx_images(20));
  write(folder / "labels-idx1-ubyte", idx_labels(20));
  const Outcome outcome = run_process(program(), {"--quick", "--steps", "1", "--data", folder.path()}, folder.path());
  if (outcome.exit_code == 2) GTEST_SKIP() << outcome.err;
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

// ---------------------------------------------------------------------------------------------------------- --text

TEST(CliText, TextShorterThanOneSequenceIsRefused) {
  if (!offers("--text")) GTEST_SKIP() << "no --text";
  const TemporaryFolder folder;
  write(folder / "short", "tiny");
  const Outcome outcome = call({"--quick", "--text", "short", "--json", "result.json"}, folder.path());
  EXPECT_EQ(outcome.exit_code, 64) << outcome.err;
  EXPECT_EQ(count_lines(outcome.err), 1u) << outcome.err;
  EXPECT_NE(outcome.err.find("'short' has 4 bytes"), std::string::npos) << outcome.err;
  EXPECT_EQ(folder.entries(), std::vector<std::string>{"short"});
}

// Bytes are tokens, so any file is a text.
TEST(CliRuns, BytesThatAreNotUtf8AreUsed) {
  if (!offers("--text")) GTEST_SKIP() << "no --text";
  const TemporaryFolder folder;
  std::string bytes;
  for (int i = 0; i < 4096; ++i) bytes += static_cast<char>(i * 151 >> 3);
  write(folder / "bytes", bytes);
  const Outcome outcome = run_process(program(), {"--quick", "--steps", "1", "--text", "bytes"}, folder.path());
  if (outcome.exit_code == 2) GTEST_SKIP() << outcome.err;
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

// ------------------------------------------------------------------------------------------------------- what is run

TEST(CliRuns, AMachineThatCannotBeCostsOneLine) {
  const TemporaryFolder folder;
  (void)run_process(program(), {"--quick", "--plan", "--json", "result.json"}, folder.path());
  if (read_json(read_text(folder / "result.json"))["system"]["backend"] != "host")
    GTEST_SKIP() << "the host runtime's settings";
  for (const char* setting : {"OOMLAB_HOST_MEMORY=lots", "OOMLAB_HOST_DEVICES=0", "OOMLAB_HOST_STREAMS=sometimes",
                              "OMP_NUM_THREADS=100000", "OMP_STACKSIZE=64k"}) {
    const Outcome outcome =
        run_process(program(), {"--quick"}, folder.path(), [&] { putenv(const_cast<char*>(setting)); });
    EXPECT_EQ(outcome.exit_code, 64) << setting;
    EXPECT_EQ(count_lines(outcome.err), 1u) << outcome.err;
    EXPECT_NE(outcome.err.find(std::string(setting).substr(std::string(setting).find('=') + 1)), std::string::npos)
        << outcome.err;
  }
}

TEST(CliRuns, AFullDeviceIsReported) {
  const TemporaryFolder folder;
  for (const char* option : {"--json", "--trace", "--snapshot"}) {
    const Outcome outcome =
        run_process(program(), {"--quick", "--plan", "--quiet", option, "/dev/full"}, folder.path());
    if (outcome.exit_code == 2) GTEST_SKIP() << outcome.err;
    EXPECT_EQ(outcome.exit_code, 1) << option << " " << outcome.err;
    EXPECT_NE(outcome.err.find("/dev/full"), std::string::npos) << outcome.err;
  }
}

TEST(CliRuns, AFullStandardOutputIsReported) {
  const TemporaryFolder folder;
  for (const char* option : {"--plan", "--help", "--list"}) {
    const Outcome outcome =
        run_process("/bin/sh", {"-c", "exec \"$0\" --quick \"$1\" >/dev/full", program(), option}, folder.path());
    if (outcome.exit_code == 2) GTEST_SKIP() << outcome.err;
    EXPECT_EQ(outcome.exit_code, 1) << option << " " << outcome.err;
    EXPECT_NE(outcome.err.find("writ"), std::string::npos) << outcome.err;
  }
}

TEST(Cli, HelpListVersion) {
  const TemporaryFolder folder;
  const Outcome help = call({"--help"}, folder.path());
  EXPECT_EQ(help.exit_code, 0);
  for (const char* option :
       {"--budget", "--device", "--devices", "--model", "--batch", "--steps", "--quick", "--plan", "--list", "--filter",
        "--json", "--trace", "--snapshot", "--quiet", "--no-claims", "--help", "--watch", "--series", "--memory-steps"})
    EXPECT_NE(help.out.find(option), std::string::npos) << option;
  const Outcome list = call({"--list"}, folder.path());
  EXPECT_EQ(list.exit_code, 0) << list.err;
  EXPECT_NE(list.out.find("(baseline)"), std::string::npos);
  EXPECT_EQ(call({"--version"}, folder.path()).exit_code, 0);
}

TEST(CliRuns, APlanShowsTheLeastTimesOfACard) {
  const TemporaryFolder folder;
  std::vector<json> plans;
  for (const char* card : {"Tesla T4", "h100"}) {
    const Outcome outcome =
        run_process(program(), {"--quick", "--plan", "--card", card, "--json", "plan.json"}, folder.path());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_NE(outcome.out.find("\nleast time of a step"), std::string::npos) << outcome.out;
    plans.push_back(read_json(read_text(folder / "plan.json"))["variants"]);
  }
  std::size_t known = 0;
  for (std::size_t i = 0; i < plans[0].size(); ++i) {
    ASSERT_EQ(plans[0][i].contains("flops"), plans[1][i].contains("flops"));
    if (!plans[0][i].contains("flops")) continue;
    ++known;
    EXPECT_EQ(plans[0][i]["flops"], plans[1][i]["flops"]);
    EXPECT_EQ(plans[1][i]["least_time"]["card"], "h100-sxm");
    // So small a model stays in either card's cache: FP32 operations at 8.1 and 67 TFLOP/s.
    EXPECT_NEAR(plans[0][i]["least_time"]["seconds"].get<double>() / plans[1][i]["least_time"]["seconds"].get<double>(),
                67 / 8.1, 1e-9);
  }
  EXPECT_GT(known, 0u);
}

TEST(CliRuns, QuietSaysNothing) {
  const TemporaryFolder folder;
  const Outcome quiet = run_process(program(), {"--quick", "--steps", "1", "--quiet"}, folder.path());
  if (quiet.exit_code == 2) GTEST_SKIP() << quiet.err;
  EXPECT_EQ(quiet.exit_code, 0);
  EXPECT_EQ(quiet.out + quiet.err, "");
  EXPECT_TRUE(folder.entries().empty());
}

TEST(CliRuns, AnyBudgetGivesATableNotACrash) {
  const TemporaryFolder folder;
  // What no variant begins with is in EndToEnd.PlansAndBudgets, of every chapter.
  for (const char* budget : {"8MiB", "8389120B", "9MiB", "1TiB"}) {
    const Outcome outcome = run_process(program(), {"--quick", "--steps", "1", "--budget", budget}, folder.path());
    if (outcome.exit_code == 2) GTEST_SKIP() << outcome.err;
    EXPECT_EQ(outcome.exit_code, 0) << budget << ": " << outcome.err;
  }
}

TEST(CliRuns, DeviceAutoAndBenchmarkFlagsWork) {
  const TemporaryFolder folder;
  const Outcome automatic = run_process(program(), {"--quick", "--steps", "1", "--device", "auto"}, folder.path());
  if (automatic.exit_code == 2) GTEST_SKIP() << automatic.err;
  EXPECT_EQ(automatic.exit_code, 0) << automatic.err;
  EXPECT_NE(automatic.err.find("most free memory"), std::string::npos) << automatic.err;
  const Outcome flags =
      run_process(program(), {"--quick", "--steps", "2", "--benchmark_out=bench.json"}, folder.path());
  EXPECT_EQ(flags.exit_code, 0) << flags.err;
  EXPECT_TRUE(read_json(read_text(folder / "bench.json")).contains("benchmarks"));
}

}  // namespace
