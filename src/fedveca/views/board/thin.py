"""As many points as a screen has: curves keep their peaks, heat maps become means of blocks."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np


def curve(x: Any, y: Any, width: int) -> tuple[Any, Any]:
    """At most `width` points of a curve: of each stretch the least and the greatest; first and last stay."""
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


def blocks(matrix: Any, rows: int, columns: int) -> tuple[Any, int, int]:
    """Means of blocks, at most [rows, columns] of them, absent cells left out; and a block's two sides."""
    tall, wide = (max(1, -(-n // most)) for n, most in zip(matrix.shape, (rows, columns), strict=True))
    if tall == wide == 1:
        return matrix, 1, 1
    there = np.isfinite(matrix)
    sums, counts = np.where(there, matrix, 0.0).astype(np.float64), there.astype(np.float64)
    for axis, side in ((0, tall), (1, wide)):
        at = np.arange(0, matrix.shape[axis], side)
        sums, counts = np.add.reduceat(sums, at, axis), np.add.reduceat(counts, at, axis)
    return np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0), tall, wide


def window(x: Any, low: float, high: float) -> slice:
    """The rising x from low to high, and one point more on either side so that lines run to the edge."""
    first, last = int(np.searchsorted(x, low, "left")), int(np.searchsorted(x, high, "right"))
    return slice(max(0, first - 1), min(len(x), last + 1))
