// NCCL's calls, between threads of this process, and of others.

#include <nccl.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <set>

#include "nccl_world.h"
#include "runtime.h"

namespace oomlab::host {
namespace {

thread_local int group_depth = 0;
thread_local std::vector<Request> group;
thread_local ncclResult_t group_result = ncclSuccess;
thread_local std::set<ncclComm_t> at_work;  // that this thread has given work to, and that it has not left
thread_local char complaint[512] = "";      // for ncclGetLastError()

ncclResult_t complain(ncclResult_t result, std::string_view why) noexcept {
  std::snprintf(complaint, sizeof complaint, "%.*s", static_cast<int>(why.size()), why.data());
  return result;
}

// The frame of every call: the runtime's scope, exceptions, and the fault, with which a call does nothing. One that has
// something to give back is told, does so in work(fault), and then reports it.
template <class Work>
ncclResult_t nccl_entry(const char* call, Work&& work) noexcept {
  const bool fault = fault_point(call);
  const RuntimeScope scope;
  try {
    if constexpr (std::is_invocable_v<Work, bool>)
      work(fault);
    else if (!fault)
      work();
    return fault ? complain(ncclSystemError, std::string(call) + " failed") : ncclSuccess;
  } catch (const NcclRefusal& refusal) {
    return complain(refusal.result, refusal.why);
  } catch (const std::bad_alloc&) {
    return complain(ncclSystemError, "out of host memory");
  } catch (const std::exception& error) {
    return complain(ncclInternalError, error.what());
  }
}
void check(const Request& o) {
  const auto must = [&](bool met, ncclResult_t otherwise, const char* why) {
    if (met) return;
    if (group_depth > 0) group_result = otherwise;
    refuse(otherwise, std::string(name_of(o.what.call)) + ": " + why);
  };
  must(o.comm, ncclInvalidArgument, "no communicator");
  must(!o.comm->joining, ncclInvalidUsage, "the communicator is still being set up");
  must(bytes_of(o.what.type), ncclInvalidArgument, "no such data type");
  must(o.what.root >= 0 && o.what.root < o.comm->size, ncclInvalidArgument, "no such rank");
  std::vector<int> peers;  // devices that must reach the buffers
  if (machine().rendezvous && o.comm->world) {
    const WorldLock lock(o.comm->world->mutex);
    for (const World::Rank& rank : o.comm->world->ranks)
      if (rank.device >= 0) peers.push_back(rank.device);
  }
  const std::lock_guard lock(runtime().mutex);
  CUstream_st* const stream = stream_or_null(o.stream, o.comm->device);
  must(stream, ncclInvalidArgument, "no such stream");
  must(stream->device == o.comm->device, ncclInvalidArgument, "the stream is on another device");
  for (const auto& [buffer, bytes] : {std::pair(o.send, sent_bytes(o)), {o.receive, received_bytes(o)}}) {
    if (bytes == 0) continue;
    must(buffer, ncclInvalidArgument, "a buffer is null");
    must(in_bounds(buffer, bytes), ncclInvalidArgument, "a buffer is too small");
    for (const int device : peers)
      must(open_to(buffer, device), ncclInvalidUsage, "a buffer is in a pool that another rank's device may not reach");
  }
  if (runtime().planning) return;
  at_work.insert(o.comm);
  wait_for_unfinished(*stream);
  if (deferred()) drain({{stream->id, stream->submitted}});
}

ncclResult_t submit(Request o) noexcept {
  return nccl_entry(name_of(o.what.call), [&] {
    check(o);
    if (planning()) return;
    if (group_depth > 0)
      group.push_back(o);
    else
      run({o});
  });
}

// Ends a rank's part in its world. Returns what it has not received.
std::size_t leave(ncclComm_t comm, bool abort) {
  std::size_t left_over = 0;
  at_work.erase(comm);
  if (comm->world) {
    World& world = *comm->world;
    const WorldLock lock(world.mutex);
    if (abort) world.fail(ncclRemoteError, "rank " + std::to_string(comm->rank) + " has aborted");
    world.say({.kind = Message::Kind::left, .from = comm->rank});
    if (world.failure.empty())
      for (int from = 0; from < world.size; ++from) left_over += world.queue(Call::send, from, comm->rank).size();
  }
  delete comm;
  count_live(&Live::communicators, -1);
  return left_over;
}

ncclResult_t init_rank(const char* call, ncclComm_t* result, int ranks, const ncclUniqueId& id, int rank,
                       bool blocking) {
  const ncclResult_t made = nccl_entry(call, [&](bool fault) {
    if (!result || ranks < 1 || rank < 0 || rank >= ranks)
      refuse(ncclInvalidArgument, "ncclCommInitRank: rank " + std::to_string(rank) + " of " + std::to_string(ranks));
    const std::shared_ptr<World> world = planning() ? nullptr : find_world(id, ranks);
    if (world && fault) {
      const WorldLock lock(world->mutex);
      world->fail(ncclRemoteError, "rank " + std::to_string(rank) + " cannot join");
    }
    if (fault) return;
    auto comm = std::make_unique<ncclComm>(ncclComm{world, rank, ranks, current_device(), blocking, world && !blocking});
    comm->patient_until = std::chrono::steady_clock::now() + patience();
    const Request join{{.call = Call::join}, comm.get()};
    if (world && group_depth > 0)
      group.push_back(join);
    else if (world)
      run({join});
    count_live(&Live::communicators, +1);
    *result = comm.release();
  });
  return made == ncclSuccess && (*result)->joining ? ncclInProgress : made;
}

}  // namespace
}  // namespace oomlab::host

using namespace oomlab::host;

const char* ncclGetErrorString(ncclResult_t result) {
  constexpr const char* texts[] = {"no error",
                                   "unhandled cuda error",
                                   "unhandled system error",
                                   "internal error",
                                   "invalid argument",
                                   "invalid usage",
                                   "remote process exited or there was a network error",
                                   "NCCL operation in progress"};
  return result >= 0 && result < std::ssize(texts) ? texts[result] : "unknown result code";
}
const char* ncclGetLastError(ncclComm_t) { return complaint; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return nccl_entry("ncclGetUniqueId", [&] {
    if (!id) refuse(ncclInvalidArgument, "ncclGetUniqueId: no place for the id");
    const Key key = make_key();
    *id = {};
    std::memcpy(id->internal, &key, sizeof key);
  });
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  return init_rank("ncclCommInitRank", comm, ranks, id, rank, /*blocking=*/true);
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  return init_rank("ncclCommInitRankConfig", comm, ranks, id, rank, !config || config->blocking != 0);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return nccl_entry("ncclCommDestroy", [&](bool fault) {
    if (!comm) return;
    const std::string who = "rank " + std::to_string(comm->rank);
    if (const std::size_t left_over = leave(comm, false); left_over && !fault)
      refuse(ncclInvalidUsage,
             who + " leaves " + std::to_string(left_over) + " message(s) that it was sent and never received");
  });
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return nccl_entry("ncclCommAbort", [&](bool fault) {
    const bool alone = group_depth == 0 && at_work.contains(comm);
    if (comm) leave(comm, true);
    if (machine().rendezvous && alone && !at_work.empty() && !fault)
      refuse(ncclInvalidUsage,
             "of several communicators that have work to end one is aborted outside of a group: "
             "on a GPU it may wait for the others' for ever");
  });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  // How often this is asked during a set-up is a matter of time, so only the last answer counts as a call that may
  // fail.
  if (comm && result && comm->joining && in_progress(*comm)) {
    *result = ncclInProgress;
    return ncclSuccess;
  }
  return nccl_entry("ncclCommGetAsyncError", [&] {
    if (!comm || !result) refuse(ncclInvalidArgument, "ncclCommGetAsyncError: null");
    *result = ncclSuccess;
    if (!comm->world) return;
    const WorldLock lock(comm->world->mutex);
    *result = comm->world->result;
    if (*result) complain(*result, comm->world->failure);
  });
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t,
                           ncclComm_t comm, cudaStream_t stream) {
  return submit({{Call::all_reduce, type, 0, count}, comm, send, receive, stream});
}
ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return submit({{Call::reduce, type, root, count}, comm, send, receive, stream});
}
ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return submit({{Call::broadcast, type, root, count}, comm, send, receive, stream});
}
ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t receive_count, ncclDataType_t type, ncclRedOp_t,
                               ncclComm_t comm, cudaStream_t stream) {
  return submit({{Call::reduce_scatter, type, 0, receive_count}, comm, send, receive, stream});
}
ncclResult_t ncclAllGather(const void* send, void* receive, size_t send_count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return submit({{Call::all_gather, type, 0, send_count}, comm, send, receive, stream});
}
ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return submit({{Call::send, type, peer, count}, comm, send, nullptr, stream});
}
ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return submit({{Call::receive, type, peer, count}, comm, nullptr, receive, stream});
}

ncclResult_t ncclGroupStart(void) {
  return nccl_entry("ncclGroupStart", [] { ++group_depth; });
}

ncclResult_t ncclGroupEnd(void) {
  bool in_progress = false;  // for all that the caller may take for granted
  const ncclResult_t ended = nccl_entry("ncclGroupEnd", [&](bool fault) {
    if (group_depth == 0) refuse(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    if (--group_depth > 0) return;
    const std::vector<Request> requests = std::exchange(group, {});
    const ncclResult_t refused = std::exchange(group_result, ncclSuccess);
    if (fault) return;
    if (refused) refuse(refused, complaint);
    run(requests);
    in_progress = std::ranges::any_of(requests, [](const Request& r) { return !r.comm->blocking; });
  });
  return ended == ncclSuccess && in_progress ? ncclInProgress : ended;
}
