#pragma once
// The peak of a step of a detector's backbone in PyTorch's eager mode: torchvision's resnet_fpn_backbone(), its forward
// functions statement by statement on a tape that only counts bytes (tape.h). From torchvision 0.29:
// models/resnet.py, models/_utils.py, models/detection/backbone_utils.py, ops/misc.py, ops/feature_pyramid_network.py.
// tests/plan/image/detector_peaks.py measures the same, by PyTorch's own record on a CPU.
//
// The step is `maps = backbone(images)`, a loss that is the sum of the maps' means, `backward()` while `maps` lives, and
// the optimizer's; the second one or a later one, so the optimizer's state exists. What a detector has behind its
// backbone is not there: proposals (RPN), heads of regions, masks, NMS, and the losses of all of them. Not counted:
// workspaces of cuDNN, an allocator's rounding beyond 512 bytes, a context.
//
// What each operator keeps until its backward pass (tools/autograd/derivatives.yaml):
//
//   convolution          its input, where its weight is trained; its weight, where its input has a gradient
//   FrozenBatchNorm2d    scale [channels]: x · scale + bias are two operators, and neither their input nor what is between
//                        them stays
//   ReLU in place        its output, which the next convolution keeps, too
//   a += b, nearest      nothing
//   max pool             its input, and of each output an index in 64 bits
//
// Stages that are not trained keep nothing: no gradient goes through them.

#include <cstdint>
#include <vector>

#include "plan/category.h"
#include "plan/model/fpn.h"
#include "plan/pytorch/huggingface.h"

namespace oomlab::fit {

struct FpnStep {
  std::uint64_t batch = 1;                  ///< images
  nn::InputSize size = nn::kDetectorInput;  ///< of each, pixels, before they are padded
  bool training = true;                     ///< else a forward pass under torch.no_grad()
  HfOptimizer optimizer =
      HfOptimizer::adamw_fused;  ///< AdamW, foreach or fused; or sgd: with momentum and weight decay
  TorchDevice device = TorchDevice::cuda;
};

struct FpnPeak {
  ByCategory bytes;                   ///< at the peak
  const char* moment;                 ///< "forward pass", "backward pass", "optimizer's step"
  std::vector<MemoryEvent> events{};  ///< of two steps, where they were asked for
};

/// Peak bytes of one step, by category; all in FP32. `recorded`: with every allocation and release in order, of a first
/// step, too, which makes the optimizer's state.
/// Throws std::length_error where a figure does not fit 64 bits, std::invalid_argument, in one line, for no images, no
/// pixels, or another optimizer.
FpnPeak fpn_peak(const nn::FpnBackbone& backbone, const FpnStep& step, bool recorded = false);

}  // namespace oomlab::fit
