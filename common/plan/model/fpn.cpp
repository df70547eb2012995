#include "plan/model/fpn.h"

#include <algorithm>
#include <array>
#include <stdexcept>

#include "plan/model/bad_model.h"
#include "plan/names.h"

namespace oomlab::nn {

namespace {

constexpr std::array kDetectors{"fasterrcnn-resnet50-fpn", "maskrcnn-resnet50-fpn", "keypointrcnn-resnet50-fpn"};
// How names of other detectors begin.
constexpr std::array kBeginnings{"fasterrcnn", "maskrcnn", "keypointrcnn", "retinanet", "fcos", "ssd", "yolo", "detr"};

std::uint64_t weights_of(const ConvolutionUnit& unit) {
  return checked_product(checked_product(unit.kernel, unit.kernel), checked_product(unit.in, unit.out));
}

template <class Visit>
void each_unit(const ResidualBlock& block, const Visit& visit) {
  for (const ConvolutionUnit& unit : block.branch) visit(unit);
  for (const ConvolutionUnit& unit : block.projection) visit(unit);
}

// Of the pyramid alone.
std::uint64_t pyramid_parameters(const FpnBackbone& backbone) {
  std::uint64_t sum = 0, block = 0;
  for (const std::uint64_t blocks : backbone.stages()) {
    block += blocks;
    const std::uint64_t channels = backbone.body.blocks[block - 1].branch.back().out;
    const std::uint64_t window = checked_product(9, backbone.width);
    sum = checked_sum(
        {sum, checked_product(checked_sum(channels, window), backbone.width), checked_product(2, backbone.width)});
  }
  return sum;
}

}  // namespace

std::vector<std::uint64_t> FpnBackbone::stages() const {
  std::vector<std::uint64_t> blocks;
  for (const ResidualBlock& block : body.blocks) {
    if (!block.projection.empty()) blocks.push_back(0);
    ++blocks.back();
  }
  return blocks;
}

std::uint64_t FpnBackbone::parameters() const {
  std::uint64_t sum = checked_sum(pyramid_parameters(*this), weights_of(body.stem));
  for (const ResidualBlock& block : body.blocks)
    each_unit(block, [&](const ConvolutionUnit& unit) { sum = checked_sum(sum, weights_of(unit)); });
  return sum;
}

std::uint64_t FpnBackbone::trained_parameters() const {
  const std::vector<std::uint64_t> blocks = stages();
  std::uint64_t sum = pyramid_parameters(*this), frozen = 0;
  for (std::size_t stage = 0; stage + trained_stages < blocks.size(); ++stage) frozen += blocks[stage];
  for (std::size_t i = frozen; i < body.blocks.size(); ++i)
    each_unit(body.blocks[i], [&](const ConvolutionUnit& unit) { sum = checked_sum(sum, weights_of(unit)); });
  return sum;
}

std::uint64_t FpnBackbone::frozen_values() const {
  std::uint64_t channels = body.stem.out;
  for (const ResidualBlock& block : body.blocks)
    each_unit(block, [&](const ConvolutionUnit& unit) { channels = checked_sum(channels, unit.out); });
  return checked_product(4, channels);
}

InputSize FpnBackbone::padded(InputSize size) const {
  const auto up = [&](std::uint64_t side) { return (side + multiple_of - 1) / multiple_of * multiple_of; };
  return {up(size.height), up(size.width)};
}

std::optional<FpnBackbone> fpn_backbone_named(std::string_view typed) {
  std::string name = lower_case(typed);
  std::ranges::replace(name, '_', '-');
  if (name == kFpnBackbone || std::ranges::find(kDetectors, name) != kDetectors.end())
    return FpnBackbone{.name = kFpnBackbone, .body = parse_resnet("resnet50")};
  if (std::ranges::any_of(kBeginnings, [&](const char* beginning) { return name.starts_with(beginning); }))
    bad_model(typed,
              "is a detector that is not known; known: fasterrcnn_resnet50_fpn, maskrcnn_resnet50_fpn, "
              "keypointrcnn_resnet50_fpn, whose backbone is resnet50-fpn");
  return std::nullopt;
}

}  // namespace oomlab::nn
