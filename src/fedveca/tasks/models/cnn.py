"""Small convolutional networks: the paper's CNN, and LeNet as the benchmarks of others have it."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from fedveca.tasks.models.registry import Shape, Task, named_model, require_images
from fedveca.tasks.native import convolution
from fedveca.tasks.native.library import PYTORCH, describe_compiler


class Cnn(nn.Module):
    """The paper's CNN for any image [C, H, W]: two 5x5x32 convolutions, each pooled by 2, then 256 units."""

    def __init__(self, shape: Shape, classes: int, init: str = "paper") -> None:
        super().__init__()
        channels, height, width = shape
        self.conv1 = nn.Conv2d(channels, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 32, 5, padding=2)
        self.fc1 = nn.Linear(32 * (height // 4) * (width // 4), 256)
        self.fc2 = nn.Linear(256, classes)
        if init == "paper":
            for p in self.parameters():
                if p.dim() > 1:
                    nn.init.trunc_normal_(p, std=0.1, a=-0.2, b=0.2)
                else:
                    nn.init.constant_(p, 0.1)

    def describe_kernels(self) -> str:
        """What computes the convolutions on a CPU: the compiler of our kernels, or "PyTorch"."""
        return describe_compiler() if convolution.has_kernels() else PYTORCH

    def forward(self, x: Tensor) -> Tensor:
        x = _pool(x, self.conv1)
        x = _pool(x, self.conv2, channels_last=False)  # flat without a copy
        out: Tensor = self.fc2(torch.relu(self.fc1(x.flatten(1))))
        return out


def _pool(x: Tensor, conv: nn.Conv2d, channels_last: bool = True) -> Tensor:
    """maxpool(relu(conv(x) + b)) with bias and ReLU after the pooling: the same, on a quarter of the numbers.

    Kernels of our own give it in the order `channels_last` says; PyTorch's in the one that they choose.
    """
    assert conv.bias is not None
    compiled = torch.compiler.is_compiling()  # a compiler fuses it itself
    kernels = None if compiled else _import_cuda_kernels() if x.is_cuda else convolution
    if kernels and kernels.fits(x, conv.weight):
        return kernels.conv_pool(x, conv.weight, conv.bias, channels_last=channels_last)  # type: ignore[no-any-return]
    x = nn.functional.conv2d(x, conv.weight, padding=2)
    return torch.relu(nn.functional.max_pool2d(x, 2) + conv.bias[:, None, None])


@cache
def _import_cuda_kernels() -> Any:
    """The CUDA kernels, where Triton is installed (PyTorch's CUDA builds for Linux bring it)."""
    return importlib.import_module("fedveca.tasks.kernels") if importlib.util.find_spec("triton") else None


@named_model("cnn", "the paper's CNN for images")
def build_cnn(task: Task) -> nn.Module:
    require_images("cnn", task, 4)
    return Cnn(task.shape, task.outputs, task.init)


class LeNet(nn.Module):
    """5x5 convolutions of 6 and 16 channels without padding, each pooled by 2, then 120 and 84 units.

    It is the small CNN of PyTorch's tutorial, of NIID-Bench and of BlazeFL; `init` is always PyTorch's.
    """

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        left = [(size - 4) // 2 for size in ((height - 4) // 2, (width - 4) // 2)]
        self.conv1 = nn.Conv2d(channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * left[0] * left[1], 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = nn.functional.max_pool2d(torch.relu(self.conv2(x)), 2)
        out: Tensor = self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x.flatten(1))))))
        return out


@named_model("lenet", "LeNet for images: the small CNN of NIID-Bench and BlazeFL")
def build_lenet(task: Task) -> nn.Module:
    require_images("lenet", task, 16)
    return LeNet(task.shape, task.outputs)
