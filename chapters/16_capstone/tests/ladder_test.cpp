// What a combination costs. The ladder: its bytes at BERT-large, its losses on a small one. The frontier, and the grid
// of cards.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>

#include "../../../tests/nn/device.h"
#include "../../07_multi_gpu/layout.h"
#include "claims.h"
#include "plan/lever/offload.h"
#include "plan/lever/zero.h"
#include "plan/search/task.h"

namespace {

using namespace oomlab;
using namespace oomlab::capstone;
using namespace oomlab::test;

// What chapter 13's loop reads and writes: an update of the processor is not free, and never hides behind the backward
// pass as a whole.
TEST(Price, OfAnOffloadHasTheProcessorsUpdate) {
  const Card& card = *find_card("rtx-3060");
  EXPECT_EQ(host_gb_per_s(card), kDesktopGbPerS);
  for (const char* server : {"t4", "v100-16gb", "a10", "a100-80gb", "rtx-a6000", "l40s", "h100-sxm", "b200"})
    EXPECT_EQ(host_gb_per_s(*find_card(server)), kServerGbPerS) << server;
  const Work work{nn::parse_transformer("llama-3.2-1b"), 1, 2048};
  Levers levers{.precision = DType::bf16, .attention = nn::AttentionForm::tiled};
  levers.optimizer.weights = WeightForm::master;
  const double on_card = least_seconds(card, levers, plan_of(work, levers)).value();
  levers.gradients = GradientLife::offloaded;
  const Plan plan = plan_of(work, levers);
  const double host = 28 * double(work.spec.parameters()) / 102.4e9;
  EXPECT_NEAR(plan.price.update.bytes / double(work.spec.parameters()), 28, 1e-3);  // and what rounds buffers
  EXPECT_GT(plan.price.update.forward_flops, 0.3 * plan.price.flops);
  EXPECT_LT(plan.price.update.forward_flops, 0.4 * plan.price.flops);
  // The token table's gradients are there when all is computed.
  const double token = double(work.spec.vocabulary * work.spec.width);
  EXPECT_NEAR(*least_seconds(card, levers, plan), on_card + token * (28 / 102.4e9 + 4 / 63e9), 1e-4);
  // With slow memory all of it counts, but for what the forward pass takes before it.
  const double slow = least_seconds(card, levers, plan, 10.0).value();
  EXPECT_GT(slow, host * 10.24);
  EXPECT_NEAR(slow, host * 10.24 + plan.price.update.forward_flops / (card.fp16_tflops * 1e12), 1e-3);
}

TEST(Price, NoStepTakesLessThanTheBusAndTheLinks) {
  const Card& card = *find_card("a100-80gb");
  const Work work{nn::parse_transformer("bert-large"), 8, 128};
  Levers levers{.precision = DType::bf16};
  levers.optimizer.weights = WeightForm::master;
  levers.gradients = GradientLife::offloaded;
  const Plan offload = plan_of(work, levers);
  EXPECT_GE(least_seconds(card, levers, offload), offload.price.bus_bytes / 63e9);
  // A faster bus than PCIe 5.0 is the card's own; memory that is the host's, too, is its own bus.
  Plan only_bus;
  only_bus.price.bus_bytes = 630e9;
  for (const auto& [name, seconds] : {std::pair("t4", 10), {"h100-sxm", 10}, {"b300", 5}})
    EXPECT_EQ(least_seconds(*find_card(name), {}, only_bus), double(seconds)) << name;
  EXPECT_EQ(least_seconds(*find_card("gb10"), {}, only_bus), 630.0 / 273);
  levers.gradients = GradientLife::always, levers.ranks = {.dp = 8, .zero = 3}, levers.micro_batch = 1;
  const Plan ranks = plan_of(work, levers);
  EXPECT_GT(ranks.price.link_bytes, 5.0 * double(work.spec.parameters()));
  EXPECT_GE(least_seconds(card, levers, ranks), ranks.price.link_bytes / 900e9);
  EXPECT_FALSE(least_seconds(*find_card("v100-16gb"), levers, ranks));  // has no bf16
  // A part of a layer computes its share, by tiles of its own heads.
  levers.ranks = {.tp = 4}, levers.micro_batch = 0;
  const double whole =
      plan_of(Work{work.spec, 8, 128}, {.precision = DType::bf16, .optimizer = levers.optimizer}).price.flops;
  const double part = plan_of(work, levers).price.flops;
  EXPECT_GT(part, whole / 4);
  EXPECT_LT(part, whole / 2);  // the head is whole on each
  levers.attention = nn::AttentionForm::tiled;
  EXPECT_GT(plan_of(work, levers).price.flops, part);  // scores once more
}

// ------------------------------------------------------------------------------------------------------- layouts

// What chapter 07 and this one say of a layout that the command line asks for; empty: it runs.
template <class Ask>
std::string refusal(Ask ask) {
  try {
    ask();
    return "";
  } catch (const UsageError& error) {
    return error.what();
  }
}

TEST(Layouts, AreRefusedAlikeHereInChapter07AndByFit) {
  std::mt19937 random(7);
  const auto one_of = [&](std::initializer_list<std::size_t> values) {
    return values.begin()[std::uniform_int_distribution<std::size_t>(0, values.size() - 1)(random)];
  };
  std::map<std::string, int> seen;  // by the first word
  for (int i = 0; i < 500; ++i) {
    Config config;
    config.model = std::array{"gpt:4-4-32", "gpt:5-8-64", "llama:4-8-2-128-344", "bert:3-6-48"}[i % 4];
    config.batch = one_of({1, 2, 6, 8, 12, 64});
    config.options.set(train::kSeq, std::size_t(16));
    config.options.set(train::kMicroBatch, one_of({1, 1, 2, 3, 4}));
    config.options.set(plan::lever::kTp, one_of({1, 1, 2, 3, 4, 8, 16}));
    config.options.set(plan::lever::kPp, one_of({1, 1, 2, 3, 5}));
    config.options.set(plan::lever::kDp, one_of({1, 1, 2, 3, 4, 8}));
    config.options.set(plan::lever::kZero, one_of({0, 0, 1, 2, 3}));
    config.devices_given = i % 8 == 7, config.devices = 4;
    const nn::TransformerSpec spec = train::transformer_of(config);
    const std::string there = refusal([&] { (void)multi_gpu::rows_of(config, spec); });
    EXPECT_EQ(refusal([&] { (void)rows_of(config); }), there) << config.model;
    ++seen[there.substr(0, there.find(' '))];

    // fit's search tries every layout that is not refused, and no other. (It has as many devices as it wants.)
    const Levers asked = plan::levers_of(config.options).value();
    const Work work{spec, config.batch, 16};
    plan::SearchTask task;
    task.one = task.several = work;
    task.cards = asked.ranks.ranks();
    const auto tried = plan::combinations(task, {}, plan::Lever::Changes::state);
    const bool there_too = std::ranges::any_of(tried, [&](const Levers& l) { return l.ranks == asked.ranks; });
    Levers whole = asked;  // the micro-batch is chosen later
    whole.micro_batch = 0;
    EXPECT_EQ(there_too, refused(work, whole).empty()) << options_of(asked);
  }
  for (const char* word : {"", "--tp", "--pp", "--dp", "--zero", "--micro-batch"})
    EXPECT_GT(seen[word], 10) << "'" << word << "'";
}

// What is of adapters needs a method that has some; what the model does not have, or the method does not train, is named.
TEST(Method, IsRefusedInOneLine) {
  const Work work{nn::parse_transformer("llama:2-4-2-64-172"), 2, 16};
  for (const char* options : {"--rank 4", "--alpha 4", "--targets qv", "--dropout 5", "--method full --rank 4",
                              "--method lora --dropout 100"})
    EXPECT_THROW((void)plan::parse_levers(options), UsageError) << options;
  const auto why = [&](const char* options) { return refused(work, plan::parse_levers(options)); };
  EXPECT_NE(why("--method lora --targets c_attn").find("c_attn"), std::string::npos);
  EXPECT_NE(why("--method lora --optimizer adamw8 --wide-embeddings").find("--wide-embeddings"), std::string::npos);
  EXPECT_NE(
      refused({nn::parse_transformer("bert:2-2-24"), 2, 16}, plan::parse_levers("--method lora")).find("decoders"),
      std::string::npos);
  for (const char* options :
       {"--method qlora --rank 3 --targets q_proj,down_proj", "--method lora --dp 2 --zero 1 --stream",
        "--method qlora --tp 2 --offload --optimizer adamw8", "--method lora --rank 4 --alpha 4",
        "--method lora --dp 2 --zero 2 --tp 2 --dropout 5"}) {
    EXPECT_EQ(why(options), "") << options;
    EXPECT_EQ(plan::parse_levers(options_of(plan::parse_levers(options))), plan::parse_levers(options)) << options;
  }
  for (std::size_t percent = 0; percent < 100; ++percent) {
    const Levers levers = plan::parse_levers(fmt::format("--method lora --dropout {}", percent));
    EXPECT_EQ(plan::parse_levers(options_of(levers)), levers) << percent;
  }
  EXPECT_EQ(plan::parse_levers("--method lora --rank 4").adapters.scale(), 2);
  EXPECT_EQ(plan::parse_levers("--method lora --rank 4 --alpha 12").adapters.scale(), 3);
}

// Whatever rounds, what is trained is said first.
TEST(Method, IsTheReasonWhyNumbersDiffer) {
  const Work work{nn::parse_transformer("llama:2-4-2-64-172"), 2, 16};
  const auto words = [&](const char* options) { return words_of(numbers_of(work, plan::parse_levers(options))); };
  EXPECT_EQ(words("--precision bf16 --method lora --optimizer adamw8"), "adapters are trained");
  EXPECT_EQ(words("--precision bf16 --optimizer adamw8"), "weights of 16 bits");
}

TEST(LongSequences, AreRefusedInOneLine) {
  const Work work{nn::parse_transformer("llama:2-4-2-64-172"), 3, 15};
  const auto why = [&](const char* options) { return refused(work, plan::parse_levers(options)); };
  EXPECT_NE(why("--sequence-parallel").find("--tp is 1"), std::string::npos);
  EXPECT_NE(why("--tp 2 --sequence-parallel").find("3 x 15 tokens"), std::string::npos);
  EXPECT_EQ(refused({work.spec, 3, 16}, plan::parse_levers("--tp 2 --sequence-parallel --micro-batch 1")), "");
  EXPECT_THROW((void)plan::parse_levers("--tiles-mlp 0"), UsageError);
  EXPECT_EQ(plan::parse_levers("--tiles-mlp 1"), Levers{});
}

TEST(LongSequences, TokensThatCannotBeSharedOutAreRefused) {
  const Work work{nn::parse_transformer("llama:2-4-2-64-172"), 3, 12};
  const auto why = [&](const char* options) { return refused(work, plan::parse_levers(options)); };
  EXPECT_NE(why("--cp 5 --attention fused").find("12 tokens"), std::string::npos);
  EXPECT_NE(why("--cp 4 --attention fused").find("8 chunks"), std::string::npos);
  EXPECT_NE(why("--cp 2").find("--attention fused"), std::string::npos);
  EXPECT_NE(why("--cp 4 --context ulysses").find("2 heads of keys"), std::string::npos);
  EXPECT_NE(why("--tp 2 --cp 2 --context ulysses").find("--tp 2 x --cp 2"), std::string::npos);
  EXPECT_NE(why("--context ulysses").find("--cp is 1"), std::string::npos);
  EXPECT_EQ(why("--cp 3 --attention fused --zero 3"), "");
  EXPECT_EQ(why("--cp 2 --context ulysses"), "");
  EXPECT_EQ(options_of(plan::parse_levers("--cp 2 --context ring")), "--precision fp32 --cp 2");
  EXPECT_THROW((void)plan::parse_levers("--cp 2 --context star"), UsageError);
}

// A rank that has an eighth of the tokens keeps an eighth of everything in a layer.
TEST(LongSequences, SharedTokensDivideWhatALayerKeeps) {
  const Work work{nn::parse_transformer("llama-3.1-8b"), 1, 65536};
  const auto kept = [&](const char* options) {
    return nn::segment_bytes(work.spec, plan::step_of(work, plan::parse_levers(options), {}), {1, false, {}}).held;
  };
  const std::uint64_t alone = kept("--precision bf16 --attention fused");
  EXPECT_EQ(8 * kept("--precision bf16 --attention fused --cp 8"), alone);
  EXPECT_EQ(8 * kept("--precision bf16 --attention fused --cp 8 --context ulysses"), alone);
}

// What a layer keeps: tensor parallelism alone leaves norms and residuals whole on each rank.
TEST(LongSequences, SharedRowsDivideWhatALayerKeeps) {
  const nn::TransformerSpec spec = nn::parse_transformer("llama-3.1-8b");
  nn::StepLevers step{.element_bytes = 2, .sequences = 1, .seq = 8192, .form = {.attention = nn::AttentionForm::fused}};
  const auto kept = [&] { return nn::segment_bytes(spec, step, {1, false, {}}).held; };
  const std::uint64_t alone = kept();
  constexpr std::uint64_t kParts = 8;
  step.slice.parts = kParts;
  EXPECT_GT(kParts * kept(), 2 * alone);
  step.sequence_parallel = true;
  EXPECT_EQ(kParts * kept(), alone);
}

// ------------------------------------------------------------------------------------------------------- ladder

// The search for the largest batch asks for any: what it gets can be shared out.
TEST(LongSequences, AnyBatchCanBeSharedOut) {
  for (const auto& [options, seq] : {std::pair("--tp 2 --sequence-parallel", 15), {"--tp 3 --sequence-parallel", 32}}) {
    const Levers levers = plan::parse_levers(options);
    const Work work{nn::parse_transformer("gpt:2-6-48"), 6, std::size_t(seq)};
    for (std::size_t batch = 1; batch <= 12; ++batch) {
      const Work asked = with_batch(work, levers, batch);
      EXPECT_GE(asked.batch, batch);
      EXPECT_EQ(refused(asked, levers), "") << options << ", batch " << batch;
    }
  }
}

TEST(Ladder, IsAsLowAsItSays) {
  EXPECT_NEAR(bert_large_gb(kTextbook), 22.0, 0.05);
  const std::pair<const char*, double> most[] = {
      {kArticle, 9.0}, {kCheckpoints, 9.0}, {kSolvedRow, 9.0}, {kMicro, 6.0},         {kEight, 4.0},
      {kAtOnce, 3.5},  {kProcessor, 3.0},   {kLeast, 2.0},     {kHalfProcessor, 1.5}, {kHostMemory, 1.0}};
  for (const auto& [row, gb] : most) EXPECT_LE(bert_large_gb(row), gb) << row;
  const Work work = bert_large();
  for (const char* row : {kLeanRow, kMicro, kProcessor})
    EXPECT_EQ(words_of(numbers_of(work, levers_of_row(row))), "the same within rounding") << row;
  EXPECT_EQ(words_of(numbers_of(work, levers_of_row(kCheckpoints))), "bit-equal");
}

TEST(Ladder, EachRowsCommandIsRun) {                         // as a plan, by tests/bytes.txt
  const char* const named = std::getenv("OOMLAB_CHAPTERS");  // where a kit has them
  std::ifstream file((named ? std::string(named) + "/16_capstone" : OOMLAB_CHAPTER) + "/tests/bytes.txt");
  const std::string lines{std::istreambuf_iterator<char>(file), {}};
  for (const Row& row : ladder()) {
    const std::string command = command_of("--model bert-large", bert_large(), row.levers);
    EXPECT_NE(lines.find("plan: " + command.substr(command.find("--model")) + "\n"), std::string::npos) << command;
  }
}

TEST(Ladder, ASolvedScheduleFitsAndIsNoMoreThanEveryLayer) {
  Work work{nn::parse_transformer("bert:12-4-64"), 4, 32};
  for (const GradientLife life : {GradientLife::always, GradientLife::optimizer_in_backward, GradientLife::offloaded}) {
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
      Work more = work;  // the workspace is taken off the budget
      more.workspace = (most.peak.total() - least.peak.total()) / 3;
      more.budget += more.workspace;
      EXPECT_EQ(schedule_of(more, solved), plan.schedule) << int(life) << " " << eighths;
    }
    EXPECT_EQ(before, most.price.flops) << int(life);
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
  const unsigned steps = OOMLAB_SANITIZED ? 4 : 20;  // further steps are the same code
  Work work{nn::parse_transformer("bert:2-2-32"), 4, 24};
  work.budget = plan_of(work, levers_of_row(kLeanRow)).peak.total() * 11 / 10;  // so that some is recomputed
  std::uint64_t first = 0, weights = 0;
  const std::vector<double> baseline = losses_of(work, {}, steps, first);
  if (!OOMLAB_SANITIZED) {  // a few steps learn nothing yet
    EXPECT_LT(baseline.back(), baseline.front());
  }
  for (const Row& row : ladder()) {
    const std::vector<double> losses = losses_of(work, row.levers, steps, weights);
    double off = 0;
    for (std::size_t i = 0; i < steps; ++i) off = std::max(off, std::fabs(losses[i] / baseline[i] - 1));
    std::printf("%-26s %.2e off\n", row.name.c_str(), off);
    const Agreement numbers = agreement_of(work, row.levers);
    switch (numbers.kind) {
      case Agreement::Kind::bit_equal:
        EXPECT_EQ(losses, baseline) << row.name;
        EXPECT_EQ(weights, first) << row.name;
        break;
      case Agreement::Kind::within_tolerance:
        EXPECT_LE(off, numbers.tolerance) << row.name;
        EXPECT_NE(weights, first) << row.name;  // a loss may round to the same number, all weights together do not
        break;
      case Agreement::Kind::differs_by_design:
        EXPECT_LE(off, 5e-3) << row.name;
        EXPECT_NE(weights, first) << row.name;
        break;
    }
  }
}

TEST(Numbers, AreAsSaid) {
  Work work{nn::parse_transformer("bert:3-2-32"), 4, 96};  // more than a tile of attention
  work.budget = plan_of(work, {}).peak.total() * 9 / 10;
  constexpr std::size_t kSteps = std::min(4, OOMLAB_ROUNDS);
  std::uint64_t first = 0, weights = 0;
  const std::vector<double> baseline = losses_of(work, {}, kSteps, first);
  const std::pair<Levers, bool> each[] = {
      {{.recompute = 1}, true},
      {{.recompute = 2}, true},
      {{.solved = true}, true},
      {{.gradients = GradientLife::optimizer_in_backward}, true},
      {{.gradients = GradientLife::offloaded}, true},
      {{.micro_batch = 1}, false},
      {{.micro_batch = 4}, true},
      {{.attention = nn::AttentionForm::tiled}, false},
      {{.attention = nn::AttentionForm::fused}, false},
      {{.loss = nn::LossForm::chunked}, false},
      {{.mlp_tiles = 5}, false},
      {{.selective_recompute = true}, false},
  };
  for (const auto& [levers, same] : each) {
    const Agreement numbers = agreement_of(work, levers);
    EXPECT_EQ(numbers.kind == Agreement::Kind::bit_equal, same) << options_of(levers);
    const std::vector<double> losses = losses_of(work, levers, kSteps, weights);
    EXPECT_EQ(weights == first, same) << options_of(levers);
    for (std::size_t i = 0; i < kSteps; ++i) EXPECT_NEAR(losses[i], baseline[i], kRounding * baseline[i]);
  }
}

TEST(Numbers, MicroBatchesInFp16AreTheWholeBatch) {
  const Work work{nn::parse_transformer("gpt:2-2-32"), 6, 24};
  Levers whole{.precision = DType::fp16}, micro;
  whole.optimizer.weights = WeightForm::master;
  micro = whole;
  micro.micro_batch = 2, micro.recompute = 1, micro.selective_recompute = true;
  std::uint64_t weights = 0;
  const std::vector<double> a = losses_of(work, whole, 10, weights), b = losses_of(work, micro, 10, weights);
  for (std::size_t i = 0; i < 10; ++i) EXPECT_NEAR(b[i], a[i], 5e-3 * a[i]) << i;
  EXPECT_LT(b.back(), b.front());
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
    all.push_back({levers, plan.peak.total(), *least_seconds(card, levers, plan)});
  });
  EXPECT_EQ(words.size(), all.size());  // each once
  EXPECT_GT(all.size(), 1000u);
  const std::vector<Point> least = least_of(all);
  ASSERT_FALSE(least.empty());
  for (const Point& point : all) {
    bool covered = false;
    for (const Point& l : least) covered = covered || (l.seconds <= point.seconds && l.bytes <= point.bytes);
    EXPECT_TRUE(covered) << options_of(point.levers);
  }
  for (std::size_t i = 1; i < least.size(); ++i) {
    EXPECT_LT(least[i].bytes, least[i - 1].bytes);
    EXPECT_GT(least[i].seconds, least[i - 1].seconds);
  }
}

// ------------------------------------------------------------------------------------------------------- what cannot
// be

TEST(Streamed, NeedsFourOfTheLargestMatrixHoweverManyLayersThereAre) {
  Work gpt3{nn::parse_transformer("gpt3-175b"), 1, 2048};
  const ByCategory all = streamed_by_matrix(gpt3);
  const std::size_t table = 2 * std::size_t(50257) * 12288, residual = 2 * std::size_t(2048) * 12288;  // bytes
  EXPECT_EQ(all[Category::parameters], 2 * table);
  EXPECT_EQ(all[Category::gradients], 2 * table);
  // Two inputs on their way; of the layer at work its input, the output's gradient, and at least GELU's two tensors.
  EXPECT_GE(all[Category::activations], (2 + 2 + 8) * residual);
  EXPECT_LE(all[Category::activations], (2 + 2 + 16) * residual);
  EXPECT_LT(all.total(), std::size_t(12e9));
  gpt3.spec.layers = 1;
  EXPECT_EQ(streamed_by_matrix(gpt3).total(), all.total());
}

TEST(Claims, NoneThatHoldsSaysCannot) {
  for (const Claim& claim : claims_of()) {
    if (claim.text.find("cannot") == std::string::npos) continue;
    EXPECT_FALSE(claim.range.has(claim.at_size().value())) << claim.text;
  }
  const Work gpt3{nn::parse_transformer("gpt3-175b"), 1, 2048};
  const std::size_t least = least_of_all(gpt3);
  // With weights in host memory what a device must hold is its largest unit, twice, and not all of the model.
  EXPECT_LT(least, 2 * gpt3.spec.parameters() / 10);
  for (const Row& row : ladder())
    if (!row.levers.solved) {
      EXPECT_LE(least, plan_of(gpt3, row.levers).peak.total()) << row.name;
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
