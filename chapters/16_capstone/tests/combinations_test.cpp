// Random combinations of all options, nonsense included: each is refused in one line, or planned and measured as
// predicted, to the byte. And the ladder: its bytes at BERT-large, its losses on a small one.

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "../../../tests/nn/device.h"
#include "../../../tests/planning.h"
#include "claims.h"

namespace {

using namespace oomlab;
using namespace oomlab::capstone;
using namespace oomlab::test;

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
Levers any_levers(Random& random, Work& work) {
  using nn::AttentionForm, nn::LossForm;
  using enum Arithmetic;
  using enum WeightForm;
  Levers levers;
  levers.precision = random.one_of({fp32, fp32, bf16, bf16, fp16});
  levers.micro_batch = random.coin() ? 0 : random.one_of<std::size_t>({1, 2, 3, 5});
  levers.attention = random.one_of({AttentionForm::textbook, AttentionForm::tiled, AttentionForm::fused});
  levers.loss = random.one_of({LossForm::full, LossForm::chunked});
  levers.lean = random.coin();
  levers.solved = random.from(0, 3) == 0;
  levers.recompute = levers.solved || random.coin() ? 0 : random.from(1, 4);
  levers.optimizer.rule = random.one_of({UpdateRule::adamw, UpdateRule::adamw, UpdateRule::adamw8,
                                         UpdateRule::adafactor, UpdateRule::sgd});
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
    if (random.coin()) {  // what ranks take, so that enough of them run
      levers.solved = false, levers.recompute = std::min<std::size_t>(levers.recompute, 1);
      levers.gradients = GradientLife::always;
      if (levers.precision == fp16) levers.precision = bf16;
      levers.optimizer = {UpdateRule::adamw, usual_weights(levers.precision)};
    }
  }
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
  CUDA_CHECK(cudaSetDevice(device));
  Ledger ledger;
  AsyncResource memory;
  Context context(memory, ledger);
  const std::unique_ptr<Workload> work = make(context);
  for (int step = 0; step < 2; ++step) {
    work->step();
    (void)work->figure();
  }
  return {without_workspace(ledger.peak_by_category()), context.flops()};
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
    const bool number = option == "micro-batch" || option == "tp" || option == "pp" || option == "dp" || option == "zero";
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
// The whole of it, nightly.
bool everything() { return std::getenv("OOMLAB_ALL_COMBINATIONS") != nullptr; }

TEST(Combinations, ArePlannedAsPredictedOrRefused) {
  const Planning planning;
  const std::size_t count = everything() ? 2000 : 300;
  const Tried tried = try_combinations(count, 1);
  EXPECT_GE(tried.ran, count / 3);
  EXPECT_GE(tried.refused, count / 5);
  EXPECT_GE(tried.of_ranks, count / 40);
  EXPECT_GE(tried.reasons.size(), 8u);
  std::printf("%zu planned, %zu of them of several ranks; %zu refused\n", tried.ran, tried.of_ranks, tried.refused);
}

TEST(Combinations, RunAsPredictedOrAreRefused) {
  const std::size_t count = everything() ? 200 : 3 * OOMLAB_ROUNDS;
  const Tried tried = try_combinations(count, 2);
  EXPECT_GT(tried.ran, 0u);
  std::printf("%zu ran, %zu of them on several ranks; %zu refused\n", tried.ran, tried.of_ranks, tried.refused);
}

// -------------------------------------------------------------------------------------------------- the price

TEST(Price, OfAnOffloadIsWhatTheProcessorMoves) {
  Levers levers;
  levers.gradients = GradientLife::sent_to_host;
  for (const char* model : {"bert:3-2-48", "gpt:2-2-32", "llama:2-4-2-64-172"}) {
    const Work work{nn::parse_transformer(model), 1, 16};
    const auto bytes = optimizer_memory::ProcessorAdamW<float>::predicted(work.spec);
    const Price price = plan_of(work, levers).price;
    EXPECT_EQ(price.pinned_bytes, bytes.pinned) << model;
    EXPECT_EQ(price.bus_bytes, double(bytes.moved - work.spec.parameters() * sizeof(float))) << model;  // down
  }
}

TEST(Price, NoStepTakesLessThanTheBusAndTheLinks) {
  const Card& card = *find_card("a100-80gb");
  const Work work{nn::parse_transformer("bert-large"), 8, 128};
  Levers levers{.precision = Arithmetic::bf16};
  levers.optimizer.weights = WeightForm::master;
  levers.gradients = GradientLife::sent_to_host;
  const Plan offload = plan_of(work, levers);
  EXPECT_GE(least_seconds(card, levers, offload), offload.price.bus_bytes / 63e9);
  levers.gradients = GradientLife::always, levers.ranks = {.dp = 8, .zero = 3}, levers.micro_batch = 1;
  const Plan ranks = plan_of(work, levers);
  EXPECT_GT(ranks.price.link_bytes, 5.0 * double(work.spec.parameters()));
  EXPECT_GE(least_seconds(card, levers, ranks), ranks.price.link_bytes / 900e9);
  EXPECT_FALSE(least_seconds(*find_card("v100-16gb"), levers, ranks));  // has no bf16
  // A part of a layer computes its share: of tiled attention no more than is certain.
  levers.ranks = {.tp = 4}, levers.micro_batch = 0;
  const double whole = plan_of({work.spec, 8, 128}, {.precision = Arithmetic::bf16, .optimizer = levers.optimizer}).price.flops;
  const double part = plan_of(work, levers).price.flops;
  EXPECT_GT(part, whole / 4);
  EXPECT_LT(part, whole / 2);  // the head is whole on each
  levers.attention = nn::AttentionForm::tiled;
  EXPECT_LT(plan_of(work, levers).price.flops, part);
  EXPECT_GT(plan_of(work, levers).price.flops, 0.8 * part);
}

// -------------------------------------------------------------------------------------------------- the ladder

TEST(Ladder, IsAsLowAsItSays) {
  EXPECT_NEAR(bert_large_gb(kTextbook), 22.0, 0.05);
  const std::pair<const char*, double> most[] = {{kArticle, 9.0},    {kCheckpoints, 9.0}, {kSolvedRow, 9.0},
                                                 {kMicro, 6.0},      {kEight, 4.0},       {kAtOnce, 3.5},
                                                 {kProcessor, 3.0},  {kLeast, 2.0},       {kHalfProcessor, 1.5}};
  for (const auto& [row, gb] : most) EXPECT_LE(bert_large_gb(row), gb) << row;
  const Work work = bert_large();
  for (const char* row : {kLeanRow, kMicro, kProcessor}) EXPECT_TRUE(same_numbers(work, levers_of_row(row))) << row;
  EXPECT_EQ(numbers_of(work, levers_of_row(kCheckpoints)).kind, Agreement::Kind::bit_equal);
}

TEST(Ladder, EachRowsCommandIsRun) {  // as a plan, by tests/bytes.txt
  std::ifstream file(std::string(std::getenv("OOMLAB_CAPSTONE")) + "/tests/bytes.txt");
  const std::string lines{std::istreambuf_iterator<char>(file), {}};
  for (const Row& row : ladder()) {
    const std::string command = command_of("--model bert-large", bert_large(), row.levers);
    EXPECT_NE(lines.find("plan: " + command.substr(command.find("--model")) + "\n"), std::string::npos) << command;
  }
}

TEST(Ladder, ASolvedScheduleFitsAndIsNoMoreThanEveryLayer) {
  Work work{nn::parse_transformer("bert:12-4-64"), 4, 32};
  for (const GradientLife life : {GradientLife::always, GradientLife::used_at_once, GradientLife::sent_to_host}) {
    Levers kept = levers_of_row(kLeanRow), every = kept, solved = levers_of_row(kSolvedRow);
    kept.gradients = every.gradients = solved.gradients = life;
    kept.recompute = 0, every.recompute = 1;
    const Plan most = plan_of(work, kept), least = plan_of(work, every);
    double before = least.price.flops;
    for (int eighths = 1; eighths <= 8; ++eighths) {
      work.budget = least.peak.total() + (most.peak.total() - least.peak.total()) * std::size_t(eighths) / 8;
      const Plan plan = plan_of(work, solved);
      EXPECT_LE(plan.peak.total(), work.budget) << int(life) << " " << eighths;
      EXPECT_LE(plan.price.flops, before) << int(life) << " " << eighths;
      before = plan.price.flops;
    }
    EXPECT_EQ(before, most.price.flops) << int(life);
    Work more = work;  // the workspace is taken off the budget
    more.budget += 512, more.workspace = 512;
    EXPECT_EQ(schedule_of(more, solved), schedule_of(work, solved));
  }
}

std::vector<double> losses_of(const Work& work, const Levers& levers, std::size_t steps, std::uint64_t& weights) {
  const Text text = std::make_shared<data::TextSampler>(train::text_for(work.spec, work.seq, /*ragged=*/false));
  Device device;
  const auto training = make_training(device.context, work, levers, text);
  std::vector<double> losses;
  for (std::size_t step = 0; step < steps; ++step) {
    training->step();
    losses.push_back(training->figure());
  }
  weights = training->fingerprint();
  return losses;
}

TEST(Ladder, LossesAreAsClaimedOver20Steps) {
  Work work{nn::parse_transformer("bert:2-2-32"), 4, 24};
  work.budget = plan_of(work, levers_of_row(kLeanRow)).peak.total() * 11 / 10;  // so that some is recomputed
  std::uint64_t first = 0, weights = 0;
  const std::vector<double> baseline = losses_of(work, {}, 20, first);
  EXPECT_LT(baseline.back(), baseline.front());
  for (const Row& row : ladder()) {
    const std::vector<double> losses = losses_of(work, row.levers, 20, weights);
    double off = 0;
    for (std::size_t i = 0; i < 20; ++i) off = std::max(off, std::fabs(losses[i] / baseline[i] - 1));
    std::printf("%-26s %.2e off\n", row.name.c_str(), off);
    const Agreement numbers = numbers_of(work, row.levers);
    switch (numbers.kind) {
      case Agreement::Kind::bit_equal:
        EXPECT_EQ(losses, baseline) << row.name;
        EXPECT_EQ(weights, first) << row.name;
        break;
      case Agreement::Kind::within_tolerance:
        EXPECT_LE(off, numbers.tolerance) << row.name;
        EXPECT_GT(off, 0) << row.name;
        break;
      case Agreement::Kind::differs_by_design:
        EXPECT_LE(off, 0.02) << row.name;
        EXPECT_NE(weights, first) << row.name;
        break;
    }
  }
}

// ------------------------------------------------------------------------------------------ frontier and grid

TEST(Frontier, NoCombinationIsBothFasterAndSmaller) {
  const Work work{nn::parse_transformer("bert:4-2-32"), 4, 32};
  const Card& card = *find_card("a100-80gb");
  std::vector<Point> all;
  std::set<std::string> words;
  visit_combinations(work, [&](const Levers& levers) {
    EXPECT_TRUE(refused(work, levers).empty());
    words.insert(options_of(levers));
    const Plan plan = plan_of(work, levers);
    all.push_back({levers, double(plan.peak.total()) / 1e9, *least_seconds(card, levers, plan)});
  });
  EXPECT_EQ(words.size(), all.size());  // each once
  EXPECT_GT(all.size(), 1000u);
  const std::vector<Point> least = least_of(all);
  ASSERT_FALSE(least.empty());
  for (const Point& point : all) {
    bool covered = false;
    for (const Point& l : least) covered = covered || (l.seconds <= point.seconds && l.gb <= point.gb);
    EXPECT_TRUE(covered) << options_of(point.levers);
  }
  for (std::size_t i = 1; i < least.size(); ++i) {
    EXPECT_LT(least[i].gb, least[i - 1].gb);
    EXPECT_GT(least[i].seconds, least[i - 1].seconds);
  }
}

TEST(Grid, CountsWhatFits) {
  const Fits plain = fits_with({Levers{}});
  ASSERT_EQ(plain.size(), kGridCells);
  // By hand: FP32 with AdamW is 16 bytes per parameter, so no 7B model fits 80 GB, and bert-base at batch 1 fits 8 GB.
  EXPECT_TRUE(plain[0]);
  EXPECT_EQ(std::count(plain.begin() + 42 * 4, plain.end(), true), 0);
  const Work large{nn::parse_transformer("bert-large"), 8, 512};  // batch 8: 15.6 GB
  const std::size_t peak = plan_of(large, {}).peak.total();
  for (std::size_t card = 0; card < std::size(kGridCards); ++card)
    EXPECT_EQ(plain[42 + 3 * 6 + card], double(peak) <= 0.95e9 * kGridCards[card]) << card;
  Fits before = plain;
  for (const auto& [name, any] : grid_levers()) {
    const Fits now = fits_with(any);
    EXPECT_GE(count_of(now), count_of(plain)) << name;
    if (name.starts_with("or ")) {  // with one more to choose from nothing fits worse
      for (std::size_t i = 0; i < now.size(); ++i) EXPECT_GE(now[i], before[i]) << name;
    }
    before = now;
  }
  EXPECT_EQ(rescued({false, false, true, false}, {true, false, true, false}), std::optional(1.0 / 3));
}

}  // namespace
