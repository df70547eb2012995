// The NCCL subset: the same tests run against NCCL on a machine with two GPUs or more.

#include "cuda/nccl.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <functional>
#include <numeric>
#include <thread>

#include "contract.h"

namespace {

using namespace oomlab;

// As many ranks as there are devices, at most `most`.
int ranks_here(int most) {
  int devices = 0;
  CUDA_CHECK(cudaGetDeviceCount(&devices));
  return std::min(most, devices);
}

ncclUniqueId new_id() {
  ncclUniqueId id;
  NCCL_CHECK(ncclGetUniqueId(&id));
  return id;
}

// One thread a rank, each on its device; returns each one's error, or "". Who fails raises `failed`.
std::vector<std::string> on_ranks(int ranks, std::atomic<bool>& failed, const std::function<void(int rank)>& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        CUDA_CHECK(cudaSetDevice(rank));
        body(rank);
      } catch (const std::exception& error) {
        failed = true;  // or the others wait for this one
        errors[std::size_t(rank)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}
void expect_no_error(const std::vector<std::string>& errors) {
  for (const std::string& error : errors) EXPECT_EQ("", error);
}

class Nccl : public Contract {
 protected:
  void SetUp() override {
    Contract::SetUp();
    if (IsSkipped()) return;
    ranks = ranks_here(4);
    if (ranks < 2) GTEST_SKIP() << "one device (the host runtime has more with OOMLAB_HOST_DEVICES)";
  }
  // A communicator for every rank, then body(rank, comm, stream).
  void run(const std::function<void(int, Communicator&, cudaStream_t)>& body) {
    const ncclUniqueId id = new_id();
    expect_no_error(on_ranks(ranks, failed, [&](int rank) {
      const Stream stream;
      Communicator comm(id, ranks, rank, failed);
      body(rank, comm, stream);
      comm.wait(stream);
    }));
  }
  int ranks = 0;
  std::atomic<bool> failed{false};
};

std::vector<float> numbers(std::size_t n, int rank) {
  std::vector<float> v(n);
  for (std::size_t i = 0; i < n; ++i) v[i] = static_cast<float>(100 * rank) + static_cast<float>(i);
  return v;
}

TEST_F(Nccl, AllReduceAddsUp) {
  run([&](int rank, Communicator& comm, cudaStream_t stream) {
    Values<float> values(numbers(1001, rank));
    comm.all_reduce(values.data(), 1001, stream);
    comm.wait(stream);
    const std::vector<float> sums = values.get();
    const float base = 100.0f * static_cast<float>(ranks * (ranks - 1) / 2);
    for (std::size_t i = 0; i < sums.size(); ++i)
      ASSERT_EQ(base + static_cast<float>(ranks) * static_cast<float>(i), sums[i]) << i;
  });
}

TEST_F(Nccl, SixteenBits) {
  run([&](int rank, Communicator& comm, cudaStream_t stream) {
    const float mine = static_cast<float>(rank) + 0.5f, sum = static_cast<float>(ranks * ranks) / 2;
    Values<__half> halves(std::vector<__half>(33, __half(mine)));
    Values<__nv_bfloat16> brains(std::vector<__nv_bfloat16>(33, __nv_bfloat16(mine)));
    comm.all_reduce(halves.data(), 33, stream);
    comm.all_reduce(brains.data(), 33, stream);
    comm.wait(stream);
    EXPECT_EQ(sum, static_cast<float>(halves.get()[32]));
    EXPECT_EQ(sum, static_cast<float>(brains.get()[32]));
  });
}

TEST_F(Nccl, ScatterThenGatherIsAllReduce) {
  run([&](int rank, Communicator& comm, cudaStream_t stream) {
    const std::size_t part = 129, all = part * std::size_t(ranks);
    Values<float> values(numbers(all, rank)), mine(part), again(all), both(numbers(all, rank));
    comm.reduce_scatter(values.data(), mine.data(), part, stream);
    comm.all_gather(mine.data(), again.data(), part, stream);
    comm.all_reduce(both.data(), all, stream);
    comm.wait(stream);
    EXPECT_EQ(both.get(), again.get());
  });
}

TEST_F(Nccl, BroadcastAndReduceHaveARoot) {
  run([&](int rank, Communicator& comm, cudaStream_t stream) {
    Values<float> told(numbers(17, rank)), sums(numbers(17, rank));
    comm.broadcast(told.data(), 17, 1, stream);
    comm.reduce(sums.data(), 17, ranks - 1, stream);
    comm.wait(stream);
    EXPECT_EQ(numbers(17, 1), told.get());
    if (rank != ranks - 1) return;
    EXPECT_EQ(100.0f * static_cast<float>(ranks * (ranks - 1) / 2), sums.get()[0]);
  });
}

TEST_F(Nccl, MessagesInAGroupDoNotBlockEachOther) {
  run([&](int rank, Communicator& comm, cudaStream_t stream) {
    const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    Values<float> mine(numbers(300, rank)), theirs(300);
    NCCL_CHECK(ncclGroupStart());
    comm.receive(theirs.data(), 300, before, stream);
    comm.send(mine.data(), 300, next, stream);
    comm.end_group();
    comm.wait(stream);
    EXPECT_EQ(numbers(300, before), theirs.get());
  });
}

// Of all ranks one comes when the others have come, each of them in turn.
class LateRank {
 public:
  LateRank(int ranks, int late) : ranks_(ranks), late_(late) {}
  void come(int rank) {
    if (rank != late_) ++come_;
    while (rank == late_ && come_ < ranks_ - 1) std::this_thread::yield();
  }

 private:
  int ranks_, late_;
  std::atomic<int> come_{0};
};

struct Passed {
  const void* own;
  void* others;
  std::size_t bytes;
};

TEST_F(Nccl, BuffersGoRoundWhoeverIsLate) {
  for (int late = 0; late < ranks; ++late) {
    LateRank turns(ranks, late);
    run([&](int rank, Communicator& comm, cudaStream_t stream) {
      Values<float> keys_here(numbers(300, rank)), keys_there(300);
      Values<float> sums_here(std::vector<float>(70, static_cast<float>(rank))), sums_there(70);
      Values<float>*keys = &keys_here, *next_keys = &keys_there, *sums = &sums_here, *next_sums = &sums_there;
      turns.come(rank);
      for (int step = 1; step <= ranks; ++step) {
        comm.pass_on<Passed>({{keys->data(), next_keys->data(), 300 * sizeof(float)},
                              {sums->data(), next_sums->data(), 70 * sizeof(float)}},
                             stream);
        comm.wait(stream);
        const int from = (rank + ranks - step) % ranks;
        EXPECT_EQ(numbers(300, from), next_keys->get()) << "step " << step;
        EXPECT_EQ(std::vector<float>(70, static_cast<float>(from)), next_sums->get()) << "step " << step;
        std::swap(keys, next_keys);
        std::swap(sums, next_sums);
      }
      EXPECT_EQ(comm.bytes_sent(), std::uint64_t(ranks) * 370 * sizeof(float));
    });
  }
}

TEST_F(Nccl, EachRankGetsItsPartOfEveryOthers) {
  constexpr std::size_t kPart = 33;
  const std::size_t all = kPart * std::size_t(ranks);
  for (int late = 0; late < ranks; ++late) {
    LateRank turns(ranks, late);
    run([&](int rank, Communicator& comm, cudaStream_t stream) {
      Values<float> own(numbers(all, rank)), others(all);
      turns.come(rank);
      comm.exchange(own.data(), others.data(), kPart * sizeof(float), stream);
      comm.wait(stream);
      const std::vector<float> found = others.get();
      for (std::size_t i = 0; i < all; ++i)
        ASSERT_EQ(found[i], numbers(all, int(i / kPart))[std::size_t(rank) * kPart + i % kPart]) << i;
      EXPECT_EQ(comm.bytes_sent(), (all - kPart) * sizeof(float));
    });
  }
}

TEST_F(Nccl, OneThreadMayHaveAllRanks) {
  const ncclUniqueId id = new_id();
  std::vector<ncclComm_t> comms(std::size_t(ranks), nullptr);
  NCCL_CHECK(ncclGroupStart());
  for (int rank = 0; rank < ranks; ++rank) {
    CUDA_CHECK(cudaSetDevice(rank));
    NCCL_CHECK(ncclCommInitRank(&comms[std::size_t(rank)], ranks, id, rank));
  }
  NCCL_CHECK(ncclGroupEnd());
  std::vector<std::unique_ptr<Values<float>>> values;
  for (int rank = 0; rank < ranks; ++rank) {
    CUDA_CHECK(cudaSetDevice(rank));
    values.push_back(std::make_unique<Values<float>>(numbers(5, rank)));
  }
  NCCL_CHECK(ncclGroupStart());
  for (int rank = 0; rank < ranks; ++rank)
    NCCL_CHECK(ncclAllReduce(values[std::size_t(rank)]->data(), values[std::size_t(rank)]->data(), 5, ncclFloat32,
                             ncclSum, comms[std::size_t(rank)], nullptr));
  NCCL_CHECK(ncclGroupEnd());
  for (int rank = 0; rank < ranks; ++rank) {
    CUDA_CHECK(cudaSetDevice(rank));
    EXPECT_EQ(100.0f * static_cast<float>(ranks * (ranks - 1) / 2), values[std::size_t(rank)]->get()[0]);
    NCCL_CHECK(ncclCommDestroy(comms[std::size_t(rank)]));
  }
  values.clear();
  CUDA_CHECK(cudaSetDevice(0));
}

// Two communicators have work queued that never ends by itself: the last rank sends nothing.
TEST_F(Nccl, SeveralAreAbortedInAGroup) {
  const ncclUniqueId ids[] = {new_id(), new_id()};
  expect_no_error(on_ranks(ranks, failed, [&](int rank) {
    const Stream streams[2];
    Values<float> values(numbers(17, rank));
    Communicator one(ids[0], ranks, rank, failed), other(ids[1], ranks, rank, failed);
    try {
      one.all_reduce(values.data(), 17, streams[0]);
      other.all_reduce(values.data(), 17, streams[0]);
      other.wait(streams[0]);
      if (rank < ranks - 1) {
        one.receive(values.data(), 17, ranks - 1, streams[0]);
        other.receive(values.data(), 17, ranks - 1, streams[1]);
        one.wait(streams[0]);
      }
      failed = true;
    } catch (const RemoteNcclError&) {
    }
    Communicator::abort_together({&one, &other});
  }));
}

TEST_F(Nccl, BadArgumentsAreRefused) {
  ncclComm_t none = nullptr;
  EXPECT_EQ(ncclInvalidArgument, ncclCommInitRank(&none, 2, new_id(), 2));
  EXPECT_EQ(ncclInvalidArgument, ncclCommInitRank(&none, 0, new_id(), 0));
  EXPECT_EQ(nullptr, none);
  EXPECT_EQ(ncclInvalidUsage, ncclGroupEnd());
  run([&](int, Communicator&, cudaStream_t) {});
  EXPECT_STREQ("no error", ncclGetErrorString(ncclSuccess));
}

}  // namespace
