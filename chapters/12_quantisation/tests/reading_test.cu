// A model that reads: in FP32 what the pass without a cache says, which is tested against PyTorch; in every format what
// it costs; and that no matrix is ever there dequantised.

#include <cmath>
#include <cstdlib>

#include "claims.h"
#include "small_llama.h"

namespace {

using namespace oomlab;
using namespace oomlab::test;

const Format kInt8Tensors{.scheme = Scheme::int8_tensor}, kInt8Rows{.scheme = Scheme::int8_row},
    kInt4Groups{.scheme = Scheme::int4}, kNf4Blocks{.scheme = Scheme::nf4},
    kInt8Dynamic{.scheme = Scheme::int8_row, .dynamic = true};
const Format kQuantisedFormats[] = {kInt8Tensors, kInt8Rows, kInt4Groups, kNf4Blocks, kInt8Dynamic};

TEST(Reading, InFp32IsThePassWithoutACache) {
  const Source source(bytes_llama(), std::nullopt);
  const Read of{.sequences = 3, .seq = 4 * OOMLAB_ROUNDS, .batches = 1};
  Reader<float> reader(source, {}, of);
  const ReadResult& read = reader.read();

  Device device;
  nn::Transformer<float> model(device.context, source.spec(), 1, false);
  for (std::size_t i = 0; i < source.shapes().size(); ++i)
    source.piece(device.context, i, 0, source.shapes()[i].count(), model.parameter(i).value);
  const data::TokenSamples samples = text_of(of.seq).samples(0, of.sequences);
  const std::vector<float> logits = device.download(model.logits(
      device.context, nn::make_token_batch(device.context, samples.tokens, samples.labels, of.sequences, of.seq)));
  double loss = 0;
  for (std::size_t row = 0; row < of.sequences * of.seq; ++row) {
    const float* const x = logits.data() + row * 256;
    double sum = 0;
    for (int k = 0; k < 256; ++k) sum += std::exp(double(x[k]));
    loss += std::log(sum) - double(x[samples.labels[row]]);
    // Of position p, the tokens of all sequences lie side by side.
    const std::size_t at = row % of.seq * of.sequences + row / of.seq;
    EXPECT_EQ(read.top[at], int(std::max_element(x, x + 256) - x)) << row;
  }
  loss /= double(of.sequences * of.seq);
  EXPECT_NEAR(read.loss, loss, 1e-5);
  EXPECT_LT(loss, 3.0);  // it is trained: one that is not has 5.5
}

// However many sequences are read side by side: the same losses, and in INT8 the same through cuBLAS.
TEST(Reading, DoesNotDependOnTheBatch) {
  const Source source(nn::parse_transformer("llama:1-4-2-16-24"), std::nullopt);
  for (const Format& format : {Format{}, kInt8Rows, kInt4Groups, kNf4Blocks, kInt8Dynamic}) {
    Reader<float> alone(source, format, {.sequences = 1, .seq = 4, .batches = 16}),
        together(source, format, {.sequences = 16, .seq = 4, .batches = 1});
    EXPECT_NEAR(alone.read().loss, together.read().loss, 2e-6) << name_of(format.scheme);
  }
}

TEST(Reading, CostsWhatItsBitsCost) {
  if (OOMLAB_ROUNDS < 10) GTEST_SKIP() << "a thousand tokens in every format take minutes under a sanitizer";
  const Source source(bytes_llama(), std::nullopt);
  const Read of{.sequences = 8, .seq = 128, .batches = 1};
  Reader<float> full(source, {}, of);
  const ReadResult fp32 = full.read();
  const auto read = [&](const Format& format) {
    Reader<float> reader(source, format, of);
    const ReadResult result = reader.read();
    EXPECT_EQ(reader.ledger.peak_by_category()[Category::parameters],
              reading_bytes(source.spec(), format, DType::fp32, of)[Category::parameters]);
    std::printf("%-12s perplexity %.4f (FP32 %.4f), top-1 %.1f %%\n", name_of(format.scheme), std::exp(result.loss),
                std::exp(fp32.loss), agreement(fp32, result));
    return result;
  };
  const ReadResult tensors = read(kInt8Tensors), rows = read(kInt8Rows), dynamic = read(kInt8Dynamic),
                   groups = read(kInt4Groups), blocks = read(kNf4Blocks);
  for (const ReadResult* eight : {&tensors, &rows, &dynamic}) {
    EXPECT_NEAR(eight->loss, fp32.loss, 0.02);
    EXPECT_GE(agreement(fp32, *eight), 97);
    EXPECT_LT(agreement(fp32, *eight), 100);  // not nothing, either
  }
  for (const ReadResult* four : {&groups, &blocks}) {
    EXPECT_GT(four->loss, fp32.loss + 0.05);
    EXPECT_LT(four->loss, fp32.loss + 0.7);
    EXPECT_GE(agreement(fp32, *four), 75);
  }
  Reader<Bf16> half(source, {}, of);
  EXPECT_NEAR(half.read().loss, fp32.loss, 0.02);
}

// What is there beside codes and scales is small: pieces of weights in FP32 while they are loaded, and nothing
// afterwards. The largest matrix has 65,536 weights.
TEST(Reading, NeverHasAMatrixThatIsDequantised) {
  const nn::TransformerSpec spec = nn::parse_transformer("llama:1-8-2-64-512");
  const Source source(spec, std::nullopt);
  const Read of{.sequences = 2, .seq = 8, .batches = 1};
  std::size_t smallest = SIZE_MAX;  // of the matrices, dequantised
  for (const nn::TensorShape& shape : source.shapes())
    if (is_quantised(shape)) smallest = std::min(smallest, 4 * shape.count());
  ASSERT_EQ(smallest, 4 * 64 * 64u);
  for (const Format& format : kQuantisedFormats) {
    SCOPED_TRACE(name_of(format.scheme));
    Reader<float> reader(source, format, of);
    const std::size_t loaded = reader.ledger.timeline().size();
    const std::size_t before = reader.ledger.live_bytes();
    (void)reader.read();
    EXPECT_EQ(reader.ledger.timeline().size() - loaded, 2u);  // a phase begins and ends: nothing is allocated
    EXPECT_EQ(reader.ledger.live_bytes(), before);
    std::size_t codes = 0;
    for (const TimelineEvent& event : reader.ledger.timeline()) {
      if (event.kind != TimelineEvent::Kind::alloc) continue;
      const std::string tag(event.label);
      if (tag.ends_with("codes")) ++codes;
      if (tag.ends_with("codes") || tag == "token embedding") continue;
      if (tag == "weights on their way")  // an eighth of the largest
        EXPECT_LE(event.requested, 4 * 2 * 512 * 64 / 8u + kGranule);
      else
        EXPECT_LT(event.requested, smallest) << tag;
    }
    EXPECT_EQ(codes, 4u);
  }
}

// The bytes of a token, counted by hand.
TEST(Reading, MovesWeightsAndCacheOnce) {
  const Source source(bytes_llama(), std::nullopt);
  for (const Format& format : {Format{}, kInt8Rows, kInt4Groups}) {
    Reader<float> reader(source, format, {.sequences = 1, .seq = 11, .batches = 2});
    const ReadResult& read = reader.read();
    const ModelBytes bytes = model_bytes(source.spec(), format, DType::fp32);
    // The head is the embedding, of which a token besides reads one row; and the keys and values of 0 ... 10 tokens.
    const double floor = double(bytes.all.stored) + 64 * 4 + 5 * (3 * 2 * 2 * 16 * 4);
    EXPECT_DOUBLE_EQ(read.floor, floor) << name_of(format.scheme);
    EXPECT_GT(read.moved, floor);
    EXPECT_LT(read.moved, floor + 50e3);
  }
  Reader<float> many(source, kInt8Rows, {.sequences = 8, .seq = 11, .batches = 1});
  const ReadResult& read = many.read();
  EXPECT_GT(read.moved,
            read.floor + double(model_bytes(source.spec(), kInt8Rows, DType::fp32).quantised.stored));  // twice
}

TEST(ReadingDeathTest, IsPlannedInEveryFormat) {
  if (std::string(backend_name()) != "host") GTEST_SKIP() << "only the host runtime plans";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto planned = [] {
    if (!enable_planning()) return false;
    const nn::TransformerSpec spec = nn::parse_transformer("llama-3.1-8b");
    const Source source(spec, std::nullopt);
    const Read of{.sequences = 1, .seq = 100, .batches = 3};
    bool good = true;
    for (const Format& format : kQuantisedFormats) {
      Reader<Bf16> reader(source, format, of);
      const ReadResult& read = reader.read();
      ByCategory expected = reading_bytes(spec, format, DType::bf16, of);
      expected[Category::workspace] += kGranule;
      const double weights = double(model_bytes(spec, format, DType::bf16).all.stored) - 2.0 * 4096 * (128256 - 1);
      good = good && reader.ledger.peak_by_category() == expected &&
             std::fabs(read.floor - weights - 49.5 * 131072) < 1;  // 131,072 bytes of cache a token
    }
    return good;
  };
  EXPECT_EXIT(std::_Exit(planned() ? 0 : 1), testing::ExitedWithCode(0), "");
}

// --------------------------------------------------------------------------------------------------------- what is
// asked

Config asked(const std::string& model, std::size_t group) {
  Config config;
  config.model = model;
  config.batch = 1;
  config.options.set(kSeq, std::size_t(16));
  config.options.set(kBatches, std::size_t(1));
  config.options.set(kGroup, group);
  config.options.set(kRest, std::string("fp32"));
  return config;
}
TEST(Asked, GroupsMustDivide) {
  for (const std::size_t group : {1, 2, 4, 32, 64, 128, 256}) EXPECT_NO_THROW(decoder_of(asked("bytes-llama", group)));
  for (const std::size_t group : {3, 48, 100, 8192}) {
    try {
      (void)decoder_of(asked("bytes-llama", group));
      ADD_FAILURE() << group;
    } catch (const UsageError& error) {
      const std::string what = error.what();
      EXPECT_EQ(what.find('\n'), std::string::npos);
      EXPECT_NE(what.find("--group " + std::to_string(group)), std::string::npos) << what;
    }
  }
  EXPECT_THROW((void)decoder_of(asked("gpt2", 128)), UsageError);
}

TEST(Claims, AreJudgedAtLlama) {
  const std::vector<Claim> claims = claims_of(std::make_shared<AllRead>());
  const auto figure = [&](const char* text) {
    for (const Claim& claim : claims)
      if (claim.text == text) return *claim.at_size();
    return -1.0;
  };
  // 8,030,261,248 parameters, 6,979,321,856 of them in linear layers of 1,376,256 rows.
  const double all = 8030261248.0, linear = 6979321856.0, rest = 2 * (all - linear);
  EXPECT_NEAR(figure("INT8 saves 75 %"), 1 - (linear + 4 * 1376256 + rest) / (4 * all), 1e-12);
  EXPECT_NEAR(figure("INT8 saves 75 % of a model in BF16"), 1 - (linear + 4 * 1376256 + rest) / (2 * all), 1e-12);
  EXPECT_NEAR(figure("4 bits save 87 %"), 1 - (linear * (0.5 + 2.5 / 128) + rest) / (4 * all), 1e-12);
}

}  // namespace
