#pragma once
// How long a rank waits for another, in a test. What is given by ctest, or the default, only a hang reaches; a test in
// which a rank must lose patience makes it short, for a rank that can only wait for one that cannot come.

#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <thread>

namespace oomlab::test {

/// For its scope. Made while no other thread asks the environment: one that waits has asked before.
class ShortPatience {
 public:
  ShortPatience() {
    if (const char* text = std::getenv("OOMLAB_HOST_NCCL_TIMEOUT")) before_ = text;
    setenv("OOMLAB_HOST_NCCL_TIMEOUT", "0.2", 1);
  }
  ~ShortPatience() {
    if (before_)
      setenv("OOMLAB_HOST_NCCL_TIMEOUT", before_->c_str(), 1);
    else
      unsetenv("OOMLAB_HOST_NCCL_TIMEOUT");
  }
  ShortPatience(const ShortPatience&) = delete;
  ShortPatience& operator=(const ShortPatience&) = delete;

 private:
  std::optional<std::string> before_;
};

/// Waits for what another thread does.
inline void await(const std::function<bool()>& condition) {
  while (!condition()) std::this_thread::yield();
}

}  // namespace oomlab::test
