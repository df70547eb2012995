#pragma once
// This chapter's options and variants, and what each of them runs.

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/dtype_of.h"
#include "digits.h"
#include "harness/chapter.h"
#include "harness/outputs.h"
#include "lora.h"
#include "pipeline.h"

namespace oomlab::image_generation {

inline constexpr Option<std::size_t> kSize{
    "size", "Pixels on a side of each image, where not as the models were trained", 1, 1 << 14};
inline constexpr Option<std::size_t> kDenoiserSteps{"denoiser-steps",
                                                    "Steps of the denoiser, where not the models' own", 1, kNoiseSteps};
inline constexpr Option<std::size_t> kTile{
    "tile", "Latent pixels on a side of a decoder's tile, and rows of a strip, where not half of all", 1, 1 << 12};
inline constexpr Option<std::size_t> kSeed{"seed", "Of the noise that images begin with", 0};
inline constexpr Option<std::string> kImages{"images",
                                             "A file to write the images to (PGM or PPM): a row for each variant"};

inline const std::string kResident = "all resident", kHalf = "16 bits", kByModel = "one model at a time",
                         kByLayer = "layer by layer", kTwoPasses = "guidance in two passes",
                         kTiledAttention = "attention in tiles", kByImages = "decoder by images",
                         kStrips = "decoder in strips, halo", kTiles = "decoder in tiles, blended",
                         kEightBits = "denoiser in 8 bits", kFourBits = "denoiser in 4 bits",
                         kTogether = "all together", kLoraRow = "LoRA on the denoiser";

/// Throws UsageError when the file of --images could not be written, or another one would be written over it.
inline void check_images_file(const Config& config) {
  const std::string path = config.options.find(kImages).value_or("");
  check_output_path("--images", path);
  for (const std::string& other : {config.json, config.trace, config.snapshot})
    if (!path.empty() && !other.empty() && same_file(path, other))
      throw UsageError(fmt::format("--images '{}' and '{}' are one file: one would overwrite the other", path, other));
}

/// A variant.
struct Row {
  std::string name;
  Run run;
  Agreement agreement = {};
  bool trains = false;  ///< adapters on the denoiser, instead of making images
};

/// Throws UsageError, or std::invalid_argument, for a model or sizes that cannot be.
inline Run baseline_of(const Config& config, const PipelineSpec& spec) {
  const Run run{.batch = config.batch,
                .size = config.options.find(kSize).value_or(0),
                .steps = config.options.find(kDenoiserSteps).value_or(0),
                .tile = config.options.find(kTile).value_or(0)};
  (void)peaks_of(spec, run);
  return run;
}

/// What saves memory, one by one and then together. Where two ways of the same products differ in the order of sums,
/// numbers agree but for rounding.
inline std::vector<Row> rows_of(const PipelineSpec& spec, const Run& baseline) {
  const Agreement rounding{Agreement::Kind::within_tolerance, 1e-3, ""};
  const Agreement narrow = differs_by_design("weights of fewer bits");
  std::vector<Row> rows;
  const auto add = [&](const std::string& name, const Agreement& agreement, auto change) {
    Row& row = rows.emplace_back(Row{name, baseline, agreement});
    change(row.run);
  };
  add(kResident, {}, [](Run&) {});
  add(kHalf, differs_by_design("weights and activations of 16 bits"), [](Run& r) { r.dtype = DType::fp16; });
  add(kByModel, {}, [](Run& r) { r.residency = Residency::model; });
  add(kByLayer, {}, [](Run& r) { r.residency = Residency::layer; });
  if (spec.is_guided()) add(kTwoPasses, rounding, [](Run& r) { r.guidance_passes = 2; });
  add(kTiledAttention, rounding, [](Run& r) { r.attention = PixelAttention::tiled; });
  if (baseline.batch > 1) add(kByImages, rounding, [](Run& r) { r.decoder = DecoderCut::images; });
  add(kStrips, rounding, [](Run& r) { r.decoder = DecoderCut::halo; });
  add(kTiles, differs_by_design("norms and attention of the decoder see a tile, not the image"),
      [](Run& r) { r.decoder = DecoderCut::blended; });
  add(kEightBits, narrow, [](Run& r) { r.denoiser_bits = 8; });
  add(kFourBits, narrow, [](Run& r) { r.denoiser_bits = 4; });
  add(kTogether, differs_by_design("weights and activations of 16 bits"), [&](Run& r) {
    r.dtype = DType::fp16;
    r.residency = Residency::layer;
    r.attention = PixelAttention::tiled;
    r.guidance_passes = spec.is_guided() ? 2 : 1;
    r.decoder = DecoderCut::halo;
  });
  if (!spec.unet()) return rows;
  add(kLoraRow, differs_by_design("it trains, and makes no image"), [](Run&) {});
  rows.back().trains = true;
  return rows;
}

/// What a row takes.
inline ByCategory predicted(const PipelineSpec& spec, const Row& row) {
  if (row.trains) return cost_of_training(spec, row.run, kLora, latents_of(spec, row.run)).peak.at_peak;
  return peaks_of(spec, row.run).whole.at_peak;
}
inline double multiply_adds(const PipelineSpec& spec, const Row& row) {
  if (row.trains) return cost_of_training(spec, row.run, kLora, latents_of(spec, row.run)).multiply_adds;
  return cost_of(spec, row.run).multiply_adds;
}
inline HostBytes predicted_on_host(const PipelineSpec& spec, const Row& row) {
  return row.trains ? HostBytes{} : cost_of(spec, row.run).host;
}

/// What variants made: of each all pixels, image after image, as the decoder gave them. Empty in plan mode.
using AllImages = std::map<std::string, std::vector<float>>;

/// One batch of images a step, the same in each.
template <class T>
class Generation final : public Workload {
 public:
  /// Throws as Pipeline().
  Generation(Context& context, const PipelineSpec& spec, const Row& row, Wishes wishes,
             std::shared_ptr<AllImages> images)
      : context_(context),
        name_(row.name),
        wishes_(std::move(wishes)),
        images_(std::move(images)),
        pipeline_(context, spec, row.run, weights_of(spec)) {}

  void step() override {
    const DeviceBuffer<T> images = pipeline_.generate(wishes_);
    if (planning()) return;
    std::vector<T> values(images.size());
    copy(context_, images.data(), values.data(), values.size());
    context_.synchronize();
    fingerprint_ = nn::fingerprint(context_, images.data(), images.bytes());
    std::vector<float>& pixels = (*images_)[name_];
    pixels.assign(values.begin(), values.end());
  }
  std::size_t samples_per_step() const override { return wishes_.words.size(); }
  /// The root of the mean square of all pixels.
  double figure() override {
    if (planning()) return 0;
    double sum = 0;
    const std::vector<float>& pixels = (*images_)[name_];
    for (const float p : pixels) sum += double(p) * p;
    return std::sqrt(sum / double(pixels.size()));
  }
  std::uint64_t fingerprint() override { return fingerprint_; }

 private:
  Context& context_;
  std::string name_;
  Wishes wishes_;
  std::shared_ptr<AllImages> images_;
  Pipeline<T> pipeline_;
  std::uint64_t fingerprint_ = 0;
};

/// Throws VariantSkipped for a denoiser that is planned and not run, and as Generation().
inline std::unique_ptr<Workload> make_generation(Context& context, const PipelineSpec& spec, const Row& row,
                                                 const Wishes& wishes, const std::shared_ptr<AllImages>& images) {
  if (!spec.unet()) throw VariantSkipped(fmt::format("{} is planned and not run here", spec.title));
  return with_type_of<float, __half, __nv_bfloat16>(row.run.dtype, [&]<class T>(T) -> std::unique_ptr<Workload> {
    return std::make_unique<Generation<T>>(context, spec, row, wishes, images);
  });
}

}  // namespace oomlab::image_generation
