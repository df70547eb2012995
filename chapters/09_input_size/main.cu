// Chapter 09, input size: the oldest advice about images.
//
// The problem   Activations of a convolutional network grow with the pixels of its input: from 224 x 224 to 512 x 512
//               everything but the weights takes 5.22 times the bytes.
// The idea      Fewer pixels: resize the pictures, train on random crops, or let the first convolution skip every other
//               pixel. Less scratch: a convolution needs no column matrix of the whole batch. Or, in inference, the
//               same result piece by piece: tiles with a halo.
// The bytes     peak = fixed + slope x pixels. Fixed: 12 bytes per parameter (weights, gradients, momentum), the
//               dataset, and cuBLAS's workspace.
//               Slope: of each unit the convolution's output and the norm's, 8 bytes per value; and the column matrix
//               of the fullest moment, kernel x kernel times the input of its convolution, or a tenth of it, or none.
// Run it        build/host/bin/09_input_size
//               build/host/bin/09_input_size --plan --model resnet50 --batch 256 --input 224

#include "claims.h"

namespace oomlab::input_size {
namespace {

/// Inference sees images this many times as high and as wide as training does.
constexpr std::size_t kInferenceScale = 4;

Chapter declare(const Config& config) {
  const nn::NetworkSpec spec = nn::network_of(nn::parse_resnet(config.model));
  const auto dataset = std::make_shared<data::Dataset>(train::load_images(config, spec.name, spec.classes));
  const std::size_t side = config.options[kInput], half = side / 2;
  const auto observed = std::make_shared<Observed>();

  nn::NetworkSpec strided = spec;
  strided.layers.front().stride *= 2;
  using nn::ConvolutionWay;
  const std::vector<Way> ways{
      {kFull, spec, data::whole(side), {ConvolutionWay::im2col}},
      {kFullTiled, spec, data::whole(side), {ConvolutionWay::tiled}},
      {kFullDirect, spec, data::whole(side), {ConvolutionWay::direct}},
      {kFullLean, spec, data::whole(side), {.way = ConvolutionWay::tiled, .recompute_norms = true}},
      {fmt::format("resized to {}", half), spec, data::whole(half), {ConvolutionWay::im2col}},
      {fmt::format("random crops of {}", half), spec, {side, side, half, half, /*seed=*/9}, {ConvolutionWay::im2col}},
      {"strided stem", strided, data::whole(side), {ConvolutionWay::im2col}}};
  require_countable(spec, ways, config);

  Chapter chapter{.title = "input size", .variants = {}, .claims = claims_of(config, spec, observed), .after = {}};
  for (const Way& way : ways) {
    const bool other = way.spec.layers.front().stride != spec.layers.front().stride || way.view.window_height != side;
    const bool counted = way.form.way != ConvolutionWay::direct;  // no products of cuBLAS to count
    chapter.variants.push_back(
        {.name = way.name,
         .batch = config.batch,
         .predicted = [=](std::size_t batch) { return ViewTraining::predicted(*dataset, way, batch); },
         .agreement =
             other ? differs_by_design("the model sees fewer pixels of each picture") : agreement_of(way, config.batch),
         .make = [=](Context& context, std::size_t batch) -> std::unique_ptr<Workload> {
           return std::make_unique<ViewTraining>(context, *dataset, way, batch);
         },
         .flops = [=](std::size_t batch) -> std::optional<double> {
           if (!counted) return std::nullopt;
           return nn::step_flops(way.spec, batch, way.size());
         }});
  }
  const std::size_t large = kInferenceScale * side;
  const std::size_t tiles =
      std::min(config.options[kTiles], nn::shapes_of(spec, 1, {large, large}).sizes[tiled_layers(spec)].height);
  for (const std::size_t pieces : {std::size_t(0), tiles}) {
    const nn::NetworkForm form{ConvolutionWay::tiled};
    const std::string what = pieces ? fmt::format("{} x {} tiles", tiles, tiles) : "whole";
    chapter.variants.push_back(
        {.name = fmt::format("inference at {}, {}", large, what),
         .batch = 1,
         .predicted =
             [=](std::size_t batch) { return Inference::predicted(*dataset, spec, large, pieces, form, batch); },
         .agreement = differs_by_design("one large picture, and no training step"),
         .make = [=](Context& context, std::size_t batch) -> std::unique_ptr<Workload> {
           return std::make_unique<Inference>(context, *dataset, spec, large, pieces, form, batch,
                                              pieces ? observed->by_tiles : observed->whole);
         }});
  }
  chapter.after = [=](const Results& results, Report& report) {
    show_line(results, report, ways.front(), half, *dataset);
    show_products(report, ways.front());
    show_tiles(results, report, spec, *dataset, large, tiles, *observed);
  };
  return chapter;
}

}  // namespace
}  // namespace oomlab::input_size

int main(int argc, char** argv) {
  using oomlab::Defaults;
  using namespace oomlab::input_size;
  const auto mib = [](double n) { return std::size_t(n * 1024 * 1024); };
  const Defaults resnet50{.batch = 32, .steps = 3, .budget = mib(8 << 10), .options = {{kInput, 512}}};
  const Defaults full{.model = "resnet:3-16",
                      .batch = 8,
                      .steps = 4,
                      .budget = mib(42),
                      .options = {{kInput, 64}, {kTiles, 4}, oomlab::train::kData},
                      .models = "resnet:3-16, resnet18 or resnet50",
                      .published_models = "resnet18 resnet50",
                      .published = &resnet50};
  const Defaults quick{.model = "resnet:2-8", .batch = 8, .steps = 3, .budget = mib(4), .options = {{kInput, 32}}};
  return oomlab::run_chapter(argc, argv, full, quick, oomlab::input_size::declare);
}
