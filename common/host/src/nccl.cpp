// NCCL's calls, between threads of this process, and of others.

#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <set>

#include "nccl_calls.h"
#include "runtime.h"

namespace oomlab::host {
namespace {

thread_local int group_depth = 0;
thread_local std::vector<Request>* group = nullptr;
thread_local ncclResult_t group_result = ncclSuccess;
thread_local std::set<ncclComm_t> at_work;  // that this thread has given work to, and that it has not left

// The frame of every call: the fault seam, the runtime's scope, exceptions.
template <class Work>
ncclResult_t nccl_entry(const char* call, Work&& work) noexcept {
  if (fault_point(call)) return complain(ncclSystemError, "%s failed", call);
  const RuntimeScope scope;
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return complain(ncclSystemError, "%s: out of host memory", call);
  } catch (const std::exception& error) {
    return complain(ncclInternalError, "%s: %s", call, error.what());
  }
}

ncclResult_t submit(Request o) noexcept {
  return nccl_entry(name_of(o.call), [&] {
    const auto refuse = [&](ncclResult_t result, const char* why) {
      if (group_depth > 0) group_result = result;
      return complain(result, "%s: %s", name_of(o.call), why);
    };
    if (!o.comm) return refuse(ncclInvalidArgument, "no communicator");
    if (o.comm->joining) return refuse(ncclInvalidUsage, "the communicator is still being set up");
    if (!bytes_of(o.type)) return refuse(ncclInvalidArgument, "no such data type");
    if (o.op != ncclSum && o.op != ncclMax && o.op != ncclMin) return refuse(ncclInvalidArgument, "no such reduction");
    if (o.root < 0 || o.root >= o.comm->size) return refuse(ncclInvalidArgument, "no such rank");
    const bool sends = o.call != Call::receive && (o.call != Call::broadcast || o.comm->rank == o.root);
    const bool receives = o.call != Call::send && (o.call != Call::reduce || o.comm->rank == o.root);
    std::vector<int> peers;  // devices that must reach the buffers
    if (machine().rendezvous && o.comm->world) {
      const WorldLock lock(o.comm->world->mutex);
      std::ranges::copy_if(o.comm->world->device, std::back_inserter(peers), [](int device) { return device >= 0; });
    }
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
      for (const int device : peers)
        if ((sends && !open_to(o.send, device)) || (receives && !open_to(o.receive, device)))
          return refuse(ncclInvalidUsage, "a buffer is in a pool that another rank's device may not reach");
      if (runtime().planning) return ncclSuccess;
      at_work.insert(o.comm);
      wait_for_unfinished(lock, *stream);
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
  at_work.erase(comm);
  if (comm->world) {
    World& world = *comm->world;
    const WorldLock lock(world.mutex);
    if (abort) (void)fail(world, ncclRemoteError, "rank " + std::to_string(comm->rank) + " has aborted");
    world.leave(comm->rank);
    if (world.failure.empty())
      for (int from = 0; from < world.size; ++from) left_over += world.queue(true, from, comm->rank).size();
  }
  delete comm;
  count_communicator(-1);
  return left_over;
}

ncclResult_t world_of(const ncclUniqueId& id, int size, std::shared_ptr<World>& world) {
  std::string why;
  const ncclResult_t result = find_world(id, size, world, why);
  return result ? complain(result, "%s", why.c_str()) : ncclSuccess;
}

}  // namespace
}  // namespace oomlab::host

using namespace oomlab::host;

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
const char* ncclGetLastError(ncclComm_t) { return last_complaint(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return nccl_entry("ncclGetUniqueId", [&] {
    if (!id) return complain(ncclInvalidArgument, "ncclGetUniqueId: no place for the id");
    std::memset(id, 0, sizeof *id);
    const Key key = make_key();
    std::memcpy(id->internal, &key, sizeof key);
    return ncclSuccess;
  });
}

static ncclResult_t init_rank(const char* call, ncclComm_t* result, int ranks, const ncclUniqueId& id, int rank,
                              bool blocking) {
  if (fault_point(call)) {
    const RuntimeScope scope;
    std::shared_ptr<World> world;
    if (!planning() && ranks > 0 && world_of(id, ranks, world) == ncclSuccess) {
      const WorldLock lock(world->mutex);
      (void)fail(*world, ncclRemoteError, "rank " + std::to_string(rank) + " cannot join");
    }
    return complain(ncclSystemError, "%s failed", call);
  }
  const RuntimeScope scope;
  try {
    if (!result || ranks < 1 || rank < 0 || rank >= ranks)
      return complain(ncclInvalidArgument, "ncclCommInitRank: rank %d of %d", rank, ranks);
    std::shared_ptr<World> world;
    if (!planning()) {
      if (const ncclResult_t result = world_of(id, ranks, world)) return result;
      const WorldLock lock(world->mutex);
      if (world->size != ranks)
        return fail(*world, ncclInvalidUsage,
                    "ncclCommInitRank: " + std::to_string(ranks) + " ranks here, " + std::to_string(world->size) +
                        " elsewhere");
      if (world->device[std::size_t(rank)] != -1)
        return fail(*world, ncclInvalidUsage, "ncclCommInitRank: rank " + std::to_string(rank) + " comes twice");
    }
    auto comm = std::make_unique<ncclComm>(ncclComm{world, rank, ranks, current_device(), world && !blocking});
    comm->patient_until += std::chrono::duration_cast<std::chrono::steady_clock::duration>(patience());
    const Request join{.call = Call::join, .comm = comm.get()};
    if (world && group_depth > 0) {
      if (!group) group = new std::vector<Request>;
      group->push_back(join);
    } else if (world) {
      if (const ncclResult_t joined = run({join})) return joined;
    }
    count_communicator(1);
    *result = comm.release();
    return (*result)->joining ? ncclInProgress : ncclSuccess;
  } catch (...) {
    return complain(ncclSystemError, "ncclCommInitRank: out of host memory");
  }
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  return init_rank("ncclCommInitRank", comm, ranks, id, rank, /*blocking=*/true);
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  return init_rank("ncclCommInitRankConfig", comm, ranks, id, rank, !config || config->blocking != 0);
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
  const bool alone = group_depth == 0 && at_work.contains(comm);
  if (comm) (void)leave(comm, true);
  if (fault) return complain(ncclSystemError, "ncclCommAbort failed");
  if (machine().rendezvous && alone && !at_work.empty())
    return complain(ncclInvalidUsage,
                    "of several communicators that have work to end one is aborted outside of a group: "
                    "on a GPU it may wait for the others' for ever");
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  // How often this is asked during a set-up is a matter of time, so only the last answer counts as a call that may
  // fail.
  if (comm && result && comm->joining) {
    const RuntimeScope scope;
    *result = set_up_state(*comm);
    if (*result == ncclInProgress) return ncclSuccess;
  }
  return nccl_entry("ncclCommGetAsyncError", [&] {
    if (!comm || !result) return complain(ncclInvalidArgument, "ncclCommGetAsyncError: null");
    *result = ncclSuccess;
    if (!comm->world) return ncclSuccess;
    const WorldLock lock(comm->world->mutex);
    *result = comm->world->result;
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
