// A filter of system calls (seccomp): what a puzzle has no use for ends the process with SIGSYS. Threads may be started, programs and
// processes may not; files may be read (sanitizers look at the program's own), not written.

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <vector>

#include "watch.h"

namespace oomlab::puzzle {
namespace {

constexpr unsigned kill = SECCOMP_RET_KILL_PROCESS, allow = SECCOMP_RET_ALLOW;
#if defined(__x86_64__)
constexpr unsigned here = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr unsigned here = AUDIT_ARCH_AARCH64;
#else
constexpr unsigned here = 0;
#endif

constexpr unsigned lower_half(int argument) { return unsigned(offsetof(seccomp_data, args)) + 8u * unsigned(argument); }

sock_filter load(unsigned offset) { return BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset); }
sock_filter answer(unsigned value) { return BPF_STMT(BPF_RET | BPF_K, value); }
sock_filter unless_equal(unsigned value, unsigned char skip) {
  return BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skip);
}
sock_filter unless_any_bit(unsigned bits, unsigned char skip) {
  return BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, 0, skip);
}

}  // namespace

void confine() {
  if (!here) return;
  std::vector<sock_filter> program{load(offsetof(seccomp_data, arch)), unless_equal(here, 1),
                                   BPF_JUMP(BPF_JMP | BPF_JA, 1, 0, 0), answer(kill), load(offsetof(seccomp_data, nr))};
  const auto deny = [&](unsigned number, unsigned with = kill) {
    program.insert(program.end(), {unless_equal(number, 1), answer(with)});
  };
  // `number` is denied where argument `index` has one of these bits (or, `none`, has none of them).
  const auto deny_where = [&](unsigned number, int index, unsigned bits, bool none) {
    program.insert(program.end(), {unless_equal(number, 4), load(lower_half(index)), unless_any_bit(bits, 1),
                                   answer(none ? allow : kill), answer(none ? kill : allow)});
  };
  for (const unsigned number :
       {unsigned(SYS_execve), unsigned(SYS_execveat), unsigned(SYS_socket), unsigned(SYS_unlinkat),
        unsigned(SYS_mkdirat), unsigned(SYS_renameat2), unsigned(SYS_linkat), unsigned(SYS_symlinkat),
        unsigned(SYS_kill), unsigned(SYS_ptrace), unsigned(SYS_truncate), unsigned(SYS_fchmodat),
        unsigned(SYS_fchownat), unsigned(SYS_setsid), unsigned(SYS_setpgid)})
    deny(number);
#if defined(__x86_64__)
  for (const unsigned number :
       {unsigned(SYS_fork), unsigned(SYS_vfork), unsigned(SYS_creat), unsigned(SYS_unlink), unsigned(SYS_mkdir),
        unsigned(SYS_rmdir), unsigned(SYS_rename), unsigned(SYS_link), unsigned(SYS_symlink), unsigned(SYS_chmod)})
    deny(number);
  deny_where(SYS_open, 1, O_WRONLY | O_RDWR | O_CREAT | O_TRUNC, false);
#endif
  deny_where(SYS_openat, 2, O_WRONLY | O_RDWR | O_CREAT | O_TRUNC, false);
  deny_where(SYS_clone, 0, CLONE_THREAD, true);
#ifdef SYS_clone3
  deny(SYS_clone3,
       SECCOMP_RET_ERRNO | 38);  // ENOSYS: its flags are out of a filter's reach, and the C library then takes clone
#endif
  program.push_back(answer(allow));
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return;
  (void)prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

}  // namespace oomlab::puzzle
