#pragma once
// The other process on the device: how it is started, what it does with memory, and how it ends.
//
// A process that has called CUDA cannot fork one that calls it, too. So before the first call a small process is forked
// that does nothing but fork: a fork server, as Python's multiprocessing has one.
//
// Each of them may be stopped or hang. Whoever waits for another hears Ctrl-C and waits at most so long (Waits); and
// the kernel ends a process whose parent is gone, stopped or not.

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/backend.h"
#include "cuda/check.h"
#include "cuda/raii.h"
#include "harness/chapter.h"
#include "memory/shared_budget.h"

namespace oomlab::sharing {

/// A cache in its simplest form: keeps every block that is freed for the next request of its size, until empty(). What
/// it keeps is taken from upstream all the same.
class KeepingResource final : public MemoryResource {
 public:
  explicit KeepingResource(MemoryResource& upstream) : upstream_(upstream) {}
  ~KeepingResource() override { empty(); }
  void* allocate(std::size_t bytes, cudaStream_t stream) override {
    const auto kept = free_.find(round_to_granule(bytes));
    if (kept == free_.end()) return upstream_.allocate(bytes, stream);
    void* const address = kept->second;
    free_.erase(kept);
    return address;
  }
  void deallocate(void* address, std::size_t bytes, cudaStream_t stream) noexcept override {
    if (!address) return;
    try {
      free_.emplace(round_to_granule(bytes), address);
    } catch (const std::bad_alloc&) {
      upstream_.deallocate(address, bytes, stream);
    }
  }
  std::size_t reserved_bytes() const override { return upstream_.reserved_bytes(); }
  /// What torch.cuda.empty_cache() does, and cudaMemPoolTrimTo(pool, 0): gives everything back that is not in use.
  void empty() noexcept {
    for (const auto& [bytes, address] : free_) upstream_.deallocate(address, bytes, nullptr);
    free_.clear();
  }

 private:
  MemoryResource& upstream_;
  std::multimap<std::size_t, void*> free_;  // by size, bytes
};

// ------------------------------------------------------------------------------------------- what a neighbour is asked

inline constexpr int kOurs = 0, kNeighbours = 1;  ///< places in the shared budget

struct Order {
  enum class Kind : char {
    begin,   ///< on `device`, with a cap of `bytes`
    hold,    ///< takes `bytes`, writes them, and keeps them
    burst,   ///< takes `bytes` for a moment, as an evaluation does: what is freed stays in its cache
    empty,   ///< empties that cache
    finish,  ///< goes on for a moment, gives everything back, and ends; there is no answer
  } kind{};
  int device = 0;
  std::size_t bytes = 0;
};
struct Answer {
  enum class Kind : char {
    done,
    refused,        ///< by its cap or the shared budget; it holds what it held
    out_of_memory,  ///< by the device
    failed,
  } kind{};
  pid_t pid = 0;
  std::size_t holds = 0, most = 0;  ///< bytes of the shared budget, now and at most
  char text[400] = {};              ///< of an error, in one line
};

/// What it does, in a process of its own, or, in plan mode, in this one.
class Job {
 public:
  Job(SharedBudget& budget, std::size_t cap)
      : budget_(budget), share_(device_, budget, kNeighbours), capped_(share_, cap) {}
  ~Job() {
    for (const auto& [address, bytes] : held_) cache_.deallocate(address, bytes, nullptr);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Never throws: what went wrong is in the answer.
  Answer obey(const Order& order) noexcept {
    Answer answer;
    try {
      if (order.kind == Order::Kind::empty) cache_.empty();
      if (order.kind == Order::Kind::hold || order.kind == Order::Kind::burst) {
        held_.reserve(held_.size() + 1);
        void* const address = cache_.allocate(order.bytes, nullptr);
        held_.emplace_back(address, order.bytes);
        if (address) CUDA_CHECK(cudaMemsetAsync(address, 1, order.bytes, nullptr));
        CUDA_CHECK(cudaStreamSynchronize(nullptr));
        if (order.kind == Order::Kind::burst) {
          held_.pop_back();
          cache_.deallocate(address, order.bytes, nullptr);
        }
      }
    } catch (const OutOfMemory& error) {
      say(answer, error.report().by_limit ? Answer::Kind::refused : Answer::Kind::out_of_memory, error.what());
    } catch (const std::bad_alloc&) {
      say(answer, Answer::Kind::failed, "out of host memory (std::bad_alloc)");
    } catch (const std::exception& error) {
      say(answer, Answer::Kind::failed, error.what());
    }
    answer.pid = getpid();
    answer.holds = budget_.used_bytes(kNeighbours);
    answer.most = budget_.peak_bytes(kNeighbours);
    return answer;
  }
  static void say(Answer& answer, Answer::Kind kind, const char* what) noexcept {
    answer.kind = kind;
    std::strncpy(answer.text, what, sizeof answer.text - 1);
  }

 private:
  SharedBudget& budget_;
  CudaResource device_;
  SharedLimitResource share_;
  LimitingResource capped_;
  KeepingResource cache_{capped_};
  std::vector<std::pair<void*, std::size_t>> held_;
};

/// How long this process waits for the neighbour, at most.
struct Waits {
  std::chrono::milliseconds for_an_answer{120'000};  ///< then it is an error
  std::chrono::milliseconds for_its_end{10'000};     ///< then it is killed, and waited for once more
};

/// From now on this process is killed when its parent ends. Returns at once when that has happened.
inline void end_with(pid_t parent) noexcept {
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(0);
}

/// How long it goes on after `finish`: its step must come to an end.
inline constexpr std::chrono::milliseconds kLastStep{2};

/// The life of a neighbour's process, until `finish`, or until nobody is there any more to give orders.
inline void be_a_neighbour(int socket, SharedBudget& budget) noexcept {
  (void)prctl(PR_SET_NAME, "neighbour");
  std::unique_ptr<Job> job;
  for (Order order; recv(socket, &order, sizeof order, 0) == static_cast<ssize_t>(sizeof order);) {
    Answer answer;
    if (order.kind == Order::Kind::finish) {
      std::this_thread::sleep_for(kLastStep);
      return;
    }
    if (order.kind == Order::Kind::begin) {
      try {
        CUDA_CHECK(cudaSetDevice(order.device));
        job = std::make_unique<Job>(budget, order.bytes);
        answer.pid = getpid();
      } catch (const std::bad_alloc&) {
        Job::say(answer, Answer::Kind::failed, "out of host memory (std::bad_alloc)");
      } catch (const std::exception& error) {
        Job::say(answer, Answer::Kind::failed, error.what());
      }
    } else if (job) {
      answer = job->obey(order);
    }
    if (send(socket, &answer, sizeof answer, MSG_NOSIGNAL) < 0) return;
  }
}

// --------------------------------------------------------------------------------------------------------- fork server

/// A process that forks others, and the budget that they share with this one. To be made before the first CUDA call.
class ForkServer {
 public:
  /// In each process that it starts, `body` runs, with one end of a socket. Does not throw: start() does.
  explicit ForkServer(void (*body)(int socket, SharedBudget& budget)) noexcept {
    try {
      budget_.emplace();
    } catch (const std::bad_alloc&) {
      return;
    }
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return;
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ == 0) {
      end_with(parent);
      close(ends[0]);
      serve(ends[1], body, *budget_);
    }
    close(ends[1]);
    control_ = ends[0];
  }
  ~ForkServer() {
    if (control_ >= 0) close(control_);
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);  // it has nothing that is worth a goodbye, and may be stopped
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) continue;
  }
  ForkServer(const ForkServer&) = delete;
  ForkServer& operator=(const ForkServer&) = delete;

  /// Starts a process; returns this process's end of its socket. Throws std::system_error.
  int start() {
    int ends[2];
    if (pid_ < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) fail();
    Passing passing;
    cmsghdr* const rights = CMSG_FIRSTHDR(&passing.message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &ends[1], sizeof(int));
    const ssize_t sent = sendmsg(control_, &passing.message, MSG_NOSIGNAL);
    close(ends[1]);
    if (sent == 1) return ends[0];
    close(ends[0]);
    fail();
  }
  /// Throws std::bad_alloc where there was no memory for one.
  SharedBudget& budget() {
    if (!budget_) throw std::bad_alloc();
    return *budget_;
  }

 private:
  // One byte, and beside it room for a socket that goes to another process.
  struct Passing {
    Passing() {
      message.msg_iov = &data;
      message.msg_iovlen = 1;
      message.msg_control = space;
      message.msg_controllen = sizeof space;
    }
    Passing(const Passing&) = delete;
    Passing& operator=(const Passing&) = delete;

    char byte = 0;
    alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
    iovec data{&byte, 1};
    msghdr message{};
  };
  [[noreturn]] static void fail() {
    throw std::system_error(errno, std::generic_category(), "starting a process failed");
  }
  [[noreturn]] static void serve(int control, void (*body)(int, SharedBudget&), SharedBudget& budget) noexcept {
    for (const int number : {SIGINT, SIGTERM, SIGCHLD}) signal(number, SIG_IGN);  // it ends when its parent does
    for (;;) {
      Passing passing;
      if (recvmsg(control, &passing.message, 0) != 1) _exit(0);
      const cmsghdr* const rights = CMSG_FIRSTHDR(&passing.message);
      int socket = -1;
      if (rights) std::memcpy(&socket, CMSG_DATA(rights), sizeof socket);
      const pid_t server = getpid();
      if (fork() == 0) {
        end_with(server);
        close(control);
        body(socket, budget);
        _exit(0);
      }
      close(socket);
    }
  }
  std::optional<SharedBudget> budget_;
  pid_t pid_ = -1;
  int control_ = -1;
};

// ---------------------------------------------------------------------------------------------------------- neighbours

/// The neighbour, as this process sees it. Its destructor ends it, and sees to it that nothing of its is taken.
class Neighbour {
 public:
  virtual ~Neighbour() = default;
  /// Throws OutOfMemory when the device has no memory for it, std::runtime_error when it failed or is gone.
  virtual Answer ask(const Order& order) = 0;
  /// Tells it to finish, and does not wait for it.
  virtual void finish() = 0;
  /// Ends it as `kill -9` does.
  virtual void kill() = 0;
  /// Whether it is still there. What one has that ended by itself, in whatever way, is then nobody's.
  virtual void look() {}

 protected:
  static Answer checked(const Answer& answer) {
    if (answer.kind == Answer::Kind::failed)
      throw std::runtime_error(fmt::format("the neighbour failed: {}", answer.text));
    if (answer.kind == Answer::Kind::out_of_memory) {
      OutOfMemoryReport report;
      report.tag = "the neighbour's memory";
      throw OutOfMemory(std::move(report));
    }
    return answer;
  }
};

class NeighbourProcess final : public Neighbour {
 public:
  NeighbourProcess(ForkServer& server, int device, std::size_t cap)
      : budget_(server.budget()), socket_{server.start()}, pid_(ask({Order::Kind::begin, device, cap}).pid) {}
  ~NeighbourProcess() override {
    socket_.shut();
    gone();
  }
  Answer ask(const Order& order) override {
    Answer answer;
    const bool sent = send(socket_.number, &order, sizeof order, MSG_NOSIGNAL) >= 0;
    const Got got = sent ? receive(answer, waits_.for_an_answer, [] { check_interrupt(); }) : Got::its_end;
    check_interrupt();
    if (got == Got::its_end) throw std::runtime_error("the neighbour failed: its process is gone");
    if (got == Got::nothing)
      throw std::runtime_error(fmt::format(
          "the neighbour failed: no answer for {} ms; its process is stopped, or hangs", waits_.for_an_answer.count()));
    return checked(answer);
  }
  void finish() override {
    const Order order{Order::Kind::finish};
    (void)send(socket_.number, &order, sizeof order, MSG_NOSIGNAL);
  }
  void kill() override {
    ::kill(pid_, SIGKILL);
    gone();
  }
  /// For tests: other limits from now on.
  void set_waits(const Waits& waits) noexcept { waits_ = waits; }
  void look() override {
    if (char byte; recv(socket_.number, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) gone();
  }

 private:
  struct Socket {
    int number;
    ~Socket() { close(number); }
    void shut() const { shutdown(number, SHUT_WR); }  // the neighbour reads the end, and ends
  };
  // Waits for an answer; meanwhile calls `look` twenty times a second.
  enum class Got { answer, its_end, nothing };
  template <class Look>
  Got receive(Answer& answer, std::chrono::milliseconds patience, Look look) {
    using Clock = std::chrono::steady_clock;
    for (const auto end = Clock::now() + patience;; look()) {
      pollfd ready{socket_.number, POLLIN, 0};
      const int found = poll(&ready, 1, 50);
      if (found > 0) {
        const ssize_t got = recv(socket_.number, &answer, sizeof answer, MSG_DONTWAIT);
        if (got == static_cast<ssize_t>(sizeof answer)) return Got::answer;
        if (got >= 0 || (errno != EINTR && errno != EAGAIN)) return Got::its_end;
      }
      if (found < 0 && errno != EINTR) return Got::its_end;
      if (Clock::now() >= end) return Got::nothing;
    }
  }
  // Its end of the socket is closed when it is over, however it ended. One that does not end is killed; after Ctrl-C at
  // once.
  void gone() {
    bool killed = false;
    for (Answer late;;) {
      const bool hurry = interrupt_wanted && !killed;
      const Got got = receive(late, hurry ? std::chrono::milliseconds(0) : waits_.for_its_end, [] {});
      if (got == Got::its_end || (got == Got::nothing && std::exchange(killed, true))) break;
      if (got == Got::nothing) ::kill(pid_, SIGKILL);
    }
    budget_.give_all(kNeighbours);
  }
  SharedBudget& budget_;
  Waits waits_;
  Socket socket_;
  pid_t pid_;
};

/// Plan mode: nothing runs, so the neighbour's requests are counted here.
class PlannedNeighbour final : public Neighbour {
 public:
  PlannedNeighbour(SharedBudget& budget, std::size_t cap) : job_(std::make_unique<Job>(budget, cap)) {}
  Answer ask(const Order& order) override { return checked(job_->obey(order)); }
  void finish() override { job_.reset(); }
  void kill() override { job_.reset(); }

 private:
  std::unique_ptr<Job> job_;
};

}  // namespace oomlab::sharing
