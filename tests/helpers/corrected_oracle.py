"""FedVeca corrected as docs/corrected.md describes it, slowly: one client after another, numbers in plain Python.

Vectors are float64, c is computed anew in every round from all c_i, and log A is kept as each client's own part, from
which the round's part is taken away. The floor of (16) is taken a billionth above its argument, as for FedVeca.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]  # w [P], x, y -> F
SMOOTH, PROBE_STEPS = 0.5, 2.0  # the defaults


class CorrectedRound(NamedTuple):
    tau: list[int]  # of the clients that took part
    A: list[float]  # averaged, up to a factor; empty in the first round
    w: Tensor


class CorrectedClient:
    """Its rows, its draws, and the mean of its own gradients in the last round in which it took part."""

    def __init__(self, F: Loss, x: Tensor, y: Tensor, eta: float, batch: Callable[[int, int], Tensor]) -> None:
        self.F, self.x, self.y, self.eta, self.batch = F, x, y, eta, batch
        self.c: Tensor | None = None

    def gradient(self, w: Tensor, rows: Tensor | slice) -> Tensor:
        leaf = w.clone().requires_grad_()
        return torch.autograd.grad(self.F(leaf, self.x[rows], self.y[rows]), leaf)[0]

    def train(self, k: int, w_k: Tensor, c: Tensor, tau: int) -> tuple[Tensor, Tensor, float, float]:
        """grad F_i(w_k), G_i, beta_i, and the numerator of delta_i over (lambda + 1)."""
        full = self.gradient(w_k, slice(None))
        own = c if self.c is None else self.c
        w, models, raw, steps = w_k, [], [], []
        for lam in range(tau):
            models.append(w)
            raw.append(self.gradient(w, self.batch(k, lam)))
            steps.append(raw[-1] - own + c)
            w = w - self.eta * steps[-1]
        beta = spread = 0.0
        for lam in range(1, tau):
            beta = max(beta, length(full - raw[lam]) / length(w_k - models[lam]))
            spread = max(spread, length(add(steps[: lam + 1])) ** 2 / (lam + 1))
        self.c = add(raw) / tau
        return full, add(steps) / tau, beta, spread


def follow_corrected(
    clients: list[CorrectedClient],
    w: Tensor,
    alpha: float,
    tau_0: int,
    tau_max: int,
    who: Callable[[int], list[int]],
) -> Iterator[CorrectedRound]:
    eta, tau = clients[0].eta, [tau_0] * len(clients)
    own: dict[int, float] = {}  # log A_i without the round's part
    before: Tensor | None = None
    k = 0
    while True:
        here = who(k)
        seen = [client for client in clients if client.c is not None]
        rows = sum(len(client.y) for client in seen)
        c = add([len(client.y) / rows * client.c for client in seen if client.c is not None], w)
        took = [tau[i] for i in here]
        found = [clients[i].train(k, w, c, tau[i]) for i in here]
        p = [len(clients[i].y) / sum(len(clients[j].y) for j in here) for i in here]
        full = add([q * answer[0] for q, answer in zip(p, found, strict=True)])
        d = add([q * answer[1] for q, answer in zip(p, found, strict=True)])
        tau_k = sum(q * t for q, t in zip(p, took, strict=True))
        w = w - eta * (tau_k * d + PROBE_STEPS * full)
        A = list[float]()
        if before is not None:
            log_A = {
                i: math.log(eta * beta**2 * spread / length(before) ** 2)
                for i, (_, _, beta, spread) in zip(here, found, strict=True)
            }
            old = [i for i in here if i in own]
            level = sum(log_A[i] - own.get(i, 0.0) for i in old or here) / len(old or here)
            for i in here:
                now = log_A[i] - level
                own[i] = SMOOTH * own[i] + (1 - SMOOTH) * now if i in own else now
            A = [math.exp(own[i]) for i in here]
            for i, q, a in zip(here, p, A, strict=True):
                steps = min(max(math.floor(a / (a - alpha * min(A)) + 1e-9), 2), tau_max)
                tau[i] = min(max(round(steps * q * len(here)), 2), tau_max)
        before = full
        yield CorrectedRound(took, A, w)
        k += 1


def length(v: Tensor) -> float:
    return math.sqrt(sum(number * number for number in v.tolist()))


def add(vectors: list[Tensor], like: Tensor | None = None) -> Tensor:
    total = torch.zeros_like(vectors[0] if like is None else like)
    for v in vectors:
        total = total + v
    return total
