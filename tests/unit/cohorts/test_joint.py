"""Walks of several runs: passes that fit together are one, and each walk finds what it finds alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedveca.cohorts.local.joint import Failure, Pass, PassWalk, take_alone, take_together
from fedveca.errors import UserError
from fedveca.tasks.layers import LinearLayers
from fedveca.tasks.module_problem import ModuleProblem
from fedveca.tasks.svm import SquaredSvm

B = 16


@pytest.fixture(autouse=True)
def _without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """In C the layers of one run are as quick alone."""
    monkeypatch.setenv("FEDVECA_KERNELS", "off")


def perceptron(inputs: int = 64, outputs: int = 10) -> ModuleProblem:
    torch.manual_seed(0)
    return ModuleProblem(nn.Sequential(nn.Flatten(), nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs)))


def same(found: object, want: Tensor) -> bool:
    return isinstance(found, Tensor) and torch.equal(found, want)


def descend(
    problem: Any, n: int, steps: int, seed: int, *, unit: float = 1.0, weighted: bool = False, inputs: int = 64
) -> PassWalk[Tensor]:
    """Gradient steps of n clients; like a cohort's rows, those of a step are in a buffer that the next one fills."""
    draw, x = torch.Generator().manual_seed(seed), BUFFER[:n, :, :inputs]
    w = problem.init() + 0.1 * torch.randn(n, problem.size, generator=draw)
    weight = torch.rand(n, B, generator=draw) if weighted else None
    for _ in range(steps):
        x.copy_(torch.randn(n, B, inputs, generator=draw))
        y = torch.randint(0, 10, (n, B), generator=draw)
        F, g = yield Pass(problem, w, x, y, unit, weight, training=not weighted)
        assert bool(F.isnan().all()) is not weighted
        w = w - 0.1 * g
    return w


BUFFER = torch.empty(12, B, 64)
WALKS: list[dict[str, Any]] = [
    {"n": 3, "steps": 4, "seed": 0},
    {"n": 2, "steps": 6, "seed": 1, "unit": 0.5},
    {"n": 9, "steps": 1, "seed": 2},
    {"n": 2, "steps": 3, "seed": 3, "weighted": True},
    {"n": 1, "steps": 3, "seed": 4, "weighted": True},
    {"n": 1, "steps": 0, "seed": 5},
]


def test_each_walk_finds_what_it_finds_alone() -> None:
    problem = perceptron()
    together = take_together([descend(problem, **mine) for mine in WALKS])
    for found, mine in zip(together, WALKS, strict=True):
        assert same(found, take_alone(descend(perceptron(), **mine))), mine


def test_problems_of_different_runs_share_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    problems = [perceptron() for _ in range(3)]
    for problem in problems:
        take_alone(descend(problem, 2, 1, 7))  # each has compared its own layers
    real = LinearLayers.gradients

    def count(self: LinearLayers, w: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        seen.append(len(w))
        return real(self, w, *args, **kwargs)

    monkeypatch.setattr(LinearLayers, "gradients", count)
    take_together([descend(problem, 2, steps, 8) for problem, steps in zip(problems, (5, 5, 2), strict=True)])
    assert seen == [6, 6, 4, 4, 4]


def test_other_sizes_and_other_models_pass_alone() -> None:
    svm = SquaredSvm(64)
    walks = [
        descend(perceptron(), 2, 3, 0),
        descend(perceptron(48), 2, 3, 1, inputs=48),
        descend(svm, 2, 3, 2),
        descend(perceptron(), 2, 3, 3),
    ]
    alone = [
        descend(perceptron(), 2, 3, 0),
        descend(perceptron(48), 2, 3, 1, inputs=48),
        descend(svm, 2, 3, 2),
        descend(perceptron(), 2, 3, 3),
    ]
    for found, walk in zip(take_together(walks), alone, strict=True):
        assert same(found, take_alone(walk))


def test_a_walk_that_fails_leaves_the_others_alone() -> None:
    problem = perceptron()

    def fail() -> PassWalk[Tensor]:
        yield from descend(problem, 2, 2, 1)
        raise UserError("no more")

    first, failed, last = take_together([descend(problem, 2, 4, 0), fail(), descend(problem, 2, 4, 2)])
    assert isinstance(failed, Failure)
    assert str(failed.error) == "no more"
    assert same(first, take_alone(descend(problem, 2, 4, 0)))
    assert same(last, take_alone(descend(problem, 2, 4, 2)))


def test_rows_at_another_alignment_do_not_join() -> None:
    layers = perceptron(13).layers
    assert layers
    assert layers.fits_others(torch.empty(2, 16, 13))
    assert not layers.fits_others(torch.empty(2, 15, 13))


def test_no_walks() -> None:
    assert take_together([]) == []
