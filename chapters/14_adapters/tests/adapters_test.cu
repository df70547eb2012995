// A base that is stored in fewer bits, against the same weights decoded; and what the chapter's rows leave alone.

#include <gtest/gtest.h>

#include <map>

#include "../../../tests/nn/device.h"
#include "learning.h"

namespace oomlab::test {
namespace {

using namespace adapters;

data::TextSampler text_of(std::size_t seq) { return {data::course_text(), {.seq = seq, .seed = kTextSeed}}; }

Task task_of(const char* model, std::size_t batch = 2, std::size_t seq = 12) {
  Task task{nn::parse_transformer(model), nullptr, nullptr, batch, seq, {}};
  task.source = std::make_shared<const Source>(task.spec, std::nullopt);
  task.text = std::make_shared<const data::TextSampler>(text_of(seq));
  return task;
}
const AdapterForm kForm{.rank = 4, .alpha = 8};
Recipe recipe(const char* name, DType dtype = DType::fp32) { return recipe_of(recipes(dtype, kForm), name); }

class Encoded : public ::testing::TestWithParam<Scheme> {};
INSTANTIATE_TEST_SUITE_P(Formats, Encoded,
                         ::testing::Values(Scheme::int8_tensor, Scheme::int8_row, Scheme::int4, Scheme::nf4),
                         [](const auto& i) { return std::string(quantised::name_of(i.param)); });

// Both ways, with bias and without, added to what is there and not, for sizes that eighths do not divide.
TEST_P(Encoded, ProductsAreThoseOfTheDecodedMatrix) {
  constexpr std::size_t rows = 5, in = 128, out = 27, stride = 131;
  Device device;
  Context& context = device.context;
  const auto w_ = random_floats(out * in, 1, 0.3f), x_ = random_floats(rows * stride, 2), b_ = random_floats(out, 3),
             dy_ = random_floats(rows * out, 4), dx_ = random_floats(rows * in, 5);
  const quantised::Format format{.scheme = GetParam(), .group = 64};
  quantisation::Matrix<float> matrix(context, format, "w", out, in);
  quantisation::Loading loading(context, quantised::loading_bytes(format, out, in));
  const auto w = device.upload(w_);
  matrix.encode(context, loading, [&](Context& c, std::size_t first, std::size_t count, float* to) {
    CUDA_CHECK(cudaMemcpyAsync(to, w.data() + first, count * sizeof(float), cudaMemcpyDeviceToDevice, c.stream()));
  });
  auto decoded = context.buffer<float>(out * in, Category::workspace, "decoded");
  matrix.decode(context, 0, out * in, decoded.data());
  auto part = device.upload(std::vector<float>(4 * in, NAN));  // 4 rows of 27, or 16 columns of 128
  ASSERT_GE(part.size(), 4 * in);
  auto columns = device.upload(std::vector<float>(out * 16, NAN));
  const EncodedMatrix<float> encoded(matrix, part.size() > columns.size() ? part.data() : columns.data());
  const nn::DenseWeights<float> dense{decoded.data(), in, out};
  const auto x = device.upload(x_), bias = device.upload(b_), dy = device.upload(dy_);
  for (const bool with_bias : {false, true})
    for (const bool add : {false, true}) {
      auto y = device.upload(dy_), expected = device.upload(dy_);
      encoded.multiply(context, {x.data(), stride}, with_bias ? bias.data() : nullptr, y.data(), rows, add);
      dense.multiply(context, {x.data(), stride}, with_bias ? bias.data() : nullptr, expected.data(), rows, add);
      expect_close(device.download(y), doubles(device.download(expected)), 1e-5, "y");
      auto dx = device.upload(dx_), expected_dx = device.upload(dx_);
      encoded.multiply_back(context, dy.data(), dx.data(), rows, add);
      dense.multiply_back(context, dy.data(), expected_dx.data(), rows, add);
      expect_close(device.download(dx), doubles(device.download(expected_dx)), 1e-5, "dx");
    }
}

// fingerprint() throws when a weight of the base has changed.
TEST(Rows, LearnAndLeaveTheBaseAlone) {
  for (const char* model : {"llama:2-4-2-64-172", "gpt:2-2-64"})
    for (const char* name : {kFull, kHead, kLora, kQv, kDropout, kCheckpoints, kInt8, kQlora, kQloraCheckpoints}) {
      Device device;
      Task task = task_of(model, 4, 24);
      task.lr = 1e-2f;
      Tuning<float> training(device.context, task, recipe(name));
      const auto samples = task.text->samples(0, 4);
      const double before = training.loss_of(samples, 4);
      const std::uint64_t begin = training.fingerprint();
      for (int step = 0; step < 8; ++step) training.step();
      EXPECT_NE(training.fingerprint(), begin) << model << ", " << name;
      EXPECT_LT(training.loss_of(samples, 4), before) << model << ", " << name;
    }
}

TEST(Rows, AChangedBaseIsNoticed) {
  Device device;
  Tuning<float> training(device.context, task_of("llama:1-2-2-16-24"), recipe(kLora));
  training.step();
  (void)training.fingerprint();
  nn::fill(device.context, training.base().dense(0), 1, 0.5f);
  EXPECT_THROW((void)training.fingerprint(), std::runtime_error);
}

TEST(Rows, CheckpointsLearnTheSameBits) {
  for (const auto& [kept, again] : {std::pair{kLora, kCheckpoints}, {kQlora, kQloraCheckpoints}}) {
    std::uint64_t found[2];
    for (int i = 0; i < 2; ++i) {
      Device device;
      Tuning<float> training(device.context, task_of("llama:2-4-2-64-172"), recipe(i ? again : kept));
      for (int step = 0; step < 3; ++step) training.step();
      found[i] = training.fingerprint();
    }
    EXPECT_EQ(found[0], found[1]) << kept;
  }
}

// A tied head that is trained alone becomes a matrix of its own: first the same, then not.
TEST(Rows, AHeadOfItsOwnBeginsAsTheEmbedding) {
  Device device;
  const Task task = task_of("llama:1-2-2-16-24");
  Tuning<float> training(device.context, task, recipe(kHead));
  FrozenBase<float>& base = training.base();
  const std::size_t count = task.spec.vocabulary * task.spec.width;
  const auto embedding = device.download(base.dense(0), count);
  EXPECT_EQ(device.download(base.dense(base.size() - 1), count), embedding);
  training.step();
  EXPECT_EQ(device.download(base.dense(0), count), embedding);
  EXPECT_NE(device.download(base.dense(base.size() - 1), count), embedding);
}

TEST(Rows, AMergedModelSaysWhatItsAdapterSaid) {
  Device device;
  const Task task = task_of("llama:2-4-2-64-172");
  Using<float> merged(device.context, task, recipe(kMerged)), several(device.context, task, recipe(kServing));
  merged.step();
  EXPECT_NEAR(several.loss_with(0), merged.figure(), 1e-5);
  EXPECT_NE(several.loss_with(1), several.loss_with(0));
}

TEST(Learning, AsksAboutWhatWasNotTrainedOn) {
  const TwoTexts two = split(data::course_text());
  const std::vector<unsigned char> whole = data::course_text().bytes;
  ASSERT_EQ(two.trained.bytes.size() + two.held.bytes.size(), whole.size());
  EXPECT_EQ(two.held.bytes.size(), whole.size() / 10);
  EXPECT_TRUE(std::equal(two.trained.bytes.begin(), two.trained.bytes.end(), whole.begin()));
  EXPECT_TRUE(std::equal(two.held.bytes.rbegin(), two.held.bytes.rend(), whole.rbegin()));
}

// Each way begins where the base is, and learns; its peak is what is predicted of a step.
TEST(Learning, EachWayLearnsInItsOwnMemory) {
  const Config config;
  const Task task = task_of("llama:1-2-1-16-24");
  const data::TokenSamples held = text_of(12).samples(1000, kHeldSamples);
  std::map<std::string, Learned> found;
  for (const Recipe& way : ways_to_learn(DType::fp32)) {
    const Learned& learned = found[way.name] = learn(config, task, way, held, 8, 1e-2f);
    ASSERT_EQ(learned.losses.size(), 1 + kQuarters) << way.name;
    EXPECT_LT(learned.losses.back(), learned.losses.front()) << way.name;
    EXPECT_EQ(learned.peak.total(), predicted(task, way).total()) << way.name;
  }
  ASSERT_EQ(found.size(), 5u);
  EXPECT_EQ(found.at("lora, rank 1").losses.front(), found.at("full").losses.front()) << "B begins with 0";
  EXPECT_LT(found.at("lora, rank 1").peak.total(), found.at("lora, rank 16").peak.total());
}

TEST(Published, PlansAreNotAboveTheFiguresOfOthers) {
  // torchtune's README, Llama 3.1: 8B with LoRA on one card, 2 x 2048 packed; rank 8, BF16, checkpoints.
  EXPECT_LE(peak_at({"llama-3.1-8b", 2, 2048, 8}, kLora) / double(1 << 30), 1.1 * 16.2);
  // A T4's memory, less its context.
  EXPECT_LE(peak_at({"llama-3.1-8b", 1, 1024, 16, DType::fp16}, kQlora) / double(1 << 30), 14.75 - 0.14);
}

}  // namespace
}  // namespace oomlab::test
