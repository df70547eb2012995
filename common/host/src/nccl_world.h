#pragma once
// What the ranks of one NCCL communicator share (nccl.cpp), and how ranks in other processes take part (nccl_wire.cpp).
//
// Between processes the one that made the id is the hub: every other process of the communicator has one connection to
// it, and all that is posted goes through there. That costs a detour, and needs no process to reach any but the hub.

#include <nccl.h>

#include <chrono>
#include <compare>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace oomlab::host {

enum class Call { all_reduce, reduce, broadcast, reduce_scatter, all_gather, send, receive, join };

struct World;
/// Rendezvous mode: a send that has been posted. It is over when it is received, or the communicator has failed.
struct Handshake;

using Bytes = std::shared_ptr<const std::vector<std::byte>>;

/// What one rank has told another.
struct Posted {
  Call call;
  std::size_t count;
  ncclDataType_t type;
  int op, root;
  Bytes data;
  std::weak_ptr<Handshake> handshake = {};  // the sending stream owns it, and it owns the world that owns this
};

/// A ncclUniqueId says which process made it, and where that can be reached.
struct Key {
  std::uint64_t process = 0, number = 0;
  auto operator<=>(const Key&) const = default;
};
struct IdContent {
  Key key = {};
  std::uint16_t port = 0, addresses = 0;  // port 0: only this process's ranks
  std::uint32_t address[24] = {};         // IPv4, network order
};
static_assert(sizeof(IdContent) <= NCCL_UNIQUE_ID_BYTES);

/// What goes over a connection: this, then `bytes` of data.
struct Message {
  enum class Kind : std::uint32_t { hello, welcome, joined, posted, left, failed };
  Kind kind{};
  std::int32_t from = 0, to = 0, result = 0;
  std::int32_t call = 0, type = 0, op = 0, root = 0;
  std::uint64_t count = 0, bytes = 0;
  Key key = {};
};

/// A connection. Sending never waits: a thread of its own writes.
class Line {
 public:
  virtual ~Line() = default;
  virtual void send(const Message& message, Bytes data) = 0;
};

using WorldLock = std::unique_lock<std::mutex>;

struct World {
  World(const Key& key, int size);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  std::deque<Posted>& queue(bool directly, int from, int to) {
    return (directly ? direct : collective)[std::size_t(from) * std::size_t(size) + std::size_t(to)];
  }

  // All of these with `mutex` held; `source` is the connection that the news came by.
  void join(int rank, int device, Line* source);
  void deliver(int from, int to, Posted posted);
  void leave(int rank, Line* source);
  /// The first failure stands, and everybody hears of it.
  void fail(ncclResult_t result, const std::string& why, Line* source = nullptr);
  /// Something came by a connection, or the connection has ended.
  void receive(const Message& message, Bytes data, Line* source);
  void hang_up(Line* line);

  std::mutex mutex;
  const Key key;
  const int size;
  struct Wait {
    std::condition_variable changed;
    int from = -1;  // the rank that is waited for
  };
  std::vector<Wait> waits;                             // by rank: news wakes only whom it is for
  std::vector<int> device;                             // by rank; -1: has not come yet; -2: is in another process
  std::vector<bool> gone;                              // by rank
  std::vector<std::deque<Posted>> collective, direct;  // from · size + to
  std::string failure;                                 // the first one; nothing works any more
  ncclResult_t result = ncclSuccess;
  std::vector<Line*> lines;          // to other processes: all of them (in the hub), or the hub
  std::vector<Line*> line_of;        // by rank; null: here, or not known yet
  std::shared_ptr<Line> to_the_hub;  // where this is not the hub

 private:
  void wake_all();
  void tell(const Message& message, const Bytes& data, const Line* except);
};

/// The world of an id, made by whoever comes first. ncclSuccess, or why there is none (`why`).
ncclResult_t find_world(const ncclUniqueId& id, int size, std::shared_ptr<World>& world, std::string& why);
/// A new id. Throws std::runtime_error when other processes are expected and nothing can listen for them.
IdContent make_id();

/// The connection to an id's hub, with `world` told of all that comes. Throws std::runtime_error.
std::shared_ptr<Line> call_the_hub(const IdContent& id, World& world);
/// Listens for other processes; the port and this machine's addresses. Throws std::runtime_error.
void listen_for_processes(IdContent& id);
bool processes_expected();
/// True while a communicator that has its hub here is at work in other processes, though all ranks here have left it.
bool others_need_the_hub();
/// How long a rank waits for another: OOMLAB_HOST_NCCL_TIMEOUT (seconds), or a default.
std::chrono::duration<double> patience();

}  // namespace oomlab::host
