// The fault sweep: a whole chapter run with one fallible call made to fail, for every such call.
//
// Fallible are all calls into the CUDA runtime and cuBLAS (the host runtime's fault seam), operator new, and the file
// operations behind result files. For k = 1, 2, … the chapter runs at --quick with call k failing (mode once) or call k
// and all later ones (mode from), until k is beyond the last call. After each run:
//   1. it ended in a documented way: a typed one-line error and exit code 1 (64 for a file that cannot be written, 2
//      when no variant could run); or exit code 0 with out-of-memory rows for the allocation that failed, or with the
//      same results when only giving back had failed, which is reported. No rank waited for one that has failed until
//      its patience was over;
//   2. nothing leaked: device bytes, streams, events, handles, pools, host bytes, temporary files; and the last CUDA
//      error is clear;
//   3. the chapter, run again without a fault, gives bit-identical results (after every eighth fault).
//
//   --mode once|from   --device n (only calls of threads with this current device: of rank n)   --sites n (about n
//   values of k, spread over all; without: every k)   --paths yes (of each path to a call, by the functions on the
//   stack, the first and the last k)   --program NAME
//   --replay k (one k, talkative)   -- OPTIONS of the chapter

#include <fcntl.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "../faults/operator_new.h"
#include "call_paths.h"
#include "oomlab_host.h"
#include "read_json.h"

// Linked with --wrap=main: the program begins in __wrap_main(), and __real_main() is the chapter's main().
extern "C" int __real_main(int argc, char** argv);

// ------------------------------------------------------------------------------------------------- fallible file calls

// Linked with --wrap: the calls behind write_file() in this program come here.
extern "C" {
int __real_open(const char* path, int flags, ...);
ssize_t __real_write(int file, const void* bytes, size_t count);
int __real_close(int file);
int __real_rename(const char* from, const char* to);

namespace {
bool file_fault(const char* call, int error) {
  if (oomlab::host::inside_runtime() || !oomlab::host::fault_point(call)) return false;
  errno = error;
  return true;
}
}  // namespace

int __wrap_open(const char* path, int flags, ...) {
  std::va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  return file_fault("open", EACCES) ? -1 : __real_open(path, flags, mode);
}
ssize_t __wrap_write(int file, const void* bytes, size_t count) {
  return file_fault("write", ENOSPC) ? -1 : __real_write(file, bytes, count);
}
int __wrap_close(int file) {
  const int result = __real_close(file);  // closed it is, whatever it says
  return file_fault("close", EIO) ? -1 : result;
}
int __wrap_rename(const char* from, const char* to) { return file_fault("rename", EIO) ? -1 : __real_rename(from, to); }
}

namespace {

namespace host = oomlab::host;
using nlohmann::json;
using oomlab::test::CallPaths;
using oomlab::test::host_heap_bytes;
using oomlab::test::read_json;

// A fault that ends the process must not end it without a word: say which one, and what the chapter said last.
int terminal = 2, captured_errors = -1;
void on_abort(int) {
  char text[4096];
  const int length = std::snprintf(text, sizeof text, "aborted after a failed %s; calls seen: %llu\n",
                                   host::fault_site(), static_cast<unsigned long long>(host::fault_calls()));
  ssize_t done = write(terminal, text, static_cast<std::size_t>(length));
  const ssize_t said = captured_errors < 0 ? 0 : pread(captured_errors, text, sizeof text, 0);
  if (said > 0) done = write(terminal, text, static_cast<std::size_t>(said));
  std::_Exit(done < 0 ? 3 : 1);
}

// stdout and stderr of the chapter go into memory while it runs.
class Capture {
 public:
  Capture() {
    std::fflush(nullptr);
    for (int fd : {1, 2}) {
      saved_[fd] = dup(fd);
      memory_[fd] = memfd_create("capture", 0);
      dup2(memory_[fd], fd);
    }
    captured_errors = memory_[2];
  }
  ~Capture() { stop(); }
  void stop() {
    if (stopped_) return;
    stopped_ = true;
    std::fflush(nullptr);
    for (int fd : {1, 2}) {
      dup2(saved_[fd], fd);
      close(saved_[fd]);
    }
  }
  std::string text(int fd) {
    stop();
    std::string result(static_cast<std::size_t>(lseek(memory_[fd], 0, SEEK_END)), '\0');
    const ssize_t got = pread(memory_[fd], result.data(), result.size(), 0);
    result.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
    return result;
  }
  void close_files() {
    stop();
    captured_errors = -1;
    close(memory_[1]);
    close(memory_[2]);
  }

 private:
  int saved_[3] = {}, memory_[3] = {};
  bool stopped_ = false;
};

struct Run {
  int exit_code = 0;
  std::string out, err;
  std::string files[3];  // json, trace, snapshot; empty when absent
};

struct Sweep {
  std::string program, folder;
  std::vector<std::string> words, more;  ///< of the command line; those of them that were given after "--"
  int device = -1;                       // whose calls fail; -1: everybody's

  /// Call number k fails; 0: none.
  Run run(std::uint64_t k = 0, bool from = false) const {
    Run result;
    std::vector<std::string> copy = words;  // argv may be written to
    std::vector<char*> argv;
    for (std::string& word : copy) argv.push_back(word.data());
    argv.push_back(nullptr);
    for (const char* name : {"result.json", "trace.json", "snapshot.pickle"}) unlink((folder + "/" + name).c_str());
    Capture capture;
    if (k > 0) host::arm_fault(k, from, device);  // only the chapter's own calls count
    result.exit_code = __real_main(static_cast<int>(argv.size()) - 1, argv.data());
    host::disarm_fault();
    capture.stop();
    result.out = capture.text(1);
    result.err = capture.text(2);
    capture.close_files();
    int i = 0;
    for (const char* name : {"result.json", "trace.json", "snapshot.pickle"}) {
      std::ifstream file(folder + "/" + name, std::ios::binary);
      std::ostringstream text;
      text << file.rdbuf();
      result.files[i++] = text.str();
    }
    return result;
  }
};

// Everything in a result that must be the same in every run: all but times.
json deterministic(const std::string& text) {
  json result = read_json(text);
  for (json& variant : result["variants"]) variant.erase("throughput");
  for (json& claim : result["claims"])
    if (claim["about"] == "time") {
      claim.erase("measured");
      claim.erase("verdict");
    }
  return result;
}

bool has_line_with(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words)
    if (text.find(word) != std::string::npos) return true;
  return false;
}

// What a string holds on the heap, as host_heap_bytes() counts it.
long long heap_bytes(const std::string& text) {
  const bool inside =
      text.data() >= reinterpret_cast<const char*>(&text) && text.data() < reinterpret_cast<const char*>(&text + 1);
  return inside ? 0 : static_cast<long long>(malloc_usable_size(const_cast<char*>(text.data())));
}

// The lines that speak of out-of-memory. A failed allocation may show up as a result, as documented; then these lines
// are not those of the clean run.
std::vector<std::string> oom_lines(const Run& run) {
  std::vector<std::string> lines;
  std::istringstream text(run.out + run.err);
  for (std::string line; std::getline(text, line);)
    if (line.find("OOM") != std::string::npos || line.find("out of memory") != std::string::npos) lines.push_back(line);
  return lines;
}

std::string judge(const Run& run, const Run& clean, const json& reference) {
  if (run.exit_code == 1) {
    if (!has_line_with(run.err, {"cudaError", "CUBLAS_STATUS_", "out of host memory", "CUDA out of memory",
                                 "cannot write", "cannot be written", "failed"}))
      return "exit code 1 without a typed error: " + run.err;
    return "";
  }
  // Looking whether there can be a file fails before the run begins; and where no variant could run, none was measured.
  if (run.exit_code == 64 && has_line_with(run.err, {"cannot be written"})) return "";
  if (run.exit_code == 2 && has_line_with(run.err, {"no variant can run here: "})) return "";
  if (run.exit_code != 0) return "exit code " + std::to_string(run.exit_code) + ": " + run.err;
  if (run.files[0].empty()) return "exit code 0, but no result file";
  if (deterministic(run.files[0]) == reference) return "";
  if (oom_lines(run) == oom_lines(clean)) return "exit code 0, but other results";
  // An out-of-memory that the clean run does not have, as documented. What it did not touch must be as ever.
  const json result = deterministic(run.files[0]);
  for (std::size_t i = 0; i < reference["variants"].size(); ++i) {
    const json &is = result["variants"][i], &was = reference["variants"][i];
    if (is["outcome"] != was["outcome"] || is["reason"] != was["reason"]) continue;
    for (const char* key : {"peak_allocated_bytes", "by_category_bytes", "predicted_bytes", "oom"})
      if (is.value(key, json()) != was.value(key, json()))
        return "variant " + is["name"].get<std::string>() + " has other " + key;
    for (const char* key : {"figures", "fingerprint"})
      if (is["numerics"][key] != was["numerics"][key])
        return "variant " + is["name"].get<std::string>() + " has other " + key;
  }
  return "";
}

constexpr std::size_t kFaultsARetry = 8;

// A step that takes about `sites` steps to `calls`; a prime, so that it does not keep time with a training loop.
std::uint64_t stride_for(std::uint64_t calls, std::uint64_t sites) {
  const auto is_prime = [](std::uint64_t n) {
    for (std::uint64_t d = 2; d * d <= n; ++d)
      if (n % d == 0) return false;
    return true;
  };
  std::uint64_t stride = sites ? std::max<std::uint64_t>(1, calls / sites) : 1;
  while (!is_prime(stride)) ++stride;
  return stride;
}

struct Options {
  bool from = false;        ///< the k-th call and all later ones fail
  std::uint64_t sites = 0;  ///< about so many values of k; 0: every k
  bool paths = false;       ///< or the first and the last of each path
  std::uint64_t replay = 0;
  bool quiet = false;  ///< of a replay: only the exit code tells
};

// A whole run without a fault must still be as it ever was.
std::string judge_clean(const Run& run, const json& reference) {
  if (run.exit_code != 0)
    return "a run without a fault ends with exit code " + std::to_string(run.exit_code) + ": " + run.err;
  if (deterministic(run.files[0]) != reference) return "a run without a fault has other results";
  return "";
}

// The command that makes only call k fail.
std::string replay_command(const Sweep& chapter, const Options& options, std::uint64_t k, const char* more = "") {
  std::string command = std::filesystem::read_symlink("/proc/self/exe").string() + " --program " + chapter.program +
                        " --mode " + (options.from ? "from" : "once") + " --replay " + std::to_string(k) + more;
  if (chapter.device >= 0) command += " --device " + std::to_string(chapter.device);
  if (!chapter.more.empty()) command += " --";
  for (const std::string& word : chapter.more) command += " '" + word + "'";
  return command;
}

int sweep(const Sweep& chapter, const Options& options) {
  // A first run fills caches that live as long as the process (locales, flags, kernels and buffers of the products'
  // library).
  (void)chapter.run();
  std::vector<std::uint64_t> chosen;  // where it is not every k, or every so many
  const Run clean = [&] {
    if (!options.paths) return chapter.run(UINT64_MAX);
    const CallPaths calls;
    Run run = chapter.run(UINT64_MAX);
    chosen = calls.ends();
    return run;
  }();
  if (clean.exit_code != 0) {
    std::printf("the clean run ends with exit code %d: %s\n", clean.exit_code, clean.err.c_str());
    return 1;
  }
  const json reference = deterministic(clean.files[0]);
  const std::uint64_t calls = host::fault_calls();
  const std::uint64_t stride = stride_for(calls, options.sites);
  const host::Live nothing{};
  std::map<std::string, std::size_t> sites;
  std::size_t failures = 0, not_reached = 0;
  std::vector<std::uint64_t> since_retry;  // the faults that the next retry answers for

  const auto report = [&](std::uint64_t k, const std::string& site, const std::string& complaint) {
    ++failures;
    if (!options.quiet)
      std::printf("call %llu (%s) failing %s: %s\n    replay: %s\n", static_cast<unsigned long long>(k), site.c_str(),
                  options.from ? "from then on" : "once", complaint.c_str(),
                  replay_command(chapter, options, k).c_str());
  };
  // One retry for several faults: most runs of a sweep would be retries otherwise. When it fails, each of them is
  // looked at in a process of its own.
  const auto retry = [&](const std::string& site) {
    const std::string complaint = judge_clean(chapter.run(), reference);
    if (!complaint.empty()) {
      const std::size_t before = failures;
      for (const std::uint64_t k : since_retry)
        if (options.replay || std::system(replay_command(chapter, options, k, " --quiet yes").c_str()) != 0)
          report(k, site, complaint);
      if (failures == before) report(since_retry.front(), "and those that follow, together", complaint);
    }
    since_retry.clear();
    return complaint.empty();
  };

  std::size_t at = 0;
  const auto after = [&](std::uint64_t k) {
    if (!options.paths) return k + stride;
    return at < chosen.size() ? chosen[at++] : calls + 1;
  };
  for (std::uint64_t k = options.replay ? options.replay : options.paths ? after(0) : 1;; k = after(k)) {
    const long long bytes_before = host_heap_bytes();
    std::string complaint;
    {
      const std::uint64_t lost = host::patience_lost();
      const Run faulted = chapter.run(k, options.from);
      if (host::fault_site()[0] == '\0') {  // this run made no k-th call
        if (options.replay || k > calls) break;
        // Ranks meet in no fixed order, so their calls are not always as many; and the last ones write times, which
        // have now more digits, now fewer. Any other call must be reached, and what had no fault must end as it always
        // does: a sweep that stopped here would have proved nothing.
        const std::uint64_t certain = calls - std::min(calls, 16 + calls / 1000);
        complaint = judge_clean(faulted, reference);
        if (complaint.empty() && chapter.device < 0 && k <= certain)
          complaint = "not reached, of " + std::to_string(calls) + " calls";
        if (!complaint.empty()) report(k, "no fault", complaint);
        if (failures >= 20) break;
        ++not_reached;
        continue;
      }
      complaint = judge(faulted, clean, reference);
      if (complaint.empty() && host::patience_lost() != lost) complaint = "a rank waited for one that had failed";
      // Ranks beyond the first one have these devices to themselves. (Where no host memory is left, there is none for a
      // name, either.)
      if (complaint.empty() && chapter.device > 0 && faulted.exit_code == 1 &&
          faulted.err.find("out of host memory") == std::string::npos &&
          faulted.err.find("rank " + std::to_string(chapter.device)) == std::string::npos)
        complaint = "an error that does not name the rank: " + faulted.err;
      if (options.replay && !options.quiet)
        std::printf("--- exit code %d\n%s%s", faulted.exit_code, faulted.out.c_str(), faulted.err.c_str());
    }
    const std::string site = host::fault_site();
    const long long leaked = host_heap_bytes() - bytes_before - heap_bytes(site);
    ++sites[site];
    if (complaint.empty() && !(host::live() == nothing)) complaint = "leaked " + host::describe(host::live());
    if (complaint.empty() && leaked > 0) complaint = "leaked " + std::to_string(leaked) + " bytes of host memory";
    if (complaint.empty() && cudaPeekAtLastError() != cudaSuccess) complaint = "left the last CUDA error set";
    if (complaint.empty())
      for (const auto& entry : std::filesystem::directory_iterator(chapter.folder))
        if (entry.path().extension() != ".json" && entry.path().extension() != ".pickle")
          complaint = "left the file " + entry.path().filename().string();
    if (!complaint.empty()) report(k, site, complaint);
    if (failures >= 20) {
      std::printf("giving up after 20 failures\n");
      break;
    }
    if (!(host::live() == nothing)) break;  // everything after a leak would fail too
    since_retry.push_back(k);
    if ((since_retry.size() == kFaultsARetry || options.replay) && !retry(site)) break;
    if (options.replay) break;
  }
  if (!since_retry.empty()) (void)retry("of the last few");

  std::size_t total = 0;
  for (const auto& [name, count] : sites) total += count;
  if (options.quiet) return failures ? 1 : 0;
  if (not_reached) std::printf("%zu calls were not reached\n", not_reached);
  const std::string which = options.paths ? "the ends of all call paths" : "every " + std::to_string(stride) + ". call";
  std::printf("%s, mode %s, %s of %llu: %zu fault sites swept, %zu failures\n", chapter.program.c_str(),
              options.from ? "from" : "once", which.c_str(), static_cast<unsigned long long>(calls), total, failures);
  for (const auto& [name, count] : sites) std::printf("  %6zu  %s\n", count, name.c_str());
  return failures == 0 && total > 0 ? 0 : 1;
}

}  // namespace

extern "C" int __wrap_main(int argc, char** argv) {
  Sweep chapter;
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string option = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    if (option == "--") {
      chapter.more.assign(argv + i + 1, argv + argc);
      break;
    }
    if (option == "--device") {
      chapter.device = std::atoi(value.c_str());
    } else if (option == "--mode") {
      options.from = value == "from";
    } else if (option == "--sites") {
      options.sites = std::strtoull(value.c_str(), nullptr, 10);
    } else if (option == "--paths") {
      options.paths = value == "yes";
    } else if (option == "--replay") {
      options.replay = std::strtoull(value.c_str(), nullptr, 10);
    } else if (option == "--quiet") {
      options.quiet = value == "yes";
    } else if (option == "--program") {
      chapter.program = value;
    } else {
      std::fprintf(stderr, "fault_sweep: unknown option %s\n", option.c_str());
      return 64;
    }
  }
  if (chapter.program.empty()) {
    std::fprintf(stderr, "fault_sweep: --program NAME is needed\n");
    return 64;
  }
  // Models are tiny here: to clear pages of 2 MiB for them would take a seventh of the time.
  (void)prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  std::string name = (std::filesystem::temp_directory_path() / "oomlab_sweep.XXXXXX").string();
  if (!mkdtemp(name.data())) return 1;
  terminal = dup(2);
  std::signal(SIGABRT, on_abort);
  chapter.folder = name;
  const bool has_steps = std::find(chapter.more.begin(), chapter.more.end(), "--steps") != chapter.more.end();
  chapter.words = {chapter.program, "--quick",
                   "--json",        name + "/result.json",
                   "--trace",       name + "/trace.json",
                   "--snapshot",    name + "/snapshot.pickle"};
  if (!has_steps) chapter.words.insert(chapter.words.end(), {"--steps", "1"});
  chapter.words.insert(chapter.words.end(), chapter.more.begin(), chapter.more.end());
  const int exit_code = sweep(chapter, options);
  std::filesystem::remove_all(name);
  return exit_code;
}
