// What a plan leaves out changes no figure: rounds of random programs, left out against none left out. And how many
// rounds a plan goes through, counted.

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "../planning.h"
#include "memory/repetition.h"

namespace {

using namespace oomlab;
using oomlab::test::Planning;

// Wants every round, so none is left out.
class Everything final : public LedgerObserver {
 public:
  bool follows_all() const noexcept override { return true; }
};

// Counts what is asked for below the ledger.
class Counting final : public MemoryResource {
 public:
  explicit Counting(MemoryResource& upstream) : upstream_(upstream) {}
  void* allocate(std::size_t bytes, cudaStream_t stream) override {
    ++allocations;
    return upstream_.allocate(bytes, stream);
  }
  void deallocate(void* address, std::size_t bytes, cudaStream_t stream) noexcept override {
    upstream_.deallocate(address, bytes, stream);
  }
  std::size_t reserved_bytes() const override { return upstream_.reserved_bytes(); }
  std::size_t allocations = 0;

 private:
  MemoryResource& upstream_;
};

// Steps with micro-batches in them, drawn from a seed. What a round asks for follows from what is there: a buffer that
// the first ones make and later ones find, one that grows up to a size, one that two steps take turns with.
struct Program {
  std::uint64_t seed;
  std::size_t steps, micro_batches;
  bool may_take_turns = true;

  void run(Context& context) const {
    std::mt19937_64 random(seed);
    const std::size_t most_cached = random() % 4, in_turns = random() % 4 == 0 && may_take_turns;
    std::vector<std::size_t> sizes(3 + random() % 6);
    for (std::size_t& size : sizes) size = 1 + random() % 3'000'000;
    std::vector<DeviceBuffer<char>> cache;
    DeviceBuffer<char> turn;
    for (Repetition all(context, steps); all.next();) {
      const Phase step(context.ledger(), "step");
      if (cache.size() < most_cached) cache.push_back(buffer(context, sizes[0], Category::optimizer));
      if (in_turns) {  // a smaller one where a larger one is, and the other way round
        const std::size_t now = turn.size() == sizes[1] ? sizes[2] : sizes[1];
        turn = buffer(context, now, Category::data);
      }
      for (Repetition rounds(context, micro_batches); rounds.next();) {
        const Phase phase(context.ledger(), "micro-batch");
        std::vector<DeviceBuffer<char>> kept;
        if (rounds.number() == 0) kept.push_back(buffer(context, sizes[1], Category::workspace));
        for (const std::size_t size : sizes) kept.push_back(buffer(context, size, Category::activations));
        context.count_flops(sizes[0]);
        if (sizes[0] % 2) kept.erase(kept.begin());
      }
      auto update = buffer(context, sizes.back(), Category::gradients);
    }
  }
  static DeviceBuffer<char> buffer(Context& context, std::size_t bytes, Category category) {
    return context.buffer<char>(bytes, category, "one");
  }
};

struct Figures {
  std::size_t peak = 0, reserved = 0, live = 0;
  ByCategory at_peak;
  std::vector<PhasePeak> phases;
  std::uint64_t flops = 0;
  std::size_t allocations = 0;
};

template <class Resource>
Figures figures_of(const Program& program, bool all_rounds, bool recorded = false) {
  Everything everything;
  Ledger ledger;
  if (all_rounds) ledger.set_observer(&everything);
  ledger.record_timeline(recorded);
  Resource memory;
  Counting counting(memory);
  Figures figures;
  {
    Context context(counting, ledger, 1024);
    context.memory().observe_device(true);
    program.run(context);
    figures.flops = context.flops();
    figures.live = ledger.live_bytes();
  }
  figures.peak = ledger.peak_bytes(), figures.reserved = ledger.peak_reserved_bytes();
  figures.at_peak = ledger.peak_by_category(), figures.phases = ledger.phases();
  figures.allocations = counting.allocations;
  return figures;
}

void expect_equal(const Figures& is, const Figures& was, std::uint64_t seed) {
  EXPECT_EQ(is.peak, was.peak) << seed;
  EXPECT_EQ(is.at_peak, was.at_peak) << seed;
  EXPECT_EQ(is.reserved, was.reserved) << seed;
  EXPECT_EQ(is.live, was.live) << seed;
  EXPECT_EQ(is.flops, was.flops) << seed;
  ASSERT_EQ(is.phases.size(), was.phases.size()) << seed;
  for (std::size_t i = 0; i < is.phases.size(); ++i) {
    EXPECT_EQ(is.phases[i].visits, was.phases[i].visits) << seed << " " << is.phases[i].name;
    EXPECT_EQ(is.phases[i].peak_allocated, was.phases[i].peak_allocated) << seed << " " << is.phases[i].name;
    EXPECT_EQ(is.phases[i].at_peak, was.phases[i].at_peak) << seed << " " << is.phases[i].name;
    EXPECT_EQ(is.phases[i].end_allocated, was.phases[i].end_allocated) << seed << " " << is.phases[i].name;
  }
}

TEST(Repetition, LeavesNoFigureOut) {
  const Planning planning;
  std::mt19937_64 random(38);
  std::size_t shorter = 0;
  for (int i = 0; i < 150; ++i) {
    const Program program{random(), 1 + random() % 12, 1 + random() % 12};
    const Figures all = figures_of<AsyncResource>(program, true), some = figures_of<AsyncResource>(program, false);
    expect_equal(some, all, program.seed);
    expect_equal(figures_of<CudaResource>(program, false), figures_of<CudaResource>(program, true), program.seed);
    expect_equal(figures_of<AsyncResource>(program, false, /*recorded=*/true), all, program.seed);
    shorter += some.allocations < all.allocations;
  }
  EXPECT_GT(shorter, 75u);
}

TEST(Repetition, ABillionRoundsTakeAsLongAsThree) {
  const Planning planning;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::size_t most = 1'000'000'000;
    const Figures many = figures_of<AsyncResource>({seed, most, most, false}, false),
                  few = figures_of<AsyncResource>({seed, 12, 12, false}, true);
    EXPECT_EQ(many.at_peak, few.at_peak) << seed;
    EXPECT_LT(many.allocations, 7u * 4 * 12) << seed;  // steps, micro-batches, buffers
    EXPECT_EQ(many.phases.at(0).visits, most) << seed;
    EXPECT_EQ(many.phases.at(1).visits, most * most) << seed;
  }
}

// What is not as the round before is done: turns that two take, growth, and a loop whose first round is another one.
TEST(Repetition, WhatDoesNotRepeatIsDone) {
  const Planning planning;
  Ledger ledger;
  AsyncResource memory;
  Context context(memory, ledger, 1024);
  DeviceBuffer<char> turn;
  std::vector<DeviceBuffer<char>> grows;
  Repetition turns(context, 40);
  while (turns.next()) turn = context.buffer<char>(turn.size() == 512 ? 1024 : 512, Category::data, "turn");
  EXPECT_EQ(turns.done(), 40u);
  Repetition growth(context, 40);
  while (growth.next()) grows.push_back(context.buffer<char>(512, Category::data, "grows"));
  EXPECT_EQ(growth.done(), 40u);
  EXPECT_EQ(growth.left_out(), 0u);
  Repetition steps(context, 40);
  while (steps.next()) {
    const std::size_t first = 512 << steps.number() % 2;
    Repetition rounds(context, 3);
    while (rounds.next()) (void)context.buffer<char>(rounds.number() == 0 ? first : 4096, Category::data, "round");
  }
  EXPECT_EQ(steps.done(), 40u);
}

TEST(Repetition, OutsideOfPlansEveryRoundIsDone) {
  Ledger ledger;
  AsyncResource memory;
  Context context(memory, ledger, 1024);
  Repetition rounds(context, 20);
  while (rounds.next()) (void)context.buffer<char>(512, Category::data, "the same");
  EXPECT_EQ(rounds.done(), 20u);
  EXPECT_EQ(rounds.left_out(), 0u);
}

// A timeline has all rounds, until it has so many events that nobody looks at them.
TEST(Repetition, TimelinesHaveAllRoundsUpToAnEnd) {
  const Planning planning;
  for (const std::size_t count : {std::size_t(1'000), std::size_t(1'000'000)}) {
    Ledger ledger;
    ledger.record_timeline(true);
    AsyncResource memory;
    Context context(memory, ledger, 1024);
    Repetition rounds(context, count);
    while (rounds.next()) (void)context.buffer<char>(512, Category::data, "the same");
    EXPECT_EQ(rounds.done(), std::min(count, kEventsToldInFull / 2));
    EXPECT_EQ(rounds.done() + rounds.left_out(), count);
  }
}

}  // namespace
