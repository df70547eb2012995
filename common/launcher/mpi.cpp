// The processes that mpirun (or srun, or another launcher that speaks MPI) has started. An error in MPI ends all of
// them: that is what MPI does when it is not told otherwise.

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <list>
#include <map>
#include <mutex>
#include <thread>

#include "cuda/backend.h"
#include "harness/processes.h"
#include "memory/text.h"
#include "plan/text.h"

namespace oomlab {
namespace {

constexpr std::size_t kPiece = std::size_t(1) << 20;
constexpr int kMore = 1, kLast = 2;  // tags: of a piece that another one follows, and of a message's last
constexpr std::chrono::microseconds kPoll{50};

std::mutex mpi;  // MPI takes one call at a time; none of those here waits

// Messages between the processes, in order. Long ones go in pieces: MPI counts in int.
class Channel {
 public:
  void open() { MPI_Comm_dup(MPI_COMM_WORLD, &comm_); }
  void send(int to, std::string text) {
    const std::lock_guard lock(mpi);
    Outgoing& message = outgoing_.emplace_back();
    message.text = std::move(text);
    std::size_t sent = 0;
    do {
      const std::size_t bytes = std::min(kPiece, message.text.size() - sent);
      const bool last = sent + bytes == message.text.size();
      MPI_Isend(message.text.data() + sent, static_cast<int>(bytes), MPI_BYTE, to, last ? kLast : kMore, comm_,
                &message.pieces.emplace_back());
      sent += bytes;
    } while (sent < message.text.size());
  }
  /// A message that has come, and from whom. What is to be sent goes out meanwhile.
  std::optional<std::pair<int, std::string>> receive() {
    const std::lock_guard lock(mpi);
    outgoing_.remove_if([](Outgoing& message) {
      int done = 0;
      MPI_Testall(static_cast<int>(message.pieces.size()), message.pieces.data(), &done, MPI_STATUSES_IGNORE);
      return done != 0;
    });
    for (;;) {
      int there = 0, bytes = 0;
      MPI_Status status;
      MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &there, &status);
      if (!there) return std::nullopt;
      MPI_Get_count(&status, MPI_BYTE, &bytes);
      std::string& text = incoming_[status.MPI_SOURCE];
      const std::size_t at = text.size();
      text.resize(at + static_cast<std::size_t>(bytes));
      MPI_Recv(text.data() + at, bytes, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, comm_, MPI_STATUS_IGNORE);
      if (status.MPI_TAG == kLast) return std::pair(status.MPI_SOURCE, std::exchange(text, {}));
    }
  }
  /// Drops what nobody reads any more. Returns true when nothing is left to be sent.
  bool drain() {
    while (receive()) {
    }
    return outgoing_.empty();
  }

 private:
  struct Outgoing {
    std::string text;
    std::vector<MPI_Request> pieces;
  };
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::list<Outgoing> outgoing_;
  std::map<int, std::string> incoming_;  // by process: the pieces that have come
};

class MpiProcesses final : public Processes {
 public:
  MpiProcesses() {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
    if (provided < MPI_THREAD_SERIALIZED) {
      MPI_Finalize();
      throw std::runtime_error("this MPI cannot be used in a program that has threads");
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    MPI_Comm host;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_rank(host, &local_rank_);
    MPI_Comm_free(&host);
    harness_.open();
    backend_.open();
    if (Deliver deliver = expect_processes(
            rank_, size_, [this](int to, std::string message) { backend_.send(to, std::move(message)); }))
      postman_ = std::jthread([this, deliver](const std::stop_token& stop) { carry(stop, deliver); });
  }
  ~MpiProcesses() override {
    if (postman_.joinable()) postman_.request_stop(), postman_.join();
    // A process that is done goes on carrying until all are.
    while (!harness_.drain() || !backend_.drain()) std::this_thread::sleep_for(kPoll);
    MPI_Request all;
    MPI_Ibarrier(MPI_COMM_WORLD, &all);
    for (int here = 0; !here; std::this_thread::sleep_for(kPoll)) {
      harness_.drain(), backend_.drain();
      MPI_Test(&all, &here, MPI_STATUS_IGNORE);
    }
    harness_.drain(), backend_.drain();
    MPI_Finalize();
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return local_rank_; }
  void send(int to, std::string text) override { harness_.send(to, std::move(text)); }
  std::optional<std::pair<int, std::string>> receive() override { return harness_.receive(); }
  void abort(int exit_code) override {
    MPI_Abort(MPI_COMM_WORLD, exit_code);
    std::_Exit(exit_code);
  }

 private:
  void carry(const std::stop_token& stop, const Deliver& deliver) {
    try {
      while (!stop.stop_requested())
        if (const auto message = backend_.receive())
          deliver(message->first, message->second);
        else
          std::this_thread::sleep_for(kPoll);
    } catch (const std::exception& error) {
      put(stderr, "rank " + std::to_string(rank_) + ": " + one_line(error.what()) + "; it ends the job\n");
      abort(1);
    }
  }

  int rank_ = 0, size_ = 1, local_rank_ = 0;
  Channel harness_, backend_;
  std::jthread postman_;
};

}  // namespace

std::unique_ptr<Processes> join_launcher() { return std::make_unique<MpiProcesses>(); }

}  // namespace oomlab
