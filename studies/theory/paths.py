"""Beta along the same local steps, with and without the noise of mini-batches."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedveca.algorithms import Order, Report
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.cohorts.local.probe import ProbedModel
from fedveca.cohorts.random import draw_rows


class Betas(NamedTuple):
    """A client's round: the largest quotient of each kind over lambda = 1 ... tau - 1."""

    recorded: float  # |grad F_i(w_k) - g_lambda| / |w_k - w_lambda|, as the method computes it
    full: float  # both gradients on all rows of the client
    paired: float  # both gradients on the rows of the mini-batch
    at: int  # lambda of the first


class PathCohort(LocalCohort):
    """Clients that take each of their paths a second time, to look at beta; `betas` has them by round and client."""

    def __init__(self, *parts: Any, lr: float, **options: Any) -> None:
        super().__init__(*parts, **options)
        self.lr = lr
        self.betas: list[list[Betas]] = []

    def __call__(self, k: int, order: Order, ids: Tensor, tau: Tensor) -> tuple[Tensor, Report]:
        answered, report = super().__call__(k, order, ids, tau)
        if int(tau.max()) > 1:
            self.betas.append([self._follow(k, order.w, int(i), int(t)) for i, t in zip(ids, tau, strict=True)])
        return answered, report

    def _follow(self, k: int, start: Tensor, client: int, tau: int) -> Betas:
        first, size = int(self.start[client]), int(self.sizes[client])
        rows = draw_rows(self.seed, k, torch.tensor([client]), torch.tensor([size]), tau, self.batch)[0] + first
        w, found = start, []
        g0 = self._find_gradient(start, first, size)  # grad F_i(w_k)
        for lam in range(tau):
            x, y = self.rows.pick(rows[lam][None])
            g = self.problem.gradients(w[None], x, y)[1][0]
            if lam:
                full = self._find_gradient(w, first, size)
                same = self.problem.gradients(start[None], x, y)[1][0]
                pairs = ((g0, g), (g0, full), (same, g))
                found.append([float((a - b).norm() / (start - w).norm()) for a, b in pairs])
            w = w - self.lr * g
        table = torch.tensor(found, dtype=torch.float64)  # [tau - 1, 3]
        most, at = table.max(0)
        recorded, all_rows, paired = most.tolist()
        return Betas(recorded, all_rows, paired, 1 + int(at[0]))

    def _find_gradient(self, w: Tensor, first: int, size: int) -> Tensor:
        """grad F_i(w) on all rows of a client."""
        return self.passes.alone([ProbedModel(self.problem, w, None)], first, size, size, True)[0][1]
