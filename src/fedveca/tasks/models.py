"""What is trained: the paper's two models, an MLP, and a user's own module."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from fedveca.tasks.problem import Network, Problem, SquaredSvm

Shape = tuple[int, ...]


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

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(nn.functional.max_pool2d(self.conv1(x), 2))  # pooling first is the same and cheaper
        x = torch.relu(nn.functional.max_pool2d(self.conv2(x), 2))
        out: Tensor = self.fc2(torch.relu(self.fc1(x.flatten(1))))
        return out


def mlp(shape: Shape, classes: int, hidden: int = 64) -> nn.Module:
    """One hidden layer on the flattened row."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), hidden), nn.ReLU(), nn.Linear(hidden, classes))


def model(name: str, shape: Shape, classes: int, *, init: str = "paper", hidden: int = 64, seed: int = 0) -> Problem:
    """The problem that `name` poses on rows of `shape`; w_0 is a pure function of the seed."""
    if name == "svm":
        return SquaredSvm(math.prod(shape))
    if name == "cnn":
        if len(shape) != 3 or min(shape[1:]) < 4:
            raise ValueError(f"model=cnn needs images [channels, height, width] of at least 4 x 4, not rows {list(shape)}")
        return _network(lambda: Cnn(shape, classes, init), "model=cnn", shape, classes, seed)
    if name == "mlp":
        return _network(lambda: mlp(shape, classes, hidden), "model=mlp", shape, classes, seed)
    if ":" in name:
        factory = _import(name)
        return _network(lambda: factory(shape, classes), f"model={name}", shape, classes, seed)
    raise ValueError(f"model={name} is not known; it is svm, cnn, mlp or package.module:factory")


def _network(build: Callable[[], nn.Module], said: str, shape: Shape, classes: int, seed: int) -> Network:
    """A module built under the seed, tried on two rows before it is trusted."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            module = build()
        except Exception as error:
            raise ValueError(f"{said} cannot be built for rows {list(shape)} and {classes} classes: {error}") from error
    if not isinstance(module, nn.Module):
        raise ValueError(f"{said} returned {type(module).__name__}; a factory(shape, classes) returns a torch.nn.Module")
    network = Network(module, said)
    try:
        scores = network.scores(network.init(), torch.zeros(2, *shape))
    except Exception as error:
        raise ValueError(f"{said} does not fit rows of shape {list(shape)}: {str(error).splitlines()[0]}") from error
    if scores.shape != (2, classes):
        raise ValueError(f"{said} gives scores {list(scores.shape)} for 2 rows; {classes} classes need [2, {classes}]")
    return network


def _import(name: str) -> Callable[[Shape, int], nn.Module]:
    module_name, _, attribute = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))  # a user's file beside the command
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"model={name} cannot be imported: {error}") from error
    finally:
        sys.path.remove(str(Path.cwd()))
    if not callable(factory):
        raise ValueError(f"model={name} is not callable; it must be a factory(shape, classes) -> torch.nn.Module")
    return factory  # type: ignore[no-any-return]
