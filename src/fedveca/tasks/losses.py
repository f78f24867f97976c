"""What is minimised and what is told of a model: functions of (scores, targets) that give one number a row."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

Rows = Callable[[Tensor, Tensor], Tensor]  # scores [B, ...], y [B, ...] -> [B, ...]


def cross_entropy(scores: Tensor, y: Tensor) -> Tensor:
    """Of scores [B, C] and labels [B]; or of every place of a sequence, scores [B, T, C] and labels [B, T]."""
    if y.dim() == 1:
        return nn.functional.cross_entropy(scores, y, reduction="none")
    return nn.functional.cross_entropy(scores.flatten(0, -2), y.flatten(), reduction="none").view(y.shape)


def squared_error(scores: Tensor, y: Tensor) -> Tensor:
    return (scores.reshape(y.shape) - y) ** 2  # [B, 1] - [B] would broadcast to [B, B]


def accuracy(scores: Tensor, y: Tensor) -> Tensor:
    return (scores.argmax(-1) == y).float()


def absolute_error(scores: Tensor, y: Tensor) -> Tensor:
    return (scores.reshape(y.shape) - y).abs()


LOSSES: dict[str, Rows] = {"cross_entropy": cross_entropy, "squared_error": squared_error}
METRICS: dict[str, Rows] = {"accuracy": accuracy, "absolute_error": absolute_error}


def per_row(values: Tensor) -> Tensor:
    """[B, ...] -> [B]."""
    return values if values.dim() == 1 else values.flatten(1).mean(1)
