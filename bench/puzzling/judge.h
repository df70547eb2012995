#pragma once
// What a puzzle's judge.cpp is written with. It defines judge_puzzle(), which calls the reader's function with data that the reader has not
// seen, and compares. The first thing that is wrong ends the program, and is said through a pipe (bench/puzzle reads it).
//
//   void judge_puzzle() {
//     for (int n : {1000, random_between(2000, 3000)}) {
//       Case now("n = " + std::to_string(n), 12 * n + KiB(4));           // a budget in bytes, for all of the device's memory
//       float* x = now.given("x", random_numbers(n));                     // the judge's own arrays count in it
//       now.call([&] { double_it(x, n); });                               // watched: peak, leaks, errors
//       now.equal("x", now.read(x, n), expected);
//     }
//   }

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

namespace oomlab::puzzle {

/// What a judge.cpp defines.
void judge_puzzle();

/// Sanitizers, and runs that only look for one thing: small sizes are enough.
bool small();
/// `large`, or `little` where small() is true.
inline int size(int large, int little) { return small() ? little : large; }
/// From the hidden seed: both ends are possible.
int random_between(int low, int high);
/// Between -scale and scale, none of them 0.
std::vector<float> random_numbers(std::size_t count, float scale = 1);

constexpr std::size_t KiB(std::size_t n) { return n << 10; }
/// Bytes as a device counts them: in steps of 512.
constexpr std::size_t counted(std::size_t bytes) { return (bytes + 511) / 512 * 512; }
template <class T>
constexpr std::size_t bytes_of(std::size_t count) {
  return counted(count * sizeof(T));
}

/// Ends the program: a rule of this puzzle is broken, in the words of both languages.
[[noreturn]] void refuse(const std::string& english, const std::string& chinese);

/// What is allowed beside the budget; the defaults suit most puzzles.
struct Allowed {
  std::size_t host_bytes = KiB(64);     ///< of containers, at any one time
  std::size_t pinned_bytes = 0;         ///< of cudaMallocHost
  bool failed_allocations = false;      ///< the reader's function is expected to meet them, and to go on
  bool no_kernel = false;               ///< it need not start one
  std::uint64_t launches = UINT64_MAX;  ///< at most so many
  std::uint64_t synchronisations = UINT64_MAX;
  std::size_t largest = SIZE_MAX;  ///< bytes of one allocation
  bool keeps_memory = false;       ///< call() may end with memory allocated; a later one gives it back
  unsigned threads = 1;            ///< a block has at least so many
};

/// One workload, with a budget for the device's memory. Cases do not nest.
class Case {
 public:
  Case(const std::string& name, std::size_t budget, const Allowed& allowed = {});
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;
  ~Case();  ///< gives the judge's arrays back

  /// A device array of the judge's, counted in the budget, with these values.
  template <class T>
  T* given(const char* name, const std::vector<T>& values) {
    return static_cast<T*>(given_bytes(name, values.data(), values.size() * sizeof(T)));
  }
  /// The same, of values that the reader's code may only read: call() ends the program where they are others afterwards.
  template <class T>
  const T* input(const char* name, const std::vector<T>& values) {
    T* const address = given(name, values);
    keep_input(address);
    return address;
  }
  /// Other values for an array of given() or input(), of the same length.
  template <class T>
  void refill(const T* array, const std::vector<T>& values) {
    refill_bytes(const_cast<T*>(array), values.data(), values.size() * sizeof(T));
  }
  /// During call() the reader's code may not even read these bytes of a given array; AddressSanitizer sees it. Multiples of 8.
  void forbid(const void* from, std::size_t bytes);
  /// One to be written by the reader: filled with bytes that are no result. What has them afterwards was never written: of floats a
  /// signalling NaN, which no operation gives.
  template <class T>
  T* to_fill(const char* name, std::size_t count) {
    std::vector<std::uint32_t> pattern((count * sizeof(T) + 3) / 4, std::is_same_v<T, float> ? unwritten : 0xffffffffu);
    return static_cast<T*>(given_bytes(name, pattern.data(), count * sizeof(T)));
  }
  template <class T>
  std::vector<T> read(const T* device, std::size_t count) const {
    std::vector<T> values(count);
    read_bytes(values.data(), device, count * sizeof(T));
    return values;
  }

  /// Calls the reader's code. Whatever is thrown, leaked, over the budget or otherwise not allowed ends the program.
  void call(const std::function<void()>& readers);

  /// Compares, each number within tolerance * max(1, |wanted|); the first that differs ends the program. `width`: of a row, where there are rows.
  template <class T>
  void equal(const char* what, const std::vector<T>& got, const std::vector<T>& wanted, double tolerance = 0,
             std::size_t width = 0) const {
    const Places places{what, wanted.size(), width};
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if constexpr (std::is_same_v<T, float>)
        if (i < got.size() && std::bit_cast<std::uint32_t>(got[i]) == unwritten) never_written(places, i);
      const double g = i < got.size() ? double(got[i]) : std::numeric_limits<double>::quiet_NaN(),
                   w = double(wanted[i]);
      if (!(std::abs(g - w) <= tolerance * std::max(1.0, std::abs(w)))) differs(places, i, g, w);
    }
  }

  /// Bytes that are allocated now, and the most that were since the case began: the judge's arrays and the reader's.
  std::size_t live() const;
  std::size_t peak() const;
  /// The budget, from now on: a neighbour takes or gives something back.
  void set_budget(std::size_t bytes);
  /// Called at each of the reader's calls that allocate or ask for free memory, before they are carried out.
  void at_each_call(std::function<void()> visit);

 private:
  /// Of numbers that are compared: what they are called, how many there are, and in a row.
  struct Places {
    const char* name;
    std::size_t count, width;
  };
  static constexpr std::uint32_t unwritten = 0xffa5a5a5u;
  void keep_input(const void* address);
  void refill_bytes(void* device, const void* values, std::size_t bytes);
  [[noreturn]] void never_written(const Places& places, std::size_t index) const;
  void* given_bytes(const char* name, const void* values, std::size_t bytes);
  void read_bytes(void* to, const void* device, std::size_t bytes) const;
  [[noreturn]] void differs(const Places& places, std::size_t index, double got, double wanted) const;
  static std::string place(const Places& places, std::size_t index);
};

/// For a judge whose own function is called by the reader's code: allocates as the reader would.
cudaError_t allocate_as_reader(const char* name, void** address, std::size_t bytes);
cudaError_t release_as_reader(void* address);

}  // namespace oomlab::puzzle
