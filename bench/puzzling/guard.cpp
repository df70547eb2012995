// On the host runtime a device's memory is the host's, and a program that reads it without cudaMemcpy would work there and nowhere
// else. So it is closed (mprotect) while the reader's host code runs, and open in kernels and calls. A touch ends the program, and says
// which array it was. Small arrays have far more storage than they are charged for; that stays closed to everybody.

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "watch.h"

extern "C" char __executable_start;

namespace oomlab::puzzle {
namespace {

void touched(int, siginfo_t* info, void* context) {
  set_in_kernel(false);  // what follows is ours
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  Watch& w = watch();
  std::uintptr_t where = 0;
#if defined(__x86_64__)
  where = std::uintptr_t(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
  where = static_cast<ucontext_t*>(context)->uc_mcontext.pc;
#endif
  std::string fields = "\"case\": " + quoted(w.case_name);
  if (where)
    fields += ", \"pc\": [" + std::to_string(where - reinterpret_cast<std::uintptr_t>(&__executable_start)) + "]";
  auto next = w.blocks.upper_bound(address);
  if (w.in_reader && next != w.blocks.begin() && address - std::prev(next)->first < std::prev(next)->second.asked)
    end("touched", fields + ", \"name\": " + quoted(std::prev(next)->second.name));
  if (w.failure.error && !w.allowed.failed_allocations) end_unread();  // what crashed is what came of that
  end("crashed", fields);
}

constexpr std::size_t page = 64 << 10, least = 1 << 20;  // what the runtime maps for itself, in whole pages
constexpr char behind = char(0xa5);

/// Bytes of the pages that a block is charged for, the last one in part.
std::size_t opened(const Block& block) {
  static const std::size_t step = std::size_t(sysconf(_SC_PAGESIZE));
  return std::min(block.storage, (block.asked + step - 1) / step * step);
}
void protect(std::uintptr_t from, std::size_t bytes, int how) {
  if (bytes) (void)mprotect(reinterpret_cast<void*>(from), bytes, how);
}

}  // namespace

std::size_t guarded_size(std::size_t bytes) { return bytes < least ? least : (bytes + page - 1) / page * page; }

void guard(const std::map<std::uintptr_t, Block>& blocks, bool closed) {
  for (const auto& [address, block] : blocks)
    if (!block.pinned) protect(address, opened(block), closed ? PROT_NONE : PROT_READ | PROT_WRITE);
}
void begin_guarding(std::uintptr_t address, const Block& block) {
  std::memset(reinterpret_cast<char*>(address) + block.asked, behind, opened(block) - block.asked);
  protect(address + opened(block), block.storage - opened(block), PROT_NONE);
}
void end_guarding(std::uintptr_t address, const Block& block) {
  protect(address, block.storage, PROT_READ | PROT_WRITE);
}
bool overrun(std::uintptr_t address, const Block& block) {
  const char* const bytes = reinterpret_cast<char*>(address);
  return !block.pinned &&
         std::any_of(bytes + block.asked, bytes + opened(block), [](char byte) { return byte != behind; });
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
