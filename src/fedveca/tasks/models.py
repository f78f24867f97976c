"""What is trained: the paper's two models, an MLP, and a user's own module."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedveca.tasks.problem import FEW, Network, Problem, SquaredSvm

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
        x = _pooled(x, self.conv1)
        x = _pooled(x, self.conv2)
        out: Tensor = self.fc2(torch.relu(self.fc1(x.flatten(1))))
        return out


def _pooled(x: Tensor, conv: nn.Conv2d) -> Tensor:
    """maxpool(relu(conv(x) + b)) with bias and ReLU after the pooling: the same, on a quarter of the numbers."""
    assert conv.bias is not None
    x = nn.functional.conv2d(x, conv.weight, padding=2)
    if x.is_cuda and _fused() and not (x.shape[2] % 2 or x.shape[3] % 2):
        return _fused().pool(x, conv.bias)  # type: ignore[no-any-return]
    return torch.relu(nn.functional.max_pool2d(x, 2) + conv.bias[:, None, None])


@cache
def _fused() -> Any:
    """The CUDA kernels, where Triton is installed (PyTorch's CUDA builds for Linux bring it)."""
    return importlib.import_module("fedveca.tasks.kernels") if importlib.util.find_spec("triton") else None


def mlp(shape: Shape, classes: int, hidden: int = 64) -> nn.Module:
    """One hidden layer on the flattened row."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), hidden), nn.ReLU(), nn.Linear(hidden, classes))


def model(
    name: str,
    shape: Shape,
    classes: int,
    *,
    init: str = "paper",
    hidden: int = 64,
    precision: str = "float32",
    seed: int = 0,
) -> Problem:
    """The problem that `name` poses on rows of `shape`; w_0 is a pure function of the seed."""
    if name == "svm":
        return SquaredSvm(math.prod(shape))
    build: Callable[[], nn.Module]
    if name == "cnn":
        if len(shape) != 3 or min(shape[1:]) < 4:
            raise ValueError(f"model=cnn needs images [channels, height, width] of 4 x 4 or more, not {list(shape)}")
        build = partial(Cnn, shape, classes, init)
    elif name == "mlp":
        build = partial(mlp, shape, classes, hidden)
    elif ":" in name:
        build = partial(_import(name), shape, classes)
    else:
        raise ValueError(f"model={name} is not known; it is svm, cnn, mlp or package.module:factory")
    return _network(build, f"model={name}", shape, classes, precision, seed)


def _network(
    build: Callable[[], nn.Module], said: str, shape: Shape, classes: int, precision: str, seed: int
) -> Network:
    """A module built under the seed, tried on two rows before it is trusted."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            module = build()
        except Exception as error:
            wanted = f"rows of shape {list(shape)} and {classes} classes"
            raise ValueError(f"{said} cannot be built for {wanted}: {_why(error)}") from error
    if not isinstance(module, nn.Module):
        raise ValueError(f"{said} returned {type(module).__name__}; a factory(shape, classes) gives a torch.nn.Module")
    if any(nn.parameter.is_lazy(p) for p in module.parameters()):
        raise ValueError(f"{said} has lazy parameters; build it with the sizes that shape and classes give")
    network = Network(module, said, precision=precision)
    rows = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    try:
        scores, again = (network.scores(network.init(), rows) for _ in range(2))
    except Exception as error:
        raise ValueError(f"{said} does not fit rows of shape {list(shape)}: {_why(error)}") from error
    if scores.shape != (2, classes):
        raise ValueError(f"{said} gives scores {list(scores.shape)} for 2 rows; {classes} classes need [2, {classes}]")
    if not torch.equal(scores, again):
        raise ValueError(f"{said} gives other scores each time: chance within it is not the seed's; leave it out")
    network.mapped = network.mapped and _can_be_mapped(network, rows)
    return network


def _can_be_mapped(network: Network, rows: Tensor) -> bool:
    """Whether many clients go through the module at once; one that branches on values takes them one by one."""
    n = FEW + 1
    try:
        y = torch.zeros(n, len(rows), dtype=torch.int64)
        network.gradients(network.init().repeat(n, 1), rows.expand(n, *rows.shape), y)
    except Exception:
        return False
    return True


def _import(name: str) -> Callable[[Shape, int], nn.Module]:
    module_name, _, attribute = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))  # a user's file beside the command
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # a user's file may fail in any way
        raise ValueError(f"model={name} cannot be imported: {_why(error)}") from error
    finally:
        sys.path.remove(str(Path.cwd()))
    if not callable(factory):
        raise ValueError(f"model={name} is not callable; it must be a factory(shape, classes) -> torch.nn.Module")
    return factory  # type: ignore[no-any-return]


def _why(error: Exception) -> str:
    """One line of it, never none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
