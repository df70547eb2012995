#!/usr/bin/env python3
"""detector_peaks.py: parameters of torchvision's resnet_fpn_backbone(), and the peak of a step with it on a CPU as the profiler recorded it;
prints detector_peaks.json.

  pip install torch torchvision
  tests/plan/image/detector_peaks.py > tests/plan/image/detector_peaks.json      two threads, since with one some convolutions have columns

The step is that of common/plan/pytorch/detection.h. What is there before it (parameters, buffers, images, the optimizer's state) is counted by
its elements. What a convolution allocates and frees again before it ends is left out: copies in a layout of oneDNN's, which no GPU has.
"""
import json

import torch
import torchvision
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.ops.feature_pyramid_network import FeaturePyramidNetwork, LastLevelMaxPool

torch.set_num_threads(2)
# images, height, width, optimizer (none: a forward pass without gradients), channels of the pyramid: of few the ResNet has the peak
SETTINGS = [(2, 128, 160, "adamw_foreach", 256), (2, 128, 160, "sgd", 256), (2, 256, 320, "adamw_fused", 256), (4, 96, 96, "adamw_fused", 256),
            (2, 320, 224, "sgd", 256), (1, 800, 1344, "sgd", 256), (1, 800, 1344, None, 256), (2, 256, 320, None, 256), (2, 256, 320, None, 8)]
MAKE = {"adamw_foreach": lambda p: torch.optim.AdamW(p, foreach=True), "adamw_fused": lambda p: torch.optim.AdamW(p, fused=True),
        "sgd": lambda p: torch.optim.SGD(p, lr=0.001, momentum=0.9, weight_decay=1e-4, foreach=True)}


CONVOLUTIONS = {"aten::convolution", "aten::convolution_backward"}


def peak_of(work):
    """Live bytes at their highest, of what the work allocates; scratch of convolutions is left out."""
    with torch.profiler.profile(profile_memory=True) as record:
        work()
    found = []  # time, address, bytes (+ allocated, - freed), the convolution that it is within

    def visit(event, convolution):
        if event.name in CONVOLUTIONS:
            convolution = convolution or event.id
        if event.tag == torch._C._profiler._EventType.Allocation:
            found.append((event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size, convolution))
        for child in event.children:
            visit(child, convolution)

    for root in record.profiler.kineto_results.experimental_event_tree():
        visit(root, None)
    found.sort(key=lambda event: event[0])
    scratch, allocated = set(), {}
    for i, (_, address, size, convolution) in enumerate(found):
        if size > 0:
            allocated[address] = i
        elif address in allocated:
            first = allocated.pop(address)
            if convolution and found[first][3] == convolution:
                scratch |= {first, i}
    return torch.tensor([0] + [event[2] for i, event in enumerate(found) if i not in scratch]).cumsum(0).max().item()


def elements_of(tensors):
    return sum(tensor.numel() for tensor in tensors)


def measured(batch, height, width, name, channels):
    torch.manual_seed(1)
    backbone = resnet_fpn_backbone(backbone_name="resnet50", weights=None, trainable_layers=3)
    backbone.fpn = FeaturePyramidNetwork([256, 512, 1024, 2048], channels, LastLevelMaxPool())
    trained = [p for p in backbone.parameters() if p.requires_grad]
    images = torch.rand(batch, 3, height, width)
    optimizer = MAKE[name](trained) if name else None

    def loss(images):
        maps = backbone(images)
        whole = None
        for one in maps.values():
            whole = one.mean() if whole is None else whole + one.mean()
        whole.backward()

    def step(images):
        if not optimizer:
            with torch.no_grad():
                backbone(images)
            return
        loss(images)
        optimizer.step()
        optimizer.zero_grad()

    step(torch.rand(1, 3, 64, 64))  # makes the optimizer's state
    there = elements_of(backbone.parameters()) + elements_of(backbone.buffers()) + images.numel()
    if optimizer:
        there += sum(value.numel() for state in optimizer.state.values() for value in state.values() if value.dim())
    return {"batch": batch, "height": height, "width": width, "optimizer": name, "channels": channels, "parameters": elements_of(backbone.parameters()),
            "trained": elements_of(trained), "frozen_values": elements_of(backbone.buffers()), "bytes": 4 * there + peak_of(lambda: step(images))}


rows = [measured(*setting) for setting in SETTINGS]
print(json.dumps({"made_with": f"torchvision {torchvision.__version__}, torch {torch.__version__}", "rows": rows}, indent=1))
