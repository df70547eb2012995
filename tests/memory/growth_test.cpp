// What grows, and what only looks like it.

#include "memory/growth.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "blocks.h"

namespace oomlab {
namespace {

/// A program whose rounds allocate and release what a test says.
class Program {
 public:
  explicit Program(std::size_t budget = kUnlimited) : detector(budget) { ledger.set_observer(&detector); }
  ~Program() { ledger.set_observer(nullptr); }

  std::uintptr_t take(std::size_t bytes, const std::string& tag, Category category = Category::activations) {
    ledger.charge(address(++blocks_), bytes, bytes, category, tag);
    return blocks_;
  }
  void give_back(std::uintptr_t block) { ledger.release(address(block)); }

  /// Rounds 1 to `rounds`. Returns those after which growth was known.
  std::set<std::size_t> run(std::size_t rounds, const std::function<void(std::size_t)>& round) {
    std::set<std::size_t> known;
    Loop loop(ledger, "step");
    for (std::size_t i = 1; i <= rounds; ++i) {
      round(i);
      loop.end_round();
      if (!detector.growths().empty()) known.insert(i);
    }
    return known;
  }
  /// The only growth.
  Growth growth() const {
    const auto all = detector.growths();
    EXPECT_EQ(all.size(), 1u);
    return all.empty() ? Growth{} : all.front();
  }

  Ledger ledger;
  GrowthDetector detector;

 private:
  std::uintptr_t blocks_ = 0;
};

TEST(Growth, ALeakIsFoundInTheTenthRoundAndNamed) {
  Program program(100'000);
  program.take(50'000, "weights", Category::parameters);
  const auto known = program.run(10, [&](std::size_t) {
    program.take(1'024, "kept loss");
    program.take(512, "kept mask", Category::data);
    program.give_back(program.take(10'000, "temporary"));
  });
  EXPECT_EQ(known, std::set<std::size_t>{10});
  const Growth growth = program.growth();
  EXPECT_EQ(growth.loop, "step");
  EXPECT_EQ(growth.phase, "");
  EXPECT_EQ(growth.since, 1u);
  EXPECT_EQ(growth.rounds, 10u);
  EXPECT_EQ(growth.found_in, 10u);
  EXPECT_EQ(growth.bytes_a_round, 1'536);
  ASSERT_EQ(growth.tags.size(), 2u) << "weights do not grow";
  EXPECT_EQ(growth.tags[0].tag, "kept loss");
  EXPECT_EQ(growth.tags[0].bytes_a_round, 1'024);
  EXPECT_EQ(growth.tags[1].tag, "kept mask");
  EXPECT_EQ(growth.tags[1].category, Category::data);
  // The peak of round r is 60'000 + 1'536 r.
  EXPECT_EQ(growth.exceeds_in, 27u);
  const std::string text = describe(growth, 100'000);
  for (const char* part : {"1.50 KiB more after each step, since step 1 of 10", "kept loss +1.00 KiB (activations)",
                           "step 27 will exceed the budget of 97.66 KiB"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_EQ(
      describe(growth, 100'000, /*chinese=*/true),
      "从 10 轮里的第 1 轮（step）起，每轮之后多 1.50 KiB：kept loss +1.00 KiB（激活），kept mask +512 字节（数据）；"
      "第 27 轮（step）将超出预算 97.66 KiB");
}

TEST(Growth, TheRoundThatExceedsTheBudgetIsTheOneThatWasTold) {
  Program program(100'000);
  std::size_t told = 0, exceeded = 0;
  Loop loop(program.ledger, "step");
  for (std::size_t i = 1; exceeded == 0; ++i) {
    program.take(1'536, "kept");
    program.give_back(program.take(10'000, "temporary"));
    if (program.ledger.peak_bytes() > 100'000) exceeded = i;
    loop.end_round();
    if (i == 10) told = program.growth().exceeds_in.value();
  }
  EXPECT_EQ(told, exceeded);
  EXPECT_EQ(program.growth().exceeds_in, exceeded);
  EXPECT_NE(describe(program.growth(), 100'000).find("exceeded"), std::string::npos);
}

TEST(Growth, ALateLeakIsFoundWithinTenRoundsAndDated) {
  Program program;
  const auto known = program.run(70, [&](std::size_t i) {
    if (i == 1) program.take(4'096, "moments", Category::optimizer);
    if (i >= 50) program.take(512, "kept");
  });
  EXPECT_GE(*known.begin(), 50u);
  EXPECT_LT(*known.begin(), 60u);
  EXPECT_EQ(known.size(), 70 - *known.begin() + 1);
  EXPECT_EQ(program.growth().since, 50u);
  EXPECT_EQ(program.growth().found_in, *known.begin());
}

TEST(Growth, ALeakInEveryThirdRoundIsFound) {
  Program program;
  (void)program.run(40, [&](std::size_t i) {
    if (i % 3 == 0) program.take(3'072, "kept");
  });
  EXPECT_NEAR(program.growth().bytes_a_round, 1'024, 110);
  EXPECT_EQ(program.growth().tags.at(0).tag, "kept");
  EXPECT_EQ(program.growth().since, 3u);
}

TEST(Growth, ABufferThatIsReplacedByALargerOneIsNamed) {
  Program program;
  std::uintptr_t all = 0;
  (void)program.run(10, [&](std::size_t i) {
    const auto longer = program.take(512 * i, "all predictions");
    if (all) program.give_back(all);
    all = longer;
  });
  EXPECT_EQ(program.growth().bytes_a_round, 512);
  EXPECT_EQ(program.growth().tags.at(0).tag, "all predictions");
}

TEST(Growth, WarmUpAndCachesThatFillAreNone) {
  for (const std::size_t full : {0u, 1u, 2u, 5u, 9u}) {
    Program program;
    const auto known = program.run(200, [&](std::size_t i) {
      if (i <= 2) program.take(1 << 20, "optimizer state", Category::optimizer);
      if (i <= full) program.take(4'096, "cache");
      program.give_back(program.take(100'000, "temporary"));
    });
    EXPECT_TRUE(known.empty()) << "full after " << full << ", found in " << *known.begin();
  }
  // One that takes longer is named while it fills, and not when it is full.
  Program program;
  const auto known = program.run(200, [&](std::size_t i) {
    if (i <= 40) program.take(4'096, "cache");
  });
  EXPECT_EQ(*known.begin(), 10u);
  EXPECT_LE(*known.rbegin(), 40u);
}

// Inputs of any length, whose activations are live at the end of a phase, and of which one is kept until the next
// round.
TEST(Growth, VaryingLengthsAreNone) {
  std::mt19937 random(7);
  std::size_t alarms = 0;
  for (int program_number = 0; program_number < 30 * OOMLAB_ROUNDS; ++program_number) {
    Program program;
    std::uintptr_t kept = 0;
    const bool epochs = program_number % 4 == 0;  // the same lengths again and again, in another order
    std::size_t length = 1;
    alarms += program
                  .run(200,
                       [&](std::size_t i) {
                         length = epochs ? 1 + i * 7 % 20 : 1 + random() % 50;
                         const auto batch = program.take(512 * length, "batch", Category::data);
                         {
                           const Phase phase(program.ledger, "forward");
                           if (kept) program.give_back(kept);
                           kept = batch;
                         }
                       })
                  .size();
  }
  EXPECT_EQ(alarms, 0u);
}

TEST(Growth, ALeakUnderVaryingLengthsIsFound) {
  std::mt19937 random(7);
  Program program;
  std::uintptr_t kept = 0;
  (void)program.run(200, [&](std::size_t) {
    if (kept) program.give_back(kept);
    kept = program.take(512 * (1 + random() % 20), "batch", Category::data);
    program.take(1'024, "kept");
  });
  const Growth growth = program.growth();
  EXPECT_NEAR(growth.bytes_a_round, 1'024, 200);
  EXPECT_EQ(growth.tags.at(0).tag, "kept");
  EXPECT_LE(growth.found_in, 70u);
}

TEST(Growth, WhatGrowsInsideOfARoundIsFoundAtItsPhase) {
  Program program;
  (void)program.run(20, [&](std::size_t i) {
    const auto weights = program.take(4'096, "gathered weights", Category::parameters);
    std::uintptr_t cache = 0;
    {
      const Phase phase(program.ledger, "forward");
      cache = program.take(512 * (10 + i), "cache");
    }
    {
      const Phase phase(program.ledger, "backward");
      program.give_back(cache);
    }
    program.give_back(weights);
  });
  const Growth growth = program.growth();
  EXPECT_EQ(growth.phase, "forward");
  EXPECT_EQ(growth.bytes_a_round, 512);
  ASSERT_EQ(growth.tags.size(), 1u);
  EXPECT_EQ(growth.tags[0].tag, "cache");
  EXPECT_NE(describe(growth, kUnlimited).find("at the end of forward"), std::string::npos);
}

// Micro-batches whose forward passes are all kept, until the backward passes: within a step that grows, by design.
TEST(Growth, VisitsOfAPhaseAreComparedWithTheSameVisit) {
  Program program;
  const auto known = program.run(50, [&](std::size_t) {
    std::vector<std::uintptr_t> held;
    for (int m = 0; m < 12; ++m) {
      const Phase phase(program.ledger, "forward");
      held.push_back(program.take(4'096, "held"));
    }
    for (const auto block : held) program.give_back(block);
  });
  EXPECT_TRUE(known.empty());
}

TEST(Growth, ALoopInALoopIsComparedWithItself) {
  Program program;
  std::size_t found_inside = 0;
  const auto known = program.run(30, [&](std::size_t) {
    std::vector<std::uintptr_t> collected;
    Loop batches(program.ledger, "batch");
    for (int b = 0; b < 12; ++b) {
      collected.push_back(program.take(2'048, "prediction"));
      batches.end_round();
      if (!program.detector.growths().empty()) ++found_inside;
    }
    for (const auto block : collected) program.give_back(block);
  });
  EXPECT_GT(found_inside, 0u);
  EXPECT_EQ(program.growth().loop, "batch") << "a step leaves nothing behind";
  EXPECT_EQ(program.growth().found_in, 10u);
  EXPECT_EQ(program.growth().tags.at(0).tag, "prediction");
}

TEST(Growth, WhenMemoryRunsOutFewRoundsTell) {
  for (const std::size_t rounds : {2u, 3u}) {
    Program program(10'000);
    try {
      (void)program.run(rounds + 1, [&](std::size_t i) {
        if (i > rounds) throw std::bad_alloc();
        program.take(4'096, "kept");
      });
    } catch (const std::bad_alloc&) {
    }
    if (rounds == 2) {
      EXPECT_TRUE(program.detector.growths().empty()) << "the first round is warm-up";
      continue;
    }
    EXPECT_EQ(program.growth().tags.at(0).tag, "kept");
    EXPECT_EQ(program.growth().found_in, 0u);
    EXPECT_EQ(program.growth().since, 1u);
  }
}

TEST(Growth, LedgersWithoutAnObserverHaveLoopsToo) {
  Ledger ledger;
  Loop loop(ledger, "step");
  loop.end_round();
}

}  // namespace
}  // namespace oomlab
