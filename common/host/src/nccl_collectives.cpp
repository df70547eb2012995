// What the ranks of a communicator do together.
//
// Every operation has two halves. The first posts what this rank contributes to all who need it, and never waits; the
// second takes what the others have posted. So a group runs all first halves, then all second ones, and cannot block
// itself. A copy of the contribution is posted: the caller's buffer is free again when the call returns.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "nccl_calls.h"
#include "runtime.h"

namespace oomlab::host {
namespace {

constexpr const char* kNames[] = {"ncclAllReduce", "ncclReduce", "ncclBroadcast", "ncclReduceScatter",
                                  "ncclAllGather", "ncclSend",   "ncclRecv",      "ncclCommInitRank"};

thread_local char last_text[512] = "";

}  // namespace

struct Handshake final : Unfinished {
  Handshake(std::shared_ptr<World> world, int rank, int to) : world(std::move(world)), rank(rank), to(to) {}
  bool over() const override { return received; }
  void wait() override;  // a failure is the world's, and told by the next call

  std::shared_ptr<World> world;
  int rank, to;
  std::atomic<bool> received{false};
};

const char* name_of(Call call) { return kNames[static_cast<int>(call)]; }
const char* last_complaint() { return last_text; }

ncclResult_t complain(ncclResult_t result, const char* format, ...) {
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

ncclResult_t fail(World& world, ncclResult_t result, const std::string& why) {
  world.fail(result, why);
  return complain(world.result, "%s", world.failure.c_str());
}

std::size_t sent(const Request& o) {
  return o.call == Call::reduce_scatter ? o.count * std::size_t(o.comm->size) : o.count;
}
std::size_t received(const Request& o) {
  return o.call == Call::all_gather ? o.count * std::size_t(o.comm->size) : o.count;
}

namespace {

// Which device's rank is blocked, and on which other's: what may close a circle.
struct Blocked {
  int on;
  std::string what;
};
std::mutex blocked_mutex;
std::map<int, Blocked> blocked;

class BlockedScope {
 public:
  BlockedScope(int device, int on, std::string what) : device_(device) {
    const std::lock_guard lock(blocked_mutex);
    blocked[device] = {on, std::move(what)};
  }
  ~BlockedScope() {
    const std::lock_guard lock(blocked_mutex);
    blocked.erase(device_);
  }
  /// "A, B, in a circle: nobody can go on", when the one that is waited for waits for this one, however indirectly.
  std::string circle() const {
    const std::lock_guard lock(blocked_mutex);
    std::string text;
    int device = device_;
    for (std::size_t i = 0; i < blocked.size(); ++i) {
      const auto found = blocked.find(device);
      if (found == blocked.end()) break;
      text += found->second.what + ", ";
      device = found->second.on;
      if (device == device_) return text + "in a circle: nobody can go on";
    }
    return "";
  }

 private:
  int device_;
};

std::string who_waits(Call call, int rank, int from) {
  return std::string(name_of(call)) + ": rank " + std::to_string(rank) + " waits for rank " + std::to_string(from);
}

// Waits for something that rank `from` has to do.
template <class Done>
ncclResult_t wait_for(World& world, WorldLock& lock, int rank, int from, Call call, Done done) {
  const auto until = std::chrono::steady_clock::now() + patience();
  if (done()) return ncclSuccess;
  const auto over = [&] { return done() || !world.failure.empty() || world.gone[std::size_t(from)]; };
  const std::string who = who_waits(call, rank, from);
  const BlockedScope scope(world.device[std::size_t(rank)], world.device[std::size_t(from)], who);
  World::Wait& wait = world.waits[std::size_t(rank)];
  wait.from = from;
  const bool in_time =
      wait.changed.wait_until(lock, std::chrono::time_point_cast<std::chrono::nanoseconds>(until), over);
  wait.from = -1;
  if (done()) return ncclSuccess;
  if (!world.failure.empty()) return complain(world.result, "%s", world.failure.c_str());
  if (in_time) return fail(world, ncclRemoteError, who + ", which has left the communicator");
  if (const std::string circle = scope.circle(); !circle.empty()) return fail(world, ncclInvalidUsage, circle);
  return fail(world, ncclRemoteError, who + ", which does not come");
}

}  // namespace

void Handshake::wait() {
  if (received) return;
  WorldLock lock(world->mutex);
  (void)wait_for(*world, lock, rank, to, Call::send, [&] { return received.load(); });
  received = true;
}

namespace {

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

// The first half.
ncclResult_t post(const Request& o) {
  World& world = *o.comm->world;
  const int rank = o.comm->rank;
  if (o.call == Call::join) {
    const WorldLock lock(world.mutex);
    if (!world.failure.empty()) return complain(world.result, "%s", world.failure.c_str());
    for (int other = 0; other < world.size; ++other)
      if (world.device[std::size_t(other)] == o.comm->device && other != rank)
        return fail(world, ncclInvalidUsage,
                    "ranks " + std::to_string(std::min(rank, other)) + " and " + std::to_string(std::max(rank, other)) +
                        " are both on device " + std::to_string(o.comm->device));
    world.join(rank, o.comm->device);
    return ncclSuccess;
  }
  if (o.call == Call::receive) {
    const WorldLock lock(world.mutex);
    return world.failure.empty() ? ncclSuccess : complain(world.result, "%s", world.failure.c_str());
  }
  const bool contributes = o.call != Call::broadcast || rank == o.root;
  std::shared_ptr<std::vector<std::byte>> data;
  if (contributes) {
    const DeviceView view(o.comm->device);
    const auto* const from = static_cast<const std::byte*>(o.send);
    data = std::make_shared<std::vector<std::byte>>(from, from + sent(o) * bytes_of(o.type));
  }
  const auto handshake =
      o.call == Call::send && machine().rendezvous ? std::make_shared<Handshake>(o.comm->world, rank, o.root) : nullptr;
  {
    const WorldLock lock(world.mutex);
    if (!world.failure.empty()) return complain(world.result, "%s", world.failure.c_str());
    for (int to = 0; to < world.size; ++to)
      if (directly(o.call) ? to == o.root : true)
        world.deliver(rank, to, {o.call, o.count, o.type, o.op, o.root, data, handshake});
    if (!handshake || world.device[std::size_t(o.root)] < 0) return ncclSuccess;  // other processes: buffered
  }
  const Lock lock = lock_runtime();
  CUstream_st* const stream =
      o.stream ? find_stream(o.stream) : runtime().devices[std::size_t(o.comm->device)].null_stream;
  if (stream) stream->unfinished.push_back(handshake);
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
    if (const auto handshake = all.back().handshake.lock()) {
      handshake->received = true;
      world.waits[std::size_t(from)].changed.notify_all();
    }
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

}  // namespace

ncclResult_t run(const std::vector<Request>& requests) {
  std::size_t posted = 0;
  ncclResult_t result = ncclSuccess;
  for (; posted < requests.size() && !result; ++posted) result = post(requests[posted]);
  for (std::size_t i = 0; i < requests.size() && !result; ++i)
    if (!requests[i].comm->joining) result = finish(requests[i]);
  return result;
}

ncclResult_t set_up_state(ncclComm& comm) {
  World& world = *comm.world;
  const WorldLock lock(world.mutex);
  if (world.failure.empty()) {
    const auto missing = std::ranges::find(world.device, -1) - world.device.begin();
    comm.joining = missing < world.size;
    if (!comm.joining) return ncclSuccess;
    if (std::chrono::steady_clock::now() < comm.patient_until) return ncclInProgress;
    return fail(world, ncclRemoteError, who_waits(Call::join, comm.rank, int(missing)) + ", which does not come");
  }
  return complain(world.result, "%s", world.failure.c_str());
}

}  // namespace oomlab::host
