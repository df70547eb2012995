#pragma once
// For tests with several processes: forked, so that they share what is mapped; before any call of a GPU's driver. They
// wait for conditions, not for a time: what a busy machine does late, it does all the same.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace oomlab::test {

/// Runs `work` in a process of its own, which ends with what it returns, or with its parent.
inline pid_t start(const std::function<int()>& work) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  _exit(work());
}
/// Asks again and again, with pauses, until it holds. The end of its patience, after some minutes, is one that only a
/// hang reaches: then it returns false.
inline bool comes_true(const std::function<bool()>& condition) {
  for (int pauses = 0; pauses < 2'000'000; ++pauses, usleep(100))
    if (condition()) return true;
  return false;
}
/// Waits for its end. Its exit code; 128 and the signal that ended it.
inline int end_of(pid_t pid) {
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace oomlab::test
