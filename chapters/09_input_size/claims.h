#pragma once
// Folk advice about the size of images, put to the test; the line through the peaks; what the three ways of a
// convolution move and multiply; and whether tiles give the same result.

#include <cmath>
#include <cstdint>

#include "harness/filter.h"
#include "training.h"

namespace oomlab::input_size {

inline constexpr Option<std::size_t> kInput{"input", "Height and width of the images", 4, 1 << 20};
inline constexpr Option<std::size_t> kTiles{"tiles", "Tiles along each side, of inference by tiles", 1, 1 << 7};

inline const std::string kFull = "full size", kFullTiled = "full size, tiled im2col", kFullDirect = "full size, direct",
                         kFullLean = "full size, tiled, norms recomputed";

/// Logits of the two inference variants.
struct Observed {
  std::vector<float> whole, by_tiles;
};

/// The largest difference of two vectors over the largest value; nothing when one is missing.
inline std::optional<double> largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.empty() || a.size() != b.size()) return std::nullopt;
  double most = 0, difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(double(a[i])));
    const double here = std::abs(double(a[i]) - b[i]);
    if (std::isnan(here)) return here;
    difference = std::max(difference, here);
  }
  return most > 0 ? difference / most : 0;
}

/// The convolutions of a forward pass.
inline std::vector<nn::ConvolutionShape> convolutions_of(const Way& way, std::size_t batch) {
  const nn::NetworkShapes shapes = nn::shapes_of(way.spec, batch, way.size());
  std::vector<nn::ConvolutionShape> all;
  for (std::size_t i = 0; i < way.spec.layers.size(); ++i)
    if (way.spec.layers[i].has_norm()) all.push_back(shapes.windows[i]);
  return all;
}

/// The fewest values that a batch norm sees of a channel. One has no variance.
inline std::size_t fewest_values(const Way& way, std::size_t batch) {
  std::size_t fewest = SIZE_MAX;
  for (const nn::ConvolutionShape& unit : convolutions_of(way, batch)) fewest = std::min(fewest, unit.out_pixels());
  return fewest;
}

/// How ways of the same step must agree: but for rounding, unless the variance is that of a few values. Then it may be
/// next to nothing, and what is divided by it is rounding.
inline Agreement agreement_of(const Way& way, std::size_t batch) {
  constexpr std::size_t kEnough = 16;
  const std::size_t fewest = fewest_values(way, batch);
  if (fewest >= kEnough) return {Agreement::Kind::within_tolerance, 1e-3, ""};
  return differs_by_design(fmt::format("a batch norm of {} values divides rounding by next to nothing", fewest));
}

/// Throws UsageError for what no machine could run: a batch norm of single values in a way that --filter asks for, and
/// sizes that 64 bits do not count.
inline void require_countable(const nn::NetworkSpec& spec, const std::vector<Way>& ways, const Config& config) {
  try {
    (void)nn::resident_for_training(spec, kOptimizer);
    for (const Way& way : ways)
      if (fewest_values(way, config.batch) < 2 && matches_filter(config.filter, way.name))
        throw UsageError(
            fmt::format("--batch {} at {} x {} pixels leaves one value per channel in '{}'; batch norm needs two to "
                        "have a variance ('{}')",
                        config.batch, way.size().height, way.size().width, spec.name, way.name));
  } catch (const std::length_error&) {
    throw UsageError(fmt::format("model '{}', --batch {} and --input {} need more bytes than 64 bits can count",
                                 spec.name, config.batch, config.options[kInput]));
  }
}

inline std::vector<Claim> claims_of(const Config& config, const nn::NetworkSpec& here,
                                    const std::shared_ptr<Observed>& observed) {
  const nn::NetworkSpec resnet50 = nn::parse_network("resnet50");
  const auto bytes = [=](std::size_t side, std::size_t batch) {
    return nn::predict_training(resnet50, batch, {side, side}, kOptimizer, {nn::ConvolutionWay::tiled}).at_peak;
  };
  const std::size_t side = config.options[kInput], half = side / 2;
  const std::string resized = fmt::format("resized to {}", half), crops = fmt::format("random crops of {}", half);
  const auto halved = [=](std::size_t batch) {
    return ratio(double(bytes(224, batch).total()), double(bytes(448, batch).total()));
  };
  const Range quarter = between(0.23, 0.27);
  const auto from = holds_from([=](std::size_t batch) { return quarter.has(halved(batch).value()); });
  const std::string another = fmt::format("this is {}, batch {} at {}", here.name, config.batch, side);
  return {
      {.text = "from 224 to 512 pixels a side memory grows 4 times",  // article 2
       .what = "activations at 512 / at 224",
       .range = between(3.6, 4.4),
       .size = "resnet50, batch 32",
       .at_size =
           [=] {
             return ratio(double(bytes(512, 32)[Category::activations]), double(bytes(224, 32)[Category::activations]));
           }},
      {.text = "with larger images the model gets bigger",
       .what = "parameters, gradients and momentum at 512 / at 224, bytes",
       .range = at_least(1.001),
       .size = "resnet50, batch 32",
       .at_size = [=] { return ratio(model_state(bytes(512, 32)), model_state(bytes(224, 32))); },
       .measure = [=](const Results& r) { return r.ratio(kFull, resized, figures::model_state); }},
      {.text = "half the side needs a quarter of the memory",
       .what = "peak at 224 / at 448",
       .range = quarter,
       .size = "resnet50, batch 8",
       .at_size = [=] { return halved(8); },
       .measure = [=](const Results& r) { return r.ratio(resized, kFull, figures::peak); },
       .here = another,
       .from_batch = [=] { return from; }},
      {.text = "the column matrix is only scratch, and hardly counts",
       .what = "share of the peak that im2col of the whole batch takes, over convolutions without it",
       .range = at_most(0.05),
       .size = "resnet50, batch 32 x 224 x 224",
       .at_size =
           [=] {
             const auto peak = [&](nn::ConvolutionWay way) {
               return std::optional(double(nn::predict_training(resnet50, 32, {224, 224}, kOptimizer, {way}).total()));
             };
             return saved(peak(nn::ConvolutionWay::direct), peak(nn::ConvolutionWay::im2col));
           },
       .measure = [](const Results& r) { return r.saved(kFullDirect, kFull, figures::peak); },
       .here = another},
      {.text = "a crop needs as little memory as a resized picture",
       .what = "peak with crops / with resized pictures of the same size",
       .range = between(0.999, 1.001),
       .measure = [=](const Results& r) { return r.ratio(crops, resized, figures::peak); }},
      {.text = "cropping is as good as resizing: the model sees as much",  // article 2
       .about = About::numbers,
       .what = "share of the picture that the model sees in a step, crops of half the side / resized",
       .range = between(0.999, 1.001),
       .size = "crops of 224 from pictures of 448",
       .at_size = [] { return std::optional(224.0 * 224 / (448.0 * 448)); }},
      {.text = "tiling changes the result",
       .about = About::numbers,
       .what = "largest difference of a logit, tiles with halo / whole image (relative)",
       .range = at_least(1e-4),
       .measure = [=](const Results&) { return largest_difference(observed->whole, observed->by_tiles); }},
  };
}

/// peak = fixed + slope · pixels, through the full size and `half` the side; and at twice the side in closed form,
/// where the line must lead.
inline void show_line(const Results& results, Report& report, const Way& full, std::size_t half,
                      const data::Dataset& dataset) {
  const auto large = results.value(full.name, figures::peak),
             small = results.value(fmt::format("resized to {}", half), figures::peak);
  if (!large || !small) return;
  const auto pixels = [](std::size_t side) { return double(side) * double(side); };
  const std::size_t side = full.size().height, batch = report.config().batch;
  const double slope = (*large - *small) / (pixels(side) - pixels(half)), fixed = *large - slope * pixels(side);
  Way twice = full;
  twice.view = data::whole(2 * side);
  double expected = double(round_to_granule(report.config().workspace));
  try {
    expected += double(ViewTraining::predicted(dataset, twice, batch).total());
  } catch (const std::length_error&) {
    return;  // that many bytes cannot be counted
  }
  const double there = fixed + slope * pixels(2 * side);
  report.line(fmt::format("peak = {} + {} x pixels of a side x side image",
                          format_bytes(std::size_t(std::max(0.0, fixed))), format_bytes(std::size_t(slope))));
  report.line(fmt::format("  at {0} x {0} the line says {1}, the walk through the step {2}", 2 * side,
                          format_bytes(std::size_t(there)), format_bytes(std::size_t(expected))));
  report.line("");
  report.figure("fixed_bytes", fixed);
  report.figure("bytes_per_pixel", slope);
  report.figure("largest_residual", std::abs(there - expected) / expected);
}

/// What the convolutions of a forward pass compute and move at least, in each way, in closed form: images and weights
/// once, and the column matrix written and read where there is one.
inline void show_products(Report& report, const Way& way) {
  const std::size_t batch = report.config().batch;
  double flops = 0, images = 0, columns = 0, largest = 0, tile = 0;
  for (const nn::ConvolutionShape& unit : convolutions_of(way, batch)) {
    const auto of = [](std::size_t elements) { return double(elements) * sizeof(float); };
    flops += nn::convolution_flops(unit);
    images += of(unit.input_elements()) + of(unit.weight_elements()) + of(unit.output_elements());
    if (!unit.is_pointwise()) columns += 2 * of(unit.out_pixels()) * double(unit.patch());
    const auto workspace = [&](nn::ConvolutionWay w) {
      return double(nn::convolution_workspace(unit, w, sizeof(float)).columns);
    };
    largest = std::max(largest, workspace(nn::ConvolutionWay::im2col));
    tile = std::max(tile, workspace(nn::ConvolutionWay::tiled));
  }
  const auto size = [](double bytes) { return format_bytes(std::size_t(bytes)); };
  report.line(fmt::format("the convolutions of a forward pass: {:.3f} GFLOP in each way", flops / 1e9));
  report.line(fmt::format("  {:<14} {:>14} {:>20}", "", "bytes moved", "largest workspace"));
  report.line(fmt::format("  {:<14} {:>14} {:>20}", "im2col", size(images + columns), size(largest)));
  report.line(fmt::format("  {:<14} {:>14} {:>20}", "tiled im2col", size(images + columns), size(tile)));
  report.line(fmt::format("  {:<14} {:>14} {:>20}", "direct", size(images), "none"));
  report.line("");
}

/// Tiles against the whole image; and what statistics of a tile would do to that.
inline void show_tiles(const Results& results, Report& report, const nn::NetworkSpec& spec,
                       const data::Dataset& dataset, std::size_t side, std::size_t tiles, const Observed& observed) {
  double peaks[2] = {};
  for (const VariantResult& r : results)
    if (r.measured && r.name.starts_with("inference")) peaks[!r.name.ends_with("whole")] = double(r.peak_allocated);
  if (peaks[0] == 0 || peaks[1] == 0) return;
  report.line(fmt::format("inference at {0} x {0}: {1} in {2} x {2} tiles, {3} whole", side,
                          format_bytes(std::size_t(peaks[1])), tiles, format_bytes(std::size_t(peaks[0]))));
  const auto difference = largest_difference(observed.whole, observed.by_tiles);
  if (!difference) return;
  report.line(fmt::format("  largest difference of a logit: {:.0e} (relative)", *difference));
  // The means are sums over all pixels, in another order: their rounding grows as a random walk does.
  const double pixels = double(nn::shapes_of(spec, 1, {side, side}).pixels(tiled_layers(spec)));
  const double tolerance = std::max(report.config().tf32 ? kTf32Tolerance : 1e-6, 6e-8 * std::sqrt(pixels));
  report.check(*difference <= tolerance, fmt::format("tiles differ from the whole image by {:.1e}", *difference));
  report.figure("tiles_difference", *difference);
  if (tiles == 1) return report.line("");
  std::vector<float> logits[2];
  Ledger ledger;
  try {
    with_context(report.config(), kUnlimited, ledger, [&](Context& context) {
      for (const std::size_t pieces : {std::size_t(1), tiles})
        Inference(context, dataset, spec, side, pieces, {nn::ConvolutionWay::tiled}, 1, logits[pieces != 1],
                  Statistics::of_tile)
            .step();
    });
  } catch (const std::invalid_argument&) {
    report.line("  statistics of each tile: there are none, a tile has one value per channel");
  } catch (const OutOfMemory& error) {
    report.line("  statistics of each tile: " + oom_line(error.report(), report.config().chinese));
  }
  if (const auto other = largest_difference(logits[0], logits[1])) {
    report.line(fmt::format("  with a batch norm that takes statistics of each tile: {:.0e}", *other));
    report.figure("tiles_difference_of_tile_statistics", *other);
  }
  report.line("");
}

}  // namespace oomlab::input_size
