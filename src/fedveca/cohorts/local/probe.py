"""The passes that compute F_i(w_k) and its gradient on the clients' probe rows."""

from __future__ import annotations

import torch
from torch import Tensor

from fedveca.cohorts.local.chunks import Chunk
from fedveca.cohorts.local.cuda_graphs import Lanes
from fedveca.cohorts.local.rows import ClientRows, LazyClientRows
from fedveca.tasks.problem import Problem


class ProbePasses:
    """Three ways through the model with the same result: on CUDA lanes, clients in one batch, one client alone."""

    def __init__(
        self, problem: Problem, rows: ClientRows | LazyClientRows, device: torch.device, block: int, most_rows: int
    ) -> None:
        self.problem, self.rows, self.device = problem, rows, device
        self.block, self.most_rows = block, most_rows  # rows of one pass, of one client and of several

    def on_lanes(
        self, lanes: Lanes, w: Tensor, running: Tensor | None, chunk: Chunk, counts: list[int]
    ) -> tuple[Tensor, Tensor]:
        """Clients side by side on a CUDA device, in captured passes of equally many rows, padded with weight 0."""
        _, start, size, _ = chunk.table[:, :, None]
        count = torch.tensor(counts, device=self.device)[:, None]
        rows = max(1, min(self.block, self.most_rows // min(lanes.size, len(counts)), max(counts)))
        j = torch.arange(-(-max(counts) // rows) * rows, device=self.device)
        index = start + torch.where(j < count, j * size // count, 0)
        weight = (j < count).float() / count
        before = () if running is None else (running,)
        n = len(counts)
        return lanes.probe(w, index.view(n, -1, rows), weight.view(n, -1, rows), before)

    def together(self, w: Tensor, running: Tensor | None, chunk: Chunk, counts: list[int]) -> tuple[Tensor, Tensor]:
        """Many small clients in one batch, padded with rows of weight 0."""
        _, start, size, _ = chunk.table[:, :, None]
        count = torch.tensor(counts, device=self.device)[:, None]
        j = torch.arange(max(counts), device=self.device)
        x, y = self.rows.pick(start + torch.where(j < count, j * size // count, 0))
        return self.problem.gradients(w, x, y, (j < count).float() / count, running)

    def alone(
        self, w: Tensor, running: Tensor | None, start: int, size: int, count: int, want_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        """One client, block by block; all its rows are read where they lie."""
        F, g = torch.zeros_like(w[0]), torch.zeros_like(w) if want_gradient else w
        for x, y in self.rows.blocks(start, size, count, self.block):
            share = len(y) / count
            if want_gradient:
                now = None if running is None else running[None]
                F_block, g_block = self.problem.gradients(w[None], x[None], y[None], statistics=now)
                F, g = F + share * F_block[0], g + share * g_block[0]
            else:
                F = F + share * self.problem.losses(w, x, y, running)[0]
        return F, g
