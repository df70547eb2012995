// NCCL between threads of this process, and of others (nccl_wire.cpp).
//
// Every operation has two halves. The first posts what this rank contributes to all who need it, and never waits; the
// second takes what the others have posted. So a group runs all first halves, then all second ones, and cannot block
// itself. A copy of the contribution is posted: the caller's buffer is free again when the call returns.

#include <nccl.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "nccl_world.h"
#include "runtime.h"

namespace oomlab::host {
namespace {

constexpr const char* kNames[] = {"ncclAllReduce", "ncclReduce", "ncclBroadcast", "ncclReduceScatter",
                                  "ncclAllGather", "ncclSend",   "ncclRecv",      "ncclCommInitRank"};
const char* name_of(Call call) { return kNames[static_cast<int>(call)]; }

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
std::map<Key, std::weak_ptr<World>> registry;
std::uint64_t next_id = 1;
// Worlds that failed before all had come: latecomers should not wait for ranks that have left.
struct Failed {
  Key key;
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

using WorldLock = std::unique_lock<std::mutex>;

ncclResult_t fail(World& world, ncclResult_t result, const std::string& why) {
  world.fail(result, why);
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
    world.join(rank, o.comm->device, nullptr);
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
    if (directly(o.call) ? to == o.root : true) world.deliver(rank, to, {o.call, o.count, o.type, o.op, o.root, data});
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
              wait_for(world, lock, rank, other, o.call, [&] { return world.device[std::size_t(other)] != -1; }))
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
    if (abort) (void)fail(world, ncclRemoteError, "rank " + std::to_string(comm->rank) + " has aborted");
    world.leave(comm->rank, nullptr);
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

// Another one in every process.
std::uint64_t this_process() {
  static const std::uint64_t number = [] {
    std::random_device random;
    return (std::uint64_t(random()) << 32 | random()) | 1;
  }();
  return number;
}

}  // namespace

std::chrono::duration<double> patience() {
#ifdef OOMLAB_HOST_CHECK
  constexpr double kSeconds = 60;
#else
  const double kSeconds = processes_expected() ? 6 : 8;
#endif
  const char* text = std::getenv("OOMLAB_HOST_NCCL_TIMEOUT");
  const double seconds = text ? std::strtod(text, nullptr) : 0;
  return std::chrono::duration<double>(seconds > 0 ? seconds : kSeconds);
}

bool others_need_the_hub() {
  const RuntimeScope scope;
  std::vector<std::shared_ptr<World>> worlds;
  {
    const std::lock_guard lock(registry_mutex);
    for (const auto& [key, entry] : registry)
      if (std::shared_ptr<World> world = key.process == this_process() ? entry.lock() : nullptr)
        worlds.push_back(std::move(world));
  }
  return std::any_of(worlds.begin(), worlds.end(), [](const std::shared_ptr<World>& world) {
    const WorldLock lock(world->mutex);
    bool here = false, elsewhere = false;  // is a rank at work
    for (std::size_t rank = 0; rank < world->device.size(); ++rank)
      if (!world->gone[rank]) (world->device[rank] >= 0 ? here : elsewhere) = true;
    return elsewhere && !here && world->failure.empty();
  });
}

IdContent make_id() {
  IdContent id;
  if (processes_expected()) listen_for_processes(id);
  const std::lock_guard lock(registry_mutex);
  id.key = {this_process(), next_id++};
  return id;
}

ncclResult_t find_world(const ncclUniqueId& id, int size, std::shared_ptr<World>& world, std::string& why) {
  IdContent content;
  std::memcpy(&content, id.internal, sizeof content);
  const bool mine = content.key.process == this_process();
  {
    const std::lock_guard lock(registry_mutex);
    if (mine ? content.key.number == 0 || content.key.number >= next_id : content.port == 0) {
      why = "ncclCommInitRank: this id is not from ncclGetUniqueId()";
      return ncclInvalidArgument;
    }
    const Failed& failed = failed_worlds[content.key.number % std::size(failed_worlds)];
    if (failed.key == content.key) {
      why = failed.why;
      return ncclRemoteError;
    }
    if (const auto known = registry.find(content.key); known != registry.end()) world = known->second.lock();
    if (world) return ncclSuccess;
  }
  const auto made = std::make_shared<World>(content.key, size);
  if (!mine) {
    const WorldLock lock(made->mutex);  // no news before this is done
    try {
      made->to_the_hub = call_the_hub(content, *made);
    } catch (const std::runtime_error& error) {
      why = std::string("ncclCommInitRank: ") + error.what();
      return ncclRemoteError;
    }
    made->lines.push_back(made->to_the_hub.get());
  }
  const std::lock_guard lock(registry_mutex);
  std::weak_ptr<World>& entry = registry[content.key];
  world = entry.lock();  // another thread may have been faster
  if (!world) entry = world = made;
  return ncclSuccess;
}

World::World(const Key& key, int size)
    : key(key),
      size(size),
      device(std::size_t(size), -1),
      gone(std::size_t(size)),
      collective(std::size_t(size) * std::size_t(size)),
      direct(collective.size()),
      line_of(std::size_t(size)) {}

World::~World() {
  to_the_hub.reset();  // its threads use the rest
  const std::lock_guard lock(registry_mutex);
  if (const auto mine = registry.find(key); mine != registry.end() && mine->second.expired()) registry.erase(mine);
}

void World::tell(const Message& message, const Bytes& data, const Line* except) {
  for (Line* line : lines)
    if (line != except) line->send(message, data);
}

void World::join(int rank, int its_device, Line* source) {
  const auto r = static_cast<std::size_t>(rank);
  device[r] = source ? -2 : its_device;
  line_of[r] = source;
  tell({.kind = Message::Kind::joined, .from = rank}, nullptr, source);
  // What was posted to it before anybody knew where it is.
  for (int from = 0; source && from < size; ++from)
    for (const bool directly : {false, true})
      for (auto& waiting = queue(directly, from, rank); !waiting.empty(); waiting.pop_front())
        deliver(from, rank, std::move(waiting.front()));
  changed.notify_all();
}

void World::deliver(int from, int to, Posted posted) {
  Line* line = line_of[std::size_t(to)];
  if (!line && device[std::size_t(to)] == -1) line = to_the_hub.get();
  if (line) {
    const Message message{.kind = Message::Kind::posted,
                          .from = from,
                          .to = to,
                          .call = int(posted.call),
                          .type = int(posted.type),
                          .op = posted.op,
                          .root = posted.root,
                          .count = posted.count};
    return line->send(message, std::move(posted.data));
  }
  const bool directly = posted.call == Call::send;
  queue(directly, from, to).push_back(std::move(posted));
  changed.notify_all();
}

void World::leave(int rank, Line* source) {
  gone[std::size_t(rank)] = true;
  tell({.kind = Message::Kind::left, .from = rank}, nullptr, source);
  changed.notify_all();
}

void World::fail(ncclResult_t its_result, const std::string& why, Line* source) {
  if (!failure.empty()) return;
  failure = why;
  result = its_result;
  auto text = std::make_shared<std::vector<std::byte>>(why.size());
  std::memcpy(text->data(), why.data(), why.size());
  tell({.kind = Message::Kind::failed, .result = int(result)}, text, source);
  changed.notify_all();
  const std::lock_guard lock(registry_mutex);
  Failed& failed = failed_worlds[key.number % std::size(failed_worlds)];
  failed.key = key;
  std::snprintf(failed.why, sizeof failed.why, "%s", why.c_str());
}

void World::receive(const Message& m, Bytes data, Line* source) {
  const auto valid = [&](int rank) { return rank >= 0 && rank < size; };
  switch (m.kind) {
    case Message::Kind::joined:
      if (valid(m.from) && device[std::size_t(m.from)] != -1)
        return fail(ncclInvalidUsage, "ncclCommInitRank: rank " + std::to_string(m.from) + " comes twice");
      if (valid(m.from)) join(m.from, -2, source);
      break;
    case Message::Kind::posted:
      if (valid(m.from) && valid(m.to))
        deliver(m.from, m.to,
                {Call(m.call), std::size_t(m.count), ncclDataType_t(m.type), m.op, m.root, std::move(data)});
      break;
    case Message::Kind::left:
      if (valid(m.from)) leave(m.from, source);
      break;
    case Message::Kind::failed:
      fail(ncclResult_t(m.result), data ? std::string(reinterpret_cast<const char*>(data->data()), data->size()) : "?",
           source);
      break;
    case Message::Kind::hello:
    case Message::Kind::welcome: break;
  }
}

void World::hang_up(Line* line) {
  std::erase(lines, line);
  std::string who;
  for (std::size_t rank = 0; rank < line_of.size(); ++rank) {
    if (line_of[rank] != line) continue;
    if (!gone[rank]) who += (who.empty() ? "rank " : ", ") + std::to_string(rank);
    line_of[rank] = nullptr;
  }
  if (!who.empty()) fail(ncclRemoteError, who + ": the process has ended, or cannot be reached any more");
}

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
    const IdContent content = make_id();
    std::memcpy(id->internal, &content, sizeof content);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommInitRank(ncclComm_t* result, int ranks, ncclUniqueId id, int rank) {
  if (fault_point("ncclCommInitRank")) {
    const RuntimeScope scope;
    std::shared_ptr<World> world;
    if (!planning() && ranks > 0 && world_of(id, ranks, world) == ncclSuccess) {
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
      if (const ncclResult_t result = world_of(id, ranks, world)) return result;
      const WorldLock lock(world->mutex);
      if (world->size != ranks)
        return fail(*world, ncclInvalidUsage,
                    "ncclCommInitRank: " + std::to_string(ranks) + " ranks here, " + std::to_string(world->size) +
                        " elsewhere");
      if (world->device[std::size_t(rank)] != -1)
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
