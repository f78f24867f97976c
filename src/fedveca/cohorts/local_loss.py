"""A method's own loss at the clients: what it sees of them, put together the same way by every engine."""

from __future__ import annotations

import torch
from torch import Tensor

from fedveca.algorithms.contract import Algorithm, LocalLoss, Order
from fedveca.errors import UserError
from fedveca.tasks.problem import Problem


def check_loss(algorithm: Algorithm, problem: Problem, y: Tensor, said: str = "the method") -> None:
    """UserError where a method's loss does not go with the problem or the targets."""
    if algorithm.has_loss and not problem.autograd:
        raise UserError(f"{said} has a loss of its own, which model=svm does not take; take another model")
    if algorithm.needs_labels and y.is_floating_point():
        raise UserError(f"{said} counts labels, but the targets are numbers; take data with labels")


def make_local_loss(algorithm: Algorithm, order: Order, s: object, counts: Tensor) -> LocalLoss | None:
    """The method's loss for the clients of counts [n, C] with the carry s; None where the problem's is minimised."""
    if not algorithm.has_loss:
        return None
    models = {name: v.expand(len(counts), -1) for name, v in algorithm.models(order, s).items()}
    return LocalLoss(algorithm.loss, counts, models)


class LabelCounts:
    """How many rows of each label clients have."""

    def __init__(self, algorithm: Algorithm, y: Tensor, start: Tensor) -> None:
        self.y, self.start = y, start  # clients' rows side by side, and the first one of each
        self.labels = max(0, int(y.max()) + 1) if algorithm.needs_labels and len(y) else 0

    def __call__(self, ids: Tensor) -> Tensor:
        """[n, C] float32 of these clients; [n, 0] where the method does not need them."""
        if not self.labels:
            return torch.zeros(len(ids), 0, device=self.y.device)
        mine = (self.y[self.start[i] : self.start[i + 1]].flatten() for i in ids.tolist())
        return torch.stack([torch.bincount(y[y >= 0], minlength=self.labels) for y in mine]).float()
