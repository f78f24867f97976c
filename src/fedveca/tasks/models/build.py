"""The problem that a named model, or a custom module or factory, poses on rows of a shape."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor, nn

from fedveca.errors import UserError, explain_error
from fedveca.tasks.augment import Augmentation
from fedveca.tasks.custom import import_object
from fedveca.tasks.datasets.dataset import Inputs
from fedveca.tasks.goal import Goal, Metrics, check_classes, display_name, make_metrics
from fedveca.tasks.losses import Rows
from fedveca.tasks.models.registry import MODELS, Shape, Task
from fedveca.tasks.problem import Problem
from fedveca.tasks.svm import SquaredSvm
from fedveca.tasks.validate import ROWS, validate_model

Model = nn.Module | Callable[[Shape, int], nn.Module]
Sample = tuple[Tensor, Tensor]


def model(
    name: str,
    shape: Shape,
    classes: int,
    *,
    init: str = "paper",
    hidden: int = 64,
    layers: int = 2,
    norm: str = "auto",
    dropout: float = 0.0,
    precision: str = "float32",
    seed: int = 0,
    custom: Model | None = None,
    loss: str | Rows = "auto",
    metric: Metrics = "auto",
    sample: Sample | None = None,
    norm_stats: str = "average",
    inputs: Inputs = (),
    compiled: bool = False,
    augment: str | Augmentation = "",
) -> Problem:
    """Makes the problem that a named model, or a custom module or factory, poses on rows of a shape.

    Args:
        name: One of MODELS, or package.module:factory.
        shape: Of one row.
        classes: Number of labels; 0 where the targets are numbers.
        init: "paper": as the model was published; "torch": PyTorch's.
        hidden: Hidden units of mlp, lstm and gpt; channels of the first stage of vgg11 and resnet18.
        layers: Of lstm and gpt.
        norm: Of vgg11 and resnet18: one of NORMS.
        dropout: Of vgg11, lstm and gpt.
        precision: Arithmetic of the layers: "float32" or "bfloat16".
        seed: w_0 is a pure function of it, unless a module is given, which brings its own.
        custom: A module or a factory(shape, classes) in place of `name`.
        loss: A name, or a function of (scores, y).
        metric: Names with commas between, a function of (scores, y), or a list of functions and names.
        sample: Prepared rows and their targets to try model, loss and metric on.
        norm_stats: What becomes of running statistics: "average", "local" or "fixed".
        inputs: How a row is split, where the model takes several inputs.
        compiled: Whether its operations are fused on a CUDA device.
        augment: What changes the rows of local steps at random: the setting's text, or a function of a batch.

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
        standard = loss == "auto" and isinstance(metric, str) and all(m.labels for m in make_metrics(metric, classes))
        tokens = x.dtype == torch.int64
        task = Task(shape, outputs, y, tokens, init, hidden, standard, layers, norm, dropout)
        build = partial(MODELS[name].build, task)
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
        if augment:
            raise UserError(f"augment does not go with {said}, whose gradient is in closed form; take model=logistic")
        metrics = make_metrics(metric, classes)
        check_classes(metrics, 2)
        return SquaredSvm(module.size, metrics)
    if not isinstance(module, nn.Module):
        raise UserError(f"{said} returned {type(module).__name__}; a factory(shape, classes) gives a torch.nn.Module")
    if any(nn.parameter.is_lazy(p) for p in module.parameters()):
        raise UserError(f"{said} has lazy parameters; build it with the sizes that shape and classes give")
    goal = Goal.of(loss, metric, classes)
    return validate_model(
        module,
        said,
        goal,
        x,
        y,
        precision,
        norm_stats=norm_stats,
        inputs=inputs,
        compiled=compiled,
        augment=augment,
    )
