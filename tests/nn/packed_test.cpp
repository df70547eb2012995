// Sequences of unequal lengths side by side in one row of tokens: logits, loss and every gradient are those of each
// sequence by itself, and those of the same sequences padded to the longest.

#include <gtest/gtest.h>

#include <numeric>

#include "device.h"
#include "nn/models/transformer.h"
#include "nn/ops/values.h"

namespace oomlab::test::packed {
namespace {

using namespace nn;

const std::vector<std::uint64_t> kLengths{5, 1, 13, 8, 16, 2};
constexpr std::size_t kLongest = 16;

struct Sequences {
  std::vector<std::vector<int>> tokens, labels;
  std::size_t targets = 0;
  explicit Sequences(const TransformerSpec& spec) {
    for (std::size_t s = 0; s < kLengths.size(); ++s) {
      tokens.push_back(random_labels(kLengths[s], spec.vocabulary, unsigned(2 * s + 1)));
      labels.push_back(random_labels(kLengths[s], spec.vocabulary, unsigned(2 * s + 2)));
      for (std::size_t i = 4; i < labels[s].size(); i += 5) labels[s][i] = -1;
      for (const int label : labels[s]) targets += label >= 0;
    }
  }
  // Of both one behind the other, each padded to `length`.
  static std::vector<int> joined(const std::vector<std::vector<int>>& all, std::size_t length, int padding) {
    std::vector<int> joined;
    for (const auto& one : all) {
      joined.insert(joined.end(), one.begin(), one.end());
      joined.insert(joined.end(), length - std::min(length, one.size()), padding);
    }
    return joined;
  }
  TokenBatch packed(Context& context) const {
    return make_packed_batch(context, joined(tokens, 0, 0), joined(labels, 0, -1), kLengths);
  }
  TokenBatch padded(Context& context) const {
    return make_token_batch(context, joined(tokens, kLongest, 0), joined(labels, kLongest, -1), kLengths.size(),
                            kLongest);
  }
  TokenBatch alone(Context& context, std::size_t s) const {
    return make_token_batch(context, tokens[s], labels[s], 1, tokens[s].size());
  }
};

struct Learned {
  float loss;
  std::vector<std::vector<float>> gradients;
};
Learned learned(Device& device, Transformer<float>& model) {
  Learned all{model.loss(device.context), {}};
  for (const auto& p : model.parameters()) all.gradients.push_back(device.download(p.gradient, p.count));
  return all;
}
// Of two gradients of a tensor: what is between them, in parts of its length.
double distance(const std::vector<float>& found, const std::vector<float>& expected) {
  double square = 0, all = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    square += std::pow(double(found[i]) - expected[i], 2);
    all += std::pow(double(expected[i]), 2);
  }
  return std::sqrt(square / std::max(all, 1e-30));
}
void expect_same(const Learned& found, const Learned& expected, const std::string& what) {
  EXPECT_NEAR(found.loss, expected.loss, 1e-6 * expected.loss) << what;
  for (std::size_t i = 0; i < found.gradients.size(); ++i)
    EXPECT_LE(distance(found.gradients[i], expected.gradients[i]), 1e-6) << what << ", tensor " << i;
}

// Values that every nonlinearity feels, and positions that differ.
void make_wide(Device& device, Transformer<float>& model) {
  for (const auto& p : model.parameters()) {
    std::vector<float> values = random_floats(p.count, unsigned(p.count), 0.25f);
    for (float& v : values) v += p.name.ends_with("gamma");
    device.put(p.value, values);
  }
}

std::vector<StepForm> forms() {
  std::vector<StepForm> all;
  for (const AttentionForm attention : {AttentionForm::textbook, AttentionForm::tiled, AttentionForm::fused}) {
    all.push_back({.attention = attention});
    all.push_back(
        {.attention = attention, .loss = LossForm::chunked, .keep = Keep::selective_recompute(), .by_rows = true});
  }
  all.push_back({.keep = Keep::selective_recompute(), .mlp_tiles = 3});
  return all;
}

class Packed : public ::testing::TestWithParam<const char*> {
 protected:
  static TransformerSpec spec() {
    TransformerSpec spec = parse_transformer(GetParam());
    spec.vocabulary = 29;
    spec.positions = 20;
    return spec;
  }
};
INSTANTIATE_TEST_SUITE_P(Styles, Packed, ::testing::Values("gpt:2-2-12", "bert:2-2-12", "llama:2-4-2-16-24"),
                         [](const auto& i) { return std::string(i.param).substr(0, std::string(i.param).find(':')); });

// Attention gives each sequence the bits that it gives it alone (attention_test.cpp). A product adds a row's numbers in an
// order that depends on how many rows there are: within 1e-6 of the largest.
TEST_P(Packed, LogitsAreThoseOfEachSequenceAlone) {
  Device device;
  Transformer<float> model(device.context, spec(), 1);
  make_wide(device, model);
  const Sequences sequences(spec());
  for (const StepForm& form : forms()) {
    model.set_form(form);
    const auto packed = device.download(model.logits(device.context, sequences.packed(device.context)));
    std::size_t at = 0;
    for (std::size_t s = 0; s < kLengths.size(); ++s) {
      const auto alone = device.download(model.logits(device.context, sequences.alone(device.context, s)));
      const auto from = packed.begin() + std::ptrdiff_t(at);
      expect_close(std::vector<float>(from, from + std::ptrdiff_t(alone.size())), alone, 1e-6,
                   std::string(name_of(form.attention)) + ", sequence " + std::to_string(s));
      at += alone.size();
    }
    EXPECT_EQ(at, packed.size());
  }
}

// Gradients of weights add up the same rows in other pieces: as vectors, each tensor's is within 1e-6 of its length.
TEST_P(Packed, LossAndEveryGradientAreThoseOfEachSequenceAlone) {
  Device device;
  Transformer<float> model(device.context, spec(), 1);
  make_wide(device, model);
  const Sequences sequences(spec());
  for (const StepForm& form : forms()) {
    model.set_form(form);
    for (std::size_t s = 0; s < kLengths.size(); ++s)
      model.forward_backward(device.context, sequences.alone(device.context, s),
                             {.accumulate = s > 0, .total_batch = sequences.targets});
    const Learned alone = learned(device, model);
    for (const auto& p : model.parameters()) fill(device.context, p.gradient, p.count, NAN);
    model.forward_backward(device.context, sequences.packed(device.context));
    expect_same(learned(device, model), alone, std::string("alone, ") + name_of(form.attention));
    if (spec().bert()) continue;  // whose rows see padding, too
    model.forward_backward(device.context, sequences.padded(device.context));
    expect_same(learned(device, model), alone, std::string("padded, ") + name_of(form.attention));
  }
}

TEST(PackedBatches, HaveTheirOffsetsAndPositions) {
  Device device;
  const std::vector<int> tokens{1, 2, 3, 4, 5, 6}, none(6, -1);
  const std::vector<std::uint64_t> lengths{3, 1, 2};
  const TokenBatch batch = make_packed_batch(device.context, tokens, tokens, lengths);
  EXPECT_EQ(batch.rows(), 6u);
  EXPECT_EQ(batch.seq, 3u);
  EXPECT_EQ(batch.targets, 6u);
  EXPECT_EQ(device.download(batch.positions), (std::vector<int>{0, 1, 2, 0, 0, 1}));
  EXPECT_EQ(device.download(batch.offsets), (std::vector<int>{0, 3, 4, 6}));
  const std::vector<std::uint64_t> too_few{3, 2}, empty{3, 0, 3}, no_lengths;
  EXPECT_THROW(make_packed_batch(device.context, tokens, tokens, too_few), std::invalid_argument);
  EXPECT_THROW(make_packed_batch(device.context, tokens, tokens, empty), std::invalid_argument);
  EXPECT_THROW(make_packed_batch(device.context, tokens, tokens, no_lengths), std::invalid_argument);
  EXPECT_THROW(make_packed_batch(device.context, tokens, none, lengths), std::invalid_argument);
}

}  // namespace
}  // namespace oomlab::test::packed
