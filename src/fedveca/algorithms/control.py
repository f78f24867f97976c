"""Theorem 2: from the clients' A to their next number of local steps."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from fedveca.algorithms.hyper import hyper

TAU_MIN = 2  # the paper keeps tau > 1: with tau = 1 the effect of A vanishes from (14)

# The controller's hyperparameters: each call makes a field of a method that uses it.
ALPHA = partial(hyper, 0.95, "how far tau may rise, at most 1/(1-alpha)", low=0, high=1, open_ends=True)
TAU_MAX = partial(hyper, 50, "the most local steps", low=TAU_MIN, high=10**5)
DISTRUST = partial(hyper, 0.0, "share of the clients whose A may be too small to be true", low=0, high=0.5)


def control(A: Tensor, alpha: float, tau_max: int, distrust: float = 0.0) -> Tensor:
    """tau_i = floor(A_i / (A_i - alpha min_j A_j)), kept in [2, tau_max]: (15), (16), A1.22-26.

    Only the ratios r_i = min A / A_i count. NaN is an A that is not known: it does not decide min A, and its client
    takes 2 steps, the fewest by which A can be estimated. So does a client whose A is infinite: its gradients diverged.
    A_i = 0 is its own minimum, so r_i = 1. `distrust` is the share of the known A that may be too small to be true: the
    smallest one above them stands for min A, and those below have r_i = 1.

    Examples:
        >>> control(torch.tensor([1.0, 2.0, 0.0]), alpha=0.95, tau_max=50)
        tensor([ 2,  2, 20])
        >>> control(torch.tensor([1.0, 1.5]), alpha=0.95, tau_max=50)
        tensor([20,  2])
        >>> control(torch.tensor([1.0, 1.5, 0.0]), alpha=0.95, tau_max=50, distrust=0.34)
        tensor([20,  2, 20])
        >>> control(torch.tensor([1.0, 1.5, torch.nan]), alpha=0.95, tau_max=50)
        tensor([20,  2,  2])
    """
    A = A.to("cpu", torch.float64).clamp(min=0)  # 1 / (1 - 0.95) must not fall below 20
    known = A[~torch.isnan(A)].sort().values
    lowest = known[int(distrust * len(known) + 1e-9)] if len(known) else torch.inf
    A = torch.where(torch.isnan(A), torch.inf, A)
    r = torch.where(lowest >= A, 1.0, lowest / A)
    r = torch.where(torch.isinf(A), 0.0, r)
    tau = torch.floor(1 / (1 - alpha * r) + 1e-9)
    return tau.clamp(TAU_MIN, max(tau_max, TAU_MIN)).to(torch.int64)
