"""How the clients' vectors become one: the rules of the setting `aggregate`.

- mean: sum_i p_i v_i, the weighted mean. It is what the methods define. One bad client can move it anywhere.
- clip: the weighted mean of vectors that are shortened to at most one norm, `aggregate_clip` or the median of the
  round's norms. A bad client moves it by one typical vector at the most.
- trimmed: in each coordinate, the weighted mean of the values that remain when `aggregate_trim` of the weight is
  removed at each end.
- median: in each coordinate, the weighted median.

With every rule but the mean, the losses that clients report are winsorised, because a client can also lie about them.

An aggregator lives for one round. `reduce` takes some clients side by side and may run in any thread; `add` takes what
`reduce` returned, in a fixed order; `close` returns the aggregated vectors. A server that hears its clients one by one
calls `add(reduce(weight[None], {name: v[None], ...}))` for each. The mean holds one sum per vector and clip a few,
O(P) however many clients there are; trimmed and median need all vectors of the round side by side, O(n P).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedveca.algorithms.contract import Named

AGGREGATION_RULES = ("mean", "clip", "trimmed", "median")
LOSS_NUMBERS = ("loss", "after")  # the numbers that are losses: at w_k, and after the client's steps
_COLUMNS = 2**16  # coordinates that are sorted at a time
_STEPS = 2  # of a norm's grid, per factor of two
_LOWEST, _HIGHEST = -150 * _STEPS, 150 * _STEPS  # norms beyond are counted with the outermost


class Piece(NamedTuple):
    """What some clients contribute to the round."""

    weight: Tensor  # [n] D_i; 0 for a client whose numbers are not finite
    vectors: Named  # [P] sums, or [n, P] side by side
    norms: Named = {}  # noqa: RUF012  [n] each, and
    levels: dict[str, dict[int, Tensor]] = {}  # noqa: RUF012  [2, P] sums by level of norm: aggregate=clip


class Aggregator(Protocol):
    """One round of a rule."""

    largest: float  # norm of a vector that it can take: a client with a longer one does not count

    def reduce(self, weight: Tensor, vectors: Named) -> Piece:
        """Some clients of weights [n] and vectors [n, P] each."""
        ...

    def add(self, piece: Piece) -> None: ...

    def close(self, mass: float) -> Named:
        """[P] each: the aggregated vectors; mass is the sum of the weights."""
        ...

    def limit_numbers(self, each: Named) -> Named:
        """[n] each: the reported numbers, with the losses limited so that no client spoils their mean.

        A method that uses numbers one by one has its own defence (FedVeca's `distrust`).
        """
        ...


AggregationRule = Callable[[], Aggregator]


def aggregation_rule(rule: str, clip: float = 0.0, trim: float = 0.2) -> AggregationRule:
    """Finds a rule by its name.

    Args:
        rule: One of AGGREGATION_RULES.
        clip: For `clip`, the largest norm of a vector; 0 takes the median of the round's norms.
        trim: The share of the weight that is distrusted at each end.

    Returns:
        What makes the aggregator of one round.
    """
    if rule == "mean":
        return Mean
    if rule == "clip":
        return partial(ClippedMean, clip, trim)
    return partial(TrimmedMean, trim if rule == "trimmed" else 0.5, trim)


class Mean:
    """sum_i p_i v_i, and every number as it was reported."""

    largest = math.inf

    def __init__(self) -> None:
        self.total: Named = {}

    def reduce(self, weight: Tensor, vectors: Named) -> Piece:
        return Piece(weight, {name: weight @ v for name, v in vectors.items()})

    def add(self, piece: Piece) -> None:
        for name, v in piece.vectors.items():
            self.total[name] = self.total[name] + v if name in self.total else v

    def close(self, mass: float) -> Named:
        return {name: v / mass for name, v in self.total.items()} if mass else {}

    def limit_numbers(self, each: Named) -> Named:
        return each


class ClippedMean:
    """The mean of vectors shortened to one norm: a fixed one, or the median of the round's norms, rounded up to a grid.

    The median is known only when all clients have answered. Until then vectors of similar norm (within a factor of
    sqrt(2)) are summed together, as they are and at unit norm. In the end each sum below the bound counts as it is,
    and each one above it as its unit vectors times the bound.
    """

    largest = math.inf

    def __init__(self, norm: float, trim: float) -> None:
        self.norm, self.trim = norm, trim
        self.fixed = Mean()
        self.norms: dict[str, list[Tensor]] = {}
        self.levels: dict[str, dict[int, Tensor]] = {}

    def reduce(self, weight: Tensor, vectors: Named) -> Piece:
        norms = {name: v.norm(dim=-1) for name, v in vectors.items()}
        if self.norm:
            factor = {name: torch.where(n > self.norm, self.norm / n, 1.0) for name, n in norms.items()}
            return Piece(weight, {name: (weight * factor[name]) @ v for name, v in vectors.items()})
        levels = {name: _sum_by_level(weight, v, norms[name]) for name, v in vectors.items()}
        return Piece(weight, {}, {name: n[weight > 0] for name, n in norms.items()}, levels)

    def add(self, piece: Piece) -> None:
        self.fixed.add(piece)
        for name, n in piece.norms.items():
            self.norms.setdefault(name, []).append(n)
        for name, levels in piece.levels.items():
            mine = self.levels.setdefault(name, {})
            for level, sums in levels.items():
                mine[level] = mine[level] + sums if level in mine else sums

    def close(self, mass: float) -> Named:
        if self.norm or not mass:
            return self.fixed.close(mass)
        return {name: self._sum_levels(name, levels) / mass for name, levels in self.levels.items()}

    def _sum_levels(self, name: str, levels: dict[int, Tensor]) -> Tensor:
        at = int(_find_level(torch.cat(self.norms[name]).quantile(0.5)))
        bound = 2.0 ** ((at + 1) / _STEPS)  # the upper end of the median's level
        return sum((levels[n][0] if n <= at else bound * levels[n][1] for n in sorted(levels)), torch.zeros(()))

    def limit_numbers(self, each: Named) -> Named:
        return _limit_losses(each, self.trim)


class TrimmedMean:
    """In each coordinate, the weighted mean of the middle values: `cut` of the weight is removed at each end."""

    largest = math.inf

    def __init__(self, cut: float, trim: float) -> None:
        self.cut, self.trim = cut, trim
        self.pieces: list[Piece] = []

    def reduce(self, weight: Tensor, vectors: Named) -> Piece:
        return Piece(weight, vectors)

    def add(self, piece: Piece) -> None:
        self.pieces.append(piece)

    def close(self, mass: float) -> Named:
        if not mass:
            return {}
        weight = torch.cat([piece.weight for piece in self.pieces])
        names = self.pieces[0].vectors
        return {n: trimmed_mean(torch.cat([p.vectors[n] for p in self.pieces]), weight, self.cut) for n in names}

    def limit_numbers(self, each: Named) -> Named:
        return _limit_losses(each, self.trim)


def trimmed_mean(v: Tensor, weight: Tensor, cut: float) -> Tensor:
    """[n, P], [n] -> [P]: the mean of each column after `cut` of the weight is removed at both ends.

    A cut of 1/2 is the weighted median; between two values that halve the weight exactly, their mean.

    >>> v = torch.tensor([[1.0], [2.0], [3.0], [100.0]])
    >>> trimmed_mean(v, torch.ones(4), 0.25).item(), trimmed_mean(v, torch.ones(4), 0.5).item()
    (2.5, 2.5)
    >>> trimmed_mean(v, torch.tensor([1.0, 1.0, 1.0, 9.0]), 0.5).item()
    100.0
    """
    v, weight = v[weight > 0], weight[weight > 0].double()
    share = weight / weight.sum()
    cut = min(cut, 0.5 - 1e-6)  # what remains of the middle is the median
    out = []
    for block in torch.split(v, _COLUMNS, dim=1):
        ordered, at = block.sort(dim=0)
        mine = share[at]
        upto = mine.cumsum(0)  # [n, columns] weight up to and with this value
        left = (upto.clamp(max=1 - cut) - (upto - mine).clamp(min=cut)).clamp_(min=0)
        out.append(((left * ordered).sum(0) / left.sum(0)).to(v.dtype))
    return torch.cat(out)


def _limit_losses(each: Named, trim: float) -> Named:
    return {name: winsorise(v, trim) if name in LOSS_NUMBERS else v for name, v in each.items()}


def winsorise(v: Tensor, trim: float) -> Tensor:
    """[n]: the share `trim` of smallest and of largest values is set to the next value inwards."""
    if len(v) == 0:
        return v
    h = min(int(trim * len(v) + 1e-9), (len(v) - 1) // 2)
    ordered = v.sort().values
    return v.clamp(ordered[h], ordered[-1 - h])


def _find_level(norms: Tensor) -> Tensor:
    """The step of the grid that a norm is on: 2^(level / _STEPS) <= norm < 2^((level + 1) / _STEPS)."""
    return torch.floor(_STEPS * torch.log2(norms.double())).clamp(_LOWEST, _HIGHEST).to(torch.int64)


def _sum_by_level(weight: Tensor, v: Tensor, norms: Tensor) -> dict[int, Tensor]:
    """[2, P] for each level that occurs: the weighted sum of its vectors, and of their directions."""
    unit = torch.where(norms > 0, 1 / norms, 0.0)
    level, out = _find_level(norms), {}
    for at in sorted(set(level[weight > 0].tolist())):
        mine = weight * (level == at)
        out[at] = torch.stack([mine, mine * unit]) @ v
    return out
