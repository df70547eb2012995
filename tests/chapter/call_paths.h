#pragma once
// Which fallible calls of a run a sweep can do without: a loop makes the same call by the same functions again and again.

#include <execinfo.h>
#include <oomlab_host.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace oomlab::test {

/// While one is alive, the calls of the fault seam by their paths: the return addresses on the stack. One at a time.
class CallPaths {
 public:
  CallPaths() {
    (void)frames_of(nullptr, 0);  // the first one loads a library
    paths().clear();
    host::watch_fault_calls(note);
  }
  ~CallPaths() { host::watch_fault_calls(nullptr); }
  CallPaths(const CallPaths&) = delete;
  CallPaths& operator=(const CallPaths&) = delete;

  /// Of each path the numbers of the first and the last call, in order.
  std::vector<std::uint64_t> ends() const {
    std::vector<std::uint64_t> numbers;
    for (const auto& [path, of] : paths()) numbers.insert(numbers.end(), {of.first, of.second});
    std::ranges::sort(numbers);
    numbers.erase(std::ranges::unique(numbers).begin(), numbers.end());
    return numbers;
  }

 private:
  using Paths = std::map<std::uint64_t, std::pair<std::uint64_t, std::uint64_t>>;  // by a hash of the addresses
  static Paths& paths() {
    static Paths all;
    return all;
  }
  static int frames_of(void** frames, int most) {
    std::array<void*, 1> one;
    return frames ? backtrace(frames, most) : backtrace(one.data(), 1);
  }
  static void note(std::uint64_t number) noexcept {
    const host::RuntimeScope not_counted;  // what is allocated here
    std::array<void*, 128> frames;
    const int depth = frames_of(frames.data(), int(frames.size()));
    std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a, of whole addresses
    for (int i = 0; i < depth; ++i)
      hash = (hash ^ reinterpret_cast<std::uintptr_t>(frames[std::size_t(i)])) * 0x100000001b3u;
    const auto [at, is_new] = paths().try_emplace(hash, number, number);
    if (!is_new) at->second.second = number;
  }
};

}  // namespace oomlab::test
