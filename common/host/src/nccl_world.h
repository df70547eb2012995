#pragma once
// What the ranks of one NCCL communicator share (nccl.cpp), and what ranks in other processes are told of it.
//
// Each process has a World of its own for a communicator. What happens in it is told to all other processes by
// messages (see host::expect_processes()), and what a rank contributes goes to the processes of those who need it.

#include <nccl.h>

#include <chrono>
#include <compare>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace oomlab::host {

enum class Call { all_reduce, reduce, broadcast, reduce_scatter, all_gather, send, receive, join };

/// Rendezvous mode: a send that has been posted. It is over when it is received, or the communicator has failed.
struct Handshake;

/// What one rank has told another.
struct Posted {
  Call call;
  std::size_t count;
  ncclDataType_t type;
  int op, root;
  std::shared_ptr<const std::vector<std::byte>> data;
  std::weak_ptr<Handshake> handshake = {};  // the sending stream owns it, and it owns the world that owns this
};

/// What an ncclUniqueId says: which process made it, and how many it had made before.
struct Key {
  std::uint64_t process = 0, number = 0;
  auto operator<=>(const Key&) const = default;
};
static_assert(sizeof(Key) <= NCCL_UNIQUE_ID_BYTES);

/// What one process tells another: this, then the data of what is posted, or the reason of a failure.
struct Message {
  enum class Kind : std::uint32_t { joined, posted, left, failed };
  Kind kind{};
  Key key = {};
  std::int32_t from = 0, to = 0, result = 0;
  std::int32_t call = 0, type = 0, op = 0, root = 0;
  std::uint64_t count = 0;  // elements; of `joined`: ranks
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

  // All of these with `mutex` held.
  void join(int rank, int device);
  void deliver(int from, int to, Posted posted);
  void leave(int rank);
  /// The first failure stands, and everybody hears of it.
  void fail(ncclResult_t result, const std::string& why);
  /// Another process has said something.
  void receive(int process, const Message& message, std::string_view data);

  std::mutex mutex;
  const Key key;
  const int size;
  struct Wait {
    std::condition_variable changed;
    int from = -1;  // the rank that is waited for
  };
  std::vector<Wait> waits;                             // by rank: news wakes only whom it is for
  std::vector<int> device;                             // by rank; -1: has not come yet; -2: is in another process
  std::vector<int> process;                            // by rank, where it is in another one
  std::vector<bool> gone;                              // by rank
  std::vector<std::deque<Posted>> collective, direct;  // from · size + to
  std::string failure;                                 // the first one; nothing works any more
  ncclResult_t result = ncclSuccess;

 private:
  void wake_all();
  void tell_all(const Message& message, std::string_view data = {}) const;
  void mark_failed(ncclResult_t result, const std::string& why);
};

/// The world of an id, made by whoever comes first. ncclSuccess, or why there is none (`why`).
ncclResult_t find_world(const ncclUniqueId& id, int size, std::shared_ptr<World>& world, std::string& why);
/// A new id's content.
Key make_key();
/// How long a rank waits for another: OOMLAB_HOST_NCCL_TIMEOUT (seconds), or a default.
std::chrono::duration<double> patience();

}  // namespace oomlab::host
