"""Other probes: the rows of the round's first mini-batches, fresh rows in every round, a probe that is a step too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedveca.algorithms import FedVeca, Order, Report
from fedveca.algorithms.estimates import Walk
from fedveca.cohorts.local.chunks import Chunk
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.cohorts.random import draw_rows

FRESH = 10**6  # added to the seed: draws that are not those of the local steps


class DrawnProbe(LocalCohort):
    """Clients that probe other rows in every round: those of their first local steps, or rows drawn for the probe."""

    def __init__(self, *parts: Any, rows: Literal["first", "fresh"], **options: Any) -> None:
        super().__init__(*parts, **options)
        self.drawn_from = self.seed + (FRESH if rows == "fresh" else 0)
        self.round = 0

    def __call__(self, k: int, order: Order, ids: Tensor, tau: Tensor) -> tuple[Tensor, Report]:
        self.round = k
        return super().__call__(k, order, ids, tau)

    def _probe(
        self, w: Tensor, running: Tensor | None, chunk: Chunk, want_loss: bool, want_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        ids, start, size, _ = chunk.table
        steps = -(-self.probe // self.batch)
        index = draw_rows(self.drawn_from, self.round, ids, size, steps, self.batch).flatten(1)[:, : self.probe]
        losses, gradients = [], []
        for i, rows in enumerate(index + start[:, None]):
            x, y = self.rows.pick(rows[None])
            now = None if running is None else running[i : i + 1]
            F, g = self.problem.gradients(w[i : i + 1], x, y, statistics=now)
            losses.append(F)
            gradients.append(g)
        return torch.cat(losses), torch.cat(gradients)


@dataclass(frozen=True)
class ProbeFirst(FedVeca):
    """FedVeca whose first local step is along the probe's gradient, in place of a mini-batch's."""

    def step(self, order: Order, s: Walk, w: Tensor, g: Tensor) -> tuple[Tensor, Walk]:
        return super().step(order, s, w, torch.where(s.lam == 0, s.g0, g))
