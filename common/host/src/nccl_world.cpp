// Who belongs to a communicator, what its ranks have told each other, here and in other processes, and what they do
// together.
//
// Every operation has two halves. The first posts what this rank contributes to all who need it, and never waits; the
// second takes what the others have posted. So a group runs all first halves, then all second ones, and cannot block
// itself. A copy of the contribution is posted: the caller's buffer is free again when the call returns.

#include "nccl_world.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "runtime.h"

namespace oomlab::host {
namespace {

// All of this with `registry_mutex` held. Where a world's mutex is needed, too, that one comes first.
std::mutex registry_mutex;
Mail mail;                                       // without send(): there is this process only
std::map<Key, std::shared_ptr<World>> registry;  // also those that no rank here has joined, and perhaps none will
std::uint64_t next_id = 1;
std::atomic<std::uint64_t> lost{0};
// Worlds that failed before all had come: latecomers should not wait for ranks that have left.
// In a place that never grows: a program that goes on after a failure has not leaked it.
struct Failed {
  Key key;
  char why[200] = "";
} failed_worlds[64];
Failed& failed_world(const Key& key) { return failed_worlds[key.number % std::size(failed_worlds)]; }

void remember_failure(const Key& key, std::string_view why) {
  failed_world(key).key = key;
  failed_world(key).why[why.copy(failed_world(key).why, sizeof Failed::why - 1)] = '\0';
}

void take(int process, std::string_view text) {
  const RuntimeScope scope;
  Message message;
  if (text.size() < sizeof message) return;
  std::memcpy(&message, text.data(), sizeof message);
  const std::string_view data = text.substr(sizeof message);
  std::shared_ptr<World> world;
  {
    const std::lock_guard lock(registry_mutex);
    if (const auto known = registry.find(message.key); known != registry.end())
      world = known->second;
    else if (message.kind == Message::Kind::joined)
      world = registry[message.key] = std::make_shared<World>(message.key, int(message.what.count));
    else if (message.kind == Message::Kind::failed)
      remember_failure(message.key, data);
    if (!world) return;  // left, or posted to ranks that have left since
  }
  const WorldLock lock(world->mutex);
  world->receive(process, message, data);
}

void tell(int process, const Message& message, std::string_view data) {
  std::string text(sizeof message + data.size(), '\0');
  std::memcpy(text.data(), &message, sizeof message);
  std::ranges::copy(data, text.begin() + sizeof message);
  mail.send(process, std::move(text));
}

}  // namespace

std::function<void(int from, std::string_view message)> expect_processes(Mail its_mail) {
  const std::lock_guard lock(registry_mutex);
  mail = std::move(its_mail);
  return take;
}

std::chrono::steady_clock::duration patience() {
  const char* text = std::getenv("OOMLAB_HOST_NCCL_TIMEOUT");
  const double seconds = text ? std::strtod(text, nullptr) : 0;
  return std::chrono::milliseconds(std::llround(1000 * (seconds > 0 ? seconds : 60)));
}

std::uint64_t patience_lost() noexcept { return lost; }

Key make_key() {
  const std::lock_guard lock(registry_mutex);
  return {std::uint64_t(mail.process), next_id++};
}

std::shared_ptr<World> find_world(const ncclUniqueId& id, int size) {
  Key key;
  std::memcpy(&key, id.internal, sizeof key);
  const std::lock_guard lock(registry_mutex);
  const bool mine = key.process == std::uint64_t(mail.process);
  if (key.number == 0 || (mine ? key.number >= next_id : key.process >= std::uint64_t(mail.processes)))
    refuse(ncclInvalidArgument, "ncclCommInitRank: this id is not from ncclGetUniqueId()");
  if (failed_world(key).key == key) refuse(ncclRemoteError, failed_world(key).why);
  std::shared_ptr<World>& world = registry[key];
  if (!world) world = std::make_shared<World>(key, size);
  return world;
}

void World::say(Message message, std::string_view data) {
  message.key = key;
  receive(mail.process, message, data);
  if (message.kind == Message::Kind::joined && !failure.empty()) return;  // it was refused
  for (int other = 0; other < mail.processes; ++other)
    if (other != mail.process) tell(other, message, data);
}

void World::deliver(int from, int to, Posted posted) {
  if (ranks[std::size_t(to)].device == -2) {
    const Message message{.kind = Message::Kind::posted, .key = key, .from = from, .to = to, .what = posted.what};
    const auto* const data = reinterpret_cast<const char*>(posted.data->data());
    return tell(ranks[std::size_t(to)].process, message, {data, posted.data->size()});
  }
  queue(posted.what.call, from, to).push_back(std::move(posted));
  if (Rank& rank = ranks[std::size_t(to)]; rank.waits_for == from) rank.changed.notify_all();
}

void World::fail(ncclResult_t its_result, const std::string& why) {
  if (failure.empty()) say({.kind = Message::Kind::failed, .result = int(its_result)}, why);
}

void World::receive(int its_process, const Message& m, std::string_view data) {
  const auto valid = [&](int rank) { return rank >= 0 && rank < size; };
  if (m.kind == Message::Kind::failed) {
    if (!failure.empty()) return;
    failure = data;
    result = ncclResult_t(m.result);
    const std::lock_guard lock(registry_mutex);
    remember_failure(key, failure);
    registry.erase(key);
  } else if (m.kind == Message::Kind::joined && m.what.count != std::uint64_t(size)) {
    const auto [fewer, more] = std::minmax({m.what.count, std::uint64_t(size)});
    return fail(ncclInvalidUsage, "ncclCommInitRank: " + std::to_string(fewer) + " ranks for one of them, " +
                                      std::to_string(more) + " for another");
  } else if (!valid(m.from)) {
    return;
  } else if (m.kind == Message::Kind::posted) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(data.data());
    const auto copy = std::make_shared<const std::vector<std::byte>>(bytes, bytes + data.size());
    if (valid(m.to)) deliver(m.from, m.to, {m.what, copy});
    return;
  } else if (m.kind == Message::Kind::left) {
    ranks[std::size_t(m.from)].gone = true;  // so all have come, or it has failed
    const std::lock_guard lock(registry_mutex);
    if (std::ranges::none_of(ranks, [](const Rank& r) { return r.device >= 0 && !r.gone; })) registry.erase(key);
  } else {
    const int device = its_process == mail.process ? m.to : -2;
    const auto same = std::ranges::find(ranks, device, &Rank::device) - ranks.begin();
    if (ranks[std::size_t(m.from)].device != -1)
      return fail(ncclInvalidUsage, "ncclCommInitRank: rank " + std::to_string(m.from) + " comes twice");
    if (device >= 0 && same < size)
      return fail(ncclInvalidUsage, "ncclCommInitRank: ranks " + std::to_string(same) + " and " +
                                        std::to_string(m.from) + " are both on device " + std::to_string(device));
    ranks[std::size_t(m.from)].device = device;
    ranks[std::size_t(m.from)].process = its_process;
  }
  for (Rank& rank : ranks) rank.changed.notify_all();
}

// --------------------------------------------------------------------------------------------------------- collectives

constexpr const char* names_of_calls[] = {"ncclAllReduce", "ncclReduce", "ncclBroadcast", "ncclReduceScatter",
                                          "ncclAllGather", "ncclSend",   "ncclRecv",      "ncclCommInitRank"};
const char* name_of(Call call) { return names_of_calls[static_cast<int>(call)]; }

std::size_t bytes_of(ncclDataType_t type) {
  if (type == ncclInt8) return 1;
  if (type == ncclFloat32) return 4;
  return type == ncclFloat16 || type == ncclBfloat16 ? 2 : 0;
}
std::size_t sent_bytes(const Request& o) {
  const auto [call, type, root, count] = o.what;
  if (call == Call::receive || (call == Call::broadcast && o.comm->rank != root)) return 0;
  return count * bytes_of(type) * std::size_t(call == Call::reduce_scatter ? o.comm->size : 1);
}
std::size_t received_bytes(const Request& o) {
  const auto [call, type, root, count] = o.what;
  if (call == Call::send || (call == Call::reduce && o.comm->rank != root)) return 0;
  return count * bytes_of(type) * std::size_t(call == Call::all_gather ? o.comm->size : 1);
}

void require_no_failure(const World& world) {
  if (!world.failure.empty()) refuse(world.result, world.failure);
}

namespace {

// The world fails; its first failure is what all its ranks are refused with.
[[noreturn]] void refuse(World& world, ncclResult_t result, const std::string& why) {
  world.fail(result, why);
  oomlab::host::refuse(world.result, world.failure);
}

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
  const auto until = std::chrono::steady_clock::now() + patience();
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
  ++lost;
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
  const DeviceView view(o.comm->device);
  const auto* const from = static_cast<const std::byte*>(o.send);
  const auto data = std::make_shared<const std::vector<std::byte>>(from, from + sent_bytes(o));
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
  const std::lock_guard lock(runtime().mutex);
  if (CUstream_st* const stream = stream_or_null(o.stream, o.comm->device)) stream->unfinished.push_back(handshake);
}

std::string described(const What& what) {
  std::string text = std::string(name_of(what.call)) + " of " + std::to_string(what.count) + " elements of type " +
                     std::to_string(int(what.type));
  if (what.call == Call::reduce || what.call == Call::broadcast) text += ", root " + std::to_string(what.root);
  return text;
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
  auto* to = static_cast<std::byte*>(o.receive);
  if (call == Call::receive || call == Call::broadcast || call == Call::all_gather) {
    for (const Posted& p : all) to = std::ranges::copy(*p.data, to).out;  // of a broadcast, only the root's has bytes
  } else if (const std::size_t bytes = received_bytes(o)) {
    std::vector<const std::byte*> parts;
    for (const Posted& p : all)
      parts.push_back(p.data->data() + (call == Call::reduce_scatter ? std::size_t(rank) * bytes : 0));
    add_up(to, parts, o.what);
  }
}

}  // namespace

void run(const std::vector<Request>& requests) {
  for (const Request& request : requests) post(request);
  for (const Request& request : requests)
    if (!request.comm->joining) finish(request);
}

bool in_progress(ncclComm& comm) {
  const RuntimeScope scope;
  World& world = *comm.world;
  const WorldLock lock(world.mutex);
  if (!world.failure.empty()) return false;
  const auto missing = std::ranges::find(world.ranks, -1, &World::Rank::device) - world.ranks.begin();
  comm.joining = missing < world.size;
  if (comm.joining && std::chrono::steady_clock::now() >= comm.patient_until)
    ++lost, world.fail(ncclRemoteError, who_waits(Call::join, comm.rank, int(missing)) + ", which does not come");
  return comm.joining && world.failure.empty();
}

}  // namespace oomlab::host
