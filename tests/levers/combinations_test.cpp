// Random combinations of all options, nonsense included: each is refused in one line, or planned and measured as
// predicted, to the byte. (Chapter 16.)

#include <atomic>
#include <cstdlib>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "../../chapters/16_capstone/ladder.h"
#include "../nn/device.h"
#include "../planning.h"
#include "two_steps.h"

namespace {

using namespace oomlab;
using namespace oomlab::capstone;
using namespace oomlab::test;

[[maybe_unused]] const int devices = setenv("OOMLAB_HOST_DEVICES", "18", 1);  // tp 3, dp 3, pp 2

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
  return work;
}
// Two of three combinations have less nonsense, so that enough of them run.
void make_sensible(Random& random, const Work& work, Levers& levers) {
  using enum DType;
  if (levers.micro_batch && work.batch % levers.micro_batch) levers.micro_batch = 1;
  levers.recompute = std::min(levers.recompute, work.spec.layers);
  if (levers.precision == fp32 || levers.precision == fp16) levers.optimizer.weights = usual_weights(levers.precision);
  if (levers.precision == fp16) levers.optimizer.rule = UpdateRule::adamw, levers.gradients = GradientLife::always;
  if (levers.gradients == GradientLife::sent_to_host)
    levers.optimizer = {UpdateRule::adamw, usual_weights(levers.precision)};
  levers.optimizer.wide_embeddings &= levers.optimizer.rule == UpdateRule::adamw8;
  if (levers.gradients != GradientLife::always) levers.micro_batch = 0;
  Layout& ranks = levers.ranks;
  while (work.batch % ranks.dp) --ranks.dp;
  for (const std::size_t count : {work.spec.heads, work.spec.keys(), work.spec.hidden()})
    if (count % ranks.tp) ranks.tp = 1;
  ranks.pp = std::min(ranks.pp, work.spec.layers);
  if (ranks.dp == 1 || ranks.pp > 1) ranks.zero = ranks.dp == 1 ? 0 : std::min(ranks.zero, 1);
  if (ranks.ranks() == 1) return;
  levers.solved = false, levers.recompute = std::min<std::size_t>(levers.recompute, 1);
  levers.gradients = GradientLife::always;
  if (levers.precision == fp16) levers.precision = bf16;
  levers.optimizer = {UpdateRule::adamw, usual_weights(levers.precision)};
  levers.micro_batch = random.coin() ? 0 : 1;
}
Levers any_levers(Random& random, Work& work) {
  using nn::AttentionForm, nn::LossForm;
  using enum DType;
  using enum WeightForm;
  Levers levers;
  levers.precision = random.one_of({fp32, fp32, bf16, bf16, fp16});
  levers.micro_batch = random.coin() ? 0 : random.one_of<std::size_t>({1, 2, 3, 5});
  levers.attention = random.one_of({AttentionForm::textbook, AttentionForm::tiled, AttentionForm::fused});
  levers.loss = random.one_of({LossForm::full, LossForm::chunked});
  levers.lean = random.coin();
  levers.solved = random.from(0, 3) == 0;
  levers.recompute = levers.solved || random.coin() ? 0 : random.from(1, 4);
  levers.optimizer.rule =
      random.one_of({UpdateRule::adamw, UpdateRule::adamw, UpdateRule::adamw8, UpdateRule::adafactor, UpdateRule::sgd});
  levers.optimizer.weights =
      random.coin() ? usual_weights(levers.precision) : random.one_of({stored, master, stochastic});
  levers.optimizer.wide_embeddings = random.seldom();
  levers.gradients = random.one_of(
      {GradientLife::always, GradientLife::always, GradientLife::used_at_once, GradientLife::sent_to_host});
  if (random.from(0, 3) == 0) {
    levers.ranks = {.tp = random.one_of<std::size_t>({1, 1, 2, 3}),
                    .dp = random.one_of<std::size_t>({1, 2, 2, 3}),
                    .pp = random.one_of<std::size_t>({1, 1, 2}),
                    .zero = int(random.from(0, 3))};
  }
  if (random.from(0, 2) > 0) make_sensible(random, work, levers);
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
};
template <class Make>
Seen seen_of(int device, Make make) {
  return test::after_two_steps(device, make, [](const Ledger& ledger, const Context& context) {
    return Seen{without_workspace(ledger.peak_by_category()), context.flops()};
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
  return *std::max_element(seen.begin(), seen.end(),
                           [](const Seen& a, const Seen& b) { return a.peak.total() < b.peak.total(); });
}

// "--weights master" and so on, as the command line sets them.
OptionValues parsed(const std::string& words) {
  OptionValues values;
  std::istringstream in(words);
  std::string name, value;
  in >> name;
  while (in) {
    const std::string option = name.substr(2);
    if (!(in >> value) || value.starts_with("--")) {
      values.set(option, true);
      name = value;
      if (!in) break;
      continue;
    }
    const bool number =
        option == "micro-batch" || option == "tp" || option == "pp" || option == "dp" || option == "zero";
    number ? values.set(option, std::size_t(std::stoul(value))) : values.set(option, value);
    in >> name;
  }
  return values;
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
    const std::string what = fmt::format("{}: {} layers of {}, {} heads over {}, batch {} x {}, budget {}, {}", i,
                                         work.spec.layers, work.spec.width, work.spec.heads, work.spec.keys(),
                                         work.batch, work.seq, work.budget, options_of(levers));
    EXPECT_EQ(levers_of(parsed(options_of(levers))), std::optional(levers)) << what;
    if (const std::string why = refused(work, levers); !why.empty()) {
      EXPECT_EQ(why.find('\n'), std::string::npos) << what;
      expect_refused_in_one_line([&] { return plan_of(work, levers); }, what);
      expect_refused_in_one_line([&] { return make_team(work, levers, nullptr); }, what);
      ++tried.refused;
      tried.reasons.insert(why.substr(0, 12) + why.substr(why.size() - 12));
      continue;
    }
    const Text text = std::make_shared<data::TextSampler>(train::text_for(work.spec, work.seq, /*ragged=*/false));
    const Plan plan = plan_of(work, levers);
    const bool several = levers.ranks.ranks() > 1;
    const Seen seen = several ? seen_of_ranks(work, levers, text)
                              : seen_of(0, [&](Context& c) { return make_training(c, work, levers, text); });
    for (std::size_t c = 0; c < kCategoryCount; ++c)
      EXPECT_EQ(plan.peak.bytes[c], seen.peak.bytes[c]) << what << ": " << oomlab::name_of(Category(c));
    if (!several && levers.attention != nn::AttentionForm::fused) {
      EXPECT_EQ(2 * plan.price.flops, double(seen.flops)) << what;
    }
    ++tried.ran, tried.of_ranks += several;
  }
  return tried;
}
TEST(Combinations, ArePlannedAsPredictedOrRefused) {
  const Planning planning;
  const std::size_t count = OOMLAB_COMBINATIONS;
  const Tried tried = try_combinations(count, 1);
  EXPECT_GE(tried.ran, count / 3);
  EXPECT_GE(tried.refused, count / 5);
  EXPECT_GE(tried.of_ranks, count / 40);
  EXPECT_GE(tried.reasons.size(), 8u);
  std::printf("%zu planned, %zu of them of several ranks; %zu refused\n", tried.ran, tried.of_ranks, tried.refused);
}

TEST(Combinations, RunAsPredictedOrAreRefused) {
  const std::size_t count = OOMLAB_COMBINATIONS / 10;
  const Tried tried = try_combinations(count, 2);
  EXPECT_GT(tried.ran, 0u);
  std::printf("%zu ran, %zu of them on several ranks; %zu refused\n", tried.ran, tried.of_ranks, tried.refused);
}

}  // namespace
