#pragma once
// For tests with several processes: forked, so that they share what is mapped; before any call of a GPU's driver.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace oomlab::test {

/// Runs `work` in a process of its own, which ends with what it returns.
inline pid_t start(const std::function<int()>& work) {
  const pid_t pid = fork();
  if (pid == 0) _exit(work());
  return pid;
}
/// Waits for its end. Its exit code; 128 and the signal that ended it.
inline int end_of(pid_t pid) {
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace oomlab::test
