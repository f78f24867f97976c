"""Synthetic data, one writer per client: no download."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedveca.tasks.datasets.archives import DataError
from fedveca.tasks.datasets.dataset import Dataset, Recommended, Request, dataset

FEATURES, CLASSES = 60, 10
CHUNK, BLOCK = 2048, 8  # clients drawn at a time, and rows of a client in one product


@dataset(
    "synthetic",
    "60 numbers of each client's own kind in 10 classes, drawn from the seed",
    Recommended(partition="writer"),
)
def load_synthetic(request: Request) -> Dataset:
    """FedProx's Synthetic(h, h) for h >= 1, mixed with its one shared model below: at h = 0 clients are IID.

    y = argmax(W_i x + b_i), x ~ N(v_i, diag(j^-1.2)), v_i ~ N(B_i, s), B_i ~ N(0, h^2), and (W_i, b_i) is
    sqrt(1 - s) of a shared and sqrt(s) of an own standard normal draw, s = min(h, 1). The paper's u_i, which
    moves all logits of a client alike and so no label, is left out.
    """
    clients, heterogeneity = request.clients, request.heterogeneity
    if clients < 1:
        raise DataError(f"synthetic needs at least 1 client, not {clients}")
    if not 0 <= heterogeneity < math.inf:
        raise DataError(f"heterogeneity is a finite number from 0 up, not {heterogeneity}")
    rng = torch.Generator().manual_seed(request.seed)
    share = min(heterogeneity, 1.0)
    sizes = draw_sizes(clients, rng)
    common = torch.randn(FEATURES + 1, CLASSES, generator=rng)
    spread = torch.arange(1, FEATURES + 1).pow(-0.6)  # sd: variances j^-1.2
    rows, tests = int(sizes.sum()), int((sizes // 5).sum())
    x, x_test = torch.empty(rows, FEATURES), torch.empty(tests, FEATURES)  # filled as drawn: nothing lies twice
    y, y_test = torch.empty(rows, dtype=torch.int64), torch.empty(tests, dtype=torch.int64)
    at = at_test = 0
    for n in torch.split(sizes, CHUNK):
        model = torch.randn(len(n), FEATURES + 1, CLASSES, generator=rng)
        model.mul_(math.sqrt(share)).add_(math.sqrt(1 - share) * common)
        centre = math.sqrt(share) * torch.randn(len(n), FEATURES, generator=rng)
        centre = centre + heterogeneity * torch.randn(len(n), 1, generator=rng)
        blocks = (n + n // 5 + BLOCK - 1) // BLOCK
        who = torch.arange(len(n)).repeat_interleave(blocks)
        drawn = torch.randn(len(who), BLOCK, FEATURES, generator=rng).mul_(spread).add_(centre[who, None])
        label = torch.baddbmm(model[who, -1:], drawn, model[who, :-1]).argmax(2)
        first = (torch.arange(len(who)) - (blocks.cumsum(0) - blocks)[who]) * BLOCK
        row, last = first[:, None] + torch.arange(BLOCK), n[who, None]  # of its client, [blocks, BLOCK]
        train, test = row < last, (row >= last) & (row < last + last // 5)
        stop, stop_test = at + int(n.sum()), at_test + int((n // 5).sum())
        x[at:stop], y[at:stop] = drawn[train], label[train]
        x_test[at_test:stop_test], y_test[at_test:stop_test] = drawn[test], label[test]
        at, at_test = stop, stop_test
    writer = torch.arange(clients).repeat_interleave(sizes)
    return Dataset("synthetic", x, y, x_test, y_test, CLASSES, "as-is", writer)


def draw_sizes(clients: int, rng: torch.Generator) -> Tensor:
    """Training rows of each client: about 100 on average, down to 20 where clients are many; skewed, [N]."""
    mean = min(100.0, max(20.0, 100_000 / clients))
    tail = torch.exp(torch.randn(clients, generator=rng) - 0.5)  # lognormal, mean 1
    return (mean * (0.5 + 0.5 * tail).clamp(max=10)).long()
