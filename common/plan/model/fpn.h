#pragma once
// The backbone of torchvision's detectors Faster R-CNN, Mask R-CNN and Keypoint R-CNN: a residual network without its
// head, and a feature pyramid on top of its stages (Lin et al., "Feature Pyramid Networks for Object Detection", 2017).
// Names and sizes, as torchvision.models.detection.backbone_utils.resnet_fpn_backbone() makes it.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plan/model/resnet.h"

namespace oomlab::nn {

/// Every stage's last map goes through a 1 × 1 convolution with a bias to `width` channels; from the coarsest on, each is
/// added to the next finer one (nearest sampling); a 3 × 3 convolution with a bias makes of each sum a map of the pyramid.
/// A last map is every other pixel of the coarsest one.
struct FpnBackbone {
  std::string name;  ///< "resnet50-fpn"
  ResNetSpec body;   ///< of bottlenecks: the first block of each stage has a projection. Its head is not there
  std::uint64_t width = 256;
  /// trainable_layers: so many of the last stages are trained, and the pyramid. All norms are frozen (FrozenBatchNorm2d):
  /// weight, bias, mean and variance are buffers.
  std::uint64_t trained_stages = 3;
  std::uint64_t multiple_of = 32;  ///< images of a batch are padded to such sides (size_divisible)

  /// Of the body, in order: how many blocks each stage has.
  std::vector<std::uint64_t> stages() const;
  /// Weights and biases that are parameters of PyTorch, trained or not.
  std::uint64_t parameters() const;
  std::uint64_t trained_parameters() const;
  /// Values of the frozen norms' buffers.
  std::uint64_t frozen_values() const;
  /// Images as the backbone sees them.
  InputSize padded(InputSize size) const;
};

/// "resnet50-fpn", or what torchvision calls the detectors that have it: fasterrcnn_resnet50_fpn, maskrcnn_resnet50_fpn,
/// keypointrcnn_resnet50_fpn. Nothing: it is no name of a detector. Throws std::invalid_argument, with one line, for a
/// detector that is not known.
std::optional<FpnBackbone> fpn_backbone_named(std::string_view name);
inline constexpr const char* kFpnBackbone = "resnet50-fpn";
/// What torchvision's detectors resize to by default: the shorter side to 800, the longer one to at most 1,333 pixels.
inline constexpr InputSize kDetectorInput{800, 1333};

}  // namespace oomlab::nn
