#!/usr/bin/env python3
"""detector_peaks.py: parameters of torchvision's resnet_fpn_backbone(), and the peak of a step with it on a CPU as the profiler recorded it;
prints detector_peaks.json.

  pip install torch torchvision
  tests/plan/image/detector_peaks.py > tests/plan/image/detector_peaks.json      two threads, since with one some convolutions have columns

The step is that of common/plan/pytorch/detection.h. What is there before it (parameters, buffers, images, the optimizer's state) is counted by
its elements.
"""
import json

import torch
import torchvision
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

torch.set_num_threads(2)
# images, height, width, optimizer; none: a forward pass without gradients
SETTINGS = [(2, 128, 160, "adamw_foreach"), (2, 128, 160, "sgd"), (2, 256, 320, "adamw_fused"), (4, 96, 96, "adamw_fused"), (2, 320, 224, "sgd"),
            (1, 800, 1344, "sgd"), (1, 800, 1344, None), (2, 256, 320, None)]
MAKE = {"adamw_foreach": lambda p: torch.optim.AdamW(p, foreach=True), "adamw_fused": lambda p: torch.optim.AdamW(p, fused=True),
        "sgd": lambda p: torch.optim.SGD(p, lr=0.001, momentum=0.9, weight_decay=1e-4, foreach=True)}


def peak_of(work):
    with torch.profiler.profile(profile_memory=True) as record:  # + allocated, - freed: what is live is their sum
        work()
    memory = [(event.start_ns(), event.nbytes()) for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]
    return torch.tensor([0] + [size for _, size in sorted(memory)]).cumsum(0).max().item()


def elements_of(tensors):
    return sum(tensor.numel() for tensor in tensors)


def measured(batch, height, width, name):
    torch.manual_seed(1)
    backbone = resnet_fpn_backbone(backbone_name="resnet50", weights=None, trainable_layers=3)
    trained = [p for p in backbone.parameters() if p.requires_grad]
    images = torch.rand(batch, 3, height, width)
    optimizer = MAKE[name](trained) if name else None

    def loss():
        maps = backbone(images)
        whole = None
        for one in maps.values():
            whole = one.mean() if whole is None else whole + one.mean()
        whole.backward()

    def step():
        if not optimizer:
            with torch.no_grad():
                backbone(images)
            return
        loss()
        optimizer.step()
        optimizer.zero_grad()

    step()
    there = elements_of(backbone.parameters()) + elements_of(backbone.buffers()) + images.numel()
    if optimizer:
        there += sum(value.numel() for state in optimizer.state.values() for value in state.values() if value.dim())
    return {"batch": batch, "height": height, "width": width, "optimizer": name, "parameters": elements_of(backbone.parameters()),
            "trained": elements_of(trained), "frozen_values": elements_of(backbone.buffers()), "bytes": 4 * there + peak_of(step)}


rows = [measured(*setting) for setting in SETTINGS]
print(json.dumps({"made_with": f"torchvision {torchvision.__version__}, torch {torch.__version__}", "rows": rows}, indent=1))
