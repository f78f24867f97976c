"""Layers without autograd: the same bytes as with it, and autograd for every model that is anything else."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedveca.tasks.layers import Way
from fedveca.tasks.losses import WeightedCrossEntropy, cross_entropy
from fedveca.tasks.module_problem import FEW, ModuleProblem

G = torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True)
def _without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """In C the layers are computed without PyTorch."""
    monkeypatch.setenv("FEDVECA_KERNELS", "off")


def perceptron(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def case(problem: ModuleProblem, n: int, B: int, inputs: int, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    w = problem.init() + 0.1 * torch.randn(n, problem.size, generator=G)
    return w, torch.randn(n, B, inputs, generator=G), torch.randint(0, classes, (n, B), generator=G)


@pytest.mark.parametrize("widths", [(64, 64, 10), (64, 33, 10), (13, 2), (784, 10), (9, 7, 5, 2)])
@pytest.mark.parametrize("B", [1, 7, 32, 100])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_bytes_are_those_of_autograd(widths: tuple[int, ...], B: int, weighted: bool) -> None:
    for n in (1, 3, FEW, FEW + 2):
        problem = ModuleProblem(perceptron(*widths))
        assert problem.layers
        w, x, y = case(problem, n, B, widths[0], widths[-1])
        weight = torch.rand(n, B, generator=G) if weighted else None
        kind = (B, weighted)
        problem.gradients(w, x, y, weight)
        way = problem.layers.find_way(kind)
        assert way in ("batched", "each")
        w, x, y = case(problem, n, B, widths[0], widths[-1])
        found = problem.gradients(w, x, y, weight)
        want = problem._find_alone(w, x, y, weight)
        assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True)), way


@pytest.mark.parametrize("B", [16, 32, 100])
@pytest.mark.parametrize("widths", [(64, 64, 10), (784, 10), (64, 33, 10)])
def test_a_clients_bytes_do_not_depend_on_the_others(widths: tuple[int, ...], B: int) -> None:
    layers = ModuleProblem(perceptron(*widths)).layers
    assert layers
    w, x, y = case(ModuleProblem(perceptron(*widths)), 24, B, widths[0], widths[-1])
    everyone = layers.gradients(w, x, y)
    for first, n in ((0, 1), (3, 2), (7, 5), (11, 13)):
        some = slice(first, first + n)
        mine = layers.gradients(w[some].clone(), x[some].clone(), y[some])
        assert all(torch.equal(a, b[some]) for a, b in zip(mine, everyone, strict=True))


def test_the_first_pass_of_a_kind_tries_the_ways() -> None:
    problem = ModuleProblem(perceptron(64, 32, 10))
    assert problem.layers
    w, x, y = case(problem, 2, 8, 64, 10)
    assert problem.layers.find_way((8, False)) is None
    first = problem.slope(w, x, y)
    assert problem.layers.find_way((8, False)) in ("batched", "each")
    assert torch.equal(problem.slope(w, x, y), first)
    assert problem.layers.find_way((4, False)) is None
    assert problem.layers.find_way((8, True)) is None


@pytest.mark.parametrize("widths", [(64, 64, 10), (784, 10), (64, 33, 10)])
@pytest.mark.parametrize("B", [1, 4, 32])
def test_the_way_depends_neither_on_weights_nor_on_the_first_number_of_clients(widths: tuple[int, ...], B: int) -> None:
    ways = set[Way | None]()
    for n, weighted in ((1, False), (1, True), (3, False), (3, True)):
        problem = ModuleProblem(perceptron(*widths))
        w, x, y = case(problem, n, B, widths[0], widths[-1])
        problem.gradients(w, x, y, torch.full((n, B), 1 / B) if weighted else None)
        assert problem.layers
        ways.add(problem.layers.find_way((B, weighted)))
    assert len(ways) == 1


def test_small_products_are_made_client_by_client() -> None:
    problem = ModuleProblem(perceptron(6, 4, 3))
    problem.slope(*case(problem, 2, 5, 6, 3))
    assert problem.layers
    assert problem.layers.find_way((5, False)) == "each"


@pytest.mark.parametrize("n", [1, 2])
def test_where_the_bytes_differ_autograd_stays(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    problem = ModuleProblem(perceptron(64, 32, 10))
    assert problem.layers
    w, x, y = case(problem, n, 8, 64, 10)
    want, real = problem.slope(w, x, y), problem.layers.gradients

    def shifted(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        F, g = real(*args, **kwargs)
        return F, torch.nextafter(g, torch.ones(()))

    other = ModuleProblem(problem.module)
    assert other.layers
    monkeypatch.setattr(other.layers, "gradients", shifted)
    for _ in range(2):
        assert torch.equal(other.slope(w, x, y), want)
    assert other.layers.find_way((8, False)) == "autograd"


def hooked() -> nn.Module:
    module = perceptron(6, 3)
    module[1].register_forward_hook(lambda *_: None)
    return module


def frozen() -> nn.Module:
    module = perceptron(6, 4, 3)
    module[1].weight.requires_grad_(False)
    return module


class Mine(nn.Linear):
    pass


@pytest.mark.parametrize(
    "make",
    [
        hooked,
        frozen,
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 3, bias=False)),
        lambda: nn.Sequential(nn.Flatten(), Mine(6, 3)),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.ReLU()),
        lambda: nn.Sequential(nn.Linear(6, 3)),
        lambda: nn.Linear(6, 3),
        lambda: nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(6, 3)),
    ],
)
def test_other_models_have_autograd(make: Callable[[], nn.Module]) -> None:
    assert ModuleProblem(make()).layers is None


def test_other_losses_and_precisions_have_autograd() -> None:
    assert ModuleProblem(perceptron(6, 3), loss=cross_entropy).layers
    assert ModuleProblem(perceptron(6, 3), loss=WeightedCrossEntropy([1, 2, 3])).layers is None
    assert ModuleProblem(perceptron(6, 3), precision="bfloat16").layers is None
    assert ModuleProblem(perceptron(6, 3), random=True).layers is None
    assert ModuleProblem(perceptron(6, 3), augment=lambda rows: rows).layers is None
