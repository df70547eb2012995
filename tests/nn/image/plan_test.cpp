// Plan mode counts what a run counts, and at the sizes of public models what the walk predicts.

#include "../../planning.h"
#include "training_runs.h"

namespace oomlab::test {
namespace {

TEST(ImagePlan, CountsWhatARunCounts) {
  const PipelineSpec spec = three_levels();
  for (const Residency residency : kResidencies)
    for (const PixelAttention attention : kAttentions)
      for (const unsigned bits : {0u, 8u}) {
        const image::Run run{.residency = residency, .attention = attention, .denoiser_bits = bits};
        const Passed ran = denoised(spec, run, 2, {4, 8});
        const Passed text = encoded(spec.text.front(), run, 2), image = decoded(spec.autoencoder, run, 2, {4, 8});
        const Planning planning;
        const Passed planned = denoised(spec, run, 2, {4, 8});
        EXPECT_EQ(planned.device, ran.device) << shown(run);
        EXPECT_EQ(planned.host.pinned, ran.host.pinned) << shown(run);
        EXPECT_EQ(encoded(spec.text.front(), run, 2).device, text.device) << shown(run);
        EXPECT_EQ(decoded(spec.autoencoder, run, 2, {4, 8}).device, image.device) << shown(run);
      }
}

// Some of all calls that may fail fail, one at a time.
TEST(ImageFaults, LeaveNothingBehind) {
  const PipelineSpec spec = three_levels();
  CudaResource resource;
  Ledger ledger;
  for (const Residency residency : {Residency::model, Residency::layer})
    for (const unsigned bits : {0u, 4u}) {
      const auto pass = [&] {
        Context context(resource, ledger);
        Denoiser<float> model(context, *spec.unet(), residency, random_weights(),
                              adapters::frozen_stores<float>(format_of_bits(bits)));
        const auto turn = model.weights().stage();
        DenoiserInputs<float> inputs(context, spec, 1, {4, 4});
        return values_of(context, inputs.pass(context, model, {}));
      };
      host::arm_fault(UINT64_MAX, false);
      const std::vector<float> expected = pass();
      host::disarm_fault();
      const std::uint64_t calls = host::fault_calls(), tries = 4 * OOMLAB_ROUNDS;
      EXPECT_GT(calls, 1000u);
      for (std::uint64_t i = 0; i < tries; ++i) {
        host::arm_fault(1 + calls * i / tries, false);
        try {
          (void)pass();
        } catch (const std::exception&) {
        }
        host::disarm_fault();
        ASSERT_EQ(ledger.live_bytes(), 0u) << i << ", " << name_of(residency) << ", " << bits;
        ASSERT_EQ(resource.reserved_bytes(), 0u) << i << ", " << name_of(residency) << ", " << bits;
      }
      EXPECT_EQ(pass(), expected);
    }
}

TEST(ImagePlan, PublicModelsAreAsPredicted) {
  const Planning planning;
  for (const char* name : {"sd-1.5", "sd-2.1", "sdxl"}) {
    const PipelineSpec& spec = pipeline_named(name);
    const std::size_t side = spec.size / spec.autoencoder.factor();
    for (const Residency residency : kResidencies)
      for (const unsigned bits : {0u, 4u}) {
        image::Run run{.dtype = DType::fp16, .residency = residency, .denoiser_bits = bits};
        const std::string what = std::string(name) + ", " + shown(run);
        expect_equal(denoised(spec, run, 2, {side, side}).device, predict_denoiser(spec, run, 2, {side, side}).at_peak,
                     what);
        run.attention = PixelAttention::tiled;
        expect_equal(decoded(spec.autoencoder, run, 1, {side, side}).device,
                     predict_decoder(spec.autoencoder, run, 1, {side, side}).at_peak, "decoder of " + what);
        for (const TextEncoderSpec& text : spec.text)
          expect_equal(encoded(text, run, 2).device, predict_text_encoder(text, run, 2).at_peak, "text of " + what);
      }
  }
}

TEST(ImagePlan, PublicModelsAreTrainedAsPredicted) {
  const Planning planning;
  for (const char* name : {"digits", "sd-1.5", "sd-2.1", "sdxl"}) {
    const PipelineSpec& spec = pipeline_named(name);
    for (const PixelAttention attention : kAttentions)
      for (const DType type : {DType::fp32, DType::bf16}) {
        const image::Run run{.batch = 2, .dtype = type, .attention = attention};
        const nn::InputSize latents = latents_of(spec, run);
        expect_equal(trained(spec, run, latents).device, cost_of_training(spec, run, kLora, latents).peak.at_peak,
                     std::string(name) + ", " + shown(run));
      }
  }
}

}  // namespace
}  // namespace oomlab::test
