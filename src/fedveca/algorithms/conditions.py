"""How far a round is from the conditions of the paper's theorems; they decide nothing and are recorded."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedveca.algorithms.contract import Named


def measure_conditions(
    A: Tensor, L: Tensor, tau: Tensor, p: Tensor, d: Tensor, grad: Tensor, *, alpha: float, lr: float
) -> Named:
    """The three numbers that the theory bounds in a round; NaN where one is not known.

    Args:
        A: [n] A_(k,i), NaN for a client that took one step, whose A is not known and vanishes from (14).
        L: [] as it is recorded: 0 while it is not known.
        tau: [n] tau_(k,i).
        p: [n] the clients' weights.
        d: [P] d_k, the mean of the clients' normalised directions.
        grad: [P] grad F(w_k).
        alpha: Of (16).
        lr: eta.

    Returns:
        `condition_alpha` = alpha min A / (2 L), below 1 by Theorem 2; `condition_step`, the bracket of Theorem 1, with
        which F falls where it is below 0; `condition_drift` = |d_k| / |grad F(w_k)|, at most 1 by Assumption 2.
    """
    smoothness = float(L) if float(L) > 0 else math.nan
    each = list(zip(p.double().tolist(), tau.double().tolist(), A.double().tolist(), strict=True))
    lowest = min((a for _, _, a in each if not math.isnan(a)), default=math.nan)
    terms = (q * (2 * smoothness * t + (0.0 if math.isnan(a) else (t - 1) * a)) for q, t, a in each)
    bracket = lr / 4 * sum(terms) - 1  # (14): tau (2 L + A) - A
    return {
        "condition_alpha": torch.tensor(alpha * lowest / (2 * smoothness), dtype=torch.float64),  # Theorem 2
        "condition_step": torch.tensor(bracket, dtype=torch.float64),
        "condition_drift": (d.norm() / grad.norm()).double().cpu(),  # Assumption 2
    }
