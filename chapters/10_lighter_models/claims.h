#pragma once
// Folk advice about lighter models, put to the test; what each variant saves of parameters, state, activations and
// products; and where parameters stop mattering.

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "harness/filter.h"
#include "harness/finding_key.h"
#include "linear.h"
#include "training.h"

namespace oomlab::lighter_models {

inline constexpr Option<std::size_t> kInput{"input", "Height and width of the images", 4, 1 << 20};
inline constexpr Option<std::size_t> kWidth{"width", "Channels of the narrower model, percent", 1, 100};
inline constexpr Option<std::size_t> kChannels{"prune-channels", "Channels that structured pruning takes, percent", 1,
                                               99};
inline constexpr Option<std::size_t> kWeights{"prune-weights", "Weights that unstructured pruning makes zero, percent",
                                              1, 99};
inline constexpr Option<std::size_t> kLinear{"linear", "Inputs of the four linear layers, each twice as wide", 4,
                                             1 << 16};

inline const std::string kApart = "ReLU in a buffer of its own", kLean = "norms recomputed",
                         kSeparable = "depthwise separable", kShared = "weights shared",
                         kDense16 = "four linear layers, FP16", kPacked16 = "four linear layers, 2:4";

/// The models of a run: the first is the baseline, then lighter forms of it, as far as it has them, then other models.
inline std::vector<Model> models_of(const Config& config) {
  using Kind = Model::Kind;
  using nn::ConvolutionWay;
  const nn::NetworkSpec spec = nn::parse_network(config.model);
  const std::size_t width = config.options[kWidth], channels = config.options[kChannels],
                    weights = config.options[kWeights], side = config.options[kInput];
  std::vector<Model> models{
      {Kind::base, spec.name, spec},
      {Kind::apart, kApart, spec, {ConvolutionWay::tiled, /*activation_in_place=*/false}},
      {Kind::lean, kLean, spec, {ConvolutionWay::tiled, true, /*recompute_norms=*/true}},
      {Kind::weights_pruned, fmt::format("{} % of the weights pruned", weights), spec, {}, 0, weights}};
  if (!prunable(spec).empty())
    models.insert(models.end() - 1,
                  {Kind::channels_pruned, fmt::format("{} % of the channels pruned", channels), spec, {}, channels});
  if (spec.name.starts_with("resnet")) {
    const nn::ResNetSpec resnet = nn::parse_resnet(spec.name);
    models.insert(models.begin() + 3, {{Kind::separable, kSeparable, nn::network_of(resnet, {.separable = true})},
                                       {Kind::narrow, fmt::format("{} % as wide", width),
                                        nn::network_of(resnet, {.width_percent = width})}});
    models.push_back({Kind::shared, kShared, nn::network_of(resnet, {.shared = true})});
  }
  const bool published = spec.name.find(':') == std::string::npos;
  const std::size_t stem = spec.channels(1), half = std::max<std::size_t>(1, stem / 2);
  const auto add = [&](Kind kind, const std::string& name) {
    if (name != spec.name) models.push_back({kind, name, nn::parse_network(name)});
  };
  add(Kind::light, published ? "mobilenet-v3-large" : fmt::format("mobilenet:{}", stem));
  if (side % 16 == 0) {  // what the segmenters divide the image by
    add(Kind::unet, published ? "unet:4-64" : fmt::format("unet:2-{}", half));
    add(Kind::two_branch, published ? "two-branch:32" : fmt::format("two-branch:{}", half));
  }
  return models;
}

/// What a run calls its model of this kind; empty where it has none.
inline std::string name_of(const std::vector<Model>& models, Model::Kind kind) {
  const auto found = std::ranges::find(models, kind, &Model::kind);
  return found == models.end() ? std::string() : found->name;
}

/// Throws UsageError for what no machine could run: a batch norm of single values in a model that --filter asks for,
/// images that a model cannot halve, and sizes that 64 bits do not count.
inline void require_possible(const std::vector<Model>& models, const Config& config) {
  const std::size_t side = config.options[kInput];
  for (const Model& model : models) {
    if (!matches_filter(config.filter, model.name)) continue;
    try {
      const nn::NetworkShapes shapes = nn::shapes_of(model.spec, config.batch, {side, side});
      for (std::size_t i = 0; i < model.spec.layers.size(); ++i)
        if (model.spec.layers[i].has_norm() && shapes.rows(i + 1) < 2)
          throw UsageError(
              fmt::format("--batch {} at {} x {} pixels leaves one value per channel in '{}'; batch norm "
                          "needs two to have a variance",
                          config.batch, side, side, model.name));
      (void)nn::predict_training(model.spec, config.batch, {side, side}, kOptimizer);
    } catch (const std::length_error&) {
      throw UsageError(fmt::format("'{}', --batch {} and --input {} need more bytes than 64 bits can count", model.name,
                                   config.batch, side));
    } catch (const std::invalid_argument& error) {
      throw UsageError(fmt::format("'{}' at {} x {} pixels: {}", model.name, side, side, error.what()));
    }
  }
  if (!matches_filter(config.filter, kPacked16)) return;
  try {
    require_groups_of_four(config.options[kLinear]);
  } catch (const std::invalid_argument& error) {
    throw UsageError(error.what());
  }
}

// -------------------------------------------------------------------------------------------------------------- claims

/// Peak of a training step at batch × side × side, by category.
inline ByCategory peak_of(const nn::NetworkSpec& spec, std::size_t batch, std::size_t side,
                          const nn::NetworkForm& form = {}) {
  return nn::predict_training(spec, batch, {side, side}, kOptimizer, form).at_peak;
}
/// Weights of the 3 × 3 convolution of 512 channels, each of which is multiplied once for each pixel, and the values
/// that it makes at 14 × 14 pixels; dense or separable.
struct Layer3x3 {
  double weights, values;
};
inline Layer3x3 layer_3x3(bool separable) {
  constexpr double c = 512, pixels = 14 * 14;
  const double weights = separable ? 9 * c + c * c : 9 * c * c;
  return {weights, (separable ? 2 : 1) * c * pixels};
}

inline std::vector<Claim> claims_of(const Config& config, const std::vector<Model>& models) {
  const nn::ResNetSpec published = nn::parse_resnet("resnet50");
  const nn::NetworkSpec resnet50 = nn::network_of(published), mobilenet = nn::parse_network("mobilenet-v3-large");
  using Kind = Model::Kind;
  const std::string base = models.front().name, narrow = name_of(models, Kind::narrow),
                    masked = name_of(models, Kind::weights_pruned), light = name_of(models, Kind::light),
                    unet = name_of(models, Kind::unet), two_branch = name_of(models, Kind::two_branch);
  const std::string size = "resnet50, batch 32 x 224 x 224";
  const std::string another = fmt::format("this is {}, batch {} at {}", base, config.batch, config.options[kInput]);
  // Peak of a training step at batch 32 of images of 224 x 224.
  const auto peak = [](const nn::NetworkSpec& spec, const nn::NetworkForm& form = {}) {
    return double(peak_of(spec, 32, 224, form).total());
  };
  const auto values_ratio = [=](double Layer3x3::*what) {
    return [=] { return ratio(layer_3x3(false).*what, layer_3x3(true).*what); };
  };
  return {
      {.text = "take a lighter model, MobileNetV3 instead of ResNet-50: it needs less memory",  // article 3
       .what = "peak of the light model / of the ResNet",
       .range = at_most(0.9),
       .size = "mobilenet-v3-large and resnet50, batch 32 x 224 x 224",
       .at_size = [=] { return ratio(peak(mobilenet), peak(resnet50)); },
       .measure = [=](const Results& r) { return r.ratio(light, base, figures::peak); },
       .here = another},
      {.text = "a model with a fifth of the parameters needs a fifth of the memory",
       .what = "peak of the light model / of the ResNet",
       .range = between(0.15, 0.25),
       .size = "mobilenet-v3-large and resnet50, batch 32 x 224 x 224",
       .at_size = [=] { return ratio(peak(mobilenet), peak(resnet50)); }},
      {.text = "a fast segmenter instead of a U-Net needs less memory",  // article 3
       .what = "peak of the two-branch network / of the U-Net",
       .range = at_most(0.5),
       .size = "two-branch:32 and unet:4-64, batch 4 x 512 x 512",
       .at_size =
           [=] {
             return ratio(double(peak_of(nn::parse_network("two-branch:32"), 4, 512).total()),
                          double(peak_of(nn::parse_network("unet:4-64"), 4, 512).total()));
           },
       .measure = [=](const Results& r) { return r.ratio(two_branch, unet, figures::peak); }},
      {.text = "depthwise separable convolutions save 8 to 9 times the weights and products",  // article 4
       .about = About::numbers,
       .what = "weights, and products for each pixel, of a dense / of a separable convolution, 3 x 3",
       .range = between(8, 9),
       .size = "512 to 512 channels",
       .at_size = values_ratio(&Layer3x3::weights)},
      {.text = "depthwise separable convolutions save activations, too",
       .what = "values that a dense convolution makes / that a separable one makes, 3 x 3",
       .range = at_least(1.001),
       .size = "512 to 512 channels",
       .at_size = values_ratio(&Layer3x3::values)},
      {.text = "so a network of separable convolutions needs less memory",
       .what = "peak with separable / with dense 3 x 3 convolutions",
       .range = at_most(0.95),
       .size = "resnet18, batch 32 x 224 x 224",
       .at_size =
           [=] {
             const nn::ResNetSpec resnet18 = nn::parse_resnet("resnet18");
             return ratio(peak(nn::network_of(resnet18, {.separable = true})), peak(nn::network_of(resnet18)));
           },
       .measure = [=](const Results& r) { return r.ratio(kSeparable, base, figures::peak); },
       .here = another},
      {.text = "pruning 90 % of the weights saves 90 %",
       .what = "share of the peak that zeros save",
       .range = between(0.85, 0.95),
       .size = size,
       .at_size =
           [=] {
             const double whole = peak(resnet50);
             return saved(whole + double(mask_bytes(resnet50)), whole);
           },
       .measure =
           [=](const Results& r) {
             return config.options[kWeights] == 90 ? r.saved(masked, base, figures::peak) : std::nullopt;
           }},
      {.text = "2:4 sparsity halves the weights",
       .what = "bytes of packed / of dense FP16 weights",
       .range = between(0.49, 0.51),
       .size = "4096 x 4096",
       .at_size = [] { return ratio(double(two_of_four_bytes(4096, 4096)), 2.0 * 4096 * 4096); },
       .measure = [=](const Results& r) { return r.ratio(kPacked16, kDense16, figures::bytes(Category::parameters)); }},
      {.text = "sharing weights saves a tenth of the memory of training, or more",  // article 4
       .what = "share of the peak that one weight for the convolutions of a stage saves",
       .range = at_least(0.1),
       .size = size,
       .at_size = [=] { return saved(peak(nn::network_of(published, {.shared = true})), peak(resnet50)); },
       .measure = [=](const Results& r) { return r.saved(kShared, base, figures::peak); },
       .here = another},
      {.text = "ReLU in place saves memory at the peak",  // article 13
       .what = "share of the peak",
       .range = at_least(0.01),
       .size = size,
       .at_size =
           [=] {
             return saved(peak(resnet50), peak(resnet50, {nn::ConvolutionWay::tiled, false}));
           },
       .measure = [=](const Results& r) { return r.saved(base, kApart, figures::peak); },
       .here = another},
      {.text = "half the width needs a quarter of the memory",
       .what = "peak with half the channels / with all",
       .range = between(0.2, 0.3),
       .size = "batch 32 x 224 x 224",
       .at_size = [=] { return ratio(peak(nn::network_of(published, {.width_percent = 50})), peak(resnet50)); },
       .measure =
           [=](const Results& r) {
             return config.options[kWidth] == 50 ? r.ratio(narrow, base, figures::peak) : std::nullopt;
           },
       .here = another},
      {.text = "four linear layers, 512 to 8192 wide, run out of memory at batch 64",  // article 5
       .what = "peak of inference over 4 GiB, a small card",
       .range = at_least(1),
       .size = "mlp:512-1024-2048-4096-8192, batch 64",
       .at_size =
           [] {
             const nn::MlpSpec mlp = nn::parse_model("mlp:512-1024-2048-4096-8192");
             return ratio(double(nn::predict_inference(mlp, 64).total()), double(std::size_t(4) << 30));
           }},
  };
}

// ------------------------------------------------------------------------------------------------------------ findings

/// What each model has and needs: parameters, state, activations, products, and the loss after the same steps.
inline void show_models(const Results& results, Report& report, const std::vector<Model>& models) {
  const std::size_t side = report.config().options[kInput];
  const auto mib = [](double bytes) { return bytes / (1 << 20); };
  std::vector<std::string> rows;
  for (const Model& model : models) {
    const VariantResult* const r = results.find(model.name);
    if (!r) continue;
    rows.push_back(fmt::format(
        "  {:<32} {:>11.3f} {:>10.2f} {:>12.2f} {:>12.1f} {:>8}", model.name,
        double(model.trained().parameters()) / 1e6, mib(model_state(r->at_peak)),
        mib(double(r->at_peak[Category::activations])), nn::multiply_adds(model.trained(), 1, {side, side}) / 1e6,
        r->figures.empty() || report.config().plan ? "" : fmt::format("{:.3f}", r->figures.back())));
    report.figure(finding_key(model.name) + "_parameters", double(model.trained().parameters()));
  }
  if (rows.empty()) return;
  report.line("what each model has, and what is live at its peak");
  report.line(fmt::format("  {:<32} {:>11} {:>10} {:>12} {:>12} {:>8}", "", "parameters", "state", "activations",
                          "multiply-adds", "loss"));
  report.line(fmt::format("  {:<32} {:>11} {:>10} {:>12} {:>12} {:>8}", "", "million", "MiB", "MiB", "million/image",
                          "at end"));
  for (const std::string& row : rows) report.line(row);
  report.line("");
}

/// What each lighter form saves of the model's bytes, by category: measured, and checked against the closed forms.
inline void show_savings(const Results& results, Report& report, const std::vector<Model>& models) {
  const VariantResult* const base = results.find(models.front().name);
  if (!base) return;
  report.line(fmt::format("saved of what {} has at its peak (negative: more)", base->name));
  report.line(fmt::format("  {:<32} {:>11} {:>10} {:>10} {:>12} {:>8}", "", "parameters", "gradients", "momentum",
                          "activations", "peak"));
  std::vector<std::string> while_cut;
  for (const Model& model : models) {
    const VariantResult* const r = results.find(model.name);
    if (!r || r == base || model.kind > Model::Kind::light) continue;
    if (model.channels_pruned && r->at_peak[Category::activations] == 0) while_cut.push_back(r->name);
    std::string row = fmt::format("  {:<32}", r->name);
    const std::pair<Category, int> columns[] = {
        {Category::parameters, 10}, {Category::gradients, 9}, {Category::optimizer, 9}, {Category::activations, 11}};
    for (const auto& [category, width] : columns) {
      const auto share = saved(double(r->at_peak[category]), double(base->at_peak[category]));
      const auto expected = saved(double(r->predicted[category]), double(base->predicted[category]));
      row += fmt::format(" {:>{}.1f}%", 100 * share.value_or(0), width);
      report.check(share == expected,
                   fmt::format("'{}' saves another share of {} than predicted", r->name, name_of(category)));
    }
    row += fmt::format(" {:>7.1f}%", 100 * saved(double(r->peak_allocated), double(base->peak_allocated)).value_or(0));
    report.line(row);
  }
  for (const std::string& name : while_cut)
    report.line(fmt::format(
        "  '{}' has its peak while it is cut: both networks are there, no momentum and activations yet", name));
  report.line("");
}

/// The share of the peak that parameters, gradients and momentum have, over batches and sizes of the image: where that
/// is small, a model with fewer parameters saves little.
inline void show_where_parameters_matter(Report& report, const nn::NetworkSpec& spec) {
  const std::size_t side = report.config().options[kInput];
  constexpr std::array<std::size_t, 5> batches{1, 4, 16, 64, 256};
  std::vector<std::string> rows;
  try {
    for (const std::size_t s : {side, 2 * side, 4 * side}) {
      std::string row = fmt::format("  {:<16}", fmt::format("{0} x {0}", s));
      for (const std::size_t batch : batches) {
        const ByCategory peak = peak_of(spec, batch, s);
        const double share = 100 * model_state(peak) / double(peak.total());
        row += fmt::format(" {:>7.1f}%", share);
        report.figure(fmt::format("state_percent_batch_{}_side_{}", batch, s), share);
      }
      rows.push_back(row);
    }
  } catch (const std::length_error&) {
    return;  // that many bytes cannot be counted
  } catch (const std::invalid_argument&) {
    return;
  }
  std::string head = fmt::format("  {:<16}", "batch");
  for (const std::size_t batch : batches) head += fmt::format(" {:>8}", batch);
  report.line(fmt::format("share of {}'s peak that parameters, gradients and momentum have", spec.name));
  report.line(head);
  for (const std::string& row : rows) report.line(row);
  report.line("");
}

/// A model is trained, loses channels, and is trained on: its loss before, in the first steps after, and at the end,
/// each the mean of some steps; the loss of the model that lost nothing, after as many steps; and that unstructured
/// pruning holds as many zeros as it says.
inline void show_pruning(Report& report, const data::Dataset& dataset, const std::vector<Model>& models) {
  const Config& config = report.config();
  const auto found = [&](Model::Kind kind) { return std::ranges::find(models, kind, &Model::kind); };
  if (config.plan || found(Model::Kind::channels_pruned) == models.end()) return;
  const Model &base = models.front(), &cut = *found(Model::Kind::channels_pruned),
              &masked = *found(Model::Kind::weights_pruned);
  if (!matches_filter(config.filter, cut.name)) return;
  const std::size_t side = config.options[kInput], steps = config.quick ? 8 : 24, last = steps / 8;
  double before = 0, without = 0, after = 0, end = 0;
  std::size_t zeros = 0, held = 0;
  const auto train = [](Training& training, std::size_t count) {
    double sum = 0;
    for (std::size_t s = 0; s < count; ++s) {
      check_interrupt();
      training.step();
      sum += training.figure();
    }
    return sum / double(count);
  };
  Ledger ledger;
  try {
    with_context(config, kUnlimited, ledger, [&](Context& context) {
      Training dense(context, dataset, base, side, config.batch);
      train(dense, steps - last);
      before = train(dense, last);
      Training small(context, dataset, {cut.kind, cut.name, cut.trained(), cut.form}, side, config.batch);
      const PrunedSpec pruned = prune(cut.spec, cut.channels_pruned);
      copy_kept(context, dense.network(), small.network(), pruned, channels_to_keep(context, dense.network(), pruned));
      after = train(small, last);
      train(small, steps - 2 * last);
      end = train(small, last);
      train(dense, steps - last);
      without = train(dense, last);
      Training sparse(context, dataset, masked, side, config.batch);
      train(sparse, last);
      zeros = sparse.zeros(), held = sparse.masked();
    });
  } catch (const OutOfMemory& error) {
    report.line("trained, pruned and trained on: " + oom_line(error.report(), config.chinese));
    return report.line("");
  }
  std::size_t weights = 0;
  for (std::size_t i = 0; i < masked.spec.layers.size(); ++i) weights += masked.spec.weights(i);
  report.line(fmt::format("{} trained for {} steps: loss {:.3f}; for {} more without pruning: {:.3f}", base.name, steps,
                          before, steps, without));
  report.line(fmt::format("  then {}: {:.3f} in the first {} steps, {:.3f} at the end of {}", cut.name, after, last,
                          end, steps));
  report.line(
      fmt::format("  {}: {} of {} weights are zero, and take as many bytes as before", masked.name, zeros, weights));
  report.check(zeros >= held, "a pruned weight is not zero any more");
  report.figure("loss_before_pruning", before);
  report.figure("loss_without_pruning", without);
  report.figure("loss_after_pruning", after);
  report.figure("loss_after_retraining", end);
  report.figure("zero_weights", double(zeros));
  report.line("");
}

}  // namespace oomlab::lighter_models
