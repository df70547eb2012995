// The host runtime's NCCL between processes: the same bits on every rank as within one process, and an end for all when
// one is lost.

#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "../chapter/process.h"

namespace {

using namespace oomlab::test;

class NcclProcesses : public testing::Test {
 protected:
  // Each rank of `ranks` in a process of its own.
  std::vector<Outcome> run(const std::string& scenario, int ranks) {
    const char* const rank_program = std::getenv("OOMLAB_NCCL_RANK");
    if (!rank_program) throw std::runtime_error("OOMLAB_NCCL_RANK is not set");
    const TemporaryFolder folder;
    std::vector<Outcome> outcomes(std::size_t(ranks), Outcome{});
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] {
        outcomes[std::size_t(rank)] =
            run_process(rank_program, {scenario, std::to_string(rank), std::to_string(ranks), folder / "id"}, ".",
                        [] { setenv("OOMLAB_HOST_NCCL_TIMEOUT", "3", 1); });
      });
    for (std::thread& thread : threads) thread.join();
    for (const Outcome& o : outcomes) EXPECT_LT(o.seconds, 30) << scenario;
    return outcomes;
  }
};

TEST_F(NcclProcesses, EveryRankGetsTheSameBits) {
  for (const int ranks : {2, 3, 4}) {
    // all-gather, all-reduce and the broadcast reach all alike; the ring gives everyone the broadcast's values.
    const std::vector<Outcome> outcomes = run("all", ranks);
    for (const Outcome& o : outcomes) {
      EXPECT_EQ(0, o.exit_code) << o.out << o.err;
      EXPECT_EQ(outcomes[0].out, o.out);
      EXPECT_NE(std::string::npos, o.out.find("live: nothing")) << o.out;
    }
  }
}

TEST_F(NcclProcesses, TheFirstRankMayEndBeforeTheOthers) {
  for (const Outcome& o : run("early", 3)) EXPECT_EQ(0, o.exit_code) << o.out << o.err;
}

TEST_F(NcclProcesses, ALostRankEndsAll) {
  for (const auto& [scenario, lost, words] : {std::tuple{"killed", 1, "rank 1: the process has ended"},
                                              {"stalled", 1, "rank 1"},
                                              {"aborted", 1, "rank 1 has aborted"},
                                              {"missing", 1, "rank 1, which does not come"},
                                              {"hub killed", 0, "the process has ended"},
                                              {"sizes", -1, "3 ranks in one process, 4 in another"},
                                              {"twice", -1, "rank 1"}}) {
    const std::vector<Outcome> outcomes = run(scenario, 3);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == lost) continue;
      const Outcome& o = outcomes[std::size_t(rank)];
      EXPECT_EQ(1, o.exit_code) << scenario << " " << rank << " " << o.out << o.err;
      EXPECT_NE(std::string::npos, o.out.find(words)) << scenario << " " << rank << " " << o.out << o.err;
    }
  }
}

TEST_F(NcclProcesses, AnIdOfNobodyIsRefused) {
  const Outcome o = run("foreign", 1).front();
  EXPECT_EQ(1, o.exit_code);
  EXPECT_NE(std::string::npos, o.out.find("cannot be reached")) << o.out;
}

}  // namespace
