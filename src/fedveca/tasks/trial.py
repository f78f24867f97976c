"""A module, a loss and a metric tried on a few rows before they are trusted: what does not fit is named here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedveca.tasks.losses import LOSSES, METRICS, Rows, accuracy, cross_entropy, per_row
from fedveca.tasks.problem import FEW, Network

Metric = Callable[[Tensor, Tensor], Any]  # one number a row, or one of all rows


class Goal(NamedTuple):
    """What is minimised and what is told."""

    loss: Rows
    metric: Metric
    measure: str  # the metric's name: test_<measure> in the record
    classes: int

    @staticmethod
    def of(loss: str | Rows, metric: str | Metric, classes: int) -> Goal:
        """Names or functions; auto is what labels (classes > 0) or numbers want."""
        if loss == "auto":
            loss = "cross_entropy" if classes else "squared_error"
        if metric == "auto":
            metric = "accuracy" if classes else "absolute_error"
        for what, given in (("loss", loss), ("metric", metric)):
            if not isinstance(given, str) and not callable(given):
                raise ValueError(f"{what} is {type(given).__name__}; it is a function of (scores, y)")
        name = metric if isinstance(metric, str) else called(metric)
        if not name.isidentifier() or name == "loss":
            raise ValueError(f"metric is called {name!r}; its name stands in the record: give a function made by def")
        return Goal(
            LOSSES[loss] if isinstance(loss, str) else loss, METRICS[metric] if isinstance(metric, str) else metric,
            name, classes,
        )


def tried(module: nn.Module, said: str, goal: Goal, x: Tensor, y: Tensor, precision: str) -> Network:
    """The module with its goal as a problem; ValueError with one sentence where they do not fit rows x and y."""
    network = Network(module, said, goal.loss, goal.metric, precision, goal.measure)
    two, targets = x[:2], y[:2]
    try:
        scores, again = (network.scores(network.init(), two) for _ in range(2))
    except Exception as error:
        hint = ""
        if two.is_floating_point() and any(isinstance(part, nn.Embedding) for part in module.modules()):
            hint = " (an Embedding wants whole numbers: from_arrays(..., tokens=True))"
        raise ValueError(f"{said} does not fit rows of shape {list(two.shape[1:])}: {why(error)}{hint}") from error
    want = [*targets.shape, goal.classes]
    if list(scores.shape) != want:
        got = f"{said} gives scores {list(scores.shape)} for {len(two)} rows"
        if goal.loss is cross_entropy:
            raise ValueError(f"{got}; {goal.classes} classes need {want}")
        if goal.metric is accuracy:
            raise ValueError(f"{got}, and metric=accuracy needs {want}; give a metric of your own")
    if not torch.equal(scores, again):
        raise ValueError(f"{said} gives other scores each time: chance within it is not the seed's; leave it out")
    _loss(goal, scores, targets)
    network.whole = _whole(network, goal, x, y)
    network.mapped = network.mapped and _can_be_mapped(network, two, targets)
    return network


def _loss(goal: Goal, scores: Tensor, y: Tensor) -> None:
    said = f"loss ({called(goal.loss)})"
    try:
        rows, alone = goal.loss(scores, y), goal.loss(scores[:1], y[:1])
    except Exception as error:
        labels = "; labels are whole numbers, y.astype(int)" if y.is_floating_point() else ""
        raise ValueError(
            f"{said} cannot take scores {list(scores.shape)} and targets {list(y.shape)}: {why(error)}{labels}"
        ) from error
    if not isinstance(rows, Tensor) or rows.dim() == 0 or len(rows) != len(y):
        got = list(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
        raise ValueError(f'{said} gives {got} for {len(y)} rows; it must give one number a row (reduction="none")')
    if alone.shape[1:] != rows.shape[1:] or not torch.allclose(per_row(alone), per_row(rows)[:1]):
        raise ValueError(
            f"{said} mixes rows: that of the first row changes with the others; "
            f"scores {list(scores.shape)} and targets {list(y.shape)} may need the same shape"
        )


def _whole(network: Network, goal: Goal, x: Tensor, y: Tensor) -> bool:
    """Whether the metric gives one number for all rows, which then go to it at once."""
    if goal.metric in METRICS.values():
        return False
    said = f"metric ({goal.measure})"
    try:
        with torch.no_grad():
            value = torch.as_tensor(goal.metric(network.scores(network.init(), x), y))
    except Exception as error:
        raise ValueError(f"{said} fails on the {len(y)} test rows: {why(error)}") from error
    if value.numel() != 1 and (value.dim() == 0 or len(value) != len(y)):
        raise ValueError(f"{said} gives {list(value.shape)} for {len(y)} rows; it gives one number, or one a row")
    return value.dim() == 0


def _can_be_mapped(network: Network, rows: Tensor, y: Tensor) -> bool:
    """Whether many clients go through the module at once; one that branches on values takes them one by one."""
    n = FEW + 1
    try:
        network.gradients(network.init().repeat(n, 1), rows.expand(n, *rows.shape), y.expand(n, *y.shape))
    except Exception:
        return False
    return True


def called(thing: Any) -> str:
    """What to call an object of the user's: a function's own name, else that of its class."""
    return str(getattr(thing, "__name__", type(thing).__name__))


def why(error: Exception) -> str:
    """One line of it, never none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
