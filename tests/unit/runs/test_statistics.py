"""Statistics over seeds; every number worked by hand."""

from __future__ import annotations

import doctest
import math

import pytest

from fedveca import statistics
from fedveca.errors import UserError
from fedveca.runs.schema import Direction
from fedveca.runs.statistics import Difference, Spread


def test_the_examples_of_the_docstrings_are_true() -> None:
    tried = doctest.testmod(statistics)
    assert tried.attempted >= 6
    assert not tried.failed


def test_the_standard_deviation_is_that_of_a_sample() -> None:
    found = statistics.mean_and_spread([1.0, 2.0, 6.0])
    assert found.mean == 3.0
    assert found.std == pytest.approx(math.sqrt((4 + 1 + 9) / 2))
    assert found.n == 3
    assert statistics.mean_and_spread([7]) == Spread(7.0, 0.0, 1)


def test_only_finite_numbers_are_averaged() -> None:
    odd = [None, math.nan, math.inf, -math.inf, "3", True, 1e151, [1.0]]
    assert statistics.mean_and_spread(odd) == Spread(None, 0.0, 0)
    assert statistics.mean_and_spread([*odd, 2.0, 4.0]) == Spread(3.0, math.sqrt(2), 2)


def test_a_paired_difference_has_students_t_interval() -> None:
    found = statistics.paired_difference([3.0, 4.0, 5.0], [1.0, 3.0, 2.0])
    assert found.mean == 2  # a - b, not b - a
    half = 4.302653 / math.sqrt(3)  # the t quantile of 97.5 % with 2 degrees of freedom; the deviation is 1
    assert found.interval == pytest.approx((2 - half, 2 + half), rel=1e-6)
    assert found.n == 3
    ninety = statistics.paired_difference([3.0, 4.0, 5.0], [1.0, 3.0, 2.0], confidence=0.9).interval
    assert ninety == pytest.approx((2 - 2.919986 / math.sqrt(3), 2 + 2.919986 / math.sqrt(3)), rel=1e-6)


def test_pairs_are_those_of_the_same_seed() -> None:
    """Together a's and b's means differ by 1 as well, but seed by seed the difference has no spread."""
    assert statistics.paired_difference([1.0, 5.0, 9.0], [0.0, 4.0, 8.0]).interval == (1.0, 1.0)
    gone = statistics.paired_difference([1.0, None, 9.0, 4.0], [0.0, 4.0, 8.0, math.nan])
    assert gone == Difference(1.0, (1.0, 1.0), 2)


def test_one_pair_has_no_interval_and_its_sign_decides() -> None:
    one = statistics.paired_difference([2.0], [1.0])
    assert one == Difference(1.0, None, 1)
    assert statistics.is_clear(one, "higher")
    assert not statistics.is_clear(one, "lower")


@pytest.mark.parametrize(
    ("interval", "better", "clear"),
    [
        ((0.5, 1.5), "higher", True),
        ((0.5, 1.5), "lower", False),
        ((-1.5, -0.5), "lower", True),
        ((-1.5, -0.5), "higher", False),
        ((-0.1, 1.5), "higher", False),
        ((-1.5, 0.1), "lower", False),
        ((0.0, 1.0), "higher", False),
        ((-1.0, 0.0), "lower", False),
    ],
)
def test_an_advantage_is_clear_where_the_interval_excludes_0(
    interval: tuple[float, float], better: Direction, clear: bool
) -> None:
    assert statistics.is_clear(Difference(sum(interval) / 2, interval, 5), better) is clear


@pytest.mark.parametrize(
    ("a", "b", "confidence", "said"),
    [
        ([1.0], [1.0, 2.0], 0.95, "needs one value per seed of both, not 1 and 2"),
        ([None], [1.0], 0.95, "needs at least one pair of finite numbers"),
        ([1.0], [1.0], 1.0, r"confidence=1.0 is out of range; allowed: \(0, 1\)"),
    ],
)
def test_what_cannot_be_paired_is_rejected(a: list[object], b: list[object], confidence: float, said: str) -> None:
    with pytest.raises(UserError, match=said):
        statistics.paired_difference(a, b, confidence)


def test_rounds_until_a_target_count_from_1() -> None:
    assert statistics.rounds_to_reach([0.5, 0.3, 0.2], 0.3, "lower") == 2
    assert statistics.rounds_to_reach([0.5, 0.4, 0.35], 0.3, "lower") is None
    assert statistics.rounds_to_reach([0.3, 0.9, 0.9], 0.3, "lower") == 1  # first, though it is lost again
    assert statistics.rounds_to_reach([0.5, None, math.nan, 0.7], 0.7, "higher") == 4
    assert statistics.rounds_to_reach([0.5, 0.7], 0.6, "higher") == 2


def test_median_rounds() -> None:
    assert statistics.median_rounds([2, None, 1]) == 2
    assert statistics.median_rounds([1, 2]) == 1.5
    assert statistics.median_rounds([1, None]) is None
    assert statistics.median_rounds([]) is None
