// Same bits whatever is computed again; bytes and operations as predicted; the solver against brute force.

#include "checkpointing.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "cuda/check.h"
#include "nn/optimizer/mixed_precision.h"
#include "plan/flops.h"

namespace oomlab::checkpointing {
namespace {

nn::TransformerSpec tiny(const char* name, std::size_t layers = 0) {
  nn::TransformerSpec spec = nn::parse_transformer(name);
  spec.vocabulary = 31;
  spec.positions = 32;
  if (layers) spec.layers = layers;
  return spec;
}

nn::TokenBatch batch_of(Context& context, std::size_t sequences, std::size_t seq, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int> tokens(sequences * seq), labels(sequences * seq);
  for (int& t : tokens) t = int(random() % 31);
  for (int& l : labels) l = int(random() % 31);
  return nn::make_token_batch(context, tokens, labels, sequences, seq);
}

Schedule random_schedule(std::mt19937& random, std::size_t layers) {
  Schedule schedule;
  while (layers > 0) {
    Segment s{1 + random() % layers, random() % 2 == 0, {}};
    if (!s.recompute) s.keep = {true, random() % 2 == 0, random() % 2 == 0, random() % 2 == 0};
    schedule.push_back(s);
    layers -= s.layers;
  }
  return schedule;
}

std::vector<Schedule> schedules(std::size_t layers) {
  std::vector<Schedule> all = {keep_everything(layers), keep_selected(layers, {.norms = false, .gelu = false}),
                               keep_selected(layers, {.probabilities = false})};
  for (std::size_t length = 1; length <= layers; ++length) all.push_back(recompute_segments(layers, length));
  std::mt19937 random(1);
  for (int i = 0; i < OOMLAB_ROUNDS / 2; ++i) all.push_back(random_schedule(random, layers));
  return all;
}

template <class T>
struct Run {
  std::vector<float> losses;
  std::vector<std::vector<T>> gradients;
  std::uint64_t weights = 0;
};

template <class T>
Run<T> train(const nn::TransformerSpec& spec, const Schedule& schedule, bool plain) {
  CudaResource resource;
  Ledger ledger;
  Context context(resource, ledger);
  nn::Transformer<T> model(context, spec, 1);
  nn::ScaledOptimizer<T> optimizer(context, model.parameters(), nn::LossScaling::dynamic_from(64, 4),
                                   {.adamw = {.lr = 1e-2f}});
  Run<T> run;
  for (unsigned step = 0; step < OOMLAB_ROUNDS; ++step) {
    if (plain)
      model.forward_backward(context, batch_of(context, 2, 9, step), {}, optimizer.scale_on_device());
    else
      checkpointed_step(context, model, batch_of(context, 2, 9, step), schedule, optimizer.scale_on_device());
    run.losses.push_back(model.loss(context));
    optimizer.step(context);
  }
  context.synchronize();  // for which cudaMemcpy() does not wait
  for (const auto& p : model.parameters()) {
    run.gradients.emplace_back(p.count);
    CUDA_CHECK(cudaMemcpy(run.gradients.back().data(), p.gradient, p.count * sizeof(T), cudaMemcpyDeviceToHost));
  }
  run.weights = model.fingerprint(context);
  return run;
}

template <class T>
class Checkpointing : public testing::Test {};
using Types = testing::Types<float, __half, __nv_bfloat16>;
TYPED_TEST_SUITE(Checkpointing, Types);

TYPED_TEST(Checkpointing, GradientsAndLossesHaveTheSameBits) {
  for (const char* name : {"gpt:4-2-12", "bert:4-2-12"}) {
    const nn::TransformerSpec spec = tiny(name);
    const auto expected = train<TypeParam>(spec, {}, true);
    EXPECT_NE(expected.losses.front(), expected.losses.back());
    for (const Schedule& schedule : schedules(spec.layers)) {
      const auto found = train<TypeParam>(spec, schedule, false);
      EXPECT_EQ(found.losses, expected.losses) << name << ": " << describe(schedule);
      EXPECT_EQ(found.weights, expected.weights);
      for (std::size_t i = 0; i < found.gradients.size(); ++i)
        EXPECT_EQ(std::memcmp(found.gradients[i].data(), expected.gradients[i].data(),
                              found.gradients[i].size() * sizeof(TypeParam)),
                  0);
    }
  }
}

TYPED_TEST(Checkpointing, BytesAndOperationsAreAsPredicted) {
  std::mt19937 random(2);
  for (const char* name : {"gpt:5-2-12", "bert:5-2-12", "gpt:6-4-4", "bert:1-3-15"}) {
    const nn::TransformerSpec spec = tiny(name);
    for (const Schedule& schedule : schedules(spec.layers)) {
      const std::size_t sequences = 1 + random() % 5, seq = 1 + random() % 32;
      CudaResource resource;
      Ledger ledger;
      Context context(resource, ledger);
      nn::Transformer<TypeParam> model(context, spec, 1);
      const ByCategory resident = ledger.live_by_category();
      ledger.reset_peak();
      const std::uint64_t before = context.flops();
      checkpointed_step(context, model, batch_of(context, sequences, seq, 1), schedule);
      EXPECT_EQ(ledger.peak_by_category(),
                predict_schedule(spec, sizeof(TypeParam), sequences, seq, schedule, resident))
          << name << " " << sequences << " x " << seq << ": " << describe(schedule);
      EXPECT_EQ(context.flops() - before, nn::step_flops(spec, sequences, seq, schedule)) << describe(schedule);
      EXPECT_EQ(ledger.live_by_category(), resident);
    }
  }
}

// Every schedule that can be put together from the solver's choices.
void all_schedules(std::size_t layers, Schedule& begun, std::vector<Schedule>& all) {
  if (layers == 0) all.push_back(begun);
  for (const Segment& choice : segment_choices(layers)) {
    if (choice.layers > layers) continue;
    begun.push_back(choice);
    all_schedules(layers - choice.layers, begun, all);
    begun.pop_back();
  }
}

TEST(Solver, IsAsGoodAsBruteForceAtEveryBudget) {
  for (const char* name : {"gpt:1-2-12", "bert:1-2-12", "gpt:1-8-8"})
    for (std::size_t layers = 1; layers <= 5; ++layers) {
      const nn::TransformerSpec spec = tiny(name, layers);
      const ByCategory resident{};
      std::vector<Schedule> all;
      Schedule begun;
      all_schedules(layers, begun, all);
      std::vector<std::pair<std::size_t, double>> found;  // peak, operations
      for (const Schedule& s : all)
        found.emplace_back(predict_schedule(spec, 4, 3, 30, s, resident).total(), recompute_cost(spec, 3, 30, s));
      std::sort(found.begin(), found.end());
      double best = INFINITY;
      for (std::size_t i = 0; i < found.size(); ++i) {
        best = std::min(best, found[i].second);
        if (i + 1 < found.size() && found[i + 1].first == found[i].first) continue;
        const std::size_t budget = found[i].first;
        const auto solved = solve_schedule(spec, 4, 3, 30, budget, resident);
        ASSERT_TRUE(solved) << name << " " << layers << " " << budget;
        ASSERT_LE(predict_schedule(spec, 4, 3, 30, *solved, resident).total(), budget);
        ASSERT_LE(recompute_cost(spec, 3, 30, *solved), best * (1 + 1e-12)) << describe(*solved);
      }
      EXPECT_FALSE(solve_schedule(spec, 4, 3, 30, found.front().first - 1, resident));
    }
}

TEST(Solver, MoreBudgetNeverCostsMoreOperations) {
  for (const char* name : {"bert-large", "gpt2"}) {
    const nn::TransformerSpec spec = nn::parse_transformer(name);
    const ByCategory resident{};
    const std::size_t most = predict_schedule(spec, 2, 8, 512, keep_everything(spec.layers), resident).total();
    double last = INFINITY;
    for (std::size_t percent = 5; percent <= 100; ++percent) {
      const auto solved = solve_schedule(spec, 2, 8, 512, most / 100 * percent + 100, resident);
      if (!solved) {
        EXPECT_EQ(last, INFINITY);
        continue;
      }
      EXPECT_LE(recompute_cost(spec, 8, 512, *solved), last);
      last = recompute_cost(spec, 8, 512, *solved);
    }
    EXPECT_EQ(last, 0);
  }
}

// Whether the solver may choose it, by the bytes of its segments.
bool fits_within(const nn::TransformerSpec& spec, const nn::StepLevers& levers, const Schedule& schedule,
                 std::size_t room) {
  std::size_t held = nn::embedding_bytes(spec, levers.element_bytes, levers.sequences, levers.seq);
  for (const Segment& segment : schedule) {
    const nn::SegmentBytes bytes = nn::segment_bytes(spec, levers, segment);
    if (held + std::max(bytes.forward_peak, bytes.backward_peak) > room) return false;
    held += bytes.held;
  }
  return held + nn::head_peak_bytes(spec, levers) <= room;
}

// Two neighbours that change places leave the operations and what is held at the end as they are. So, wherever both
// orders fit, the one is chosen whose later segment comes first among the choices: by no library's order of equals.
TEST(Solver, OfEqualSchedulesChoosesTheSameWithEveryLibrary) {
  std::size_t both_fit = 0;
  for (const char* name : {"gpt:12-4-64", "bert:12-4-64", "llama:16-4-2-64-172"})
    for (const nn::StepForm& form : {nn::StepForm{}, nn::StepForm::min_memory()}) {
      const nn::TransformerSpec spec = nn::parse_transformer(name);
      const nn::StepLevers levers{.element_bytes = 4, .sequences = 3, .seq = 64, .form = form};
      const std::vector<Segment> choices = segment_choices(std::min(spec.layers, 2 * root_of(spec.layers) + 2), form);
      const auto number = [&](const Segment& s) {
        return std::find(choices.begin(), choices.end(), s) - choices.begin();
      };
      const std::size_t most = predict_schedule(spec, 4, 3, 64, keep_everything(spec.layers), {}, form).total();
      const std::size_t tokens = nn::token_batch_bytes(3, 64);
      for (std::size_t budget = most / 12; budget < most; budget += most / 12) {
        const auto solved = solve_schedule(spec, 4, 3, 64, budget, {}, form);
        if (!solved) continue;
        for (std::size_t i = 0; i + 1 < solved->size(); ++i) {
          Schedule other = *solved;
          std::swap(other[i], other[i + 1]);
          if (!fits_within(spec, levers, other, budget - tokens)) continue;
          both_fit += other[i] != other[i + 1];
          EXPECT_LE(number((*solved)[i + 1]), number((*solved)[i]))
              << name << " under " << budget << ": " << describe(*solved) << ", segments " << i << " and " << i + 1;
        }
      }
    }
  EXPECT_GT(both_fit, 20u);
}

TEST(Schedules, InWords) {
  EXPECT_EQ(describe(keep_everything(3)), "3 kept");
  EXPECT_EQ(describe(recompute_segments(7, 3)), "1 recomputed, 6 recomputed in segments of 3");
  EXPECT_EQ(describe({{2, false, {.norms = false, .gelu = false}}, {1, true, {}}, {1, false, {}}}),
            "1 kept, 2 without norms+GELU, 1 recomputed");
}

}  // namespace
}  // namespace oomlab::checkpointing
