// The point of it all: a small model learns to read digits.

#include <gtest/gtest.h>

#include "data/device_dataset.h"
#include "data/text.h"
#include "nn/models/mlp.h"
#include "nn/models/transformer.h"

namespace oomlab::test {
namespace {

using namespace nn;

struct Learned {
  double accuracy;
  float loss;
  std::uint64_t fingerprint;
};

Learned learn(std::size_t epochs) {
  CudaResource resource;
  Ledger ledger;
  Context context(resource, ledger);
  const auto [train, held_out] = data::split(data::digits(), 0.2, 1);
  const data::DeviceDataset seen(context, train), unseen(context, held_out);
  const MlpSpec spec = parse_model("mlp-small");
  Mlp model(context, spec, 1, true);
  Optimizer<float> optimizer(context, model.parameters(), {}, {.adamw = {.lr = 2e-3f}});
  const std::size_t batch = 32;
  for (std::size_t first = 0; first < epochs * seen.count(); first += batch) {
    Batch b = make_batch(context, batch, spec.inputs());
    seen.batch(context, first, batch, spec.inputs(), b.input.data(), b.labels.data());
    model.train_step(context, std::move(b), optimizer);
  }
  const float loss = model.loss(context);
  Batch all = make_batch(context, unseen.count(), spec.inputs());
  unseen.batch(context, 0, all.size, spec.inputs(), all.input.data(), all.labels.data());
  const std::size_t right = model.count_correct(context, std::move(all));
  return {double(right) / double(unseen.count()), loss, model.fingerprint(context)};
}

TEST(Learning, ASmallModelReadsDigits) {
  const Learned learned = learn(20);
  RecordProperty("held_out_accuracy", std::to_string(learned.accuracy));
  std::printf("held-out accuracy %.2f %%, last loss %.4f\n", 100 * learned.accuracy, learned.loss);
  EXPECT_GT(learned.accuracy, 0.95);
  EXPECT_LT(learned.loss, 0.1f);
}

TEST(Learning, IsBitReproducible) {
  const Learned first = learn(2), second = learn(2);
  EXPECT_EQ(first.fingerprint, second.fingerprint);
  EXPECT_EQ(first.loss, second.loss);
}

// Far below what the frequencies of the bytes alone could reach, after a short run.
TEST(Learning, ASmallTransformerReadsItsOwnManual) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "minutes under a sanitizer; the operators and the model have tests there";
#endif
  const data::Text text = data::course_text();
  const TransformerSpec spec = parse_transformer("bytes-gpt");
  const data::TextSampler sampler(text, {.seq = 128});
  CudaResource resource;
  Ledger ledger;
  Context context(resource, ledger);
  Transformer<float> model(context, spec, 1);
  Optimizer<float> optimizer(context, model.parameters(), {}, {.adamw = {.lr = 1e-3f, .beta2 = 0.95f}});
  float last = 0;
  constexpr std::size_t kSteps = 140, kBatch = 4;
  for (std::size_t step = 0; step < kSteps; ++step) {
    const data::TokenSamples s = sampler.samples(step * kBatch, kBatch);
    model.forward_backward(context, make_token_batch(context, s.tokens, s.labels, s.count, s.seq));
    optimizer.step(context);
    if (step + 10 >= kSteps) last += model.loss(context) / 10;
  }
  const double unigram = data::unigram_entropy(text);
  std::printf("unigram entropy %.3f, mean loss of the last ten steps %.3f (nats a byte)\n", unigram, last);
  EXPECT_LT(last, 0.85 * unigram);
}

}  // namespace
}  // namespace oomlab::test
