"""FedVeca corrected and FedVecaM as their pages describe them, slowly: one client after another, in plain Python.

Vectors are float64, FedVeca corrected computes c anew in every round from all c_i, and log A is kept as each client's
own part, from which the round's part is taken away. The floor of (16) is taken a billionth above its argument, as for
FedVeca.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]  # w [P], x, y -> F
SMOOTH, PROBE_STEPS, LOOKAHEAD = 0.5, 2.0, 0.8  # the defaults
WARM_UP, RECENCY = 3, 8


class Rules(NamedTuple):
    alpha: float
    tau_0: int
    tau_max: int
    who: Callable[[int], list[int]]  # takes part in round k


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
        trust = self.trust(own, full)
        w, models, raw, steps = w_k, [], [], []
        for lam in range(tau):
            models.append(w)
            raw.append(self.gradient(w, self.batch(k, lam)))
            steps.append(raw[-1] + trust * (c - own))
            w = w - self.eta * steps[-1]
        beta = spread = 0.0
        for lam in range(1, tau):
            beta = max(beta, length(full - raw[lam]) / length(w_k - models[lam]))
            spread = max(spread, length(add(steps[: lam + 1])) ** 2 / (lam + 1))
        self.c = add(raw) / tau
        return full, add(steps) / tau, beta, spread

    def trust(self, own: Tensor, full: Tensor) -> float:
        """Of FedVeca corrected: what a client remembers counts in full."""
        return 1.0


class TrustingClient(CorrectedClient):
    """FedVecaM's."""

    def trust(self, own: Tensor, full: Tensor) -> float:
        lengths = length(own) * length(full)
        inner = sum(a * b for a, b in zip(own.tolist(), full.tolist(), strict=True))
        return max(0.0, inner / lengths) if lengths else 0.0


class Answers(NamedTuple):
    """What a round's clients sent, and how many steps (16) gives each of them next; none in the first round."""

    p: dict[int, float]
    tau: list[int]
    tau_k: float
    full: Tensor  # grad F at the model that they were sent
    d: Tensor
    A: list[float]
    steps: dict[int, int]


class CorrectedServer:
    """What both methods share: c, the mean directions, and A averaged over rounds."""

    def __init__(self, clients: list[CorrectedClient], rules: Rules) -> None:
        self.clients, self.rules = clients, rules
        self.tau = [rules.tau_0] * len(clients)
        self.own: dict[int, float] = {}  # log A_i without the round's part
        self.before: Tensor | None = None  # grad F of the round before

    def average_c(self, w: Tensor) -> Tensor:
        """The mean of the c_i over the clients ever seen, by their rows."""
        rows = self.count_rows()
        return add([len(client.y) / rows * client.c for client in self.clients if client.c is not None], w)

    def count_rows(self) -> int:
        """Of the clients ever seen."""
        return sum(len(client.y) for client in self.clients if client.c is not None)

    def ask(self, k: int, w: Tensor, c: Tensor) -> Answers:
        here, clients, eta = self.rules.who(k), self.clients, self.clients[0].eta
        took = [self.tau[i] for i in here]
        found = [clients[i].train(k, w, c, self.tau[i]) for i in here]
        p = {i: len(clients[i].y) / sum(len(clients[j].y) for j in here) for i in here}
        full = add([p[i] * answer[0] for i, answer in zip(here, found, strict=True)])
        d = add([p[i] * answer[1] for i, answer in zip(here, found, strict=True)])
        tau_k = sum(p[i] * t for i, t in zip(here, took, strict=True))
        A, steps = list[float](), dict[int, int]()
        if self.before is not None:
            own = self.own
            log_A = {
                i: math.log(eta * beta**2 * spread / length(self.before) ** 2)
                for i, (_, _, beta, spread) in zip(here, found, strict=True)
            }
            old = [i for i in here if i in own]
            level = sum(log_A[i] - own.get(i, 0.0) for i in old or here) / len(old or here)
            for i in here:
                now = log_A[i] - level
                own[i] = SMOOTH * own[i] + (1 - SMOOTH) * now if i in own else now
            A = [math.exp(own[i]) for i in here]
            for i, a in zip(here, A, strict=True):
                steps[i] = self.bound(math.floor(a / (a - self.rules.alpha * min(A)) + 1e-9))
        self.before = full
        return Answers(p, took, tau_k, full, d, A, steps)

    def bound(self, steps: int) -> int:
        return min(max(steps, 2), self.rules.tau_max)


def follow_corrected(clients: list[CorrectedClient], w: Tensor, rules: Rules) -> Iterator[CorrectedRound]:
    server, eta = CorrectedServer(clients, rules), clients[0].eta
    for k in itertools.count():
        answers = server.ask(k, w, server.average_c(w))
        w = w - eta * (answers.tau_k * answers.d + PROBE_STEPS * answers.full)
        for i, steps in answers.steps.items():
            server.tau[i] = server.bound(round(steps * answers.p[i] * len(answers.p)))
        yield CorrectedRound(answers.tau, answers.A, w)


def follow_fedvecam(clients: list[CorrectedClient], w: Tensor, rules: Rules) -> Iterator[CorrectedRound]:
    """The clients start ahead of z, and share len(here) * tau_0 steps among them.

    The model is the mean of all z so far, z_j with the weight j (j + 1) ... (j + 7).
    c moves towards the mean of the round's c_i, by the rows of the round as a part of all rows ever seen.
    """
    server, eta, m, c = CorrectedServer(clients, rules), clients[0].eta, torch.zeros_like(w), torch.zeros_like(w)
    z, weights, models = w, list[int](), list[Tensor]()
    for k in itertools.count():
        lookahead = min(LOOKAHEAD, k / (k + WARM_UP))
        answers = server.ask(k, z + lookahead * m, c)
        m = lookahead * m - eta * answers.tau_k * answers.d
        z = z + m
        models.append(z)
        weights.append(math.prod(range(k + 1, k + 1 + RECENCY)))
        w = add([weight / sum(weights) * model for weight, model in zip(weights, models, strict=True)])
        mine = [answers.p[i] * client.c for i, client in enumerate(clients) if i in answers.p and client.c is not None]
        part = sum(len(clients[i].y) for i in answers.p) / server.count_rows()
        c = (1 - part) * c + part * add(mine)
        parts = {i: steps * answers.p[i] for i, steps in answers.steps.items()}
        for i, part in parts.items():
            server.tau[i] = server.bound(round(part / sum(parts.values()) * len(parts) * rules.tau_0))
        yield CorrectedRound(answers.tau, answers.A, w)


def length(v: Tensor) -> float:
    return math.sqrt(sum(number * number for number in v.tolist()))


def add(vectors: list[Tensor], like: Tensor | None = None) -> Tensor:
    total = torch.zeros_like(vectors[0] if like is None else like)
    for v in vectors:
        total = total + v
    return total
