"""What is minimised: functions of (scores, targets), one number per row."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from fedveca.errors import UserError, show_value

Rows = Callable[[Tensor, Tensor], Tensor]  # scores [B, ...], y [B, ...] -> [B, ...]
IGNORED = -100  # a label that does not count: the padding of a sequence


def cross_entropy(scores: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    """[B]: of scores [B, C] and labels [B]; or the mean over the places of a sequence, [B, T, C] and [B, T].

    Places whose label is -100 do not count.
    """
    if y.dim() == 1:
        return nn.functional.cross_entropy(scores, y, weight, reduction="none")
    places = nn.functional.cross_entropy(scores.flatten(0, -2), y.flatten(), weight, reduction="none").view(y.shape)
    return average_places(places, y)


def average_places(values: Tensor, y: Tensor) -> Tensor:
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


LOSSES: dict[str, Rows] = {"cross_entropy": cross_entropy, "squared_error": squared_error}


def per_row(values: Tensor) -> Tensor:
    """[B, ...] -> [B]."""
    return values if values.dim() == 1 else values.flatten(1).mean(1)
