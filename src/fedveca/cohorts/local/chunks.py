"""Clients that step together: who they are, the rows that they draw, and what they contribute to a round."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fedveca.algorithms.contract import Named
from fedveca.cohorts.aggregate import Piece
from fedveca.cohorts.random import RowSampling

_ROWS_PER_DRAW = 2**22  # row numbers drawn at a time: a client's steps may be too many to draw at once


class Chunk(NamedTuple):
    """Clients that step together, in falling order of tau."""

    ids: Tensor  # [n] on the host
    tau: Tensor  # [n] on the host
    table: Tensor  # [4, n] on the device: id, first row, rows, tau

    @staticmethod
    def make(ids: Tensor, tau: Tensor, start: Tensor, device: torch.device) -> Chunk:
        table = torch.stack([ids, start[ids], start[ids + 1] - start[ids], tau])
        if device.type == "cuda":  # the host need not wait for what the device is computing
            table = table.pin_memory()
        return Chunk(ids, tau, table.to(device, non_blocking=True))

    def split(self, width: int) -> list[Chunk]:
        """Chunks of at most `width` clients."""
        pieces = (slice(at, at + width) for at in range(0, len(self.ids), width))
        return [Chunk(self.ids[piece], self.tau[piece], self.table[:, piece]) for piece in pieces]


class RowDraws:
    """The rows that a chunk's clients step on, drawn at once where they are few, else a block of steps at a time."""

    def __init__(self, sample: RowSampling, seed: int, k: int, chunk: Chunk, batch: int) -> None:
        self.sample, self.seed, self.k, self.chunk, self.batch = sample, seed, k, chunk, batch
        self.steps, most = max(1, _ROWS_PER_DRAW // (len(chunk.ids) * batch)), int(chunk.tau[0])
        self.all = self._draw(len(chunk.ids), 0, most) if most <= self.steps else None

    def __call__(self, n: int, at: int, until: int) -> Iterator[Tensor]:
        """[n, steps, B] of the first n clients, blocks of the steps from `at` to `until`."""
        if self.all is not None:
            yield self.all[:n, at:until]
            return
        for first in range(at, until, self.steps):
            yield self._draw(n, first, min(self.steps, until - first))

    def _draw(self, n: int, first: int, steps: int) -> Tensor:
        ids, start, size, _ = self.chunk.table[:, :n]
        index = self.sample(self.seed, self.k, ids, size, steps, self.batch, first)
        return index.add_(start[:, None, None])


class ChunkResult(NamedTuple):
    """What a chunk contributes to the round."""

    piece: Piece | None  # of the clients' vectors
    each: Named  # [n] each
    finite: Tensor  # [n] bool: whether all that a client sent is finite, so that it counts
    norms: Tensor  # [vectors, n]
    memory: Named  # [n, P] each


def find_norms(v: Tensor) -> Tensor:
    """[n]: how long vectors [n, P] are."""
    norms: Tensor = torch.linalg.vector_norm(v, dim=-1)
    return norms


def find_finite(numbers: Tensor, norms: Tensor, largest: float) -> tuple[Tensor, bool]:
    """[n] of bool: whose numbers [m, n] are finite and whose norms are not too large; and whether that is all clients.

    A sum of numbers is finite only if each of them is, which is quicker to ask. A CUDA device, which would have to
    wait, is not asked: then it counts as not all.
    """
    host = numbers.device.type == "cpu"
    if host and largest == math.inf and math.isfinite(float(numbers.sum())):
        return torch.ones(numbers.shape[1], dtype=torch.bool), True
    finite = torch.isfinite(numbers).all(0) & (norms <= largest).all(0)
    return finite, host and bool(finite.all())
