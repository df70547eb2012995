#pragma once
// Control of the host runtime: what tests and the harness use, and real CUDA does not have.
// Chapters never include this.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cuda_runtime.h"

namespace oomlab::host {

// ------------------------------------------------------------------------------------------------------------- machine

/// The machine that the runtime models. Read once, at the first call into the runtime, from the environment:
///   OOMLAB_HOST_DEVICES=N            devices (default 1, at most 64)
///   OOMLAB_HOST_MEMORY=SIZE          capacity of each, for example 8GiB (default: three quarters of this machine's
///                                    memory)
///   OOMLAB_HOST_STREAMS=eager | deferred[:seed]
///   OOMLAB_HOST_NCCL=buffered | rendezvous    whether a send may end before it is received. NCCL allows both; what
///                                    works with one only may hang on a GPU. Rendezvous needs eager streams. It also
///                                    refuses buffers in pools that the other ranks' devices may not reach, which NCCL
///                                    up to 2.22 would write into
///   OOMLAB_HOST_SHARED=FILE          processes that name the same file have the same devices: what one allocates the
///                                    others lack, until it is freed or the process has ended, in whatever way. The
///                                    last one out removes the file; one without a name (/proc/self/fd/N of
///                                    memfd_create) vanishes by itself, also when all are killed. Managed memory is not
///                                    counted: its pages give way
///   OOMLAB_HOST_CONTEXT=SIZE         what a device charges each process for its context, at the first call that needs
///                                    one: what allocates, cudaMemGetInfo, cudaSetDevice, cudaFree (default: nothing)
struct Machine {
  int devices = 1;
  std::size_t capacity = 0;
  bool deferred = false, rendezvous = false;
  std::uint64_t seed = 1;
  std::string shared = {};
  std::size_t context = 0;
  std::chrono::milliseconds patience{60'000};  ///< waits at most so long for another process of `shared`
};
/// Starts over with another machine. Throws std::logic_error while something is live (see live()), and
/// std::invalid_argument where Machine::shared cannot be.
void configure(const Machine& machine);
const Machine& machine();

/// A living process that has memory of a shared device, this one included.
struct Sharer {
  unsigned pid = 0;
  std::size_t bytes = 0;
  std::string name;
};
std::vector<Sharer> sharers(int device);

/// Plan mode: addresses and accounting only; capacity is unlimited, no memory is touched, launches, copies, memsets
/// and cuBLAS calls check their arguments and do nothing. Only while nothing is live.
void set_planning(bool on);
bool planning() noexcept;

/// How NCCL's ranks here reach those in other processes. send() returns at once, keeps the order between any two
/// processes, and may be called by any thread.
struct Mail {
  int process = 0, processes = 1;  ///< this one's number, and how many there are
  std::function<void(int to, std::string message)> send;
};
/// Ranks are in several processes. To be called before NCCL is; what other processes send is to be given to the
/// function that it returns, by one thread.
std::function<void(int from, std::string_view message)> expect_processes(Mail mail);
/// How often a rank here has waited for another until its patience was over.
std::uint64_t patience_lost() noexcept;

// -------------------------------------------------------------------------------------------------------- what is live

/// Objects and bytes that the program has and has not given back. A clean program ends with all zero.
struct Live {
  std::size_t device_bytes = 0, device_blocks = 0;  ///< cudaMalloc, pools, mapped VMM handles, managed
  std::size_t pinned_bytes = 0;
  std::size_t reservations = 0, vmm_handles = 0;
  std::size_t streams = 0, events = 0, pools = 0, blas_handles = 0, communicators = 0;
  friend bool operator==(const Live&, const Live&) = default;
};
Live live() noexcept;
/// "2 streams, 512 device bytes in 1 block", or "nothing".
std::string describe(const Live& live);

/// What managed memory did since the last call. Pages are of 64 KiB; a page that is made where it is first touched
/// moves no bytes.
struct PagingCounters {
  std::uint64_t faults = 0;                              ///< of the host and of devices
  std::uint64_t pages_in = 0, pages_evicted = 0;         ///< pages that came to a device; that had to leave a full one
  std::uint64_t bytes_to_device = 0, bytes_to_host = 0;  ///< migrated, for whatever reason
  std::uint64_t bytes_prefetched = 0;                    ///< of those to a device: because of cudaMemPrefetchAsync
};
PagingCounters take_paging_counters() noexcept;

/// What the calling thread's device has been asked to do since the program began. A batched product is one call.
struct Work {
  std::uint64_t launches = 0, gemms = 0;
  std::uint64_t gemm_flops = 0;  ///< of these products, a multiplication and an addition counted as two
  std::uint64_t copied_bytes = 0, filled_bytes = 0;  ///< cudaMemcpy…: read and written once; cudaMemset…: written
};
Work work() noexcept;

// ---------------------------------------------------------------------------------------------------------- fault seam

/// Every fallible call asks fault_point("cudaMalloc") first. While armed, calls are counted from 1, and call number
/// `k` fails (once; 0: none does), or `k` and every later one (from_then_on), with an error that call may really
/// return. Calls that give something back (cudaFree, cudaStreamDestroy, …) do their work and then report the error.
/// With `device`, only calls of threads whose current device that is are counted and fail: one rank's, in its own
/// order. From the environment: OOMLAB_FAULT=k (once) or OOMLAB_FAULT=k: (from k on).
void arm_fault(std::uint64_t k, bool from_then_on, int device = -1) noexcept;
void disarm_fault() noexcept;
/// While armed, `watch` is told the number of each call, on its thread; null: nobody is.
void watch_fault_calls(void (*watch)(std::uint64_t number) noexcept) noexcept;
/// Fallible calls seen since arming.
std::uint64_t fault_calls() noexcept;
/// Name of the call that was made to fail first; "" when none was.
const char* fault_site() noexcept;
/// True when this call must fail. `call` must be a string literal. Test programs also call it from their own operator
/// new, so it never allocates; calls made inside the runtime itself are not counted (see RuntimeScope).
bool fault_point(const char* call) noexcept;

/// While one is alive on this thread, host allocations belong to the runtime, not to the program: not fault points.
class RuntimeScope {
 public:
  RuntimeScope() noexcept;
  ~RuntimeScope();
};
bool inside_runtime() noexcept;

// --------------------------------------------------------------------------------------- for the runtime's other parts

/// Runs `work` in stream order: now (eager), or when the stream is drained (deferred). Not in plan mode.
/// Allocation failure of the queue itself: returns cudaErrorMemoryAllocation.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work) noexcept;
/// One more or less (+1, -1) for live().
void count_live(std::size_t Live::*what, int change) noexcept;
/// Counts a product for work().
void count_gemm(std::uint64_t flops) noexcept;

}  // namespace oomlab::host
