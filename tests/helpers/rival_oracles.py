"""The rivals' papers, line by line and slowly: one client at a time, explicit loops, plain autograd.

Departures that all methods of the package share: means have the weights p_i, the clients' shares of the rows of those
that take part; a local step is one mini-batch, and a round has a fixed number of them per client.
"""

from __future__ import annotations

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
