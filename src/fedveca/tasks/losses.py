"""What is minimised and what is reported of a model: functions of (scores, targets), one number per row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

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


def cross_entropy(scores: Tensor, y: Tensor) -> Tensor:
    """Of scores [B, C] and labels [B]; or of every place of a sequence, scores [B, T, C] and labels [B, T]."""
    if y.dim() == 1:
        return nn.functional.cross_entropy(scores, y, reduction="none")
    return nn.functional.cross_entropy(scores.flatten(0, -2), y.flatten(), reduction="none").view(y.shape)


def squared_error(scores: Tensor, y: Tensor) -> Tensor:
    return (scores.reshape(y.shape) - y) ** 2  # [B, 1] - [B] would broadcast to [B, B]


@metric(better="higher", unit="share")
def accuracy(scores: Tensor, y: Tensor) -> Tensor:
    return (scores.argmax(-1) == y).float()


@metric(better="lower")
def absolute_error(scores: Tensor, y: Tensor) -> Tensor:
    return (scores.reshape(y.shape) - y).abs()


LOSSES: dict[str, Rows] = {"cross_entropy": cross_entropy, "squared_error": squared_error}
METRICS: dict[str, Rows] = {"accuracy": accuracy, "absolute_error": absolute_error}


def per_row(values: Tensor) -> Tensor:
    """[B, ...] -> [B]."""
    return values if values.dim() == 1 else values.flatten(1).mean(1)
