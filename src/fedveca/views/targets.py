"""What methods used up until they reached a value of the metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from fedveca.algorithms.registry import is_pooled
from fedveca.runs.folder import Run
from fedveca.runs.schema import Direction, describe_quantity, get_number
from fedveca.runs.statistics import (
    CostMean,
    mean_cost,
    rounds_to_reach,
)
from fedveca.views.series import Curve, list_axes, sum_costs

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99, 0.995, 0.999)
USUAL_LEVELS = (0.8, 0.9, 0.95)  # of a share, where some method reaches two of them
MOST_TARGETS = 3
FEWEST_SEEDS = 3  # of an interval: with two, it is 12.7 standard errors wide on either side


class Reached(NamedTuple):
    """What one method used up until a target, over the seeds that reached it."""

    cost: CostMean | None  # None where no seed reached it
    lowest: float
    highest: float
    arrived: int  # seeds that reached it
    seeds: int
    cut: bool = False  # whether the interval went beyond what a run could use up

    @property
    def complete(self) -> bool:
        """Whether every seed reached it: only then is the mean one of the method."""
        return self.arrived == self.seeds


class Target(NamedTuple):
    """A value of the metric, and what every method used up until it, by axis."""

    value: float
    costs: list[dict[str, Reached]]  # by row and axis


def find_main_target(targets: Sequence[Target]) -> Target:
    """The hardest of these targets that most methods reach, else the easiest one."""
    for target in reversed(targets):
        reached = sum(2 * costs["rounds"].arrived > costs["rounds"].seeds for costs in target.costs)
        if 2 * reached > len(target.costs):
            return target
    return targets[0]


def find_targets(curves: Sequence[Curve], name: str, better: Direction | None) -> list[Target]:
    """The targets that runs have, and levels: 80, 90 and 95 % where a rival reaches two of these.

    Elsewhere up to three levels that at least one rival reaches in at least half of its seeds.
    """
    if better is None:
        return []
    stated = {run.experiment.target for curve in curves for run in curve.runs if run.experiment.target}
    each = [[_list_values(run, name) for run in curve.runs if not run.diverged] for curve in curves]
    pick = max if better == "higher" else min
    rivals = [mine for mine, curve in zip(each, curves, strict=True) if not is_pooled(curve.method)] or each
    tops = [median(tested) for mine in rivals if (tested := [pick(v) for y in mine if (v := _known(y))])]
    starts = [v[0] for mine in rivals for y in mine if (v := _known(y))]
    if not tops:
        return []
    top = pick(tops)
    if better == "higher" and describe_quantity(name).unit == "share":
        values = [level for level in LEVELS if level <= top and level > min(starts)]
        values = list(USUAL_LEVELS) if top >= USUAL_LEVELS[1] else values
    else:
        way = [max(starts) if better == "lower" else min(starts), top]
        values = [_shorten(way[0] + share * (way[1] - way[0]), better) for share in (0.5, 0.8, 0.95)]
        beyond = (lambda v: way[0] > v >= top) if better == "lower" else (lambda v: way[0] < v <= top)
        values = sorted(filter(beyond, set(values)), reverse=better == "lower")
    values = sorted({*values[-MOST_TARGETS:], *stated}, reverse=better == "lower")
    axes = list(list_axes(run for curve in curves for run in curve.runs))
    paths = [[_make_path(run, name) for run in c.runs if not run.diverged] for c in curves]
    rows = [(paths_of, len(curve.runs)) for paths_of, curve in zip(paths, curves, strict=True)]
    return [Target(value, [_reach(*row, value, better, axes) for row in rows]) for value in values]


class _Path(NamedTuple):
    """What one run had reached, and used up, after each of its rounds."""

    values: list[float | None]
    costs: dict[str, list[float]]  # by axis
    limits: dict[str, float]  # by axis, the most that it could use up


def _make_path(run: Run, name: str) -> _Path:
    costs, e = sum_costs(run), run.experiment
    early, share = run.ended not in (None, "budget"), e.rounds / max(1, len(run.rounds))
    limits = {axis: total[-1] * (1 if e.budget else share) for axis, total in costs.items() if total}
    return _Path(_list_values(run, name), costs, {} if e.budget and early else limits)


def _reach(
    paths: Sequence[_Path], seeds: int, target: float, better: Direction, axes: Sequence[str]
) -> dict[str, Reached]:
    found: dict[str, list[float]] = {axis: [] for axis in axes}
    for path in paths:
        if k := rounds_to_reach(path.values, target, better):
            for axis in axes:
                found[axis].append(path.costs[axis][k - 1])
    limits = {axis: max((path.limits.get(axis, math.inf) for path in paths), default=math.inf) for axis in axes}
    return {axis: _summarise(costs, seeds, limits[axis]) for axis, costs in found.items()}


def _summarise(costs: list[float], seeds: int, limit: float) -> Reached:
    if not costs:
        return Reached(None, math.inf, math.inf, 0, seeds)
    cost, cut = mean_cost(costs), False
    if cost.n < FEWEST_SEEDS:
        cost = cost._replace(interval=None)
    elif cost.interval and cost.interval[1] > limit * (1 + 1e-9):
        cost, cut = cost._replace(interval=(cost.interval[0], limit)), True
    return Reached(cost, min(costs), max(costs), len(costs), seeds, cut)


def _list_values(run: Run, name: str) -> list[float | None]:
    return [get_number(record, name) for record in run.rounds]


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _shorten(value: float, better: Direction) -> float:
    """Two significant digits, rounded to the easier side, so that a value that was reached stays reached."""
    if not value:
        return 0.0
    unit = 10 ** (math.floor(math.log10(abs(value))) - 1)
    return float(f"{(math.ceil if better == 'lower' else math.floor)(value / unit) * unit:.2g}")
