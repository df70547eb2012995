#include "harness/interrupt.h"

#include <cstddef>

namespace oomlab {
namespace {

void on_signal(int) { interrupt_wanted.store(true, std::memory_order_relaxed); }

// Of the thread that the system prefers for a signal, the first: a library's kernel may be using its stack pointer for
// something else.
alignas(16) std::byte stack[64 << 10];

}  // namespace

InterruptScope::InterruptScope() noexcept {
  interrupt_wanted = false;
  stack_t own{};
  own.ss_sp = stack;
  own.ss_size = sizeof stack;
  sigaltstack(&own, &old_stack_);
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_ONSTACK | SA_RESETHAND;  // the second one kills
  sigaction(SIGINT, &action, &old_int_);
  sigaction(SIGTERM, &action, &old_term_);
  action.sa_handler = SIG_IGN;
  action.sa_flags = 0;
  sigaction(SIGPIPE, &action, &old_pipe_);
}

InterruptScope::~InterruptScope() {
  sigaction(SIGINT, &old_int_, nullptr);
  sigaction(SIGTERM, &old_term_, nullptr);
  sigaction(SIGPIPE, &old_pipe_, nullptr);
  sigaltstack(&old_stack_, nullptr);
}

}  // namespace oomlab
