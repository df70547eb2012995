#pragma once
// Ctrl-C: the run ends between two steps, and leaves no half-written file. A second Ctrl-C ends it at once. A reader that
// goes away (| head) ends nothing: files are still written.

#include <csignal>
#include <stdexcept>

namespace oomlab {

class Interrupted : public std::runtime_error {
 public:
  Interrupted() : std::runtime_error("interrupted; no result was written") {}
};

/// Catches SIGINT and SIGTERM for a scope, and ignores SIGPIPE: writing fails then.
class InterruptScope {
 public:
  InterruptScope() noexcept;
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

 private:
  stack_t old_stack_;
  struct sigaction old_int_, old_term_, old_pipe_;
};

}  // namespace oomlab
