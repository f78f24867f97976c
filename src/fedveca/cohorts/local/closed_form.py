"""The local steps of a problem in closed form: each operation is short, so what lies around it is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedveca.algorithms.contract import Algorithm, Order
from fedveca.cohorts.local.chunks import Chunk, RowDraws
from fedveca.cohorts.local.rows import ClientRows, LazyClientRows
from fedveca.cohorts.local.stored_svm import StoredSvm
from fedveca.tasks.svm import SquaredSvm, SvmSlope


def take_closed_steps(
    problem: SquaredSvm,
    rows: ClientRows | LazyClientRows,
    stored: StoredSvm | None,
    algorithm: Algorithm,
    order: Order,
    s: object,
    w: Tensor,
    chunk: Chunk,
    draws: RowDraws,
) -> tuple[Tensor, object]:
    """w [n, P] and the carry after all steps of a chunk, as `LocalCohort._take_local_steps` has them."""
    done, at, tau = [], 0, chunk.tau.tolist()
    for until in sorted(set(tau)):
        n = sum(tau_i >= until for tau_i in tau)
        if n < len(w):
            done.append(tree_map(lambda v, n=n: v[n:], (w, s)))
            w, s = tree_map(lambda v, n=n: v[:n], (w, s))
        for index in draws(n, at, until):
            for slope in _find_slopes(problem, rows, stored, index):
                w, s = algorithm.step(order, s, w, slope(w))
        at = until
    if not done:
        return w, s
    out: tuple[Tensor, object] = tree_map(lambda *parts: torch.cat(parts), (w, s), *reversed(done))
    return out


def _find_slopes(
    problem: SquaredSvm, rows: ClientRows | LazyClientRows, stored: StoredSvm | None, index: Tensor
) -> Iterator[Callable[[Tensor], Tensor]]:
    """The gradient [n, P] at w [n, P] of each step of index [n, steps, B], valid until the next step's."""
    if stored:
        for kernel, at in stored.visit(index.unbind(1)):
            yield partial(kernel.find_slopes, index=at)
        return
    last: Tensor | None = None
    slope: SvmSlope | None = None
    for x, y in rows.batches(index.transpose(0, 1)):
        if slope is None or x is not last:  # rows in memory come in the same tensor at each step
            last, slope = x, problem.slope_on(x, rows.unit)
        yield partial(slope, s=y)
