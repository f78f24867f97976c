"""Lets torchvision be imported with a CPU build of PyTorch, for peers that import it and use none of it.

The registry's torchvision is built for CUDA; without that its operators do not load and its import fails.
"""

import torch

try:
    import torchvision  # noqa: F401
except RuntimeError:
    for name in ("nms", "qnms"):
        signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        torch.library.define(f"torchvision::{name}", signature)
