// Whatever the grid, the losses and gradients are those of one device.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <thread>

#include "layout.h"
#include "train/passes.h"
#include "train/trainer.h"

namespace oomlab::multi_gpu {

using namespace train;

namespace {

struct Outcome {
  std::vector<double> losses;
  // Of the first step: by tensor, and by its element that they begin with, the numbers that this rank has.
  std::map<std::string, std::map<std::size_t, std::vector<float>>> gradients;
  std::uint64_t bytes_sent = 0;  // in the first step
};

Job job_of(const Layout& layout, std::size_t micro_batch, const char* model = "gpt:3-24-24", bool checkpoint = false,
           bool shares_rows = false, std::size_t seq = 3, nn::AttentionForm attention = nn::AttentionForm::textbook,
           bool unequal = false) {
  const nn::TransformerSpec spec = nn::parse_transformer(model);
  const auto text = std::make_shared<data::TextSampler>(
      data::course_text(),
      data::TextSampler::Settings{.seq = seq,
                                  .task = spec.bert() ? data::TextTask::masked_token : data::TextTask::next_token,
                                  .mask_token = int(spec.vocabulary) - 1,
                                  .ragged = true,
                                  .seed = 5});
  Job job{spec, text, layout, 24, micro_batch, seq, {.attention = attention, .keep = {.layer = !checkpoint}}};
  job.sequence_parallel = shares_rows;
  if (unequal)
    for (std::size_t sample = 0; sample < job.batch; ++sample) job.lengths.push_back(1 + sample * 5 % seq);
  return job;
}

// Every rank of the grid, a thread and a device each, two steps.
std::vector<Outcome> run(const Job& job) {
  std::vector<Outcome> all(job.layout.ranks());
  const Groups::Ids ids(job.layout);
  std::atomic<bool> failed{false};
  std::vector<int> devices(all.size());
  std::iota(devices.begin(), devices.end(), 0);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    threads.emplace_back([&, rank] {
      try {
        share_processor(64);  // one thread each: a product's last bits depend on how many share it
        CUDA_CHECK(cudaSetDevice(int(rank)));
        Ledger ledger;
        AsyncResource memory;
        memory.open_to_peers(devices);
        Context context(memory, ledger);
        Trainer<float> training(context, job, ids, int(rank), failed);
        const auto shapes = nn::tensors_of(job.spec, training.model().slice());
        for (int step = 0; step < 2; ++step) {
          training.step();
          if (step == 0) all[rank].bytes_sent = training.bytes_sent();
          all[rank].losses.push_back(training.figure());
          for (std::size_t i = 0; step == 0 && i < shapes.size(); ++i) {
            const auto mine = training.units().gradient(i, shapes[i].count());
            if (mine.count == 0) continue;
            std::vector<float>& v = all[rank].gradients[shapes[i].name][mine.first];
            v.resize(mine.count);
            CUDA_CHECK(cudaMemcpyAsync(v.data(), mine.data, v.size() * sizeof(float), cudaMemcpyDeviceToHost,
                                       context.stream()));
            context.synchronize();
          }
        }
        EXPECT_EQ(sent_a_step<float>(job, coordinates_of(job.layout, int(rank))), training.bytes_sent() / 2)
            << "rank " << rank;
        if (const auto flops = flops_a_step(job, coordinates_of(job.layout, int(rank)))) {
          EXPECT_EQ(*flops, double(context.flops()) / 2) << "rank " << rank;
        }
        EXPECT_EQ(predict_rank<float>(job, coordinates_of(job.layout, int(rank))),
                  without_workspace(ledger.peak_by_category()))
            << "rank " << rank;
      } catch (const std::exception& error) {
        failed = true;
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return all;
}

double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i)
    difference += (double(a[i]) - b[i]) * (double(a[i]) - b[i]), norm += double(b[i]) * b[i];
  return std::sqrt(difference / std::max(norm, 1e-30));
}

// The whole gradients of a rank's tensors: its own, or with ZeRO put together from its replicas' pieces, which must be
// all there and not overlap.
std::map<std::string, std::vector<float>> gradients_of(const std::vector<Outcome>& ranks, const Layout& layout,
                                                       std::size_t rank) {
  std::map<std::string, std::vector<float>> whole;
  const RankCoordinates place = coordinates_of(layout, int(rank));
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const RankCoordinates other = coordinates_of(layout, int(r));
    if (layout.zero == 0 ? r != rank : other.part != place.part || other.stage != place.stage) continue;
    for (const auto& [name, pieces] : ranks[r].gradients)
      for (const auto& [first, numbers] : pieces) {
        EXPECT_EQ(whole[name].size(), first) << name;  // ranks in order have their pieces in order
        whole[name].insert(whole[name].end(), numbers.begin(), numbers.end());
      }
  }
  return whole;
}

struct Case {
  Layout layout;
  std::size_t micro_batch;
  bool same_order;  // of all sums but the token table's
  const char* model = "gpt:3-24-24";
  bool checkpoint = false;
  bool shares_rows = false;  // among parts: those of norms and residuals
  std::size_t seq = 3;
  nn::AttentionForm attention = nn::AttentionForm::textbook;
  bool unequal = false;  // sequences have lengths of their own, and are padded
};

// For the test's name, which would be the bytes otherwise.
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.model << " tp " << c.layout.tp << " pp " << c.layout.pp << " dp " << c.layout.dp << " ZeRO-"
       << c.layout.zero << " micro-batch " << c.micro_batch << (c.checkpoint ? " checkpoint" : "")
       << (c.shares_rows ? " rows shared out" : "");
  if (c.layout.cp > 1) *out << " cp " << c.layout.cp << " " << name_of(c.layout.context) << " " << name_of(c.attention);
  if (c.unequal) *out << " unequal lengths";
}

class Grid : public testing::TestWithParam<Case> {};

TEST_P(Grid, IsOneDevice) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) (void)cudaGetLastError();
  const Case& c = GetParam();
  if (std::size_t(devices) < c.layout.ranks()) GTEST_SKIP() << "only " << devices << " devices";
  const Outcome one = run(job_of({}, c.same_order ? c.micro_batch : 24, c.model, false, false, c.seq,
                                 nn::AttentionForm::textbook, c.unequal))[0];
  const auto grid =
      run(job_of(c.layout, c.micro_batch, c.model, c.checkpoint, c.shares_rows, c.seq, c.attention, c.unequal));
  for (std::size_t rank = 0; rank < grid.size(); ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    ASSERT_EQ(2u, grid[rank].losses.size());
    for (int step = 0; step < 2; ++step)
      EXPECT_NEAR(one.losses[step], grid[rank].losses[step], 1e-6 * one.losses[step]) << step;
    if (c.same_order) {
      EXPECT_EQ(one.losses[0], grid[rank].losses[0]);
    }
    if (c.layout.tp > 1) continue;  // parts of tensors: tests/nn/slices_test.cpp
    const auto expected_of = gradients_of({one}, {}, 0), gradients = gradients_of(grid, c.layout, rank);
    EXPECT_EQ(c.layout.pp == 1, gradients.size() == expected_of.size());
    std::vector<float> all, expected;
    for (const auto& [name, gradient] : gradients) {
      SCOPED_TRACE(name);
      ASSERT_EQ(expected_of.at(name).size(), gradient.size());
      if (c.same_order && name != "token embedding") {
        EXPECT_EQ(expected_of.at(name), gradient);
      } else {
        EXPECT_LE(relative_difference(gradient, expected_of.at(name)), 5e-6);
      }
      all.insert(all.end(), gradient.begin(), gradient.end());
      expected.insert(expected.end(), expected_of.at(name).begin(), expected_of.at(name).end());
    }
    EXPECT_LE(relative_difference(all, expected), 1e-6);  // a few numbers that nearly cancel out have fewer good digits
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, Grid,
    testing::Values(Case{{.dp = 2}, 12, false}, Case{{.dp = 3}, 8, false}, Case{{.dp = 4}, 3, false},
                    Case{{.dp = 8}, 3, false}, Case{{.dp = 3, .zero = 1}, 4, false},
                    Case{{.dp = 8, .zero = 1}, 1, false}, Case{{.dp = 2, .zero = 2}, 12, false},
                    Case{{.dp = 8, .zero = 2}, 3, false}, Case{{.dp = 4, .zero = 2}, 2, false},
                    Case{{.dp = 3, .zero = 3}, 2, false}, Case{{.dp = 3, .zero = 3}, 8, false},
                    Case{{.dp = 8, .zero = 3}, 3, false, "bert:2-3-21"}, Case{{.tp = 2}, 24, false},
                    Case{{.tp = 3}, 24, false}, Case{{.tp = 4}, 8, false, "bert:3-4-20"}, Case{{.tp = 8}, 24, false},
                    Case{{.pp = 2}, 4, true}, Case{{.pp = 3}, 2, true},
                    Case{{.pp = 4, .one_forward_one_backward = false}, 3, true, "gpt:5-2-12"},
                    Case{{.pp = 4}, 24, true, "bert:4-4-20"}, Case{{.pp = 8}, 2, true, "gpt:8-2-12"},
                    Case{{.tp = 2, .dp = 2, .zero = 3}, 6, false}, Case{{.tp = 2, .pp = 2}, 8, false},
                    Case{{.tp = 2, .dp = 2, .pp = 2, .zero = 1}, 3, false},
                    Case{{.tp = 2, .dp = 2, .pp = 2, .zero = 1}, 2, false, "bert:3-6-24"},
                    Case{{.tp = 2, .dp = 2, .zero = 3}, 4, false, "bert:3-6-24", true},
                    Case{{.tp = 2, .pp = 2}, 8, false, "gpt:3-6-24", true},
                    Case{{.tp = 8}, 24, false, "gpt:3-24-24", false, true},
                    Case{{.tp = 2, .pp = 2}, 8, false, "gpt:3-6-24", true, true},
                    Case{{.tp = 2, .dp = 2, .pp = 2, .zero = 1}, 2, false, "bert:3-6-24", false, true},
                    Case{{.tp = 2, .dp = 2, .zero = 3}, 4, false, "bert:3-6-24", true, true},
                    Case{{.tp = 4, .dp = 2, .zero = 2}, 4, false, "llama:3-8-4-32-48", false, true}));

// Ranks that share out the tokens of every sequence. One device's attention is the textbook's.
Case tokens_shared(nn::ContextForm form, Layout layout, std::size_t micro_batch, const char* model,
                   nn::AttentionForm attention = nn::AttentionForm::fused, bool checkpoint = false,
                   bool shares_rows = false) {
  layout.context = form;
  return {layout, micro_batch, false, model, checkpoint, shares_rows, 8, attention};
}
Case unequal(Case of) {
  of.unequal = true;
  return of;
}
constexpr auto kRing = nn::ContextForm::ring;
constexpr auto kUlysses = nn::ContextForm::ulysses;
INSTANTIATE_TEST_SUITE_P(
    Tokens, Grid,
    testing::Values(
        tokens_shared(kRing, {.cp = 2}, 24, "gpt:2-3-12"), tokens_shared(kRing, {.cp = 4}, 12, "llama:2-8-4-32-48"),
        tokens_shared(kRing, {.cp = 4}, 12, "bert:2-3-12", nn::AttentionForm::fused, true),
        tokens_shared(kRing, {.dp = 2, .zero = 3, .cp = 4}, 6, "llama:2-8-2-32-48", nn::AttentionForm::fused, true),
        tokens_shared(kRing, {.tp = 2, .pp = 2, .cp = 2}, 8, "gpt:3-4-12", nn::AttentionForm::fused, false, true),
        tokens_shared(kRing, {.dp = 2, .pp = 2, .zero = 2, .cp = 2}, 4, "bert:3-4-12"),
        tokens_shared(kUlysses, {.cp = 2}, 24, "gpt:2-4-12", nn::AttentionForm::textbook),
        tokens_shared(kUlysses, {.cp = 4}, 12, "llama:2-8-4-32-48"),
        tokens_shared(kUlysses, {.cp = 4}, 12, "bert:2-4-12", nn::AttentionForm::tiled, true),
        tokens_shared(kUlysses, {.dp = 2, .zero = 3, .cp = 4}, 6, "llama:2-8-4-32-48", nn::AttentionForm::tiled, true),
        tokens_shared(kUlysses, {.tp = 2, .pp = 2, .cp = 2}, 8, "gpt:3-4-12", nn::AttentionForm::fused, true, true),
        tokens_shared(kUlysses, {.dp = 2, .pp = 2, .zero = 2, .cp = 2}, 4, "bert:3-4-12", nn::AttentionForm::textbook),
        unequal(tokens_shared(kRing, {.cp = 4}, 12, "llama:2-8-4-32-48", nn::AttentionForm::fused, true)),
        unequal(tokens_shared(kRing, {.dp = 2, .zero = 2, .cp = 2}, 6, "bert:3-4-12")),
        unequal(tokens_shared(kUlysses, {.cp = 4}, 12, "llama:2-8-4-32-48", nn::AttentionForm::tiled)),
        unequal(tokens_shared(kUlysses, {.cp = 2}, 24, "gpt:2-4-12", nn::AttentionForm::fused, true))));

// A ring's reduce-scatter sends (N − 1) / N of the bytes, and so does its all-gather; an all-reduce is one of each.
// ZeRO-3 gathers a unit for the forward pass and for the backward pass; the head, where they meet, once.
// A rank that fails between two steps: the others end, and each of them aborts its communicators together.
// Of every stage there is one among those that stand for all: the same slice, and as much in flight or more.
TEST(Stages, AFewStandForAll) {
  nn::TransformerSpec spec = nn::parse_transformer("gpt:1-2-12");
  for (spec.layers = 1; spec.layers <= 13; ++spec.layers)
    for (std::size_t pp = 1; pp <= spec.layers; ++pp)
      for (const bool one_forward_one_backward : {false, true}) {
        const Layout layout{.pp = pp, .one_forward_one_backward = one_forward_one_backward};
        const std::vector<std::size_t> kinds = kinds_of_stage(spec, layout);
        EXPECT_LE(kinds.size(), 4u);
        EXPECT_TRUE(std::is_sorted(kinds.begin(), kinds.end()));
        for (std::size_t stage = 0; stage < pp; ++stage) {
          const nn::Slice slice = slice_of(spec, layout, {0, 0, stage});
          EXPECT_TRUE(std::any_of(kinds.begin(), kinds.end(),
                                  [&](std::size_t kind) {
                                    const nn::Slice of_kind = slice_of(spec, layout, {0, 0, kind});
                                    return kind <= stage && of_kind.layers == slice.layers &&
                                           of_kind.embeds() == slice.embeds() &&
                                           of_kind.has_head(spec) == slice.has_head(spec) &&
                                           most_in_flight(layout, kind, 5) >= most_in_flight(layout, stage, 5);
                                  }))
              << "stage " << stage << " of " << pp << ", " << spec.layers << " layers";
        }
      }
}

void expect_others_end(const Job& job) {
  constexpr std::size_t kFailing = 1;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) (void)cudaGetLastError();
  if (std::size_t(devices) < job.layout.ranks()) GTEST_SKIP() << "only " << devices << " devices";
  const Groups::Ids ids(job.layout);
  std::atomic<bool> failed{false};
  std::atomic<int> followed{0};
  std::vector<std::thread> threads;
  testing::internal::CaptureStderr();  // what destructors have to say
  for (std::size_t rank = 0; rank < job.layout.ranks(); ++rank)
    threads.emplace_back([&, rank] {
      try {
        CUDA_CHECK(cudaSetDevice(int(rank)));
        Ledger ledger;
        CudaResource memory;
        Context context(memory, ledger);
        Trainer<float> training(context, job, ids, int(rank), failed);
        training.step();
        (void)training.figure();
        if (rank == kFailing) throw std::runtime_error("a cause of its own");
        training.step();
        (void)training.figure();
      } catch (const RemoteNcclError&) {
        ++followed;
      } catch (const std::runtime_error&) {
        failed = true;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ("", testing::internal::GetCapturedStderr());
  EXPECT_EQ(3, followed);
  (void)cudaGetLastError();
}

TEST(AFailingRank, EndsTheOthersOfItsGrid) {
  expect_others_end(job_of({.tp = 2, .pp = 2}, 12));
  expect_others_end(job_of({.cp = 4}, 12, "gpt:2-3-12", false, false, 8, nn::AttentionForm::fused));
  expect_others_end(job_of({.cp = 4, .context = nn::ContextForm::ulysses}, 12, "gpt:2-4-12", false, false, 8));
}

TEST(Traffic, IsThatOfRings) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) (void)cudaGetLastError();
  constexpr std::size_t n = 4;
  if (std::size_t(devices) < n) GTEST_SKIP() << "only " << devices << " devices";
  const auto ring = [](std::size_t elements) { return elements * sizeof(float) / n * (n - 1); };
  for (const int zero : {0, 1, 2, 3}) {
    const Job job = job_of({.dp = n, .zero = zero}, 24 / n);
    std::size_t expected = 0;
    for (const nn::UnitShape& unit : nn::units_of(job.spec, {}, n)) {
      const std::size_t times = zero < 3 ? 2 : unit.name == "head" ? 2 : 3;
      expected += times * ring(unit.count);
    }
    for (const Outcome& rank : run(job)) EXPECT_EQ(rank.bytes_sent, expected) << "ZeRO-" << zero;
  }
}

TEST(Pipeline, OneForwardOneBackwardHoldsStagesMinusRank) {
  for (const std::size_t stages : {1, 2, 3, 8})
    for (const std::size_t micro_batches : {1, 2, 5, 20})
      for (std::size_t stage = 0; stage < stages; ++stage)
        for (const bool one_by_one : {true, false}) {
          const Layout layout{.pp = stages, .one_forward_one_backward = one_by_one};
          std::size_t now = 0, most = 0, next_forward = 0, next_backward = 0;
          for (const Pass& pass : passes_of(layout, stage, micro_batches)) {
            EXPECT_EQ(pass.forward ? next_forward++ : next_backward++, pass.micro_batch);
            EXPECT_LE(next_backward, next_forward);
            pass.forward ? most = std::max(most, ++now) : --now;
          }
          EXPECT_EQ(micro_batches, next_forward);
          EXPECT_EQ(micro_batches, next_backward);
          EXPECT_EQ(most_in_flight(layout, stage, micro_batches), most);
          EXPECT_EQ(one_by_one ? std::min(stages - stage, micro_batches) : micro_batches, most);
        }
}

// 2 + 2 + 12 bytes per parameter, of which each stage divides one more by N; what padding adds is stated.
TEST(Zero, BytesAreThePublishedOnes) {
  const nn::TransformerSpec spec = nn::parse_transformer("gpt:3-4-40");
  for (const std::size_t n : {2, 3, 8, 64})
    for (const int stage : {0, 1, 2, 3}) {
      std::size_t parameters = 0, padding = 0, units = 0;
      for (const nn::UnitShape& unit : nn::units_of(spec, {}, n)) parameters += unit.count, ++units;
      padding = parameters - spec.parameters();
      EXPECT_LE(padding, nn::tensors_of(spec).size() * 7 + units * (8 * n - 1));
      const auto divided = [&](bool shared, std::size_t bytes) { return parameters * bytes / (shared ? n : 1); };
      const ByCategory b = nn::unit_state_bytes(
          spec, {.element_bytes = 2, .replicas = n, .zero = stage, .optimizer = {.weights = nn::WeightForm::master}});
      const std::size_t tensors = nn::tensors_of(spec).size();
      for (const auto& [category, expected, buffers] :
           {std::tuple(Category::parameters, divided(stage >= 3, 2), std::size_t(1)),
            std::tuple(Category::gradients, divided(stage >= 2, 2), std::size_t(1)),
            std::tuple(Category::optimizer, divided(stage >= 1, 12), std::size_t(4))}) {
        // An optimizer's state is by tensors, without padding, where it is not shared out.
        const bool by_tensors = category == Category::optimizer && stage == 0;
        EXPECT_GE(b[category], expected - (by_tensors ? 12 * padding : 0)) << n << " " << stage;
        EXPECT_LE(b[category], expected + buffers * (by_tensors ? tensors : units) * kGranule) << n << " " << stage;
      }
    }
}

TEST(Layouts, WhatDoesNotFitIsOneLine) {
  const nn::TransformerSpec spec = nn::parse_transformer("gpt:4-8-64");
  for (const auto& [layout, batch, micro_batch, word] :
       {std::tuple(Layout{.tp = 3}, 8, 1, "--tp 3"), std::tuple(Layout{.pp = 5}, 8, 1, "--pp 5"),
        std::tuple(Layout{.dp = 3}, 8, 1, "--dp 3"), std::tuple(Layout{.dp = 2}, 8, 3, "--micro-batch 3"),
        std::tuple(Layout{.dp = 1, .zero = 3}, 8, 1, "--zero 3"),
        std::tuple(Layout{.dp = 2, .zero = 4}, 8, 4, "--zero 4")}) {
    const plan::Levers levers{.micro_batch = std::size_t(micro_batch), .ranks = layout};
    const std::string why = refused(plan::Work{spec, std::size_t(batch), 8}, levers);
    EXPECT_NE(std::string::npos, why.find(word)) << why;
    EXPECT_EQ(std::string::npos, why.find('\n')) << why;
  }
}

// Nobody asked for the rows that a table has by default: what a model cannot have of them is left out.
TEST(Layouts, ThatNobodyAskedForAreLeftOut) {
  Config config;
  config.model = "qwen2.5-7b", config.batch = 128, config.devices = 8;
  config.options.set(train::kMicroBatch, std::size_t(1));
  config.options.set(train::kSeq, std::size_t(2048));
  std::map<std::string, std::string> refused;
  for (const NamedLayout& row : rows_of(config, nn::parse_transformer(config.model)))
    if (!row.refused.empty()) refused[row.name] = row.refused;
  EXPECT_EQ(refused, (std::map<std::string, std::string>{
                         {"tensor parallel x 8", "--tp 8 does not divide the 28 heads of model 'qwen2.5-7b'"}}));
  const Variant row = left_out({.name = "tensor parallel x 8", .layout = {}, .refused = "--tp 8 does not"}, 128);
  try {
    Ledger ledger;
    CudaResource memory;
    Context context(memory, ledger);
    (void)row.make(context, 128);
    ADD_FAILURE();
  } catch (const VariantSkipped& why) {
    EXPECT_STREQ(why.what(), "tp 8 does not");
  }
}

}  // namespace
}  // namespace oomlab::multi_gpu
