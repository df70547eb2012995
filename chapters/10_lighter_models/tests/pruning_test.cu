// Pruned networks against definitions written out on the host: which channels stay, what is copied, what the smaller
// network computes, and that it can be saved after training.

#include "pruning.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <set>

#include "small_networks.h"

namespace {

using namespace oomlab;
using namespace oomlab::lighter_models;
using namespace oomlab::test;

// ----------------------------------------------------------------------------------------------------------------
// specs

std::set<std::string> prunable_names(const NetworkSpec& spec) {
  std::set<std::string> names;
  for (const std::size_t i : prunable(spec)) names.insert(spec.layers[i].name);
  return names;
}

TEST(Prunable, AreTheConvolutionsInsideABlock) {
  for (const char* model : {"resnet:1-4", "resnet:3-8", "resnet18", "resnet50"}) {
    const nn::ResNetSpec resnet = nn::parse_resnet(model);
    std::set<std::string> expected;
    for (const nn::ResidualBlock& block : resnet.blocks)
      for (std::size_t i = 0; i + 1 < block.branch.size(); ++i) expected.insert(block.branch[i].name);
    EXPECT_EQ(prunable_names(nn::network_of(resnet)), expected) << model;
  }
  EXPECT_EQ(prunable_names(segmenter()),
            (std::set<std::string>{"down 1 conv 1", "down 2 conv 1", "bottom conv 1", "up 1 conv 1", "up 2 conv 1"}));
  for (const char* model : {"mobilenet:8", "mobilenet-v1"})
    EXPECT_TRUE(prunable_names(nn::parse_network(model)).empty()) << model;
}

TEST(Prunable, NeitherWhatIsSharedNorWhatSeveralReadNorASum) {
  const auto conv = [](const char* name, std::size_t from, std::size_t also = Layer::kNone,
                       std::size_t shares = Layer::kNone) {
    return Layer{
        .name = name, .kind = nn::LayerKind::convolution, .from = from, .also = also, .out = 4, .shares = shares};
  };
  const auto names = [](std::vector<Layer> layers) {
    return prunable_names({.name = "", .in_channels = 4, .layers = std::move(layers)});
  };
  using Names = std::set<std::string>;
  EXPECT_EQ(names({conv("a", 0), conv("b", 1), conv("c", 2)}), (Names{"a", "b"}));
  EXPECT_EQ(names({conv("a", 0), conv("b", 1), conv("c", 1)}), Names{}) << "two readers";
  EXPECT_EQ(names({conv("a", 0), conv("b", 1), conv("c", 2, 1)}), Names{"b"}) << "added, too";
  EXPECT_EQ(names({conv("a", 0), conv("b", 1, 1)}), Names{}) << "added only where it is read";
  EXPECT_EQ(names({conv("a", 0), conv("b", 1, 0), conv("c", 2)}), Names{"a"}) << "a sum";
  EXPECT_EQ(names({conv("a", 0), conv("b", 1), conv("c", 2, Layer::kNone, 0)}), Names{}) << "a's weight is shared";
  EXPECT_EQ(names({conv("a", 0), conv("b", 1), conv("c", 2, Layer::kNone, 1)}), Names{}) << "the reader's weight is";
}

TEST(Prune, KeepsAllButSoManyPercentOfTheChannels) {
  const NetworkSpec spec = nn::parse_network("resnet:3-7");
  for (const std::size_t percent : {0, 1, 14, 15, 50, 75, 90, 99}) {
    const PrunedSpec pruned = prune(spec, percent);
    EXPECT_EQ(pruned.spec.name, "resnet:3-7 pruned by " + std::to_string(percent) + " %");
    ASSERT_EQ(pruned.cuts.size(), prunable(spec).size());
    std::size_t cut = 0;
    for (std::size_t i = 0; i < spec.layers.size(); ++i) {
      if (cut == pruned.cuts.size() || pruned.cuts[cut].layer != i) {
        EXPECT_EQ(pruned.spec.layers[i].out, spec.layers[i].out) << spec.layers[i].name;
        continue;
      }
      const std::size_t channels = spec.layers[i].out, keep = pruned.cuts[cut++].keep;
      EXPECT_EQ(keep, std::max<std::size_t>(1, channels - channels * percent / 100));
      EXPECT_EQ(pruned.spec.layers[i].out, keep);
    }
    EXPECT_EQ(percent < 4, pruned.spec.parameters() == spec.parameters()) << percent;  // of 28 channels, one
  }
  EXPECT_EQ(refusal([&] { prune(spec, 100); }), kNothingLeft);
  EXPECT_EQ(refusal([&] { prune(separable(), 100); }), kNothingLeft);
  EXPECT_EQ(refusal([&] { prune(spec, 400); }), "pruning 400 % leaves nothing; prune 0 to 99 %");
  EXPECT_EQ(pruned_of(SIZE_MAX, 50), SIZE_MAX / 2);
}

// -----------------------------------------------------------------------------------------------------------
// structured

class Pruning : public ::testing::TestWithParam<unsigned> {
 protected:
  void SetUp() override { set_block_threads(GetParam()); }
  void TearDown() override { set_block_threads(256); }
  Device device;

  // The definition: the channels of a layer by the sums of their filters' magnitudes.
  std::vector<unsigned> expected(Network& model, const PrunedSpec::Cut& cut) {
    const nn::Parameter weight = named(by_name(model.parameters()), model.spec().layers[cut.layer].name + " weight");
    const std::vector<float> w = device.download(weight.value, weight.count);
    std::vector<double> norms(cut.channels, 0.0);
    for (std::size_t i = 0; i < w.size(); ++i) norms[i / (w.size() / cut.channels)] += std::fabs(double(w[i]));
    std::vector<unsigned> kept;
    for (unsigned c = 0; c < cut.channels; ++c) {
      std::size_t ahead = 0;
      for (unsigned o = 0; o < cut.channels; ++o) ahead += norms[o] > norms[c] || (norms[o] == norms[c] && o < c);
      if (ahead < cut.keep) kept.push_back(c);
    }
    return kept;
  }
};
INSTANTIATE_TEST_SUITE_P(BlockThreads, Pruning, ::testing::ValuesIn(kDistinctBlockThreads));

TEST_P(Pruning, KeepsTheChannelsWithTheLargestNorms) {
  for (const NetworkSpec& spec : {basic(), bottleneck(), segmenter()})
    for (const std::size_t percent : {0, 40, 99}) {
      Network model(device.context, spec, 3, false);
      const PrunedSpec pruned = prune(spec, percent);
      const auto kept = channels_to_keep(device.context, model, pruned);
      ASSERT_EQ(kept.size(), pruned.cuts.size());
      for (std::size_t c = 0; c < kept.size(); ++c) {
        EXPECT_EQ(kept[c].size(), pruned.cuts[c].keep);
        EXPECT_EQ(kept[c], expected(model, pruned.cuts[c])) << pruned.spec.name;
      }
    }
}

TEST_P(Pruning, OfEqualNormsTheFirstStay) {
  Network model(device.context, basic(), 3, false);
  const PrunedSpec pruned = prune(basic(), 50);
  const nn::Parameter weight =
      named(by_name(model.parameters()), basic().layers[pruned.cuts[0].layer].name + " weight");
  ASSERT_EQ(pruned.cuts[0].channels, 6u);
  const std::size_t width = weight.count / 6;
  const auto kept = [&](std::vector<float> norms) {
    std::vector<float> values(weight.count, 0.0f);
    for (std::size_t c = 0; c < 6; ++c) values[c * width + c] = c % 2 ? -norms[c] : norms[c];
    set(device, weight, values);
    return channels_to_keep(device.context, model, pruned)[0];
  };
  EXPECT_EQ(kept({0, 0, 0, 0, 0, 0}), (std::vector<unsigned>{0, 1, 2}));
  EXPECT_EQ(kept({1, 2, 2, 2, 1, 3}), (std::vector<unsigned>{1, 2, 5}));
  EXPECT_EQ(kept({5, 1, 4, 1, 1, 1}), (std::vector<unsigned>{0, 1, 2}));
  EXPECT_EQ(kept({NAN, 1, 0, NAN, 4, NAN}), (std::vector<unsigned>{1, 2, 4}));
}

TEST_P(Pruning, CopiesWhatStaysAndNothingElse) {
  for (const NetworkSpec& spec : {basic(), bottleneck(), separable(), segmenter()}) {
    const PrunedSpec pruned = prune(spec, 35);
    Network dense(device.context, spec, 3, false), small(device.context, pruned.spec, 4, false);
    stir(device, dense);
    const auto kept = channels_to_keep(device.context, dense, pruned);
    copy_kept(device.context, dense, small, pruned, kept);
    // Which channels of the value that a layer makes are left, of all that there were.
    const auto all = [&](std::size_t value) {
      for (std::size_t c = 0; c < kept.size(); ++c)
        if (pruned.cuts[c].layer + 1 == value) return kept[c];
      std::vector<unsigned> numbers(spec.channels(value));
      std::iota(numbers.begin(), numbers.end(), 0u);
      return numbers;
    };
    const auto from = by_name(everything(dense)), to = by_name(everything(small));
    ASSERT_EQ(from.size(), to.size());
    std::set<std::string> seen;
    for (std::size_t i = 0; i < spec.layers.size(); ++i) {
      const Layer& layer = spec.layers[i];
      const auto check = [&](const char* what, bool inputs, std::size_t taps) {
        const nn::Parameter &a = named(from, layer.name + what), &b = named(to, layer.name + what);
        const std::vector<float> old = device.download(a.value, a.count);
        std::vector<float> expected;
        const std::vector<unsigned> columns = inputs ? all(layer.from) : std::vector<unsigned>{0};
        for (const unsigned row : all(i + 1))
          for (std::size_t tap = 0; tap < taps; ++tap)
            for (const unsigned column : columns)
              expected.push_back(old[(row * taps + tap) * (inputs ? spec.channels(layer.from) : 1) + column]);
        EXPECT_TRUE(same_bits(device.download(b.value, b.count), expected)) << pruned.spec.name << ": " << b.name;
        seen.insert(b.name);
      };
      if (layer.kind == nn::LayerKind::depthwise) {  // [kernel, kernel, channels]
        const nn::Parameter &a = named(from, layer.name + " weight"), &b = named(to, layer.name + " weight");
        EXPECT_TRUE(same_bits(device.download(b.value, b.count), device.download(a.value, a.count))) << b.name;
        seen.insert(b.name);
      } else if (layer.kind == nn::LayerKind::convolution || layer.kind == nn::LayerKind::linear) {
        check(" weight", true, layer.kernel * layer.kernel);
      }
      if (layer.kind == nn::LayerKind::linear) check(" bias", false, 1);
      if (layer.has_norm())
        for (const char* what : {" gamma", " beta", " running mean", " running variance"}) check(what, false, 1);
    }
    EXPECT_EQ(seen.size(), to.size()) << "every tensor was looked at";
  }
}

TEST_P(Pruning, ComputesWhatTheDenseNetworkComputesWithoutTheseChannels) {
  for (const NetworkSpec& spec : {basic(), bottleneck(), separable(), segmenter()}) {
    const PrunedSpec pruned = prune(spec, 50);
    Network dense(device.context, spec, 3, true), small(device.context, pruned.spec, 4, true);
    stir(device, dense);
    const auto kept = channels_to_keep(device.context, dense, pruned);
    copy_kept(device.context, dense, small, pruned, kept);
    const auto tensors = by_name(dense.parameters());
    for (std::size_t c = 0; c < kept.size(); ++c)
      for (const char* what : {" gamma", " beta"}) {
        const nn::Parameter& p = named(tensors, spec.layers[pruned.cuts[c].layer].name + what);
        std::vector<float> values = device.download(p.value, p.count);
        for (unsigned channel = 0; channel < p.count; ++channel)
          if (!std::binary_search(kept[c].begin(), kept[c].end(), channel)) values[channel] = 0.0f;
        set(device, p, values);
      }
    const std::vector<float> expected = logits(device, dense);
    expect_close(logits(device, small), expected, 2e-5, pruned.spec.name);
    const auto [least, most] = std::minmax_element(expected.begin(), expected.end());
    EXPECT_GT(*most - *least, 1e-2f) << pruned.spec.name;
    if (spec.name.starts_with("resnet50")) continue;  // its last norms see three values: rounding differences grow
    for (Network* model : {&dense, &small}) model->forward_backward(device.context, batch(device, spec, 5), kSize);
    EXPECT_NEAR(dense.loss(device.context), small.loss(device.context), 2e-5 * dense.loss(device.context)) << spec.name;
  }
}

TEST(PrunedNetworks, TakeThePredictedBytes) {
  for (const NetworkSpec& spec : {basic(), bottleneck(), separable(), nn::parse_network("resnet18")}) {
    Device device;
    const std::size_t before = device.ledger.live_bytes();
    const PrunedSpec pruned = prune(spec, 90);
    Network dense(device.context, spec, 3, false), small(device.context, pruned.spec, 4, false);
    const std::size_t both = nn::resident_for_inference(spec).total() + nn::resident_for_inference(pruned.spec).total();
    EXPECT_EQ(device.ledger.live_bytes() - before, both);
    copy_kept(device.context, dense, small, pruned, channels_to_keep(device.context, dense, pruned));
    EXPECT_EQ(device.ledger.peak_bytes() - before, both + pruning_bytes(pruned)) << spec.name;
    EXPECT_EQ(device.ledger.live_bytes() - before, both);
  }
}

TEST(PrunedNetworks, OfAnotherSpecAreRefused) {
  Device device;
  const PrunedSpec half = prune(basic(), 50), most = prune(basic(), 90);
  Network dense(device.context, basic(), 3, false), small(device.context, half.spec, 4, false);
  const auto of_half = channels_to_keep(device.context, dense, half),
             of_most = channels_to_keep(device.context, dense, most);
  Network other(device.context, segmenter(), 3, false);
  auto one_too_few = of_half, none = of_half, outside = of_half;
  one_too_few.pop_back();
  none.front().clear();
  outside.back().back() = static_cast<unsigned>(half.cuts.back().channels);

  // Before the first kernel: on a GPU one that reads outside of its tensors ends the whole process's use of the device.
  const auto before = device_work();
  for (const auto& [spec, kept] : {std::pair(&most, &of_most),
                                   {&most, &of_half},
                                   {&half, &of_most},
                                   {&half, &one_too_few},
                                   {&half, &none},
                                   {&half, &outside}})
    EXPECT_THROW(copy_kept(device.context, dense, small, *spec, *kept), std::logic_error);
  EXPECT_THROW(copy_kept(device.context, other, small, half, of_half), std::logic_error);
  EXPECT_THROW(copy_kept(device.context, dense, other, half, of_half), std::logic_error);
  EXPECT_THROW(copy_kept(device.context, small, small, half, of_half), std::logic_error);
  EXPECT_THROW(channels_to_keep(device.context, other, half), std::logic_error);
  EXPECT_THROW(channels_to_keep(device.context, small, half), std::logic_error);
  if (before) {
    EXPECT_EQ(device_work()->launches, before->launches);
  }
}

TEST(PrunedNetworks, TrainedAndSavedLoadToTheSameBits) {
  std::string folder = (std::filesystem::temp_directory_path() / "oomlab-pruned-XXXXXX").string();
  ASSERT_TRUE(mkdtemp(folder.data()));
  const std::string path = folder + "/pruned.safetensors";
  for (const NetworkSpec& spec : {basic(), bottleneck()}) {
    Device device;
    const PrunedSpec pruned = prune(spec, 50);
    Network dense(device.context, spec, 3, true), small(device.context, pruned.spec, 4, true);
    const auto train = [&](Network& model) {
      nn::Optimizer<float> optimizer(device.context, model.parameters(), {nn::UpdateRule::momentum},
                                     {.sgd = {.lr = 0.02f}});
      for (unsigned step = 0; step < 3; ++step)
        model.train_step(device.context, batch(device, spec, 10 + step), kSize, optimizer);
    };
    train(dense);
    copy_kept(device.context, dense, small, pruned, channels_to_keep(device.context, dense, pruned));
    const std::uint64_t copied = small.fingerprint(device.context);
    train(small);
    EXPECT_NE(small.fingerprint(device.context), copied) << "it was trained";
    nn::save_state(device.context, path, state(small));

    Network loaded(device.context, pruned.spec, 9, false);
    EXPECT_NE(loaded.fingerprint(device.context), small.fingerprint(device.context));
    nn::load_state(device.context, path, state(loaded));
    EXPECT_EQ(loaded.fingerprint(device.context), small.fingerprint(device.context));
    const auto a = everything(small), b = everything(loaded);
    for (std::size_t i = 0; i < a.size(); ++i)
      EXPECT_TRUE(same_bits(device.download(a[i].value, a[i].count), device.download(b[i].value, b[i].count)))
          << a[i].name;
    EXPECT_TRUE(same_bits(logits(device, small), logits(device, loaded)));
    EXPECT_THROW(nn::load_state(device.context, path, state(dense)), nn::StateFileError) << "of other sizes";
  }
  std::filesystem::remove_all(folder);
}

// ---------------------------------------------------------------------------------------------------------

}  // namespace
