#pragma once
// NCCL: what a rank asks of its communicator (nccl.cpp), what the ranks of one communicator share and do together, and
// what ranks in other processes are told of it (nccl_world.cpp).
//
// Each process has a World of its own for a communicator. What happens in it is told to all other processes by
// messages (see host::expect_processes()), and what a rank contributes goes to the processes of those who need it.

#include <nccl.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace oomlab::host {

enum class Call : std::int32_t { all_reduce, reduce, broadcast, reduce_scatter, all_gather, send, receive, join };

/// What a rank asks for: what the others must ask for, too.
struct What {
  Call call{};
  ncclDataType_t type = ncclFloat32;
  std::int32_t root = 0;  // or the peer; what is sent bears the receiver's number
  std::uint64_t count = 0;
  bool operator==(const What&) const = default;
};

struct Unfinished;

/// What one rank has told another.
struct Posted {
  What what;
  std::shared_ptr<const std::vector<std::byte>> data;
  std::weak_ptr<Unfinished> handshake = {};  // the sending stream owns it, and it owns the world that owns this
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
  std::int32_t from = 0, to = 0, result = 0;  // to: of `joined` its device
  What what = {};                             // of `posted`; of `joined` the number of ranks is its count
};

using WorldLock = std::unique_lock<std::mutex>;

struct World {
  World(const Key& key, int size) : key(key), size(size), ranks(std::size_t(size)) {}
  std::deque<Posted>& queue(Call call, int from, int to) { return queues[{call == Call::send, from, to}]; }

  // All of these with `mutex` held.
  /// To all ranks, in this process and in the others.
  void say(Message message, std::string_view data = {});
  void deliver(int from, int to, Posted posted);
  /// The first failure stands, and everybody hears of it.
  void fail(ncclResult_t result, const std::string& why);
  /// A process has said something.
  void receive(int process, const Message& message, std::string_view data);

  std::mutex mutex;
  const Key key;
  const int size;
  struct Rank {
    int device = -1;   // -1: has not come yet; -2: is in another process
    int process = -1;  // where it is in another one
    bool gone = false;
    std::condition_variable changed;  // news wakes only whom it is for
    int waits_for = -1;
  };
  std::vector<Rank> ranks;
  std::map<std::tuple<bool, int, int>, std::deque<Posted>> queues;
  std::string failure;  // the first one; nothing works any more
  ncclResult_t result = ncclSuccess;
};

/// The world of an id, made by whoever comes first, until it has failed or its ranks here have left. Refuses an id that
/// is none, or whose world has failed.
std::shared_ptr<World> find_world(const ncclUniqueId& id, int size);
/// A new id's content.
Key make_key();
/// How long a rank waits for another: OOMLAB_HOST_NCCL_TIMEOUT (seconds), or 60.
std::chrono::steady_clock::duration patience();

/// What a call refuses with, and why: thrown anywhere inside it, returned by its frame.
struct NcclRefusal {
  ncclResult_t result;
  std::string why;
};
[[noreturn]] inline void refuse(ncclResult_t result, std::string why) { throw NcclRefusal{result, std::move(why)}; }
/// Refuses when the world has failed.
void require_no_failure(const World& world);

/// One call of one rank.
struct Request {
  What what;
  ncclComm_t comm;
  const void* send = nullptr;
  void* receive = nullptr;
  cudaStream_t stream = nullptr;
};
const char* name_of(Call call);
/// Bytes of an element; 0 for a type that does not exist.
std::size_t bytes_of(ncclDataType_t type);
/// Bytes that this rank gives, and that it gets.
std::size_t sent_bytes(const Request& request);
std::size_t received_bytes(const Request& request);
/// Does them all: every first half, then every second one.
void run(const std::vector<Request>& requests);
/// Of a communicator that is being set up: a rank has not come yet, and may still.
bool in_progress(ncclComm& comm);

}  // namespace oomlab::host

struct ncclComm {
  std::shared_ptr<oomlab::host::World> world;  // null in plan mode
  int rank = 0, size = 0, device = 0;
  bool blocking = true, joining = false;                     // set up without blocking: not all ranks have come yet,
  std::chrono::steady_clock::time_point patient_until = {};  // or waited for after this
};
