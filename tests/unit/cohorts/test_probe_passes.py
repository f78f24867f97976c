"""Captured passes of a probe: which rows each of them has, computed here without a CUDA device."""

from __future__ import annotations

import doctest
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from fedveca.cohorts.local import probe
from fedveca.cohorts.local.chunks import Chunk
from fedveca.cohorts.local.probe import ProbedModel, ProbePasses, choose_pass_rows
from fedveca.cohorts.local.rows import ClientRows
from fedveca.tasks.datasets.dataset import load
from fedveca.tasks.models import model
from fedveca.tasks.partition import partition


class EagerLanes:
    """The lanes of a CUDA device, one client after another."""

    size = 16

    def __init__(self, passes: ProbePasses) -> None:
        self.passes, self.rows = passes, list[int]()

    def probe(
        self, w: Tensor, index: Tensor, weight: Tensor, passes: list[int], running: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor]:
        F, g = torch.zeros(len(w)), torch.zeros_like(w)
        for i, count in enumerate(passes):
            for k in range(count):
                x, y = self.passes.rows.pick(index[i : i + 1, k])
                more = self.passes.problem.gradients(w[i : i + 1], x, y, weight[i : i + 1, k])
                F[i], g[i] = F[i] + more[0][0], g[i] + more[1][0]
            assert not bool(weight[i, count:].any())  # passes that are left out have no row that counts
            self.rows.append(count * index.shape[2])
        return F, g


@pytest.mark.parametrize("block", [17, 60, 4096])
@pytest.mark.parametrize("probed", [40, 10_000])
def test_passes_on_lanes_are_the_client_alone(block: int, probed: int) -> None:
    data, device = load("digits"), torch.device("cpu")
    shares = partition("dirichlet", data.y, 10, 6, seed=1)
    problem = model("mlp", (1, 8, 8), 10)
    passes = ProbePasses(problem, ClientRows(data.x, data.y, shares.rows, data.pixels, device), device, block, 10**6)
    ids = torch.arange(6)
    chunk = Chunk.make(ids, torch.ones_like(ids), shares.start, device)
    counts = [min(probed, int(size)) for size in shares.sizes]
    w = problem.init() + 0.1 * torch.randn(6, problem.size, generator=torch.Generator().manual_seed(0))
    lanes = EagerLanes(passes)
    F, g = passes.on_lanes(cast(Any, lanes), w, None, chunk, counts)
    for i, count in enumerate(counts):
        start, size = int(shares.start[i]), int(shares.sizes[i])
        ((F_i, g_i),) = passes.alone([ProbedModel(problem, w[i], None)], start, size, count, True)
        torch.testing.assert_close(F[i], F_i, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(g[i], g_i, rtol=1e-4, atol=1e-6)
    assert sum(lanes.rows) <= 1.3 * sum(counts) + 6 * min(block, max(counts)) / 2


def test_pass_rows_are_bounded_and_pad_little() -> None:
    for counts, most in (([1], 1), ([100, 1], 7), ([8334, 8333, 8333, 10000, 15000], 8192), ([60000], 8192)):
        rows = choose_pass_rows(counts, most)
        assert 1 <= rows <= most
        padded = sum(-(-count // rows) * rows for count in counts)
        whole = -(-max(counts) // most) * most * len(counts)  # passes of the largest size for everybody
        assert padded <= whole
    assert doctest.testmod(probe).failed == 0
