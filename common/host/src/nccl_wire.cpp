// NCCL between processes: connections, and who listens. Plain TCP over IPv4, messages in this machine's byte order.

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <list>
#include <stdexcept>
#include <thread>

#include "nccl_world.h"
#include "runtime.h"

namespace oomlab::host {
namespace {

std::atomic<bool> expected{false};

[[noreturn]] void fail_with_errno(const char* what) {
  throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
}

class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  int get() const { return fd_; }

  // False at the end, or when the connection is lost.
  bool read_all(void* to, std::size_t bytes) const {
    auto* at = static_cast<char*>(to);
    while (bytes > 0) {
      const ssize_t n = recv(fd_, at, bytes, 0);
      if (n == 0 || (n < 0 && errno != EINTR)) return false;
      if (n > 0) at += n, bytes -= std::size_t(n);
    }
    return true;
  }
  bool write_all(const void* from, std::size_t bytes) const {
    const auto* at = static_cast<const char*>(from);
    while (bytes > 0) {
      const ssize_t n = ::send(fd_, at, bytes, MSG_NOSIGNAL);
      if (n < 0 && errno != EINTR) return false;
      if (n > 0) at += n, bytes -= std::size_t(n);
    }
    return true;
  }
  bool readable_within(int milliseconds) const {
    pollfd poll_for{fd_, POLLIN, 0};
    return poll(&poll_for, 1, milliseconds) > 0;
  }

 private:
  int fd_;
};

// One connection: a thread reads, a thread writes.
class SocketLine final : public Line {
 public:
  using OnMessage = std::function<void(const Message&, Bytes, Line*)>;
  SocketLine(Socket socket, OnMessage on_message, std::function<void(Line*)> on_end)
      : socket_(std::move(socket)), on_message_(std::move(on_message)), on_end_(std::move(on_end)) {
    writer_ = std::thread([this] { write(); });
    reader_ = std::thread([this] { read(); });
  }
  /// What was sent still goes out; then waits (a while) until the other side hangs up, too: closing with messages
  /// unread would destroy what the other side has not read yet.
  ~SocketLine() override {
    hang_up();
    for (int i = 0; i < 200 && !ended_; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    shutdown(socket_.get(), SHUT_RDWR);
    writer_.join();
    reader_.join();
  }
  void send(const Message& message, Bytes data) override {
    const std::lock_guard lock(mutex_);
    outbox_.emplace_back(message, std::move(data));
    changed_.notify_one();
  }
  void hang_up() {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_one();
  }
  bool ended() const { return ended_; }

 private:
  void write() {
    const RuntimeScope scope;
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return closing_ || !outbox_.empty(); });
      if (outbox_.empty()) break;
      auto [message, data] = std::move(outbox_.front());
      outbox_.pop_front();
      lock.unlock();
      message.bytes = data ? data->size() : 0;
      if (!socket_.write_all(&message, sizeof message) || (data && !socket_.write_all(data->data(), data->size())))
        break;
    }
    shutdown(socket_.get(), SHUT_WR);
  }
  void read() {
    const RuntimeScope scope;
    try {
      for (Message message; socket_.read_all(&message, sizeof message);) {
        std::shared_ptr<std::vector<std::byte>> data;
        if (message.bytes > 0) {
          data = std::make_shared<std::vector<std::byte>>(message.bytes);
          if (!socket_.read_all(data->data(), data->size())) break;
        }
        on_message_(message, std::move(data), this);
      }
    } catch (...) {  // out of host memory: as if the connection were lost
    }
    on_end_(this);
    ended_ = true;
  }

  Socket socket_;
  OnMessage on_message_;
  std::function<void(Line*)> on_end_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<Message, Bytes>> outbox_;
  bool closing_ = false;
  std::atomic<bool> ended_{false};
  std::thread writer_, reader_;
};

// Where other processes come in. One for the process, started with the first id that others may use.
class Hub {
 public:
  Hub() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_ANY);
    socklen_t length = sizeof any;
    if (socket_.get() < 0 || bind(socket_.get(), reinterpret_cast<sockaddr*>(&any), sizeof any) != 0 ||
        listen(socket_.get(), SOMAXCONN) != 0 ||
        getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&any), &length) != 0)
      fail_with_errno("listening for other processes");
    port_ = ntohs(any.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  /// Ranks that are done may end before others are, whose messages go through here.
  ~Hub() {
    const auto until = std::chrono::steady_clock::now() + patience();
    while (others_need_the_hub() && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    stopping_ = true;
    thread_.join();
  }
  std::uint16_t port() const { return port_; }

 private:
  struct Guest {
    std::shared_ptr<World> world;  // known once it has said hello
    std::unique_ptr<SocketLine> line;
  };
  void serve() {
    const RuntimeScope scope;
    while (!stopping_) {
      if (socket_.readable_within(20)) {
        Socket guest(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (guest.get() >= 0) welcome(std::move(guest));
      }
      guests_.remove_if([](const Guest& g) { return g.line && g.line->ended(); });
    }
  }
  void welcome(Socket socket) {
    guests_.emplace_back();
    Guest* const guest = &guests_.back();
    const int on = 1;
    setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    guest->line = std::make_unique<SocketLine>(
        std::move(socket),
        [guest](const Message& message, Bytes data, Line* line) {
          if (!guest->world) return hello(*guest, message, line);
          const std::lock_guard lock(guest->world->mutex);
          guest->world->receive(message, std::move(data), line);
        },
        [guest](Line* line) {
          if (const std::shared_ptr<World> world = std::move(guest->world)) {
            const std::lock_guard lock(world->mutex);
            world->hang_up(line);
          }
          static_cast<SocketLine*>(line)->hang_up();
        });
  }
  static void hello(Guest& guest, const Message& message, Line* line) {
    if (message.kind != Message::Kind::hello) return static_cast<SocketLine*>(line)->hang_up();
    const IdContent content{.key = message.key};
    ncclUniqueId id{};
    std::memcpy(&id, &content, sizeof content);
    Message answer{.kind = Message::Kind::welcome, .key = message.key};
    std::string why;
    answer.result = find_world(id, int(message.count), guest.world, why);
    auto text = std::make_shared<std::vector<std::byte>>(why.size());
    std::memcpy(text->data(), why.data(), why.size());
    if (!guest.world) {
      line->send(answer, std::move(text));
      return static_cast<SocketLine*>(line)->hang_up();
    }
    // What has happened so far, then whatever comes.
    World& world = *guest.world;
    const std::lock_guard lock(world.mutex);
    line->send(answer, nullptr);
    world.lines.push_back(line);
    if (const auto [fewer, more] = std::minmax({int(message.count), int(world.size)}); fewer != more)
      world.fail(ncclInvalidUsage, "ncclCommInitRank: " + std::to_string(fewer) + " ranks in one process, " +
                                       std::to_string(more) + " in another");
    for (int rank = 0; rank < world.size; ++rank)
      if (world.device[std::size_t(rank)] != -1) line->send({.kind = Message::Kind::joined, .from = rank}, nullptr);
  }

  Socket socket_;
  std::uint16_t port_ = 0;
  std::atomic<bool> stopping_{false};
  std::list<Guest> guests_;  // the thread's
  std::thread thread_;
};

Socket connect_to(std::uint32_t address, std::uint16_t port) {
  Socket s(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (s.get() < 0) return s;
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = address;
  to.sin_port = htons(port);
  if (connect(s.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) {
    pollfd poll_for{s.get(), POLLOUT, 0};
    int error = 0;
    socklen_t length = sizeof error;
    if (errno != EINPROGRESS || poll(&poll_for, 1, 1000) <= 0 ||
        getsockopt(s.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0)
      return Socket();
  }
  const int flags = fcntl(s.get(), F_GETFL), on = 1;
  fcntl(s.get(), F_SETFL, flags & ~O_NONBLOCK);
  setsockopt(s.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return s;
}

}  // namespace

bool processes_expected() { return expected; }
void expect_processes() noexcept { expected = true; }

void listen_for_processes(IdContent& id) {
  static Hub hub;
  id.port = hub.port();
  const auto add = [&](std::uint32_t address) {
    if (id.addresses < std::size(id.address)) id.address[id.addresses++] = address;
  };
  add(htonl(INADDR_LOOPBACK));
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return;
  for (const ifaddrs* a = all; a; a = a->ifa_next)
    if (a->ifa_addr && a->ifa_addr->sa_family == AF_INET && (a->ifa_flags & IFF_UP) && !(a->ifa_flags & IFF_LOOPBACK))
      add(reinterpret_cast<const sockaddr_in*>(a->ifa_addr)->sin_addr.s_addr);
  freeifaddrs(all);
}

std::shared_ptr<Line> call_the_hub(const IdContent& id, World& world) {
  for (std::size_t i = 0; i < id.addresses && i < std::size(id.address); ++i) {
    Socket s = connect_to(id.address[i], id.port);
    const Message hello{.kind = Message::Kind::hello, .count = std::uint64_t(world.size), .key = id.key};
    // Whatever else may listen at this address does not answer so.
    Message answer;
    if (s.get() < 0 || !s.write_all(&hello, sizeof hello) || !s.readable_within(2000) ||
        !s.read_all(&answer, sizeof answer) || answer.kind != Message::Kind::welcome || answer.key != id.key)
      continue;
    if (answer.result != ncclSuccess) {
      std::string why(std::min<std::size_t>(answer.bytes, 400), ' ');
      (void)s.read_all(why.data(), why.size());
      throw std::runtime_error(why);
    }
    return std::make_shared<SocketLine>(
        std::move(s),
        [&world](const Message& message, Bytes data, Line* line) {
          const std::lock_guard lock(world.mutex);
          world.receive(message, std::move(data), line);
        },
        [&world](Line* line) {
          const std::lock_guard lock(world.mutex);
          world.hang_up(line);
        });
  }
  throw std::runtime_error("the process that made the id cannot be reached");
}

}  // namespace oomlab::host
