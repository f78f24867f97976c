"""How the clients' vectors become one: their mean, or a rule that a share of bad clients cannot carry away.

A aggregator lives for one round. `part` takes some clients side by side and may run in any thread, `add` takes the
parts in a fixed order, `close` gives the aggregated vectors. A server that hears its clients one by one calls
`add(part(weight[None], {name: v[None], ...}))` for each.

mean holds one sum a vector and clip a few: O(P), however many clients there are. trimmed and median need the
vectors of the round side by side: n P numbers each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedveca.algorithms.contract import Named

RULES = ("mean", "clip", "trimmed", "median")
LOSSES = ("loss", "after")
COLUMNS = 2**16  # coordinates that are sorted at a time
STEPS = 2  # of a norm's grid, to the power of two
LEAST, MOST = -150 * STEPS, 150 * STEPS  # norms beyond are counted with the outermost


class Piece(NamedTuple):
    """What some clients bring to the round."""

    weight: Tensor  # [n] D_i; 0 for a client that is not well
    vectors: Named  # [P] sums, or [n, P] side by side
    norms: Named = {}  # noqa: RUF012  [n] each, and
    levels: dict[str, dict[int, Tensor]] = {}  # noqa: RUF012  [2, P] sums by level of norm: aggregate=clip


class Aggregator(Protocol):
    def part(self, weight: Tensor, vectors: Named) -> Piece: ...

    def add(self, piece: Piece) -> None: ...

    def close(self, mass: float) -> Named:
        """[P] each: the aggregated vectors; mass is the sum of the weights."""
        ...

    def numbers(self, each: Named) -> Named:
        """[n] each: what is believed of the numbers the clients report: losses, that one may not spoil the mean.

        A method that uses numbers one by one has its own defence (FedVeca's `distrust`).
        """
        ...


AggregationRule = Callable[[], Aggregator]


def aggregation_rule(rule: str, clip: float = 0.0, trim: float = 0.2) -> AggregationRule:
    """The rule by its name; `clip` is a fixed norm (0: the round's median), `trim` the share distrusted at each end."""
    if rule == "mean":
        return Mean
    if rule == "clip":
        return partial(Clip, clip, trim)
    return partial(Sorted, trim if rule == "trimmed" else 0.5, trim)


class Mean:
    """sum_i p_i v_i, and every number as it was told."""

    def __init__(self) -> None:
        self.total: Named = {}

    def part(self, weight: Tensor, vectors: Named) -> Piece:
        return Piece(weight, {name: weight @ v for name, v in vectors.items()})

    def add(self, piece: Piece) -> None:
        for name, v in piece.vectors.items():
            self.total[name] = self.total[name] + v if name in self.total else v

    def close(self, mass: float) -> Named:
        return {name: v / mass for name, v in self.total.items()} if mass else {}

    def numbers(self, each: Named) -> Named:
        return each


class Clip:
    """The mean of vectors cut to one norm: a fixed one, or the median of the round's norms on a grid of steps sqrt(2).

    The median is known only when all have spoken. Until then vectors of like norm are summed together, as they are
    and at unit norm; then each sum below the bound counts as it is, each one above as its unit vectors times the bound.
    """

    def __init__(self, norm: float, trim: float) -> None:
        self.norm, self.trim = norm, trim
        self.fixed = Mean()
        self.norms: dict[str, list[Tensor]] = {}
        self.levels: dict[str, dict[int, Tensor]] = {}

    def part(self, weight: Tensor, vectors: Named) -> Piece:
        norms = {name: v.norm(dim=-1) for name, v in vectors.items()}
        if self.norm:
            cut = {name: torch.where(n > self.norm, self.norm / n, 1.0) for name, n in norms.items()}
            return Piece(weight, {name: (weight * cut[name]) @ v for name, v in vectors.items()})
        levels = {name: _by_level(weight, v, norms[name]) for name, v in vectors.items()}
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
        return {name: self._cut(name, levels) / mass for name, levels in self.levels.items()}

    def _cut(self, name: str, levels: dict[int, Tensor]) -> Tensor:
        at = int(_level(torch.cat(self.norms[name]).quantile(0.5)))
        bound = 2.0 ** ((at + 1) / STEPS)  # the upper end of the median's level
        return sum((levels[n][0] if n <= at else bound * levels[n][1] for n in sorted(levels)), torch.zeros(()))

    def numbers(self, each: Named) -> Named:
        return believed(each, self.trim)


class Sorted:
    """Coordinate by coordinate, the weighted mean of the middle: `cut` of the weight goes at each end."""

    def __init__(self, cut: float, trim: float) -> None:
        self.cut, self.trim = cut, trim
        self.pieces: list[Piece] = []

    def part(self, weight: Tensor, vectors: Named) -> Piece:
        return Piece(weight, vectors)

    def add(self, piece: Piece) -> None:
        self.pieces.append(piece)

    def close(self, mass: float) -> Named:
        if not mass:
            return {}
        weight = torch.cat([piece.weight for piece in self.pieces])
        names = self.pieces[0].vectors
        return {n: middle(torch.cat([p.vectors[n] for p in self.pieces]), weight, self.cut) for n in names}

    def numbers(self, each: Named) -> Named:
        return believed(each, self.trim)


def middle(v: Tensor, weight: Tensor, cut: float) -> Tensor:
    """[n, P], [n] -> [P]: the mean of each column after `cut` of the weight is taken off at both ends.

    A cut of 1/2 is the weighted median; between two values that halve the weight exactly, their mean.

    >>> v = torch.tensor([[1.0], [2.0], [3.0], [100.0]])
    >>> middle(v, torch.ones(4), 0.25).item(), middle(v, torch.ones(4), 0.5).item()
    (2.5, 2.5)
    >>> middle(v, torch.tensor([1.0, 1.0, 1.0, 9.0]), 0.5).item()
    100.0
    """
    v, weight = v[weight > 0], weight[weight > 0].double()
    share = weight / weight.sum()
    cut = min(cut, 0.5 - 1e-6)  # what is left of the middle is the median
    out = []
    for block in torch.split(v, COLUMNS, dim=1):
        ordered, at = block.sort(dim=0)
        mine = share[at]
        upto = mine.cumsum(0)  # [n, columns] weight up to and with this value
        left = (upto.clamp(max=1 - cut) - (upto - mine).clamp(min=cut)).clamp_(min=0)
        out.append(((left * ordered).sum(0) / left.sum(0)).to(v.dtype))
    return torch.cat(out)


def believed(each: Named, trim: float) -> Named:
    return {name: pulled_in(v, trim) if name in LOSSES else v for name, v in each.items()}


def pulled_in(v: Tensor, trim: float) -> Tensor:
    """[n]: the `trim` smallest and largest are set to the next one inwards: few liars do not move the mean far."""
    if len(v) == 0:
        return v
    h = min(int(trim * len(v) + 1e-9), (len(v) - 1) // 2)
    ordered = v.sort().values
    return v.clamp(ordered[h], ordered[-1 - h])


def _level(norms: Tensor) -> Tensor:
    """Which step of the grid a norm stands on: 2^(level / STEPS) <= norm < 2^((level + 1) / STEPS)."""
    return torch.floor(STEPS * torch.log2(norms.double())).clamp(LEAST, MOST).to(torch.int64)


def _by_level(weight: Tensor, v: Tensor, norms: Tensor) -> dict[int, Tensor]:
    """[2, P] for each level that occurs: the weighted sum of its vectors, and of their directions."""
    unit = torch.where(norms > 0, 1 / norms, 0.0)
    level, out = _level(norms), {}
    for at in sorted(set(level[weight > 0].tolist())):
        mine = weight * (level == at)
        out[at] = torch.stack([mine, mine * unit]) @ v
    return out
