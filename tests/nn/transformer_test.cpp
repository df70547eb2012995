// The whole transformer: published parameter counts, bytes as predicted, bits that do not depend on what is kept, and what
// is refused. Numbers against another implementation: tests/parity.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <random>

#include "plan/flops.h"
#include "transformer_runs.h"

namespace oomlab::test {
namespace {

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
