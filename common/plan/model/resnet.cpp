#include "plan/model/resnet.h"

#include <cstdint>

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

}  // namespace oomlab::nn
