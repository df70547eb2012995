// Who belongs to a communicator, and what its ranks have told each other, here and in other processes.

#include "nccl_world.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "runtime.h"

namespace oomlab::host {
namespace {

// All of this with `registry_mutex` held. Where a world's mutex is needed, too, that one comes first.
std::mutex registry_mutex;
Mail mail;  // without send(): there is this process only
std::map<Key, std::weak_ptr<World>> registry;
std::map<Key, std::shared_ptr<World>> foreign;  // that no rank here has joined, and perhaps none will
std::uint64_t next_id = 1;
// Worlds that failed before all had come: latecomers should not wait for ranks that have left.
std::map<Key, std::string> failed_worlds;

void take(int process, std::string_view text) {
  const RuntimeScope scope;
  Message message;
  if (text.size() < sizeof message) return;
  std::memcpy(&message, text.data(), sizeof message);
  const std::string_view data = text.substr(sizeof message);
  std::shared_ptr<World> world;
  {
    const std::lock_guard lock(registry_mutex);
    if (const auto known = registry.find(message.key); known != registry.end()) world = known->second.lock();
    if (!world && message.kind == Message::Kind::joined) {
      world = foreign[message.key] = std::make_shared<World>(message.key, int(message.what.count));
      registry[message.key] = world;
    }
    if (!world && message.kind == Message::Kind::failed) failed_worlds[message.key] = data;
    if (!world) return;  // left, or posted to ranks that have left since
    // Whoever leaves first has seen all come, or has failed.
    if (message.kind == Message::Kind::left || message.kind == Message::Kind::failed) foreign.erase(message.key);
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

std::chrono::duration<double> patience() {
#ifdef OOMLAB_HOST_CHECK
  constexpr double kSeconds = 60;
#else
  const double kSeconds = mail.send ? 6 : 8;
#endif
  const char* text = std::getenv("OOMLAB_HOST_NCCL_TIMEOUT");
  const double seconds = text ? std::strtod(text, nullptr) : 0;
  return std::chrono::duration<double>(seconds > 0 ? seconds : kSeconds);
}

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
  if (const auto failed = failed_worlds.find(key); failed != failed_worlds.end())
    refuse(ncclRemoteError, failed->second);
  std::weak_ptr<World>& entry = registry[key];
  std::shared_ptr<World> world = entry.lock();
  if (!world) entry = world = std::make_shared<World>(key, size);
  foreign.erase(key);
  return world;
}

World::World(const Key& key, int size)
    : key(key),
      size(size),
      ranks(std::size_t(size)),
      collective(ranks.size() * ranks.size()),
      direct(collective.size()) {}

World::~World() {
  const std::lock_guard lock(registry_mutex);
  if (const auto mine = registry.find(key); mine != registry.end() && mine->second.expired()) registry.erase(mine);
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
    const auto* const data = posted.data ? reinterpret_cast<const char*>(posted.data->data()) : nullptr;
    return tell(ranks[std::size_t(to)].process, message, {data, posted.data ? posted.data->size() : 0});
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
    failed_worlds[key] = failure;
  } else if (m.kind == Message::Kind::joined && m.what.count != std::uint64_t(size)) {
    const auto [fewer, more] = std::minmax({m.what.count, std::uint64_t(size)});
    return fail(ncclInvalidUsage, "ncclCommInitRank: " + std::to_string(fewer) + " ranks for one of them, " +
                                      std::to_string(more) + " for another");
  } else if (!valid(m.from)) {
    return;
  } else if (m.kind == Message::Kind::posted) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(data.data());
    if (valid(m.to))
      deliver(m.from, m.to, {m.what, std::make_shared<const std::vector<std::byte>>(bytes, bytes + data.size())});
    return;
  } else if (m.kind == Message::Kind::left) {
    ranks[std::size_t(m.from)].gone = true;
  } else {
    const int device = its_process == mail.process ? m.to : -2;
    if (const std::string why = why_not(m.from, device); !why.empty())
      return fail(ncclInvalidUsage, "ncclCommInitRank: " + why);
    ranks[std::size_t(m.from)].device = device;
    ranks[std::size_t(m.from)].process = its_process;
  }
  for (Rank& rank : ranks) rank.changed.notify_all();
}

std::string World::why_not(int rank, int its_device) const {
  if (ranks[std::size_t(rank)].device != -1) return "rank " + std::to_string(rank) + " comes twice";
  for (int other = 0; other < size; ++other)
    if (its_device >= 0 && ranks[std::size_t(other)].device == its_device)
      return "ranks " + std::to_string(std::min(rank, other)) + " and " + std::to_string(std::max(rank, other)) +
             " are both on device " + std::to_string(its_device);
  return "";
}

}  // namespace oomlab::host
