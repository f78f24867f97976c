"""Layers without autograd: the same bytes as with it, and autograd for every model that is anything else."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from fedveca.tasks.losses import WeightedCrossEntropy, cross_entropy
from fedveca.tasks.module_problem import FEW, ModuleProblem

G = torch.Generator().manual_seed(0)


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
def test_the_bytes_are_those_of_autograd(widths: tuple[int, ...], B: int) -> None:
    problem = ModuleProblem(perceptron(*widths))
    assert problem.layers
    for n in (1, 3, FEW):
        w, x, y = case(problem, n, B, widths[0], widths[-1])
        problem.layers.compare(B, False)
        F, g = problem.gradients(w, x, y)
        slope = problem.slope(w, x, y)
        problem.layers.compare(B, True)
        assert all(torch.equal(a, b) for a, b in zip((F, g), problem.gradients(w, x, y), strict=True))
        assert torch.equal(slope, problem.slope(w, x, y))
        assert torch.equal(slope, problem.layers.gradients(w, x, y, want_loss=False)[1])


def test_the_first_step_of_a_size_compares_both() -> None:
    problem = ModuleProblem(perceptron(6, 4, 3))
    assert problem.layers
    w, x, y = case(problem, 2, 5, 6, 3)
    assert problem.layers.gives_same(5) is None
    first = problem.slope(w, x, y)
    assert problem.layers.gives_same(5) is True
    assert torch.equal(problem.slope(w, x, y), first)
    assert problem.layers.gives_same(4) is None


def test_where_the_bytes_differ_autograd_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = ModuleProblem(perceptron(6, 4, 3))
    assert problem.layers
    w, x, y = case(problem, 2, 5, 6, 3)
    want, real = problem.slope(w, x, y), problem.layers.gradients

    def shifted(w: Tensor, x: Tensor, y: Tensor, want_loss: bool) -> tuple[Tensor, Tensor]:
        F, g = real(w, x, y, want_loss)
        return F, torch.nextafter(g, torch.ones(()))

    other = ModuleProblem(problem.module)
    assert other.layers
    monkeypatch.setattr(other.layers, "gradients", shifted)
    for _ in range(2):
        assert torch.equal(other.slope(w, x, y), want)
    assert other.layers.gives_same(5) is False


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
