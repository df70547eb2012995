#pragma once
// The processes of a run: this one, or, when a launcher such as mpirun has started several, all of them. Then each has
// one rank of every team, and the first one does what a run without a launcher does beside that: it runs the variants
// of one rank, prints, and writes files.

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace oomlab {

/// Messages between the processes. Not for use by several threads at once.
class Processes {
 public:
  virtual ~Processes() = default;
  virtual int rank() const { return 0; }
  virtual int size() const { return 1; }
  /// This process's number among those of the same host.
  virtual int local_rank() const { return 0; }
  /// Returns at once; the message goes out while receive() is called.
  virtual void send(int /*to*/, std::string /*message*/) {}
  /// A message that has come, and from whom; nothing when there is none.
  virtual std::optional<std::pair<int, std::string>> receive() { return std::nullopt; }
  /// Ends all processes.
  [[noreturn]] virtual void abort(int exit_code);
};

/// What the launcher has started: made by MPI where this program was built with it (launcher/mpi.cpp). Throws
/// CannotRunHere when a launcher is at work and this program was built without MPI (launcher/none.cpp).
std::unique_ptr<Processes> join_launcher();
/// True when the environment says that a launcher has started this process as one of several.
bool started_by_launcher();

/// The processes of this run.
Processes& processes();

/// For the scope of a run: joins the launcher, if there is one.
class ProcessScope {
 public:
  ProcessScope();
  ~ProcessScope();
  ProcessScope(const ProcessScope&) = delete;
  ProcessScope& operator=(const ProcessScope&) = delete;
};

/// A rank of a team failed: what() names it, and the cause.
class RankFailed : public std::runtime_error {
 public:
  RankFailed(const std::string& what, bool out_of_memory, bool only_follows)
      : std::runtime_error(what), out_of_memory_(out_of_memory), only_follows_(only_follows) {}
  bool out_of_memory() const noexcept { return out_of_memory_; }
  /// It says no more than that another rank failed.
  bool only_follows() const noexcept { return only_follows_; }

 private:
  bool out_of_memory_, only_follows_;
};

/// Runs `body` in every process, each in a thread of its own, and gives back what each returned, by process. When it
/// throws anywhere, it throws everywhere, the same; `failed` is raised as soon as that is known. A process that stops
/// answering ends them all.
std::vector<std::string> on_all_processes(const std::function<std::string()>& body,
                                          std::atomic<bool>* failed = nullptr);
/// Runs `body` in the first process only, while the others wait, and gives what it returned to all.
std::string on_first_process(const std::function<std::string()>& body);

}  // namespace oomlab
