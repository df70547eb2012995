#pragma once
// Ctrl-C: the run ends where it next queues work (plan/interrupt.h), and leaves no half-written file. A second Ctrl-C
// ends it at once. A reader that goes away (| head) ends nothing: files are still written.

#include <csignal>

#include "plan/interrupt.h"

namespace oomlab {

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
