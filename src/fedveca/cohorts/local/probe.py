"""The passes that compute F_i(w_k) and its gradient on the clients' probe rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedveca.cohorts.local.chunks import Chunk
from fedveca.cohorts.local.cuda_graphs import Lanes
from fedveca.cohorts.local.joint import Pass, PassValues, PassWalk
from fedveca.cohorts.local.rows import ClientRows, LazyClientRows
from fedveca.cohorts.local.stored_svm import StoredSvm
from fedveca.tasks.problem import Problem
from fedveca.tasks.svm import SquaredSvm

_MOST_TRIED = 4  # times the smallest number of passes
_PASS_COST = 200  # rows that take as long as what surrounds a pass
BlockValues = tuple[float, list[tuple[Tensor, Tensor | None]]]  # its share of the rows; F and grad F of each model


class ProbedModel(NamedTuple):
    """A model that a client evaluates."""

    problem: Problem
    w: Tensor  # [P]
    running: Tensor | None  # [S]


class ProbePasses:
    """Three ways through the model with the same result: on CUDA lanes, clients in one batch, one client alone."""

    def __init__(
        self,
        problem: Problem,
        rows: ClientRows | LazyClientRows,
        device: torch.device,
        block: int,
        most_rows: int,
        stored: StoredSvm | None = None,
    ) -> None:
        self.problem, self.rows, self.device, self.stored = problem, rows, device, stored
        self.block, self.most_rows = block, most_rows  # rows of one pass, of one client and of several

    def on_lanes(
        self, lanes: Lanes, w: Tensor, running: Tensor | None, chunk: Chunk, counts: list[int]
    ) -> tuple[Tensor, Tensor]:
        """Clients side by side on a CUDA device, in captured passes of equally many rows, padded with weight 0."""
        _, start, size, _ = chunk.table[:, :, None]
        count = torch.tensor(counts, device=self.device)[:, None]
        rows = choose_pass_rows(counts, min(self.block, self.most_rows // min(lanes.size, len(counts))))
        passes = [-(-each // rows) for each in counts]
        j = torch.arange(max(passes) * rows, device=self.device)
        index = start + torch.where(j < count, j * size // count, 0)
        weight = (j < count).float() / count
        before = () if running is None else (running,)
        n = len(counts)
        return lanes.probe(w, index.view(n, -1, rows), weight.view(n, -1, rows), passes, before)

    def together(
        self, w: Tensor, running: Tensor | None, chunk: Chunk, counts: list[int], want_gradient: bool = True
    ) -> PassWalk[PassValues]:
        """Many small clients in one batch, padded with rows of weight 0; or each where its rows lie, in C."""
        _, start, size, _ = chunk.table[:, :, None]
        count = torch.tensor(counts, device=self.device)[:, None]
        j = torch.arange(max(counts), device=self.device)
        index = start + torch.where(j < count, j * size // count, 0)
        if self.stored:
            ((kernel, at),) = self.stored.visit([index])
            F, g = kernel.evaluate(w[:, None], at, count, want_gradient)
            return F[:, 0], w if g is None else g[:, 0]
        x, y = self.rows.pick(index)
        weight = (j < count).float() / count
        found = yield Pass(self.problem, w, x, y, weight=weight, statistics=running, training=False)
        return found

    def alone(
        self, models: Sequence[ProbedModel], start: int, size: int, count: int, want_gradient: bool
    ) -> list[tuple[Tensor, Tensor]]:
        """F and grad F of each model on one client's rows, block by block; all its rows are read where they lie.

        Rows are prepared once for all models, and each model's numbers are what they are without the others.
        """
        found = [(torch.zeros_like(w[0]), torch.zeros_like(w) if want_gradient else w) for _, w, _ in models]
        in_pieces = self.device.type == "cpu" and count == size and not want_gradient
        find = self._find_by_pieces if in_pieces and _is_svm(models) else self._find_by_blocks
        find = self._find_in_c if self.stored else find
        for share, values in find(models, start, size, count, want_gradient):
            found = [
                (F + share * F_block, g if g_block is None else g + share * g_block)
                for (F, g), (F_block, g_block) in zip(found, values, strict=True)
            ]
        return found

    def _find_by_blocks(
        self, models: Sequence[ProbedModel], start: int, size: int, count: int, want_gradient: bool
    ) -> Iterator[BlockValues]:
        for x, y in self.rows.blocks(start, size, count, self.block):
            values: list[tuple[Tensor, Tensor | None]] = []
            for problem, w, running in models:
                if want_gradient:
                    now = None if running is None else running[None]
                    F, g = problem.gradients(w[None], x[None], y[None], statistics=now)
                    values.append((F[0], g[0]))
                else:
                    values.append((problem.losses(w, x, y, running)[0], None))
            yield len(y) / count, values

    def _find_in_c(
        self, models: Sequence[ProbedModel], start: int, size: int, count: int, want_gradient: bool
    ) -> Iterator[BlockValues]:
        assert self.stored
        w = torch.stack([w for _, w, _ in models])[None]
        for kernel, at in self.stored.visit(torch.split(start + torch.arange(count) * size // count, self.block)):
            F, g = kernel.evaluate(w, at[None], want_gradient=want_gradient)
            yield len(at) / count, list(zip(F[0], g[0] if g is not None else [None] * len(models), strict=True))

    def _find_by_pieces(
        self, models: Sequence[ProbedModel], start: int, size: int, count: int, want_gradient: bool
    ) -> Iterator[BlockValues]:
        """The same of the SVM: a block's scores are found piece by piece, while the rows are in the cache."""
        for at in range(start, start + size, self.block):
            y = self.rows.y[at : min(at + self.block, start + size)]
            scores = zip(
                *([x.flatten(1) @ w for _, w, _ in models] for x in self.rows.pieces(at, at + len(y))), strict=True
            )
            values: list[tuple[Tensor, Tensor | None]] = []
            for (problem, w, _), parts in zip(models, scores, strict=True):
                assert isinstance(problem, SquaredSvm)
                values.append((problem.close_loss(w, torch.cat(parts), y), None))
            yield len(y) / count, values


def _is_svm(models: Sequence[ProbedModel]) -> bool:
    return all(isinstance(model.problem, SquaredSvm) for model in models)


def choose_pass_rows(counts: Sequence[int], most: int) -> int:
    """Rows of a captured pass, at most so many: few passes, and few rows that only pad the last pass of a client.

    Examples:
        >>> choose_pass_rows([8334, 8333, 8333, 10000, 15000], 8192)  # 24 passes, 3 % of which is padding
        2143
        >>> choose_pass_rows([200, 200], 8192)
        200
    """
    largest = max(counts)
    fewest = -(-largest // max(1, most))
    choices = sorted({-(-largest // passes) for passes in range(fewest, _MOST_TRIED * fewest + 1)}, reverse=True)
    return min(choices, key=lambda rows: sum(-(-count // rows) * (rows + _PASS_COST) for count in counts))
