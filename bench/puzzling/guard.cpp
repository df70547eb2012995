// On the host runtime a device's memory is the host's, and a program that reads it without cudaMemcpy would work there and nowhere
// else. So it is closed (mprotect) while the reader's host code runs, and open in kernels and calls. A touch ends the program, and says
// which array it was.

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "watch.h"

extern "C" char __executable_start;

namespace oomlab::puzzle {
namespace {

void touched(int, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  Watch& w = watch();
  std::uintptr_t where = 0;
#if defined(__x86_64__)
  where = std::uintptr_t(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
  where = static_cast<ucontext_t*>(context)->uc_mcontext.pc;
#endif
  std::string fields = "\"case\": " + quoted(w.case_name);
  if (where) fields += ", \"pc\": " + std::to_string(where - reinterpret_cast<std::uintptr_t>(&__executable_start));
  auto next = w.blocks.upper_bound(address);
  if (next != w.blocks.begin() && address - std::prev(next)->first < std::prev(next)->second.storage)
    end("touched", fields + ", \"name\": " + quoted(std::prev(next)->second.name));
  if (w.failure.error && !w.allowed.failed_allocations) end_unread();  // what crashed is what came of that
  end("crashed", fields);
}

constexpr std::size_t page = 64 << 10, least = 1 << 20;  // what the runtime maps for itself, in whole pages

}  // namespace

std::size_t guarded_size(std::size_t bytes) { return bytes < least ? least : (bytes + page - 1) / page * page; }

void guard(const std::map<std::uintptr_t, Block>& blocks, bool closed) {
  for (const auto& [address, block] : blocks)
    if (!block.pinned)
      (void)mprotect(reinterpret_cast<void*>(address), block.storage, closed ? PROT_NONE : PROT_READ | PROT_WRITE);
}

void start_guarding() {
  static char stack[64 << 10];  // a stack that ran over is told, too
  stack_t other{};
  other.ss_sp = stack;
  other.ss_size = sizeof stack;
  (void)sigaltstack(&other, nullptr);
  struct sigaction action {};
  action.sa_sigaction = touched;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  (void)sigaction(SIGSEGV, &action, nullptr);
  (void)sigaction(SIGBUS, &action, nullptr);
}

}  // namespace oomlab::puzzle
