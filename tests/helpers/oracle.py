"""Algorithms 1 and 2 of the paper, line by line and slowly: two trips, one client at a time, plain autograd.

Departures, both forced by the paper itself: lambda = 0 is left out of beta (0/0), and the floor of (16) is
taken a billionth above its argument, for 1 / (1 - 0.95) is below 20 in binary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]  # w [P], x, y -> F


def gradient(F: Loss, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    leaf = w.clone().requires_grad_()
    return torch.autograd.grad(F(leaf, x, y), leaf)[0]


class Client:
    """Algorithm 2."""

    def __init__(self, F: Loss, x: Tensor, y: Tensor, eta: float, batch: Callable[[int, int], Tensor]) -> None:
        self.F, self.x, self.y, self.eta, self.batch = F, x, y, eta, batch

    def first_trip(self, k: int, w_k: Tensor, tau: int) -> tuple[Tensor, float, Tensor]:
        w = w_k.clone()  # line 4
        self.w_k, self.w, self.g, self.tau = w_k, [], [], tau
        for lam in range(tau):  # line 5
            rows = self.batch(k, lam)
            g = gradient(self.F, w, self.x[rows], self.y[rows])  # line 6
            self.w.append(w)
            self.g.append(g)
            w = w - self.eta * g  # line 7, (1)
        self.grad = gradient(self.F, w_k, self.x, self.y)  # line 9
        after = float(self.F(w, self.x, self.y))  # line 9
        return self.grad, after, torch.stack(self.g).sum(0) / tau  # lines 10-12, (6)

    def second_trip(self, grad_before: Tensor) -> tuple[float, float]:
        beta = max(
            float((self.grad - self.g[lam]).norm() / (self.w_k - self.w[lam]).norm()) for lam in range(1, self.tau)
        )  # lines 15-16
        delta = max(
            float(torch.stack(self.g[: lam + 1]).sum(0).norm() ** 2)
            / sum(float(grad_before.norm() ** 2) for _ in range(lam + 1))
            for lam in range(1, self.tau)
        )  # lines 17-18
        return beta, delta


def server(
    clients: list[Client], w: Tensor, eta: float, alpha: float, tau_0: int, tau_max: int, K: int, accept_rule: bool
) -> list[dict[str, Any]]:
    """Algorithm 1. With `accept_rule` off, lines 8-12 accept every round."""
    D = sum(len(c.y) for c in clients)
    p = [len(c.y) / D for c in clients]
    F_m, tau = math.inf, [tau_0] * len(clients)  # line 1
    history: list[dict[str, Any]] = []
    grads: list[Tensor] = []
    models = [w]
    L = 0.0
    for k in range(K):
        first = [c.first_trip(k, w, t) for c, t in zip(clients, tau, strict=True)]  # lines 3-4, 6
        grads.append(sum((q * f[0] for q, f in zip(p, first, strict=True)), torch.zeros_like(w)))  # line 5, (9)
        F = sum(q * f[1] for q, f in zip(p, first, strict=True))  # line 5, (4)
        tau_k = sum(q * t for q, t in zip(p, tau, strict=True))
        d = sum(q * f[2] for q, f in zip(p, first, strict=True))
        after = w - eta * tau_k * d  # line 7, (6)
        accepted = F_m >= F or not accept_rule  # lines 8-12
        if accepted:
            F_m = F
        else:
            after = w
        row: dict[str, Any] = {"tau": list(tau), "tau_k": tau_k, "accepted": accepted, "w": after}
        if k >= 1:  # line 13
            second = [c.second_trip(grads[k - 1]) for c in clients]  # lines 14-15
            if k == 1:
                L_k = float(grads[0].norm() / models[0].norm())  # line 17
            else:
                L_k = float((grads[k - 1] - grads[k - 2]).norm() / (models[k - 1] - models[k - 2]).norm())  # line 19
            L = max(L, L_k) if math.isfinite(L_k) else L  # line 21
            A = [eta * beta**2 * delta for beta, delta in second]
            tau = [max(math.floor(a / (a - alpha * min(A)) + 1e-9), 2) for a in A]  # lines 22, 24-26, (16)
            tau = [min(t, tau_max) for t in tau]
            row |= {"beta": [b for b, _ in second], "delta": [d for _, d in second], "A": A, "L": L}
        w = after
        models.append(w)
        history.append(row)
    return history
