"""Noise on the clients' training rows: features that differ from client to client, as in NIID-Bench."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from fedveca.errors import UserError
from fedveca.tasks.datasets.dataset import UNIT, Inputs
from fedveca.tasks.datasets.lazy import LazyRows
from fedveca.tasks.partition import Shares

_PURPOSE = 0x6E6F6973  # of the key from which noise is drawn
_BLOCK = 4096  # rows at a time


def add_noise(
    x: Tensor | LazyRows, shares: Shares, clients: int, sigma: float, seed: int, *, pixels: str, inputs: Inputs = ()
) -> Tensor | LazyRows:
    """The rows that clients own, in the order of `shares.rows`, with Gaussian noise on every number.

    The i-th of N clients, counted from 1, has noise of variance sigma i / N. A row's noise is drawn once, from the
    seed, the client and the row's place among the client's rows, so that it is the same wherever the client runs.

    Args:
        x: The training rows, [D, ...].
        shares: Which client owns which rows.
        clients: N, where `shares` does not have all of them.
        sigma: The variance of the last client's noise.
        seed: Of the draws.
        pixels: How the rows are prepared; noise on pixels is on the scale where they go from 0 to 1.
        inputs: How a row is split into several inputs.

    Returns:
        Rows in float32; lazily read ones get their noise when they are read.

    Raises:
        UserError: Where the rows are not fractions or pixels.
    """
    if x.dtype == torch.int64 or any(part.whole for part in inputs):
        raise UserError(f"feature_noise={sigma} is for numbers and pixels; these rows hold tokens, whole numbers")
    scale = 1 / UNIT if pixels == "unit" or (pixels == "standardised" and x.dtype == torch.uint8) else 1.0
    reader = NoisyReader(x[shares.rows], shares.start, scale * math.sqrt(sigma / clients), seed)
    if isinstance(reader.x, LazyRows):
        return LazyRows(reader, torch.float32, reader.x.said)
    return torch.cat([reader.read(index) for index in torch.split(torch.arange(len(shares.rows)), _BLOCK)])


class NoisyReader:
    """Rows in the clients' order, with their noise."""

    dtype = torch.float32

    def __init__(self, x: Tensor | LazyRows, start: Tensor, first: float, seed: int) -> None:
        """`first` is the standard deviation of the first client's noise."""
        self.x, self.start, self.first, self.seed = x, start, first, seed
        self.shape, self.fixed = tuple(x.shape), not isinstance(x, LazyRows) or x.reader.fixed

    def read(self, index: Tensor) -> Tensor:
        rows = (self.x.read(index) if isinstance(self.x, LazyRows) else self.x[index]).to(torch.float32, copy=True)
        client = torch.searchsorted(self.start, index, right=True) - 1
        noise = np.empty((len(index), math.prod(self.shape[1:])), np.float32)
        for out, i, place in zip(noise, client.tolist(), (index - self.start[client]).tolist(), strict=True):
            bits = np.random.Philox(key=np.array([self.seed, _PURPOSE]), counter=np.array([0, 0, place, i]))
            np.random.Generator(bits).standard_normal(dtype=np.float32, out=out)
        spread = (self.first * (client + 1).sqrt()).to(torch.float32)
        return rows.add_((torch.from_numpy(noise) * spread[:, None]).view(rows.shape))
