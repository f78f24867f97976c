"""Vectors as whole numbers modulo 2^64: sums of them are exact, so they do not depend on any order or any mask.

A client of weight D_i sends q_i = round(D_i v_i 2^F) in each coordinate. F is chosen so that the weight W of all
clients is about 2^40 units: W 2^F is in (2^39, 2^40]. With norms up to 2^22 (LARGEST_NORM) the sum stays below 2^62, so
that it can be read as a signed number. Each q_i is off by at most half a unit, so the mean over n clients that have the
share m of W is off by at most (n / 2) / (m W 2^F) < n 2^-40 / m.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedveca.algorithms.contract import Named
from fedveca.cohorts.aggregate import Piece

UNIT_BITS = 40
LARGEST_NORM = 2.0**22  # of a client's vector: one that is longer does not count, like one that is not finite
_BLOCK = 2**22  # numbers that are converted at a time


def choose_fraction(total: int) -> int:
    """F: the bits behind the point, where the clients' weights add up to `total`.

    >>> choose_fraction(1), choose_fraction(2), choose_fraction(3), choose_fraction(60000)
    (40, 39, 38, 24)
    """
    return UNIT_BITS - (total - 1).bit_length()


def bound_error(clients: int, share: float) -> float:
    """The most by which a coordinate of the mean over so many clients, with this share of the weight, is off."""
    return clients * 2.0**-UNIT_BITS / share


def quantise(weight: Tensor, v: Tensor, fraction: int) -> Tensor:
    """[n], [n, P] -> [P] int64: sum_i round(D_i v_i 2^F), exact in float64 where D_i is below 2^29."""
    total = torch.zeros(v.shape[-1], dtype=torch.int64, device=v.device)
    scale = torch.ldexp(weight.double(), torch.tensor(fraction, device=weight.device))[:, None]
    rows = max(1, _BLOCK // max(1, v.shape[-1]))
    for some, of in zip(torch.split(v, rows), torch.split(scale, rows), strict=True):
        total += torch.round(some.double() * of).to(torch.int64).sum(0)
    return total


def decode(total: Tensor, fraction: int, mass: float) -> Tensor:
    """[P] int64 -> [P] float64: the mean, where the clients' weights add up to `mass`."""
    return torch.ldexp(total.double(), torch.tensor(-fraction, device=total.device)) / mass


class FixedPointSum:
    """sum_i round(D_i v_i 2^F) of one round, as int64; `decode` makes it the mean."""

    largest = LARGEST_NORM

    def __init__(self, fraction: int) -> None:
        self.fraction = fraction
        self.total: Named = {}

    def reduce(self, weight: Tensor, vectors: Named) -> Piece:
        return Piece(weight, {name: quantise(weight, v, self.fraction) for name, v in vectors.items()})

    def add(self, piece: Piece) -> None:
        for name, v in piece.vectors.items():
            self.total[name] = self.total[name] + v if name in self.total else v

    def close(self, mass: float) -> Named:
        return self.total

    def limit_numbers(self, each: Named) -> Named:
        return each
