"""Deep networks for images: VGG-11 and ResNet-18."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from fedveca.tasks.models.norm import make_norm
from fedveca.tasks.models.registry import Shape, Task, named_model, require_images

SMALL = 64  # pixels: a larger image loses a quarter of its height and width before the first stage of ResNet-18


class Vgg11(nn.Module):
    """VGG-11 with FedNova's small head, for any image [C, H, W].

    Eight 3x3 convolutions of 64, 128, 256, 256, 512, 512, 512, 512 channels, pooled by 2 after the first, second,
    fourth, sixth and eighth (a last odd row or column has a pool of its own); then the mean over what is left, and two
    layers of 512 units.

    Args:
        shape: Of an image.
        classes: Scores per image.
        width: Channels of the first convolution; the others have 2, 4 or 8 times as many.
        norm: After each convolution: "none", "group" or "batch"; "auto" is "none".
        dropout: Before each layer of the head; FedNova's is 0.5.
        init: "paper": He's normal initialisation of the convolutions; "torch": PyTorch's.
    """

    def __init__(
        self,
        shape: Shape,
        classes: int,
        width: int = 64,
        norm: str = "auto",
        dropout: float = 0.0,
        init: str = "paper",
    ) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        before = shape[0]
        for factor, pooled in ((1, 1), (2, 1), (4, 0), (4, 1), (8, 0), (8, 1), (8, 0), (8, 1)):
            parts.append(nn.Conv2d(before, factor * width, 3, padding=1))
            before = factor * width
            if norm in ("group", "batch"):
                parts.append(make_norm(norm, before))
            parts += [nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)] if pooled else [nn.ReLU()]
        self.features = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        head: list[nn.Module] = []
        for _ in range(2):
            head += [nn.Dropout(dropout)] if dropout else []
            head += [nn.Linear(before, before), nn.ReLU()]
        self.head = nn.Sequential(*head, nn.Linear(before, classes))
        _start_convolutions(self, init)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x))
        return out


class ResidualBlock(nn.Module):
    """relu(x + F(x)) of two 3x3 convolutions; x goes through a 1x1 convolution where its form changes."""

    def __init__(self, before: int, channels: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, stride, 1, bias=False)
        self.norm1 = make_norm(norm, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = make_norm(norm, channels)
        self.shortcut = nn.Sequential()
        if stride > 1 or before != channels:
            self.shortcut = nn.Sequential(nn.Conv2d(before, channels, 1, stride, bias=False), make_norm(norm, channels))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(inner + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 for any image [C, H, W]: a stem, and four stages of two blocks with 64, 128, 256 and 512 channels.

    Up to 64 x 64 pixels the stem is one 3x3 convolution, without pooling, as is usual for CIFAR; above, it is
    ImageNet's 7x7 convolution with stride 2 and a pool.

    Args:
        shape: Of an image.
        classes: Scores per image.
        width: Channels of the first stage; the others have 2, 4 and 8 times as many.
        norm: "group", "batch" or "none"; "auto" is "group".
        init: "paper": He's normal initialisation of the convolutions; "torch": PyTorch's.
    """

    def __init__(self, shape: Shape, classes: int, width: int = 64, norm: str = "auto", init: str = "paper") -> None:
        super().__init__()
        norm = "group" if norm == "auto" else norm
        if max(shape[1:]) <= SMALL:
            stem: list[nn.Module] = [nn.Conv2d(shape[0], width, 3, 1, 1, bias=False)]
        else:
            stem = [nn.Conv2d(shape[0], width, 7, 2, 3, bias=False)]
        stem += [make_norm(norm, width), nn.ReLU()]
        if max(shape[1:]) > SMALL:
            stem.append(nn.MaxPool2d(3, 2, 1))
        self.stem = nn.Sequential(*stem)
        sizes = [width, width, 2 * width, 4 * width, 8 * width]
        stages: list[nn.Module] = []
        for before, size in itertools.pairwise(sizes):
            stride = 1 + (size > before)
            stages.append(nn.Sequential(ResidualBlock(before, size, stride, norm), ResidualBlock(size, size, 1, norm)))
        self.stages = nn.Sequential(*stages)
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc = nn.Linear(sizes[-1], classes)
        _start_convolutions(self, init)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.pool(self.stages(self.stem(x))))
        return out


def _start_convolutions(module: nn.Module, init: str) -> None:
    """He's initialisation, by the outputs of each weight, unless PyTorch's is wanted."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d) and init == "paper":
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
            if part.bias is not None:
                nn.init.zeros_(part.bias)


@named_model("vgg11", "VGG-11 with FedNova's small head, for images", lr=0.02)
def build_vgg11(task: Task) -> nn.Module:
    require_images("vgg11", task, 8)
    return Vgg11(task.shape, task.outputs, task.hidden, task.norm, task.dropout, task.init)


@named_model("resnet18", "ResNet-18 for images, with GroupNorm unless norm=batch", lr=0.1)
def build_resnet18(task: Task) -> nn.Module:
    require_images("resnet18", task, 8)
    return ResNet18(task.shape, task.outputs, task.hidden, task.norm, task.init)
