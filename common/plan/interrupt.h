#pragma once
// Whether somebody wants the program to end: Ctrl-C. The harness catches the signal (harness/interrupt.h); it is heard
// wherever work is queued: at each launch, matrix product and allocation, and in loops on the processor that take long,
// such as searches through plans. So a step that goes on for minutes ends between two kernels.

#include <atomic>
#include <stdexcept>

namespace oomlab {

/// Somebody wants the program to end. Like an out-of-memory it may come out of any call that queues work or allocates;
/// nothing stays allocated.
class Interrupted : public std::runtime_error {
 public:
  Interrupted() : std::runtime_error("interrupted; no result was written") {}
};

/// Set by a signal handler, read by all threads.
inline std::atomic<bool> interrupt_wanted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

/// Throws Interrupted, but not while another exception is on its way: a destructor that queues work may do so.
[[gnu::cold]] void throw_interrupted();

/// Throws Interrupted when somebody wants the program to end. One load where nobody does.
inline void check_interrupt() {
  if (interrupt_wanted.load(std::memory_order_relaxed)) [[unlikely]]
    throw_interrupted();
}

}  // namespace oomlab
