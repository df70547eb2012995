// The closed form of AMP against a list of what the backward pass reads, and in which type autocast leaves it.

#include "amp.h"

#include <gtest/gtest.h>

namespace {

using namespace oomlab;
using namespace oomlab::mixed_precision;

// Everything of one layer that its backward pass reads, bytes; S probabilities a head and row, C numbers a row.
std::size_t layer(const nn::TransformerSpec& spec, std::size_t rows, std::size_t seq) {
  const std::size_t c = rows * spec.width, probabilities = rows * spec.heads * seq;
  std::size_t bytes = 0;
  bytes += 2 * c;              // read by the product that makes Q, K and V: 16 bits
  bytes += 2 * 3 * c;          // Q, K and V
  bytes += 4 * probabilities;  // softmax's output, from which its derivative is computed: FP32
  bytes += 2 * probabilities;  // its copy, read by the product with V
  bytes += 2 * c;              // read by attention's last product
  bytes += 4 * c;              // input of a norm: a sum with the FP32 residual
  bytes += 2 * c;              // read by the MLP's first product
  bytes += 2 * 4 * c;          // input of GELU
  bytes += 2 * 4 * c;          // read by the MLP's second product
  bytes += 4 * c;              // input of the other norm
  bytes += 4 * 4 * rows;       // means and reciprocal deviations of both norms
  return bytes;
}

// Of a gpt's or bert's head: FP32 into the norm, 16 bits into the product with the token embedding, 16-bit logits and
// their FP32 copy for the loss; bert has a dense layer and GELU before.
std::size_t head(const nn::TransformerSpec& spec, std::size_t rows) {
  const std::size_t c = rows * spec.width;
  return (spec.bert() ? 2 * c + 2 * c : 0) + 4 * c + 2 * c + 2 * 4 * rows + (2 + 4) * rows * spec.vocabulary;
}

TEST(Amp, KeepsWhatItsRulesSay) {
  for (const char* name : {"bert-large", "gpt2"}) {
    const nn::TransformerSpec spec = nn::parse_transformer(name);
    for (const std::size_t seq : {128, 512}) {
      const std::size_t sequences = 4, rows = sequences * seq;
      const std::size_t embedding = spec.bert() ? 4 * rows * spec.width + 2 * 4 * rows : 0;
      EXPECT_EQ(amp_bytes(spec, sequences, seq)[Category::activations],
                spec.layers * layer(spec, rows, seq) + head(spec, rows) + embedding)
          << name << ", seq " << seq;
    }
  }
}

TEST(Amp, Needs18BytesPerParameter) {
  const nn::TransformerSpec spec = nn::parse_transformer("bert-large");
  const ByCategory bytes = amp_bytes(spec, 4, 512);
  const auto parameters = double(spec.parameters());
  EXPECT_NEAR(double(bytes[Category::parameters]) / parameters, 4 + 2, 0.001);
  EXPECT_NEAR(double(bytes[Category::gradients]) / parameters, 4, 0.001);
  EXPECT_NEAR(double(bytes[Category::optimizer]) / parameters, 4 + 4, 0.001);
}

}  // namespace
