// Each optimizer, and each way to arrange a step, against what it must equal. The streams are deferred: work is done
// when it is waited for, so a missing wait reads old data.

#include <cfloat>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "../../../tests/nn/device.h"
#include "claims.h"
#include "memory/export.h"
#include "nn/optimizer/dynamic_code.h"
#include "plan/lever/in_backward.h"
#include "plan/lever/offload.h"
#include "plan/lever/optimizer.h"
#include "plan/lever/weight_update.h"

namespace {

using namespace oomlab;
using namespace oomlab::optimizer_memory;
using plan::lever::kInBackward, plan::lever::kOffload, plan::lever::kOptimizer, plan::lever::kWeightUpdate;
using namespace oomlab::test;

[[maybe_unused]] const int deferred = setenv("OOMLAB_HOST_STREAMS", "deferred:5", 1);

nn::TensorShape matrix(std::size_t rows, std::size_t columns) { return {"matrix", "layer 1", rows, columns}; }

// One tensor, its gradients given step by step.
template <class T>
struct One {
  Device device;
  nn::TensorShape shape;
  DeviceBuffer<T> value;
  nn::Optimizer<T> optimizer;
  One(nn::TensorShape s, OptimizerForm form, const std::vector<float>& start, nn::OptimizerSettings settings = {})
      : shape(std::move(s)),
        value(device.upload(std::vector<T>(start.begin(), start.end()))),
        optimizer(device.context, {shape}, {value.data()}, form, settings) {}
  void step(const std::vector<float>& gradient, const float* factor = nullptr) {
    auto g = device.upload(std::vector<T>(gradient.begin(), gradient.end()));
    const typename nn::Optimizer<T>::Update update{0, g.data()};
    optimizer.update(device.context, {&update, 1}, {.factor = factor});
    optimizer.end_step();
    device.context.synchronize();
  }
  std::vector<float> values() {
    const std::vector<T> all = device.download(value);
    return {all.begin(), all.end()};
  }
};

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0, square = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    sum += std::pow(double(a[i]) - b[i], 2), square += std::pow(double(b[i]), 2);
  return std::sqrt(sum / square);
}

// ----------------------------------------------------------------------------------------------------------------
// bytes

TEST(Bytes, AreTheClosedForm) {
  const OptimizerForm eight{UpdateRule::adamw8}, wide{UpdateRule::adamw8, WeightForm::stored, true},
      factors{UpdateRule::adafactor}, master{UpdateRule::adamw, WeightForm::master};
  for (const auto& [rows, columns] : {std::pair<std::size_t, std::size_t>{64, 64}, {63, 65}, {100, 257}, {1, 5000}}) {
    const nn::TensorShape shape = matrix(rows, columns);
    const std::size_t n = rows * columns, blocks = (n + 255) / 256;
    EXPECT_EQ(nn::exact_state_bytes(shape, eight), n < 4096 ? 8 * n : 2 * n + 8 * blocks);
    EXPECT_EQ(nn::exact_state_bytes(shape, {}), 8 * n);
    EXPECT_EQ(nn::exact_state_bytes(shape, master), 12 * n);
    EXPECT_EQ(nn::exact_state_bytes(shape, factors), rows == 1 ? 4 * n : 4 * (rows + columns));
    EXPECT_EQ(nn::exact_state_bytes(shape, {UpdateRule::sgd}), 0u);
    Device device;
    auto value = device.upload(std::vector<Bf16>(n));
    for (const OptimizerForm& form : {eight, master, factors}) {
      const std::size_t before = device.ledger.live_by_category()[Category::optimizer];
      const nn::Optimizer<Bf16> optimizer(device.context, {shape}, {value.data()}, form);
      EXPECT_EQ(device.ledger.live_by_category()[Category::optimizer] - before, nn::state_bytes(shape, form));
    }
  }
  EXPECT_TRUE(nn::has_8_bit_moments({"token embedding", "token", 300, 64}, eight));
  EXPECT_FALSE(nn::has_8_bit_moments({"token embedding", "token", 300, 64}, wide));
  EXPECT_FALSE(nn::has_8_bit_moments(matrix(1, 4095), eight));
  Device device;
  auto value = device.upload(std::vector<float>(4));
  expect_refused_in_one_line(
      [&] {
        return nn::Optimizer<float>(device.context, {matrix(2, 2)}, {value.data()},
                                    {UpdateRule::adamw, WeightForm::stochastic});
      },
      "FP32, rounded at random");
}

// --------------------------------------------------------------------------------------------------------------
// updates

TEST(EightBits, AreAdamWWithRoundedMoments) {
  const std::size_t n = 4096 + 77;
  const std::vector<float> start = random_floats(n, 1, 0.1f);
  One<float> full(matrix(1, n), {}, start), codes(matrix(1, n), {UpdateRule::adamw8}, start);
  for (int step = 1; step <= 5; ++step) {
    const std::vector<float> gradient = random_floats(n, unsigned(step), 0.01f);
    full.step(gradient), codes.step(gradient);
    if (step == 1) {  // zeros have exact codes, and new moments are used unrounded
      EXPECT_EQ(full.values(), codes.values());
    }
    const auto& state = codes.optimizer.state(0);
    const std::vector<float> m = full.device.download(full.optimizer.state(0).first);
    const auto q = codes.device.download(state.codes[0]);
    const auto absmax = codes.device.download(state.absmax[0]);
    double off = 0;
    for (std::size_t i = 0; i < n; ++i)
      off = std::max(off, std::fabs(double(nn::kSignedCode.value[q[i]]) * absmax[i / 256] - m[i]) / absmax[i / 256]);
    EXPECT_LT(off, 0.008 * step) << step;  // half a cell of the widest ones, step by step
  }
  EXPECT_LT(distance(codes.values(), full.values()), 0.02);
  EXPECT_GT(distance(codes.values(), full.values()), 0);
}

TEST(EightBits, OneBadGradientSpoilsNoOther) {
  const std::size_t n = 4096;
  One<float> good(matrix(64, 64), {UpdateRule::adamw8}, std::vector<float>(n, 1.0f)),
      bad(matrix(64, 64), {UpdateRule::adamw8}, std::vector<float>(n, 1.0f));
  std::vector<float> gradient(n, 0.5f);
  good.step(gradient);
  gradient[300] = INFINITY, gradient[301] = NAN;
  bad.step(gradient);
  std::vector<float> a = good.values(), b = bad.values();
  for (const std::size_t i : {300, 301}) {
    EXPECT_TRUE(std::isfinite(b[i]));
    b[i] = a[i];
  }
  EXPECT_EQ(a, b);
}

TEST(StochasticRounding, IsRightOnAverageAndRepeatable) {
  const std::size_t n = 20000;
  const float x = 1.0f + 0.25f / 128;  // a quarter of the way to the next number of BF16
  double up = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const auto rounded = static_cast<float>(nn::rounded_at_random(x, nn::random_bits(nn::rounding_key(1, 2, 3), i)));
    EXPECT_TRUE(rounded == 1.0f || rounded == 1.0f + 1.0f / 128) << rounded;
    up += rounded > 1.0f;
  }
  EXPECT_NEAR(up / double(n), 0.25, 0.015);
  EXPECT_TRUE(std::isinf(static_cast<float>(nn::rounded_at_random(INFINITY, 0xffff))));
  EXPECT_TRUE(std::isnan(static_cast<float>(nn::rounded_at_random(NAN, 0xffff))));
  EXPECT_EQ(static_cast<float>(nn::rounded_at_random(-1.5f, 0xffff)), -1.5f);

  // Steps that are too small for BF16: lost, or kept on average.
  nn::OptimizerSettings settings;
  settings.sgd.lr = 1e-4f;
  const std::vector<float> start(n, 1.0f), gradient(n, 1.0f);
  const auto after = [&](WeightForm form, std::uint64_t seed) {
    settings.seed = seed;
    One<Bf16> one(matrix(1, n), {UpdateRule::sgd, form}, start, settings);
    for (int step = 0; step < 10; ++step) one.step(gradient);
    return one.values();
  };
  EXPECT_EQ(after(WeightForm::stored, 1), start);
  const std::vector<float> rounded = after(WeightForm::stochastic, 1);
  EXPECT_NEAR(std::accumulate(rounded.begin(), rounded.end(), 0.0) / double(n), 1 - 10e-4, 2e-4);
  EXPECT_EQ(rounded, after(WeightForm::stochastic, 1));
  EXPECT_NE(rounded, after(WeightForm::stochastic, 2));
}

// ----------------------------------------------------------------------------------------------------------------
// steps

Task task_of_model(const std::string& model, StepRequest request = {}) {
  Task task{nn::parse_transformer(model), nullptr, 4, 8, request};
  task.text = std::make_shared<const data::TextSampler>(text_for(task.spec, task.seq, false));
  return task;
}
const Recipe kPlain{"adamw"}, kAtOnce{"in backward", DType::fp32, {}, GradientLife::optimizer_in_backward},
    kHost{"processor", DType::fp32, {}, GradientLife::offloaded};

struct After {
  std::uint64_t weights, state;
  double loss;
  ByCategory peak;
  friend bool operator==(const After& a, const After& b) { return a.weights == b.weights && a.loss == b.loss; }
};
template <class T>
After after_steps(const Task& task, const Recipe& recipe, int steps = 3) {
  AsyncResource memory;  // whose frees wait for nothing: cudaFree() would hide a missing wait
  Ledger ledger;
  Context context(memory, ledger);
  Training<T> training(context, task, recipe);
  for (int step = 0; step < steps; ++step) training.step();
  const double loss = training.figure();
  const std::uint64_t state = recipe.on_processor() ? 0 : training.state_fingerprint();
  return {training.fingerprint(), state, loss, ledger.peak_by_category()};
}

TEST(InBackward, GivesTheSameBits) {
  const OptimizerForm eight{UpdateRule::adamw8}, rounded{UpdateRule::adamw8, WeightForm::stochastic},
      factors{UpdateRule::adafactor, WeightForm::stochastic};
  for (const char* model : {"gpt:3-2-48", "bert:2-2-48", "llama:3-4-2-48-100"}) {
    SCOPED_TRACE(model);
    Task task = task_of_model(model);
    if (task.spec.llama()) task.spec.tied = false;
    for (const OptimizerForm& form : {OptimizerForm{}, eight}) {
      const After plain = after_steps<float>(task, {"", DType::fp32, form}),
                  at_once = after_steps<float>(task, {"", DType::fp32, form, GradientLife::optimizer_in_backward});
      EXPECT_EQ(plain, at_once);
      EXPECT_EQ(plain.state, at_once.state);
      // The largest unit's gradients and, where the head shares it, the token table's.
      std::size_t largest = 0, token = 0;
      for (const nn::UnitShape& unit : nn::units_of(task.spec)) {
        const std::size_t bytes = round_to_granule(unit.count * sizeof(float));
        if (unit.name == "token") token = bytes;
        if (unit.name != "token" || !task.spec.tied) largest = std::max(largest, bytes);
      }
      std::size_t most = 0;
      Device device;
      Training<float> training(device.context, task, {"", DType::fp32, form, GradientLife::optimizer_in_backward});
      device.ledger.record_timeline(true);
      training.step();
      std::size_t live = 0;
      for (const TimelineEvent& event : device.ledger.timeline())
        if (event.category == Category::gradients && event.kind == TimelineEvent::Kind::alloc)
          most = std::max(most, live += event.bytes);
        else if (event.category == Category::gradients && event.kind == TimelineEvent::Kind::free)
          live -= event.bytes;
      EXPECT_EQ(most, largest + (task.spec.tied ? token : 0));
      EXPECT_EQ(live, 0u);
    }
    for (const OptimizerForm& form : {rounded, factors}) {
      const After plain = after_steps<Bf16>(task, {"", DType::bf16, form}),
                  at_once = after_steps<Bf16>(task, {"", DType::bf16, form, GradientLife::optimizer_in_backward});
      EXPECT_EQ(plain, at_once);
      EXPECT_EQ(plain.state, at_once.state);
    }
  }
}

TEST(InBackward, RefusesWhatItCannotDoInOneLineThatSaysWhy) {
  const auto refused = [](const Recipe& recipe, StepRequest request, const char* because) {
    Device device;
    try {
      Training<float> training(device.context, task_of_model("gpt:1-1-8", request), recipe);
      ADD_FAILURE() << because;
    } catch (const UsageError& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find(because), std::string::npos) << what;
      EXPECT_EQ(what.find('\n'), std::string::npos);
    }
  };
  refused(kAtOnce, {.micro_batches = 2}, "micro-batch");
  for (const Recipe& recipe : {kAtOnce, kHost}) {
    refused(recipe, {.clip = 1}, "norm of all gradients");
    refused(recipe, {.loss_scale = 2}, "overflow");
  }
}

TEST(Step, AccumulatesClipsAndScales) {
  const Task task = task_of_model("gpt:2-2-48");
  const After plain = after_steps<float>(task, kPlain);
  const After micro = after_steps<float>(task_of_model("gpt:2-2-48", {.micro_batches = 4}), kPlain);
  EXPECT_NEAR(micro.loss, plain.loss, 2e-5);
  EXPECT_EQ(after_steps<float>(task_of_model("gpt:2-2-48", {.loss_scale = 1024}), kPlain), plain);
  EXPECT_EQ(after_steps<float>(task_of_model("gpt:2-2-48", {.clip = 1e6f}), kPlain), plain);
  const Recipe sgd{"sgd", DType::fp32, {UpdateRule::sgd}};
  const After free = after_steps<float>(task, sgd),
              clipped = after_steps<float>(task_of_model("gpt:2-2-48", {.clip = 1e-6f}), sgd),
              none = after_steps<float>(task_of_model("gpt:2-2-48", {.clip = 1e-12f}), sgd);
  EXPECT_FALSE(free == clipped);
  EXPECT_NEAR(clipped.loss, none.loss, 1e-4);  // steps so small that they change nothing
  // A loss that overflows: the step is left out.
  Device device;
  Training<float> training(device.context, task_of_model("gpt:2-2-48", {.loss_scale = FLT_MAX}), kPlain);
  const std::uint64_t before = training.fingerprint();
  training.step();
  EXPECT_EQ(training.fingerprint(), before);
}

TEST(Step, NeedsWhatIsPredicted) {
  for (const char* model : {"gpt:3-2-40", "llama:2-4-2-48-100"})
    for (const StepRequest& request : {StepRequest{}, StepRequest{.micro_batches = 2}, StepRequest{.clip = 1}})
      for (const OptimizerForm& form :
           {OptimizerForm{}, OptimizerForm{UpdateRule::adamw8}, OptimizerForm{UpdateRule::adafactor}}) {
        const Task task = task_of_model(model, request);
        EXPECT_EQ(without_workspace(after_steps<float>(task, {"", DType::fp32, form}).peak),
                  predicted(task, {"", DType::fp32, form}));
      }
}

// ------------------------------------------------------------------------------------------------------------
// processor

TEST(Processor, GivesTheSameBitsAsTheDevice) {
  for (const char* model : {"gpt:3-2-48", "llama:3-4-2-48-100"}) {
    const Task task = task_of_model(model);
    EXPECT_EQ(after_steps<float>(task, kPlain), after_steps<float>(task, kHost)) << model;
    const OptimizerForm master{UpdateRule::adamw, WeightForm::master};
    EXPECT_EQ(after_steps<Bf16>(task, {"", DType::bf16, master}),
              after_steps<Bf16>(task, {"", DType::bf16, master, GradientLife::offloaded}))
        << model;
  }
}

TEST(Processor, WorksBesideTheBackwardPass) {
  const Task task = task_of_model("gpt:4-2-48");
  Device device;
  device.ledger.record_timeline(true);
  Training<float> training(device.context, task, kHost);
  training.step();
  std::int64_t begin = 0, end = 0;  // of the backward pass
  std::size_t beside = 0, units = 0;
  for (const TimelineEvent& event : device.ledger.timeline()) {
    if (event.kind == TimelineEvent::Kind::phase_begin && event.label == "backward") begin = event.time_us;
    if (event.kind == TimelineEvent::Kind::phase_end && event.label == "backward") end = event.time_us;
  }
  for (const TimelineEvent& event : device.ledger.timeline())
    if (event.kind == TimelineEvent::Kind::processor_work) {
      ++units;
      EXPECT_TRUE(event.label.starts_with("update of "));
      beside += event.time_us >= begin && event.time_us <= end;
    }
  EXPECT_EQ(units, 7u);   // token, positions, four layers, the head's norm
  EXPECT_GE(beside, 5u);  // all but the last two units' updates begin while the backward pass goes on
  EXPECT_NE(chrome_trace(device.ledger, 0, "p").find("\"update of layer 4\",\"pid\":1,\"tid\":2"), std::string::npos);
  std::size_t padded = 0;
  for (const nn::UnitShape& unit : nn::units_of(task.spec)) padded += unit.count;
  EXPECT_EQ(moved_in_a_step(task, kHost), 2 * 4 * padded);
}

// -------------------------------------------------------------------------------------------------------------
// learning

// A short sample of what the table of --learn shows; with OOMLAB_LEARNING the whole, nightly.
TEST(Learning, WithFewerBytesStaysWithinAdamWsSpread) {
  Config config;
  config.workspace = 1 << 10;
  const bool whole = std::getenv("OOMLAB_LEARNING") != nullptr;
  Task task = task_of_model(whole ? "gpt:2-2-64" : "gpt:1-2-64");
  const Recipe recipes[] = {kPlain,
                            {"8-bit", DType::fp32, {UpdateRule::adamw8}},
                            {"stochastic", DType::bf16, {UpdateRule::adamw, WeightForm::stochastic}}};
  if (whole) {
    task.batch = 8, task.seq = 32;
    Losses losses;
    for (const Recipe& recipe : recipes) losses[recipe.name] = losses_after(config, task, recipe, 200);
    for (const Recipe& recipe : recipes) EXPECT_TRUE(within_spread(losses, recipe.name, "adamw")) << recipe.name;
    return;
  }
  const auto loss = [&](const Recipe& recipe) { return loss_after(config, task, recipe, 4 * OOMLAB_ROUNDS, 1); };
  const double full = loss(recipes[0]);
  EXPECT_NEAR(loss(recipes[1]), full, 0.02);
  EXPECT_NEAR(loss(recipes[2]), full, 0.05);
  if (OOMLAB_ROUNDS >= 10) {
    EXPECT_LT(full, 5.0);  // it does learn: it begins at 5.55
  }
}

// ---------------------------------------------------------------------------------------------------------------
// asking

Config asked(std::size_t batch) {
  Config config;
  config.model = "gpt:1-1-8";
  config.batch = batch;
  config.options.set(kSeq, std::size_t(8));
  return config;
}
TEST(Asked, RowsOfOnesOwn) {
  const nn::TransformerSpec spec = nn::parse_transformer("gpt:1-1-8");
  EXPECT_EQ(recipes(asked(4)).size(), 14u);
  const auto refused = [&](const auto& set, const char* because) {
    Config config = asked(4);
    set(config.options);
    try {
      (void)task_of(config, spec);
      ADD_FAILURE() << because;
    } catch (const UsageError& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find(because), std::string::npos) << what;
      EXPECT_EQ(what.find('\n'), std::string::npos);
    }
  };
  refused([](OptionValues& o) { o.set(kPrecision, std::string("fp16")); }, "fp16");
  refused([](OptionValues& o) { o.set(kWeightUpdate, std::string("master")); }, "in fp32 the weights");
  refused([](OptionValues& o) { o.set(kOptimizer, std::string("adafactor")), o.set(kOffload, true); }, "adafactor");
  refused(
      [](OptionValues& o) { o.set(kOptimizer, std::string("adamw")), o.set(kOffload, true), o.set(kInBackward, true); },
      "leave --in-backward out");
  refused([](OptionValues& o) { o.set(kMicroBatch, std::size_t(3)); }, "does not divide");
  refused([](OptionValues& o) { o.set(kClip, std::string("much")); }, "--clip");
  refused(
      [](OptionValues& o) {
        o.set(kOptimizer, std::string("adamw8")), o.set(kInBackward, true), o.set(kMicroBatch, std::size_t(2));
      },
      "--micro-batch");
  Config config = asked(4);
  config.options.set(kOptimizer, std::string("adamw8"));
  config.options.set(kPrecision, std::string("bf16"));
  config.options.set(kWeightUpdate, std::string("stochastic"));
  const Recipe chosen = recipes(config).back();
  EXPECT_TRUE(chosen.dtype == DType::bf16 &&
              chosen.form == (OptimizerForm{UpdateRule::adamw8, WeightForm::stochastic}));
}

TEST(Claims, AreJudgedAtLlama) {
  const Config config = asked(1);
  const auto figure = [&](const char* text) {
    for (const Claim& claim : claims_of(config, std::make_shared<Learning>(config, Task{}, recipes(config), 0)))
      if (claim.text == text) return *claim.at_size();
    return -1.0;
  };
  const double all = 8030261248.0, head = 128256 * 4096.0 + 4096;
  EXPECT_NEAR(figure("8-bit Adam saves 75 %"), 1 - (2 + 8 / 256.0) / 8, 1e-6);
  EXPECT_NEAR(figure("8-bit Adam saves 75 % of the model's state"), (6 - 8 / 256.0) / 16, 1e-4);
  EXPECT_NEAR(figure("SGD needs nothing"), 4, 1e-3);
  EXPECT_NEAR(figure("a step in the backward pass frees the gradients"), 1 - head / all, 1e-4);
}

}  // namespace
