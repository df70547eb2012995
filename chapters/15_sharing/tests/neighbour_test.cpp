// The neighbour and its fork server; what it takes; and that its failure is ours to say.

#include <gtest/gtest.h>

#include "claims.h"

namespace oomlab::sharing {
namespace {

constexpr std::size_t kKiB = 1 << 10, kMiB = std::size_t(1) << 20;
using Kind = Order::Kind;

// One for the program: made before any test, and so before any CUDA call.
ForkServer server(be_a_neighbour);

TEST(KeepingResource, KeepsUntilItIsEmptied) {
  CudaResource device;
  KeepingResource cache(device);
  void* const a = cache.allocate(1000, nullptr);
  cache.deallocate(a, 1000, nullptr);
  EXPECT_EQ(device.reserved_bytes(), 1024u);
  EXPECT_EQ(cache.allocate(600, nullptr), a);  // of the same rounded size
  void* const b = cache.allocate(1024, nullptr);
  EXPECT_NE(b, a);
  EXPECT_EQ(device.reserved_bytes(), 2048u);
  cache.deallocate(a, 600, nullptr);
  cache.empty();
  EXPECT_EQ(device.reserved_bytes(), 1024u);
  cache.deallocate(b, 1024, nullptr);
}

TEST(Shares, AreTheirPartsInWholeGranules) {
  const Shares shares{10 * kMiB + 100, 3 * kMiB};
  EXPECT_EQ(shares.part(50), 5 * kMiB);
  EXPECT_EQ(shares.wanted(), 7 * kMiB + 512 * kKiB);
  EXPECT_EQ(shares.cap(Rule::cap), 4 * kMiB);
  EXPECT_EQ(shares.cap(Rule::first_come), kUnlimited);
  EXPECT_EQ((Shares{kUnlimited, 4 * kMiB}.wanted()), 3 * kMiB);
  EXPECT_EQ((Shares{std::size_t(1) << 62, 0}.part(75)), (std::size_t(3) << 60));
  EXPECT_EQ((Shares{1, 1}.wanted()), 0u);
}

TEST(Neighbour, TakesWhatItIsToldUpToItsCap) {
  SharedBudget& budget = server.budget();
  budget.reset(8 * kMiB);
  int device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  {
    NeighbourProcess neighbour(server, device, 4 * kMiB);
    EXPECT_EQ(neighbour.ask({Kind::hold, 0, 4 * kMiB + 1}).kind, Answer::Kind::refused);
    EXPECT_EQ(budget.used_bytes(), 0u);
    EXPECT_EQ(neighbour.ask({Kind::hold, 0, kMiB}).holds, kMiB);
    EXPECT_EQ(neighbour.ask({Kind::burst, 0, 3 * kMiB}).holds, 4 * kMiB);
    EXPECT_EQ(neighbour.ask({Kind::hold, 0, 1}).kind, Answer::Kind::refused);
    const Answer emptied = neighbour.ask({Kind::empty});
    EXPECT_EQ(emptied.holds, kMiB);
    EXPECT_EQ(emptied.most, 4 * kMiB);
    EXPECT_NE(emptied.pid, getpid());
    EXPECT_EQ(budget.used_bytes(kNeighbours), kMiB);
  }
  EXPECT_EQ(budget.used_bytes(), 0u);
}

// Patience that only a hang reaches.
const Patience kLong{.in_all = Patience::Milliseconds(240'000)};

TEST(Neighbour, EndsWithAllItHasHoweverItEnds) {
  SharedBudget& budget = server.budget();
  for (int round = 0; round < 5; ++round) {
    budget.reset(8 * kMiB);
    NeighbourProcess neighbour(server, 0, kUnlimited);
    const pid_t pid = neighbour.ask({Kind::hold, 0, 8 * kMiB}).pid;
    EXPECT_FALSE(budget.take(kOurs, 1));
    if (round == 4) {  // by somebody else, while we wait: who waits looks
      ::kill(pid, SIGKILL);
      Patience patience = kLong;
      patience.pause = [&](Patience::Milliseconds pause) {
        std::this_thread::sleep_for(pause);
        neighbour.look();
      };
      Patience::Milliseconds waited{};
      EXPECT_TRUE(wait_with_backoff(
          patience, [&] { return budget.take(kOurs, 8 * kMiB); }, waited));
    } else if (round % 2 == 0) {
      neighbour.kill();
      EXPECT_EQ(budget.used_bytes(), 0u);
      EXPECT_THROW(neighbour.ask({Kind::hold, 0, 1}), std::runtime_error);
    } else {
      neighbour.finish();
      Patience::Milliseconds waited{};
      EXPECT_TRUE(wait_with_backoff(
          kLong, [&] { return budget.take(kOurs, 8 * kMiB); }, waited));
    }
    Patience::Milliseconds waited{};
    EXPECT_TRUE(wait_with_backoff(
        kLong, [&] { return ::kill(pid, 0) != 0; }, waited))
        << "its process stays";
  }
}

// A neighbour that is stopped answers nobody, and does not end by itself.
TEST(Neighbour, ThatIsStoppedIsWaitedForUpToAnEnd) {
  SharedBudget& budget = server.budget();
  budget.reset(8 * kMiB);
  const std::chrono::milliseconds soon(1), some(60);
  pid_t pid = 0;
  {
    NeighbourProcess neighbour(server, 0, kUnlimited);
    pid = neighbour.ask({Kind::hold, 0, kMiB}).pid;
    neighbour.set_waits({.for_its_end = soon});
    ::kill(pid, SIGSTOP);
    std::thread user([] { interrupt_wanted = true; });  // Ctrl-C is heard while it is waited for
    EXPECT_THROW(neighbour.ask({Kind::hold, 0, kMiB}), Interrupted);
    user.join();
    interrupt_wanted = false;
  }  // and its process is ended, stopped as it is
  EXPECT_EQ(budget.used_bytes(), 0u);
  Patience::Milliseconds waited{};
  EXPECT_TRUE(wait_with_backoff(
      {.in_all = Patience::Milliseconds(120'000)}, [&] { return ::kill(pid, 0) != 0; }, waited))
      << "its process stays";

  NeighbourProcess silent(server, 0, kUnlimited);
  ::kill(silent.ask({Kind::hold, 0, kMiB}).pid, SIGSTOP);
  silent.set_waits({.for_an_answer = some, .for_its_end = soon});
  try {
    silent.ask({Kind::hold, 0, kMiB});
    ADD_FAILURE();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "the neighbour failed: no answer for 60 ms; its process is stopped, or hangs");
  }
}

TEST(Neighbour, ItsFailureIsTyped) {
  server.budget().reset(kUnlimited);
  try {
    NeighbourProcess neighbour(server, 1'000'000, kUnlimited);
    FAIL() << "there is no such device";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("the neighbour failed: cudaErrorInvalidDevice"), std::string::npos)
        << error.what();
  }
  NeighbourProcess neighbour(server, 0, kUnlimited);
  EXPECT_THROW(neighbour.ask({Kind::hold, 0, std::size_t(1) << 50}), OutOfMemory);
  EXPECT_EQ(server.budget().used_bytes(), 0u);
  EXPECT_EQ(neighbour.ask({Kind::hold, 0, kMiB}).holds, kMiB);  // and it goes on
}

// A run of each rule, and what it takes, to the byte.
TEST(Beside, BothTakeWhatIsPredicted) {
  const Shares shares{8 * kMiB, 4 * kMiB};
  for (const auto& [name, rule] : kRules) {
    SCOPED_TRACE(name);
    const bool smaller = rule == Rule::equal_shares;
    const bool refused = rule == Rule::first_come || rule == Rule::cache_kept;
    Seen seen;
    std::size_t got = 0;
    try {
      Beside memory(server, rule, shares, shares.budget, seen);
      std::vector<void*> blocks;
      try {
        for (; got < shares.ours; got += kMiB) blocks.push_back(memory.allocate(kMiB, nullptr));
      } catch (const OutOfMemory& error) {
        EXPECT_EQ(error.report().cause(), OutOfMemoryReport::Cause::other_process);
        EXPECT_EQ(error.report().limit_used_by_others, 6 * kMiB);
      }
      if (smaller || rule == Rule::wait) {
        EXPECT_THROW(memory.allocate(1, nullptr), OutOfMemory);  // our own cap
      }
      for (void* block : blocks) memory.deallocate(block, kMiB, nullptr);
    } catch (const OutOfMemory& error) {
      ADD_FAILURE() << error.what();
    }
    EXPECT_EQ(got, refused ? 2 * kMiB : 4 * kMiB);
    const Taken expected = predicted(rule, shares, got, true);
    EXPECT_EQ(seen.taken.neighbour_most, expected.neighbour_most);
    EXPECT_EQ(seen.taken.neighbour_beside_us, expected.neighbour_beside_us);
    EXPECT_EQ(seen.taken.together, expected.together);
    EXPECT_EQ(seen.taken.neighbour_refused, expected.neighbour_refused);
    EXPECT_EQ(seen.waited_ms > 0, rule == Rule::wait);
    EXPECT_EQ(server.budget().used_bytes(), 0u);
  }
  Seen seen;
  try {
    Beside never(server, Rule::wait, {2 * kMiB, 4 * kMiB}, 2 * kMiB, seen);
    FAIL() << "more than the budget";
  } catch (const OutOfMemory& error) {  // at once
    EXPECT_EQ(error.report().cause(), OutOfMemoryReport::Cause::too_big);
    EXPECT_EQ(error.report().waited_ms, 0);
  }
}

}  // namespace
}  // namespace oomlab::sharing
