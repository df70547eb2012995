// Random combinations of all options, nonsense included: each is refused in one line, or planned and measured as
// predicted, to the byte. (Chapter 16.)

#include <atomic>
#include <cstdlib>
#include <random>
#include <set>
#include <thread>

#include "../../chapters/16_capstone/ladder.h"
#include "../nn/device.h"
#include "../planning.h"
#include "drawn.h"
#include "plan/lever/context.h"
#include "plan/lever/list.h"
#include "plan/pairs.h"
#include "two_steps.h"

namespace {

using namespace oomlab;
using namespace oomlab::capstone;
using namespace oomlab::test;

constexpr std::size_t kDevices = 18;
[[maybe_unused]] const int devices = setenv("OOMLAB_HOST_DEVICES", std::to_string(kDevices).c_str(), 1);

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  std::size_t from(std::size_t least, std::size_t most) { return least + engine_() % (most - least + 1); }
  bool coin() { return from(0, 1) == 1; }
  bool seldom() { return from(0, 7) == 0; }
  template <class T>
  T one_of(std::initializer_list<T> all) {
    return all.begin()[from(0, all.size() - 1)];
  }

 private:
  std::mt19937 engine_;
};

Work any_work(Random& random) {
  nn::TransformerSpec spec = nn::parse_transformer(random.one_of({"gpt:1-1-1", "bert:1-1-1", "llama:1-1-1-2-1"}));
  spec.layers = random.from(1, 6);
  spec.heads = random.one_of<std::size_t>({1, 2, 3, 4});
  spec.width = spec.heads * 2 * random.from(1, 6);
  if (spec.llama()) {
    do spec.kv_heads = random.from(1, spec.heads);
    while (spec.heads % spec.kv_heads != 0);
    spec.mlp = random.from(3, 60);
    spec.tied = random.coin();
  }
  spec.vocabulary = random.from(258, 900);
  const std::size_t batch = random.one_of<std::size_t>({1, 2, 3, 4, 6, 8, 12});
  Work work{spec, batch, random.from(2, 16)};
  spec.positions = 64;
  work.spec.positions = random.seldom() ? 8 : 64;
  if (random.coin()) {
    for (std::size_t i = random.from(1, 5); i > 0; --i) work.lengths.push_back(random.from(1, work.seq));
    if (random.seldom()) work.lengths.back() = work.seq + 1;
  }
  return work;
}
// Some value of each lever: most of them of what a search tries for this work, some for another one.
Levers any_levers(Random& random, Work& work) {
  const Work other = any_work(random);
  Levers levers;
  for (const plan::Lever* lever : plan::all_levers()) {
    if (random.coin()) continue;
    const std::vector<Levers> values = lever->tries({random.seldom() ? other : work, 8});
    lever->take(values[random.from(0, values.size() - 1)], levers);
  }
  if (levers.ranks.ranks() > kDevices) plan::lever::context().take({}, levers);
  // Two of three combinations have less nonsense, so that enough of them run: levers are let go until it is none.
  for (bool sensible = random.from(0, 2) == 0; !sensible && !refused(work, levers).empty();) {
    std::vector<const plan::Lever*> pulled;
    for (const plan::Lever* lever : plan::all_levers())
      if (lever->differs({}, levers)) pulled.push_back(lever);
    if (pulled.empty()) break;
    pulled[random.from(0, pulled.size() - 1)]->take({}, levers);
  }
  if (plan::lever::trains_adapters(levers) && random.coin()) levers.adapters.dropout = 0.25f;
  if (levers.mlp_tiles > 1) levers.mlp_tiles = random.from(2, 40);
  if (levers.solved) {  // somewhere between nothing and everything
    Levers kept = levers, none = levers;
    kept.solved = none.solved = false, none.recompute = 1;
    if (refused(work, kept).empty() && refused(work, none).empty()) {
      const std::size_t most = plan_of(work, kept).peak.total(), least = plan_of(work, none).peak.total();
      work.budget = std::min(least, most) + (std::max(least, most) - std::min(least, most)) * random.from(0, 8) / 8;
    }
  }
  return levers;
}

struct Seen {
  ByCategory peak;
  std::uint64_t flops = 0;  // of two steps
  HostBytes host = {};      // of ranks: of the one that has most
  std::uint64_t host_of_all = 0;
};
template <class Make>
Seen seen_of(int device, Make make) {
  return test::after_two_steps(device, make, [](const Ledger& ledger, Context& context) {
    const HostBytes host = context.host_memory().peak();
    return Seen{without_workspace(ledger.peak_by_category()), context.flops(), host, host.total()};
  });
}
Seen seen_of_ranks(const Work& work, const Levers& levers, const Text& text) {
  const auto team = make_team(work, levers, text);
  std::vector<Seen> seen(std::size_t(team->ranks()));
  const auto run = [&](int rank) {
    seen[std::size_t(rank)] = seen_of(rank, [&](Context& context) { return team->make(context, rank); });
  };
  if (planning()) {
    for (int rank = 0; rank < team->ranks(); ++rank) run(rank);
  } else {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < team->ranks(); ++rank)
      threads.emplace_back([&, rank] {
        try {
          share_processor(64);
          run(rank);
        } catch (const std::exception& error) {
          team->failed = true;
          ADD_FAILURE() << options_of(levers) << ", rank " << rank << ": " << error.what();
        }
      });
    for (std::thread& thread : threads) thread.join();
  }
  Seen most = *std::ranges::max_element(seen, {}, [](const Seen& rank) { return rank.peak.total(); });
  most.flops = std::ranges::max_element(seen, {}, &Seen::flops)->flops;
  most.host = std::ranges::max_element(seen, {}, [](const Seen& rank) { return rank.host.total(); })->host;
  most.host_of_all = 0;
  for (const Seen& rank : seen) most.host_of_all += rank.host.total();
  return most;
}

// What this combination needs is what its plan says, by category, on every rank.
void expect_planned(const Work& work, const Levers& levers, const std::string& what) {
  const Text text = std::make_shared<data::TextSampler>(train::text_for(work.spec, work.seq, /*ragged=*/false));
  const Plan plan = plan_of(work, levers);
  const bool several = levers.ranks.ranks() > 1;
  const Seen seen = several ? seen_of_ranks(work, levers, text)
                            : seen_of(0, [&](Context& c) { return make_training(c, work, levers, text); });
  for (std::size_t c = 0; c < kCategoryCount; ++c)
    EXPECT_EQ(plan.peak.bytes[c], seen.peak.bytes[c]) << what << ": " << oomlab::name_of(Category(c));
  EXPECT_EQ(plan.host, seen.host) << what << ": " << plan.host.total() << " and " << seen.host.total();
  EXPECT_EQ(plan.price.host_bytes, seen.host_of_all) << what;
  if (levers.attention != nn::AttentionForm::fused) {
    EXPECT_EQ(2 * plan.price.flops, double(seen.flops)) << what;
  }
}

struct Tried {
  std::size_t ran = 0, refused = 0, of_ranks = 0;
  std::set<std::string> reasons;
};
Tried try_combinations(std::size_t count, unsigned seed) {
  Random random(seed);
  Tried tried;
  for (std::size_t i = 0; i < count && !testing::Test::HasFailure(); ++i) {
    Work work = any_work(random);
    const Levers levers = any_levers(random, work);
    const std::string what =
        fmt::format("{}: {} layers of {}, {} heads over {}, batch {} x {}, lengths {}, budget {}, {}", i,
                    work.spec.layers, work.spec.width, work.spec.heads, work.spec.keys(), work.batch, work.seq,
                    fmt::join(work.lengths, ","), work.budget, options_of(levers));
    EXPECT_EQ(plan::parse_levers(options_of(levers)), levers) << what;
    if (const std::string why = refused(work, levers); !why.empty()) {
      EXPECT_EQ(why.find('\n'), std::string::npos) << what;
      expect_refused_in_one_line([&] { return plan_of(work, levers); }, what);
      expect_refused_in_one_line([&] { return make_team(work, levers, nullptr); }, what);
      ++tried.refused;
      tried.reasons.insert(why.substr(0, 12) + why.substr(why.size() - 12));
      continue;
    }
    expect_planned(work, levers, what);
    ++tried.ran;
    tried.of_ranks += levers.ranks.ranks() > 1;
  }
  return tried;
}
TEST(Combinations, ArePlannedAsPredictedOrRefused) {
  const Planning planning;
  const std::size_t count = drawn(OOMLAB_COMBINATIONS);
  const Tried tried = try_combinations(count, 1);
  EXPECT_GE(tried.ran, count / 3);
  EXPECT_GE(tried.refused, count / 5);
  EXPECT_GE(tried.of_ranks, count / 40);
  EXPECT_GE(tried.reasons.size(), 8u);
  std::printf("%zu planned, %zu of them of several ranks; %zu refused\n", tried.ran, tried.of_ranks, tried.refused);
}

TEST(Combinations, RunAsPredictedOrAreRefused) {
  const std::size_t count = drawn(OOMLAB_COMBINATIONS) / 10;
  const Tried tried = try_combinations(count, 2);
  EXPECT_GT(tried.ran, 0u);
  std::printf("%zu ran, %zu of them on several ranks; %zu refused\n", tried.ran, tried.of_ranks, tried.refused);
}

// With more sequences than heads of K and V, a part's tiles have fewer queries than those of all heads together.
TEST(Combinations, OfRanksThatShareOutHeadsEachHasTilesOfItsOwn) {
  const Work work{nn::parse_transformer("llama:1-4-2-128-64"), 4, 80};
  for (const char* options : {"--attention tiled --tp 2", "--attention tiled --cp 2 --context ulysses"})
    expect_planned(work, plan::parse_levers(options), options);
}

// Every two values of two levers, on one rank and on grids of four: together, or a law. Of those that go together every
// so manieth is tried.
struct PairsTried {
  std::size_t asked = 0, tried = 0;
};
PairsTried try_pairs(std::size_t one_of) {
  const Work work = plan::work_of_pairs();
  const std::vector<plan::Pulled> pulled = plan::pulled_levers(work, 4);
  const std::vector<plan::Layout> grids = {{},
                                           {.tp = 2, .dp = 2},
                                           {.dp = 2, .pp = 2},
                                           {.dp = 4, .zero = 1},
                                           {.dp = 2, .pp = 2, .zero = 2},
                                           {.tp = 2, .dp = 2, .zero = 3}};
  PairsTried seen;
  for (const plan::Pair& pair : plan::pairs_of(work, pulled))
    for (const plan::Layout& grid : grids) {
      Levers levers = pair.levers;
      const bool has_grid = levers.ranks != plan::Layout{};
      const bool of_parts = levers.sequence_parallel && grid.tp > 1;  // it needs some, and any do
      if (has_grid && grid != plan::Layout{} && !of_parts) continue;  // the pair says what grid
      if (!has_grid || of_parts) levers.ranks = grid;
      if (!refused(work, levers).empty()) continue;
      if (seen.asked++ % one_of != 0) continue;
      if (plan::lever::trains_adapters(levers) && seen.tried % 2 == 0) levers.adapters.dropout = 0.25f;
      Work of_pair = work;
      if (levers.solved) of_pair.budget = kUnlimited - 1;
      of_pair.lengths = {8, 3, 6, 1, 7};
      if (!levers.pack || !refused(of_pair, levers).empty()) of_pair.lengths.clear();
      expect_planned(of_pair, levers, options_of(levers));
      ++seen.tried;
      if (testing::Test::HasFailure()) return seen;
    }
  return seen;
}

TEST(Pairs, ArePlannedAsPredicted) {
  const Planning planning;
  const PairsTried seen = try_pairs(OOMLAB_COMBINATIONS >= 2000 ? 1 : 20);
  EXPECT_GT(seen.asked, 1500u);
  std::printf("%zu pairs on grids, %zu planned\n", seen.asked, seen.tried);
}

TEST(Pairs, RunAsPredicted) {
  const bool all = std::getenv("OOMLAB_PAIRS") != nullptr;
  const PairsTried seen = try_pairs(all ? 1 : OOMLAB_COMBINATIONS >= 2000 ? 31 : 301);
  EXPECT_GT(seen.tried, 4u);
  std::printf("%zu pairs on grids, %zu ran\n", seen.asked, seen.tried);
}

}  // namespace
