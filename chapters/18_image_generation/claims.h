#pragma once
// Folk advice about the memory of image generation put to the test, and what the runs show.

#include <cmath>

#include "harness/finding_key.h"
#include "harness/outputs.h"
#include "variants.h"

namespace oomlab::image_generation {

/// The peak of one image of a public pipeline at its own size; `change` says how it is made.
template <class Change>
Stages public_peaks(const char* name, Change change) {
  Run run{.dtype = DType::fp16};
  change(run);
  return peaks_of(pipeline_named(name), run);
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
       .here = "a model this small is mostly rounding"},
      {.text = "VAE tiling saves most",
       .what = "share of the peak that a decoder in blended tiles saves, attention in tiles, all resident",
       .range = at_least(0.5),
       .size = "sdxl, one image of 1,024 x 1,024 in FP16",
       .at_size =
           [=] {
             return saved(peak("sdxl",
                               [=](Run& r) {
                                 tiled(r);
                                 r.decoder = DecoderCut::blended;
                               }),
                          peak("sdxl", tiled));
           },
       .measure = [](const Results& r) { return r.saved(kTiles, kResident, figures::peak); },
       .here = "here attention is textbook's, and the denoiser the largest stage"},
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
       .what = "GB at the peak, one model at a time, attention and decoder in tiles, the denoiser in 4 bits",
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

/// What each stage takes, what waits in host memory, and what comes and goes over the bus. The stages are predicted; what was
/// measured of each must be the same.
inline void show_stages(const Results& results, Report& report, const PipelineSpec& spec,
                        const std::vector<Row>& rows) {
  Table table{"stages",
              "peak of each stage",
              {{"variant"},
               {"text encoder", Unit::bytes},
               {"denoiser", Unit::bytes},
               {"decoder", Unit::bytes},
               {"whole", Unit::bytes},
               {"on the host", Unit::bytes},
               {"bus per image", Unit::bytes}}};
  for (const Row& row : rows) {
    if (!results.find(row.name)) continue;
    const Stages stages = peaks_of(spec, row.run);
    const Cost cost = cost_of(spec, row.run);
    table.rows.push_back({row.name, stages.text.total(), stages.denoiser.total(), stages.decoder.total(),
                          stages.whole.total(), cost.host.total(),
                          std::uint64_t(cost.bus_bytes / double(row.run.batch))});
  }
  report.table(table);
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

/// How far the images of each variant are from the baseline's; and the file of --images.
inline void show_images(const Results& results, Report& report, const PipelineSpec& spec, const std::vector<Row>& rows,
                        AllImages& images) {
  const Config& config = report.config();
  if (planning() || !images.contains(kResident)) return;
  Table table{"images",
              "images beside those of '" + kResident + "', in levels of 255",
              {{"variant"}, {"largest difference", Unit::count}, {"mean difference", Unit::ratio, 3}}};
  Sheet sheet{rows.front().run.size ? rows.front().run.size : spec.size, spec.autoencoder.image_channels};
  for (const Row& row : rows) {
    if (!results.find(row.name) || !images.contains(row.name)) continue;
    const std::vector<float>& made = images[row.name];
    sheet.rows.push_back(made);
    if (row.name == kResident) continue;
    const Difference d = difference_of(images[kResident], made);
    table.rows.push_back({row.name, std::size_t(d.largest), d.mean});
  }
  report.table(table);
  if (const auto path = config.options.find(kImages)) write_file(*path, netpbm_of(sheet));
}

}  // namespace oomlab::image_generation
