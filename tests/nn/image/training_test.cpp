// Training adapters on a denoiser: what a step allocates against the walk that predicts it, gradients against differences of
// the loss, and what is left of a step that runs out of memory.

#include "../refusing.h"
#include "training_runs.h"

namespace oomlab::test {
namespace {

void expect_as_predicted(const PipelineSpec& spec, const Run& run, nn::InputSize size) {
  const std::string what = spec.name + ", " + shown(run) + ", " + std::to_string(run.batch);
  const TrainingCost predicted = cost_of_training(spec, run, kLora, size);
  double flops = 0;
  expect_equal(trained(spec, run, size, &flops).device, predicted.peak.at_peak, what);
  EXPECT_EQ(flops, 2 * predicted.multiply_adds) << what;
}

TEST(DenoiserTraining, TakesWhatIsPredicted) {
  for (const PixelAttention attention : kAttentions)
    for (const DType type : kModelDTypes) {
      expect_as_predicted(three_levels(), {.batch = 1, .dtype = type, .attention = attention}, {8, 4});
      expect_as_predicted(pipeline_named("digits"), {.batch = 2, .dtype = type, .attention = attention}, {8, 8});
    }
}

TEST(DenoiserTraining, TakesWhatIsPredictedInAnyConvolution) {
  for (const auto way : {nn::ConvolutionWay::im2col, nn::ConvolutionWay::direct})
    expect_as_predicted(three_levels(), {.batch = 2, .convolution = way}, {4, 8});
}

// The base of an adapter may be stored in fewer bits (QLoRA).
TEST(DenoiserTraining, TakesWhatIsPredictedOnFewerBits) {
  for (const unsigned bits : {8u, 4u})
    expect_as_predicted(three_levels(), {.batch = 2, .dtype = DType::bf16, .denoiser_bits = bits}, {4, 4});
}

// The first adapter stands in the second level: in front of it nothing is kept, and nothing has a gradient.
TEST(DenoiserTraining, KeepsNothingInFrontOfTheFirstAdapter) {
  PipelineSpec early = three_levels();
  std::get<UNetSpec>(early.denoiser).transformers = {2, 2, 0};
  const image::Run run{.batch = 1, .attention = PixelAttention::fused};
  const auto activations = [&](const PipelineSpec& spec) {
    return trained(spec, run, {8, 8}).device[Category::activations];
  };
  EXPECT_LT(activations(three_levels()), activations(early) / 2);
}

// Adapters whose B is 0 change no bit, and neither does what is kept.
TEST(DenoiserTraining, BeginsWithTheBitsOfTheFrozenDenoiser) {
  const PipelineSpec spec = three_levels();
  for (const PixelAttention attention : kAttentions) {
    const image::Run run{.batch = 2, .attention = attention};
    measured([&](Context& context) {
      Trained<float> trained(context, spec, run, {8, 4});
      Tape<float> tape;
      const NoisyBatch<float> batch = trained.batch();
      const auto kept =
          values_of(context, trained.model.forward(context, batch.latents, batch.timesteps, batch.text, batch.batch,
                                                   batch.size, trained.form, batch.added, &tape));
      trained.model.set_adapters(nullptr);
      EXPECT_EQ(kept, values_of(context, trained.inputs.pass(context, trained.model, trained.form)));
      EXPECT_FALSE(tape.empty());
      return kept;
    });
  }
}

double loss_of(Context& context, Trained<float>& trained, const std::vector<float>& noise) {
  double sum = 0;
  const auto prediction = values_of(context, trained.inputs.pass(context, trained.model, trained.form));
  for (std::size_t i = 0; i < noise.size(); ++i) sum += std::pow(double(prediction[i]) - noise[i], 2);
  return sum / static_cast<double>(noise.size());
}

// Of each tensor: moved along its gradient, the loss changes by the gradient's length.
TEST(DenoiserTraining, GradientsAreDifferencesOfTheLoss) {
  const PipelineSpec spec = three_levels();
  measured([&](Context& context) {
    Trained<float> trained(context, spec, {.batch = 1}, {8, 4});
    trained.pretend_trained(context);
    trained.training.gradients(context, trained.batch(), trained.form);
    const std::vector<float> noise = values_of(context, trained.noise);
    EXPECT_NEAR(trained.training.loss(context), loss_of(context, trained, noise), 1e-5);
    std::size_t tensors = 0;
    for (const auto& tensor : trained.training.adapters().parameters()) {
      std::vector<float> gradient(tensor.count), value(tensor.count);
      const auto transfer = [&](void* to, const void* from) {
        CUDA_CHECK(cudaMemcpyAsync(to, from, tensor.count * sizeof(float), cudaMemcpyDefault, context.stream()));
        context.synchronize();
      };
      transfer(gradient.data(), tensor.gradient);
      transfer(value.data(), tensor.value);
      double length = 0;
      for (const float g : gradient) length += double(g) * g;
      length = std::sqrt(length);
      EXPECT_GT(length, 1e-3) << tensor.name;
      const auto moved = [&](double by) {
        std::vector<float> there = value;
        for (std::size_t i = 0; i < there.size(); ++i) there[i] += static_cast<float>(by * gradient[i] / length);
        transfer(tensor.value, there.data());
        return loss_of(context, trained, noise);
      };
      const double step = 1e-2, difference = (moved(step) - moved(-step)) / (2 * step);
      transfer(tensor.value, value.data());
      EXPECT_NEAR(difference, length, 0.01 * length + 1e-4) << tensor.name;
      ++tensors;
    }
    EXPECT_EQ(tensors, lora_tensors(*spec.unet(), kLora.rank).size());
    return noise;
  });
}

TEST(DenoiserTraining, LowersTheLoss) {
  for (const DType type : kModelDTypes)
    measured_as(type, [&]<class T>(Context& context, T) {
      Trained<T> trained(context, three_levels(), {.batch = 2}, {4, 4});
      trained.step(context);
      const double before = trained.training.loss(context);
      for (int i = 0; i < 8; ++i) trained.step(context);
      EXPECT_LT(trained.training.loss(context), 0.98 * before) << name_of(type);
      return std::vector<float>();
    });
}

TEST(DenoiserTraining, RefusesWhatItCannotTrain) {
  PipelineSpec blind = three_levels();
  std::get<UNetSpec>(blind.denoiser).transformers = {0, 0, 0};
  std::get<UNetSpec>(blind.denoiser).mid_transformers = 0;
  measured([&](Context& context) {
    EXPECT_THROW(LoraAdapters<float>(context, *three_levels().unet(), {.rank = 0}, 1), std::invalid_argument);
    Denoiser<float> elsewhere(context, *three_levels().unet(), Residency::model, random_weights());
    EXPECT_THROW(DenoiserTraining<float>(context, elsewhere, kLora, 1, {}), std::invalid_argument);
    return std::vector<float>();
  });
  EXPECT_THROW(cost_of_training(three_levels(), {.residency = Residency::layer}, kLora, {4, 4}), std::invalid_argument);
  EXPECT_THROW(cost_of_training(pipeline_named("flux.1-dev"), {}, kLora, {4, 4}), std::invalid_argument);
  EXPECT_THROW(cost_of_training(three_levels(), {}, {.rank = 0}, {4, 4}), std::invalid_argument);
}

// Two levels of one layer each: a step has fewer allocations.
PipelineSpec two_levels() {
  PipelineSpec spec = three_levels();
  UNetSpec& unet = std::get<UNetSpec>(spec.denoiser);
  unet.channels = {8, 16};
  unet.transformers = {0, 1};
  unet.heads = {1, 2};
  unet.layers_per_block = 1;
  return spec;
}

// Each allocation of a step is refused once; of the other forms of attention, one in seven. (A sanitizer needs no more than one in five
// of these to see each kind.)
TEST(DenoiserTraining, OutOfMemoryChangesNothing) {
  for (const PixelAttention attention : kAttentions) {
    Refusing resource;
    Ledger ledger;
    Context context(resource, ledger);
    const image::Run run{.batch = 1, .attention = attention};
    std::uint64_t after_two = 0;
    {
      Trained<float> trained(context, two_levels(), run, {4, 4});
      trained.step(context);
      trained.step(context);
      after_two = trained.fingerprint(context);
    }
    Trained<float> trained(context, two_levels(), run, {4, 4});
    trained.step(context);
    const std::uint64_t live = ledger.live_bytes();
    std::size_t refused = 1;
    for (;; refused += (attention == PixelAttention::textbook ? 1 : 7) * (OOMLAB_ROUNDS < 10 ? 5 : 1)) {
      resource.arm(refused);
      try {
        trained.step(context);
        break;  // it has fewer allocations, and has now been done
      } catch (const OutOfMemory&) {
        ASSERT_EQ(ledger.live_bytes(), live) << refused;
      }
    }
    resource.arm(0);
    EXPECT_GT(refused, 200u);
    EXPECT_EQ(trained.fingerprint(context), after_two) << name_of(attention);
  }
}

}  // namespace
}  // namespace oomlab::test
