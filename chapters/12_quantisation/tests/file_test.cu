// Quantised models in files, and weights that no format can have.

#include <filesystem>
#include <fstream>
#include <iterator>

#include "claims.h"
#include "small_llama.h"

namespace {

using namespace oomlab;
using namespace oomlab::test;

class Files : public ::testing::Test {
 protected:
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / ("oomlab_quantised_" + std::to_string(::getpid()));
  void SetUp() override { std::filesystem::create_directories(folder); }
  void TearDown() override { std::filesystem::remove_all(folder); }
  std::string path(const char* name) const { return folder / name; }

  const Source source{bytes_llama(), std::nullopt};
  const Read of{.sequences = 1, .seq = 4, .batches = 1};

  /// f() throws BadFile with one line that has these words.
  template <class F>
  void expect_refused(F f, const std::string& words) {
    try {
      f();
      ADD_FAILURE() << "accepted, instead of: " << words;
    } catch (const BadFile& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find(words), std::string::npos) << what;
      EXPECT_EQ(what.find('\n'), std::string::npos) << what;
    }
  }
  /// The file with the bytes of a tensor replaced from its byte `first` on.
  void poke(const std::string& file, const char* tensor, std::size_t first, const std::string& bytes) {
    const nn::SafetensorsFile open(file);
    std::ifstream in(file, std::ios::binary);
    std::string all{std::istreambuf_iterator<char>(in), {}};
    std::uint64_t header = 0;
    std::memcpy(&header, all.data(), 8);
    ASSERT_TRUE(open.find(tensor)) << tensor;
    all.replace(8 + header + open.find(tensor)->begin + first, bytes.size(), bytes);
    std::ofstream(file, std::ios::binary) << all;
  }
};

TEST_F(Files, GiveBackWhatWasSaved) {
  for (const Format& format : {Format{.scheme = Scheme::int8_tensor}, Format{.scheme = Scheme::int8_row},
                               Format{.scheme = Scheme::int4, .group = 64}, Format{.scheme = Scheme::nf4}}) {
    SCOPED_TRACE(name_of(format.scheme));
    const std::string file = path(name_of(format.scheme));
    Reader<float> saved(source, format, of, nullptr, file);
    (void)saved.read();
    const QuantisedFile open(file);
    EXPECT_EQ(open.format().scheme, format.scheme);
    EXPECT_EQ(open.format().group, format.scheme == Scheme::int4 ? 64u : 0u);
    open.require_model(source.spec());
    Reader<float> loaded(source, format, of, &open);
    (void)loaded.read();
    EXPECT_EQ(loaded.reading->fingerprint(), saved.reading->fingerprint());
    EXPECT_EQ(loaded.ledger.peak_by_category(), saved.ledger.peak_by_category());
    // The bytes of its tensors are the closed form, and the few of the text.
    std::size_t stored = 0;
    const nn::SafetensorsFile tensors(file);
    for (const nn::SafetensorsEntry& entry : tensors.entries()) stored += entry.bytes;
    EXPECT_EQ(stored, model_bytes(source.spec(), format, DType::fp32).all.stored + about(source.spec(), format).size());
  }
  // In BF16, too, and as another type than the one it has.
  Reader<Bf16> half(source, {.scheme = Scheme::nf4}, of, nullptr, path("half"));
  const QuantisedFile open(path("half"));
  Reader<float> wide(source, {.scheme = Scheme::nf4}, of, &open);
  EXPECT_NEAR(half.read().loss, wide.read().loss, 0.1);
}

TEST_F(Files, OfAnotherModelAreRefused) {
  const Source other(nn::parse_transformer("llama:2-4-2-64-128"), std::nullopt);
  const Format format{.scheme = Scheme::int8_row};
  Reader<float> saved(other, format, of, nullptr, path("other"));
  const QuantisedFile open(path("other"));
  expect_refused([&] { open.require_model(source.spec()); },
                 "was quantised for model 'llama:2-4-2-64-128'; this is 'bytes-llama'");
  expect_refused([&] { Reader<float>(source, format, of, &open); }, "bytes; this model's has ");
  expect_refused([&] { Reader<float>(other, {.scheme = Scheme::nf4}, of, &open); }, "of type I8 instead of U8");
  const Source deeper(nn::parse_transformer("llama:3-4-2-64-128"), std::nullopt);
  expect_refused([&] { Reader<float>(deeper, format, of, &open); }, "has no tensor 'layer 3 norm 1 gamma'");
  Config config;
  config.options.set(kQuantised, path("other"));
  config.options.set(kGroup, std::size_t(128));
  expect_refused([&] { (void)quantised_file(config, source.spec()); }, "was quantised for model");
}

TEST_F(Files, ThatAreNoneAreRefused) {
  expect_refused([&] { QuantisedFile(path("missing")); }, "missing");
  Device device;
  nn::Transformer<float> model(device.context, source.spec(), 1, false);
  nn::save_weights(device.context, model, path("plain"));
  expect_refused([&] { QuantisedFile(path("plain")); }, "is no quantised model");
  const Format format{.scheme = Scheme::int4};
  Reader<float> saved(source, format, of, nullptr, path("int4"));
  std::filesystem::copy(path("int4"), path("unknown"));
  poke(path("unknown"), kAbout, std::string("model bytes-llama\nformat ").size(), "int5");
  expect_refused([&] { QuantisedFile(path("unknown")); }, "has a format that is not known");
  std::filesystem::copy(path("int4"), path("number"));
  poke(path("number"), kAbout, std::string("model bytes-llama\nformat int4\ngroup ").size(), "1x8");
  expect_refused([&] { QuantisedFile(path("number")); }, "has a group that is no number");
  // A scale that is infinite.
  std::filesystem::copy(path("int4"), path("infinite"));
  poke(path("infinite"), "layer 2 contract weight.scale", 6, std::string("\x80\x7f", 2));
  const QuantisedFile infinite(path("infinite"));
  expect_refused([&] { Reader<float>(source, format, of, &infinite); },
                 "has a tensor 'layer 2 contract weight.scale' with a number that is not finite");
  Config config;
  config.options.set(kQuantised, path("int4"));
  config.options.set(kGroup, std::size_t(64));
  try {
    (void)quantised_file(config, source.spec());
    ADD_FAILURE();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("has groups of 128; --group is 64"), std::string::npos) << error.what();
  }
}

TEST_F(Files, WithWeightsThatAreNotFiniteAreRefused) {
  Device device;
  nn::Transformer<float> model(device.context, source.spec(), 1, false);
  nn::save_weights(device.context, model, path("weights"));
  const Format formats[] = {{},
                            {.scheme = Scheme::int8_tensor},
                            {.scheme = Scheme::int8_row},
                            {.scheme = Scheme::int4},
                            {.scheme = Scheme::nf4}};
  for (const auto& [bits, word] :
       {std::pair{std::string("\x01\x00\xc0\x7f", 4), "NaN"}, {std::string("\x00\x00\x80\xff", 4), "infinity"}}) {
    std::filesystem::copy(path("weights"), path("bad"), std::filesystem::copy_options::overwrite_existing);
    poke(path("bad"), "model.layers.2.mlp.down_proj.weight", 4 * 5000, bits);
    const Source bad(source.spec(), path("bad"));
    for (const Format& format : formats) {
      Ledger* ledger = nullptr;
      expect_refused(
          [&] {
            Reader<float> reader(bad, format, of);
            ledger = &reader.ledger;
          },
          std::string("has a tensor 'model.layers.2.mlp.down_proj.weight' with a weight of ") + word);
      EXPECT_EQ(ledger, nullptr);
    }
  }
  const Source good(source.spec(), path("weights"));
  EXPECT_NO_THROW(Reader<float>(good, formats[3], of));
}

}  // namespace
