// When one rank of a team fails, the others end, and the failure has its name: at every moment at which it can fail,
// many times, because threads meet differently every time. One that waited for it until its patience is over would say
// so.

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

#include "cuda/nccl.h"
#include "cuda/raii.h"
#include "harness/processes.h"
#include "harness/ranks.h"
#include "oomlab_host.h"

namespace oomlab {
namespace {

constexpr int kRanks = 3, kFailing = 1;

class Trio final : public Team {
 public:
  Trio() : Team(kRanks) {}
  std::unique_ptr<Workload> make(Context&, int) override { return nullptr; }
  ByCategory predicted(int) const override { return {}; }
};

std::atomic<int> at_work;  // ranks that are about to do something that only all of them can end

[[noreturn]] void give_up() { throw std::runtime_error("a cause of its own"); }

using Body = void (*)(const ncclUniqueId& id, int rank, const std::atomic<bool>& failed);

void work(Communicator& comm, cudaStream_t stream) {
  std::vector<float> values(1000, 1);
  comm.all_reduce(values.data(), values.size(), stream);
  comm.wait(stream);
}

void before_set_up(const ncclUniqueId& id, int rank, const std::atomic<bool>& failed) {
  if (rank == kFailing) give_up();
  Communicator comm(id, kRanks, rank, failed);
}
void during_set_up(const ncclUniqueId& id, int rank, const std::atomic<bool>& failed) {
  if (rank == kFailing) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    const ncclResult_t begun = ncclCommInitRankConfig(&comm, kRanks, id, rank, &config);
    if (comm) (void)ncclCommAbort(comm);
    if (begun == ncclSuccess || begun == ncclInProgress) give_up();
  }
  Communicator comm(id, kRanks, rank, failed);
  const Stream stream;
  work(comm, stream);
}
void after_set_up(const ncclUniqueId& id, int rank, const std::atomic<bool>& failed) {
  Communicator comm(id, kRanks, rank, failed);
  if (rank == kFailing) give_up();
  const Stream stream;
  work(comm, stream);
}
// Rank 0 has sent it something, and waits for an answer; rank 2 waits for its first message.
void at_the_first_send(const ncclUniqueId& id, int rank, const std::atomic<bool>& failed) {
  Communicator comm(id, kRanks, rank, failed);
  if (rank == kFailing) give_up();
  const Stream stream;
  std::vector<float> values(1000, 1);
  if (rank == 0) comm.send(values.data(), values.size(), kFailing, stream);
  comm.receive(values.data(), values.size(), kFailing, stream);
  comm.wait(stream);
}
void within_a_collective(const ncclUniqueId& id, int rank, const std::atomic<bool>& failed) {
  Communicator comm(id, kRanks, rank, failed);
  const Stream stream;
  work(comm, stream);
  if (rank == kFailing) {
    while (at_work < kRanks - 1) std::this_thread::yield();
    give_up();
  }
  ++at_work;
  work(comm, stream);
}

// In two groups, as ranks of a grid are: both are aborted at once, or in rendezvous mode the host complains.
struct Both {
  Communicator &one, &other;
  ~Both() { Communicator::abort_together({&one, &other}); }
};
void in_two_groups(const ncclUniqueId& id, int rank, const std::atomic<bool>& failed) {
  const Stream stream;
  Communicator one(id, kRanks, rank, failed);
  ncclUniqueId second{};
  if (rank == 0) NCCL_CHECK(ncclGetUniqueId(&second));
  one.broadcast(second.internal, sizeof second.internal, 0, stream);
  one.wait(stream);
  Communicator other(second, kRanks, rank, failed);
  const Both both{one, other};
  work(other, stream);
  if (rank == kFailing) give_up();
  work(one, stream);
}

struct Case {
  const char* name;
  Body body;
  bool rendezvous;
};

class FailingRank : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    before_ = host::machine();
    host::Machine machine = before_;
    machine.devices = kRanks;
    machine.capacity = std::size_t(64) << 20;
    machine.rendezvous = GetParam().rendezvous;
    host::configure(machine);
  }
  void TearDown() override {
    EXPECT_EQ("nothing", host::describe(host::live()));
    EXPECT_EQ(lost_before_, host::patience_lost());
    host::configure(before_);
  }

 private:
  host::Machine before_;
  std::uint64_t lost_before_ = host::patience_lost();
};

TEST_P(FailingRank, EndsTheOthersAndIsNamed) {
  std::vector<int> ranks(kRanks);
  std::iota(ranks.begin(), ranks.end(), 0);
  testing::internal::CaptureStderr();  // what a destructor has to say
  for (int repetition = 0; repetition < 10 * OOMLAB_ROUNDS; ++repetition) {
    ncclUniqueId id;
    ASSERT_EQ(ncclSuccess, ncclGetUniqueId(&id));
    Trio team;
    std::string said = "nothing failed";
    at_work = 0;
    try {
      (void)on_ranks(team, ranks, [&](int rank) {
        CUDA_CHECK(cudaSetDevice(rank));
        GetParam().body(id, rank, team.failed);
        return std::string();
      });
    } catch (const RankFailed& error) {
      said = error.what();
    }
    ASSERT_EQ("rank 1: a cause of its own", said) << "repetition " << repetition;
    (void)cudaGetLastError();
  }
  EXPECT_EQ("", testing::internal::GetCapturedStderr());
}

constexpr Case kCases[] = {
    {"BeforeSetUp", before_set_up, false},
    {"DuringSetUp", during_set_up, false},
    {"AfterSetUp", after_set_up, false},
    {"AtTheFirstSend", at_the_first_send, false},
    {"AtTheFirstSendRendezvous", at_the_first_send, true},
    {"WithinACollective", within_a_collective, false},
    {"WithinACollectiveRendezvous", within_a_collective, true},
    {"InTwoGroups", in_two_groups, false},
    {"InTwoGroupsRendezvous", in_two_groups, true},
};
INSTANTIATE_TEST_SUITE_P(Moments, FailingRank, testing::ValuesIn(kCases),
                         [](const testing::TestParamInfo<Case>& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace oomlab
