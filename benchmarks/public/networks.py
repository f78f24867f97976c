"""The networks of the benchmarks that are not among our models; each is made from (shape of an image, classes)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from fedveca.tasks.models.norm import make_norm
from fedveca.tasks.models.vision import ResNet18


class DropoutCnn(nn.Module):
    """The CNN of pfl's and FLUTE's benchmarks."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, side = shape[0], (shape[-1] - 4) // 2
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(64 * side * side, 128),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(128, classes),
        )
        for part in self.layers:
            if isinstance(part, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(part.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


class ImageNetResNet18(ResNet18):
    """ResNet-18 with ImageNet's stem on small images too, as FLUTE and torchvision have it: 32 x 32 becomes 8 x 8."""

    def __init__(self, shape: tuple[int, ...], classes: int, norm: str) -> None:
        super().__init__(shape, classes, norm=norm)
        convolution = nn.Conv2d(shape[0], 64, 7, 2, 3, bias=False)
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
        self.stem = nn.Sequential(convolution, make_norm(norm, 64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))


def make_group_resnet(shape: tuple[int, ...], classes: int) -> nn.Module:
    """FLUTE's ResNet-18, with GroupNorm as its table says."""
    return ImageNetResNet18(shape, classes, "group")


def make_batch_resnet(shape: tuple[int, ...], classes: int) -> nn.Module:
    """torchvision's ResNet-18, which BlazeFL takes."""
    return ImageNetResNet18(shape, classes, "batch")


NETWORKS: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {
    "dropout-cnn": DropoutCnn,
    "resnet18-group": make_group_resnet,
    "resnet18-batch": make_batch_resnet,
}
