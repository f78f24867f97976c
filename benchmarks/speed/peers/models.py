"""The two models as PyTorch modules, the same for every peer that runs PyTorch."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.speed.jobs import CLASSES, DECAY, LR, Job, Shards


def hinge(output: Tensor, y: Tensor) -> Tensor:
    """Half the mean squared hinge; y is +1 or -1."""
    return 0.5 * torch.clamp(1 - y * output, min=0).square().mean()


class SquaredSVM(nn.Module):
    """A linear classifier without bias that starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(784, 1, bias=False)
        nn.init.zeros_(self.linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x).squeeze(1)
        return out

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """The regularised squared hinge loss; y is +1 or -1."""
        return DECAY * self.linear.weight.square().sum() + hinge(self(x), y)


class CNN(nn.Module):
    """Two 5x5 convolutions of 32 channels, each with ReLU and pooling, then 256 hidden units."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(1568, 256),
            nn.ReLU(),
            nn.Linear(256, CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy; y is the digit."""
        return F.cross_entropy(self(x), y)


Model = SquaredSVM | CNN


def build(job: Job) -> Model:
    """The job's model, the same start for every peer."""
    torch.manual_seed(0)
    return SquaredSVM() if job.model == "svm" else CNN()


class Objective(NamedTuple):
    """The loss in two parts, for peers whose loops want a criterion: its decay goes to the optimiser."""

    criterion: Callable[[Tensor, Tensor], Tensor]
    weight_decay: float


def objective(job: Job) -> Objective:
    """The same gradient as the model's own loss."""
    return Objective(hinge, 2 * DECAY) if job.model == "svm" else Objective(F.cross_entropy, 0.0)


def draw(data: tuple[Tensor, Tensor], job: Job) -> Iterator[tuple[Tensor, Tensor]]:
    """One round's batches of a client, each drawn at random."""
    x, y = data
    for _ in range(job.steps):
        rows = torch.randint(len(y), (job.batch,))
        yield x[rows], y[rows]


def tensors(pair: tuple[np.ndarray, np.ndarray]) -> tuple[Tensor, Tensor]:
    """Rows and labels as tensors, sharing memory."""
    return torch.from_numpy(pair[0]), torch.from_numpy(pair[1])


def warm_up(job: Job, shards: Shards) -> None:
    """One step of a throwaway model: PyTorch imports much of itself in the first one, which is set-up."""
    model = build(job)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    x, y = tensors(shards.part(0))
    model.loss(x[: job.batch], y[: job.batch]).backward()
    optimizer.step()


@torch.no_grad()
def probe_loss(model: Model, shards: Shards) -> float:
    """The loss on the probe rows."""
    return model.loss(*tensors(shards.probe())).item()
