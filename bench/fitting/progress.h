#pragma once
// A search that takes longer than people wait in silence says so, on standard error.

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace oomlab::fit {

/// Says something after 2 seconds, then after 4, 8, 16, …: `say` gets each line, `now` is the time in seconds.
class SearchProgress {
 public:
  using Say = std::function<void(const std::string& line)>;
  using Now = std::function<double()>;
  static double clock() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  explicit SearchProgress(Say say, Now now = clock) : say_(std::move(say)), now_(std::move(now)), begin_(now_()) {}

  /// So many combinations are known, so many of them planned. Cheap: asks for the time in one of 64 calls.
  void at(std::uint64_t known, std::uint64_t planned) {
    if (++calls_ % 64 != 0) return;
    const double since = now_() - begin_;
    if (since < next_) return;
    while (next_ <= since) next_ *= 2;
    say_("still comparing: " + std::to_string(known) + " combinations, of which " + std::to_string(planned) +
         " had to be planned so far");
  }

 private:
  Say say_;
  Now now_;
  double begin_, next_ = 2;
  std::size_t calls_ = 0;
};

}  // namespace oomlab::fit
