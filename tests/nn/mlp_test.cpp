// The whole model: gradients against the reference, and what an out-of-memory leaves behind.

#include "nn/models/mlp.h"

#include <memory>
#include <optional>

#include "cuda/backend.h"
#include "cuda/block_threads.h"
#include "device.h"
#include "nn/ops/values.h"
#include "reference.h"
#include "refusing.h"

namespace oomlab::test {
namespace {

using namespace nn;

MlpSpec spec_of(std::vector<std::size_t> widths, Activation activation) {
  return {"test", std::move(widths), activation};
}

Batch batch_of(Context& context, const std::vector<float>& input, const std::vector<int>& labels) {
  Batch batch = make_batch(context, labels.size(), input.size() / labels.size());
  CUDA_CHECK(
      cudaMemcpyAsync(batch.input.data(), input.data(), batch.input.bytes(), cudaMemcpyHostToDevice, context.stream()));
  CUDA_CHECK(cudaMemcpyAsync(batch.labels.data(), labels.data(), batch.labels.bytes(), cudaMemcpyHostToDevice,
                             context.stream()));
  CUDA_CHECK(cudaStreamSynchronize(context.stream()));
  return batch;
}

// The number of parameter bits that are still the same is counted by comparing them all.
std::vector<std::vector<float>> download_all(Device& device, Mlp& model) {
  std::vector<std::vector<float>> all;
  for (const Parameter& p : model.parameters()) all.push_back(device.download(p.value, p.count));
  return all;
}

class Model : public ::testing::TestWithParam<std::tuple<unsigned, Activation>> {
 protected:
  void SetUp() override { set_block_threads(std::get<0>(GetParam())); }
  void TearDown() override { set_block_threads(256); }
  Device device;
};
INSTANTIATE_TEST_SUITE_P(All, Model,
                         ::testing::Combine(::testing::ValuesIn(kDistinctBlockThreads),
                                            ::testing::Values(Activation::none, Activation::relu, Activation::gelu)),
                         [](const auto& info) {
                           return std::string(name_of(std::get<1>(info.param))) + "_" +
                                  std::to_string(std::get<0>(info.param));
                         });

TEST_P(Model, GradientsAgreeWithTheReference) {
  for (const auto& widths : {std::vector<std::size_t>{3, 2}, {5, 7, 3}, {6, 4, 9, 5, 4}, {64, 32, 10}})
    for (const std::size_t rows : {1, 6, 17}) {
      const MlpSpec spec = spec_of(widths, std::get<1>(GetParam()));
      Mlp model(device.context, spec, 11, true);
      const auto input = random_floats(rows * spec.inputs(), 1, 1.0f);
      const auto labels = random_labels(rows, spec.classes(), 2);
      // biases start at zero; give them something to do
      unsigned seed = 5;
      ReferenceMlp reference{widths, spec.activation, {}};
      for (const Parameter& p : model.parameters()) {
        const auto values = random_floats(p.count, ++seed, p.name.ends_with("bias") ? 0.1f : 0.6f);
        CUDA_CHECK(cudaMemcpyAsync(p.value, values.data(), p.count * sizeof(float), cudaMemcpyHostToDevice,
                                   device.context.stream()));
        CUDA_CHECK(cudaStreamSynchronize(device.context.stream()));
        reference.parameters.push_back(doubles(values));
      }
      const auto expected = reference.run(doubles(input), labels);
      if (spec.parameters() < 200)
        for (std::size_t i = 0; i < reference.parameters.size(); ++i) {
          const auto numeric = central_differences(reference.parameters[i], [&](const Vector& v) {
            ReferenceMlp moved = reference;
            moved.parameters[i] = v;
            return moved.run(doubles(input), labels).loss;
          });
          double scale = 1;
          for (std::size_t j = 0; j < numeric.size(); ++j)
            ASSERT_NEAR(expected.gradients[i][j], numeric[j], 1e-6 * scale) << "reference, tensor " << i;
        }

      model.forward_backward(device.context, batch_of(device.context, input, labels));
      EXPECT_NEAR(model.loss(device.context), expected.loss, 1e-4 * std::max(1.0, expected.loss));
      const auto parameters = model.parameters();
      for (std::size_t i = 0; i < parameters.size(); ++i)
        expect_close(device.download(parameters[i].gradient, parameters[i].count), expected.gradients[i], 1e-4,
                     parameters[i].name);

      // in two halves, accumulated, the same
      if (rows > 1) {
        const std::size_t half = rows / 2, cut = half * spec.inputs();
        model.forward_backward(
            device.context,
            batch_of(device.context, {input.begin(), input.begin() + static_cast<std::ptrdiff_t>(cut)},
                     {labels.begin(), labels.begin() + static_cast<std::ptrdiff_t>(half)}),
            {false, rows});
        model.forward_backward(device.context,
                               batch_of(device.context, {input.begin() + static_cast<std::ptrdiff_t>(cut), input.end()},
                                        {labels.begin() + static_cast<std::ptrdiff_t>(half), labels.end()}),
                               {true, rows});
        EXPECT_NEAR(model.loss(device.context), expected.loss, 1e-4 * std::max(1.0, expected.loss));
        for (std::size_t i = 0; i < parameters.size(); ++i)
          expect_close(device.download(parameters[i].gradient, parameters[i].count), expected.gradients[i], 1e-4,
                       parameters[i].name + ", accumulated");
      }
    }
}

TEST_P(Model, InferenceIsTheForwardOfTraining) {
  const std::size_t rows = 9;
  const MlpSpec spec = spec_of({12, 20, 15, 6}, std::get<1>(GetParam()));
  Mlp model(device.context, spec, 3, false);
  const auto input = random_floats(rows * 12, 1, 1.0f);
  const auto labels = random_labels(rows, 6, 2);
  ReferenceMlp reference{spec.widths, spec.activation, {}};
  for (const auto& tensor : download_all(device, model)) reference.parameters.push_back(doubles(tensor));

  Vector x = doubles(input);
  for (std::size_t l = 1; l <= spec.layers(); ++l) {
    x = linear(x, reference.parameters[2 * l - 2], reference.parameters[2 * l - 1], rows, spec.widths[l - 1],
               spec.widths[l]);
    if (l < spec.layers())
      for (double& v : x) v = activate(v, spec.activation);
  }
  std::size_t hits = 0;
  for (std::size_t r = 0; r < rows; ++r) {
    const auto row = x.begin() + static_cast<std::ptrdiff_t>(r * 6);
    hits += std::max_element(row, row + 6) - row == labels[r];
  }
  const auto logits = model.forward(device.context, std::move(batch_of(device.context, input, labels).input), rows);
  expect_close(device.download(logits), x, 1e-4, "logits");
  EXPECT_EQ(model.count_correct(device.context, batch_of(device.context, input, labels)), hits);
  EXPECT_THROW(model.forward_backward(device.context, batch_of(device.context, input, labels)), std::logic_error);
}

TEST(MlpInitialisation, SameBitsForAnyBlockSizeAndAnotherSeedOtherBits) {
  Device device;
  const MlpSpec spec = parse_model("mlp-small");
  std::optional<std::uint64_t> first;
  for (const unsigned threads : kDistinctBlockThreads) {
    set_block_threads(threads);
    const Mlp model(device.context, spec, 7, false);
    if (!first) first = model.fingerprint(device.context);
    EXPECT_EQ(model.fingerprint(device.context), *first);
  }
  set_block_threads(256);
  EXPECT_NE(Mlp(device.context, spec, 8, false).fingerprint(device.context), *first);
  Mlp model(device.context, spec, 7, false);
  const auto tensors = download_all(device, model);
  const float bound = std::sqrt(6.0f / 64);
  float largest = 0;
  for (const float v : tensors[0]) largest = std::max(largest, std::fabs(v));
  EXPECT_LE(largest, bound);
  EXPECT_GT(largest, 0.99f * bound);
  for (const float v : tensors[1]) EXPECT_EQ(v, 0.0f);
}

TEST(MlpInitialisation, FingerprintSeesEveryBit) {
  Device device;
  Mlp model(device.context, spec_of({3, 2}, Activation::relu), 1, false);
  const auto before = model.fingerprint(device.context);
  for (const Parameter& p : model.parameters())
    for (std::size_t i = 0; i < p.count; ++i) {
      float value = device.download(p.value + i, 1)[0], other = std::nextafter(value, 10.0f);
      device.put(p.value + i, std::vector{other});
      EXPECT_NE(model.fingerprint(device.context), before);
      device.put(p.value + i, std::vector{value});
      EXPECT_EQ(model.fingerprint(device.context), before);
    }
}

TEST(MlpBatch, WrongSizesAreRefused) {
  Device device;
  Mlp model(device.context, spec_of({4, 3}, Activation::relu), 1, true);
  EXPECT_THROW(make_batch(device.context, 0, 4), std::invalid_argument);
  EXPECT_THROW(model.forward_backward(device.context, make_batch(device.context, 2, 5)), std::invalid_argument);
  EXPECT_THROW(model.forward(device.context, device.context.buffer<float>(9, Category::activations, "x"), 2),
               std::invalid_argument);
}

TEST(MlpTags, AreWhatTheReaderExpects) {
  Device device;
  device.ledger.record_timeline(true);
  Mlp model(device.context, spec_of({4, 6, 5, 3}, Activation::gelu), 1, true);
  model.forward_backward(device.context, batch_of(device.context, random_floats(8, 1), {0, 2}));
  std::vector<std::string> tags;
  for (const TimelineEvent& e : device.ledger.timeline())
    if (e.kind == TimelineEvent::Kind::alloc) tags.push_back(std::string(e.label) + " (" + name_of(e.category) + ")");
  EXPECT_EQ(tags, (std::vector<std::string>{"cuBLAS workspace (workspace)",
                                            "layer 1 weight (parameters)",
                                            "layer 1 bias (parameters)",
                                            "layer 1 weight gradient (gradients)",
                                            "layer 1 bias gradient (gradients)",
                                            "layer 2 weight (parameters)",
                                            "layer 2 bias (parameters)",
                                            "layer 2 weight gradient (gradients)",
                                            "layer 2 bias gradient (gradients)",
                                            "layer 3 weight (parameters)",
                                            "layer 3 bias (parameters)",
                                            "layer 3 weight gradient (gradients)",
                                            "layer 3 bias gradient (gradients)",
                                            "loss (workspace)",
                                            "input (activations)",
                                            "batch labels (data)",
                                            "layer 1 pre-activation (activations)",
                                            "layer 1 activation (activations)",
                                            "layer 2 pre-activation (activations)",
                                            "layer 2 activation (activations)",
                                            "logits (activations)",
                                            "row losses (workspace)",
                                            "layer 2 activation gradient (activations)",
                                            "layer 1 activation gradient (activations)"}));
  const auto phases = device.ledger.phases();
  ASSERT_EQ(phases.size(), 2u);
  EXPECT_EQ(phases[0].name, "forward");
  EXPECT_EQ(phases[1].name, "backward");
}

TEST(MlpFlops, AreThoseOfItsProducts) {
  Device device;
  for (const auto& widths : {std::vector<std::size_t>{3, 2}, {5, 7, 3}, {6, 4, 9, 5, 4}})
    for (const std::size_t rows : {1, 6}) {
      const MlpSpec spec = spec_of(widths, Activation::relu);
      Mlp model(device.context, spec, 1, true);
      const std::uint64_t before = device.context.flops();
      const auto work = device_work();
      model.forward_backward(device.context, batch_of(device.context, random_floats(rows * spec.inputs(), 1),
                                                      random_labels(rows, spec.classes(), 2)));
      EXPECT_EQ(double(device.context.flops() - before), step_flops(spec, rows));
      if (work) {
        EXPECT_EQ(double((*device_work() - *work).gemm_flops), step_flops(spec, rows));  // what cuBLAS was asked for
      }
    }
  // In words: 2 x 5 x 7 and 2 x 7 x 3 forward, as much for the weights' gradients, and 2 x 7 x 3 back through layer 2.
  EXPECT_EQ(step_flops(spec_of({5, 7, 3}, Activation::relu), 10), 10.0 * (2 * (70 + 42) + 42));
}

// ------------------------------------------------------------------------------------------------------- out of memory

Optimizer<float> make_optimizer(Context& context, Mlp& model, UpdateRule rule) {
  return {context, model.parameters(), {rule}};
}

TEST(MlpOutOfMemory, AtEveryAllocationOfAStepChangesNothingAndARetryIsBitIdentical) {
  for (const Activation activation : {Activation::relu, Activation::gelu})
    for (const UpdateRule kind : {UpdateRule::sgd, UpdateRule::momentum, UpdateRule::adamw}) {
      const MlpSpec spec = spec_of({20, 40, 30, 5}, activation);
      const auto input = random_floats(8 * 20, 1, 1.0f);
      const auto labels = random_labels(8, 5, 2);
      Refusing resource;
      Ledger ledger;
      Context context(resource, ledger);

      // two steps that nothing disturbs
      std::uint64_t start = 0, after_one = 0, after_two = 0;
      {
        Mlp model(context, spec, 1, true);
        auto optimizer = make_optimizer(context, model, kind);
        start = model.fingerprint(context);
        model.train_step(context, batch_of(context, input, labels), optimizer);
        after_one = model.fingerprint(context);
        model.train_step(context, batch_of(context, input, labels), optimizer);
        after_two = model.fingerprint(context);
        ASSERT_NE(start, after_one);
        ASSERT_NE(after_one, after_two);
      }

      Mlp model(context, spec, 1, true);
      auto optimizer = make_optimizer(context, model, kind);
      const std::size_t resident = ledger.live_bytes();
      const auto step = [&] { model.train_step(context, batch_of(context, input, labels), optimizer); };
      std::size_t failures = 0;
      for (std::size_t k = 1;; ++k) {
        resource.arm(k);
        try {
          step();
        } catch (const OutOfMemory&) {
          ++failures;
          ASSERT_EQ(ledger.live_bytes(), resident);
          ASSERT_EQ(model.fingerprint(context), start);
          ASSERT_EQ(optimizer.steps(), 0u);
          continue;
        }
        break;  // the step has fewer than k allocations, and has now been done
      }
      resource.arm(0);
      // input, labels, three outputs, two more for GELU, row losses, two gradients
      EXPECT_EQ(failures, activation == Activation::gelu ? 10u : 8u);
      EXPECT_EQ(model.fingerprint(context), after_one);
      step();
      EXPECT_EQ(model.fingerprint(context), after_two);
      EXPECT_EQ(ledger.live_bytes(), resident);
    }
}

TEST(MlpOutOfMemory, UnderFallingBudgets) {
  const MlpSpec spec = spec_of({100, 300, 200, 10}, Activation::relu);
  const std::size_t batch = 64;
  const std::size_t peak = kBlasWorkspaceBytes + predict_training(spec, batch, UpdateRule::adamw).total();
  const std::size_t resident = kBlasWorkspaceBytes + resident_for_training(spec, UpdateRule::adamw).total();
  std::size_t in_step = 0, in_construction = 0, done = 0;
  for (std::size_t budget = peak; budget > (std::size_t(8) << 20); budget -= std::min<std::size_t>(budget, 16 * 512)) {
    CudaResource device;
    LimitingResource limit(device, budget);
    Ledger ledger;
    Context context(limit, ledger);
    const std::size_t empty = ledger.live_bytes();
    try {
      Mlp model(context, spec, 1, true);
      Optimizer<float> optimizer(context, model.parameters());
      const std::uint64_t before = model.fingerprint(context);
      ASSERT_EQ(ledger.live_bytes(), resident);
      try {
        Batch b = make_batch(context, batch, 100);
        fill(context, b.input.data(), b.input.size(), 0.5f);
        CUDA_CHECK(cudaMemsetAsync(b.labels.data(), 0, b.labels.bytes(), context.stream()));
        model.train_step(context, std::move(b), optimizer);
        ++done;
        EXPECT_NE(model.fingerprint(context), before);
      } catch (const OutOfMemory& error) {
        ++in_step;
        EXPECT_TRUE(error.report().by_limit);
        EXPECT_EQ(model.fingerprint(context), before);
        EXPECT_EQ(ledger.live_bytes(), resident);
      }
    } catch (const OutOfMemory&) {
      ++in_construction;
      EXPECT_EQ(ledger.live_bytes(), empty);
    }
  }
  EXPECT_EQ(done, 1u);  // the predicted peak is enough, and nothing below it
  EXPECT_GT(in_step, 5u);
  EXPECT_GT(in_construction, 5u);
}

}  // namespace
}  // namespace oomlab::test
