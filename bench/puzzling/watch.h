#pragma once
// What spy.cpp, judge.cpp and guard.cpp share: the state of the run, and how it ends.

#include <cuda_runtime.h>

#include <climits>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "judge.h"

namespace oomlab::puzzle {

struct Block {
  std::string name;  // the first argument of the call, or the judge's name for it
  int line = 0;      // 0: the judge's
  std::size_t asked = 0, bytes = 0, storage = 0;
  bool pinned = false;
  std::vector<char> input = {};  // what has to be there after a call; empty: anything
};

/// A call that failed, until somebody reads what it returned.
struct Failure {
  std::string call;
  int line = 0;
  cudaError_t error = cudaSuccess;
};

struct Watch {
  std::string case_name;
  std::size_t budget = 0, live = 0, peak = 0, pinned = 0;
  Allowed allowed;
  std::map<std::uintptr_t, Block> blocks;
  bool in_reader = false;  // the reader's code is running, and not in one of our functions
  std::uint64_t launches = 0, synchronisations = 0;
  unsigned fewest_threads = UINT_MAX;                    // of a block
  std::vector<std::pair<void*, std::size_t>> forbidden;  // addresses and bytes that the reader's code may not read
  Failure failure;                                       // the last one
  std::string out_of_memory;                             // JSON of the last refused allocation, with what was live then
  std::string bad_launch;                                // JSON of the last launch with a shape that does not exist
  cudaError_t last_error = cudaSuccess;
  std::function<void()> visit;

  // The run that makes one call fail.
  std::uint64_t calls = 0, failing = 0;  // counted in call(); the number of the one that fails, 0 for none
  bool injected = false;
};
Watch& watch();

/// The reader's code is not running while one is alive.
class Away {
 public:
  Away();
  ~Away();

 private:
  bool was_;
};

/// The most bytes in the reader's containers at a time, since a call began: with what was kept from the calls before, and of static initialisers.
std::size_t host_peak();
void begin_host_peak();
/// From here on memory is the reader's only while its code runs.
void end_static_initialisers();

/// A kernel's own code is running on this thread of the host, and not the runtime's.
bool in_kernel();
void set_in_kernel(bool now);

/// Device memory cannot be touched by host code while it is closed, and never what its storage has behind the bytes that were asked for.
/// On a GPU, and under sanitizers, these do nothing.
std::size_t guarded_size(std::size_t bytes);
void guard(const std::map<std::uintptr_t, Block>& blocks, bool closed);
/// A new block begins; an old one ends, all of its storage open again. `blocks` has it.
void begin_guarding(std::uintptr_t address, const Block& block);
void end_guarding(std::uintptr_t address, const Block& block);
/// Whether something was written behind the bytes that were asked for, in the page where they end.
bool overrun(std::uintptr_t address, const Block& block);
void start_guarding();

/// Takes away from this process what no puzzle needs: starting programs, writing files, the network. Where the system cannot do that,
/// nothing is taken; the limits that bench/puzzle sets hold anyway.
void confine();

/// A text as JSON's.
std::string quoted(const std::string& text);
std::string blocks_as_json();
/// Says `{"kind": kind, fields}` to bench/puzzle, and ends the program.
[[noreturn]] void end(const std::string& kind, const std::string& fields);
/// Something was written behind the end of this block.
[[noreturn]] void end_overrun(const Block& block);
/// A call has failed, and the program went on.
[[noreturn]] void end_unread();

}  // namespace oomlab::puzzle
