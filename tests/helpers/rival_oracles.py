"""The rivals' papers, line by line and slowly: one client at a time, explicit loops, plain autograd.

Departures that all methods of the package share: means have the weights p_i, the clients' shares of the rows of those
that take part; a local step is one mini-batch, and a round has a fixed number of them per client.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fedveca.cohorts.random import draw_rows, sample_clients

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]  # w [P], x, y -> F


class Federation(NamedTuple):
    """Clients and the draws of the package."""

    F: Loss
    rows: list[tuple[Tensor, Tensor]]  # x and y of each client
    tau: list[int]
    batch: int
    seed: int
    asked: int  # clients per round

    def who(self, k: int) -> list[int]:
        return sample_clients(self.seed, k, len(self.rows), self.asked).tolist()

    def share(self, i: int) -> float:
        return len(self.rows[i][1]) / sum(len(y) for _, y in self.rows)

    def weights(self, who: list[int]) -> dict[int, float]:
        return {i: self.share(i) / sum(self.share(j) for j in who) for i in who}

    def grad(self, i: int, k: int, step: int, w: Tensor) -> Tensor:
        """Of the mini-batch of client i's step."""
        x, y = self.rows[i]
        at = draw_rows(self.seed, k, torch.tensor([i]), torch.tensor([len(y)]), step + 1, self.batch)[0, step]
        return gradient(self.F, w, x[at], y[at])

    def full(self, i: int, w: Tensor) -> Tensor:
        return gradient(self.F, w, *self.rows[i])


def gradient(F: Loss, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    leaf = w.clone().requires_grad_()
    return torch.autograd.grad(F(leaf, x, y), leaf)[0]


def feddyn(f: Federation, w: Tensor, lr: float, a: float) -> Iterator[Tensor]:
    """Algorithm 1 of Acar et al.; grad L_k(theta_k) is kept as the paper updates it."""
    h, kept = torch.zeros_like(w), [torch.zeros_like(w) for _ in f.rows]
    k = 0
    while True:
        p, models = f.weights(f.who(k)), {}
        for i in f.who(k):
            theta = w.clone()
            for step in range(f.tau[i]):
                theta = theta - lr * (f.grad(i, k, step, theta) - kept[i] + a * (theta - w))
            kept[i] = kept[i] - a * (theta - w)
            models[i] = theta
        for i, theta in models.items():
            h = h - a * f.share(i) * (theta - w)  # 1/m of all clients
        w = sum((p[i] * theta for i, theta in models.items()), torch.zeros_like(w)) - h / a
        yield w
        k += 1


def fedexp(f: Federation, w: Tensor, lr: float, eps: float) -> Iterator[Tensor]:
    k = 0
    while True:
        p, updates = f.weights(f.who(k)), {}
        for i in f.who(k):
            local = w.clone()
            for step in range(f.tau[i]):
                local = local - lr * f.grad(i, k, step, local)
            updates[i] = w - local
        mean = sum((p[i] * d for i, d in updates.items()), torch.zeros_like(w))
        squares = sum(p[i] * float((d**2).sum()) for i, d in updates.items())
        w = w - max(1.0, squares / (2 * (float((mean**2).sum()) + eps))) * mean
        yield w
        k += 1


def fedacg(f: Federation, w: Tensor, lr: float, lam: float, beta: float) -> Iterator[Tensor]:
    m, k = torch.zeros_like(w), 0
    while True:
        p, sent, mean = f.weights(f.who(k)), w + lam * m, torch.zeros_like(w)
        for i in f.who(k):
            local = sent.clone()
            for step in range(f.tau[i]):
                local = local - lr * (f.grad(i, k, step, local) + beta * (local - sent))
            mean = mean + p[i] * (local - sent)
        m = lam * m + mean
        w = w + m
        yield w
        k += 1


def mimelite(f: Federation, w: Tensor, lr: float, beta: float) -> Iterator[Tensor]:
    m, k = torch.zeros_like(w), 0
    while True:
        p = f.weights(f.who(k))
        mean, grad = torch.zeros_like(w), torch.zeros_like(w)
        for i in f.who(k):
            y = w.clone()
            for step in range(f.tau[i]):
                y = y - lr * ((1 - beta) * f.grad(i, k, step, y) + beta * m)
            mean, grad = mean + p[i] * y, grad + p[i] * f.full(i, w)
        m = (1 - beta) * grad + beta * m
        w = mean
        yield w
        k += 1


def scaffnew(f: Federation, w: Tensor, lr: float) -> Iterator[Tensor]:
    """Algorithm 2 of Mishchenko et al. with a coin that shows 1 after every tau-th step, in which p = 1 / tau.

    The server tells each of those that took part w_(k+1) at once where all take part; else when they come again.
    """
    h = [torch.zeros_like(w) for _ in f.rows]
    waiting: dict[int, Tensor] = {}  # models of clients that have not learnt yet what became of them
    k = 0
    while True:
        p, models = f.weights(f.who(k)), {}
        for i in f.who(k):
            if i in waiting:
                h[i] = h[i] + (1 / f.tau[i]) / lr * (w - waiting.pop(i))
            x = w.clone()
            for step in range(f.tau[i]):
                x = x - lr * (f.grad(i, k, step, x) - h[i])
            models[i] = x
        total = sum(p[i] / f.tau[i] for i in models)  # 1 / tau cancels where all take equally many steps
        w = sum((p[i] / f.tau[i] / total * x for i, x in models.items()), torch.zeros_like(w))
        waiting |= models
        yield w
        k += 1


Scores = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # w [P], x -> scores and the features before the last layer


def fedlc(f: Federation, w: Tensor, lr: float, tau: float, score: Scores) -> Iterator[Tensor]:
    k = 0
    while True:
        p, mean = f.weights(f.who(k)), torch.zeros_like(w)
        for i in f.who(k):
            x, y = f.rows[i]
            local, shift = w.clone(), [tau * max(y.tolist().count(c), 1e-8) ** -0.25 for c in range(10)]
            for step in range(f.tau[i]):
                at = draw_rows(f.seed, k, torch.tensor([i]), torch.tensor([len(y)]), step + 1, f.batch)[0, step]
                leaf = local.clone().requires_grad_()
                scores, total = score(leaf, x[at])[0], torch.zeros(())
                for row, label in enumerate(y[at].tolist()):
                    e = [torch.exp(scores[row, c] - shift[c]) for c in range(10)]
                    total = total - torch.log(e[label] / sum(e))
                local = local - lr * torch.autograd.grad(total / len(at), leaf)[0]
            mean = mean + p[i] * local
        w = mean
        yield w
        k += 1


def moon(f: Federation, w: Tensor, lr: float, mu: float, temperature: float, score: Scores) -> Iterator[Tensor]:
    """Algorithm 1 of Li et al.; a client's first round has the global model for its previous one."""
    previous: dict[int, Tensor] = {}
    k = 0
    while True:
        p, mean = f.weights(f.who(k)), torch.zeros_like(w)
        for i in f.who(k):
            x, y = f.rows[i]
            local = w.clone()
            for step in range(f.tau[i]):
                at = draw_rows(f.seed, k, torch.tensor([i]), torch.tensor([len(y)]), step + 1, f.batch)[0, step]
                leaf = local.clone().requires_grad_()
                scores, z = score(leaf, x[at])
                z_glob, z_prev = score(w, x[at])[1], score(previous.get(i, w), x[at])[1]
                total = torch.nn.functional.cross_entropy(scores, y[at])
                for row in range(len(at)):
                    a = z[row] @ z_glob[row] / (z[row].norm() * z_glob[row].norm())
                    b = z[row] @ z_prev[row] / (z[row].norm() * z_prev[row].norm())
                    near, far = torch.exp(a / temperature), torch.exp(b / temperature)
                    total = total - mu / len(at) * torch.log(near / (near + far))
                local = local - lr * torch.autograd.grad(total, leaf)[0]
            previous[i] = local.detach()
            mean = mean + p[i] * local.detach()
        w = mean
        yield w
        k += 1


# methods that choose tau by the second: a round yields its model and the local steps with which it was made

Seconds = Callable[[int, int], tuple[float, float]]  # client, its local steps -> seconds of the steps, and of the rest


def take_steps(f: Federation, i: int, k: int, w: Tensor, lr: float, tau: int) -> Tensor:
    for step in range(tau):
        w = w - lr * f.grad(i, k, step, w)
    return w


def adaptivetau(
    f: Federation, w: Tensor, lr: float, phi: float, R: float, tau_max: int, seconds: Seconds
) -> Iterator[tuple[Tensor, list[int]]]:
    """Algorithms 2 and 3 of Wang et al., without mini-batches in the estimates; delta is a root mean square."""
    tau, k = f.tau[0], 0
    c = b = 0.0  # not known
    local: dict[int, Tensor] = {}  # w_i before the last aggregation of which the client was part
    while True:
        p = f.weights(f.who(k))
        rho, beta = dict[int, float](), dict[int, float]()
        for i in p:
            if i in local:
                x, y = f.rows[i]
                far = float((local[i] - w).norm())
                rho[i] = abs(float(f.F(local[i], x, y) - f.F(w, x, y))) / far
                beta[i] = float((f.full(i, local[i]) - f.full(i, w)).norm()) / far
        grads = {i: f.full(i, w) for i in p}
        grad = sum((p[i] * g for i, g in grads.items()), torch.zeros_like(w))
        delta = sum(p[i] * float((g - grad).norm()) ** 2 for i, g in grads.items()) ** 0.5
        local |= {i: take_steps(f, i, k, w, lr, tau) for i in p}
        w = sum((p[i] * local[i] for i in p), torch.zeros_like(w))
        yield w, [tau] * len(p)
        took = {i: seconds(i, tau) for i in p}
        if rho and c:
            all_of = sum(p[i] for i in rho)
            rho_, beta_ = (sum(p[i] * v[i] / all_of for i in v) for v in (rho, beta))
            gaps = {}
            for new in range(1, min(10 * tau, tau_max) + 1):
                h = delta / beta_ * ((lr * beta_ + 1) ** new - 1) - lr * delta * new
                T = (R - b - c) * new / (c * new + b)
                root = (1 + 4 * lr * phi * T**2 * rho_ * h / new) ** 0.5
                gaps[new] = (1 + root) / (2 * lr * phi * T) + rho_ * h
            new = min(gaps, key=gaps.__getitem__)
        else:
            new = tau
        longest = max(s for s, _ in took.values())
        c, b = longest / tau, max(s + rest for s, rest in took.values()) - longest
        tau, k = new, k + 1


def adacomm(
    f: Federation, w: Tensor, lr: float, T0: float, gamma: float, seconds: Seconds
) -> Iterator[tuple[Tensor, list[int]]]:
    """The rule of Wang and Joshi for a constant learning rate; F is that of the round's first model."""
    taus, k, clock, decided, F0 = list(f.tau), 0, 0.0, 0, 0.0
    while True:
        p = f.weights(f.who(k))
        F = sum(p[i] * float(f.F(w, *f.rows[i])) for i in p)
        F0 = F0 or F
        models = {i: take_steps(f, i, k, w, lr, taus[i]) for i in p}
        w = sum((p[i] * models[i] for i in p), torch.zeros_like(w))
        yield w, [taus[i] for i in p]
        clock += max(sum(seconds(i, taus[i])) for i in p)
        if int(clock / T0) > decided:
            decided = int(clock / T0)
            for i, tau_0 in enumerate(f.tau):
                new = math.ceil((F / F0) ** 0.5 * tau_0)
                taus[i] = new if new < taus[i] else max(1, math.ceil(gamma * taus[i]))
        k += 1


def fedveca_time(
    f: Federation, w: Tensor, lr: float, alpha: float, tau_max: int, seconds: Seconds
) -> Iterator[tuple[Tensor, list[int]]]:
    """FedVeca's Algorithms 1 and 2, and then every end of a step as the end of the next round."""
    taus, k, grad_last = list(f.tau), 0, torch.zeros_like(w)
    while True:
        p, G, A = f.weights(f.who(k)), dict[int, Tensor](), dict[int, float]()
        g0 = {i: f.full(i, w) for i in p}
        for i in p:
            x, total, beta, delta = w.clone(), torch.zeros_like(w), 0.0, 0.0
            for step in range(taus[i]):
                g = f.grad(i, k, step, x)
                total = total + g
                if step:
                    beta = max(beta, float((g0[i] - g).norm() / (w - x).norm()))
                    delta = max(delta, float(total.norm()) ** 2 / (step + 1) / max(1e-30, float(grad_last.norm()) ** 2))
                x = x - lr * g
            G[i], A[i] = (w - x) / (lr * taus[i]), lr * beta**2 * delta
        tau_k = sum(p[i] * taus[i] for i in p)
        took = {i: seconds(i, taus[i]) for i in p}
        w = w - lr * tau_k * sum((p[i] * G[i] for i in p), torch.zeros_like(w))
        yield w, [taus[i] for i in p]
        if k:
            cap = {i: min(tau_max, max(2, int(A[i] / (A[i] - alpha * min(A.values())) + 1e-9))) for i in p}
            s, rest = {i: took[i][0] / taus[i] for i in p}, {i: took[i][1] for i in p}
            best = (0.0, 0.0, dict[int, int]())
            for i in p:
                for t in range(2, cap[i] + 1):
                    T = max([rest[i] + t * s[i], *(rest[j] + 2 * s[j] for j in p)])
                    fit = {j: max(u for u in range(2, cap[j] + 1) if rest[j] + u * s[j] <= T * (1 + 1e-9)) for j in p}
                    rate = sum(p[j] * fit[j] for j in p) / T
                    best = max(best, (round(rate, 9), T, fit), key=lambda one: one[:2])
            for i, t in best[2].items():
                taus[i] = t
        grad_last, k = sum((p[i] * g0[i] for i in p), torch.zeros_like(w)), k + 1
