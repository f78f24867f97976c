"""Layers in C give PyTorch's loss and gradient up to rounding, and each client's the bytes that it has alone."""

from __future__ import annotations

import logging
import math
import platform
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedveca import Experiment, run
from fedveca.tasks.module_problem import ModuleProblem
from fedveca.tasks.native import library, perceptron
from fedveca.tasks.native.library import find_compiler, load_kernels, use_pytorch
from fedveca.tasks.native.perceptron import PerceptronKernel, find_perceptron_kernel

WIDTHS = [(1, 1), (1, 2), (3, 2), (13, 2), (64, 64, 10), (64, 33, 10), (784, 10), (17, 16, 15, 8, 31), (5, 130, 1, 6)]
BATCHES = [1, 5, 16, 17, 32, 33, 100]
BAD = [math.nan, math.inf, -math.inf, 1e30, -1e30]
pytestmark = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")


@pytest.fixture(autouse=True)
def _on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDVECA_KERNELS", raising=False)


class Case:
    """Layers of these widths; models, rows, labels and weights of n clients."""

    def __init__(self, n: int, batch: int, widths: tuple[int, ...]) -> None:
        G = torch.Generator().manual_seed(n + 10 * batch + 1000 * sum(widths))
        self.sizes = tuple(pairwise(widths))
        parts = [(a, b, torch.randn(n, (a + 1) * b, generator=G) / math.sqrt(a)) for a, b in self.sizes]
        self.w = torch.cat([part for *_, part in parts], 1)
        self.x = torch.randn(n, batch, widths[0], generator=G)
        self.y = torch.randint(0, widths[-1], (n, batch), generator=G)
        self.weight = torch.rand(n, batch, generator=G)

    @property
    def kernel(self) -> PerceptronKernel:
        found = find_perceptron_kernel(self.sizes)
        assert found
        return found

    @property
    def problem(self) -> ModuleProblem:
        layers: list[nn.Module] = [nn.Flatten()]
        for a, b in self.sizes:
            layers += [nn.Linear(a, b), nn.ReLU()]
        return ModuleProblem(nn.Sequential(*layers[:-1]))

    def find(self, i: int, weighted: bool = False) -> tuple[Tensor, Tensor]:
        """F and its gradient of a client, in float64."""
        w, h, at = self.w[i].double().requires_grad_(), self.x[i].double(), 0
        for at_layer, (a, b) in enumerate(self.sizes):
            matrix, bias = w[at : at + a * b].view(b, a), w[at + a * b : at + a * b + b]
            h, at = (h.relu() if at_layer else h) @ matrix.T + bias, at + (a + 1) * b
        rows = cross_entropy(h, self.y[i], reduction="none")
        loss = (self.weight[i].double() * rows).sum() if weighted else rows.mean()
        return loss.detach(), torch.autograd.grad(loss, w)[0]


def check(found: Tensor, wanted: Tensor, scale: float = 0.0) -> None:
    assert float((found.double() - wanted).norm()) <= 3e-6 * max(scale, float(wanted.norm()))


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("widths", WIDTHS)
def test_against_float64(widths: tuple[int, ...], batch: int) -> None:
    case = Case(3, batch, widths)
    F, g = case.kernel.evaluate(case.w, case.x, case.y)
    assert torch.equal(case.kernel.find_slopes(case.w, case.x, case.y), g)
    loss, slope = case.kernel.evaluate(case.w, case.x, case.y, case.weight)
    for i in range(3):
        wanted = case.find(i)
        check(F[i], wanted[0], 0.1)  # one class: a loss of 0
        check(g[i], wanted[1], 0.1)
        wanted = case.find(i, weighted=True)
        check(loss[i], wanted[0], 0.1)
        check(slope[i], wanted[1], 0.1)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the options are those of x86")
@pytest.mark.parametrize("flag", ["-mno-avx512f", "-mno-avx"])
def test_on_older_processors(flag: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library, "FLAGS", (*library.FLAGS, flag))
    monkeypatch.setenv("FEDVECA_CACHE", str(tmp_path))
    library._load_once.cache_clear()
    try:
        for widths in WIDTHS:
            for batch in BATCHES:
                test_against_float64(widths, batch)
    finally:
        library._load_once.cache_clear()


@pytest.mark.parametrize("batch", [1, 7, 32, 70])
@pytest.mark.parametrize("widths", WIDTHS)
def test_alone_and_among_others(widths: tuple[int, ...], batch: int) -> None:
    case = Case(4, batch, widths)
    F, g = case.kernel.evaluate(case.w, case.x, case.y, case.weight)
    for i in range(4):
        mine = slice(i, i + 1)
        alone = case.kernel.evaluate(case.w[mine], case.x[mine], case.y[mine], case.weight[mine])
        assert torch.equal(alone[0], F[mine])
        assert torch.equal(alone[1], g[mine])


def test_rows_times_a_unit() -> None:
    case = Case(2, 9, (30, 12, 4))
    pixels = torch.randint(0, 256, case.x.shape, generator=torch.Generator().manual_seed(1)).float()
    wanted = case.kernel.find_slopes(case.w, pixels * (1 / 255), case.y)
    assert torch.equal(case.kernel.find_slopes(case.w, pixels, case.y, 1 / 255), wanted)
    assert torch.equal(case.problem.slope(case.w, pixels, case.y, 1 / 255), wanted)


def test_models_and_rows_wherever_they_lie() -> None:
    case = Case(3, 6, (20, 5, 3))
    kernel, one = case.kernel, case.w[0]
    wanted = kernel.find_slopes(one.repeat(3, 1), case.x, case.y)
    assert torch.equal(kernel.find_slopes(one.expand(3, -1), case.x, case.y), wanted)
    apart = torch.empty(3, 2 * case.w.shape[1])[:, ::2].copy_(case.w)
    images = case.x.view(3, 6, 1, 4, 5)
    turned = case.x.transpose(0, 1).contiguous().transpose(0, 1)
    wanted = kernel.find_slopes(case.w, case.x, case.y)
    assert torch.equal(kernel.find_slopes(apart, case.x, case.y), wanted)
    assert torch.equal(kernel.find_slopes(case.w, images, case.y), wanted)
    assert torch.equal(kernel.find_slopes(case.w, turned, case.y.to(torch.int32)), wanted)


def test_threads_at_the_same_time() -> None:
    case = Case(20, 40, (64, 64, 10))
    wanted = case.kernel.find_slopes(case.w, case.x, case.y)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: case.kernel.find_slopes(case.w, case.x, case.y), range(40)))
    assert all(torch.equal(g, wanted) for g in found)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("where", ["row", "weight", "bias", "last"])
def test_what_is_not_finite_is_that_of_pytorch(bad: float, where: str) -> None:
    """Which numbers are NaN, and which infinite; clients that have none of these are untouched."""
    case = Case(2, 7, (18, 6, 3))
    if where == "row":
        case.x[0, 2, 3] = bad
    else:
        case.w[0, {"weight": 5, "bias": 18 * 6 + 2, "last": -1}[where]] = bad
    F, g = case.kernel.evaluate(case.w, case.x, case.y)
    loss, slope = case.problem._find_alone(case.w, case.x, case.y, None)
    torch.testing.assert_close(F, loss, rtol=1e-5, atol=1e-6, equal_nan=True)
    torch.testing.assert_close(g, slope, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert bool(torch.isfinite(g[1]).all())


def test_what_does_not_fit() -> None:
    case = Case(2, 3, (8, 4))
    kernel = case.kernel
    for label in (-1, 4, -100, 2**40):
        with pytest.raises(IndexError, match="label"):
            kernel.find_slopes(case.w, case.x, torch.tensor([[0, 1, 2], [3, label, 1]]))
    with pytest.raises(TypeError, match=r"36 numbers of float32, not 36 of torch\.float64"):
        kernel.find_slopes(case.w.double(), case.x, case.y)
    with pytest.raises(TypeError, match="36 numbers of float32, not 35"):
        kernel.find_slopes(case.w[:, :35], case.x, case.y)
    none = case.x[:, :0], case.y[:, :0]
    for x, y in (none, (case.x[:, :2], case.y), (case.x[:1], case.y[:1]), (case.x[..., :7], case.y)):
        with pytest.raises(ValueError, match="do not belong together"):
            kernel.find_slopes(case.w, x, y)


def test_no_memory_is_left_behind() -> None:
    case, peak = Case(1, 32, (784, 64, 10)), []
    for _ in range(3):
        for _ in range(100):
            case.kernel.find_slopes(case.w, case.x, case.y)
        with open("/proc/self/statm") as about:
            peak.append(int(about.read().split()[1]) * 4096)
    assert peak[-1] - peak[0] < 2**23  # a hundred blocks would be 25 MB


def test_a_kernel_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    compiled = load_kernels("perceptron")
    assert compiled is not None
    assert perceptron._find_checked.__wrapped__(compiled) is not None

    class Wrong(PerceptronKernel):
        def find_slopes(self, *args: Any) -> Tensor:
            return 1.001 * super().find_slopes(*args)

    monkeypatch.setattr(perceptron, "PerceptronKernel", Wrong)
    with caplog.at_level(logging.WARNING):
        assert perceptron._find_checked.__wrapped__(compiled) is None
    assert "does not agree with PyTorch" in caplog.text


def test_which_problems_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(2, 9, (6, 5, 3))
    problem = case.problem

    def count_calls() -> int:
        calls, real = list[Any](), PerceptronKernel._find

        def count(*args: Any) -> None:
            calls.append(args)
            real(*args)

        with monkeypatch.context() as patch:
            patch.setattr(PerceptronKernel, "_find", count)
            problem.gradients(case.w, case.x, case.y)
            problem.slope(case.w, case.x, case.y)
        return len(calls)

    assert case.kernel  # which was compared with PyTorch at its first use
    assert count_calls() == 2
    with use_pytorch():
        assert count_calls() == 0
    monkeypatch.setenv("FEDVECA_KERNELS", "off")
    assert count_calls() == 0
    monkeypatch.delenv("FEDVECA_KERNELS")
    case.x = case.x.double()
    with pytest.raises(RuntimeError, match="dtype"):  # PyTorch's own words for rows that are not float32
        count_calls()


@pytest.mark.parametrize("method", ["fedveca", "scaffold"])
def test_a_run_is_that_of_pytorch(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = Experiment(method=method, rounds=3)
    ours = run(experiment)
    monkeypatch.setenv("FEDVECA_KERNELS", "off")
    plain = run(experiment)
    different = False
    for name, value in ours.model.items():
        torch.testing.assert_close(value, plain.model[name], rtol=1e-4, atol=1e-5)
        different |= not torch.equal(value, plain.model[name])
    assert different  # the kernel was used
    assert [record["tau"] for record in ours.rounds] == [record["tau"] for record in plain.rounds]
