// One budget for several processes, caps, and waiting. The processes are forked, and ask no device for anything: a
// GPU's driver does not go with fork().

#include "memory/shared_budget.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <functional>
#include <random>
#include <vector>

#include "../forked.h"

namespace oomlab {
namespace {

using test::comes_true, test::end_of, test::start;
using Milliseconds = Patience::Milliseconds;
using Cause = OutOfMemoryReport::Cause;
constexpr std::size_t kMiB = std::size_t(1) << 20;

/// Addresses without memory.
class Paper final : public MemoryResource {
 public:
  void* allocate(std::size_t bytes, cudaStream_t) override {
    if (fails) throw OutOfMemory(OutOfMemoryReport());
    return bytes ? reinterpret_cast<void*>(next += 4096) : nullptr;
  }
  void deallocate(void*, std::size_t, cudaStream_t) noexcept override {}
  std::size_t reserved_bytes() const override { return 0; }
  std::uintptr_t next = 4096;
  bool fails = false;
};

OutOfMemoryReport refused(MemoryResource& memory, std::size_t bytes) {
  try {
    memory.allocate(bytes, nullptr);
  } catch (const OutOfMemory& error) {
    return error.report();
  }
  ADD_FAILURE() << bytes << " bytes are not refused";
  return {};
}

TEST(SharedBudget, HoldsToTheByteOverAllPlaces) {
  SharedBudget budget(10 * kMiB);
  EXPECT_TRUE(budget.take(0, 4 * kMiB));
  EXPECT_TRUE(budget.take(1, 3 * kMiB));
  EXPECT_FALSE(budget.take(2, 3 * kMiB + 1));
  EXPECT_FALSE(budget.take(2, kUnlimited));
  EXPECT_TRUE(budget.take(2, 3 * kMiB));
  EXPECT_FALSE(budget.take(0, 1));
  EXPECT_EQ(budget.used_bytes(), 10 * kMiB);
  budget.give(0, 4 * kMiB);
  EXPECT_EQ(budget.used_bytes(), 6 * kMiB);
  budget.give_all(1);
  EXPECT_EQ(budget.used_bytes(1), 0u);
  EXPECT_EQ(budget.used_bytes(2), 3 * kMiB);
  EXPECT_EQ(budget.peak_bytes(), 10 * kMiB);
  EXPECT_EQ(budget.peak_bytes(1), 3 * kMiB);
  budget.reset(kUnlimited);
  EXPECT_EQ(budget.peak_bytes() + budget.used_bytes() + budget.peak_bytes(1), 0u);
  EXPECT_TRUE(budget.take(3, std::size_t(1) << 60));
}

TEST(SharedBudget, SaysWhoHasWhat) {
  Paper paper;
  SharedBudget budget(10 * kMiB);
  ASSERT_TRUE(budget.take(1, 7 * kMiB));
  SharedLimitResource share(paper, budget, 0);
  LimitingResource capped(share, 5 * kMiB);
  void* const p = capped.allocate(2 * kMiB - 100, nullptr);
  EXPECT_EQ(budget.used_bytes(0), 2 * kMiB);  // as counted
  EXPECT_FALSE(capped.would_refuse(kMiB));
  EXPECT_TRUE(capped.would_refuse(kMiB + 1));  // by the budget
  budget.give_all(1);
  EXPECT_TRUE(capped.would_refuse(3 * kMiB + 1));  // by the cap
  ASSERT_TRUE(budget.take(1, 7 * kMiB));

  OutOfMemoryReport report = refused(capped, kMiB + 1);
  EXPECT_TRUE(report.by_limit);
  EXPECT_EQ(report.limit, 10 * kMiB);
  EXPECT_EQ(report.limit_used, 9 * kMiB);
  EXPECT_EQ(report.limit_used_by_others, 7 * kMiB);
  EXPECT_EQ(report.cause(), Cause::other_process);
  const std::string text = explain(report);
  EXPECT_NE(text.find("7.00 MiB of other processes"), std::string::npos) << text;
  EXPECT_NE(text.find("chapter 15"), std::string::npos) << text;
  report = refused(capped, 3 * kMiB + 1);  // more than the cap leaves: others have nothing to do with it
  EXPECT_EQ(report.limit, 5 * kMiB);
  EXPECT_EQ(report.cause(), Cause::live);
  report = refused(share, 9 * kMiB);  // too much beside what this process has itself
  EXPECT_EQ(report.cause(), Cause::live);

  paper.fails = true;  // the device has less than the budget: then nothing was taken
  refused(capped, 512);
  EXPECT_EQ(budget.used_bytes(0), 2 * kMiB);
  capped.deallocate(p, 2 * kMiB - 100, nullptr);
  EXPECT_EQ(budget.used_bytes(0), 0u);
}

TEST(SharedBudget, SurvivesWhoeverIsKilled) {
  SharedBudget budget(8 * kMiB);
  for (int round = 0; round < 20; ++round) {
    budget.reset(8 * kMiB);
    std::vector<pid_t> all;
    for (int place = 1; place < 4; ++place)
      all.push_back(start([&, place] {
        std::mt19937 random(static_cast<unsigned>(place));
        for (;;) {
          const std::size_t bytes = 512 * (1 + random() % 8192);
          if (budget.take(place, bytes)) budget.give(place, bytes);
        }
        return 0;
      }));
    EXPECT_TRUE(
        comes_true([&] { return budget.peak_bytes(1) > 0 && budget.peak_bytes(2) > 0 && budget.peak_bytes(3) > 0; }));
    for (std::size_t i = 0; i < all.size(); ++i) {
      kill(all[i], SIGKILL);
      EXPECT_EQ(end_of(all[i]), 128 + SIGKILL);
      EXPECT_LE(budget.used_bytes(), 8 * kMiB);
      budget.give_all(static_cast<int>(i) + 1);
    }
    EXPECT_EQ(budget.used_bytes(), 0u);
    ASSERT_TRUE(budget.take(0, 8 * kMiB));
    budget.give_all(0);
  }
}

TEST(Waiting, PausesDoubleAndAddUpToThePatience) {
  std::vector<double> pauses;
  Patience patience{Milliseconds(1), Milliseconds(8), Milliseconds(30),
                    [&](Milliseconds pause) { pauses.push_back(pause.count()); }};
  Milliseconds waited{-1};
  EXPECT_FALSE(wait_with_backoff(
      patience, [] { return false; }, waited));
  EXPECT_EQ(pauses, (std::vector<double>{1, 2, 4, 8, 8, 7}));
  EXPECT_EQ(waited.count(), 30);
  pauses.clear();
  int asked = 0;
  EXPECT_TRUE(wait_with_backoff(
      patience, [&] { return ++asked == 3; }, waited));
  EXPECT_EQ(pauses, (std::vector<double>{1, 2}));
  EXPECT_EQ(waited.count(), 3);
  EXPECT_TRUE(wait_with_backoff(
      patience, [] { return true; }, waited));
  EXPECT_EQ(waited.count(), 0);
  patience.pause = {};  // a real one: the thread lets others run
  const auto gave_way = [] {
    rusage usage{};
    EXPECT_EQ(getrusage(RUSAGE_THREAD, &usage), 0);
    return usage.ru_nvcsw;
  };
  const long before = gave_way();
  EXPECT_FALSE(wait_with_backoff(
      patience, [] { return false; }, waited));
  EXPECT_GE(gave_way() - before, 6) << "once a pause";
}

TEST(Waiting, GetsItsTurnOrSaysHowLongItWaited) {
  Paper paper;
  SharedBudget budget(10 * kMiB);
  SharedLimitResource share(paper, budget, 0);
  int pauses = 0;
  WaitingResource memory(share, {.pause = [&](Milliseconds) {
                           if (++pauses == 3) budget.give_all(1);
                         }});
  ASSERT_TRUE(budget.take(1, 10 * kMiB));
  EXPECT_NE(memory.allocate(kMiB, nullptr), nullptr);
  EXPECT_EQ(pauses, 3);
  EXPECT_EQ(memory.waited().count(), 1 + 2 + 4);
  ASSERT_TRUE(budget.take(1, 9 * kMiB));
  pauses = 100;
  const OutOfMemoryReport report = refused(memory, kMiB);
  EXPECT_EQ(report.waited_ms, 10'000);
  EXPECT_EQ(report.cause(), Cause::other_process);
  EXPECT_NE(headline(report).find("Waited 10.0 s"), std::string::npos) << headline(report);
  EXPECT_EQ(budget.used_bytes(0), kMiB);
}

// Each has 4 MiB of 10, and wants 4 more: one of them is refused after a stated time, gives back what it has, and the
// other one goes on. When that has had its turn, it tries again. No round may hang.
TEST(Waiting, TwoThatWaitForEachOtherBothEnd) {
  constexpr int kRounds = 20 * OOMLAB_ROUNDS;
  constexpr Milliseconds kPatience(3);
  SharedBudget budget(10 * kMiB), books;  // of the second one, the numbers that the processes leave here
  int refusals = 0;
  for (int round = 0; round < kRounds; ++round) {
    budget.reset(10 * kMiB);
    books.reset(kUnlimited);
    const auto job = [&](int place) {
      Paper paper;
      SharedLimitResource share(paper, budget, place);
      WaitingResource memory(share, {Milliseconds(0.25), Milliseconds(1), kPatience * (1 + place)});
      for (int attempt = 0; attempt < 100; ++attempt) {
        void* first = nullptr;
        try {
          first = memory.allocate(4 * kMiB, nullptr);
          if (attempt == 0) {  // both have their first block before either asks for more
            (void)books.take(place, 1);
            (void)comes_true([&] { return books.used_bytes() == 2; });
          }
          memory.deallocate(memory.allocate(4 * kMiB, nullptr), 4 * kMiB, nullptr);
          memory.deallocate(first, 4 * kMiB, nullptr);
          return attempt;
        } catch (const OutOfMemory& error) {
          memory.deallocate(first, 4 * kMiB, nullptr);
          (void)comes_true([&] { return budget.used_bytes(1 - place) != 4 * kMiB; });
          if (error.report().waited_ms != (kPatience * (1 + place)).count()) return 200;
        }
      }
      return 201;
    };
    const pid_t a = start([&] { return job(0); }), b = start([&] { return job(1); });
    const int end_a = end_of(a), end_b = end_of(b);
    ASSERT_LT(end_a, 100) << "round " << round;
    ASSERT_LT(end_b, 100) << "round " << round;
    refusals += end_a + end_b;
    ASSERT_EQ(budget.used_bytes(), 0u);
  }
  EXPECT_GE(refusals, kRounds);  // each round began with a deadlock
  std::printf("%d rounds, %d refusals\n", kRounds, refusals);
}

// What cannot happen to whoever takes everything at once.
TEST(Waiting, AllOrNothingNeedsNoRefusal) {
  SharedBudget budget(10 * kMiB);
  for (int round = 0; round < 20; ++round) {
    const auto job = [&](int place) {
      Milliseconds waited{};
      if (!wait_with_backoff(
              {.first = Milliseconds(0.1), .in_all = Milliseconds(240'000)},
              [&] { return budget.take(place, 8 * kMiB); }, waited))
        return 1;
      usleep(300);  // the other one's turn to wait
      budget.give_all(place);
      return 0;
    };
    const pid_t a = start([&] { return job(0); }), b = start([&] { return job(1); });
    ASSERT_EQ(end_of(a) + end_of(b), 0);
    ASSERT_LE(budget.peak_bytes(), 8 * kMiB);
  }
}

}  // namespace
}  // namespace oomlab
