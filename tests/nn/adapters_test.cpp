// Adapters: what they compute, against plain loops in double; what they leave alone; and what a step with frozen weights
// needs, as predicted, to the byte.

#include "nn/models/adapters.h"

#include <cuda_bf16.h>

#include "device.h"
#include "nn/models/scheduled_step.h"
#include "nn/optimizer/mixed_precision.h"
#include "plan/adapter_state.h"
#include "plan/step.h"
#include "reference.h"

namespace oomlab::test {
namespace {

using namespace nn;

// ------------------------------------------------------------------------------------------------------------- a layer

// y = x W^T + b and two adapters side by side in it, in double.
struct AdaptedLayer {
  static constexpr std::size_t kRows = 7, kIn = 20, kOut = 12, kStride = 28;
  struct Slot {
    std::size_t rank, first, out;
    float scale;
    Vector a, b;
  };
  Vector w, bias;
  std::vector<Slot> slots;
  std::vector<Vector> masks;  // of each slot: 0, or what x is multiplied by

  Vector forward(const Vector& x) const {
    Vector y = linear(x, w, bias, kRows, kIn, kOut);
    for (std::size_t s = 0; s < slots.size(); ++s) {
      const Slot& slot = slots[s];
      Vector kept = x;
      for (std::size_t i = 0; i < kept.size(); ++i) kept[i] *= masks[s][i];
      const Vector h = linear(kept, slot.a, {}, kRows, kIn, slot.rank);
      const Vector z = linear(h, slot.b, {}, kRows, slot.rank, slot.out);
      for (std::size_t r = 0; r < kRows; ++r)
        for (std::size_t o = 0; o < slot.out; ++o) y[r * kOut + slot.first + o] += slot.scale * z[r * slot.out + o];
    }
    return y;
  }
};

class AdaptedLinear : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Dropout, AdaptedLinear, ::testing::Bool());

TEST_P(AdaptedLinear, GradientsAreCentralDifferences) {
  constexpr std::size_t rows = AdaptedLayer::kRows, in = AdaptedLayer::kIn, out = AdaptedLayer::kOut;
  const bool dropout = GetParam();
  Device device;
  const auto x_ = random_floats(rows * in, 1), w_ = random_floats(out * in, 2), b_ = random_floats(out, 3),
             dy_ = random_floats(rows * out, 4);
  const auto a1 = random_floats(3 * in, 5), b1 = random_floats(5 * 3, 6), a2 = random_floats(2 * in, 7),
             b2 = random_floats(4 * 2, 8);
  AdaptedLayer expected{doubles(w_),
                        doubles(b_),
                        {{3, 0, 5, 0.5f, doubles(a1), doubles(b1)}, {2, 7, 4, 2.0f, doubles(a2), doubles(b2)}},
                        {Vector(rows * in, 1.0), Vector(rows * in, 1.0)}};
  std::vector<DeviceBuffer<std::uint8_t>> masks;
  constexpr float kept = 0.75f;
  for (std::size_t s = 0; dropout && s < 2; ++s) {
    masks.push_back(device.context.buffer<std::uint8_t>(rows * in, Category::activations, "mask"));
    draw_mask(device.context, masks[s].data(), {.rows = rows, .columns = in, .all_columns = in}, kept, 9, s);
    const auto drawn = device.download(masks[s]);
    for (std::size_t i = 0; i < drawn.size(); ++i) expected.masks[s][i] = drawn[i] / double(kept);
  }
  const auto x = device.upload(x_), w = device.upload(w_), bias = device.upload(b_), dy = device.upload(dy_);
  const auto A1 = device.upload(a1), B1 = device.upload(b1), A2 = device.upload(a2), B2 = device.upload(b2);
  auto dA1 = device.upload(std::vector<float>(a1.size(), 7)), dB1 = device.upload(std::vector<float>(b1.size(), 7));
  auto dA2 = device.upload(std::vector<float>(a2.size(), 7)), dB2 = device.upload(std::vector<float>(b2.size(), 7));
  Linear<BaseWeights<float>> layer{.weights = {w.data(), in, out}, .bias = bias.data()};
  EXPECT_FALSE(layer.needs_input());
  layer.adapters[0] = {3, in, 0, 5, 0.5f, A1.data(), B1.data(), dA1.data(), dB1.data()};
  layer.adapters[1] = {2, in, 7, 4, 2.0f, A2.data(), B2.data(), dA2.data(), dB2.data()};
  for (std::size_t s = 0; dropout && s < 2; ++s) {
    layer.adapters[s].mask = masks[s].data();
    layer.adapters[s].kept = kept;
  }
  EXPECT_TRUE(layer.needs_input());

  auto y = device.upload(std::vector<float>(rows * out, NAN));
  layer.forward(device.context, {x.data(), in}, y.data(), rows);
  expect_close(device.download(y), expected.forward(doubles(x_)), 1e-5, "y");

  const auto loss = [&](const AdaptedLayer& of, const Vector& input) {
    const Vector out_of = of.forward(input);
    double sum = 0;
    for (std::size_t i = 0; i < out_of.size(); ++i) sum += out_of[i] * dy_[i];
    return sum;
  };
  // Rows in two pieces, whose masks lie one behind the other.
  auto dx = device.upload(std::vector<float>(rows * in, NAN));
  for (const auto& [first, count] : {std::pair<std::size_t, std::size_t>{0, 4}, {4, 3}}) {
    layer.backward_weights(device.context, dy.data() + first * out, x.data() + first * in, count, first > 0, first);
    layer.backward_input(device.context, dy.data() + first * out, dx.data() + first * in, count, false, first);
  }
  const auto differences = [&](Vector of, auto set) {
    return central_differences(std::move(of), [&](const Vector& value) {
      AdaptedLayer changed = expected;
      set(changed, value);
      return loss(changed, doubles(x_));
    });
  };
  const auto check = [&](const DeviceBuffer<float>& found, const Vector& of, auto set, const char* what) {
    expect_close(device.download(found), differences(of, set), 1e-4, what);
  };
  check(
      dA1, doubles(a1), [](AdaptedLayer& l, const Vector& v) { l.slots[0].a = v; }, "dA of the first");
  check(
      dB1, doubles(b1), [](AdaptedLayer& l, const Vector& v) { l.slots[0].b = v; }, "dB of the first");
  check(
      dA2, doubles(a2), [](AdaptedLayer& l, const Vector& v) { l.slots[1].a = v; }, "dA of the second");
  check(
      dB2, doubles(b2), [](AdaptedLayer& l, const Vector& v) { l.slots[1].b = v; }, "dB of the second");
  expect_close(device.download(dx),
               central_differences(doubles(x_), [&](const Vector& v) { return loss(expected, v); }), 1e-4, "dx");

  if (dropout) return;
  auto merged = device.upload(w_);  // alone it does what both did
  layer.adapters[0].merge(device.context, merged.data());
  layer.adapters[1].merge(device.context, merged.data());
  const Linear<BaseWeights<float>> alone{.weights = {merged.data(), in, out}, .bias = bias.data()};
  alone.forward(device.context, {x.data(), in}, y.data(), rows);
  expect_close(device.download(y), expected.forward(doubles(x_)), 1e-5, "y of the merged weights");
}

// --------------------------------------------------------------------------------------------------------------- names

TEST(AdapterTargets, NameMatrices) {
  const auto names = [](const char* model, const char* targets) {
    std::string all;
    for (const AdapterSlot& slot : adapter_slots(parse_transformer(model), targets))
      all += std::string(slot.name) + " ";
    return all;
  };
  EXPECT_EQ(names("llama-3.1-8b", "all"), "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj ");
  EXPECT_EQ(names("llama-3.1-8b", "attention"), "q_proj k_proj v_proj o_proj ");
  EXPECT_EQ(names("llama-3.1-8b", "qv"), "q_proj v_proj ");
  EXPECT_EQ(names("llama-3.1-8b", "down_proj,q_proj"), "q_proj down_proj ");
  EXPECT_EQ(names("gpt2", "all"), "c_attn attn.c_proj c_fc mlp.c_proj ");
  EXPECT_EQ(names("gpt2", "attention"), "c_attn attn.c_proj ");
  EXPECT_EQ(names("gpt2", "qv"), "q v ");
  for (const char* targets : {"", "qkv", "q_proj,", "q_proj,q_proj", "c_attn", "Q_proj", ",", "all,q_proj"})
    expect_refused_in_one_line([&] { return adapter_slots(parse_transformer("llama-3.1-8b"), targets); }, targets);
  expect_refused_in_one_line([&] { return adapter_slots(parse_transformer("gpt2"), "c_attn,q"); }, "c_attn,q");
  expect_refused_in_one_line([&] { return adapter_slots(parse_transformer("bert-base"), "all"); }, "bert");
}

TEST(AdapterTargets, CountParameters) {
  const TransformerSpec llama = parse_transformer("llama-3.1-8b");
  // Hu et al.'s r (in + out), as peft prints it for this model: "trainable params: 41,943,040" at r = 16.
  EXPECT_EQ(adapter_parameters(llama, {.rank = 16}), 41'943'040u);
  EXPECT_EQ(adapter_parameters(llama, {.rank = 16, .targets = "qv"}), 6'815'744u);
  std::uint64_t sum = 0;
  for (const TensorShape& shape : adapter_tensors(llama, {.rank = 16})) sum += shape.count();
  EXPECT_EQ(sum, 41'943'040u);
  expect_refused_in_one_line(
      [&] {
        require_adapters(llama, {.rank = 0});
        return 0;
      },
      "rank 0");
  for (const float dropout : {-0.1f, 1.0f, NAN})
    expect_refused_in_one_line(
        [&] {
          require_adapters(llama, {.dropout = dropout});
          return 0;
        },
        "dropout");
}

// ------------------------------------------------------------------------------------------------------------ a model

struct Case {
  TransformerSpec spec;
  FineTuning tuning;
  std::size_t sequences = 1, seq = 1, micro_batches = 1;
  StepForm form{};
  Schedule schedule{};
  std::string describe() const {
    std::string text = spec.name + " layers " + std::to_string(spec.layers) + " heads " + std::to_string(spec.heads) +
                       "/" + std::to_string(spec.keys()) + " width " + std::to_string(spec.width) + " mlp " +
                       std::to_string(spec.hidden()) + " trained " + std::to_string(int(tuning.trained)) + " rank " +
                       std::to_string(tuning.adapters.rank) + " " + tuning.adapters.targets + " dropout " +
                       std::to_string(tuning.adapters.dropout) + " batch " + std::to_string(sequences) + " x " +
                       std::to_string(seq) + " times " + std::to_string(micro_batches) + " " + name_of(form.attention) +
                       " " + name_of(form.loss) + (form.by_rows ? " by rows" : "") + " MLP tiles " +
                       std::to_string(form.mlp_tiles);
    for (const Segment& segment : schedule)
      text += " " + std::to_string(segment.layers) + (segment.recompute ? "r" : "k") + (segment.keep.norms ? "n" : "") +
              (segment.keep.gelu ? "g" : "") + (segment.keep.probabilities ? "p" : "") +
              (segment.keep.post_attention_residual ? "m" : "");
    return text;
  }
};

// A model whose base is frozen, trained.
template <class T>
struct FineTuned {
  Device& device;
  Case of;
  Transformer<T> model;
  std::vector<DeviceBuffer<T>> values, gradients;
  std::optional<AdapterSet<T>> adapters;
  std::optional<ScaledOptimizer<T>> optimizer;
  std::uint64_t steps = 0;

  FineTuned(Device& on, const Case& what) : device(on), of(what), model(on.context, what.spec, Slice{}, nullptr) {
    Context& context = device.context;
    const FineTuning& tuning = of.tuning;
    model.set_form(of.form);
    model.train_only(tuning.trained);
    const auto shapes = tensors_of(of.spec);
    std::vector<ParameterOf<T>> trained;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      values.push_back(context.buffer<T>(shapes[i].count(), Category::parameters, shapes[i].name));
      T* gradient = nullptr;
      if (tuning.trained == Trained::all || (tuning.trained == Trained::head && shapes[i].name == "head weight")) {
        gradients.push_back(context.buffer<T>(shapes[i].count(), Category::gradients, shapes[i].name));
        gradient = gradients.back().data();
        trained.push_back({shapes[i].name, values[i].data(), gradient, shapes[i].count()});
      }
      model.bind(i, values[i].data(), gradient);
      model.initialise(context, i, values[i].data(), 1);
    }
    if (tuning.trained == Trained::adapters) {
      adapters.emplace(context, of.spec, tuning.adapters, 3);
      model.set_adapters(&*adapters);
      trained = adapters->parameters();
    }
    optimizer.emplace(context, trained, LossScaling::none(), OptimizerSettings{}, tuning.optimizer);
  }
  void step(unsigned seed = 1) {
    Context& context = device.context;
    if (adapters) adapters->begin_step(steps++);
    for (std::size_t m = 0; m < of.micro_batches; ++m) {
      const std::size_t rows = of.sequences * of.seq;
      const auto tokens = random_labels(rows, of.spec.vocabulary, seed + unsigned(2 * m)),
                 labels = random_labels(rows, of.spec.vocabulary, seed + unsigned(2 * m) + 1);
      TokenBatch batch = make_token_batch(context, tokens, labels, of.sequences, of.seq);
      const StepOptions options{m > 0, rows * of.micro_batches};
      if (of.schedule.empty()) {
        model.forward_backward(context, std::move(batch), options, optimizer->scale_on_device());
        continue;
      }
      ScheduledPass<T> pass(context, model, batch, of.schedule);
      auto d = model.head(context, batch, pass.output(), options, optimizer->scale_on_device());
      pass.backward(context, model, batch, std::move(d), options.accumulate);
    }
    optimizer->step(context);
  }
  std::uint64_t fingerprint_of_base() {
    std::uint64_t hash = kFingerprintStart;
    for (const auto& value : values) hash = nn::fingerprint(device.context, value.data(), value.bytes(), hash);
    return hash;
  }
  std::vector<T> logits() {
    const std::vector<int> tokens = random_labels(of.sequences * of.seq, of.spec.vocabulary, 8);
    return device.download(
        model.logits(device.context, make_token_batch(device.context, tokens, tokens, of.sequences, of.seq)));
  }
};

ByCategory predicted(const Case& of) {
  const StepLevers levers{.element_bytes = element_bytes(of.tuning.dtype),
                          .sequences = of.sequences,
                          .seq = of.seq,
                          .form = of.form,
                          .schedule = of.schedule,
                          .micro_batches = of.micro_batches,
                          .trained = of.tuning.trained,
                          .adapters = of.tuning.adapters};
  return simulate_step(of.spec, levers, fine_tuning_bytes(of.spec, of.tuning)).at_peak;
}

template <class T>
std::string as_predicted(const Case& of) {
  Device device;
  {
    FineTuned<T> training(device, of);
    training.step();
    const std::uint64_t base = training.fingerprint_of_base();
    training.step(5);
    EXPECT_EQ(training.fingerprint_of_base() == base, of.tuning.trained == Trained::adapters) << of.describe();
  }
  const ByCategory measured = without_workspace(device.ledger.peak_by_category()), expected = predicted(of);
  std::string wrong;
  for (std::size_t c = 0; c < kCategoryCount; ++c)
    if (measured.bytes[c] != expected.bytes[c])
      wrong += std::string(name_of(Category(c))) + " measured " + std::to_string(measured.bytes[c]) + ", predicted " +
               std::to_string(expected.bytes[c]) + "; ";
  return wrong;
}

class AnyCase {
 public:
  explicit AnyCase(unsigned seed) : random_(seed) {}
  Case next() {
    Case of;
    of.spec = parse_transformer(coin() ? "gpt:1-1-2" : "llama:1-1-1-2-1");
    of.spec.layers = up_to(3);
    of.spec.heads = 2 * up_to(2);
    of.spec.width = of.spec.heads * 2 * up_to(6);
    of.spec.vocabulary = 5 + up_to(300);
    of.spec.positions = 64;
    if (of.spec.llama()) {
      of.spec.kv_heads = coin() ? 2 : of.spec.heads;
      of.spec.mlp = 3 + up_to(80);
    }
    of.spec.tied = coin();
    const bool head = !of.spec.tied && up_to(4) == 1;
    of.tuning.trained = head ? Trained::head : up_to(6) == 1 ? Trained::all : Trained::adapters;
    const std::vector<AdapterSlot> slots = all_adapter_slots(of.spec);
    const std::string one = slots[up_to(slots.size()) - 1].name;
    const std::string targets[] = {"all", "attention", "qv", one};
    of.tuning.adapters = {.rank = up_to(40), .alpha = 8, .targets = targets[random_() % 4]};
    if (up_to(3) == 1) of.tuning.adapters.dropout = 0.25f;
    of.sequences = up_to(4);
    of.seq = 1 + up_to(20);
    of.micro_batches = up_to(3) == 1 ? 2 : 1;
    of.form = {AttentionForm(random_() % 3), LossForm(random_() % 2), keep(), coin(), coin() ? 1 : 2 + random_() % 6};
    if (of.tuning.trained != Trained::head && coin())
      for (std::uint64_t left = of.spec.layers; left > 0; left -= of.schedule.back().layers)
        of.schedule.push_back({up_to(left), coin(), keep()});
    return of;
  }

 private:
  std::size_t up_to(std::size_t n) { return 1 + random_() % n; }
  bool coin() { return random_() % 2 == 0; }
  Keep keep() { return {true, coin(), coin(), coin(), coin()}; }
  std::mt19937 random_;
};

TEST(FrozenBytes, AreAsPredicted) {
  AnyCase cases(1);
  const int drawn = OOMLAB_SANITIZED ? 60 : 600;  // bytes are the same in every build
  for (int i = 0; i < drawn; ++i) {
    Case of = cases.next();
    std::string wrong;
    if (i % 2 == 0) {
      wrong = as_predicted<float>(of);
    } else {
      of.tuning.dtype = DType::bf16;
      of.tuning.optimizer.weights = WeightForm::master;
      wrong = as_predicted<__nv_bfloat16>(of);
    }
    ASSERT_EQ(wrong, "") << i << ": " << of.describe();
  }
}

Case small_case(const char* model) {
  Case of;
  of.spec = parse_transformer(model);
  of.spec.vocabulary = 31;
  of.spec.positions = 32;
  of.tuning.trained = Trained::adapters;
  of.tuning.adapters = {.rank = 4, .alpha = 8};
  of.sequences = 2;
  of.seq = 9;
  return of;
}

TEST(FrozenModel, BeginsAsWithoutAdaptersAndEndsAsMerged) {
  for (const char* model : {"gpt:2-2-16", "llama:2-4-2-16-24"})
    for (const char* targets : {"all", "qv"}) {
      Case of = small_case(model);
      of.tuning.adapters.targets = targets;
      of.tuning.adapters.dropout = 0.1f;  // in training alone
      Device device;
      FineTuned<float> training(device, of);
      const auto before = training.logits();
      training.model.set_adapters(nullptr);
      EXPECT_EQ(training.logits(), before);
      training.model.set_adapters(&*training.adapters);
      const std::uint64_t base = training.fingerprint_of_base();
      for (int step = 0; step < 5; ++step) training.step();
      EXPECT_EQ(training.fingerprint_of_base(), base);
      const auto after = training.logits();
      EXPECT_NE(after, before);
      training.adapters->merge(device.context, of.spec, [&](std::size_t i) { return training.values[i].data(); });
      training.model.set_adapters(nullptr);
      expect_close(training.logits(), std::vector<double>(after.begin(), after.end()), 1e-5, "merged");
    }
}

// The same bits, whatever is kept, recomputed, or done by rows: masks are drawn again as they were.
TEST(FrozenModel, TrainsTheSameWhateverIsKept) {
  for (const char* model : {"gpt:3-2-16", "llama:3-4-2-16-24"})
    for (const float dropout : {0.0f, 0.25f}) {
      std::vector<std::vector<float>> all;
      for (const Schedule& schedule : {Schedule{}, Schedule{{3, true, {}}}, Schedule{{1, true, {}}, {2, false, {}}},
                                       Schedule{{3, false, Keep::selective_recompute()}}}) {
        Case of = small_case(model);
        of.tuning.adapters.dropout = dropout;
        of.schedule = schedule;
        Device device;
        FineTuned<float> training(device, of);
        for (int step = 0; step < 3; ++step) training.step();
        all.push_back(training.logits());
        EXPECT_EQ(all.back(), all.front());
      }
    }
}

TEST(FrozenModel, RefusesWhatCannotBe) {
  Device device;
  for (const auto& [model, trained] :
       {std::pair{"bert:1-2-8", Trained::adapters}, {"gpt:1-2-8", Trained::head}, {"bytes-llama", Trained::head}}) {
    Transformer<float> made(device.context, parse_transformer(model), Slice{}, nullptr);
    expect_refused_in_one_line(
        [&, to = trained] {
          made.train_only(to);
          return 0;
        },
        model);
  }
}

// By hand: one layer of width 8 over 12 hidden units. Every tensor is one granule, but the token table [31, 8], the
// matrices [24, 8] of Q, K and V and of gate and up, which are two.
TEST(FrozenBytes, ByHand) {
  Case of = small_case("llama:1-2-2-8-12");
  const ByCategory state = fine_tuning_bytes(of.spec, of.tuning);
  const std::uint64_t base = 2 + 1 + 2 + 1 + 1 + 2 + 1 + 1;
  const std::uint64_t adapters = 2 * 7;
  EXPECT_EQ(state[Category::parameters], (base + adapters) * 512);
  EXPECT_EQ(state[Category::gradients], adapters * 512);
  EXPECT_EQ(state[Category::optimizer], (2 * adapters + 1) * 512);  // two moments, and the loss scale
  of.tuning.base.scheme = quantised::Scheme::nf4;  // a matrix is codes, two kinds of scales, and a mean
  EXPECT_EQ(fine_tuning_bytes(of.spec, of.tuning)[Category::parameters], (base - 6 + 4 * 4 + adapters) * 512);
  EXPECT_EQ(decoded_part_bytes(of.spec, of.tuning), 512u);  // 3 rows of [24, 8]
}

}  // namespace
}  // namespace oomlab::test
