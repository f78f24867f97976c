"""What is trained: the paper's two models, an MLP, and custom modules."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from copy import deepcopy
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from fedveca.errors import UserError, explain_error
from fedveca.tasks.custom import import_object
from fedveca.tasks.losses import Rows
from fedveca.tasks.problem import Problem, SquaredSvm
from fedveca.tasks.validate import ROWS, Goal, Metric, display_name, validate_model

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
        x = _pool(x, self.conv1)
        x = _pool(x, self.conv2)
        out: Tensor = self.fc2(torch.relu(self.fc1(x.flatten(1))))
        return out


def _pool(x: Tensor, conv: nn.Conv2d) -> Tensor:
    """maxpool(relu(conv(x) + b)) with bias and ReLU after the pooling: the same, on a quarter of the numbers."""
    assert conv.bias is not None
    x = nn.functional.conv2d(x, conv.weight, padding=2)
    if x.is_cuda and _import_kernels() and not (x.shape[2] % 2 or x.shape[3] % 2):
        return _import_kernels().pool(x, conv.bias)  # type: ignore[no-any-return]
    return torch.relu(nn.functional.max_pool2d(x, 2) + conv.bias[:, None, None])


@cache
def _import_kernels() -> Any:
    """The CUDA kernels, where Triton is installed (PyTorch's CUDA builds for Linux bring it)."""
    return importlib.import_module("fedveca.tasks.kernels") if importlib.util.find_spec("triton") else None


class Task(NamedTuple):
    """What a model is built for."""

    shape: Shape  # of a row
    outputs: int  # scores per row: classes, or numbers to predict
    y: Tensor  # a few targets
    tokens: bool  # whether rows are whole numbers for an Embedding
    init: str
    hidden: int
    standard: bool  # whether loss and metric are those that the targets want


class ModelEntry(NamedTuple):
    """A model that can be named."""

    build: Callable[[Task], nn.Module | SquaredSvm]
    text: str
    lr: float  # the learning rate of an experiment that names none


MODELS: dict[str, ModelEntry] = {}
Build = TypeVar("Build", bound=Callable[[Task], nn.Module | SquaredSvm])


def named_model(name: str, text: str, lr: float) -> Callable[[Build], Build]:
    """Registers the function below it as the model `name`."""

    def register(build: Build) -> Build:
        MODELS[name] = ModelEntry(build, text, lr)
        return build

    return register


@named_model("svm", "the paper's squared SVM: even labels against odd ones", lr=0.01)
def build_svm(task: Task) -> SquaredSvm:
    if task.y.is_floating_point() or task.y.dim() > 1 or not task.standard:
        raise UserError("model=svm has its own loss and tells even labels from odd; take cnn, mlp or a custom model")
    if task.tokens:
        raise UserError("model=svm takes numbers, and x holds tokens; take a model with an Embedding")
    return SquaredSvm(math.prod(task.shape))


@named_model("cnn", "the paper's CNN for images", lr=0.01)
def build_cnn(task: Task) -> nn.Module:
    if len(task.shape) != 3 or min(task.shape[1:]) < 4:
        raise UserError(f"model=cnn needs images [channels, height, width] of 4 x 4 or more, not {list(task.shape)}")
    return Cnn(task.shape, task.outputs, task.init)


@named_model("mlp", "one hidden layer on the flattened row", lr=0.05)
def build_mlp(task: Task) -> nn.Module:
    first = nn.Linear(math.prod(task.shape), task.hidden)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(task.hidden, task.outputs))


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
    """Makes the problem that a named model, or a custom module or factory, poses on rows of a shape.

    Args:
        name: One of MODELS, or package.module:factory.
        shape: Of one row.
        classes: Number of labels; 0 where the targets are numbers.
        init: Of cnn: "paper" or "torch".
        hidden: Hidden units of mlp.
        precision: Arithmetic of the layers: "float32" or "bfloat16".
        seed: w_0 is a pure function of it, unless a module is given, which brings its own.
        custom: A module or a factory(shape, classes) in place of `name`.
        loss: A name, or a function of (scores, y).
        metric: A name, or a function of (scores, y).
        sample: Prepared rows and their targets to try model, loss and metric on.

    Returns:
        The model and the loss as pure functions of one vector.

    Raises:
        UserError: Where model, loss, metric and rows do not fit.
    """
    x, y = sample or (torch.rand(ROWS, *shape, generator=torch.Generator().manual_seed(0)), torch.zeros(ROWS).long())
    outputs = classes or math.prod(y.shape[1:])
    said = f"model={name}"
    build: Callable[[], nn.Module | SquaredSvm]
    if custom is not None:
        said = f"the model ({display_name(custom)})"
        if not isinstance(custom, nn.Module) and not callable(custom):
            raise UserError(f"model is {type(custom).__name__}; it is a torch.nn.Module or a factory(shape, classes)")
        build = (lambda: deepcopy(custom).cpu()) if isinstance(custom, nn.Module) else partial(custom, shape, outputs)
    elif name in MODELS:
        standard = (loss, metric) == ("auto", "auto")
        build = partial(MODELS[name].build, Task(shape, outputs, y, x.dtype == torch.int64, init, hidden, standard))
    elif ":" in name:
        factory = import_object(name, "model")
        if not callable(factory):
            raise UserError(f"model={name} is not callable; it must be a factory(shape, classes) -> torch.nn.Module")
        build = partial(factory, shape, outputs)
    else:
        raise UserError(f"model={name} is not known; it is {', '.join(MODELS)} or package.module:factory")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            module = build()
        except UserError:
            raise
        except Exception as error:
            wanted = f"rows of shape {list(shape)} and {outputs} {'classes' if classes else 'numbers'}"
            raise UserError(f"{said} cannot be built for {wanted}: {explain_error(error)}") from error
    if isinstance(module, SquaredSvm) and custom is None and name in MODELS:
        return module
    if not isinstance(module, nn.Module):
        raise UserError(f"{said} returned {type(module).__name__}; a factory(shape, classes) gives a torch.nn.Module")
    if any(nn.parameter.is_lazy(p) for p in module.parameters()):
        raise UserError(f"{said} has lazy parameters; build it with the sizes that shape and classes give")
    return validate_model(module, said, Goal.of(loss, metric, classes), x, y, precision)
