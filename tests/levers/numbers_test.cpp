// The numbers of levers on several ranks: what a rank does with a gradient, and where its optimizer's state is, changes
// no bit; and ranks learn what one learns.

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <span>
#include <thread>

#include "../../chapters/16_capstone/composed.h"
#include "../nn/device.h"
#include "../planning.h"

namespace {

using namespace oomlab;
using namespace oomlab::capstone;
using namespace oomlab::test;

constexpr std::size_t kSteps = 2;

/// What some steps lead to.
struct Learned {
  std::vector<double> losses;
  std::vector<std::uint64_t> weights;  // hashes, of each rank
};

Text text_of(const Work& work) {
  return std::make_shared<data::TextSampler>(train::text_for(work.spec, work.seq, /*ragged=*/false));
}

Learned learn(Team& team, std::size_t steps) {
  const auto ranks = std::size_t(team.ranks());
  Learned learned;
  learned.losses.resize(steps);
  learned.weights.resize(ranks);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        share_processor(64);
        CUDA_CHECK(cudaSetDevice(int(rank)));
        Device device;
        const auto training = team.make(device.context, int(rank));
        for (double& loss : learned.losses) {
          training->step();
          const double all = training->figure();
          if (rank == 0) loss = all;
        }
        learned.weights[rank] = training->fingerprint();
      } catch (const std::exception& error) {
        team.failed = true;
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return learned;
}
Learned learn(const Work& work, const Levers& levers) {
  SCOPED_TRACE(options_of(levers));
  return learn(*make_team(work, levers, text_of(work)), kSteps);
}

Levers levers_of(const std::string& options) { return plan::parse_levers(options); }

Work work_of(const char* model = "llama:4-4-2-64-120") { return {nn::parse_transformer(model), 4, 24}; }

// A vocabulary and biases that do not fill the packs of 8 that tensors begin at: what is between them stays 0.
TEST(Numbers, WhatIsBetweenTensorsIsNoWeight) {
  const Work work = work_of("bert:2-2-20");
  for (const char* precision : {"--precision fp32", "--precision bf16", "--precision fp16"}) {
    const Learned kept = learn(work, levers_of(precision));
    const Learned used = learn(work, levers_of(std::string(precision) + " --offload"));
    EXPECT_EQ(used.weights, kept.weights) << precision;
    EXPECT_EQ(used.losses, kept.losses) << precision;
  }
}

// The first OOMLAB_GRIDS of these.
const char* const kAllGrids[] = {
    "--pp 2 --dp 2 --zero 1", "--tp 2 --dp 2 --zero 3", "--dp 2 --zero 2", "",       "--dp 2",
    "--dp 2 --zero 1",        "--dp 4 --zero 3",        "--tp 2",          "--pp 2", "--dp 2 --pp 2 --zero 2"};
const std::span kGrids(kAllGrids, OOMLAB_GRIDS);
const char* const kOptimizers[] = {"--precision fp32",
                                   "--precision fp32 --optimizer adamw8",
                                   "--precision fp32 --optimizer sgd",
                                   "--precision bf16",
                                   "--precision bf16 --weight-update stochastic --optimizer adamw8",
                                   "--precision bf16 --weight-update stored --optimizer sgd"};

TEST(Numbers, GradientsThatAreUsedAtOnceAreTheSameGradients) {
  std::size_t turn = 0;
  for (const char* grid : kGrids)
    for (int each = 0; each < 2; ++each) {  // of the optimizers in turn
      const char* const optimizer = kOptimizers[turn++ % std::size(kOptimizers)];
      const std::string options = std::string(optimizer) + " " + grid;
      const Learned kept = learn(work_of(), levers_of(options));
      for (const char* life : {" --in-backward", " --offload", " --offload --stream"}) {
        const Levers levers = levers_of(options + life);
        const bool has_no_whole_weights = levers.streamed && (levers.ranks.zero == 1 || levers.ranks.zero == 2);
        ASSERT_EQ(refused(work_of(), levers).empty(), !has_no_whole_weights);
        if (has_no_whole_weights) continue;
        const Learned used = learn(work_of(), levers);
        EXPECT_EQ(used.losses, kept.losses) << options << life;
        EXPECT_EQ(used.weights, kept.weights) << options << life;
      }
      if (HasFailure()) return;
    }
}

TEST(Numbers, WhereInputsAndMomentsWaitChangesNoBit) {
  const struct {
    const char *here, *there;
  } kWaits[] = {{" --checkpoint 1", " --checkpoints host"},
                {" --moments device", " --moments paged"},
                {" --checkpoint 2 --micro-batch 1", " --checkpoints host"},
                {" --checkpoint 3 --attention tiled --loss chunked --lean", " --checkpoints host --moments paged"},
                {" --checkpoint 1 --offload --stream --tiles-mlp 5", " --checkpoints host"}};
  const char* const kStates[] = {"--precision fp32", "--precision bf16 --optimizer adamw8"};
  std::size_t turn = 0;
  for (const char* grid : kGrids)
    for (int each = 0; each < 2; ++each) {  // in turn
      const auto& [how, there_how] = kWaits[turn % std::size(kWaits)];
      const std::string options = std::string(kStates[turn++ % std::size(kStates)]) + " " + grid + how;
      if (!refused(work_of(), levers_of(options)).empty()) continue;  // --stream on some grids
      const Learned here = learn(work_of(), levers_of(options));
      const Learned there = learn(work_of(), levers_of(options + there_how));
      EXPECT_EQ(there.losses, here.losses) << options << there_how;
      EXPECT_EQ(there.weights, here.weights) << options << there_how;
      if (HasFailure()) return;
    }
}

// Streams that put work off leave no time between what is sent or fetched and its use.
TEST(HostCheckpoints, GiveBackWhatLeft) {
  Device device;
  Context& context = device.context;
  constexpr std::size_t kSegments = 10, kInFlight = 2, kCount = 100;
  const nn::Schedule schedule(kSegments, {1, true, {}});
  nn::HostCheckpoints<float> inputs(context, schedule, kInFlight, kCount);
  auto seen = context.buffer<float>(kInFlight * kSegments * kCount, Category::activations, "what came back");
  for (std::size_t i = 0; i < kInFlight * kSegments; ++i) {
    auto input = context.buffer<float>(kCount, Category::activations, "input");
    nn::fill(context, input.data(), kCount, float(i));
    inputs.send(i / kSegments, i % kSegments, input);
    inputs.finish_send();
    nn::fill(context, input.data(), kCount, -1.0f);
  }
  for (std::size_t i = 0; i < kInFlight * kSegments; ++i) {
    const auto input = inputs.fetch(i / kSegments, i % kSegments);
    inputs.finish_fetch();
    CUDA_CHECK(cudaMemcpyAsync(seen.data() + i * kCount, input.data(), input.bytes(), cudaMemcpyDeviceToDevice,
                               context.stream()));
  }
  std::vector<float> values(seen.size());
  CUDA_CHECK(cudaMemcpyAsync(values.data(), seen.data(), seen.bytes(), cudaMemcpyDeviceToHost, context.stream()));
  context.synchronize();
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], float(i / kCount)) << i;
}

// Sums in another order: of parts, of replicas, of micro-batches.
TEST(Numbers, RanksLearnWhatOneDoes) {
  const char* const kMore[] = {"",
                               " --checkpoint 2",
                               " --offload --micro-batch 1",
                               " --micro-batch 1",
                               " --offload",
                               " --offload --stream --checkpoint 2",
                               " --in-backward",
                               " --tiles-mlp 5 --lean"};
  std::size_t turn = 0;
  for (const char* optimizer :
       {"--precision fp32", "--precision fp32 --optimizer sgd", "--precision fp16", "--precision fp16 --optimizer sgd",
        "--precision fp32 --optimizer adamw8", "--precision bf16"}) {
    const Learned one = learn(work_of(), levers_of(optimizer));
    ASSERT_LT(one.losses.back(), one.losses.front()) << optimizer;
    const bool in_blocks = std::string(optimizer).find("adamw8") != std::string::npos;  // which a shard cuts elsewhere
    const bool exact = std::string(optimizer).find("fp32") != std::string::npos && !in_blocks;
    const double tolerance = exact ? 1e-5 : in_blocks ? 1e-3 : 5e-3;
    for (const char* grid : kGrids)
      for (int each = 0; each < 2; ++each) {
        const char* const more = kMore[turn++ % std::size(kMore)];
        const std::string options = std::string(optimizer) + " " + grid + more;
        if (!refused(work_of(), levers_of(options)).empty()) continue;  // FP16 uses no gradient at once, and so on
        const Learned ranks = learn(work_of(), levers_of(options));
        for (std::size_t step = 0; step < kSteps; ++step)
          EXPECT_NEAR(ranks.losses[step], one.losses[step], tolerance * one.losses[step]) << options << ", " << step;
        if (HasFailure()) return;
      }
  }
}

// In check mode, of options that are tried with several models one in three with each, another one with the next model.
bool tried(std::size_t option, std::size_t model) { return OOMLAB_ROUNDS > 2 || (option + model) % 3 == 0; }

// Of models of each style, ranks with these levers learn what one does without any.
void expect_as_one_device(std::span<const char* const> each, const std::string& more) {
  std::size_t models = 0;
  for (const char* model : {"llama:4-4-2-64-120", "gpt:3-4-48", "bert:3-4-48"}) {
    const Work work = work_of(model);
    const Learned one = learn(work, {});
    ++models;
    for (std::size_t i = 0; i < each.size(); ++i) {
      if (!tried(i, models)) continue;
      const std::string options = each[i] + more;
      ASSERT_EQ(refused(work, levers_of(options)), "") << options;
      const Learned ranks = learn(work, levers_of(options));
      for (std::size_t step = 0; step < kSteps; ++step)
        EXPECT_NEAR(ranks.losses[step], one.losses[step], 1e-5 * one.losses[step]) << model << " " << options;
      if (testing::Test::HasFailure()) return;
    }
  }
}

// Rows of norms and residuals shared out among the ranks that have the parts of a layer.
TEST(Numbers, RanksThatShareRowsLearnWhatOneDoes) {
  const char* const kEach[] = {"--tp 2",
                               "--tp 2 --dp 2 --zero 3 --checkpoint 2 --checkpoints host",
                               "--tp 2 --pp 2 --micro-batch 1 --tiles-mlp 3",
                               "--tp 2 --dp 2 --zero 2 --lean --micro-batch 1",
                               "--tp 2 --in-backward --loss chunked",
                               "--tp 2 --dp 2 --offload --stream --checkpoint 1"};
  expect_as_one_device(kEach, " --sequence-parallel");
}

// Tokens of every sequence shared out: keys go round, or rows are exchanged for heads.
TEST(Numbers, RanksThatShareTokensLearnWhatOneDoes) {
  const char* const kEach[] = {"--cp 2 --attention fused --lean",
                               "--cp 4 --attention fused --checkpoint 1 --zero 3 --loss chunked",
                               "--cp 2 --dp 2 --attention fused --micro-batch 1 --offload --tiles-mlp 3",
                               "--cp 2 --tp 2 --attention fused --sequence-parallel --checkpoint 2 --checkpoints host",
                               "--cp 2 --context ulysses --in-backward --zero 2",
                               "--cp 2 --pp 2 --context ulysses --attention tiled --checkpoint 1 --micro-batch 2",
                               "--cp 2 --context ulysses --attention fused --stream --offload --zero 3"};
  expect_as_one_device(kEach, "");
}

// Sequences of unequal lengths side by side: what they teach padded to the longest, in micro-batches of any size and on any
// ranks. The first loss of weights that know nothing is about ln V: a mean over their own tokens, and not over padding.
TEST(Numbers, PackedSequencesTeachWhatPaddedOnesDo) {
  const char* const kEach[] = {"",
                               "--micro-batch 1 --attention tiled --loss chunked --lean",
                               "--attention fused --checkpoint 2 --checkpoints host --micro-batch 2",
                               "--dp 2 --zero 3 --micro-batch 1",
                               "--tp 2 --tiles-mlp 3",
                               "--tp 2 --dp 2 --zero 2 --sequence-parallel --checkpoint 1",
                               "--offload --stream"};
  std::size_t models = 0;
  for (const char* model : {"llama:4-4-2-64-120", "gpt:3-4-48"}) {
    Work work = work_of(model);
    work.spec.vocabulary = 300;
    work.lengths = {10, 24, 4, 16};
    const Learned padded = learn(work, {});
    EXPECT_NEAR(padded.losses[0], std::log(300.0), 0.5) << model;
    ++models;
    for (std::size_t i = 0; i < std::size(kEach); ++i) {
      if (!tried(i, models)) continue;
      const std::string packed = std::string(kEach[i]) + " --pack";
      ASSERT_EQ(refused(work, levers_of(packed)), "") << packed;
      const Learned found = learn(work, levers_of(packed));
      for (std::size_t step = 0; step < kSteps; ++step)
        EXPECT_NEAR(found.losses[step], padded.losses[step], 1e-6 * padded.losses[step]) << model << " " << packed;
      if (HasFailure()) return;
    }
  }
}

// Adapters beside a frozen base: on ranks that share samples, layers, or the inside of layers, what one rank learns; with
// weights in host memory, and with gradients that are used at once, the same bits. That the base has not changed
// fingerprint() sees to.
TEST(Numbers, AdaptersLearnOnRanksWhatTheyLearnOnOne) {
  const char* const kMore[] = {"--dp 2 --zero 2",
                               "--tp 2",
                               "--tp 2 --dp 2 --zero 3 --micro-batch 1",
                               "--pp 2 --checkpoint 1",
                               "--tp 2 --pp 2 --micro-batch 2",
                               "--dp 2 --zero 1 --stream",
                               "--checkpoint 2 --lean",
                               "--offload",
                               "--tp 2 --dp 2 --tiles-mlp 3 --lean",
                               "--tiles-mlp 5 --checkpoint 1",
                               "--tp 2 --pp 2 --sequence-parallel",
                               "--cp 2 --attention fused --checkpoint 1",
                               "--cp 2 --context ulysses --dp 2 --zero 1"};
  std::size_t methods = 0;
  for (const char* method :
       {"--method lora --rank 4 --dropout 50", "--method lora --rank 2 --targets o_proj,up_proj"}) {
    const std::vector<std::uint64_t> untrained =
        learn(*make_team(work_of(), levers_of(method), text_of(work_of())), 0).weights;
    const Learned one = learn(work_of(), levers_of(method));
    EXPECT_NE(one.weights, untrained) << method;
    ++methods;
    for (std::size_t i = 0; i < std::size(kMore); ++i) {
      if (!tried(i, methods)) continue;
      const std::string options = std::string(method) + " " + kMore[i];
      ASSERT_EQ(refused(work_of(), levers_of(options)), "") << options;
      const Learned ranks = learn(work_of(), levers_of(options));
      for (std::size_t step = 0; step < kSteps; ++step)
        EXPECT_NEAR(ranks.losses[step], one.losses[step], 1e-5 * one.losses[step]) << options << ", " << step;
      if (HasFailure()) return;
    }
  }
}

TEST(Numbers, WhereAdaptersAndTheirBaseAreChangesNoBit) {
  for (const char* method : {"--method lora --rank 4", "--method qlora --rank 4 --precision bf16 --dropout 25",
                             "--method qlora --rank 4 --precision fp16"}) {
    const Learned one = learn(work_of(), levers_of(method));
    for (const char* more : {"--stream", "--offload", "--offload --stream", "--stream --moments paged",
                             "--checkpoint 2 --checkpoints host --moments paged"}) {
      const std::string options = std::string(method) + " " + more;
      ASSERT_EQ(refused(work_of(), levers_of(options)), "") << options;
      const Learned there = learn(work_of(), levers_of(options));
      EXPECT_EQ(there.losses, one.losses) << options;
      EXPECT_EQ(there.weights, one.weights) << options;
    }
    // A shard of a layer's codes is gathered to the same codes.
    const Learned whole = learn(work_of(), levers_of(std::string(method) + " --dp 2 --zero 2"));
    const Learned shards = learn(work_of(), levers_of(std::string(method) + " --dp 2 --zero 3"));
    EXPECT_EQ(shards.losses, whole.losses) << method;
  }
}

// Steps whose samples and weights are the same differ by what they drop.
TEST(Numbers, AStepDropsOtherInputsThanTheOneBefore) {
  Work work = work_of();
  work.batch = 1;
  data::Text one = data::course_text();  // sample: each begins at its first token
  one.bytes.resize(work.seq + 1);
  for (const char* options : {"--method lora", "--method lora --dropout 25"}) {
    train::Job job = job_of(work, levers_of(options),
                            std::make_shared<data::TextSampler>(one, data::TextSampler::Settings{.seq = work.seq}));
    job.settings.adamw.lr = 0;
    Device device;
    const std::atomic<bool> never{false};
    train::Trainer<float> training(device.context, job, train::Groups::Ids(job.layout), 0, never);
    std::vector<std::vector<float>> gradients;
    for (int step = 0; step < 2; ++step) {
      training.step();
      constexpr std::size_t kB = 1;  // of the first adapter; that of A is 0 as long as B is
      const auto found = training.units().gradient(kB, job.adapters.rank * work.spec.width);
      gradients.push_back(device.download(found.data, found.count));
    }
    EXPECT_EQ(gradients[0] == gradients[1], job.adapters.dropout == 0) << options;
  }
}

// A gradient of any rank that is not finite leaves the step out on all: either all shards have changed, or none.
TEST(Numbers, AnOverflowAnywhereStopsAllRanks) {
  const Work work = work_of();
  for (const char* options : {"--dp 4 --zero 3", "--dp 4 --zero 3 --offload"}) {
    const Levers levers = levers_of(std::string("--precision fp16 ") + options);
    std::size_t stopped = 0;
    std::size_t done = 0;
    for (float scale = 1024; scale < 1e9f; scale *= 8) {
      train::Job job = job_of(work, levers, text_of(work));
      job.scaling = nn::LossScaling::dynamic_from(scale);
      train::Cluster<__half> team(job);
      const std::vector<std::uint64_t> before = learn(team, 0).weights;
      const std::vector<std::uint64_t> after = learn(team, 1).weights;
      std::size_t changed = 0;
      for (std::size_t rank = 0; rank < before.size(); ++rank) changed += before[rank] != after[rank];
      EXPECT_TRUE(changed == 0 || changed == before.size()) << options << ", scale " << scale << ": " << changed;
      ++(changed == 0 ? stopped : done);
    }
    EXPECT_GT(stopped, 0u) << options;
    EXPECT_GT(done, 0u) << options;
  }
}

TEST(HostMemory, IsPredictedAndWhatGoesOverTheBusToo) {
  for (const char* model : {"bert:3-2-48", "gpt:2-2-32", "llama:2-4-2-64-172"})
    for (const char* options : {"--offload", "--offload --micro-batch 1", "--precision bf16 --offload",
                                "--precision bf16 --offload --optimizer adamw8 --weight-update stochastic",
                                "--precision fp16 --offload --optimizer sgd", "--precision bf16 --offload --stream"}) {
      const Planning planning;
      const Work work{nn::parse_transformer(model), 2, 16};
      const Levers levers = plan::parse_levers(options);
      const Plan plan = plan_of(work, levers);
      const plan::Price& price = plan.price;
      const Text text = std::make_shared<data::TextSampler>(train::text_for(work.spec, work.seq, /*ragged=*/false));
      Device device;
      with_type_of<float, __half, __nv_bfloat16>(levers.precision, [&]<class T>(T) {
        static const std::atomic<bool> never{false};
        train::Trainer<T> trainer(device.context, job_of(work, levers, text), train::Groups::Ids({}), 0, never);
        EXPECT_EQ(plan.host, device.context.host_memory().peak()) << model << " " << options;
        EXPECT_EQ(price.host_bytes, plan.host.total());
        EXPECT_GT(price.host_bytes, 0u);
        trainer.step();
        std::size_t elements = 0;  // of all units
        for (std::size_t u = 0; u < trainer.units().size(); ++u) elements += trainer.units().count(u);
        const std::size_t micro_batches = micro_batches_of(work, levers);
        const std::size_t down = micro_batches * elements * sizeof(T);
        if (levers.streamed) {  // weights come up twice, and are updated where they are
          EXPECT_GT(price.bus_bytes, 1.9 * double(down)) << model << " " << options;
          EXPECT_EQ(trainer.moved_bytes(), down) << model << " " << options;
        } else {
          EXPECT_EQ(price.bus_bytes, double(down)) << model << " " << options;
          EXPECT_EQ(trainer.moved_bytes(), down + elements * sizeof(T)) << model << " " << options;
        }
      });
    }
}

}  // namespace
