// The finder's answer is the brute-force answer, and a failed trial leaves nothing behind.

#include "batch_finder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "train/image_training.h"

namespace {

using namespace oomlab;
using batch_reduction::Search;
using batch_reduction::try_batches;
using namespace oomlab::train;

/// A search in a world where batches up to `largest` fit.
Search search_with(std::size_t largest, std::size_t limit = 1u << 20) {
  return try_batches(limit, [&](std::size_t batch) {
    EXPECT_GE(batch, 1u);
    EXPECT_LE(batch, limit);
    if (batch > largest) throw OutOfMemory(OutOfMemoryReport{});
  });
}

TEST(BatchFinder, FindsEveryAnswer) {
  for (std::size_t largest = 0; largest <= 600; ++largest) {
    const Search search = search_with(largest);
    ASSERT_EQ(search.largest.batch, largest);
    EXPECT_FALSE(search.largest.hit_limit);
    std::set<std::size_t> tried;
    for (const auto& attempt : search.attempts) {
      EXPECT_TRUE(tried.insert(attempt.batch).second) << "tried twice: " << attempt.batch;
      EXPECT_EQ(attempt.fits(), attempt.batch <= largest);
    }
    EXPECT_LE(double(search.attempts.size()), 2 * std::log2(double(largest) + 1) + 2) << largest;
  }
}

TEST(BatchFinder, StopsAtTheLimit) {
  for (std::size_t limit = 1; limit <= 70; ++limit) {
    for (std::size_t largest : {std::size_t(0), limit - 1, limit, limit + 1, std::size_t(1000)}) {
      const Search search = search_with(largest, limit);
      std::set<std::size_t> tried;
      for (const auto& attempt : search.attempts)
        EXPECT_TRUE(tried.insert(attempt.batch).second) << "tried twice: " << attempt.batch << " of " << limit;
      ASSERT_EQ(search.largest.batch, std::min(limit, largest)) << limit << " " << largest;
      EXPECT_EQ(search.largest.hit_limit, largest >= limit) << limit << " " << largest;
    }
  }
}

TEST(BatchFinder, OtherErrorsEndTheSearch) {
  std::size_t trials = 0;
  EXPECT_THROW(try_batches(100,
                           [&](std::size_t) {
                             ++trials;
                             throw std::runtime_error("not memory");
                           }),
               std::runtime_error);
  EXPECT_EQ(trials, 1u) << "never retried silently";
}

TEST(BatchFinder, EqualsBruteForceOverAllBatchesAtTenBudgets) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    (void)cudaGetLastError();
    GTEST_SKIP() << "no device";
  }
  const nn::MlpSpec spec = nn::parse_model("mlp:16-48-24-10");
  const data::Dataset dataset = data::digits();
  constexpr auto kind = nn::UpdateRule::adamw;
  const Config config;  // its workspace is not in the closed form
  const std::size_t fixed = config.workspace + ImageTraining::predicted(dataset, spec, kind, 1).total();
  const std::size_t top = config.workspace + ImageTraining::predicted(dataset, spec, kind, 120).total();
  std::mt19937_64 random(7);
  std::set<std::size_t> answers;
  for (int i = 0; i < 10; ++i) {
    const std::size_t budget = i == 0 ? fixed : fixed + random() % (top - fixed);
    Ledger ledger;
    with_context(config, budget, ledger, [&](Context& context) {
      ImageTraining training(context, dataset, spec, kind, 1);
      const std::size_t resident = ledger.live_bytes();
      const auto weights = training.fingerprint();
      const auto attempt = [&](std::size_t batch) { training.try_batch(batch); };

      std::size_t brute_force = 0;
      for (std::size_t batch = 1; batch <= 130; ++batch) {
        try {
          attempt(batch);
          brute_force = batch;
        } catch (const OutOfMemory&) {
        }
        ASSERT_EQ(ledger.live_bytes(), resident) << "batch " << batch << " leaked";
      }
      const Search search = try_batches(1u << 20, attempt);
      EXPECT_EQ(search.largest.batch, brute_force) << "budget " << budget;
      EXPECT_GE(brute_force, 1u);
      EXPECT_LT(brute_force, 130u);
      EXPECT_EQ(ledger.live_bytes(), resident);
      EXPECT_EQ(training.fingerprint(), weights) << "a trial trains nothing";
      answers.insert(brute_force);
    });
  }
  EXPECT_GE(answers.size(), 5u) << "the budgets must differ";
}

TEST(Training, EveryStepHasTheNextSamples) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    (void)cudaGetLastError();
    GTEST_SKIP() << "no device";
  }
  constexpr std::size_t kBatch = 4;
  const nn::MlpSpec spec = nn::parse_model("mlp:64-10");
  data::Dataset next = data::digits(), again = next;  // again: its second batch is its first one
  std::copy_n(again.images.begin(), kBatch * again.pixels(), again.images.begin() + kBatch * again.pixels());
  std::copy_n(again.labels.begin(), kBatch, again.labels.begin() + kBatch);
  const auto weights_after_two_steps = [&](const data::Dataset& dataset) {
    std::uint64_t weights = 0;
    Ledger ledger;
    with_context(Config{}, kUnlimited, ledger, [&](Context& context) {
      ImageTraining training(context, dataset, spec, nn::UpdateRule::sgd, kBatch);
      training.step();
      training.step();
      weights = training.fingerprint();
    });
    return weights;
  };
  EXPECT_EQ(weights_after_two_steps(next), weights_after_two_steps(next));
  EXPECT_NE(weights_after_two_steps(next), weights_after_two_steps(again));
}

}  // namespace
