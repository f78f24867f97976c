"""What a round costs in computation: the rows of which clients compute gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from fedveca.algorithms.contract import Algorithm, Fault
from fedveca.cohorts.fault_settings import ATTACKS, LATE
from fedveca.runs.experiment import Experiment, count_probe_rows

LOST = (LATE, *ATTACKS)  # faults of clients that compute all the same: what they send is late, or is not what it should


class RowCount(NamedTuple):
    """Counts gradient rows at the server, from what it knows of every client: the same number with every engine."""

    batch: int  # rows of a mini-batch: all of them have so many, also where a client has fewer
    probe: int  # rows of a client on which it computes its gradient at w_k, where it has so many; 0 is all
    gradients: int  # how many of them the method uses, at w_k and after the steps; a loss alone counts nothing

    def __call__(self, sizes: Tensor, tau: Tensor) -> int:
        """sum_i (tau_i B + gradients min(probe, D_i)) over clients with `sizes` [n] and local steps `tau` [n]."""
        probed = sizes.clamp(max=self.probe) if self.probe else sizes
        return self.batch * int(tau.sum()) + self.gradients * int(probed.sum())


def count_rows_of(e: Experiment, algorithm: Algorithm) -> RowCount:
    """How the rows of these settings are counted."""
    gradients = algorithm.needs_gradient + algorithm.needs_gradient_after
    return RowCount(e.batch, count_probe_rows(e), gradients)


def find_computing(ids: Tensor, answered: Tensor, faults: Iterable[Fault]) -> Tensor:
    """[n] bool: which of the clients that were asked did their work, also where it was lost.

    Those that answered, and of the others those of which no fault is known (their numbers are not finite), or only one
    that leaves their work done. A client that was away, or a node without an answer, counts nothing.
    """
    idle = {fault["client"] for fault in faults if fault["what"] not in LOST}
    return torch.isin(ids, answered) | torch.tensor([i not in idle for i in ids.tolist()], dtype=torch.bool)
