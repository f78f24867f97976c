"""Statistics over seeds: mean and spread, paired differences with t intervals, costs until a target."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fedveca.errors import UserError
from fedveca.runs.schema import Direction, finite_number


class Spread(NamedTuple):
    """Mean and standard deviation of the finite numbers among some values."""

    mean: float | None  # None where there is no finite number
    std: float  # of a sample (n - 1); 0 for fewer than two numbers
    n: int  # how many finite numbers there are


class Difference(NamedTuple):
    """The mean of a - b over pairs, and the interval that holds the true mean with 95 % confidence."""

    mean: float
    interval: tuple[float, float] | None  # None for one pair, which has no spread
    n: int  # how many pairs there are


class CostMean(NamedTuple):
    """The geometric mean of costs, and the interval that holds the true one with 95 % confidence."""

    mean: float
    interval: tuple[float, float] | None  # None for one cost, which has no spread, and where a cost is not positive
    n: int  # how many costs there are


def mean_and_spread(values: Iterable[object]) -> Spread:
    """Computes the mean and the standard deviation over seeds.

    Args:
        values: One value per seed. What is not a finite number is left out.

    Returns:
        The mean, the standard deviation of the sample (n - 1) and the number of finite values.

    Example:
        >>> mean_and_spread([1.0, 2.0, 3.0, None])
        Spread(mean=2.0, std=1.0, n=3)
    """
    known = [number for value in values if (number := finite_number(value)) is not None]
    mean = statistics.fmean(known) if known else None
    return Spread(mean, statistics.stdev(known) if len(known) > 1 else 0.0, len(known))


def paired_difference(a: Sequence[object], b: Sequence[object], confidence: float = 0.95) -> Difference:
    """Computes the mean difference of two methods over the same seeds, with Student's t interval.

    Args:
        a: One value per seed.
        b: The other method's values, in the same order of seeds.
        confidence: The share of intervals like this one that hold the true mean, between 0 and 1.

    Returns:
        The mean of `a - b`, its interval, and the number of pairs. A pair without two finite numbers is left out.

    Raises:
        UserError: If the lengths differ, if no pair has two finite numbers, or if `confidence` is out of range.

    Example:
        >>> difference = paired_difference([3.0, 4.0, 5.0], [1.0, 3.0, 2.0])
        >>> difference.mean, [round(end, 3) for end in difference.interval]
        (2.0, [-0.484, 4.484])
    """
    if len(a) != len(b):
        raise UserError(f"paired_difference needs one value per seed of both, not {len(a)} and {len(b)}")
    if not 0 < confidence < 1:
        raise UserError(f"confidence={confidence} is out of range; allowed: (0, 1)")
    pairs = [(finite_number(x), finite_number(y)) for x, y in zip(a, b, strict=True)]
    each = [x - y for x, y in pairs if x is not None and y is not None]
    if not each:
        raise UserError("paired_difference needs at least one pair of finite numbers")
    mean, n = statistics.fmean(each), len(each)
    if n < 2:
        return Difference(mean, None, n)
    half = _half_width(each, confidence)
    return Difference(mean, (mean - half, mean + half), n)


def mean_cost(costs: Sequence[float], confidence: float = 0.95) -> CostMean:
    """Computes the geometric mean of what seeds used up, with Student's t interval of the logarithms.

    Costs are positive and their spread grows with them, so that an interval on the scale of their logarithms fits them
    better than one around the mean, and never reaches below 0.

    Args:
        costs: One cost per seed, all of them finite.
        confidence: The share of intervals like this one that hold the true mean, between 0 and 1.

    Returns:
        The geometric mean, its interval and the number of costs; the mean without an interval where a cost is 0.

    Raises:
        UserError: If there is no cost, or if `confidence` is out of range.

    Example:
        >>> found = mean_cost([20, 40, 80])
        >>> round(found.mean, 6), [round(end, 1) for end in found.interval]
        (40.0, [7.1, 223.8])
    """
    if not costs:
        raise UserError("mean_cost needs at least one cost")
    if not 0 < confidence < 1:
        raise UserError(f"confidence={confidence} is out of range; allowed: (0, 1)")
    if min(costs) <= 0:
        return CostMean(statistics.fmean(costs), None, len(costs))
    logs = [math.log(cost) for cost in costs]
    centre = statistics.fmean(logs)
    if len(logs) < 2:
        return CostMean(float(costs[0]), None, 1)
    half = _half_width(logs, confidence)
    return CostMean(math.exp(centre), (math.exp(centre - half), math.exp(centre + half)), len(logs))


def _half_width(values: Sequence[float], confidence: float) -> float:
    """Half of Student's t interval around the mean of two or more values."""
    from scipy.special import stdtrit  # the t quantile; loaded only here, for commands start faster without it

    n = len(values)
    return float(stdtrit(n - 1, (1 + confidence) / 2)) * statistics.stdev(values) / math.sqrt(n)


def is_clear(difference: Difference, better: Direction) -> bool:
    """Tells whether a difference is an advantage of the first method beyond chance.

    Args:
        difference: What `paired_difference(first, second)` returned.
        better: Whether a "higher" or a "lower" value is the better one.

    Returns:
        True if the whole interval is on the better side of 0. For one pair the sign of the mean decides.

    Example:
        >>> is_clear(Difference(0.02, (0.01, 0.03), 10), "higher")
        True
    """
    low, high = difference.interval or (difference.mean, difference.mean)
    return low > 0 if better == "higher" else high < 0


def rounds_to_reach(values: Iterable[object], target: float, better: Direction) -> int | None:
    """Counts the rounds until a recorded value first reaches a target.

    Args:
        values: The value of each round, in order; None for a round without one.
        target: The value to reach.
        better: Whether a "higher" or a "lower" value is the better one.

    Returns:
        The number of rounds, counted from 1, or None if the target is never reached.

    Example:
        >>> rounds_to_reach([0.5, None, 0.8, 0.9], 0.8, "higher")
        3
    """
    for k, value in enumerate(values, 1):
        number = finite_number(value)
        if number is not None and (number >= target if better == "higher" else number <= target):
            return k
    return None


def median_rounds(rounds: Iterable[int | None]) -> float | None:
    """Computes the median over seeds of the rounds until a target.

    Args:
        rounds: What `rounds_to_reach` returned for each seed.

    Returns:
        The median, or None if half of the seeds or more never reach the target.

    Example:
        >>> median_rounds([12, 14, None])
        14.0
    """
    each = sorted(math.inf if k is None else k for k in rounds)
    median = statistics.median(each) if each else math.inf
    return None if math.isinf(median) else float(median)
