#pragma once
// Folk advice about the memory of image generation put to the test, and what the runs show.

#include <cmath>

#include "harness/filter.h"
#include "variants.h"

namespace oomlab::image_generation {

/// The peak of one image of a public pipeline at its own size; `change` says how it is made.
template <class Change>
Stages public_peaks(const char* name, Change change) {
  Run run{.dtype = DType::fp16};
  change(run);
  return peaks_of(pipeline_named(name), run);
}

/// The share of SDXL's peak that a decoder in blended tiles saves, with attention in tiles.
inline std::optional<double> saved_by_tiles(Residency residency) {
  const auto peak = [=](DecoderCut cut) {
    return double(public_peaks("sdxl", [=](Run& r) {
                    r.residency = residency;
                    r.attention = PixelAttention::tiled;
                    r.decoder = cut;
                  }).whole.total());
  };
  return saved(peak(DecoderCut::blended), peak(DecoderCut::whole));
}

inline std::vector<Claim> claims_of() {
  constexpr double kGb = 1e9;
  const auto peak = [](const char* name, auto change) { return double(public_peaks(name, change).whole.total()); };
  const auto tiled = [](Run& r) { r.attention = PixelAttention::tiled; };
  return {
      {.text = "fp16 halves it",
       .what = "peak in FP16 / in FP32, all resident",
       .range = between(0.48, 0.52),
       .size = "sd-1.5, one image of 512 x 512",
       .at_size =
           [=] { return ratio(peak("sd-1.5", [](Run&) {}), peak("sd-1.5", [](Run& r) { r.dtype = DType::fp32; })); },
       .measure = [](const Results& r) { return r.ratio(kHalf, kResident, figures::peak); },
       .here = "cuBLAS's workspace counts in a model this small"},
      {.text = "VAE tiling saves most",
       .what = "share of the peak that a decoder in blended tiles saves, attention in tiles, all resident",
       .range = at_least(0.5),
       .size = "sdxl, one image of 1,024 x 1,024 in FP16",
       .at_size = [] { return saved_by_tiles(Residency::all); },
       .measure = [](const Results& r) { return r.saved(kTiles, kResident, figures::peak); },
       .here = "attention is textbook's, and the denoiser the next stage",
       .holds_where = [] { return std::string("holds where weights come layer by layer"); }},
      {.text = "attention slicing is obsolete",
       .what = "the denoiser's peak with fused attention / with attention in tiles",
       .range = at_most(1),
       .size = "sd-1.5, one image of 512 x 512 in FP16",
       .at_size =
           [=] {
             return ratio(
                 double(public_peaks("sd-1.5", [](Run& r) { r.attention = PixelAttention::fused; }).denoiser.total()),
                 double(public_peaks("sd-1.5", tiled).denoiser.total()));
           }},
      {.text = "sequential offload runs on 4 GB",
       .what = "GB at the peak, layer by layer, attention in tiles",
       .range = at_most(4),
       .size = "sdxl, one image of 1,024 x 1,024 in FP16",
       .at_size =
           [=] {
             return std::optional(peak("sdxl",
                                       [=](Run& r) {
                                         tiled(r);
                                         r.residency = Residency::layer;
                                       }) /
                                  kGb);
           }},
      {.text = "Flux needs 24 GB",
       .what = "GB at the peak, one model at a time, attention in tiles, decoder in strips, the denoiser in 4 bits",
       .range = at_least(24),
       .size = "flux.1-dev, one image of 1,024 x 1,024 in BF16",
       .at_size =
           [=] {
             return std::optional(peak("flux.1-dev",
                                       [=](Run& r) {
                                         tiled(r);
                                         r.dtype = DType::bf16;
                                         r.residency = Residency::model;
                                         r.decoder = DecoderCut::halo;
                                         r.denoiser_bits = 4;
                                       }) /
                                  kGb);
           }},
  };
}

/// What each stage takes, what waits in host memory, and what comes and goes over the bus, predicted; what was measured of a
/// stage must be the same.
inline void show_stages(const Results& results, Report& report, const PipelineSpec& spec,
                        const std::vector<Row>& rows) {
  const Config& config = report.config();
  Table table{"stages",
              "peak of each stage, without cuBLAS's workspace",
              {{"variant"},
               {"text encoder", Unit::bytes},
               {"denoiser", Unit::bytes},
               {"decoder", Unit::bytes},
               {"on the host", Unit::bytes},
               {"bus per image", Unit::bytes}}};
  for (const Row& row : rows) {
    if (row.trains) continue;
    const VariantResult* const measured = results.find(row.name);
    if (!measured && (spec.unet() || !matches_filter(config.filter, row.name))) continue;
    const Stages stages = peaks_of(spec, row.run);
    const Cost cost = cost_of(spec, row.run);
    table.rows.push_back({row.name, stages.text.total(), stages.denoiser.total(), stages.decoder.total(),
                          cost.host.total(), std::uint64_t(cost.bus_bytes / double(row.run.batch))});
    if (!measured) continue;
    for (const auto& [name, predicted] : {std::pair<const char*, const PeakBytes&>{"text encoder", stages.text},
                                          {"denoiser", stages.denoiser},
                                          {"decoder", stages.decoder}})
      for (const PhasePeak& phase : measured->phases)
        if (phase.name == name)
          report.check(without_workspace(phase.at_peak, config.workspace) == predicted.at_peak,
                       fmt::format("{}: the {} takes {} bytes, predicted {}", row.name, name,
                                   without_workspace(phase.at_peak, config.workspace).total(), predicted.total()));
  }
  if (!table.rows.empty()) report.table(table);
}

/// How far images are from the baseline's, in levels of 255.
struct Difference {
  double largest = 0, mean = 0;
};
inline Difference difference_of(const std::vector<float>& a, const std::vector<float>& b) {
  Difference d;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double here = std::abs(double(byte_of(a[i])) - double(byte_of(b[i])));
    d.largest = std::max(d.largest, here);
    d.mean += here / double(a.size());
  }
  return d;
}

inline std::size_t sheet_side(const PipelineSpec& spec, const std::vector<Row>& rows) {
  return rows.front().run.size ? rows.front().run.size : spec.size;
}

/// How far the images of each variant are from the baseline's, and how many digits are read as named; and the file of --images.
inline void show_images(const Results& results, Report& report, const PipelineSpec& spec, const std::vector<Row>& rows,
                        AllImages& images) {
  const Config& config = report.config();
  if (planning() || !images.contains(kResident)) return;
  Table table{
      "images",
      fmt::format("{} images of each variant, beside those of the first, in levels of 255", rows.front().run.batch),
      {{"variant"},
       {"largest difference", Unit::count},
       {"mean difference", Unit::ratio, 3},
       {"read as named", Unit::count}}};
  const auto as_named = [&](const std::vector<float>& made) -> Cell {
    if (spec.name != "digits" || sheet_side(spec, rows) != Classifier::kSide) return {};
    std::size_t right = 0;
    Ledger ledger;
    with_context(config, kUnlimited, ledger, [&](Context& context) { right = read_as_named(context, made); });
    return right;
  };
  Sheet sheet{sheet_side(spec, rows), spec.autoencoder.image_channels};
  for (const Row& row : rows) {
    if (!results.find(row.name) || !images.contains(row.name)) continue;
    const std::vector<float>& made = images[row.name];
    sheet.rows.push_back(made);
    const Difference d = difference_of(images[kResident], made);
    const bool other = row.name != kResident;
    table.rows.push_back(
        {row.name, other ? Cell(std::size_t(d.largest)) : Cell(), other ? Cell(d.mean) : Cell(), as_named(made)});
  }
  report.table(table);
  if (const auto path = config.options.find(kImages)) write_file(*path, netpbm_of(sheet));
}

}  // namespace oomlab::image_generation
