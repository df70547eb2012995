// What fit says of training: the bytes and the price of the command that it recommends, and that nothing that chapter
// 16 runs is cheaper, or gets by with fewer changes, and fits. (commands_test.py runs the commands.)

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <random>
#include <sstream>
#include <tuple>

#include "../../bench/fitting/answer.h"
#include "asked.h"
#include "harness/chapter.h"
#include "plan/search/search.h"

namespace {

using namespace oomlab;
using namespace oomlab::fit;
using nn::AttentionForm, nn::GradientLife, nn::LossForm, nn::UpdateRule, nn::WeightForm;
using plan::changes_between, plan::Levers, plan::Plan, plan::Work;

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  std::size_t from(std::size_t least, std::size_t most) { return least + engine_() % (most - least + 1); }
  template <class T>
  T one_of(std::initializer_list<T> all) {
    return all.begin()[from(0, all.size() - 1)];
  }

 private:
  std::mt19937 engine_;
};

// What a program reads from the words of a command: the levers by chapter 16's own reader.
struct Read {
  Levers levers;
  Work work;
};
Read read_command(const std::string& command) {
  std::istringstream in(command);
  OptionValues values;
  Work work;
  std::string word, value;
  in >> word;
  EXPECT_EQ(word, "bench/run");
  in >> word;
  EXPECT_EQ(word, "16_capstone");
  for (in >> word; in;) {
    EXPECT_TRUE(word.starts_with("--")) << command;
    const std::string option = word.substr(2);
    if (!(in >> value) || value.starts_with("--")) {
      if (option != "plan") values.set(option, true);
      word = value;
      continue;
    }
    if (option == "model")
      work.spec = nn::parse_transformer(value);
    else if (option == "batch")
      work.batch = std::stoul(value);
    else if (option == "seq")
      work.seq = std::stoul(value);
    else if (option == "budget")
      work.budget = std::stoul(value), work.workspace = round_to_granule(default_workspace(work.budget));
    else if (option == "filter")
      EXPECT_EQ(value, "chosen");
    else if (option == "micro-batch" || option == "tp" || option == "pp" || option == "dp" || option == "cp" ||
             option == "zero")
      values.set(option, std::size_t(std::stoul(value)));
    else
      values.set(option, value);
    in >> word;
  }
  return {plan::levers_of(values).value(), work};
}

std::string any_question(Random& random, bool small) {
  std::string words = "--model ";
  if (small)
    words += random.one_of({"gpt:3-2-32", "bert:2-4-64", "llama:3-4-2-64-172", "gpt:5-1-16"});
  else
    words += random.one_of({"bert-base", "bert-large", "gpt2", "llama-3.2-1b", "llama-3.1-8b", "gpt:6-4-256",
                            "llama-3.1-70b", "bert:3-2-24"});
  words += " --batch " + std::to_string(random.one_of({1, 1, 2, 3, 4, 6, 8, 12}));
  words += " --seq " + std::to_string(random.from(1, small ? 48 : 512));
  if (random.from(0, 3) == 0)
    words += random.one_of({" --gpus 2xt4", " --gpus 4xa100-40", " --gpus 6xh100-sxm"});
  else
    words += random.one_of({" --gpu t4", " --gpu rtx3060", " --gpu h100-pcie", " --gpu v100-32"});
  if (small)
    words += " --context 0 --nccl 0 --reserve 0 --memory " + std::to_string(random.from(200, 4000)) + "KB";
  else
    words += random.one_of({"", " --memory 3GB", " --memory 1500MB", " --memory 9GB", " --memory 40GB"});
  return words +
         random.one_of({"", "", " --numbers same", " --numbers any", " --without offload", " --precision fp32"});
}

// So many questions, or, nightly, as many as the environment says.
std::size_t questions() {
  const char* const all = std::getenv("OOMLAB_FIT_QUESTIONS");
  return all ? std::stoul(all) : OOMLAB_QUESTIONS;
}

TEST(Fit, SaysWhatItsCommandsNeedAndCost) {
  const std::size_t count = questions();
  Random random(23);
  std::size_t fitted = 0, ladders = 0, ranks = 0;
  for (std::size_t i = 0; i < count && !HasFailure(); ++i) {
    const std::string words = any_question(random, i % 2 == 0);
    SCOPED_TRACE(words);
    const Question question = asked(words);
    const Answer answer = answer_training(question);
    EXPECT_EQ(answer.fits(), !answer.closest.has_value());
    std::vector<Row> rows = answer.ladder;
    rows.push_back(answer.as_is);
    if (answer.cheapest) rows.push_back(*answer.cheapest);
    if (answer.closest) rows.push_back(*answer.closest);
    for (const Row& row : rows) {
      const auto [levers, work] = read_command(row.command);
      EXPECT_EQ(row.cards, levers.ranks.ranks()) << row.command;
      EXPECT_EQ(work.budget, question.room.budget(row.cards)) << row.command;
      EXPECT_EQ(row.left, work.room()) << row.command;
      const Plan plan = plan_of(work, levers);
      EXPECT_EQ(plan.peak, row.peak) << row.command;
      EXPECT_EQ(least_seconds(*question.card, levers, plan, question.host_gb_per_s), row.seconds) << row.command;
      EXPECT_EQ(plan.price.host_bytes, row.host_bytes) << row.command;
      EXPECT_EQ(row.fits, row.seconds && plan.peak.total() <= row.left) << row.command;
      EXPECT_EQ(row.changes, changes_between(step_as_it_is(search_task(question)), levers)) << row.command;
      if (row.numbers != "as asked for") {
        EXPECT_EQ(row.numbers, words_of(numbers_of(work, levers)));
      }
    }
    if (answer.cheapest) {
      EXPECT_TRUE(answer.cheapest->fits);
    }
    if (!answer.ladder.empty()) {
      EXPECT_TRUE(answer.ladder.back().fits);
    }
    fitted += answer.fits(), ladders += !answer.ladder.empty(), ranks += question.gpus > 1;
  }
  EXPECT_GT(fitted, count / 4);
  EXPECT_GT(ladders, count / 10);
  EXPECT_GT(ranks, count / 10);
  std::printf("%zu fit, %zu of them with changes; %zu of several ranks\n", fitted, ladders, ranks);
}

// Every combination there is of these ranks that share out tokens, by loops of its own. f(levers), whether or not chapter
// 16 refuses it.
template <class F>
void every_combination(const Question& q, std::uint64_t cp, nn::ContextForm context, F f) {
  const plan::SearchTask task = search_task(q);
  for (std::size_t tp = 1; tp * cp <= q.gpus; ++tp)
    for (std::size_t pp = 1; tp * pp * cp <= q.gpus; ++pp)
      for (std::size_t dp = 1; tp * pp * dp * cp <= q.gpus; ++dp)
        for (int zero = 0; zero <= 3; ++zero)
          for (const auto precision : {DType::fp32, DType::fp16, DType::bf16})
            for (const auto rule : {UpdateRule::adamw, UpdateRule::adamw8, UpdateRule::adafactor, UpdateRule::sgd})
              for (const auto weights : {WeightForm::stored, WeightForm::master, WeightForm::stochastic})
                for (const bool wide : {false, true})
                  for (const auto life :
                       {GradientLife::always, GradientLife::optimizer_in_backward, GradientLife::offloaded})
                    for (std::size_t micro = 0; micro < q.batch; ++micro) {
                      Levers l{.precision = precision, .micro_batch = micro, .optimizer = {rule, weights, wide}};
                      l.gradients = life,
                      l.ranks = {.tp = tp, .dp = dp, .pp = pp, .zero = zero, .cp = cp, .context = context};
                      for (const bool streamed : {false, true}) {
                        l.streamed = streamed;
                        l.attention = cp > 1 ? AttentionForm::fused : AttentionForm::textbook;        // a ring needs it
                        if (micro == q.batch / dp || !refused(task.work_of(l), l).empty()) continue;  // that is 0, too
                        for (std::size_t checkpoint = 0; checkpoint <= q.spec.layers + 1; ++checkpoint)
                          for (const auto attention :
                               {AttentionForm::textbook, AttentionForm::tiled, AttentionForm::fused})
                            for (const auto loss : {LossForm::full, LossForm::chunked})
                              for (const bool lean : {false, true})
                                for (const bool on_host : {false, true}) {
                                  l.solved = checkpoint > q.spec.layers, l.recompute = l.solved ? 0 : checkpoint;
                                  if (l.solved && (on_host || l.ranks.ranks() > 1)) continue;  // which fit does not try
                                  l.attention = attention, l.loss = loss, l.selective_recompute = lean;
                                  l.checkpoints_on_host = on_host;
                                  for (const std::uint64_t tiles : {1, 8})
                                    for (const bool shared : {false, true}) {
                                      if (tiles > 1 && task.without.contains("tiles-mlp")) continue;
                                      if (shared && (tp == 1 || task.without.contains("sequence-parallel"))) continue;
                                      l.mlp_tiles = tiles, l.sequence_parallel = shared;
                                      f(l);
                                    }
                                }
                      }
                    }
}

template <class F>
void every_combination(const Question& q, F f) {
  every_combination(q, 1, nn::ContextForm::ring, f);
  if (q.seq < plan::kTokensToShare || search_task(q).without.contains("cp")) return;
  for (std::uint64_t cp = 2; cp <= q.gpus; cp *= 2)
    for (const auto context : {nn::ContextForm::ring, nn::ContextForm::ulysses}) every_combination(q, cp, context, f);
}

bool keeps_numbers(const Question& q, const Levers& l) {
  if (q.numbers == Numbers::any) return true;
  if (q.numbers == Numbers::same) {
    const plan::SearchTask task = search_task(q);
    return numbers_of(task.work_of(l), l).change <= plan::Numbers::Change::rounding;
  }
  return (l.optimizer.rule == UpdateRule::adamw || l.optimizer.rule == UpdateRule::adamw8) &&
         (l.precision == DType::fp32 || l.optimizer.weights != WeightForm::stored);
}

void expect_nothing_better(const Question& q, const std::string& words) {
  SCOPED_TRACE(words);
  const Answer answer = answer_training(q);
  const plan::SearchTask task = search_task(q);
  const Levers base = step_as_it_is(task);
  std::size_t fit = 0, least = SIZE_MAX, all = 0;
  std::tuple<double, std::size_t, std::size_t> cheapest{HUGE_VAL, 0, 0};       // seconds, changes, peak
  std::tuple<std::size_t, double, std::size_t> fewest{SIZE_MAX, HUGE_VAL, 0};  // changes, seconds, peak
  every_combination(q, [&](const Levers& l) {
    const Work& work = task.work_of(l);
    if (!keeps_numbers(q, l) || !refused(work, l).empty()) return;
    ++all;
    const Plan plan = plan_of(work, l);
    const auto seconds = least_seconds(*q.card, l, plan, q.host_gb_per_s);
    if (!seconds) return;
    least = std::min(least, plan.peak.total());
    if (plan.peak.total() > work.room()) return;
    const std::size_t changes = changes_between(base, l);
    ++fit;
    cheapest = std::min(cheapest, {*seconds, changes, plan.peak.total()});
    fewest = std::min(fewest, {changes, *seconds, plan.peak.total()});
  });
  std::printf("%6zu of %6zu fit: %s\n", fit, all, words.c_str());
  EXPECT_EQ(answer.combinations, all);
  ASSERT_EQ(answer.fits(), fit > 0);
  if (fit == 0) {
    EXPECT_EQ(answer.closest->peak.total(), least);
    return;
  }
  const auto seconds_of = [](const Row& row) { return row.seconds.value_or(HUGE_VAL); };
  const Row& found = *answer.cheapest;
  EXPECT_EQ(std::tuple(seconds_of(found), found.changes, found.peak.total()), cheapest);
  EXPECT_EQ(answer.as_is.fits, std::get<0>(fewest) == 0);
  if (answer.as_is.fits) return;
  const Row& last = answer.ladder.back();
  EXPECT_EQ(std::tuple(last.changes, seconds_of(last), last.peak.total()), fewest);
}

TEST(Fit, NothingThatRunsIsCheaperAndFits) {
  // The levers that double what there is to try are left out where there is much.
  const char* spaces[] = {
      "--model gpt:3-2-32 --batch 2 --seq 24 --memory 900KB --gpu rtx3060",
      "--model gpt:3-2-32 --batch 2 --seq 24 --memory 500KB --gpu t4 --numbers any --without tiles-mlp",
      "--model bert:2-2-32 --batch 3 --seq 32 --memory 700KB --gpu rtx3060",
      "--model bert:4-1-16 --batch 2 --seq 64 --memory 400KB --gpu v100-16 --numbers same",
      "--model llama:3-4-2-64-172 --batch 2 --seq 16 --memory 2500KB --gpu h100-sxm",
      "--model llama:3-4-2-64-172 --batch 1 --seq 40 --memory 1500KB --gpu h100-sxm --numbers any",
      "--model gpt:5-1-8 --batch 1 --seq 96 --memory 300KB --gpu rtx4090",
      "--model gpt:2-2-32 --batch 4 --seq 24 --memory 120KB --gpu rtx3060",  // nothing fits
      "--model gpt:4-2-32 --batch 2 --seq 32 --memory 600KB --gpu rtx3060 --numbers same",
      "--model bert:3-3-24 --batch 2 --seq 48 --memory 420KB --gpu l4",
      "--model gpt:2-2-32 --batch 4 --seq 64 --memory 1500KB --gpu a10",
      "--model gpt:2-2-64 --batch 2 --seq 8 --memory 3MB --gpu t4",
      "--model llama:2-2-1-32-64 --batch 3 --seq 64 --memory 500KB --gpu b200 --numbers any --without tiles-mlp",
      "--model bert:2-2-32 --batch 2 --seq 16 --memory 2MB --gpu a100-80 --without tiles-mlp",  // fits as it is
      "--model gpt:4-4-32 --batch 2 --seq 24 --memory 700KB --gpus 2xa100-40",
      "--model gpt:3-2-32 --batch 12 --seq 24 --memory 900KB --gpus 6xt4 --without tiles-mlp,sequence-parallel",
      "--model bert:4-2-32 --batch 2 --seq 32 --memory 450KB --gpus 4xh100-sxm --without tiles-mlp",
      "--model llama:3-4-2-64-172 --batch 4 --seq 16 --memory 900KB --gpus 3xa100-40 --without "
      "tiles-mlp,sequence-parallel",
      "--model gpt:3-2-32 --batch 3 --seq 32 --memory 500KB --gpu rtx3060 --numbers same",
      "--model gpt:6-1-8 --batch 1 --seq 128 --memory 350KB --gpu rtx3060 --numbers any"};
  std::size_t spaces_left = std::min<std::size_t>(std::size(spaces), OOMLAB_ROUNDS * 2);
  for (const char* words : spaces) {
    if (spaces_left-- == 0 || HasFailure()) return;
    const std::string all = std::string(words) + " --context 0 --reserve 0 --nccl 9KB";
    expect_nothing_better(asked(all), all);
  }
}

// Of long sequences ranks share out the tokens, too.
TEST(Fit, NothingIsCheaperWhereTokensAreSharedOut) {
  for (const char* words :
       {"--model llama:2-2-2-32-64 --batch 2 --seq 64 --memory 12MB --gpus 4xa100-40 --numbers same --without "
        "tiles-mlp",
        "--model llama:1-4-2-32-64 --batch 1 --seq 64 --memory 9MB --gpus 4xh100-sxm --numbers same --without "
        "tiles-mlp",
        "--model bert:2-3-24 --batch 1 --seq 64 --memory 11MB --gpus 2xh100-sxm --without sequence-parallel"}) {
    Question q = asked(std::string(words) + " --context 0 --reserve 0 --nccl 9KB");
    q.spec.positions = q.seq = plan::kTokensToShare;
    expect_nothing_better(q, words);
  }
}

// Where a step as it is does not fit; bert is no decoder, and has no adapters.
TEST(Fit, SaysWhatAdaptersNeed) {
  const Answer answer = answer_training(asked("--model llama-3.1-8b --batch 1 --seq 1024 --gpu t4"));
  ASSERT_EQ(answer.adapters.size(), 2u);
  const Row& lora = answer.adapters[0];
  const Row& qlora = answer.adapters[1];
  EXPECT_FALSE(lora.fits);
  EXPECT_TRUE(qlora.fits);
  // Weights of two bytes and of half a byte, embedding and head of two, and what is trained.
  EXPECT_GT(lora.peak.total(), 2 * 8'030'261'248u);
  EXPECT_LT(qlora.peak.total(), lora.peak.total() / 2);
  EXPECT_NE(qlora.command.find("--precision fp16"), std::string::npos) << qlora.command;  // a T4 has no BF16
  EXPECT_TRUE(answer_training(asked("--model bytes-llama --batch 1 --seq 64 --gpu t4")).adapters.empty());
  EXPECT_TRUE(answer_training(asked("--model bert-large --batch 64 --seq 512 --memory 4GB")).adapters.empty());
}

TEST(Fit, TheMostThatFitsIsTheMost) {
  std::size_t shared = 0;  // ranks share out rows, which not every sequence lets them
  for (const char* words :
       {"--model bert-large --batch 4 --seq 512 --gpu rtx3060", "--model gpt2 --gpus 4xa100-40 --batch 8",
        "--model llama-3.2-1b --batch 1 --seq 512 --gpu rtx3060 --without micro-batch",
        "--model llama-3.1-70b --gpus 8xa100-80gb --batch 16 --seq 2048",
        "--model llama-3.1-8b --gpus 8xa100-80gb --batch 1 --seq 131072"}) {
    SCOPED_TRACE(words);
    const Question q = asked(words);
    const Answer answer = answer_training(q);
    ASSERT_TRUE(answer.most);
    Levers levers = read_command(answer.cheapest->command).levers;
    shared += levers.sequence_parallel || levers.ranks.cp > 1;
    const auto fits = [&](const Work& work, const Levers& l) {
      return refused(work, l).empty() && plan_of(work, l).peak.total() <= work.room();
    };
    Work work = search_task(q).work_of(levers);
    work.seq = answer.most->seq;
    EXPECT_TRUE(fits(work, levers));
    for (std::uint64_t more = 1; more <= levers.ranks.tp * 2 * levers.ranks.cp; ++more) {
      ++work.seq;
      EXPECT_FALSE(fits(work, levers)) << work.seq;
    }
    work.seq = q.seq;
    const std::size_t dp = levers.ranks.dp;
    const std::size_t micros = levers.micro_batch ? micro_batches_of(work, levers) : 1;
    const auto whole = [&](std::size_t samples) {
      work.batch = samples * micros;
      if (levers.micro_batch) levers.micro_batch = samples / dp;
      return fits(work, levers);
    };
    EXPECT_TRUE(whole(answer.most->batch_at_once));
    EXPECT_FALSE(whole(answer.most->batch_at_once + dp));
  }
  EXPECT_GT(shared, 0u);
}

// The longest sequence of any combination: the next one does not fit, and the levers for long sequences are what it takes.
TEST(Fit, TheLongestSequenceOfAnyCombination) {
  const std::string words =
      "--engine oomlab --model llama:2-4-2-64-512 --batch 1 --gpu rtx4090 --memory 2MB --context 0 --reserve 0 "
      "--largest seq";
  const Answer answer = answer_training(asked(words + " --seq 64"));
  ASSERT_TRUE(answer.longest);
  EXPECT_TRUE(answer.longest->fits);
  EXPECT_GE(answer.longest_seq, answer.most->seq);
  EXPECT_NE(answer.longest->options.find("--tiles-mlp"), std::string::npos) << answer.longest->options;
  const auto fits = [&](std::uint64_t seq) {
    return answer_training(asked(words + " --seq " + std::to_string(seq))).fits();
  };
  EXPECT_TRUE(fits(answer.longest_seq));
  EXPECT_FALSE(fits(answer.longest_seq + 1));
  EXPECT_FALSE(answer_training(asked("--model bytes-llama --batch 1 --seq 64 --gpu t4 --largest seq")).longest);
}

// Of deep models segments of several layers hold fewer inputs than one layer at a time: a bound that knows only those
// would drop combinations that fit.
TEST(Fit, ABoundIsNoMoreThanAnyLengthOfSegmentsNeeds) {
  for (const char* ranks : {"", " --gpus 2xt4"})
    for (const bool lean : {false, true})
      for (const bool on_host : {false, true}) {
        const Question q = asked(std::string("--model gpt:96-1-8 --batch 2 --seq 32") + (*ranks ? ranks : " --gpu t4"));
        const plan::SearchTask task = search_task(q);
        Levers levers = plan::step_as_it_is(task);
        levers.selective_recompute = lean;
        levers.checkpoints_on_host = on_host;
        levers.recompute = 1;
        const Work& work = task.work_of(levers);
        const std::uint64_t micro = plan::micro_batch_of(work, levers);
        const std::uint64_t bound = plan::Bounds(task).of(work, levers, plan::Checkpoints::segments, {&micro, 1}).bytes;
        std::uint64_t least = UINT64_MAX, of_single_layers = 0;
        for (std::uint64_t n = 1; n <= work.spec.layers; ++n) {
          levers.recompute = n;
          const std::uint64_t peak = plan_of(work, levers).peak.total();
          least = std::min(least, peak);
          if (n == 1) of_single_layers = peak;
        }
        EXPECT_LE(bound, least) << plan::options_of(levers);
        if (!on_host) {
          EXPECT_LT(least, of_single_layers) << plan::options_of(levers);
        }
      }
}

// How long an answer takes is how many combinations had to be planned: few, however many there are.
// (Of tens of millions, with 1,024 cards: tests/hostile/fit_test.py.)
TEST(Fit, PlansFewOfMillionsOfCombinations) {
  struct Asked {
    const char* words;
    std::size_t combinations, planned;  // at least, at most
  };
  const Asked all[] = {{"--model llama-3.1-8b --batch 8 --seq 2048 --memory 80GB", 10'000, 500},
                       {"--model llama-3.1-8b --batch 1 --seq 2048 --memory 12GB", 1'000, 500},
                       {"--model llama-3.1-70b --batch 64 --seq 4096 --gpus 64xh100-sxm", 100'000, 2'000},
                       {"--model llama-3.1-70b --batch 64 --seq 4096 --gpus 8xh100-sxm", 10'000, 2'000},
                       {"--model llama-3.1-70b --batch 720720 --gpu h100-sxm", 2'000'000, 5'000},
                       {"--model llama-3.1-8b --batch 720720 --seq 128 --gpu h100-sxm", 900'000, 1'000}};
  for (const auto& [words, combinations, planned] : all) {
    if (OOMLAB_QUESTIONS < 60 && combinations > 100'000) continue;  // under a sanitizer
    const Answer answer = answer_training(asked(words));
    std::printf("%9zu combinations, %4zu planned: %s\n", answer.combinations, answer.planned, words);
    EXPECT_GE(answer.combinations, combinations) << words;
    EXPECT_LE(answer.planned, planned) << words;
    EXPECT_GT(answer.planned, 0u) << words;
  }
}

TEST(Fit, SaysSomethingAfterTwoSecondsAndThenLessAndLess) {
  std::vector<double> said;
  double now = 100;
  SearchProgress progress(
      [&](const std::string& line) {
        EXPECT_NE(line.find("12345"), std::string::npos) << line;
        said.push_back(now - 100);
      },
      [&] { return now; });
  for (int second = 0; second <= 40; ++second, ++now)
    for (int call = 0; call < 64; ++call) progress.at(12345, 678);
  EXPECT_EQ(said, (std::vector<double>{2, 4, 8, 16, 32}));
}

}  // namespace
