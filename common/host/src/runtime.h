#pragma once
// What the host runtime knows, shared by its source files. One mutex guards all of it: every call of the API holds it,
// and so everything here is called with it held; it is open only while a kernel, a copy or another wait runs
// (Unlocked). Managed memory's page tables have a lock of their own (managed.cpp), because they are used inside a
// signal handler.

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "oomlab_host.h"

#ifdef OOMLAB_HOST_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) (void)0
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) (void)0
#endif

namespace oomlab::host {

/// "Stream number `stream` has done its operation number `sequence`." Streams are named by number, not by address, so
/// a ticket may outlive its stream: then it is over.
struct Ticket {
  std::uint64_t stream = 0, sequence = 0;
};
using Tickets = std::vector<Ticket>;

/// Deferred streams: work that waits in its stream's queue, and for other streams.
struct Operation {
  std::function<void()> work;
  Tickets after;
};

/// Eager streams: what a stream is still at after the call that began it has returned. Only a send in rendezvous mode:
/// it is over when it is received, or the communicator has failed.
struct Unfinished {
  std::atomic<bool> over{false};
  std::function<void()> wait;
};
using UnfinishedWork = std::vector<std::shared_ptr<Unfinished>>;

inline constexpr int most_devices = 64;
inline constexpr std::size_t granule = 512, vmm_granule = std::size_t(2) << 20;
inline std::size_t round_up(std::size_t n, std::size_t step) { return (n + step - 1) / step * step; }

enum class Kind : std::uint8_t { device, pool, managed, pinned, mapped };

/// One piece of memory that the program holds, found by address.
struct Block {
  std::size_t size = 0;  // as asked for
  std::size_t charged() const { return round_up(size, granule); }
  Kind kind = Kind::device;
  int device = 0;
  cudaMemPool_t pool = nullptr;  // and its place there
  std::uint64_t offset = 0;
  bool accessible = true;  // false: mapped, and cuMemSetAccess is still to come
  std::shared_ptr<void> mapped = nullptr;
};
using Blocks = std::map<std::uintptr_t, Block>;

struct Device {
  std::size_t used = 0;  // without managed memory, whose resident pages are counted apart
  cudaMemPool_t default_pool = nullptr;
  cudaStream_t null_stream = nullptr;
  bool has_context = false;
};

}  // namespace oomlab::host

struct CUstream_st {
  std::uint64_t id = 0;
  int device = 0;
  bool blocking = true;  // synchronises with the default stream
  bool alive = true;     // not destroyed; with work left it goes on, nameless, until that is done
  std::uint64_t submitted = 0, done = 0;
  std::deque<oomlab::host::Operation> queue = {};
  oomlab::host::UnfinishedWork unfinished = {};  // its own, and what it has to wait for
};

struct CUevent_st {
  int device = 0;
  oomlab::host::Ticket ticket = {};
  oomlab::host::UnfinishedWork unfinished = {};
  std::shared_ptr<double> milliseconds = {};  // of the record, once it was reached; null: not recorded
};

struct CUmemPoolHandle_st {
  struct Range {
    std::size_t size;
    bool free;
    oomlab::host::Tickets after;  // deferred streams: work that may still use this free range
  };
  struct Chunk {
    std::size_t size;
    char* base;  // nullptr in AddressSanitizer builds, where every block has storage of its own
  };
  int device = 0;
  std::uint64_t peers = 0;  // bit d: device d may reach it
  std::uint64_t threshold = 0, reserved = 0, reserved_high = 0, used = 0, used_high = 0, next_offset = 0;
  std::map<std::uint64_t, Chunk> chunks = {};                 // by offset
  std::map<std::uint64_t, Range> ranges = {};                 // by offset; together they fill the chunks
  std::set<std::pair<std::size_t, std::uint64_t>> free = {};  // size, offset: best fit, then lowest
};

namespace oomlab::host {

struct Runtime {
  Runtime();
  std::mutex mutex;
  std::string no_machine;  // why not, where the environment describes none: then every call fails
  std::string not_shared;  // why a call failed that needed those that share the devices
  Machine machine;
  bool planning = false;
  std::vector<Device> devices;
  Blocks blocks;
  std::map<std::uint64_t, std::unique_ptr<CUstream_st>> streams;  // all, also destroyed ones with work left
  std::set<cudaEvent_t> events;
  std::set<cudaMemPool_t> pools;  // without those that are destroyed and still have blocks
  std::uint64_t next_stream = 1;
  std::mt19937_64 random;           // deferred streams: whose turn it is
  std::uintptr_t next_address = 0;  // plan mode
  Live counted;                     // of what live() is to say, what is in no list here
  Work work[most_devices];          // by device, since the program began
};
/// Made at the first call; reads the environment.
Runtime& runtime();
/// While one is alive, the mutex is open.
struct Unlocked {
  Unlocked() { runtime().mutex.unlock(); }
  ~Unlocked() { runtime().mutex.lock(); }
};

// -------------------------------------------------------------------------------------------------------------- blocks

using Kernel = std::function<void()>;  ///< with its arguments
inline std::size_t count(dim3 d) { return std::size_t(d.x) * d.y * d.z; }
/// Where number `n` of so many stands: x counts first.
inline uint3 place(std::size_t n, dim3 shape) {
  return {unsigned(n % shape.x), unsigned(n / shape.x % shape.y), unsigned(n / shape.x / shape.y)};
}
inline constexpr std::size_t most_shared = 48 << 10;  ///< bytes of dynamic shared memory that any kernel may have
/// Whether grids and blocks of these shapes can be run.
bool has_shape(dim3 grid, dim3 block);
/// Runs a kernel, block by block.
void run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, const Kernel& kernel);

// -------------------------------------------------------------------------------------------------------------- errors

/// What a call refuses with: thrown anywhere inside it, returned by its frame.
struct Refusal {
  cudaError_t error;
};
inline void require(bool met, cudaError_t otherwise = cudaErrorInvalidValue) {
  if (!met) throw Refusal{otherwise};
}

cudaError_t set_last_error(cudaError_t error) noexcept;

/// In the runtime's scope, with the mutex, without exceptions.
template <class Work>
cudaError_t guarded(Work&& work) noexcept {
  const RuntimeScope scope;
  try {
    const std::lock_guard lock(runtime().mutex);
    require(runtime().no_machine.empty(), cudaErrorInitializationError);
    try {
      work();
    } catch (const std::invalid_argument& why) {  // of those that share the devices
      runtime().not_shared = std::string("initialization error: ") + why.what();
      return cudaErrorInitializationError;
    }
    return cudaSuccess;
  } catch (const Refusal& refusal) {
    return refusal.error;
  } catch (const std::bad_alloc&) {
    return cudaErrorMemoryAllocation;
  } catch (...) {
    return cudaErrorUnknown;
  }
}
/// The frame of every call of the runtime and of the driver: the fault seam, and all that. A call that gives something
/// back does so, and then reports the fault.
inline constexpr bool gives_back = true;
template <cudaError_t fault, bool back, class Work>
cudaError_t frame(const char* call, Work&& work) noexcept {
  const bool fails = fault_point(call);
  if (fails && back != gives_back) return fault;
  const cudaError_t error = guarded(work);
  return fails ? fault : error;
}
/// The runtime's calls also set the last error.
template <cudaError_t fault = cudaErrorUnknown, bool back = false, class Work>
cudaError_t entry(const char* call, Work&& work) noexcept {
  return set_last_error(frame<fault, back>(call, work));
}
/// Of a call that has a result: what work() returns.
template <cudaError_t fault = cudaErrorUnknown, class Result, class Work>
cudaError_t result_entry(const char* call, Result* result, Work&& work) noexcept {
  return entry<fault>(call, [&] {
    require(result);
    *result = work();
  });
}
// ------------------------------------------------------------------------------------------------------------- devices

int current_device();
/// The same, whether there is such a device or not.
int device_of_this_thread() noexcept;
Device& device_of(int number);
/// Refuses a number that is no device's.
void require_device(int number);
/// Takes `bytes` of a device's capacity; false when they are not there (plan mode: never).
bool charge(int device, std::size_t bytes);
void refund(int device, std::size_t bytes);
/// Makes this process's context on a device, when it has none yet; refuses where its bytes do not fit.
void need_context(int device);

// ------------------------------------------------------------------------------------------------------------- sharing

/// Joins those that share the machine's devices, unless this process has, or shares none. Throws std::invalid_argument.
void shared_join(const Machine& machine);
/// And leaves them, with all bytes it has.
void shared_leave();
/// Takes bytes that no living process has; false when they are not there. True where nothing is shared.
bool shared_take(int device, std::size_t bytes);
void shared_give(int device, std::size_t bytes);
std::size_t shared_by_others(int device);

// -------------------------------------------------------------------------------------------------------------- memory

inline constexpr std::size_t most_bytes = std::size_t(1) << 60;  ///< larger requests are refused unseen
#ifdef OOMLAB_HOST_ASAN
inline constexpr bool blocks_have_storage = true;  ///< so that AddressSanitizer knows where each one ends
#else
inline constexpr bool blocks_have_storage = false;
#endif
#if defined(OOMLAB_HOST_ASAN) || defined(OOMLAB_HOST_CHECK)
inline constexpr bool poisoned = true;  ///< fresh memory reads as NaN
#else
inline constexpr bool poisoned = false;
#endif
void add_block(void* address, const Block& block);
/// The block that begins at `address`; refuses when there is none, or one of another kind.
Blocks::iterator block_at(const void* address, std::initializer_list<Kind> kinds);
/// Removes a block and gives its memory back, after what `stream` has queued so far (nullptr: after nothing).
void release(Blocks::iterator found, CUstream_st* stream);
/// The part of it that concerns a pool's block.
void pool_release(void* address, const Block& block, CUstream_st* stream);
/// The block that holds `address`, or nullptr. `base` receives where it starts.
Block* find_block(const void* address, std::uintptr_t* base = nullptr);
/// False when the address is in a block, and fewer than `bytes` are left there.
bool in_bounds(const void* address, std::size_t bytes);
/// False for memory of a pool that this device may not reach.
bool open_to(const void* address, int device);
/// In plan mode an address that nothing has. Throws std::bad_alloc.
void* storage_allocate(std::size_t bytes);
void storage_free(void* storage, std::size_t bytes) noexcept;
/// Check and AddressSanitizer builds: fills fresh memory with NaN.
void poison(void* address, std::size_t bytes) noexcept;
std::uintptr_t plan_address(std::size_t bytes);
/// Address space without memory behind until it is touched, for munmap(). nullptr: no more.
void* lazy_allocate(std::size_t bytes) noexcept;
/// Gives unused pool memory of a device back, down to each pool's threshold (all of it, when `everything`).
void trim_pools(int device, bool everything);
cudaMemPool_t new_pool(Runtime& runtime, int device);
void destroy_default_pools();

// ------------------------------------------------------------------------------------------------------------ products

/// C [m, n] = alpha · op(A) [m, k] · op(B) [k, n] + beta · C, FP32, column-major; C is not read when beta is 0. On
/// OpenMP's threads, inside a parallel region on one. CMake chooses whose it is: sgemm/.
void sgemm(bool transpose_a, bool transpose_b, int m, int n, int k, float alpha, const float* a, int lda,
           const float* b, int ldb, float beta, float* c, int ldc);

// ------------------------------------------------------------------------------------------------------------- managed

/// While one is alive, managed memory is seen as `device` sees it: pages that are not there fault and migrate.
class DeviceView {
 public:
  explicit DeviceView(int device) noexcept;
  ~DeviceView();

 private:
  bool active_;
};
/// Ends a view that no work needs any more: the host may touch its pages again. For synchronising calls.
void managed_host_view() noexcept;
void* managed_allocate(std::size_t bytes);  // throws std::bad_alloc
void managed_free(void* address) noexcept;
bool managed_holds(const void* address) noexcept;
/// Bytes of managed memory on a device, and how many there may be: pages beyond are evicted.
std::size_t managed_resident(int device) noexcept;
void managed_set_limit(int device, std::size_t bytes) noexcept;

// ------------------------------------------------------------------------------------------------------------- streams

/// The stream meant by a handle; 0 is the default stream of `device`. nullptr: no such stream.
CUstream_st* stream_or_null(cudaStream_t handle, int device);
/// The same, of the current device; refuses when there is no such stream.
CUstream_st& find_stream(cudaStream_t handle);
CUstream_st* new_stream(Runtime& runtime, int device, bool blocking);
/// True when work on these must be queued rather than done now.
inline bool deferred() { return runtime().machine.deferred && !runtime().planning; }
Ticket submit(CUstream_st& stream, std::function<void()> work, Tickets after = {});
bool all_done(const Tickets& tickets);
/// Runs queued work, in a random order that respects streams and events, until these are done.
void drain(const Tickets& until);
/// The same for all that the streams of a device (-1: of all devices) have now.
void drain_device(int device);
/// Waits for what must be over before the stream does more.
void wait_for_unfinished(CUstream_st& stream);

/// Does `work`, which cannot fail, in stream order: now, with the mutex open, or later.
template <class Work>
void execute(CUstream_st& stream, Work&& work) {
  auto viewed = [device = stream.device, work = std::forward<Work>(work)] {
    const DeviceView view(device);
    work();
  };
  if (deferred()) return void(submit(stream, std::move(viewed)));
  wait_for_unfinished(stream);
  const Unlocked open;
  viewed();
}

/// Refuses when fits() is false, also after what the pools of a device hold and do not use was given back.
template <class Fits>
void make_fit(int device, Fits fits) {
  if (fits()) return;
  drain_device(device);
  trim_pools(device, true);
  require(fits(), cudaErrorMemoryAllocation);
}

}  // namespace oomlab::host
