// Networks that are lists of layers: their names, their bytes, and forms of a step that must not change its numbers.
// What they compute is compared with PyTorch in tests/parity.

#include "nn/models/network.h"

#include <gtest/gtest.h>

#include <map>

#include "device.h"
#include "memory/resource.h"

namespace oomlab::test {
namespace {

using namespace nn;

// Every kind of layer, and every way in which one layer's value reaches another, in a few thousand parameters.
NetworkSpec every_kind() {
  static constexpr auto none = Layer::kNone;
  NetworkSpec spec{.name = "every kind", .in_channels = 3, .classes = 5, .multiple_of = 2, .layers = {}};
  const auto add = [&](Layer layer) {
    layer.name = "layer " + std::to_string(spec.layers.size() + 1);
    spec.layers.push_back(layer);
    return spec.layers.size();
  };
  const auto convolution = [&](std::size_t from, std::size_t out, std::size_t kernel, Activation activation,
                               std::size_t also = Layer::kNone) {
    return add({"", LayerKind::convolution, from, also, out, kernel, 1, kernel / 2, activation});
  };
  const std::size_t stem = convolution(0, 8, 3, Activation::hard_swish);
  const std::size_t wide = convolution(stem, 12, 1, Activation::relu);
  const std::size_t deep = add({"", LayerKind::depthwise, wide, none, 12, 5, 1, 2, Activation::hard_swish});
  const std::size_t squeezed = add({"", LayerKind::squeeze_excite, deep, none, 12, 1, 1, 0, Activation::none, 4});
  const std::size_t block = convolution(squeezed, 8, 1, Activation::none, stem);  // no ReLU behind the sum
  const std::size_t again = add({"", LayerKind::squeeze_excite, block, none, 8, 1, 1, 0, Activation::none, 3});
  const std::size_t pool = add({"", LayerKind::max_pool, again, none, 8, 2, 2, 0});
  const std::size_t below = convolution(pool, 8, 3, Activation::relu);
  const std::size_t shared = convolution(below, 8, 3, Activation::relu);
  spec.layers.back().shares = below - 1;
  const std::size_t side = convolution(pool, 8, 1, Activation::none);
  const std::size_t sum = convolution(shared, 8, 3, Activation::relu, side);  // in the place of `side`
  spec.layers.back().shares = below - 1;
  const std::size_t up = add({"", LayerKind::upsample, sum, none, 8, 1, 1, 0, Activation::none, 0, 2});
  const std::size_t joined = add({"", LayerKind::concatenate, up, again, 16});
  const std::size_t last = convolution(joined, 6, 3, Activation::relu);
  const std::size_t mean = add({"", LayerKind::global_pool, last, none, 6});
  const std::size_t hidden = add({"", LayerKind::linear, mean, none, 9, 1, 1, 0, Activation::hard_swish});
  const std::size_t more = add({"", LayerKind::linear, hidden, none, 7, 1, 1, 0, Activation::relu});
  add({"", LayerKind::linear, more, none, 5});
  return spec;
}

// Its fullest moment is that of the sum, which takes the place of what it adds.
NetworkSpec sum_at_the_end() {
  NetworkSpec spec{.name = "sum at the end", .in_channels = 3, .classes = 4, .layers = {}};
  const auto convolution = [&](const char* name, std::size_t from, std::size_t also) {
    spec.layers.push_back({.name = name, .kind = LayerKind::convolution, .from = from, .also = also, .out = 16});
  };
  convolution("first", 0, Layer::kNone);
  convolution("side", 1, Layer::kNone);
  convolution("sum", 1, 2);
  spec.layers.push_back({.name = "mean", .kind = LayerKind::global_pool, .from = 3, .out = 16});
  spec.layers.push_back({.name = "head", .kind = LayerKind::linear, .from = 4, .out = 4});
  return spec;
}

struct NetworkCase {
  NetworkSpec spec;
  std::size_t batch;
  InputSize size;
};
std::vector<NetworkCase> network_cases() {
  const ResNetSpec basic = parse_resnet("resnet:2-5");
  ResNetSpec pooled = parse_resnet("resnet:3-4");
  pooled.pooled = true;
  return {{every_kind(), 3, {10, 6}},
          {sum_at_the_end(), 4, {16, 16}},
          {parse_network("mobilenet:5"), 3, {9, 7}},
          {parse_network("unet:1-3"), 2, {6, 4}},
          {parse_network("unet:3-4"), 2, {16, 8}},
          {parse_network("two-branch:3"), 2, {32, 16}},
          {network_of(basic), 3, {7, 8}},
          {network_of(pooled), 2, {17, 16}},
          {network_of(basic, {.width_percent = 30}), 3, {7, 8}},
          {network_of(basic, {.separable = true}), 3, {7, 8}},
          {network_of(pooled, {.shared = true}), 2, {17, 16}}};
}
// In check mode a few of them, which differ in everything.
std::vector<NetworkForm> network_forms() {
  constexpr auto tiled = ConvolutionWay::tiled, im2col = ConvolutionWay::im2col, direct = ConvolutionWay::direct;
  if (OOMLAB_ROUNDS < 10) return {{tiled, true, false}, {im2col, true, true}, {direct, false, true}};
  std::vector<NetworkForm> all;
  for (const auto way : {tiled, im2col, direct})
    for (const bool in_place : {true, false})
      for (const bool again : {false, true}) all.push_back({way, in_place, again});
  return all;
}
std::string text(const NetworkCase& c, const NetworkForm& form) {
  return c.spec.name + ", " + name_of(form.way) + (form.activation_in_place ? "" : ", apart") +
         (form.recompute_norms ? ", recomputed" : "");
}

Batch network_batch(Context& context, const NetworkCase& c) {
  const NetworkShapes shapes = shapes_of(c.spec, c.batch, c.size);
  Batch batch{context.buffer<float>(shapes.elements(0), Category::activations, "input"),
              context.buffer<int>(shapes.labels(), Category::data, "batch labels"), c.batch};
  const std::vector<int> labels = random_labels(shapes.labels(), c.spec.classes, 3);
  const std::vector<float> input = random_floats(shapes.elements(0), 4);
  const auto put = [&](void* to, const void* from, std::size_t bytes) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, context.stream()));
  };
  put(batch.labels.data(), labels.data(), batch.labels.bytes());
  put(batch.input.data(), input.data(), batch.input.bytes());
  context.synchronize();
  return batch;
}

TEST(NetworkBytes, TrainingPeakIsAsPredicted) {
  std::size_t i = 0;
  for (const NetworkCase& c : network_cases())
    for (const NetworkForm& form : network_forms()) {
      const auto rule = i++ % 2 ? UpdateRule::adamw : UpdateRule::sgd;
      Ledger ledger;
      {
        CudaResource resource;
        Context context(resource, ledger);
        Network model(context, c.spec, 1, true);
        Optimizer<float> optimizer(context, model.parameters(), {rule}, {.sgd = {.lr = 0.01f}});
        const ByCategory resident = without_workspace(ledger.live_by_category());
        const ByCategory expected = resident_for_training(c.spec, rule);
        for (std::size_t k = 0; k < kCategoryCount; ++k) EXPECT_EQ(resident.bytes[k], expected.bytes[k]);
        model.train_step(context, network_batch(context, c), c.size, optimizer, form);
      }
      const ByCategory found = without_workspace(ledger.peak_by_category()),
                       expected = predict_training(c.spec, c.batch, c.size, rule, form).at_peak;
      for (std::size_t k = 0; k < kCategoryCount; ++k)
        EXPECT_EQ(found.bytes[k], expected.bytes[k]) << name_of(static_cast<Category>(k)) << ": " << text(c, form);
      EXPECT_EQ(ledger.live_bytes(), 0u) << text(c, form);
    }
}

TEST(NetworkBytes, InferencePeakIsAsPredicted) {
  for (const NetworkCase& c : network_cases())
    for (const NetworkForm& form : network_forms()) {
      Device device;
      Network model(device.context, c.spec, 1, false);
      Ledger& ledger = device.ledger;
      Batch batch = network_batch(device.context, c);
      batch.labels.reset();
      ledger.reset_peak();
      EXPECT_EQ(model.forward(device.context, std::move(batch.input), c.batch, c.size, form).size(),
                shapes_of(c.spec, c.batch, c.size).labels() * c.spec.classes);
      const ByCategory found = without_workspace(ledger.peak_by_category()),
                       expected = predict_inference(c.spec, c.batch, c.size, form).at_peak;
      for (std::size_t k = 0; k < kCategoryCount; ++k)
        EXPECT_EQ(found.bytes[k], expected.bytes[k]) << name_of(static_cast<Category>(k)) << ": " << text(c, form);
    }
}

struct NetworkOutcome {
  float loss;
  std::vector<std::vector<float>> gradients, statistics;
  bool operator==(const NetworkOutcome&) const = default;
};
NetworkOutcome network_outcome(Device& device, const NetworkCase& c, const NetworkForm& form) {
  Network model(device.context, c.spec, 1, true);
  model.forward_backward(device.context, network_batch(device.context, c), c.size, form);
  NetworkOutcome outcome{model.loss(device.context), {}, {}};
  for (const Parameter& p : model.parameters()) outcome.gradients.push_back(device.download(p.gradient, p.count));
  for (const Parameter& p : model.statistics()) outcome.statistics.push_back(device.download(p.value, p.count));
  return outcome;
}

TEST(NetworkForms, WhereAnActivationLiesChangesNoBit) {
  Device device;
  for (const NetworkCase& c : network_cases()) {
    if (OOMLAB_ROUNDS < 10 && c.spec.name.starts_with("resnet")) continue;
    const NetworkOutcome usual = network_outcome(device, c, {});
    EXPECT_GT(usual.loss, 0);
    for (const bool in_place : {true, false})
      for (const bool again : {true, false}) {
        const NetworkForm form{ConvolutionWay::tiled, in_place, again};
        EXPECT_EQ(network_outcome(device, c, form), usual) << text(c, form);
      }
  }
}

// Out of memory at the k-th allocation, for every k: everything is free again, and a retry has the same bits.
TEST(NetworkMemory, ARetryAfterOutOfMemoryHasTheSameBits) {
  Device usual;
  for (const NetworkCase& c : {network_cases()[0], network_cases()[3]})
    for (const NetworkForm& form : {NetworkForm{}, NetworkForm{ConvolutionWay::tiled, false, true}}) {
      const NetworkOutcome expected = network_outcome(usual, c, form);
      const std::size_t most =
          kBlasWorkspaceBytes + predict_training(c.spec, c.batch, c.size, UpdateRule::sgd, form).total();
      const std::size_t step = OOMLAB_ROUNDS < 10 ? 5 * kGranule : kGranule;
      std::size_t refused = 0;
      CudaResource resource;
      LimitingResource limited(resource, most);
      Ledger ledger;
      Context context(limited, ledger);
      Network model(context, c.spec, 1, true);
      const std::uint64_t before = model.fingerprint(context);
      const std::size_t resident = ledger.live_bytes();
      for (std::size_t taken = most - resident; taken >= step; taken -= step) {
        const auto other = context.buffer<std::byte>(taken, Category::data, "other");
        const std::size_t live = ledger.live_bytes();
        EXPECT_THROW(model.forward_backward(context, network_batch(context, c), c.size, form), OutOfMemory) << taken;
        EXPECT_EQ(ledger.live_bytes(), live);
        ++refused;
      }
      EXPECT_GT(refused, OOMLAB_ROUNDS < 10 ? 5u : 30u);
      EXPECT_EQ(model.fingerprint(context), before);
      model.forward_backward(context, network_batch(context, c), c.size, form);
      EXPECT_EQ(model.loss(context), expected.loss);
      std::size_t i = 0;
      for (const Parameter& p : model.parameters())
        EXPECT_EQ(usual.download(p.gradient, p.count), expected.gradients[i++]) << p.name;
    }
}

TEST(NetworkNames, ParameterCountsAreThePublishedOnes) {
  EXPECT_EQ(parse_network("mobilenet-v1").parameters(), 4'231'976u);
  EXPECT_EQ(parse_network("mobilenet-v3-large").parameters(), 5'483'032u);
  EXPECT_EQ(parse_network("resnet18").parameters(), 11'689'512u);
  EXPECT_EQ(parse_network("resnet50").parameters(), 25'557'032u);
}

TEST(NetworkNames, LayersOfAResidualNetworkAreInOrder) {
  std::vector<std::string> names;
  for (const Layer& layer : parse_network("resnet:2-6").layers) names.push_back(layer.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"stem", "stage 1 block 1 conv 1", "stage 1 block 1 conv 2",
                                      "stage 1 block 2 conv 1", "stage 1 block 2 conv 2", "stage 2 block 1 conv 1",
                                      "stage 2 block 1 projection", "stage 2 block 1 conv 2", "stage 2 block 2 conv 1",
                                      "stage 2 block 2 conv 2", "global pool", "head"}));
}

TEST(NetworkNames, MultiplyAddsAreThePublishedOnes) {
  EXPECT_NEAR(multiply_adds(parse_network("mobilenet-v1"), 1, {224, 224}), 569e6, 1e6);
  EXPECT_NEAR(multiply_adds(parse_network("mobilenet-v3-large"), 1, {224, 224}), 217e6, 1e6);
  EXPECT_NEAR(multiply_adds(parse_network("resnet50"), 1, {224, 224}), 4.09e9, 0.02e9);
}

TEST(NetworkNames, LighterFormsHaveTheParametersOfTheirDefinition) {
  const ResNetSpec spec = parse_resnet("resnet:1-16");
  // 3 x 3 from 3, and four of 16 to 16; norms; the head.
  EXPECT_EQ(network_of(spec).parameters(), 9u * (3 * 16 + 4 * 16 * 16) + 5 * 2 * 16 + 16 * 10 + 10);
  EXPECT_EQ(network_of(spec, {.shared = true}).parameters(), 9u * (3 * 16 + 16 * 16) + 5 * 2 * 16 + 16 * 10 + 10);
  // of its second stage 4 to 8 channels, then 8 to 8 three times, and a projection
  EXPECT_EQ(network_of(parse_resnet("resnet:2-4"), {.shared = true}).parameters(),
            9u * (3 * 4 + 4 * 4 + 4 * 8 + 8 * 8) + 4 * 8 + 2 * (5 * 4 + 5 * 8) + 8 * 10 + 10);
  EXPECT_EQ(network_of(spec, {.width_percent = 50}).parameters(), 9u * (3 * 8 + 4 * 8 * 8) + 5 * 2 * 8 + 8 * 10 + 10);
  EXPECT_EQ(network_of(spec, {.separable = true}).parameters(),
            9u * (3 * 16 + 4 * 16) + 4 * 16 * 16 + 9 * 2 * 16 + 16 * 10 + 10);
  EXPECT_EQ(network_of(spec, {.width_percent = 1}).channels(1), 1u);
}

TEST(NetworkNames, BadNamesAreOneLine) {
  for (const char* name : {"", "mobilenet", "mobilenet:", "mobilenet:0", "mobilenet:x", "mobilenet:4-4",
                           "mobilenet:9999999999999", "mobilenet-v2", "unet:", "unet:0-4", "unet:2-0", "unet:2",
                           "unet:99-4", "unet:2-4-1", "two-branch:", "two-branch:0", "resnet", "resnet:0-4", "mlp"})
    expect_refused_in_one_line([&] { return parse_network(name); }, name);
  expect_refused_in_one_line([] { return network_of(parse_resnet("resnet:1-4"), {.width_percent = 0}); }, "width 0");
}

TEST(NetworkNames, SizesThatCannotBeAreOneLine) {
  const auto refused = [](const char* name, InputSize size) {
    expect_refused_in_one_line([&] { return shapes_of(parse_network(name), 2, size); }, name);
  };
  refused("unet:2-4", {10, 8});
  refused("unet:2-4", {8, 10});
  refused("two-branch:4", {24, 32});
  refused("mobilenet:4", {0, 8});
  EXPECT_THROW(shapes_of(parse_network("mobilenet:4"), std::size_t(1) << 60, {64, 64}), std::length_error);
}

TEST(NetworkNames, ABatchOfAnotherSizeIsOneLine) {
  Device device;
  const NetworkCase c = network_cases()[3], larger{c.spec, c.batch + 1, c.size};
  Network model(device.context, c.spec, 1, true);
  expect_refused_in_one_line(
      [&] {
        Batch batch = network_batch(device.context, larger);
        batch.size = c.batch;
        model.forward_backward(device.context, std::move(batch), c.size);
        return 0;
      },
      "input");
  expect_refused_in_one_line(
      [&] {
        Batch batch = network_batch(device.context, c);
        batch.labels = network_batch(device.context, larger).labels;
        model.forward_backward(device.context, std::move(batch), c.size);
        return 0;
      },
      "labels");
  Network without(device.context, c.spec, 1, false);
  EXPECT_THROW(without.forward_backward(device.context, network_batch(device.context, c), c.size), std::logic_error);
  EXPECT_THROW((void)without.loss(device.context), std::logic_error);
}

}  // namespace
}  // namespace oomlab::test
