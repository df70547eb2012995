#pragma once
// Running a chapter as its users do: as a process.

#include <sys/resource.h>

#include <functional>
#include <string>
#include <vector>

namespace oomlab::test {

struct Outcome {
  int exit_code = -1;  ///< 128 + signal when killed by one
  std::string out, err;
  long peak_rss_kib = 0;
};

/// Runs `program` with arguments in `folder`, to its end. `in_child` runs between fork and exec (limits);
/// `while_running(pid)` runs in the parent (signals).
Outcome run_process(const std::string& program, const std::vector<std::string>& arguments, const std::string& folder,
                    const std::function<void()>& in_child = {}, const std::function<void(pid_t)>& while_running = {});

/// The chapter under test (from the environment that CMake sets).
std::string program();
std::string source_folder();
std::string chapter_folder();
/// A sanitizer or check build: times and memory mean nothing, large runs take too long.
bool slow_build();
/// True in check mode with ThreadSanitizer, a hundred times slower: tests take fewer rounds there.
bool slowest_build();

/// A fresh empty folder, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  /// Names of everything in it.
  std::vector<std::string> entries() const;

 private:
  std::string path_;
};

/// The option with which a run times one variant only, for tests that ask for no time.
std::string timing_only(const std::string& variant);

std::string read_text(const std::string& path);
std::size_t count_lines(const std::string& text);

}  // namespace oomlab::test
