#include "process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace oomlab::test {
namespace {

// OOMLAB_UNDER_TEST=program|chapter folder|source folder|fast or slow
std::string under_test(std::size_t part) {
  const char* value = std::getenv("OOMLAB_UNDER_TEST");
  std::istringstream parts(value ? value : "");
  std::string text;
  for (std::size_t i = 0; i <= part; ++i)
    if (!std::getline(parts, text, '|'))
      throw std::runtime_error("OOMLAB_UNDER_TEST is not set: run this through ctest");
  return text;
}

}  // namespace

std::string program() { return under_test(0); }
std::string source_folder() { return under_test(2); }
std::string chapter_folder() { return under_test(1); }
bool slow_build() { return under_test(3) != "fast"; }
bool slowest_build() { return under_test(3) == "slowest"; }

Outcome run_process(const std::string& program, const std::vector<std::string>& arguments, const std::string& folder,
                    const std::function<void()>& in_child, const std::function<void(pid_t)>& while_running) {
  const TemporaryFolder streams;
  const std::string out = streams / "out", err = streams / "err";
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);

  const pid_t pid = fork();
  if (pid < 0) throw std::runtime_error("fork failed");
  if (pid == 0) {
    const int out_file = open(out.c_str(), O_WRONLY | O_CREAT, 0600),
              err_file = open(err.c_str(), O_WRONLY | O_CREAT, 0600);
    if (out_file < 0 || err_file < 0 || dup2(out_file, 1) < 0 || dup2(err_file, 2) < 0 || chdir(folder.c_str()) != 0)
      _exit(126);
    signal(SIGINT, SIG_DFL);  // a shell's background job, which the tests may be, is started with Ctrl-C ignored, and so is what it starts
    if (in_child) in_child();
    execvp(program.c_str(), argv.data());
    _exit(127);
  }
  if (while_running) while_running(pid);
  int status = 0;
  rusage usage{};
  if (wait4(pid, &status, 0, &usage) != pid) throw std::runtime_error("wait4 failed");
  Outcome outcome;
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.peak_rss_kib = usage.ru_maxrss;
  outcome.out = read_text(out);
  outcome.err = read_text(err);
  return outcome;
}

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "oomlab.XXXXXX").string();
  if (!mkdtemp(name.data())) throw std::runtime_error("mkdtemp failed");
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::vector<std::string> TemporaryFolder::entries() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path_))
    names.push_back(entry.path().filename().string());
  return names;
}

std::string timing_only(const std::string& variant) {
  std::string pattern = variant;
  std::ranges::replace_if(
      pattern, [](unsigned char c) { return !std::isalnum(c); }, '.');
  return "--benchmark_filter=" + pattern;
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::size_t count_lines(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace oomlab::test
