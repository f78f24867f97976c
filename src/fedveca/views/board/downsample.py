"""As many points as a screen has: curves become means of stretches and their extremes, heat maps means of blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Places = NDArray[np.integer]
Cells = tuple[Places, Places, Floats]  # where numbers belong, down and across, and the numbers


def thin_curve(x: Floats, y: Floats, width: int) -> list[Floats]:
    """A curve as x and y; of more than half of `width` points, means of stretches with their lowest and highest.

    The first and the last point stay as they are. A curve that swings is a line within its range, not a solid area.
    """
    there = np.isfinite(x) & np.isfinite(y)
    x, y = x[there], y[there]
    if len(x) <= max(width // 2, 8):
        return [x, y]
    starts = _cut_stretches(len(x), width)
    means = [_average_stretches(values, starts) for values in (x, y)]
    return [*means, np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts)]


def thin_band(columns: Sequence[Floats], width: int) -> list[Floats]:
    """Columns of one length; of more than half of `width` rows, means of stretches. The first and the last row stay."""
    if len(columns[0]) <= max(width // 2, 8):
        return list(columns)
    starts = _cut_stretches(len(columns[0]), width)
    return [_average_stretches(values, starts) for values in columns]


def _cut_stretches(length: int, width: int) -> Places:
    """Where about a third as many stretches as there are pixels begin; the first and the last have one point."""
    inner = np.linspace(1, length - 1, max(2, width // 3 - 2) + 1).astype(int)
    return np.concatenate([[0], inner])


def _average_stretches(values: Floats, starts: Places) -> Floats:
    sizes = np.diff(np.append(starts, len(values)))
    means: Floats = np.add.reduceat(values, starts) / sizes
    return means


def average_runs(runs: Iterable[tuple[Places, Floats, Floats]]) -> list[Floats]:
    """Over runs, each with its rounds, x and y: the mean of x, mean and standard deviation of y, and how many.

    A round's numbers are those of the runs that have it; the deviation is a sample's (n - 1), 0 of one run.
    """
    each = [(k[there], x[there], y[there]) for k, x, y in runs for there in [np.isfinite(x) & np.isfinite(y)]]
    rounds = np.unique(np.concatenate([np.zeros(0, int), *(k for k, _, _ in each)]))
    count, across, mean, squares = (np.zeros(len(rounds)) for _ in range(4))
    for k, x, y in each:
        known, last = np.unique(k[::-1], return_index=True)  # of a round that is there twice, the later line
        at = np.searchsorted(rounds, known)
        count[at] += 1
        across[at] += (x[::-1][last] - across[at]) / count[at]
        step = y[::-1][last] - mean[at]
        mean[at] += step / count[at]
        squares[at] += step * (y[::-1][last] - mean[at])
    deviation = np.sqrt(np.maximum(squares, 0) / np.maximum(count - 1, 1))
    order = np.argsort(across, kind="stable")  # a run that ended early takes its x out of the mean
    return [across[order], mean[order], deviation[order], count[order]]


def average_blocks(pieces: Iterable[Cells], shape: tuple[int, int], rows: int, columns: int) -> tuple[Floats, int, int]:
    """Means of blocks, at most [rows, columns] of them, absent cells left out; and a block's two sides."""
    tall, wide = (max(1, -(-n // most)) for n, most in zip(shape, (rows, columns), strict=True))
    high, broad = -(-shape[0] // tall), -(-shape[1] // wide)
    sums, counts = np.zeros(high * broad), np.zeros(high * broad)
    for down, across, values in pieces:
        there = np.isfinite(values)
        at = down[there] // tall * broad + across[there] // wide
        np.add.at(sums, at, values[there])
        np.add.at(counts, at, 1)
    means = np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)
    return means.reshape(high, broad), tall, wide


def find_window(x: Floats, low: float, high: float) -> slice:
    """The rising x from low to high, and one point more on either side so that lines run to the edge."""
    first, last = int(np.searchsorted(x, low, "left")), int(np.searchsorted(x, high, "right"))
    return slice(max(0, first - 1), min(len(x), last + 1))
