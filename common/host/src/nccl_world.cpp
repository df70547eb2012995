// Who belongs to a communicator, and what its ranks have told each other.

#include <cstdlib>
#include <cstring>
#include <random>

#include "nccl_world.h"
#include "runtime.h"

namespace oomlab::host {
namespace {

std::mutex registry_mutex;
std::map<Key, std::weak_ptr<World>> registry;
std::uint64_t next_id = 1;
// Worlds that failed before all had come: latecomers should not wait for ranks that have left.
struct Failed {
  Key key;
  char why[200] = "";
} failed_worlds[64];

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
      waits(std::size_t(size)),
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

void World::wake_all() {
  for (Wait& wait : waits) wait.changed.notify_all();
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
  wake_all();
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
  if (Wait& wait = waits[std::size_t(to)]; wait.from == from) wait.changed.notify_all();
}

void World::leave(int rank, Line* source) {
  gone[std::size_t(rank)] = true;
  tell({.kind = Message::Kind::left, .from = rank}, nullptr, source);
  wake_all();
}

void World::fail(ncclResult_t its_result, const std::string& why, Line* source) {
  if (!failure.empty()) return;
  failure = why;
  result = its_result;
  auto text = std::make_shared<std::vector<std::byte>>(why.size());
  std::memcpy(text->data(), why.data(), why.size());
  tell({.kind = Message::Kind::failed, .result = int(result)}, text, source);
  wake_all();
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
