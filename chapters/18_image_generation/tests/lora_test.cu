// Whether a LoRA learns what it is shown: digits that are black on white.

#include <gtest/gtest.h>

#include <cstdlib>

#include "lora.h"

namespace {

using namespace oomlab;
using namespace oomlab::image_generation;

template <class Body>
void with_device(Body body) {
  Ledger ledger;
  with_context({}, kUnlimited, ledger, [&](Context& context) { body(context); });
}
double mean_of(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += double(value) / double(values.size());
  return sum;
}
std::shared_ptr<const TrainingSet> digits_for(std::size_t images) {
  std::shared_ptr<const TrainingSet> set;
  with_device(
      [&](Context& context) { set = std::make_shared<const TrainingSet>(inverted_digits(context, images, 32)); });
  return set;
}
std::vector<float> decoded(Context& context, const TrainingSet& set) {
  const PipelineSpec& spec = pipeline_named("digits");
  Decoder<float> decoder(context, spec.autoencoder, Residency::all, weights_of(spec).decoder);
  DeviceBuffer<float> latents = context.buffer<float>(set.latents.size(), Category::activations, "latents");
  std::vector<float> scaled = set.latents;
  for (float& value : scaled) value = float(value / spec.autoencoder.scaling);
  send(context, latents, scaled);
  return received(context, decoder.forward(context, std::move(latents), set.images, {8, 8}, {}));
}

// What the decoder makes of the latents is the digit, paper and ink the other way round.
TEST(TrainingSets, AreDigitsBlackOnWhite) {
  const auto set = digits_for(20);
  EXPECT_EQ(set->rows.size(), 20u * 8 * 32);
  with_device([&](Context& context) {
    std::vector<float> images = decoded(context, *set);
    EXPECT_GT(mean_of(images), 0);
    for (float& pixel : images) pixel = -pixel;
    EXPECT_GE(read_as_named(context, images), 18u);
  });
}

// A handful of steps by day. By night, where OOMLAB_LORA says how many, also what the denoiser draws, without guidance: on
// average a pixel has come more than half of the way from its own digits to those that it was shown.
TEST(Lora, LearnsToDrawBlackOnWhite) {
  const char* const night = std::getenv("OOMLAB_LORA");
  const std::size_t steps = night ? std::strtoul(night, nullptr, 10) : 20, of_mean = 5, images = night ? 200 : 8;
  PipelineSpec spec = pipeline_named("digits");
  const auto set = digits_for(images);
  with_device([&](Context& context) {
    LoraTraining<float> training(context, spec, {.batch = 8, .attention = PixelAttention::fused}, set);
    std::vector<float> losses;
    for (std::size_t i = 0; i < steps; ++i) {
      training.step();
      losses.push_back(float(training.figure()));
    }
    const double first = mean_of({losses.begin(), losses.begin() + of_mean});
    const double last = mean_of({losses.end() - of_mean, losses.end()});
    EXPECT_LT(last, 0.9 * first) << first;
    if (!night) return;

    spec.guidance = 1;
    Pipeline<float> pipeline(context, spec, {.batch = 20}, weights_of(spec));
    const auto drawn = [&] { return mean_of(received(context, pipeline.generate(wishes_of(20, 3)))); };
    const double own = drawn(), shown = mean_of(decoded(context, *set));
    pipeline.denoiser().set_adapters(&training.adapters());
    const double learnt = drawn();
    EXPECT_LT(own, shown);
    EXPECT_GT(learnt, (own + shown) / 2) << own << ", " << shown;
  });
}

// The same steps give the same bits.
TEST(Lora, IsRepeatable) {
  const auto set = digits_for(3);
  const auto trained = [&] {
    std::uint64_t fingerprint = 0;
    with_device([&](Context& context) {
      LoraTraining<float> training(context, pipeline_named("digits"), {.batch = 2}, set);
      const std::uint64_t before = training.fingerprint();
      for (int i = 0; i < 2; ++i) training.step();
      fingerprint = training.fingerprint();
      EXPECT_NE(fingerprint, before);
    });
    return fingerprint;
  };
  EXPECT_EQ(trained(), trained());
}

}  // namespace
