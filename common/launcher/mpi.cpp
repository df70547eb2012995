// The processes that mpirun (or srun, or another launcher that speaks MPI) has started. An error in MPI ends all of
// them: that is what MPI does when it is not told otherwise.

#include <mpi.h>

#include <list>

#include "harness/processes.h"

namespace oomlab {
namespace {

constexpr int kTag = 7;

class MpiProcesses final : public Processes {
 public:
  MpiProcesses() {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
    if (provided < MPI_THREAD_FUNNELED) {
      MPI_Finalize();
      throw std::runtime_error("this MPI cannot be used in a program that has threads");
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    MPI_Comm host;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_rank(host, &local_rank_);
    MPI_Comm_free(&host);
  }
  ~MpiProcesses() override {
    for (Outgoing& message : outgoing_) MPI_Wait(&message.request, MPI_STATUS_IGNORE);
    // Signs of life that nobody reads any more.
    MPI_Barrier(MPI_COMM_WORLD);
    while (receive()) {
    }
    MPI_Finalize();
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return local_rank_; }
  void send(int to, std::string text) override {
    Outgoing& message = outgoing_.emplace_back(std::move(text));
    MPI_Isend(message.text.data(), static_cast<int>(message.text.size()), MPI_BYTE, to, kTag, MPI_COMM_WORLD,
              &message.request);
  }
  std::optional<std::pair<int, std::string>> receive() override {
    outgoing_.remove_if([](Outgoing& message) {
      int done = 0;
      MPI_Test(&message.request, &done, MPI_STATUS_IGNORE);
      return done != 0;
    });
    int there = 0;
    MPI_Status status;
    MPI_Iprobe(MPI_ANY_SOURCE, kTag, MPI_COMM_WORLD, &there, &status);
    if (!there) return std::nullopt;
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    std::string text(static_cast<std::size_t>(bytes), '\0');
    MPI_Recv(text.data(), bytes, MPI_BYTE, status.MPI_SOURCE, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return std::pair(status.MPI_SOURCE, std::move(text));
  }
  void abort(int exit_code) override {
    MPI_Abort(MPI_COMM_WORLD, exit_code);
    std::_Exit(exit_code);
  }

 private:
  struct Outgoing {
    explicit Outgoing(std::string text) : text(std::move(text)) {}
    std::string text;
    MPI_Request request{};
  };
  int rank_ = 0, size_ = 1, local_rank_ = 0;
  std::list<Outgoing> outgoing_;
};

}  // namespace

std::unique_ptr<Processes> join_launcher() { return std::make_unique<MpiProcesses>(); }

}  // namespace oomlab
