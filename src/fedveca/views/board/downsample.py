"""As many points as a screen has: curves keep their peaks, heat maps become means of blocks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Places = NDArray[np.integer]
Cells = tuple[Places, Places, Floats]  # where numbers belong, down and across, and the numbers


def thin_curve(x: Floats, y: Floats, width: int) -> tuple[Floats, Floats]:
    """At most `width` points of a curve: the lowest and the highest of each stretch; first and last stay."""
    there = np.isfinite(x) & np.isfinite(y)
    x, y = x[there], y[there]
    if len(x) <= max(width, 4):
        return x, y
    edges = np.linspace(0, len(x), max(2, width // 2 - 1) + 1).astype(int)
    kept = {0, len(x) - 1}
    for a, b in itertools.pairwise(edges):
        kept |= {a + int(y[a:b].argmin()), a + int(y[a:b].argmax())}
    at = np.array(sorted(kept))
    return x[at], y[at]


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
