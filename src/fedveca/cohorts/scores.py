"""How good a client's model is on the rows that the client holds back."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fedveca.cohorts.contract import ClientScores
from fedveca.cohorts.holdout import Holdout
from fedveca.cohorts.local.rows import make_client_rows
from fedveca.tasks.datasets.lazy import LazyRows
from fedveca.tasks.metrics import evaluate_rows
from fedveca.tasks.partition import Shares
from fedveca.tasks.problem import Problem

LOSS = "loss"  # the first of the values; the metrics follow under their names


class HeldRows:
    """One part of the rows that clients hold back, side by side on a device."""

    def __init__(
        self, x: Tensor | LazyRows, y: Tensor, shares: Shares, pixels: str, device: torch.device, block: int
    ) -> None:
        self.ids = torch.nonzero(shares.sizes).flatten()  # the clients that have any
        self.sizes, self.start, self.block = shares.sizes, shares.start, block
        self.rows = make_client_rows(x, y, shares.rows, pixels, device) if len(shares.rows) else None

    def trained_by(self, clients: int) -> Tensor:
        """[n] whose model each client of the part evaluates: its own, or that of the one client that has all rows."""
        return self.ids.clamp(max=clients - 1)

    def evaluate(self, problem: Problem, client: int, w: Tensor, statistics: Tensor | None) -> Tensor:
        """[1 + metrics] float64: the loss and the metrics of a model w [P] on the client's rows."""
        assert self.rows is not None  # a client without rows is not asked
        start, size = int(self.start[client]), int(self.sizes[client])
        model = w if statistics is None else torch.cat([w, statistics])
        found = evaluate_rows(problem, model, self.rows.blocks(start, size, size, self.block))
        return torch.tensor([found[name] for name in list_scores(problem)], dtype=torch.float64)

    def collect(self, problem: Problem, values: Iterable[Tensor]) -> ClientScores:
        """The scores of all clients of the part, from what `evaluate` gave for each."""
        names = list_scores(problem)
        table = torch.stack(list(values)) if len(self.ids) else torch.empty(0, len(names), dtype=torch.float64)
        return ClientScores(self.ids, self.sizes[self.ids], dict(zip(names, table.unbind(1), strict=True)))


def list_scores(problem: Problem) -> list[str]:
    """What a client reports of a model, by name: the loss, and the metrics that are numbers."""
    return [LOSS, *(metric.name for metric in problem.metrics if not metric.table)]


def hold_rows(
    x: Tensor | LazyRows, y: Tensor, held: Holdout | None, pixels: str, device: torch.device, block: int
) -> dict[str, HeldRows]:
    """The parts that are evaluated, by name; none where clients hold nothing back."""
    parts = {"val": held.val, "test": held.test} if held else {}
    return {name: HeldRows(x, y, shares, pixels, device, block) for name, shares in parts.items()}
