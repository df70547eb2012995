#include "plan/model/resnet.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>

#include "plan/model/bad_model.h"
#include "plan/names.h"

namespace oomlab::nn {

namespace {

constexpr std::uint64_t kMostStages = 12, kMostWidth = 1 << 20;

// Two 3 × 3 convolutions, or a bottleneck: 1 × 1, 3 × 3, and 1 × 1 to four times the width.
void add_stage(ResNetSpec& spec, std::uint64_t stage, std::uint64_t blocks, std::uint64_t width, std::uint64_t stride,
               bool bottleneck) {
  for (std::uint64_t b = 1; b <= blocks; ++b) {
    const std::string name = "stage " + std::to_string(stage) + " block " + std::to_string(b) + " ";
    const std::uint64_t in = spec.blocks.empty() ? spec.stem.out : spec.features();
    const std::uint64_t step = b == 1 ? stride : 1, out = bottleneck ? 4 * width : width;
    ResidualBlock block;
    if (bottleneck)
      block.branch = {{name + "conv 1", in, width, 1, 1, 0},
                      {name + "conv 2", width, width, 3, step, 1},
                      {name + "conv 3", width, out, 1, 1, 0}};
    else
      block.branch = {{name + "conv 1", in, width, 3, step, 1}, {name + "conv 2", width, width, 3, 1, 1}};
    if (in != out || step != 1) block.projection = {{name + "projection", in, out, 1, step, 0}};
    spec.blocks.push_back(std::move(block));
  }
}

ResNetSpec published(std::string_view name, const std::uint64_t (&blocks)[4], bool bottleneck) {
  ResNetSpec spec{
      .name = std::string(name), .stem = {"stem", 3, 64, 7, 2, 3}, .pooled = true, .blocks = {}, .classes = 1000};
  for (std::uint64_t s = 0; s < 4; ++s)
    add_stage(spec, s + 1, blocks[s], std::uint64_t(64) << s, s ? 2 : 1, bottleneck);
  return spec;
}

}  // namespace

std::vector<ConvolutionUnit> ResNetSpec::units() const {
  std::vector<ConvolutionUnit> all{stem};
  for (const ResidualBlock& block : blocks) {
    all.insert(all.end(), block.branch.begin(), block.branch.end());
    all.insert(all.end(), block.projection.begin(), block.projection.end());
  }
  return all;
}

std::uint64_t ResNetSpec::parameters() const {
  std::uint64_t sum = checked_sum(checked_product(classes, features()), classes);
  for (const ConvolutionUnit& unit : units()) sum = checked_sum(sum, checked_sum(unit.weights(), 2 * unit.out));
  return sum;
}

ResNetSpec parse_resnet(std::string_view typed) {
  const std::string name = lower_case(typed);
  const std::string_view text = name;
  if (text == "resnet18") return published(text, {2, 2, 2, 2}, false);
  if (text == "resnet50") return published(text, {3, 4, 6, 3}, true);
  constexpr std::string_view kFree = "resnet:";
  constexpr const char* kNames[] = {"resnet18", "resnet50"};
  if (!text.starts_with(kFree)) unknown_model(text, kNames, "resnet:STAGES-WIDTH");
  std::uint64_t numbers[2] = {};
  read_numbers(text, kFree, "is not two numbers; write resnet:STAGES-WIDTH, for example resnet:3-16", numbers);
  const auto [stages, width] = numbers;
  if (stages < 1 || stages > kMostStages || width < 1 || width > kMostWidth)
    bad_model(text, "has stages or a width out of range: 1 to " + std::to_string(kMostStages) +
                        " stages, a width of 1 to " + std::to_string(kMostWidth));
  ResNetSpec spec{.name = std::string(text), .stem = {"stem", 3, width, 3, 1, 1}, .blocks = {}, .classes = 10};
  for (std::uint64_t s = 0; s < stages; ++s) add_stage(spec, s + 1, 2, width << s, s ? 2 : 1, false);
  return spec;
}

ResNetShapes shapes_of(const ResNetSpec& spec, std::uint64_t batch, InputSize size) {
  ResNetShapes shapes{};
  const auto next = [&](const ConvolutionUnit& u, InputSize from) {
    try {
      shapes.units.push_back(
          convolution_shape(batch, from.height, from.width, u.in, u.out, u.kernel, u.stride, u.padding));
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(u.name + ": " + error.what());
    }
    return InputSize{shapes.units.back().out_height, shapes.units.back().out_width};
  };
  size = next(spec.stem, size);
  if (spec.pooled) {
    shapes.pool = convolution_shape(batch, size.height, size.width, spec.stem.out, spec.stem.out, 3, 2, 1);
    size = {shapes.pool.out_height, shapes.pool.out_width};
  }
  for (const ResidualBlock& block : spec.blocks) {
    InputSize at = size;
    for (const ConvolutionUnit& unit : block.branch) at = next(unit, at);
    for (const ConvolutionUnit& unit : block.projection) (void)next(unit, size);
    size = at;
  }
  shapes.last_pixels = checked_product(size.height, size.width);
  // So that small multiples of these need no check.
  for (const ConvolutionShape& unit : shapes.units)
    if (std::max(checked_product(unit.out_pixels(), unit.patch()), unit.output_elements()) > UINT64_MAX / 1024)
      throw std::length_error("a size does not fit 64 bits");
  return shapes;
}

void require_input(const ResNetShapes& shapes, std::uint64_t elements) {
  const ConvolutionShape& first = shapes.units.front();
  if (elements == first.input_elements()) return;
  throw std::invalid_argument("input of " + std::to_string(elements) + " values is not a batch of " +
                              std::to_string(first.batch) + " images of " + std::to_string(first.height) + " x " +
                              std::to_string(first.width));
}

}  // namespace oomlab::nn
