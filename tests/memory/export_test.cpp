// What is written is judged by check_snapshot.py and check_trace.py, readers that share no code with the
// writers.

#include "memory/export.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "blocks.h"
#include "memory/files.h"
#include "plan/text.h"

namespace oomlab {
namespace {

namespace fs = std::filesystem;

// What was there when this was built, unless the environment names another: this program may run on another machine.
std::string place(const char* variable, const char* built_with) {
  const char* const named = std::getenv(variable);
  return named && *named ? named : built_with;
}

class Export : public ::testing::Test {
 protected:
  Export() {
    std::string name = (fs::temp_directory_path() / "oomlab_export_XXXXXX").string();
    if (!::mkdtemp(name.data())) throw std::system_error(errno, std::generic_category(), name);
    folder_ = name;
  }
  ~Export() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream contents;
    contents << file.rdbuf();
    return contents.str();
  }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  // Exit status of a checker on `contents`; what it said is in said_.
  int check(const std::string& script, const std::string& contents, const std::string& arguments = "") {
    write_file(path("checked"), contents);
    const std::string command = "\"" + place("OOMLAB_PYTHON", OOMLAB_PYTHON) + "\" -B \"" +
                                place("OOMLAB_CHECKERS", OOMLAB_CHECKERS) + "/" + script + "\" \"" + path("checked") +
                                "\" " + arguments + " > \"" + path("said") + "\" 2>&1";
    const int status = std::system(command.c_str());
    said_ = read(path("said"));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  int check_snapshot(const std::string& contents, const std::string& arguments = "") {
    return check("check_snapshot.py", contents, arguments);
  }
  int check_trace(const std::string& contents, const std::string& arguments = "") {
    return check("check_trace.py", contents, arguments);
  }

  fs::path folder_;
  std::string said_;
};

// A small training step that ends with parameters live and one refused allocation.
void run_step(Ledger& ledger) {
  ledger.charge(address(1), 1000, 1024, Category::parameters, "weight");
  const Phase step(ledger, "step");
  {
    const Phase forward(ledger, "forward");
    ledger.charge(address(2), 4096, 4096, Category::activations, "hidden");
    ledger.charge(address(5'000), 2 << 20, 2 << 20, Category::activations, "attention \"scores\" \\ \n \x01 é");
  }
  {
    const Phase backward(ledger, "backward");
    ledger.note_reserved(64 << 20, 70 << 20);
    ledger.charge(address(3), 999, 1024, Category::gradients, "weight");
    ledger.note_out_of_memory(1 << 20, 1 << 20, Category::workspace, "scratch", std::size_t(5) << 30);
    ledger.release(address(2));
    ledger.release(address(5'000));
  }
  ledger.charge(address(2), 512, 512, Category::optimizer, "moment");  // an address used again
  ledger.release(address(3));
}
constexpr std::size_t kStepPeak = 1024 + 4096 + (2 << 20) + 1024;
constexpr std::size_t kStepLive = 1024 + 512;

std::string expect(std::size_t peak, std::size_t live, int ooms) {
  return "--peak " + std::to_string(peak) + " --live " + std::to_string(live) + " --ooms " + std::to_string(ooms);
}

// ------------------------------------------------------------------------------------------------------------ snapshot

TEST_F(Export, SnapshotReplaysToTheLedger) {
  Ledger ledger;
  ledger.record_timeline(true);
  run_step(ledger);
  ASSERT_EQ(ledger.peak_bytes(), kStepPeak);
  const std::string snapshot = memory_snapshot(ledger, 0, "01_batch");
  EXPECT_EQ(check_snapshot(snapshot, expect(kStepPeak, kStepLive, 1) +
                                         " --frame hidden --frame backward --frame step --frame scratch"),
            0)
      << said_;
}

TEST_F(Export, SnapshotOfAnotherDevice) {
  Ledger ledger;
  ledger.record_timeline(true);
  run_step(ledger);
  EXPECT_EQ(check_snapshot(memory_snapshot(ledger, 3, "p"), expect(kStepPeak, kStepLive, 1)), 0) << said_;
}

TEST_F(Export, SnapshotOfNothing) {
  EXPECT_EQ(check_snapshot(memory_snapshot(Ledger(), 0, "p"), expect(0, 0, 0)), 0) << said_;
}

TEST_F(Export, SnapshotWithoutTimelineHasWhatIsLive) {
  Ledger ledger;
  run_step(ledger);
  EXPECT_EQ(check_snapshot(memory_snapshot(ledger, 0, "p"), expect(0, kStepLive, 0) + " --frame moment"), 0) << said_;
}

TEST_F(Export, SnapshotOfATimelineBegunLate) {
  Ledger ledger;
  ledger.charge(address(9), 4096, 4096, Category::data, "images");
  const Phase phase(ledger, "epoch");
  ledger.record_timeline(true);
  run_step(ledger);
  ledger.release(address(9));
  EXPECT_EQ(check_snapshot(memory_snapshot(ledger, 0, "p"), expect(kStepPeak + 4096, kStepLive, 1) + " --frame epoch"),
            0)
      << said_;
}

TEST_F(Export, SnapshotInBatches) {
  Ledger ledger;
  ledger.record_timeline(true);
  for (std::uintptr_t i = 1; i <= 2500; ++i) ledger.charge(address(i), 512, 512, Category::data, "row");
  for (std::uintptr_t i = 1; i <= 1000; ++i) ledger.release(address(i));
  EXPECT_EQ(check_snapshot(memory_snapshot(ledger, 0, "p"), expect(2500 * 512, 1500 * 512, 0)), 0) << said_;
}

TEST_F(Export, SnapshotOfPlannedSizes) {
  // What a planned run of a very large model holds: addresses and sizes near every edge of the integer
  // encodings.
  Ledger ledger;
  ledger.record_timeline(true);
  std::uintptr_t at = 512;
  std::size_t total = 0;
  for (const int bits : {9, 15, 16, 30, 31, 32, 39, 40, 47, 48, 55, 56, 60}) {
    const std::size_t bytes = std::size_t(1) << bits;
    ledger.charge(reinterpret_cast<const void*>(at), bytes, bytes, Category::parameters, "planned");
    at += bytes;
    total += bytes;
  }
  ledger.charge(reinterpret_cast<const void*>(std::uintptr_t(1) << 62), 512, 512, Category::parameters, "far");
  ledger.note_out_of_memory(1, 512, Category::data, "x", kUnlimited);
  EXPECT_EQ(check_snapshot(memory_snapshot(ledger, 0, "p"), expect(total + 512, total + 512, 1)), 0) << said_;
}

TEST_F(Export, SnapshotOfBadText) {
  Ledger ledger;
  ledger.record_timeline(true);
  ledger.charge(address(1), 512, 512, Category::data, "\xff\xfe\xc3(\xed\xa0\x80 ok \xe2\x82");
  EXPECT_EQ(check_snapshot(memory_snapshot(ledger, 0, "\x80"), "--frame '?\?\?(?\?\? ok ?\?'"), 0) << said_;
  EXPECT_EQ(check_trace(chrome_trace(ledger, 0, "\x80"), "--peak 512"), 0) << said_;
}

TEST_F(Export, ACharacterThatIsCutOffIsNotReadBeyondTheEnd) {
  for (const std::vector<char>& cut : {std::vector<char>{'\xc3'}, {'\xe2', '\x82'}, {'\xf0', '\x9f', '\x98'}})
    EXPECT_EQ(clean_utf8({cut.data(), cut.size()}), std::string(cut.size(), '?'));
}

TEST_F(Export, TheSnapshotCheckerRefusesWhatIsWrong) {
  Ledger ledger;
  ledger.record_timeline(true);
  run_step(ledger);
  const std::string good = memory_snapshot(ledger, 0, "p");
  EXPECT_EQ(check_snapshot(good, "--peak 1"), 1);
  EXPECT_EQ(check_snapshot(good, "--live 1"), 1);
  EXPECT_EQ(check_snapshot(good, "--frame nobody"), 1);
  EXPECT_EQ(check_snapshot(""), 1);
  EXPECT_EQ(check_snapshot(good + "x"), 1);
  EXPECT_EQ(check_snapshot(good.substr(0, good.size() - 1)), 1);
  EXPECT_EQ(check_snapshot(std::string("\x80\x02") + "cos\nsystem\n."), 1) << "a global";
  EXPECT_NE(said_.find("not one that every reader knows"), std::string::npos) << said_;
  const auto with = [&](const std::string& what, const std::string& instead) {
    std::string changed = good;
    const std::size_t at = changed.rfind(what);
    EXPECT_NE(at, std::string::npos);
    return changed.replace(at, what.size(), instead);
  };
  EXPECT_EQ(check_snapshot(with("segment_type", "segment_typo")), 1);
  EXPECT_EQ(check_snapshot(with("active_allocated", "active_allocatee")), 1);
  EXPECT_EQ(check_snapshot(with("segment_free", "segment_frei")), 1);
  // The size of a block in a segment, one granule more: blocks no longer tile.
  const std::string size_512 = std::string("sizeJ") + '\0' + '\x02' + '\0' + '\0';
  const std::string size_1024 = std::string("sizeJ") + '\0' + '\x04' + '\0' + '\0';
  EXPECT_EQ(check_snapshot(with(size_512, size_1024)), 1) << said_;
  EXPECT_EQ(check_snapshot(with("free_completed", "free_requested")), 1);
}

// --------------------------------------------------------------------------------------------------------------- trace

TEST_F(Export, TraceHasThePeakAndThePhases) {
  Ledger ledger;
  ledger.record_timeline(true);
  run_step(ledger);
  const std::string trace = chrome_trace(ledger, 0, "01_batch \"plain\"");
  EXPECT_EQ(check_trace(trace, "--peak " + std::to_string(kStepPeak) +
                                   " --ooms 1 --phase step --phase forward --phase backward"),
            0)
      << said_;
  EXPECT_NE(trace.find("\"gpu0 memory\""), std::string::npos);
  EXPECT_NE(trace.find("\"reserved\":67108864"), std::string::npos);
}

TEST_F(Export, TraceLeavesOutWhatIsNotKnown) {
  Ledger ledger;
  ledger.record_timeline(true);
  ledger.charge(address(1), 512, 512, Category::data, "row");
  const std::string trace = chrome_trace(ledger, 2, "p");
  EXPECT_EQ(check_trace(trace, "--peak 512"), 0) << said_;
  EXPECT_EQ(trace.find("reserved"), std::string::npos);
  EXPECT_NE(trace.find("\"gpu2 memory\""), std::string::npos);
}

TEST_F(Export, TraceOfNothingAndOfOpenPhases) {
  EXPECT_EQ(check_trace(chrome_trace(Ledger(), 0, "p"), "--peak 0 --ooms 0"), 0) << said_;
  Ledger ledger;
  ledger.record_timeline(true);
  const Phase outer(ledger, "outer");
  const Phase inner(ledger, "inner");
  ledger.charge(address(1), 512, 512, Category::data, "row");
  EXPECT_EQ(check_trace(chrome_trace(ledger, 0, "p"), "--peak 512 --phase outer --phase inner"), 0) << said_;
}

TEST_F(Export, TheTraceCheckerRefusesWhatIsWrong) {
  Ledger ledger;
  ledger.record_timeline(true);
  run_step(ledger);
  const std::string good = chrome_trace(ledger, 0, "p");
  EXPECT_EQ(check_trace(good), 0) << said_;
  EXPECT_EQ(check_trace(good, "--peak 1"), 1);
  EXPECT_EQ(check_trace(good, "--phase nobody"), 1);
  EXPECT_EQ(check_trace(good.substr(0, good.size() / 2)), 1);
  const auto with = [&](const std::string& what, const std::string& instead) {
    std::string changed = good;
    const std::size_t at = changed.find(what);
    EXPECT_NE(at, std::string::npos);
    return changed.replace(at, what.size(), instead);
  };
  EXPECT_EQ(check_trace(with("\"allocated\":1024", "\"allocated\":\"1024\"")), 1);
  EXPECT_EQ(check_trace(with("\"allocated\":1024", "\"allocated\":1025")), 1);
  EXPECT_EQ(check_trace(with("\"allocated\":1024", "\"allocated\":NaN")), 1);
  EXPECT_EQ(check_trace(with("\"ph\":\"X\"", "\"ph\":\"Y\"")), 1);
  EXPECT_EQ(check_trace(with("\"dur\":", "\"dur\":-")), 1);
  EXPECT_EQ(check_trace(R"({"traceEvents":[
    {"ph":"X","name":"a","pid":1,"tid":1,"ts":0,"dur":10},{"ph":"X","name":"b","pid":1,"tid":1,"ts":5,"dur":10}]})"),
            1);
  EXPECT_EQ(check_trace(R"({"traceEvents":[
    {"ph":"C","name":"a","pid":1,"ts":5,"args":{"x":1}},{"ph":"C","name":"a","pid":1,"ts":4,"args":{"x":1}}]})"),
            1);
}

// ------------------------------------------------------------------------------------------------------
// write_file

TEST_F(Export, WritesAndReplacesWholeFiles) {
  const std::string contents("a\0b\n", 4);
  write_file(path("f"), contents);
  EXPECT_EQ(read(path("f")), contents);
  write_file(path("f"), "");
  EXPECT_EQ(read(path("f")), "");
  const std::string large(5'000'000, 'x');
  write_file(path("f"), large);
  EXPECT_EQ(read(path("f")), large);
  EXPECT_EQ(files(), 1u) << "the temporary file stayed";
}

TEST_F(Export, NamesThePathThatCannotBeWritten) {
  for (const std::string& bad : {path("missing/f"), path(""), folder_.string(), std::string()}) {
    try {
      write_file(bad, "x");
      ADD_FAILURE() << "wrote '" << bad << "'";
    } catch (const std::system_error& error) {
      EXPECT_NE(std::string(error.what()).find("cannot write '" + bad + "'"), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(files(), 0u);
}

TEST_F(Export, FollowsASymbolicLink) {
  write_file(path("file"), "old");
  fs::create_symlink("file", path("link"));
  write_file(path("link"), "new");
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(read(path("file")), "new");
  EXPECT_EQ(files(), 2u);
}

TEST_F(Export, AFullDeviceIsAnError) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  try {
    write_file("/dev/full", "x");
    FAIL();
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code().value(), ENOSPC);
    EXPECT_NE(std::string(error.what()).find("/dev/full"), std::string::npos);
  }
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
  write_file("/dev/null", "x");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(Export, AnInterruptedWriteLeavesTheOldFileAndNothingElse) {
  write_file(path("f"), "old");
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit small = before;
  small.rlim_cur = 4096;  // a disk that is full after one page
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  int code = 0;
  try {
    write_file(path("f"), std::string(100'000, 'x'));
  } catch (const std::system_error& error) {
    code = error.code().value();
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(code, EFBIG);
  EXPECT_EQ(read(path("f")), "old");
  EXPECT_EQ(files(), 1u);
}

TEST_F(Export, StandardOutputIsContinuedNotReplaced) {
  const std::string redirected = path("out");
  const ::pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (!std::freopen(redirected.c_str(), "w", stdout)) ::_exit(1);
    std::printf("before\n");
    try {
      write_file("/dev/stdout", "contents\n");
    } catch (...) {
      ::_exit(2);
    }
    std::printf("after\n");
    std::fflush(stdout);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read(redirected), "before\ncontents\nafter\n");
}

}  // namespace
}  // namespace oomlab
