// What would hang with NCCL is an error here, on every rank. Nobody waits until patience is over, unless the test says
// so.

#include <nccl.h>

#include <atomic>
#include <functional>
#include <optional>
#include <thread>

#include "../../common/host/src/nccl_world.h"
#include "contract.h"
#include "cuda/nccl.h"
#include "oomlab_host.h"
#include "patience.h"

namespace {

using namespace oomlab;
using test::await, test::ShortPatience;
using Results = std::vector<ncclResult_t>;

class HostNccl : public Contract {
 protected:
  void SetUp() override {
    before_ = host::machine();
    host::Machine machine = before_;
    machine.devices = 3;
    machine.capacity = std::size_t(64) << 20;
    host::configure(machine);
    lost_before_ = host::patience_lost();
  }
  void TearDown() override {
    EXPECT_EQ("nothing", host::describe(host::live()));
    EXPECT_EQ(lost_before_ + must_lose_patience, host::patience_lost());
    host::configure(before_);
    Contract::TearDown();
  }
  // Each rank's answer of body(rank, comm) on a thread of its own; what it complains of in said[rank].
  Results on_ranks(const std::function<ncclResult_t(int, ncclComm_t)>& body) {
    ncclUniqueId id;
    said.assign(3, "");
    if (const ncclResult_t result = ncclGetUniqueId(&id)) return Results(3, result);
    Results results(3);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank)
      threads.emplace_back([&, rank] {
        (void)cudaSetDevice(rank);
        ncclComm_t comm = nullptr;
        results[std::size_t(rank)] = ncclCommInitRank(&comm, 3, id, rank);
        if (results[std::size_t(rank)] == ncclSuccess) {
          results[std::size_t(rank)] = body(rank, comm);
          said[std::size_t(rank)] = ncclGetLastError(comm);
          const bool failed = results[std::size_t(rank)] != ncclSuccess;
          const ncclResult_t left = failed ? ncclCommAbort(comm) : ncclCommDestroy(comm);
          if (!failed && left) results[std::size_t(rank)] = left, said[std::size_t(rank)] = ncclGetLastError(nullptr);
        }
      });
    for (std::thread& thread : threads) thread.join();
    return results;
  }
  std::vector<std::string> said;
  unsigned must_lose_patience = 0;  // how often, in this test

 private:
  host::Machine before_;
  std::uint64_t lost_before_ = 0;
};

ncclResult_t all_reduce(ncclComm_t comm, std::size_t count, ncclDataType_t type = ncclFloat32) {
  float values[64] = {};
  return ncclAllReduce(values, values, count, type, ncclSum, comm, nullptr);
}

TEST_F(HostNccl, DifferentCountsAreToldToAll) {
  const Results r = on_ranks([](int rank, ncclComm_t comm) { return all_reduce(comm, rank == 1 ? 63 : 64); });
  EXPECT_EQ((Results{ncclInvalidUsage, ncclInvalidUsage, ncclInvalidUsage}), r);
  EXPECT_NE(std::string::npos, said[0].find("63 elements")) << said[0];
}

TEST_F(HostNccl, DifferentCallsAreToldToAll) {
  const Results r = on_ranks([](int rank, ncclComm_t comm) {
    float values[3] = {};
    return rank == 2 ? ncclAllGather(values, values, 1, ncclFloat32, comm, nullptr) : all_reduce(comm, 1);
  });
  EXPECT_EQ((Results{ncclInvalidUsage, ncclInvalidUsage, ncclInvalidUsage}), r);
}

TEST_F(HostNccl, ARankThatLeavesEndsTheOthers) {
  const Results r = on_ranks([](int rank, ncclComm_t comm) { return rank == 0 ? ncclSuccess : all_reduce(comm, 8); });
  EXPECT_EQ((Results{ncclSuccess, ncclRemoteError, ncclRemoteError}), r);
  EXPECT_NE(std::string::npos, said[1].find("rank 0, which has left")) << said[1];
}

TEST_F(HostNccl, ARankThatAbortsIsNamed) {
  const Results r =
      on_ranks([](int rank, ncclComm_t comm) { return rank == 2 ? ncclInternalError : all_reduce(comm, 8); });
  EXPECT_EQ((Results{ncclRemoteError, ncclRemoteError, ncclInternalError}), r);
  EXPECT_NE(std::string::npos, said[0].find("rank 2")) << said[0];
}

// Rank 1 comes when the others have failed; rank 2, which could also wait for rank 0, when that has.
TEST_F(HostNccl, ARankThatStallsIsNamed) {
  must_lose_patience = 1;
  std::atomic<int> joined{0}, failed{0};
  std::optional<ShortPatience> patience;
  const Results r = on_ranks([&](int rank, ncclComm_t comm) {
    ++joined;
    const int turn[] = {0, 2, 1};
    await([&] { return joined == 3 && failed == turn[rank]; });
    if (rank == 0) patience.emplace();
    const ncclResult_t result = all_reduce(comm, 8);
    ++failed;
    return result;
  });
  EXPECT_EQ((Results{ncclRemoteError, ncclRemoteError, ncclRemoteError}), r);
  for (const std::string& text : said)
    EXPECT_NE(std::string::npos, text.find("rank 0 waits for rank 1, which does not come")) << text;
}

TEST_F(HostNccl, AMessageThatNobodyReceives) {
  const Results sent = on_ranks([](int rank, ncclComm_t comm) {
    float value = 0;
    if (rank == 0) return ncclSend(&value, 1, ncclFloat32, 1, comm, nullptr);
    return ncclSuccess;
  });
  // Rank 1 hears of it when it leaves, unless it has left before the message came.
  EXPECT_TRUE(sent[1] == ncclInvalidUsage || sent[1] == ncclSuccess);
  const Results waited = on_ranks([](int rank, ncclComm_t comm) {
    float value = 0;
    return rank == 1 ? ncclRecv(&value, 1, ncclFloat32, 0, comm, nullptr) : ncclSuccess;
  });
  EXPECT_EQ(ncclRemoteError, waited[1]);
}

TEST_F(HostNccl, AMissingRankIsNamed) {
  must_lose_patience = 1;
  const ShortPatience patience;
  ncclUniqueId id;
  ASSERT_EQ(ncclSuccess, ncclGetUniqueId(&id));
  ncclComm_t comm = nullptr;
  EXPECT_EQ(ncclRemoteError, ncclCommInitRank(&comm, 2, id, 0));
  EXPECT_NE(std::string::npos, std::string(ncclGetLastError(nullptr)).find("waits for rank 1"));
  (void)cudaSetDevice(1);
  EXPECT_EQ(ncclRemoteError, ncclCommInitRank(&comm, 2, id, 1)) << "comes when the other has given up";
  (void)cudaSetDevice(0);
}

TEST_F(HostNccl, ASetUpThatDoesNotBlock) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  ncclResult_t state = ncclSuccess;
  const auto begin = [&] {
    ncclUniqueId id;
    ASSERT_EQ(ncclSuccess, ncclGetUniqueId(&id));
    ASSERT_EQ(ncclInProgress, ncclCommInitRankConfig(&comm, 2, id, 0, &config));
  };
  begin();
  EXPECT_EQ(ncclSuccess, ncclCommGetAsyncError(comm, &state));
  EXPECT_EQ(ncclInProgress, state);
  EXPECT_EQ(ncclInvalidUsage, all_reduce(comm, 8)) << "nothing can be done with it yet";
  EXPECT_EQ(ncclSuccess, ncclCommAbort(comm));

  must_lose_patience = 1;
  const ShortPatience patience;
  begin();
  do ASSERT_EQ(ncclSuccess, ncclCommGetAsyncError(comm, &state));
  while (state == ncclInProgress);
  EXPECT_EQ(ncclRemoteError, state);
  EXPECT_NE(std::string::npos, std::string(ncclGetLastError(nullptr)).find("waits for rank 1, which does not come"));
  EXPECT_EQ(ncclSuccess, ncclCommAbort(comm));
}

// A rank that fails before it has come to the set-up: the others do not wait for it until they lose patience.
TEST_F(HostNccl, AFailureEndsTheSetUpOfOthers) {
  ncclUniqueId id;
  ASSERT_EQ(ncclSuccess, ncclGetUniqueId(&id));
  std::atomic<bool> failed{false};
  std::thread other([&] {
    await([] { return host::live().communicators == 1; });  // the set-up has begun
    failed = true;
  });
  EXPECT_EQ(ncclInvalidArgument, ncclGetUniqueId(nullptr)) << "the last error is no earlier test's";
  try {
    Communicator(id, 2, 0, failed);
    ADD_FAILURE() << "it is set up without rank 1";
  } catch (const RemoteNcclError& error) {
    EXPECT_EQ(std::string::npos, std::string(error.what()).find("does not come")) << error.what();
  }
  other.join();
}

// A send that is over only when it is received, as NCCL allows.
class HostNcclRendezvous : public HostNccl {
 protected:
  void SetUp() override {
    HostNccl::SetUp();
    host::Machine machine = host::machine();
    if (machine.deferred) GTEST_SKIP() << "with eager streams only";
    machine.rendezvous = true;
    host::configure(machine);
  }
  // Ranks 0 and 1 send each other a number and receive the other's, each on a stream of its own; what receives waits
  // for the send first, or does not. Then both wait for ever: rank 1 loses patience, when rank 0 waits already.
  Results exchange(bool send_ends_before_receive_begins) {
    std::optional<ShortPatience> patience;
    return on_ranks([&](int rank, ncclComm_t comm) {
      if (rank == 2) return ncclSuccess;
      const Stream sending, receiving;
      Event sent;
      float mine = float(rank), theirs = -1;
      ncclResult_t result = ncclSend(&mine, 1, ncclFloat32, 1 - rank, comm, sending);
      sent.record(sending);
      if (send_ends_before_receive_begins) {
        EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(sending)) << "nobody has received it, or will";
        EXPECT_EQ(cudaSuccess, cudaStreamWaitEvent(receiving, sent));
        EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(receiving)) << "it waits for the event behind the send";
        (void)cudaGetLastError();
        if (rank == 1) {
          await([&] {
            const host::WorldLock lock(comm->world->mutex);
            return comm->world->ranks[0].waits_for == 1;
          });
          patience.emplace();
        }
      }
      if (!result) result = ncclRecv(&theirs, 1, ncclFloat32, 1 - rank, comm, receiving);
      if (result) return result;
      EXPECT_EQ(cudaSuccess, cudaStreamSynchronize(sending));
      EXPECT_EQ(cudaSuccess, cudaStreamQuery(sending));
      EXPECT_EQ(cudaSuccess, cudaEventSynchronize(sent));
      EXPECT_EQ(float(1 - rank), theirs);
      ncclResult_t state = ncclInProgress;
      EXPECT_EQ(ncclSuccess, ncclCommGetAsyncError(comm, &state));
      EXPECT_EQ(ncclSuccess, state) << "nobody has lost patience";
      return result;
    });
  }
};

// An abort waits for the device on a GPU, so for what is queued for a communicator that is aborted only after it.
TEST_F(HostNcclRendezvous, OneAbortAfterTheOtherIsReported) {
  for (const bool in_a_group : {false, true}) {
    ncclComm_t comms[3] = {};
    float value = 1;
    for (ncclComm_t& comm : comms) {
      ncclUniqueId id;
      ASSERT_EQ(ncclSuccess, ncclGetUniqueId(&id));
      ASSERT_EQ(ncclSuccess, ncclCommInitRank(&comm, 1, id, 0));
      if (&comm == &comms[2]) continue;  // has had nothing to do, so nobody waits for it
      ASSERT_EQ(ncclSuccess, ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, comm, nullptr));
    }
    ASSERT_EQ(ncclSuccess, in_a_group ? ncclGroupStart() : ncclSuccess);
    EXPECT_EQ(in_a_group ? ncclSuccess : ncclInvalidUsage, ncclCommAbort(comms[0]));
    EXPECT_EQ(ncclSuccess, ncclCommAbort(comms[1]));
    EXPECT_EQ(ncclSuccess, in_a_group ? ncclGroupEnd() : ncclSuccess);
    EXPECT_EQ(ncclSuccess, ncclCommAbort(comms[2]));
  }
}

// NCCL up to 2.22 writes into peers' buffers. A pool is open to its own device only, until it is told otherwise.
TEST_F(HostNcclRendezvous, APoolThatPeersMayNotReachIsRefused) {
  for (const bool open : {false, true}) {
    const Results r = on_ranks([open](int rank, ncclComm_t comm) {
      cudaMemPoolProps properties{};
      properties.allocType = cudaMemAllocationTypePinned;
      properties.location = {cudaMemLocationTypeDevice, rank};
      cudaMemPool_t pool = nullptr;
      CUDA_CHECK(cudaMemPoolCreate(&pool, &properties));
      for (int peer = 0; open && peer < 3; ++peer) {
        cudaMemAccessDesc access{};
        access.location = {cudaMemLocationTypeDevice, peer};
        access.flags = cudaMemAccessFlagsProtReadWrite;
        CUDA_CHECK(cudaMemPoolSetAccess(pool, &access, 1));
      }
      void* data = nullptr;
      CUDA_CHECK(cudaMallocFromPoolAsync(&data, 256, pool, nullptr));
      const ncclResult_t result = ncclAllReduce(data, data, 64, ncclFloat32, ncclSum, comm, nullptr);
      CUDA_CHECK(cudaFreeAsync(data, nullptr));
      CUDA_CHECK(cudaStreamSynchronize(nullptr));
      CUDA_CHECK(cudaMemPoolDestroy(pool));
      return result;
    });
    EXPECT_EQ(Results(3, open ? ncclSuccess : ncclInvalidUsage), r);
    EXPECT_EQ(!open, said[0].find("a pool that another rank's device may not reach") != std::string::npos) << said[0];
  }
}

TEST_F(HostNcclRendezvous, WhatIsReceivedIsOver) {
  EXPECT_EQ((Results{ncclSuccess, ncclSuccess, ncclSuccess}), exchange(false));
}

// What chapter 07's pipeline did until it let its sends go on while it receives.
TEST_F(HostNcclRendezvous, ACircleOfSendsIsReportedWithItsRanks) {
  must_lose_patience = 1;
  const Results r = exchange(true);
  EXPECT_TRUE(r[0] == ncclInvalidUsage || r[1] == ncclInvalidUsage);
  for (const int rank : {0, 1}) {
    EXPECT_NE(ncclSuccess, r[std::size_t(rank)]);
    EXPECT_NE(std::string::npos, said[std::size_t(rank)].find("ncclSend: rank 0 waits for rank 1")) << said[rank];
    EXPECT_NE(std::string::npos, said[std::size_t(rank)].find("ncclSend: rank 1 waits for rank 0")) << said[rank];
    EXPECT_NE(std::string::npos, said[std::size_t(rank)].find("in a circle")) << said[rank];
  }
}

TEST_F(HostNccl, TwoRanksCannotShareADevice) {
  ncclUniqueId id;
  ASSERT_EQ(ncclSuccess, ncclGetUniqueId(&id));
  ncclComm_t comms[2] = {};
  ASSERT_EQ(ncclSuccess, ncclGroupStart());
  EXPECT_EQ(ncclSuccess, ncclCommInitRank(&comms[0], 2, id, 0));
  EXPECT_EQ(ncclSuccess, ncclCommInitRank(&comms[1], 2, id, 1));
  EXPECT_EQ(ncclInvalidUsage, ncclGroupEnd());
  for (const ncclComm_t comm : comms) EXPECT_EQ(ncclSuccess, ncclCommAbort(comm));
}

TEST_F(HostNccl, PlanModeWaitsForNobody) {
  host::set_planning(true);
  ncclUniqueId id;
  ASSERT_EQ(ncclSuccess, ncclGetUniqueId(&id));
  ncclComm_t comm = nullptr;
  EXPECT_EQ(ncclSuccess, ncclCommInitRank(&comm, 1024, id, 17));
  EXPECT_EQ(ncclSuccess, all_reduce(comm, 64));
  EXPECT_EQ(ncclInvalidArgument, all_reduce(comm, 64, static_cast<ncclDataType_t>(77)));
  EXPECT_EQ(ncclSuccess, ncclCommDestroy(comm));
  host::set_planning(false);
}

TEST_F(HostNccl, AFaultAtAnyCallEndsAllRanks) {
  for (std::uint64_t k = 1;; ++k) {
    host::arm_fault(k, false);
    const Results r = on_ranks([](int rank, ncclComm_t comm) {
      float values[6] = {};
      if (const ncclResult_t result = all_reduce(comm, 8)) return result;
      if (const ncclResult_t result = ncclGroupStart()) return result;
      const ncclResult_t sent = ncclSend(values, 3, ncclFloat32, (rank + 1) % 3, comm, nullptr);
      const ncclResult_t received = ncclRecv(values + 3, 3, ncclFloat32, (rank + 2) % 3, comm, nullptr);
      const ncclResult_t ended = ncclGroupEnd();
      return sent ? sent : received ? received : ended;
    });
    const bool over = host::fault_site()[0] == '\0';
    host::disarm_fault();
    EXPECT_EQ("nothing", host::describe(host::live())) << k;
    if (over) {
      EXPECT_EQ((Results{ncclSuccess, ncclSuccess, ncclSuccess}), r);
      EXPECT_GT(k, 18u);
      break;
    }
    (void)cudaGetLastError();
  }
}

}  // namespace
