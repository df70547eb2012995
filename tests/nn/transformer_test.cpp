// The whole transformer: published parameter counts, bytes as predicted, gradients that point where the loss falls, and
// bits that do not depend on what is kept. Numbers against another implementation: tests/parity.

#include "nn/models/transformer.h"
#include "plan/flops.h"
#include "plan/step.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "device.h"
#include "nn/ops/values.h"

namespace oomlab::test {
namespace {

using namespace nn;

TEST(TransformerNames, ParameterCountsAreThePublishedOnes) {
  EXPECT_EQ(parse_transformer("gpt2").parameters(), 124'439'808u);  // head tied
  EXPECT_EQ(parse_transformer("gpt2-medium").parameters(), 354'823'168u);
  EXPECT_EQ(parse_transformer("gpt2-large").parameters(), 774'030'080u);
  EXPECT_EQ(parse_transformer("gpt2-xl").parameters(), 1'557'611'200u);
  // With the masked-token head and without the pooler; with the pooler instead, BertModel: 109,482,240, 335,141,888.
  EXPECT_EQ(parse_transformer("bert-base").parameters(), 109'514'298u);
  EXPECT_EQ(parse_transformer("bert-large").parameters(), 335'174'458u);
  const std::size_t c = 768, head = c * c + c + 2 * c + 30522, pooler = c * c + c;
  EXPECT_EQ(parse_transformer("bert-base").parameters() - head + pooler, 109'482'240u);
  EXPECT_EQ(parse_transformer("llama-3.2-1b").parameters(), 1'235'814'400u);
  EXPECT_EQ(parse_transformer("llama-3.1-8b").parameters(), 8'030'261'248u);
  EXPECT_EQ(parse_transformer("llama-3.1-70b").parameters(), 70'553'706'496u);
  EXPECT_EQ(parse_transformer("qwen2.5-7b").parameters(), 7'615'616'512u);
  EXPECT_EQ(parse_transformer("llama-2-7b").parameters(), 6'738'415'616u);
  EXPECT_EQ(parse_transformer("mistral-7b").parameters(), 7'241'732'096u);
}

TEST(TransformerNames, BadNamesAreOneLine) {
  for (const char* name : {"",
                           "gpt",
                           "gpt3",
                           "mlp",
                           "gpt:",
                           "gpt:2",
                           "gpt:2-2",
                           "gpt:2-2-",
                           "gpt:0-2-4",
                           "gpt:2-3-4",
                           "gpt:2-2-4-5",
                           "gpt:-2-2-4",
                           "bert:2-2-x",
                           "gpt:99999999999999999999-1-1",
                           "gpt:1-1-9999999999999999",
                           "gpt:9999999-1-1",
                           "bytes-gpt ",
                           "llama:2-4-2-64",
                           "llama:2-4-3-64-128",
                           "llama:2-4-2-64-0",
                           "llama:2-4-2-63-128",
                           "llama:2-4-4-20-16",
                           "llama:1-1-1-512-16",
                           "llama:1-1-1-2-9999999999999999999",
                           "llama-70b-like"}) {
    try {
      (void)parse_transformer(name);
      ADD_FAILURE() << name;
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(std::string("'") + name + "'"), std::string::npos);
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }
}

struct Tokens {
  std::vector<int> tokens, labels;
  std::size_t sequences, seq;
  // Every fifth place has no target.
  Tokens(const TransformerSpec& spec, std::size_t sequences, std::size_t seq, unsigned seed)
      : tokens(random_labels(sequences * seq, spec.vocabulary, seed)),
        labels(random_labels(sequences * seq, spec.vocabulary, seed + 1)),
        sequences(sequences),
        seq(seq) {
    for (std::size_t i = 4; i < labels.size(); i += 5) labels[i] = -1;
  }
  TokenBatch batch(Context& context) const { return make_token_batch(context, tokens, labels, sequences, seq); }
};

std::vector<std::vector<Keep>> keeps(std::size_t layers) {
  std::vector<std::vector<Keep>> all{{}};
  for (int bits = 0; bits < 9; ++bits)
    all.emplace_back(layers, Keep{bits < 8, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0});
  all.emplace_back(layers, Keep::selective_recompute());
  all.emplace_back(layers, Keep{.post_attention_residual = false});
  std::vector<Keep> mixed(layers);
  for (std::size_t l = 0; l < layers; ++l) mixed[l] = Keep{l % 2 == 0, true, l % 3 != 0, false};
  all.push_back(mixed);
  return all;
}

std::vector<StepForm> forms() {
  std::vector<StepForm> all;
  for (const AttentionForm attention : {AttentionForm::textbook, AttentionForm::tiled, AttentionForm::fused})
    for (const LossForm loss : {LossForm::full, LossForm::chunked})
      for (const Keep& keep : {Keep{}, Keep::selective_recompute()})
        for (const bool by_rows : {false, true}) all.push_back({attention, loss, keep, by_rows});
  for (const LossForm loss : {LossForm::full, LossForm::chunked})
    for (const Keep& keep : {Keep{}, Keep::selective_recompute()})
      all.push_back({AttentionForm::textbook, loss, keep, loss == LossForm::full, 3});
  return all;
}

TransformerSpec tiny(const char* name, std::size_t vocabulary = 29) {
  TransformerSpec spec = parse_transformer(name);
  spec.vocabulary = vocabulary;
  spec.positions = 16;
  if (spec.llama() && spec.layers % 2 == 0) spec.tied = false, spec.qkv_bias = true;  // both kinds are tested
  return spec;
}

// Values that every nonlinearity feels, and biases that are not zero, as they are at the start of training.
template <class T>
void make_wide(Device& device, Transformer<T>& model) {
  for (const auto& p : model.parameters()) {
    std::vector<T> values;
    for (const float v : random_floats(p.count, unsigned(p.count), 0.4f))
      values.push_back(static_cast<T>(p.name.ends_with("gamma") ? v + 1 : v));
    device.put(p.value, values);
  }
}

template <class T>
class TransformerOf : public ::testing::Test {};
using Types = ::testing::Types<float, __half, __nv_bfloat16>;
TYPED_TEST_SUITE(TransformerOf, Types);

// forward_backward() with layers that do not keep everything.
template <class T>
void step_with(Context& context, Transformer<T>& model, TokenBatch batch, const std::vector<Keep>& keep) {
  if (keep.empty()) return model.forward_backward(context, std::move(batch));
  std::vector<DeviceBuffer<T>> x(keep.size());
  std::vector<LayerActivations<T>> kept(keep.size());
  typename Transformer<T>::EmbeddingActivations embedding;
  DeviceBuffer<T> stream = model.embed(context, batch, embedding);
  for (std::size_t l = 0; l < keep.size(); ++l) {
    x[l] = std::move(stream);
    stream = model.forward_layer(context, l, batch, x[l].data(), keep[l], kept[l]);
  }
  stream = model.head(context, batch, std::move(stream), {}, nullptr);
  for (std::size_t l = keep.size(); l-- > 0; x[l].reset()) {
    model.rebuild_layer(context, l, batch, x[l].data(), kept[l]);
    model.backward_layer(context, l, batch, x[l].data(), std::move(kept[l]), stream, false);
  }
  model.embed_backward(context, batch, std::move(embedding), std::move(stream), false);
}

template <class T>
void expect_step_as_predicted(const TransformerSpec& spec, std::size_t sequences, std::size_t seq,
                              const std::vector<Keep>& keep, const std::string& what, const StepForm& form = {}) {
  CudaResource resource;
  Ledger ledger;
  Context context(resource, ledger);
  Transformer<T> model(context, spec, 1);
  model.set_form(form);
  EXPECT_EQ(ledger.live_by_category()[Category::parameters], tensor_bytes(spec, sizeof(T)));
  EXPECT_EQ(ledger.live_by_category()[Category::gradients], tensor_bytes(spec, sizeof(T)));
  const ByCategory resident = ledger.live_by_category();
  ledger.reset_peak();
  const std::uint64_t flops = context.flops();
  step_with(context, model, Tokens(spec, sequences, seq, 1).batch(context), keep);
  Schedule schedule;
  for (const Keep& k : keep) schedule.push_back({1, false, k});
  const StepLevers levers{
      .element_bytes = sizeof(T), .sequences = sequences, .seq = seq, .form = form, .schedule = schedule};
  EXPECT_EQ(ledger.peak_by_category(), simulate_step(spec, levers, resident).at_peak)
      << what << ": " << ledger.peak_bytes();
  EXPECT_EQ(ledger.live_by_category(), resident) << what;
  EXPECT_EQ(context.flops() - flops, step_flops(spec, sequences, seq, schedule, form)) << what;
}

TYPED_TEST(TransformerOf, BytesAndFlopsAreAsPredicted) {
  std::mt19937 random(3);
  for (const char* name :
       {"gpt:3-2-8", "bert:3-2-8", "gpt:1-3-15", "bert:2-1-7", "llama:3-4-2-8-11", "llama:2-3-1-18-7"})
    for (const std::size_t vocabulary : {3u, 29u, 2000u}) {
      if (OOMLAB_ROUNDS < 10 && vocabulary > 29) continue;
      const TransformerSpec spec = tiny(name, vocabulary);
      for (const auto& keep : keeps(spec.layers)) {
        const std::size_t sequences = 1 + random() % 9, seq = 1 + random() % 16;
        if (OOMLAB_ROUNDS < 10 && random() % 4) continue;
        expect_step_as_predicted<TypeParam>(
            spec, sequences, seq, keep,
            std::string(name) + " " + std::to_string(sequences) + " x " + std::to_string(seq));
      }
    }
  if (OOMLAB_ROUNDS < 10) return;
  // Long sequences in a narrow model: the probabilities are the largest buffers by far.
  TransformerSpec narrow = tiny("gpt:2-4-4");
  narrow.positions = 200;
  for (const auto& keep : keeps(2)) expect_step_as_predicted<TypeParam>(narrow, 2, 200, keep, "narrow");
}

TYPED_TEST(TransformerOf, BytesAndFlopsOfEveryFormAreAsPredicted) {
  std::mt19937 random(4);
  for (const char* name : {"gpt:3-2-8", "bert:3-2-8", "gpt:2-3-15", "llama:2-6-3-24-21"})
    for (const std::size_t vocabulary : {3u, 29u, 2000u})
      for (const StepForm& form : forms()) {
        if (random() % 3) continue;  // a third of the combinations: levers_test tries two thousand
        TransformerSpec spec = tiny(name, vocabulary);
        spec.positions = 200;
        const auto all = keeps(spec.layers);
        const std::size_t seq = random() % 2 ? 1 + random() % 16 : 40 + random() % 160;  // one tile, or several
        expect_step_as_predicted<TypeParam>(
            spec, 1 + random() % 5, seq, all[random() % all.size()],
            std::string(name) + " " + name_of(form.attention) + " " + name_of(form.loss), form);
        if (OOMLAB_ROUNDS < 10) break;
      }
}

// A forward pass that no backward pass follows: of everything a step keeps, or of nothing.
TYPED_TEST(TransformerOf, BytesOfAForwardPassAloneAreAsPredicted) {
  using T = TypeParam;
  std::mt19937 random(5);
  for (const char* name : {"gpt:3-2-8", "bert:3-2-8", "llama:3-4-2-8-11", "llama:2-3-1-18-7"})
    for (const StepForm& form : forms()) {
      if (OOMLAB_ROUNDS < 10 && random() % 4) continue;
      TransformerSpec spec = tiny(name, 61);
      spec.positions = 64;
      Device device;
      Transformer<T> model(device.context, spec, 1, /*with_gradients=*/false);
      model.set_form(form);
      const ByCategory resident = device.ledger.live_by_category();
      for (const bool graph : {false, true}) {
        device.ledger.reset_peak();
        const TokenBatch batch = Tokens(spec, 2, 45, 1).batch(device.context);
        if (graph) {
          ForwardPass<T> pass(device.context, model, batch);
          pass.logits(device.context, model, batch);
        } else {
          (void)model.logits(device.context, batch);
        }
        const StepLevers levers{.element_bytes = sizeof(T), .sequences = 2, .seq = 45, .form = form};
        EXPECT_EQ(device.ledger.peak_by_category(), simulate_forward(spec, levers, resident, graph).at_peak)
            << name << (graph ? ", graph " : " ") << name_of(form.attention);
      }
    }
}

// The largest single requests of a step: no form but the textbook's asks for B·H·S² or B·S·V elements.
TEST(StepForms, LeanOnesNeverAskForScoresOrLogits) {
  if (OOMLAB_ROUNDS < 10) GTEST_SKIP() << "sizes are the same in every build";
  TransformerSpec spec = tiny("gpt:2-4-16", 400);
  spec.positions = 256;
  const std::size_t sequences = 2, seq = 256, scores = sequences * 4 * seq * seq * 4,
                    logits = sequences * seq * 400 * 4;
  for (const StepForm& form : forms()) {
    CudaResource resource;
    Ledger ledger;
    Context context(resource, ledger);
    Transformer<float> model(context, spec, 1);
    model.set_form(form);
    ledger.record_timeline(true);  // begins with the parameters that are live
    model.forward_backward(context, Tokens(spec, sequences, seq, 1).batch(context));
    std::size_t of_scores = 0, of_logits = 0;
    for (const TimelineEvent& event : ledger.timeline())
      if (event.kind == TimelineEvent::Kind::alloc && event.category == Category::activations)
        of_scores += event.bytes >= scores, of_logits += event.bytes >= logits && event.bytes < scores;
    EXPECT_EQ(of_scores > 0, form.attention == AttentionForm::textbook) << name_of(form.attention);
    EXPECT_EQ(of_logits > 0, form.loss == LossForm::full) << name_of(form.attention) << " " << name_of(form.loss);
  }
}

template <class T>
std::vector<std::vector<T>> gradients(Device& device, Transformer<T>& model) {
  std::vector<std::vector<T>> all;
  for (const auto& p : model.parameters()) all.push_back(device.download(p.gradient, p.count));
  return all;
}

template <class T>
bool same_bits(const std::vector<std::vector<T>>& a, const std::vector<std::vector<T>>& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(T)) != 0) return false;
  return a.size() == b.size();
}

TYPED_TEST(TransformerOf, GradientsHaveTheSameBitsWhateverIsKept) {
  using T = TypeParam;
  for (const char* name : {"gpt:3-2-24", "bert:3-2-24", "llama:3-4-2-24-36"}) {
    const TransformerSpec spec = tiny(name);
    Device device;
    Transformer<T> model(device.context, spec, 1);
    make_wide(device, model);
    const Tokens tokens(spec, 3, 11, 5);
    const auto run = [&](const std::vector<Keep>& keep) {
      step_with(device.context, model, tokens.batch(device.context), keep);
      return model.loss(device.context);
    };
    const float loss = run({});
    const auto expected = gradients(device, model);
    EXPECT_GT(loss, 2.0f);
    for (const Keep& form_keeps : {Keep{}, Keep::selective_recompute()}) {  // also of a layer that is rebuilt
      model.set_form({.keep = form_keeps});
      for (const auto& keep : keeps(spec.layers)) {
        for (const auto& p : model.parameters()) fill(device.context, p.gradient, p.count, NAN);
        EXPECT_EQ(run(keep), loss);
        EXPECT_TRUE(same_bits(gradients(device, model), expected)) << name;
      }
    }
  }
}

// Every form computes the same step: loss and every gradient, textbook against each other one.
TEST(StepForms, LossAndEveryGradientAreThoseOfTheTextbook) {
  constexpr std::string_view kLongInCheckMode = "llama:2-6-2-24-40";
  for (const char* name : {"gpt:3-3-24", "bert:3-3-24", "llama:3-6-3-24-40", "llama:2-6-2-24-40"}) {
    TransformerSpec spec = tiny(name, 257);
    spec.positions = 100;
    Device device;
    Transformer<float> model(device.context, spec, 1);
    make_wide(device, model);
    for (const std::size_t seq : {7u, 100u}) {
      if (OOMLAB_ROUNDS < 10 && seq == 100 && name != kLongInCheckMode) continue;
      Tokens tokens(spec, 2, seq, 5);
      // No targets at either end: with long sequences in several chunks of the loss.
      std::fill_n(tokens.labels.begin(), 2 * seq / 5, -1);
      std::fill_n(tokens.labels.rbegin(), seq / 3, -1);
      model.set_form({});
      model.forward_backward(device.context, tokens.batch(device.context));
      const float loss = model.loss(device.context);
      const auto expected = gradients(device, model);
      for (const StepForm& form : forms()) {
        model.set_form(form);
        for (const auto& p : model.parameters()) fill(device.context, p.gradient, p.count, NAN);
        model.forward_backward(device.context, tokens.batch(device.context));
        const std::string what = std::string(name) + " " + name_of(form.attention) + " " + name_of(form.loss);
        EXPECT_NEAR(model.loss(device.context), loss, 1e-5 * loss) << what;
        const auto found = gradients(device, model);
        for (std::size_t i = 0; i < found.size(); ++i) {
          double square = 0, all = 0;
          for (std::size_t k = 0; k < found[i].size(); ++k) {
            square += std::pow(double(found[i][k]) - expected[i][k], 2);
            all += std::pow(double(expected[i][k]), 2);
          }
          EXPECT_LE(std::sqrt(square), 1e-5 * std::sqrt(all) + 1e-9) << what << ", tensor " << i;
        }
      }
    }
  }
}

// An MLP by tiles has the same rows: loss and gradients are the same bits, but those that are sums over rows, of which a
// tile has some. With a norm that is kept these are the MLP's two matrices and their biases. (Tiles have rows enough:
// products of a few rows are done in another way, whose sums have another order.)
TEST(StepForms, TilesOfAnMlpChangeNoBitOfARow) {
  for (const char* name : {"gpt:2-3-24", "bert:2-3-24", "llama:2-6-2-24-40"})
    for (const std::uint64_t tiles : {2u, 3u}) {
      const TransformerSpec spec = tiny(name);
      Device device;
      Transformer<float> model(device.context, spec, 1);
      make_wide(device, model);
      const Tokens tokens(spec, 3, 16, 5);
      model.forward_backward(device.context, tokens.batch(device.context));
      const float loss = model.loss(device.context);
      const auto expected = gradients(device, model);
      model.set_form({.mlp_tiles = tiles});
      model.forward_backward(device.context, tokens.batch(device.context));
      EXPECT_EQ(model.loss(device.context), loss) << name;
      const auto found = gradients(device, model);
      std::size_t differ = 0;
      std::size_t i = 0;
      for (const auto& p : model.parameters()) {
        if (found[i] != expected[i]) {
          ++differ;
          const auto has = [&](const char* word) { return p.name.find(word) != std::string::npos; };
          EXPECT_TRUE(has("gate and up") || has("expand") || has("contract"))
              << name << ", " << tiles << ": " << p.name;
        }
        ++i;
      }
      EXPECT_GT(differ, 0u) << name;
    }
}

// In 16 bits, where every form rounds elsewhere: how far the gradients of a step are from FP32's, the mean over twenty
// models. Chunks of the loss add up the head's gradient in 16 bits, one after the other.
template <class T>
void expect_no_larger_errors() {
  const TransformerSpec spec = [] {
    TransformerSpec s = tiny("gpt:2-2-32", 257);
    s.positions = 100;
    return s;
  }();
  const std::vector<StepForm> all_forms{{},
                                        {.attention = AttentionForm::tiled},
                                        {.attention = AttentionForm::fused},
                                        {.loss = LossForm::chunked},
                                        {.keep = Keep::selective_recompute(), .by_rows = true},
                                        {.keep = Keep::selective_recompute(), .mlp_tiles = 5},
                                        StepForm::min_memory()};
  std::vector<double> errors(all_forms.size());
  for (unsigned seed = 1; seed <= 20; ++seed) {
    Device device;
    Transformer<float> reference(device.context, spec, seed);
    Transformer<T> model(device.context, spec, seed);
    const auto values = reference.parameters();
    const auto rounded = model.parameters();
    for (std::size_t i = 0; i < values.size(); ++i) {  // the same weights: those that T has
      std::vector<float> same;
      for (const T& v : device.download(rounded[i].value, rounded[i].count)) same.push_back(static_cast<float>(v));
      device.put(values[i].value, same);
    }
    const Tokens tokens(spec, 2, 80, seed);
    reference.forward_backward(device.context, tokens.batch(device.context));
    const auto expected = gradients(device, reference);
    for (std::size_t f = 0; f < errors.size(); ++f) {
      model.set_form(all_forms[f]);
      model.forward_backward(device.context, tokens.batch(device.context));
      const auto found = gradients(device, model);
      double square = 0, all = 0;
      for (std::size_t i = 0; i < found.size(); ++i)
        for (std::size_t k = 0; k < found[i].size(); ++k) {
          square += std::pow(static_cast<double>(static_cast<float>(found[i][k])) - expected[i][k], 2);
          all += std::pow(double(expected[i][k]), 2);
        }
      errors[f] += std::sqrt(square / all);
    }
  }
  for (std::size_t f = 0; f < errors.size(); ++f) {
    const StepForm& form = all_forms[f];
    EXPECT_LE(errors[f], 1.1 * errors[0]) << name_of(form.attention) << " " << name_of(form.loss);
  }
}
TEST(StepForms, ErrorsOf16BitsAreNoLargerThanTheTextbooks) {
  if (OOMLAB_SANITIZED) GTEST_SKIP() << "errors of arithmetic are the same in every build";
  expect_no_larger_errors<__half>();
  expect_no_larger_errors<__nv_bfloat16>();
}

// Along the gradient of one tensor, the loss changes as the gradient says.
TEST(TransformerGradients, PointWhereTheLossFalls) {
  for (const char* name : {"gpt:2-2-12", "bert:2-2-12", "llama:2-3-1-12-16", "llama:3-2-1-12-16"}) {
    const TransformerSpec spec = tiny(name);
    Device device;
    Transformer<float> model(device.context, spec, 2);
    const Tokens tokens(spec, 3, 9, 7);
    make_wide(device, model);
    auto parameters = model.parameters();
    model.forward_backward(device.context, tokens.batch(device.context));
    const auto all = gradients(device, model);
    std::size_t i = 0;
    for (const auto& p : parameters) {
      const auto& g = all[i++];
      const auto before = device.download(p.value, p.count);
      double square = 0;
      for (const float v : g) square += double(v) * v;
      ASSERT_GT(square, 0) << p.name;
      const double step = 1e-2 / std::sqrt(square);
      double losses[2];
      for (const int sign : {0, 1}) {
        auto moved = before;
        for (std::size_t k = 0; k < moved.size(); ++k) moved[k] += float((sign ? step : -step) * g[k]);
        device.put(p.value, moved);
        model.forward_backward(device.context, tokens.batch(device.context));
        losses[sign] = model.loss(device.context);
      }
      device.put(p.value, before);
      EXPECT_NEAR((losses[1] - losses[0]) / (2 * step) / square, 1.0, 2e-2) << name << " " << p.name;
    }
  }
}

TEST(TransformerGradients, AccumulateOverMicroBatches) {
  for (const char* name : {"gpt:2-2-16", "bert:2-2-16", "llama:2-4-2-16-24", "llama:3-4-2-16-24"}) {
    const TransformerSpec spec = tiny(name);
    Device device;
    Transformer<float> model(device.context, spec, 1);
    const Tokens whole(spec, 4, 9, 3);
    model.forward_backward(device.context, whole.batch(device.context));
    const float loss = model.loss(device.context);
    const auto expected = gradients(device, model);
    std::size_t targets = 0;
    for (const int label : whole.labels) targets += label >= 0;
    for (const auto& p : model.parameters()) fill(device.context, p.gradient, p.count, NAN);
    for (std::size_t m = 0; m < 4; ++m) {
      const std::span<const int> tokens(whole.tokens), labels(whole.labels);
      model.forward_backward(device.context,
                             make_token_batch(device.context, tokens.subspan(m * 9, 9), labels.subspan(m * 9, 9), 1, 9),
                             {.accumulate = m > 0, .total_batch = targets});
    }
    EXPECT_NEAR(model.loss(device.context), loss, 1e-5);
    const auto found = gradients(device, model);
    for (std::size_t i = 0; i < found.size(); ++i) expect_close(found[i], expected[i], 1e-5, std::to_string(i));
  }
}

TEST(TransformerBatches, BadOnesAreRefused) {
  Device device;
  const std::vector<int> six(6, 1), none(6, -1);
  EXPECT_THROW(make_token_batch(device.context, six, six, 2, 4), std::invalid_argument);
  EXPECT_THROW(make_token_batch(device.context, six, six, 0, 6), std::invalid_argument);
  EXPECT_THROW(make_token_batch(device.context, six, none, 2, 3), std::invalid_argument);
  Transformer<float> model(device.context, tiny("gpt:1-1-4"), 1);
  const std::vector<int> long_text(17, 1);
  EXPECT_THROW(model.forward_backward(device.context, make_token_batch(device.context, long_text, long_text, 1, 17)),
               std::invalid_argument);
}

// A whole layer is not computed again behind the caller's back.
TEST(TransformerLayers, TheBackwardPassRequiresALayerThatKeptSomething) {
  for (const char* name : {"gpt:1-2-8", "bert:1-2-8", "llama:1-2-1-8-12"})
    for (const auto& keep : keeps(1)) {
      if (keep.empty()) continue;
      const TransformerSpec spec = tiny(name);
      Device device;
      Transformer<float> model(device.context, spec, 1);
      const TokenBatch batch = Tokens(spec, 2, 5, 1).batch(device.context);
      Transformer<float>::EmbeddingActivations embedding;
      const DeviceBuffer<float> x = model.embed(device.context, batch, embedding);
      LayerActivations<float> kept;
      DeviceBuffer<float> d = model.forward_layer(device.context, 0, batch, x.data(), keep[0], kept);
      const auto backward = [&] {
        model.backward_layer(device.context, 0, batch, x.data(), std::move(kept), d, false);
      };
      if (!keep[0].layer) {
        EXPECT_THROW(backward(), std::logic_error) << name;
        kept = {};
        (void)model.forward_layer(device.context, 0, batch, x.data(), keep[0], kept);
        model.rebuild_layer(device.context, 0, batch, x.data(), kept);
      }
      EXPECT_NO_THROW(backward()) << name;
    }
}

TEST(TransformerBytes, SizesBeyond64BitsAreRefused) {
  const TransformerSpec spec = parse_transformer("gpt2");
  EXPECT_THROW(simulate_step(spec, {.sequences = SIZE_MAX / 2, .seq = 1024}, {}), std::length_error);
  EXPECT_THROW(simulate_step(spec, {.sequences = SIZE_MAX / 4'000'000, .seq = 1024}, {}), std::length_error);
}

}  // namespace
}  // namespace oomlab::test
