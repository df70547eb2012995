// What the ranks of a communicator do together.
//
// Every operation has two halves. The first posts what this rank contributes to all who need it, and never waits; the
// second takes what the others have posted. So a group runs all first halves, then all second ones, and cannot block
// itself. A copy of the contribution is posted: the caller's buffer is free again when the call returns.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>

#include "nccl_world.h"
#include "runtime.h"

namespace oomlab::host {
namespace {

constexpr const char* names_of_calls[] = {"ncclAllReduce", "ncclReduce", "ncclBroadcast", "ncclReduceScatter",
                                          "ncclAllGather", "ncclSend",   "ncclRecv",      "ncclCommInitRank"};

thread_local char last_text[512] = "";

}  // namespace

const char* name_of(Call call) { return names_of_calls[static_cast<int>(call)]; }
const char* last_complaint() { return last_text; }

std::size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclFloat32: return 4;
  }
  return 0;
}
std::size_t sent_bytes(const Request& o) {
  const auto [call, type, root, count] = o.what;
  if (call == Call::receive || call == Call::join || (call == Call::broadcast && o.comm->rank != root)) return 0;
  return count * bytes_of(type) * std::size_t(call == Call::reduce_scatter ? o.comm->size : 1);
}
std::size_t received_bytes(const Request& o) {
  const auto [call, type, root, count] = o.what;
  if (call == Call::send || call == Call::join || (call == Call::reduce && o.comm->rank != root)) return 0;
  return count * bytes_of(type) * std::size_t(call == Call::all_gather ? o.comm->size : 1);
}

ncclResult_t complain(ncclResult_t result, std::string_view why) noexcept {
  std::snprintf(last_text, sizeof last_text, "%.*s", static_cast<int>(why.size()), why.data());
  return result;
}
void refuse(ncclResult_t result, std::string_view why) { throw NcclRefusal{complain(result, why)}; }
void refuse(World& world, ncclResult_t result, const std::string& why) {
  world.fail(result, why);
  refuse(world.result, world.failure);
}
void require_no_failure(const World& world) {
  if (!world.failure.empty()) refuse(world.result, world.failure);
}

namespace {

// Which device's rank is blocked, and on which other's: what may close a circle.
struct Blocked {
  int on;
  std::string what;
};
std::mutex blocked_mutex;
std::map<int, Blocked> blocked;

// This device's is blocked no more. "A, B, in a circle: nobody can go on", when the one that it waited for waits for
// it, however indirectly.
std::string unblocked(int first) {
  const std::lock_guard lock(blocked_mutex);
  std::string text, circle;
  int device = first;
  for (std::size_t i = 0; i < blocked.size() && blocked.contains(device) && circle.empty(); ++i) {
    text += blocked[device].what + ", ";
    device = blocked[device].on;
    if (device == first) circle = text + "in a circle: nobody can go on";
  }
  blocked.erase(first);
  return circle;
}

std::string who_waits(Call call, int rank, int from) {
  return std::string(name_of(call)) + ": rank " + std::to_string(rank) + " waits for rank " + std::to_string(from);
}

// Waits for something that rank `from` has to do.
template <class Done>
void wait_for(World& world, WorldLock& lock, int rank, int from, Call call, Done done) {
  if (done()) return;
  const auto until =
      std::chrono::time_point_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() + patience());
  const auto over = [&] { return done() || !world.failure.empty() || world.ranks[std::size_t(from)].gone; };
  const std::string who = who_waits(call, rank, from);
  World::Rank& mine = world.ranks[std::size_t(rank)];
  {
    const std::lock_guard its_lock(blocked_mutex);
    blocked[mine.device] = {world.ranks[std::size_t(from)].device, who};
  }
  mine.waits_for = from;
  const bool in_time = mine.changed.wait_until(lock, until, over);
  mine.waits_for = -1;
  const std::string circle = unblocked(mine.device);
  if (done()) return;
  require_no_failure(world);
  if (in_time) refuse(world, ncclRemoteError, who + ", which has left the communicator");
  if (!circle.empty()) refuse(world, ncclInvalidUsage, circle);
  refuse(world, ncclRemoteError, who + ", which does not come");
}

// Rendezvous mode: what the stream of a send has to wait for.
std::shared_ptr<Unfinished> make_handshake(std::shared_ptr<World> world, int rank, int to) {
  const auto handshake = std::make_shared<Unfinished>();
  handshake->wait = [world, rank, to, &over = handshake->over] {
    if (over) return;
    WorldLock lock(world->mutex);
    try {
      wait_for(*world, lock, rank, to, Call::send, [&] { return over.load(); });
    } catch (const NcclRefusal&) {  // a failure is the world's, and told by the next call
      over = true;
    }
  };
  return handshake;
}

template <class T, class Sum>
void add_up(std::byte* to, const std::vector<const std::byte*>& from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = [&](std::size_t r) {
      T v;
      std::memcpy(&v, from[r] + i * sizeof(T), sizeof(T));
      return static_cast<Sum>(v);
    };
    Sum sum = value(0);
    for (std::size_t r = 1; r < from.size(); ++r) sum += value(r);
    const T stored = static_cast<T>(sum);
    std::memcpy(to + i * sizeof(T), &stored, sizeof(T));
  }
}

void add_up(std::byte* to, const std::vector<const std::byte*>& from, const What& what) {
  switch (what.type) {
    case ncclInt8: return add_up<std::int8_t, int>(to, from, what.count);
    case ncclFloat16: return add_up<__half, float>(to, from, what.count);
    case ncclFloat32: return add_up<float, float>(to, from, what.count);
    case ncclBfloat16: return add_up<__nv_bfloat16, float>(to, from, what.count);
  }
}

// The first half.
void post(const Request& o) {
  World& world = *o.comm->world;
  const int rank = o.comm->rank, to = o.what.root;
  const bool message = o.what.call == Call::send;
  std::shared_ptr<std::vector<std::byte>> data;
  if (const std::size_t bytes = sent_bytes(o)) {
    const DeviceView view(o.comm->device);
    const auto* const from = static_cast<const std::byte*>(o.send);
    data = std::make_shared<std::vector<std::byte>>(from, from + bytes);
  }
  const auto handshake = message && machine().rendezvous ? make_handshake(o.comm->world, rank, to) : nullptr;
  {
    const WorldLock lock(world.mutex);
    require_no_failure(world);
    if (o.what.call == Call::receive) return;
    if (o.what.call == Call::join) {
      world.say({Message::Kind::joined, {}, rank, o.comm->device, 0, {.count = std::uint64_t(o.comm->size)}});
      return require_no_failure(world);
    }
    for (int other = 0; other < world.size; ++other)
      if (!message || other == to) world.deliver(rank, other, {o.what, data, handshake});
    if (!handshake || world.ranks[std::size_t(to)].device < 0) return;  // other processes: buffered
  }
  const Lock lock = lock_runtime();
  if (CUstream_st* const stream = stream_or_null(o.stream, o.comm->device)) stream->unfinished.push_back(handshake);
}

std::string described(const What& what) {
  const std::string text = std::string(name_of(what.call)) + " of " + std::to_string(what.count) +
                           " elements of type " + std::to_string(int(what.type));
  const bool rooted = what.call == Call::reduce || what.call == Call::broadcast;
  return rooted ? text + ", root " + std::to_string(what.root) : text;
}

// The second half.
void finish(const Request& o) {
  World& world = *o.comm->world;
  const int rank = o.comm->rank;
  const Call call = o.what.call;
  if (call == Call::send) return;
  WorldLock lock(world.mutex);
  if (call == Call::join) {
    for (int other = 0; other < world.size; ++other)
      wait_for(world, lock, rank, other, call, [&] { return world.ranks[std::size_t(other)].device != -1; });
    return;
  }
  const bool message = call == Call::receive;
  What ours = o.what;  // as the others must have posted it
  if (message) ours.call = Call::send, ours.root = rank;
  std::vector<Posted> all;
  for (int from = message ? o.what.root : 0; from <= (message ? o.what.root : world.size - 1); ++from) {
    std::deque<Posted>& queue = world.queue(ours.call, from, rank);
    wait_for(world, lock, rank, from, call, [&] { return !queue.empty(); });
    all.push_back(std::move(queue.front()));
    queue.pop_front();
    if (const auto handshake = all.back().handshake.lock()) {
      handshake->over = true;
      world.ranks[std::size_t(from)].changed.notify_all();
    }
    if (all.back().what != ours)
      refuse(world, ncclInvalidUsage,
             "rank " + std::to_string(from) + " calls " + described(all.back().what) + ", rank " +
                 std::to_string(rank) + (message ? " receives " : " calls ") + described(ours));
  }
  lock.unlock();

  const DeviceView view(o.comm->device);
  const std::size_t bytes = o.what.count * bytes_of(o.what.type);
  if (bytes == 0) return;
  auto* const to = static_cast<std::byte*>(o.receive);
  switch (call) {
    case Call::receive: std::memcpy(to, all[0].data->data(), bytes); break;
    case Call::broadcast: std::memcpy(to, all[std::size_t(o.what.root)].data->data(), bytes); break;
    case Call::all_gather:
      for (std::size_t r = 0; r < all.size(); ++r) std::memcpy(to + r * bytes, all[r].data->data(), bytes);
      break;
    default:
      if (received_bytes(o) == 0) break;
      std::vector<const std::byte*> from;
      for (const Posted& p : all)
        from.push_back(p.data->data() + (call == Call::reduce_scatter ? std::size_t(rank) * bytes : 0));
      add_up(to, from, o.what);
  }
}

}  // namespace

void run(const std::vector<Request>& requests) {
  for (const Request& request : requests) post(request);
  for (const Request& request : requests)
    if (!request.comm->joining) finish(request);
}

ncclResult_t set_up_state(ncclComm& comm) {
  World& world = *comm.world;
  const WorldLock lock(world.mutex);
  if (world.failure.empty()) {
    const auto missing = std::ranges::find(world.ranks, -1, &World::Rank::device) - world.ranks.begin();
    comm.joining = missing < world.size;
    if (!comm.joining) return ncclSuccess;
    if (std::chrono::steady_clock::now() < comm.patient_until) return ncclInProgress;
    world.fail(ncclRemoteError, who_waits(Call::join, comm.rank, int(missing)) + ", which does not come");
  }
  return complain(world.result, world.failure);
}

}  // namespace oomlab::host
