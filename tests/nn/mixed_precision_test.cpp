// Master weights and dynamic loss scaling.

#include "nn/optimizer/mixed_precision.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <cstring>

#include "cuda/block_threads.h"
#include "device.h"

namespace oomlab::test {
namespace {

using namespace nn;

// One tensor that is trained by gradients from outside.
template <class T>
struct MixedModel {
  Device& device;
  std::vector<T> initial;
  DeviceBuffer<T> value, gradient;
  MixedModel(Device& device, std::size_t count, float bound = 1)
      : device(device), initial(count), gradient(device.upload(std::vector<T>(count))) {
    const auto values = random_floats(count, 1, bound);
    for (std::size_t i = 0; i < count; ++i) initial[i] = static_cast<T>(values[i]);
    value = device.upload(initial);
  }
  std::vector<ParameterOf<T>> parameters() { return {{"tensor", value.data(), gradient.data(), value.size()}}; }
  void set_gradient(const std::vector<float>& g) {
    const std::vector<T> stored(g.begin(), g.end());
    CUDA_CHECK(cudaMemcpyAsync(gradient.data(), stored.data(), stored.size() * sizeof(T), cudaMemcpyHostToDevice,
                               device.context.stream()));
    device.context.synchronize();
  }
};

// In FP32, without scaling, it is AdamW.
TEST(ScaledOptimizerTest, IsAdamWInFp32) {
  for (const std::size_t count : {1u, 7u, 100u, 1029u}) {
    Device device;
    MixedModel<float> a(device, count), b(device, count);
    ScaledOptimizer<float> mixed(device.context, a.parameters(), LossScaling::none(), {.adamw = {.lr = 1e-2f}});
    Optimizer<float> plain(device.context, b.parameters(), {}, {.adamw = {.lr = 1e-2f}});
    for (unsigned step = 0; step < 5; ++step) {
      const auto g = random_floats(count, step + 5);
      a.set_gradient(g);
      b.set_gradient(g);
      mixed.step(device.context);
      plain.step(device.context);
    }
    EXPECT_EQ(device.download(a.value), device.download(b.value));
    EXPECT_EQ(mixed.state(device.context).steps, 5u);
  }
}

TEST(ScaledOptimizerTest, MasterWeightsKeepWhatFp16Loses) {
  for (const bool master : {true, false}) {
    Device device;
    MixedModel<__half> model(device, 64);
    std::vector<float> ones(64, 1.0f);
    ScaledOptimizer<__half> optimizer(device.context, model.parameters(), LossScaling::none(),
                                      {.adamw = {.lr = 1e-5f, .weight_decay = 0}},
                                      {.weights = master ? WeightForm::master : WeightForm::stored});
    for (int step = 0; step < 100; ++step) {
      model.set_gradient(ones);
      optimizer.step(device.context);
    }
    // A hundred steps of 1e-5 move a weight by 1e-3; one alone is less than half of what FP16 resolves near 1.
    const auto now = device.download(model.value);
    for (std::size_t i = 0; i < 64; ++i) {
      const float start = static_cast<float>(model.initial[i]), moved = start - static_cast<float>(now[i]);
      if (std::fabs(start) < 0.5f) continue;
      EXPECT_NEAR(moved, master ? 1e-3f : 0.0f, 2.6e-4f) << start;
    }
  }
}

template <class T>
std::vector<std::vector<std::byte>> bits(Device& device, const MixedModel<T>& model, const ScaledOptimizer<T>& optimizer) {
  std::vector<std::vector<std::byte>> all;
  const std::size_t count = model.value.size();
  const auto add = [&](const void* from, std::size_t bytes) {
    all.push_back(device.download(static_cast<const std::byte*>(from), bytes));
  };
  add(model.value.data(), count * sizeof(T));
  const auto& state = optimizer.state_of(0);
  for (const auto* buffer : {&state.master, &state.first, &state.second}) add(buffer->data(), buffer->bytes());
  return all;
}

// Many threads of several blocks report it at the same time.
TEST(ScaledOptimizerTest, AllGradientsOverflow) {
  constexpr std::size_t kCount = 40'000;  // a block has at least 1,024 packs of 8
  Device device;
  MixedModel<__half> model(device, kCount);
  ScaledOptimizer<__half> optimizer(device.context, model.parameters(), LossScaling::dynamic_from(1024, 3),
                                    {.adamw = {.lr = 1e-2f}});
  const auto before = bits(device, model, optimizer);
  model.set_gradient(std::vector<float>(kCount, INFINITY));
  optimizer.step(device.context);
  EXPECT_TRUE(bits(device, model, optimizer) == before);
  const ScaleState state = optimizer.state(device.context);
  EXPECT_EQ(state.scale, 512.0f);
  EXPECT_EQ(state.skipped, 1u);
  EXPECT_EQ(state.overflow, 0u);
}

// Whatever the block size: one bad gradient anywhere, and the step has not happened.
template <class T>
void an_overflow_changes_nothing_but_the_scale() {
  for (const unsigned threads : kDistinctBlockThreads) {
    set_block_threads(threads);
    for (const float bad : {INFINITY, -INFINITY, NAN})
      for (const std::size_t place : {0u, 13u, 2050u}) {
        Device device;
        MixedModel<T> model(device, 2051);
        ScaledOptimizer<T> optimizer(device.context, model.parameters(), LossScaling::dynamic_from(1024, 3),
                                     {.adamw = {.lr = 1e-2f}});
        const auto good = [&](unsigned seed) {
          model.set_gradient(random_floats(2051, seed));
          optimizer.step(device.context);
        };
        good(1);
        good(2);
        const auto before = bits(device, model, optimizer);
        auto g = random_floats(2051, 3);
        g[place] = bad;
        model.set_gradient(g);
        optimizer.step(device.context);
        EXPECT_TRUE(bits(device, model, optimizer) == before);
        ScaleState state = optimizer.state(device.context);
        EXPECT_EQ(state.scale, 512.0f);
        EXPECT_EQ(state.steps, 2u);
        EXPECT_EQ(state.skipped, 1u);
        EXPECT_EQ(state.overflow, 0u);
        good(4);
        EXPECT_FALSE(bits(device, model, optimizer) == before);
        good(5);
        EXPECT_EQ(optimizer.state(device.context).scale, 512.0f);
        good(6);  // the third good step in a row
        state = optimizer.state(device.context);
        EXPECT_EQ(state.scale, 1024.0f);
        EXPECT_EQ(state.steps, 5u);
      }
  }
  set_block_threads(256);
}
TEST(ScaledOptimizerTest, AnOverflowChangesNothingButTheScale) {
  an_overflow_changes_nothing_but_the_scale<float>();
  an_overflow_changes_nothing_but_the_scale<__half>();
  an_overflow_changes_nothing_but_the_scale<__nv_bfloat16>();
}

TEST(ScaledOptimizerTest, TheScaleIsDividedOut) {
  Device device;
  MixedModel<__nv_bfloat16> a(device, 300), b(device, 300);
  ScaledOptimizer<__nv_bfloat16> plain(device.context, a.parameters(), LossScaling::none()),
      scaled(device.context, b.parameters(), LossScaling::dynamic_from(4096));
  for (unsigned step = 0; step < 3; ++step) {
    auto g = random_floats(300, step);
    a.set_gradient(g);
    for (float& v : g) v *= 4096;
    b.set_gradient(g);
    plain.step(device.context);
    scaled.step(device.context);
  }
  EXPECT_EQ(device.download(plain.state_of(0).master), device.download(scaled.state_of(0).master));
}

TEST(ScaledOptimizerTest, BytesAreAsDocumented) {
  Device device;
  MixedModel<__half> model(device, 1000);
  const std::size_t before = device.ledger.live_by_category()[Category::optimizer];
  const ScaledOptimizer<__half> with(device.context, model.parameters(), LossScaling::none());
  EXPECT_EQ(device.ledger.live_by_category()[Category::optimizer] - before, 3 * 4096 + scale_state_bytes());
  const ScaledOptimizer<__half> without(device.context, model.parameters(), LossScaling::none(), {},
                                        {.weights = WeightForm::stored});
  EXPECT_EQ(device.ledger.live_by_category()[Category::optimizer] - before, 5 * 4096 + 2 * scale_state_bytes());
}

TEST(ScaledOptimizerTest, NeedsGradients) {
  Device device;
  MixedModel<float> model(device, 3);
  auto parameters = model.parameters();
  parameters[0].gradient = nullptr;
  EXPECT_THROW(ScaledOptimizer<float>(device.context, parameters, LossScaling::none()), std::invalid_argument);
}

}  // namespace
}  // namespace oomlab::test
