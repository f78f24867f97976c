"""What is trained: the paper's two models, an MLP, and a user's own module."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedveca.errors import UserError
from fedveca.tasks.losses import Rows
from fedveca.tasks.problem import Problem, SquaredSvm
from fedveca.tasks.validate import ROWS, Goal, Metric, display_name, explain_error, validate_model

Shape = tuple[int, ...]
Model = nn.Module | Callable[[Shape, int], nn.Module]
Sample = tuple[Tensor, Tensor]


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
    custom: Model | None = None,
    loss: str | Rows = "auto",
    metric: str | Metric = "auto",
    sample: Sample | None = None,
) -> Problem:
    """The problem that `name`, or a module or factory of one's own, poses on rows of `shape`.

    w_0 is a pure function of the seed, or what the module given holds. `sample` is prepared rows and their
    targets to try model, loss and metric on; `classes` is 0 where the targets are numbers.
    """
    x, y = sample or (torch.rand(ROWS, *shape, generator=torch.Generator().manual_seed(0)), torch.zeros(ROWS).long())
    if custom is None and name == "svm":
        if y.is_floating_point() or y.dim() > 1 or (loss, metric) != ("auto", "auto"):
            raise UserError("model=svm has its own loss and tells even labels from odd; take cnn, mlp or your own")
        if x.dtype == torch.int64:
            raise UserError("model=svm takes numbers, and x holds tokens; take a model with an Embedding")
        return SquaredSvm(math.prod(shape))
    outputs = classes or math.prod(y.shape[1:])
    build: Callable[[], nn.Module]
    said = f"model={name}"
    if custom is not None:
        said = f"the model ({display_name(custom)})"
        if not isinstance(custom, nn.Module) and not callable(custom):
            raise UserError(f"model is {type(custom).__name__}; it is a torch.nn.Module or a factory(shape, classes)")
        build = (lambda: deepcopy(custom).cpu()) if isinstance(custom, nn.Module) else partial(custom, shape, outputs)
    elif name == "cnn":
        if len(shape) != 3 or min(shape[1:]) < 4:
            raise UserError(f"model=cnn needs images [channels, height, width] of 4 x 4 or more, not {list(shape)}")
        build = partial(Cnn, shape, outputs, init)
    elif name == "mlp":
        build = partial(mlp, shape, outputs, hidden)
    elif ":" in name:
        build = partial(_import(name), shape, outputs)
    else:
        raise UserError(f"model={name} is not known; it is svm, cnn, mlp or package.module:factory")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            module = build()
        except Exception as error:
            wanted = f"rows of shape {list(shape)} and {outputs} {'classes' if classes else 'numbers'}"
            raise UserError(f"{said} cannot be built for {wanted}: {explain_error(error)}") from error
    if not isinstance(module, nn.Module):
        raise UserError(f"{said} returned {type(module).__name__}; a factory(shape, classes) gives a torch.nn.Module")
    if any(nn.parameter.is_lazy(p) for p in module.parameters()):
        raise UserError(f"{said} has lazy parameters; build it with the sizes that shape and classes give")
    return validate_model(module, said, Goal.of(loss, metric, classes), x, y, precision)


def _import(name: str) -> Callable[[Shape, int], nn.Module]:
    module_name, _, attribute = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))  # a user's file beside the command
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # a user's file may fail in any way
        raise UserError(f"model={name} cannot be imported: {explain_error(error)}") from error
    finally:
        sys.path.remove(str(Path.cwd()))
    if not callable(factory):
        raise UserError(f"model={name} is not callable; it must be a factory(shape, classes) -> torch.nn.Module")
    return factory  # type: ignore[no-any-return]
