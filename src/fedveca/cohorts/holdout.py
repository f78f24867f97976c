"""The rows that clients hold back: never trained on or probed, only evaluated."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedveca.cohorts.random import order_rows
from fedveca.tasks.partition import Shares


class Holdout(NamedTuple):
    """Each client's rows in three parts, which have no row in common."""

    train: Shares
    val: Shares  # what is chosen is chosen by these: the kept model, the end of a run
    test: Shares


def hold_out(shares: Shares, seed: int, *, val: float = 0.0, test: float = 0.0) -> Holdout:
    """Splits the rows of each client; one row at least stays to train on.

    The split of a client is a pure function of the seed, its number and how many rows it has: a node that has no other
    rows than its own makes the same one. In a random order of the client's rows, those to test on come first, then
    those to validate on.

    Args:
        shares: Which client owns which rows; clients whose rows are elsewhere own none.
        seed: Of the order.
        val: Share of each client's rows for validation, rounded to whole rows.
        test: Share of each client's rows for its test, rounded to whole rows.

    Returns:
        The three parts, with the rows of each client in rising order.
    """
    sizes = shares.sizes
    none = Shares(shares.rows[:0], torch.zeros_like(shares.start))
    if not (val or test):
        return Holdout(shares, none, none)
    tested = torch.minimum(_count(test, sizes), (sizes - 1).clamp(min=0))
    chosen = torch.minimum(_count(val, sizes), (sizes - 1 - tested).clamp(min=0))
    owner = torch.arange(len(sizes)).repeat_interleave(sizes)
    place = order_rows(seed, owner, torch.arange(len(owner)) - shares.start[owner])  # [D] within the random order
    is_test = place < tested[owner]
    is_val = ~is_test & (place < (tested + chosen)[owner])
    return Holdout(*(_select(shares, owner, mine) for mine in (~(is_test | is_val), is_val, is_test)))


def _count(share: float, sizes: Tensor) -> Tensor:
    return (share * sizes.double() + 0.5).floor().long()


def _select(shares: Shares, owner: Tensor, mine: Tensor) -> Shares:
    sizes = torch.bincount(owner[mine], minlength=len(shares.sizes))
    return Shares(shares.rows[mine], torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]))
