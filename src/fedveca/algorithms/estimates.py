"""What FedVeca estimates on the way: beta_i and delta_i of each client, L of the loss."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedveca.algorithms.contract import NoCarry


class Walk(NamedTuple):
    """What a client carries from step to step to estimate beta_i and delta_i."""

    g0: Tensor  # [P] grad F_i(w_k)
    lam: Tensor  # [1] lambda, the step about to be taken
    far: Tensor  # [1] |w_k - w_lambda|
    beta: Tensor  # [1] the largest so far
    spread: Tensor  # [1] delta's numerator over (lambda + 1), the largest so far


def start_walk(g0: Tensor) -> Walk:
    """Before the first step, where everything but grad F_i(w_k) is 0."""
    zero = torch.zeros_like(g0[..., :1])
    return Walk(g0, zero, zero, zero, zero)


def extend_walk(s: Walk, g: Tensor, moved: Tensor, lr: float, mean: Tensor | NoCarry = ()) -> Walk:
    """After the step along gradient g, which leaves the client `moved` = w_k - w_(lambda + 1) away from the start.

    With plain SGD the sum of the steps' directions is moved / lr; with another optimiser their `mean` is given.
    """
    beta = torch.where(s.far > 0, norm(s.g0 - g) / s.far, 0.0)  # A2.15; lambda = 0 is 0/0
    far = norm(moved)
    total = norm(mean) * (s.lam + 1) if isinstance(mean, Tensor) else far / lr  # |sum of the steps' directions|
    spread = torch.where(s.lam > 0, total**2 / (s.lam + 1), 0.0)  # A2.17
    return Walk(s.g0, s.lam + 1, far, torch.maximum(s.beta, beta), torch.maximum(s.spread, spread))


def estimate_delta(spread: Tensor, grad_last: Tensor) -> Tensor:
    """[n] float64: delta_i, the clients' numerators over |grad F(w_(k-1))|^2, which is common to all: A2.17."""
    squared: Tensor = grad_last.norm().double().cpu() ** 2
    return spread / squared


def estimate_A(beta: Tensor, delta: Tensor, tau: Tensor, lr: float = 1.0) -> Tensor:
    """[n] float64: A_i = eta beta_i^2 delta_i; NaN after one step, which has no lambda > 0 to estimate it from."""
    return torch.where(tau > 1, lr * beta**2 * delta, torch.nan)


def estimate_smoothness(k: Tensor, w: Tensor, w_last: Tensor, grad: Tensor, grad_last: Tensor, L: Tensor) -> Tensor:
    """[] float64: the largest L_k so far, A1.16-21; L_k of round k is known one round earlier than in the paper."""
    steep = (grad - grad_last).norm() / (w - w_last).norm() if k > 0 else grad.norm() / w.norm()  # A1.19, A1.17
    now = steep.double().cpu()
    return torch.maximum(L, now) if torch.isfinite(now) else L  # A1.21; 0/0 after a rejected round


def norm(v: Tensor) -> Tensor:
    """[..., P] -> [..., 1]."""
    return torch.linalg.vector_norm(v, dim=-1, keepdim=True)  # type: ignore[no-any-return]
