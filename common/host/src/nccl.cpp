// NCCL between threads of this process.
//
// Every operation has two halves. The first posts what this rank contributes to all who need it, and never waits; the
// second takes what the others have posted. So a group runs all first halves, then all second ones, and cannot block
// itself. A copy of the contribution is posted: the caller's buffer is free again when the call returns.

#include <nccl.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <chrono>
#include <condition_variable>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "runtime.h"

namespace oomlab::host {
namespace {

enum class Call { all_reduce, reduce, broadcast, reduce_scatter, all_gather, send, receive, join };
constexpr const char* kNames[] = {"ncclAllReduce", "ncclReduce", "ncclBroadcast", "ncclReduceScatter",
                                  "ncclAllGather", "ncclSend",   "ncclRecv",      "ncclCommInitRank"};
const char* name_of(Call call) { return kNames[static_cast<int>(call)]; }

/// What one rank has told another.
struct Posted {
  Call call;
  std::size_t count;
  ncclDataType_t type;
  int op, root;
  std::shared_ptr<const std::vector<std::byte>> data;
};

/// What the ranks of one communicator share.
struct World {
  World(std::uint64_t key, int size)
      : key(key),
        size(size),
        device(std::size_t(size), -1),
        gone(std::size_t(size)),
        collective(std::size_t(size) * std::size_t(size)),
        direct(collective.size()) {}
  ~World();
  std::deque<Posted>& queue(bool directly, int from, int to) {
    return (directly ? direct : collective)[std::size_t(from) * std::size_t(size) + std::size_t(to)];
  }

  std::mutex mutex;
  std::condition_variable changed;
  const std::uint64_t key;  // of its id
  const int size;
  std::vector<int> device;                             // by rank; -1: has not come yet
  std::vector<bool> gone;                              // by rank
  std::vector<std::deque<Posted>> collective, direct;  // from · size + to
  std::string failure;                                 // the first one; nothing works any more
  ncclResult_t result = ncclSuccess;
};

}  // namespace
}  // namespace oomlab::host

struct ncclComm {
  std::shared_ptr<oomlab::host::World> world;  // null in plan mode
  int rank = 0, size = 0, device = 0;
};

namespace oomlab::host {
namespace {

struct Request {
  Call call;
  ncclComm_t comm;
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclInt8;
  int op = 0, root = 0;  // root: or the peer
  cudaStream_t stream = nullptr;
};

std::mutex registry_mutex;
std::map<std::uint64_t, std::weak_ptr<World>> registry;  // by key
std::uint64_t next_id = 1;
// Worlds that failed before all had come: latecomers should not wait for ranks that have left.
struct Failed {
  std::uint64_t key = 0;
  char why[200] = "";
} failed_worlds[64];

thread_local char last_text[512] = "";
thread_local int group_depth = 0;
thread_local std::vector<Request>* group = nullptr;
thread_local ncclResult_t group_result = ncclSuccess;

__attribute__((format(printf, 2, 3))) ncclResult_t complain(ncclResult_t result, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(last_text, sizeof last_text, format, arguments);
  va_end(arguments);
  return result;
}

std::size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
  }
  return 0;
}

std::chrono::duration<double> patience() {
#ifdef OOMLAB_HOST_CHECK
  constexpr double kSeconds = 60;
#else
  constexpr double kSeconds = 8;
#endif
  const char* text = std::getenv("OOMLAB_HOST_NCCL_TIMEOUT");
  const double seconds = text ? std::strtod(text, nullptr) : 0;
  return std::chrono::duration<double>(seconds > 0 ? seconds : kSeconds);
}

using WorldLock = std::unique_lock<std::mutex>;

World::~World() {
  const std::lock_guard lock(registry_mutex);
  if (const auto mine = registry.find(key); mine != registry.end() && mine->second.expired()) registry.erase(mine);
}

// The first failure stands, and everybody hears of it.
ncclResult_t fail(World& world, ncclResult_t result, const std::string& why) {
  if (world.failure.empty()) {
    world.failure = why;
    world.result = result;
    world.changed.notify_all();
    const std::lock_guard lock(registry_mutex);
    Failed& failed = failed_worlds[world.key % std::size(failed_worlds)];
    failed.key = world.key;
    std::snprintf(failed.why, sizeof failed.why, "%s", why.c_str());
  }
  return complain(world.result, "%s", world.failure.c_str());
}

// Waits for something that rank `from` has to do.
template <class Done>
ncclResult_t wait_for(World& world, WorldLock& lock, int rank, int from, Call call, Done done) {
  const auto until = std::chrono::steady_clock::now() + patience();
  const auto over = [&] { return done() || !world.failure.empty() || world.gone[std::size_t(from)]; };
  const bool in_time =
      world.changed.wait_until(lock, std::chrono::time_point_cast<std::chrono::nanoseconds>(until), over);
  if (done()) return ncclSuccess;
  if (!world.failure.empty()) return complain(world.result, "%s", world.failure.c_str());
  const std::string who =
      std::string(name_of(call)) + ": rank " + std::to_string(rank) + " waits for rank " + std::to_string(from);
  if (in_time) return fail(world, ncclRemoteError, who + ", which has left the communicator");
  return fail(world, ncclRemoteError, who + ", which does not come");
}

template <class T, class Sum>
void reduce(std::byte* to, const std::vector<const std::byte*>& from, std::size_t count, int op) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = [&](std::size_t r) {
      T v;
      std::memcpy(&v, from[r] + i * sizeof(T), sizeof(T));
      return static_cast<Sum>(v);
    };
    Sum result = value(0);
    for (std::size_t r = 1; r < from.size(); ++r) {
      const Sum v = value(r);
      result = op == ncclSum ? static_cast<Sum>(result + v) : (op == ncclMax) == (v > result) ? v : result;
    }
    const T stored = static_cast<T>(result);
    std::memcpy(to + i * sizeof(T), &stored, sizeof(T));
  }
}

void reduce(void* to, const std::vector<const std::byte*>& from, std::size_t count, ncclDataType_t type, int op) {
  auto* const out = static_cast<std::byte*>(to);
  switch (type) {
    case ncclInt8: return reduce<std::int8_t, std::int8_t>(out, from, count, op);
    case ncclUint8: return reduce<std::uint8_t, std::uint8_t>(out, from, count, op);
    case ncclInt32: return reduce<std::int32_t, std::int32_t>(out, from, count, op);
    case ncclUint32: return reduce<std::uint32_t, std::uint32_t>(out, from, count, op);
    case ncclInt64: return reduce<std::int64_t, std::int64_t>(out, from, count, op);
    case ncclUint64: return reduce<std::uint64_t, std::uint64_t>(out, from, count, op);
    case ncclFloat16: return reduce<__half, float>(out, from, count, op);
    case ncclFloat32: return reduce<float, float>(out, from, count, op);
    case ncclFloat64: return reduce<double, double>(out, from, count, op);
    case ncclBfloat16: return reduce<__nv_bfloat16, float>(out, from, count, op);
  }
}

bool directly(Call call) { return call == Call::send || call == Call::receive; }

// Elements of `send`, and of `receive`.
std::size_t sent(const Request& o) {
  return o.call == Call::reduce_scatter ? o.count * std::size_t(o.comm->size) : o.count;
}
std::size_t received(const Request& o) {
  return o.call == Call::all_gather ? o.count * std::size_t(o.comm->size) : o.count;
}

// The first half.
ncclResult_t post(const Request& o) {
  World& world = *o.comm->world;
  const int rank = o.comm->rank;
  if (o.call == Call::join) {
    const WorldLock lock(world.mutex);
    for (int other = 0; other < world.size; ++other)
      if (world.device[std::size_t(other)] == o.comm->device && other != rank)
        return fail(world, ncclInvalidUsage,
                    "ranks " + std::to_string(std::min(rank, other)) + " and " + std::to_string(std::max(rank, other)) +
                        " are both on device " + std::to_string(o.comm->device));
    world.device[std::size_t(rank)] = o.comm->device;
    world.changed.notify_all();
    return ncclSuccess;
  }
  if (o.call == Call::receive) return ncclSuccess;
  const bool contributes = o.call != Call::broadcast || rank == o.root;
  std::shared_ptr<std::vector<std::byte>> data;
  if (contributes) {
    const DeviceView view(o.comm->device);
    const auto* const from = static_cast<const std::byte*>(o.send);
    data = std::make_shared<std::vector<std::byte>>(from, from + sent(o) * bytes_of(o.type));
  }
  const WorldLock lock(world.mutex);
  if (!world.failure.empty()) return complain(world.result, "%s", world.failure.c_str());
  for (int to = 0; to < world.size; ++to)
    if (directly(o.call) ? to == o.root : true)
      world.queue(directly(o.call), rank, to).push_back({o.call, o.count, o.type, o.op, o.root, data});
  world.changed.notify_all();
  return ncclSuccess;
}

std::string described(const Posted& p, bool with_root) {
  std::string text = std::string(name_of(p.call)) + " of " + std::to_string(p.count) + " elements of type " +
                     std::to_string(int(p.type));
  return with_root ? text + ", root " + std::to_string(p.root) : text;
}

// The second half.
ncclResult_t finish(const Request& o) {
  World& world = *o.comm->world;
  const int rank = o.comm->rank;
  WorldLock lock(world.mutex);
  if (o.call == Call::join) {
    for (int other = 0; other < world.size; ++other)
      if (const ncclResult_t result =
              wait_for(world, lock, rank, other, o.call, [&] { return world.device[std::size_t(other)] >= 0; }))
        return result;
    return ncclSuccess;
  }
  if (o.call == Call::send) return ncclSuccess;

  const int first = o.call == Call::receive ? o.root : 0, last = o.call == Call::receive ? o.root : world.size - 1;
  std::vector<Posted> all;
  for (int from = first; from <= last; ++from) {
    std::deque<Posted>& queue = world.queue(directly(o.call), from, rank);
    if (const ncclResult_t result = wait_for(world, lock, rank, from, o.call, [&] { return !queue.empty(); }))
      return result;
    all.push_back(std::move(queue.front()));
    queue.pop_front();
    const Posted& theirs = all.back();
    const Posted ours{o.call == Call::receive ? Call::send : o.call, o.count, o.type, o.op, o.root, nullptr};
    const bool rooted = o.call == Call::reduce || o.call == Call::broadcast;
    if (theirs.call != ours.call || theirs.count != ours.count || theirs.type != ours.type || theirs.op != ours.op ||
        (rooted && theirs.root != ours.root))
      return fail(world, ncclInvalidUsage,
                  "rank " + std::to_string(from) + " calls " + described(theirs, rooted) + ", rank " +
                      std::to_string(rank) + " " + (o.call == Call::receive ? "receives" : "calls") + " " +
                      described(ours, rooted));
  }
  lock.unlock();

  const DeviceView view(o.comm->device);
  const std::size_t bytes = o.count * bytes_of(o.type);
  auto* const to = static_cast<std::byte*>(o.receive);
  switch (o.call) {
    case Call::receive: std::memcpy(to, all[0].data->data(), bytes); break;
    case Call::broadcast: std::memcpy(to, all[std::size_t(o.root)].data->data(), bytes); break;
    case Call::all_gather:
      for (std::size_t r = 0; r < all.size(); ++r) std::memcpy(to + r * bytes, all[r].data->data(), bytes);
      break;
    default:
      if (o.call == Call::reduce && rank != o.root) break;
      std::vector<const std::byte*> from;
      for (const Posted& p : all)
        from.push_back(p.data->data() + (o.call == Call::reduce_scatter ? std::size_t(rank) * bytes : 0));
      reduce(to, from, o.count, o.type, o.op);
  }
  return ncclSuccess;
}

ncclResult_t run(const std::vector<Request>& requests) {
  std::size_t posted = 0;
  ncclResult_t result = ncclSuccess;
  for (; posted < requests.size() && !result; ++posted) result = post(requests[posted]);
  for (std::size_t i = 0; i < requests.size() && !result; ++i) result = finish(requests[i]);
  return result;
}

// The frame of every call: the fault seam, the runtime's scope, exceptions.
template <class Work>
ncclResult_t nccl_entry(const char* call, Work&& work) noexcept {
  if (fault_point(call)) return complain(ncclSystemError, "%s failed", call);
  const RuntimeScope scope;
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return complain(ncclSystemError, "%s: out of host memory", call);
  } catch (...) {
    return complain(ncclInternalError, "%s failed", call);
  }
}

ncclResult_t submit(Request o) noexcept {
  return nccl_entry(name_of(o.call), [&] {
    const auto refuse = [&](ncclResult_t result, const char* why) {
      if (group_depth > 0) group_result = result;
      return complain(result, "%s: %s", name_of(o.call), why);
    };
    if (!o.comm) return refuse(ncclInvalidArgument, "no communicator");
    if (!bytes_of(o.type)) return refuse(ncclInvalidArgument, "no such data type");
    if (o.op != ncclSum && o.op != ncclMax && o.op != ncclMin) return refuse(ncclInvalidArgument, "no such reduction");
    if (o.root < 0 || o.root >= o.comm->size) return refuse(ncclInvalidArgument, "no such rank");
    const bool sends = o.call != Call::receive && (o.call != Call::broadcast || o.comm->rank == o.root);
    const bool receives = o.call != Call::send && (o.call != Call::reduce || o.comm->rank == o.root);
    {
      Lock lock = lock_runtime();
      CUstream_st* const stream =
          o.stream ? find_stream(o.stream) : runtime().devices[std::size_t(o.comm->device)].null_stream;
      if (!stream) return refuse(ncclInvalidArgument, "no such stream");
      if (stream->device != o.comm->device) return refuse(ncclInvalidArgument, "the stream is on another device");
      if (o.count && ((sends && !o.send) || (receives && !o.receive)))
        return refuse(ncclInvalidArgument, "a buffer is null");
      if ((sends && !in_bounds(o.send, sent(o) * bytes_of(o.type))) ||
          (receives && !in_bounds(o.receive, received(o) * bytes_of(o.type))))
        return refuse(ncclInvalidArgument, "a buffer is too small");
      if (runtime().planning) return ncclSuccess;
      if (deferred())
        if (drain(lock, {stream->id, stream->submitted}) != cudaSuccess)
          return refuse(ncclUnhandledCudaError, "work queued before has failed");
    }
    if (group_depth > 0) {
      if (!group) group = new std::vector<Request>;
      group->push_back(o);
      return ncclSuccess;
    }
    return run({o});
  });
}

void count_communicator(int delta) {
  const Lock lock = lock_runtime();
  runtime().live.communicators += static_cast<std::size_t>(delta);
}

// Ends a rank's part in its world. Returns what it has not received.
std::size_t leave(ncclComm_t comm, bool abort) {
  std::size_t left_over = 0;
  if (comm->world) {
    World& world = *comm->world;
    const WorldLock lock(world.mutex);
    world.gone[std::size_t(comm->rank)] = true;
    if (abort) (void)fail(world, ncclRemoteError, "rank " + std::to_string(comm->rank) + " has aborted");
    if (world.failure.empty())
      for (int from = 0; from < world.size; ++from) left_over += world.queue(true, from, comm->rank).size();
    world.changed.notify_all();
  }
  delete comm;
  count_communicator(-1);
  return left_over;
}

// The world of an id, made by whoever comes first.
ncclResult_t find_world(const ncclUniqueId& id, int size, std::shared_ptr<World>& world) {
  std::uint64_t key = 0;
  std::memcpy(&key, id.internal, sizeof key);
  const std::lock_guard lock(registry_mutex);
  if (key == 0 || key >= next_id)
    return complain(ncclInvalidArgument, "ncclCommInitRank: this id is not from ncclGetUniqueId()");
  if (const Failed& failed = failed_worlds[key % std::size(failed_worlds)]; failed.key == key)
    return complain(ncclRemoteError, "%s", failed.why);
  std::weak_ptr<World>& entry = registry[key];
  world = entry.lock();
  if (!world) entry = world = std::make_shared<World>(key, size);
  return ncclSuccess;
}

}  // namespace
}  // namespace oomlab::host

using namespace oomlab::host;

ncclResult_t ncclGetVersion(int* version) {
  return nccl_entry("ncclGetVersion", [&] {
    if (!version) return complain(ncclInvalidArgument, "ncclGetVersion: no place for the version");
    *version = NCCL_MAJOR * 10000 + NCCL_MINOR * 100;
    return ncclSuccess;
  });
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
  }
  return "unknown result code";
}
const char* ncclGetLastError(ncclComm_t) { return last_text; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return nccl_entry("ncclGetUniqueId", [&] {
    if (!id) return complain(ncclInvalidArgument, "ncclGetUniqueId: no place for the id");
    std::memset(id, 0, sizeof *id);
    const std::lock_guard lock(registry_mutex);
    std::memcpy(id->internal, &next_id, sizeof next_id);
    ++next_id;
    return ncclSuccess;
  });
}

ncclResult_t ncclCommInitRank(ncclComm_t* result, int ranks, ncclUniqueId id, int rank) {
  if (fault_point("ncclCommInitRank")) {
    const RuntimeScope scope;
    std::shared_ptr<World> world;
    if (!planning() && ranks > 0 && find_world(id, ranks, world) == ncclSuccess) {
      const WorldLock lock(world->mutex);
      (void)fail(*world, ncclRemoteError, "rank " + std::to_string(rank) + " cannot join");
    }
    return complain(ncclSystemError, "ncclCommInitRank failed");
  }
  const RuntimeScope scope;
  try {
    if (!result || ranks < 1 || rank < 0 || rank >= ranks)
      return complain(ncclInvalidArgument, "ncclCommInitRank: rank %d of %d", rank, ranks);
    std::shared_ptr<World> world;
    if (!planning()) {
      if (const ncclResult_t result = find_world(id, ranks, world)) return result;
      const WorldLock lock(world->mutex);
      if (world->size != ranks)
        return fail(*world, ncclInvalidUsage,
                    "ncclCommInitRank: " + std::to_string(ranks) + " ranks here, " + std::to_string(world->size) +
                        " elsewhere");
      if (world->device[std::size_t(rank)] >= 0)
        return fail(*world, ncclInvalidUsage, "ncclCommInitRank: rank " + std::to_string(rank) + " comes twice");
    }
    auto comm = std::make_unique<ncclComm>(ncclComm{world, rank, ranks, current_device()});
    const Request join{.call = Call::join, .comm = comm.get()};
    if (world && group_depth > 0) {
      if (!group) group = new std::vector<Request>;
      group->push_back(join);
    } else if (world) {
      if (const ncclResult_t joined = run({join})) return joined;
    }
    count_communicator(1);
    *result = comm.release();
    return ncclSuccess;
  } catch (...) {
    return complain(ncclSystemError, "ncclCommInitRank: out of host memory");
  }
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const bool fault = fault_point("ncclCommDestroy");
  const RuntimeScope scope;
  if (!comm) return ncclSuccess;
  const int rank = comm->rank;
  const std::size_t left_over = leave(comm, false);
  if (fault) return complain(ncclSystemError, "ncclCommDestroy failed");
  if (left_over)
    return complain(ncclInvalidUsage, "rank %d leaves %zu message(s) that it was sent and never received", rank,
                    left_over);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const bool fault = fault_point("ncclCommAbort");
  const RuntimeScope scope;
  if (comm) (void)leave(comm, true);
  return fault ? complain(ncclSystemError, "ncclCommAbort failed") : ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  return nccl_entry("ncclCommGetAsyncError", [&] {
    if (!comm || !result) return complain(ncclInvalidArgument, "ncclCommGetAsyncError: null");
    *result = ncclSuccess;
    if (!comm->world) return ncclSuccess;
    const WorldLock lock(comm->world->mutex);
    *result = comm->world->result;
    return ncclSuccess;
  });
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  return nccl_entry("ncclCommCount", [&] {
    if (!comm || !count) return complain(ncclInvalidArgument, "ncclCommCount: null");
    *count = comm->size;
    return ncclSuccess;
  });
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  return nccl_entry("ncclCommUserRank", [&] {
    if (!comm || !rank) return complain(ncclInvalidArgument, "ncclCommUserRank: null");
    *rank = comm->rank;
    return ncclSuccess;
  });
}
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  return nccl_entry("ncclCommCuDevice", [&] {
    if (!comm || !device) return complain(ncclInvalidArgument, "ncclCommCuDevice: null");
    *device = comm->device;
    return ncclSuccess;
  });
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return submit({Call::all_reduce, comm, send, receive, count, type, op, 0, stream});
}
ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return submit({Call::reduce, comm, send, receive, count, type, op, root, stream});
}
ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return submit({Call::broadcast, comm, send, receive, count, type, ncclSum, root, stream});
}
ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t receive_count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return submit({Call::reduce_scatter, comm, send, receive, receive_count, type, op, 0, stream});
}
ncclResult_t ncclAllGather(const void* send, void* receive, size_t send_count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return submit({Call::all_gather, comm, send, receive, send_count, type, ncclSum, 0, stream});
}
ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return submit({Call::send, comm, send, nullptr, count, type, ncclSum, peer, stream});
}
ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return submit({Call::receive, comm, nullptr, receive, count, type, ncclSum, peer, stream});
}

ncclResult_t ncclGroupStart(void) {
  return nccl_entry("ncclGroupStart", [&] {
    ++group_depth;
    return ncclSuccess;
  });
}

ncclResult_t ncclGroupEnd(void) {
  const bool fault = fault_point("ncclGroupEnd");
  const RuntimeScope scope;
  if (group_depth == 0) return complain(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--group_depth > 0) return fault ? complain(ncclSystemError, "ncclGroupEnd failed") : ncclSuccess;
  const std::unique_ptr<std::vector<Request>> requests(std::exchange(group, nullptr));
  const ncclResult_t refused = std::exchange(group_result, ncclSuccess);
  if (fault) return complain(ncclSystemError, "ncclGroupEnd failed");
  if (refused || !requests) return refused;
  try {
    return run(*requests);
  } catch (...) {
    return complain(ncclSystemError, "ncclGroupEnd: out of host memory");
  }
}
