"""What is minimised and what is reported of a model: functions of (scores, targets), one number per row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from fedveca.errors import UserError, show_value

Rows = Callable[[Tensor, Tensor], Tensor]  # scores [B, ...], y [B, ...] -> [B, ...]
Function = TypeVar("Function", bound=Callable[..., object])
Better = Literal["higher", "lower"]
BETTER: tuple[Better, ...] = ("higher", "lower")


def metric(better: Better, unit: str = "") -> Callable[[Function], Function]:
    """Declares which values of a metric are better, so that reports can mark the best method.

    Args:
        better: "higher" or "lower".
        unit: What it is measured in, such as "share"; empty where it has no unit.

    Returns:
        A decorator that sets the attributes `better` and `unit` of the function and returns it.

    Raises:
        UserError: Where `better` is neither.

    Examples:
        >>> import fedveca
        >>> @fedveca.metric(better="higher")
        ... def within_half(scores, y):
        ...     return ((scores.squeeze(-1) - y).abs() < 0.5).float()
        >>> within_half.better
        'higher'
    """
    check_direction(better, "metric")

    def declare(function: Function) -> Function:
        vars(function).update(better=better, unit=unit)
        return function

    return declare


def read_direction(function: object, said: str) -> Better | None:
    """Which values of a metric are better; None where it does not say, so that no method is marked best."""
    found = getattr(function, "better", None)
    return None if found is None else check_direction(found, said)


def check_direction(better: object, said: str) -> Better:
    """The direction; UserError where it is neither of the two."""
    for known in BETTER:
        if better == known:
            return known
    raise UserError(f"{said}: better={show_value(better)} is not known; allowed: {' | '.join(BETTER)}")


IGNORED = -100  # a label that does not count: the padding of a sequence


def cross_entropy(scores: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    """[B]: of scores [B, C] and labels [B]; or the mean over the places of a sequence, [B, T, C] and [B, T].

    Places whose label is -100 do not count.
    """
    if y.dim() == 1:
        return nn.functional.cross_entropy(scores, y, weight, reduction="none")
    places = nn.functional.cross_entropy(scores.flatten(0, -2), y.flatten(), weight, reduction="none").view(y.shape)
    return _mean_of_places(places, y)


def _mean_of_places(values: Tensor, y: Tensor) -> Tensor:
    """[B, ...] -> [B]: the mean over the places of a row that count."""
    count = (y != IGNORED).flatten(1).sum(1).clamp(min=1)
    return values.flatten(1).sum(1) / count


class WeightedCrossEntropy:
    """Cross-entropy in which each class counts by its weight, to be given as `loss=`.

    Args:
        weights: One number per class, such as 1 / (share of the rows that it has).

    Raises:
        UserError: Where a weight is negative or not a number.
    """

    __name__ = "weighted_cross_entropy"

    def __init__(self, weights: Iterable[float]) -> None:
        given = list(weights)
        try:
            self.weights = torch.tensor([float(weight) for weight in given])
        except (TypeError, ValueError):
            self.weights = torch.empty(0)
        if not bool((self.weights.isfinite() & (self.weights >= 0)).all()) or not len(self.weights):
            raise UserError(f"weights={show_value(given)} are not numbers of 0 or more, one per class")

    def __call__(self, scores: Tensor, y: Tensor) -> Tensor:
        if self.weights.device != scores.device:
            self.weights = self.weights.to(scores.device)
        return cross_entropy(scores, y, self.weights)


def squared_error(scores: Tensor, y: Tensor) -> Tensor:
    return (scores.reshape(y.shape) - y) ** 2  # [B, 1] - [B] would broadcast to [B, B]


@metric(better="higher", unit="share")
def accuracy(scores: Tensor, y: Tensor) -> Tensor:
    """[B]; of a sequence, the share of its places. Places whose label is -100 do not count."""
    right = (scores.argmax(-1) == y).float()
    return right if y.dim() == 1 else _mean_of_places(right, y)


@metric(better="lower")
def absolute_error(scores: Tensor, y: Tensor) -> Tensor:
    return (scores.reshape(y.shape) - y).abs()


LOSSES: dict[str, Rows] = {"cross_entropy": cross_entropy, "squared_error": squared_error}
METRICS: dict[str, Rows] = {"accuracy": accuracy, "absolute_error": absolute_error}


def per_row(values: Tensor) -> Tensor:
    """[B, ...] -> [B]."""
    return values if values.dim() == 1 else values.flatten(1).mean(1)
