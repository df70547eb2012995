// Where weights are changes no bit; memory that runs out in the middle leaves nothing behind, and the next pass gives the
// bits that this one would have given.

#include "image_runs.h"

namespace oomlab::test {
namespace {

double relative(const std::vector<float>& found, const std::vector<float>& expected) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(double(found[i]) - double(expected[i]), 2);
    norm += std::pow(double(expected[i]), 2);
  }
  return std::sqrt(difference / norm);
}

// As bits: no NaN hides a difference.
bool finite(const std::vector<float>& values) {
  return std::ranges::all_of(values, [](float v) { return std::isfinite(v); });
}

TEST(ImageResidency, ChangesNoBit) {
  const PipelineSpec spec = three_levels();
  for (const PixelAttention attention : kAttentions)
    for (const DType type : {DType::fp32, DType::bf16}) {
      image::Run run{.dtype = type, .attention = attention};
      const auto text = encoded(spec.text.front(), run, 2).values;
      const auto noise = denoised(spec, run, 2, {4, 8}).values;
      const auto images = decoded(spec.autoencoder, run, 2, {4, 8}).values;
      for (const auto* values : {&text, &noise, &images}) EXPECT_TRUE(finite(*values)) << shown(run);
      for (const Residency residency : {Residency::model, Residency::layer}) {
        run.residency = residency;
        EXPECT_EQ(encoded(spec.text.front(), run, 2).values, text) << shown(run);
        EXPECT_EQ(denoised(spec, run, 2, {4, 8}).values, noise) << shown(run);
        EXPECT_EQ(decoded(spec.autoencoder, run, 2, {4, 8}).values, images) << shown(run);
      }
    }
}

TEST(ImageResidency, ChangesNoBitOfFewerBits) {
  const PipelineSpec spec = three_levels();
  const auto whole = denoised(spec, {}, 1, {4, 4}).values;
  double errors[2];
  for (const unsigned bits : {8u, 4u}) {
    image::Run run{.denoiser_bits = bits};
    const auto noise = denoised(spec, run, 1, {4, 4}).values;
    ASSERT_TRUE(finite(noise)) << bits;
    errors[bits == 4] = relative(noise, whole);
    for (const Residency residency : {Residency::model, Residency::layer}) {
      run.residency = residency;
      EXPECT_EQ(denoised(spec, run, 1, {4, 4}).values, noise) << shown(run);
    }
  }
  EXPECT_GT(errors[0], 0);
  EXPECT_LT(errors[0], 0.05);
  EXPECT_GT(errors[1], errors[0]);
  EXPECT_LT(errors[1], 0.5);  // of random weights
}

TEST(ImageResidency, FormsDifferByRoundingOnly) {
  const PipelineSpec spec = three_levels();
  const auto noise = denoised(spec, {}, 2, {8, 4}).values;
  const auto images = decoded(spec.autoencoder, {}, 2, {8, 4}).values;
  for (const PixelAttention attention : kAttentions)
    for (const auto way : {nn::ConvolutionWay::im2col, nn::ConvolutionWay::direct}) {
      const image::Run run{.attention = attention, .convolution = way};
      EXPECT_LT(relative(denoised(spec, run, 2, {8, 4}).values, noise), 1e-5) << shown(run);
      EXPECT_LT(relative(decoded(spec.autoencoder, run, 2, {8, 4}).values, images), 1e-5) << shown(run);
    }
  for (const DType type : {DType::fp16, DType::bf16}) {
    const double tolerance = type == DType::fp16 ? 0.01 : 0.08;
    EXPECT_LT(relative(denoised(spec, {.dtype = type}, 2, {8, 4}).values, noise), tolerance) << name_of(type);
    EXPECT_LT(relative(decoded(spec.autoencoder, {.dtype = type}, 2, {8, 4}).values, images), tolerance)
        << name_of(type);
  }
}

// `turn` begins before the pass, where the residency has one.
void runs_out_everywhere(Residency residency, PixelAttention attention) {
  const PipelineSpec spec = three_levels();
  const image::Run run{.residency = residency, .attention = attention};
  const Passed whole = denoised(spec, run, 1, {4, 4});
  CudaResource resource;
  Ledger ledger;
  LimitingResource limited(resource, whole.peak);
  Context context(limited, ledger);
  Denoiser<float> model(context, *spec.unet(), residency, random_weights());
  DenoiserInputs<float> inputs(context, spec, 1, {4, 4});
  const std::size_t before = ledger.live_bytes();
  const std::size_t free = whole.peak - before;
  const std::size_t tries = 24;
  for (std::size_t i = 1; i <= tries; ++i) {
    const std::size_t ballast_bytes = std::max<std::size_t>(1, free * i / tries / 512) * 512;
    {
      const auto ballast = context.buffer<std::byte>(ballast_bytes, Category::data, "ballast");
      EXPECT_THROW(
          {
            const auto turn = model.weights().stage();
            (void)inputs.pass(context, model, form_of(run));
          },
          OutOfMemory)
          << ballast_bytes << " of " << free << ", " << shown(run);
    }
    ASSERT_EQ(ledger.live_bytes(), before) << ballast_bytes << ", " << shown(run);
    if (i % 6) continue;
    const auto turn = model.weights().stage();
    EXPECT_EQ(values_of(context, inputs.pass(context, model, form_of(run))), whole.values) << shown(run);
  }
}

TEST(ImageOutOfMemory, LeavesNothingAndARetryGivesTheSame) {
  for (const Residency residency : kResidencies)
    for (const PixelAttention attention : {PixelAttention::textbook, PixelAttention::tiled})
      runs_out_everywhere(residency, attention);
}

TEST(ImageOutOfMemory, WhileWeightsAreLoaded) {
  const PipelineSpec spec = three_levels();
  for (const unsigned bits : {0u, 4u}) {
    CudaResource resource;
    Ledger ledger;
    LimitingResource limited(resource, round_to_granule(kBlasWorkspaceBytes) + 200'000);
    Context context(limited, ledger);
    const std::size_t before = ledger.live_bytes();
    EXPECT_THROW(Denoiser<float>(context, *spec.unet(), Residency::all, random_weights(),
                                 adapters::frozen_stores<float>(format_of_bits(bits))),
                 OutOfMemory);
    EXPECT_EQ(ledger.live_bytes(), before);
  }
  CudaResource resource;
  Ledger ledger;
  Context context(resource, ledger, kBlasWorkspaceBytes, false, {.limit = 100'000});
  EXPECT_THROW(Denoiser<float>(context, *spec.unet(), Residency::layer, random_weights()), OutOfMemory);
  EXPECT_EQ(context.host_memory().live_bytes(), 0u);
}

TEST(ImageResidency, WithoutItsTurnAModelHasNoWeights) {
  const PipelineSpec spec = three_levels();
  CudaResource resource;
  Ledger ledger;
  Context context(resource, ledger);
  Denoiser<float> model(context, *spec.unet(), Residency::model, random_weights());
  DenoiserInputs<float> inputs(context, spec, 1, {4, 4});
  const std::size_t before = ledger.live_bytes();
  EXPECT_THROW((void)inputs.pass(context, model, {}), std::logic_error);
  EXPECT_EQ(ledger.live_bytes(), before);
  {
    const auto turn = model.weights().stage();
    EXPECT_THROW((void)model.weights().stage(), std::logic_error);
    EXPECT_EQ(values_of(context, inputs.pass(context, model, {})), denoised(spec, {}, 1, {4, 4}).values);
  }
  EXPECT_EQ(ledger.live_bytes(), before);
}

TEST(ImageModels, RefuseWhatDoesNotFit) {
  const PipelineSpec spec = three_levels();
  CudaResource resource;
  Ledger ledger;
  Context context(resource, ledger);
  Denoiser<float> model(context, *spec.unet(), Residency::all, random_weights());
  DenoiserInputs<float> inputs(context, spec, 1, {4, 4});
  const std::size_t before = ledger.live_bytes();
  const auto pass = [&](std::size_t width, nn::InputSize size, const float* pooled) {
    (void)model.forward(context, inputs.latents.data(), inputs.timesteps.data(), {inputs.text.data(), 7, width}, 1,
                        size, {}, {pooled, inputs.numbers.data()});
  };
  EXPECT_THROW(pass(24, {4, 6}, inputs.pooled.data()), std::invalid_argument);
  EXPECT_THROW(pass(24, {0, 4}, inputs.pooled.data()), std::invalid_argument);
  EXPECT_THROW(pass(23, {4, 4}, inputs.pooled.data()), std::invalid_argument);
  EXPECT_THROW(pass(24, {4, 4}, nullptr), std::invalid_argument);
  TextEncoderSpec t5 = spec.text.front();
  t5.kind = TextKind::t5;
  EXPECT_THROW(TextEncoder<float>(context, t5, Residency::all, random_weights()), std::invalid_argument);
  TextEncoder<float> text(context, spec.text.front(), Residency::all, random_weights());
  const auto tokens = upload<int>(context, 14, "tokens", Category::data);
  const std::size_t ends[] = {6, 7};
  EXPECT_THROW((void)text.forward(context, tokens.data(), 2, {}, ends), std::invalid_argument);
  Encoder<float> encoder(context, spec.autoencoder, Residency::all, random_weights());
  EXPECT_THROW(
      (void)encoder.forward(context, upload<float>(context, 3 * 20, "images", Category::activations), 1, {4, 5}, {}),
      std::invalid_argument);
  EXPECT_GT(ledger.live_bytes(), before);  // the models themselves
}

}  // namespace
}  // namespace oomlab::test
