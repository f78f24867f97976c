"""The squared SVM in C gives PyTorch's numbers up to rounding, and each model's the bytes that it has alone."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from fedveca import Experiment, run
from fedveca.algorithms import FedAvg
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.cohorts.local.rows import ClientRows
from fedveca.cohorts.local.stored_svm import find_stored_svm
from fedveca.runs.federate import Diverged, federate
from fedveca.tasks.datasets.dataset import UNIT, prepare
from fedveca.tasks.native import squared_svm
from fedveca.tasks.native.library import PYTORCH, describe_compiler, find_compiler, load_kernels
from fedveca.tasks.native.squared_svm import SvmKernel, has_svm_kernel, make_svm_kernel
from fedveca.tasks.partition import Shares
from fedveca.tasks.svm import SquaredSvm

ROWS = 90
SHAPES = [(1, 1, 1), (3, 7, 5), (2, 4, 16), (5, 100, 784), (4, 65, 33), (1, 200, 130), (2, 64, 15), (3, 3, 48)]
pytestmark = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")


@pytest.fixture(autouse=True)
def _on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDVECA_KERNELS", raising=False)


class Case:
    """Rows, models and row numbers; `kernel` takes them."""

    def __init__(self, n: int, batch: int, size: int, dtype: torch.dtype = torch.uint8, models: int = 1) -> None:
        G = torch.Generator().manual_seed(n + 10 * batch + 1000 * size)
        self.unit = UNIT if dtype == torch.uint8 else 1.0
        self.x = torch.randint(0, 256, (ROWS, size), generator=G, dtype=torch.uint8)
        if dtype == torch.float32:
            self.x = torch.randn(ROWS, size, generator=G)
        self.s = 1 - 2 * torch.randint(0, 2, (ROWS,), generator=G).float()
        self.w = torch.randn(n, models, size, generator=G) / math.sqrt(size)
        self.index = torch.randint(0, ROWS, (n, batch), generator=G)
        self.ridge = SquaredSvm.ridge

    @property
    def kernel(self) -> SvmKernel:
        return make_svm_kernel(self.x, self.s, self.unit, None, self.ridge)

    def find(self, i: int, m: int = 0, count: int | None = None) -> tuple[Tensor, Tensor]:
        """F and its gradient of a client's model, in float64."""
        rows, w = self.index[i, :count], self.w[i, m].double()
        x, s = self.x[rows].double() * self.unit, self.s[rows].double()
        slack = (1 - s * (x @ w)).clamp(min=0)
        return 0.5 * (self.ridge * (w @ w) + (slack**2).mean()), self.ridge * w - (slack * s) @ x / len(rows)


def check(found: Tensor | None, wanted: Tensor) -> None:
    assert found is not None
    assert float((found.double() - wanted).norm()) <= 3e-6 * float(wanted.norm())  # where slacks nearly cancel


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize(("n", "batch", "size"), SHAPES)
def test_against_float64(n: int, batch: int, size: int, dtype: torch.dtype) -> None:
    case = Case(n, batch, size, dtype, models=2)
    F, g = case.kernel.evaluate(case.w, case.index)
    loss, without = case.kernel.evaluate(case.w, case.index, want_gradient=False)
    slopes = case.kernel.find_slopes(case.w[:, 1].contiguous(), case.index)
    assert without is None
    assert torch.equal(loss, F)
    assert g is not None
    assert torch.equal(slopes, g[:, 1])
    for i in range(n):
        for m in range(2):
            wanted = case.find(i, m)
            check(F[i, m], wanted[0])
            check(g[i, m], wanted[1])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_the_first_rows_of_each_client_count(dtype: torch.dtype) -> None:
    case, counts = Case(4, 70, 30, dtype), torch.tensor([70, 1, 64, 3])
    F, g = case.kernel.evaluate(case.w, case.index, counts)
    assert g is not None
    for i, count in enumerate(counts.tolist()):
        wanted = case.find(i, count=count)
        check(F[i, 0], wanted[0])
        check(g[i, 0], wanted[1])
        alone = case.kernel.evaluate(case.w[i : i + 1], case.index[i : i + 1, :count])
        assert torch.equal(F[i], alone[0][0])
        assert alone[1] is not None
        assert torch.equal(g[i], alone[1][0])


@pytest.mark.parametrize("pixels", ["unit", "standardised", "as-is", "channels:0.4,0.2:0.3,0.1"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_rows_are_prepared_as_for_every_model(pixels: str, dtype: torch.dtype) -> None:
    G = torch.Generator().manual_seed(3)
    images = torch.randint(0, 256, (ROWS, 2, 5, 3), generator=G, dtype=torch.uint8).to(dtype)
    svm, order = SquaredSvm(30), torch.randperm(ROWS, generator=G)
    rows = ClientRows(images, svm.targets(torch.arange(ROWS)), order, pixels, torch.device("cpu"))
    stored = find_stored_svm(svm, rows)
    assert stored
    w, index = torch.randn(2, 30, generator=G) / 100, torch.randint(0, ROWS, (2, 9), generator=G)
    ((kernel, at),) = stored.visit([index])
    g = kernel.find_slopes(w, at)
    x, y = prepare(images[order], pixels), svm.targets(order)
    F, wanted = svm.gradients(w.double(), x[index].double(), y[index].double())
    check(g, wanted)
    check(kernel.evaluate(w[:, None], at)[0][:, 0], F)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize(("n", "batch", "size"), SHAPES)
def test_alone_and_among_others(n: int, batch: int, size: int, dtype: torch.dtype) -> None:
    case = Case(n, batch, size, dtype, models=3)
    kernel = case.kernel
    F, g = kernel.evaluate(case.w, case.index)
    assert g is not None
    for i in range(n):
        for m in range(3):
            w, index = case.w[i : i + 1, m : m + 1], case.index[i : i + 1]
            alone = kernel.evaluate(w, index)
            assert torch.equal(alone[0][0, 0], F[i, m])
            assert torch.equal(alone[1][0, 0], g[i, m])  # type: ignore[index]
            few = make_svm_kernel(case.x[index[0]], case.s[index[0]], case.unit, None, case.ridge)
            assert torch.equal(few.find_slopes(w[:, 0], torch.arange(batch)[None])[0], g[i, m])  # as rows that are read


def test_threads_at_the_same_time() -> None:
    case = Case(60, 40, 100)
    kernel, w = case.kernel, case.w[:, 0]
    wanted = kernel.find_slopes(w, case.index)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: kernel.find_slopes(w, case.index), range(40)))
    assert all(torch.equal(g, wanted) for g in found)


def test_models_and_row_numbers_wherever_they_lie() -> None:
    case = Case(3, 6, 20)
    kernel, one = case.kernel, case.w[0]
    assert torch.equal(
        kernel.find_slopes(one.expand(3, -1), case.index), kernel.find_slopes(one.repeat(3, 1), case.index)
    )
    apart = torch.empty(3, 40)[:, ::2].copy_(case.w[:, 0])
    index = torch.stack([case.index, case.index.flip(0)], -1)
    wanted = kernel.find_slopes(case.w[:, 0].contiguous(), case.index)
    assert torch.equal(kernel.find_slopes(apart, index[..., 0]), wanted)
    steps = torch.stack([case.index.flip(1), case.index], 1)  # [n, steps, B]
    assert torch.equal(kernel.find_slopes(case.w[:, 0], steps.unbind(1)[1]), wanted)


BAD = [math.nan, math.inf, -math.inf, 1e30, -1e30]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("where", [0, 17])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_what_is_not_finite_is_that_of_pytorch(bad: float, where: int, dtype: torch.dtype) -> None:
    case = Case(2, 7, 18, dtype)
    case.x[case.index[0, 2], where] = 0  # 0 times infinity
    case.w[0, 0, where] = bad
    compare_with_pytorch(case)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_rows_that_are_not_finite(bad: float, sign: float) -> None:
    case = Case(2, 7, 18, torch.float32)
    case.x[case.index[0, 2], 3] = bad
    case.s[case.index[0, 2]] = sign
    compare_with_pytorch(case)


def compare_with_pytorch(case: Case) -> None:
    """Which numbers are NaN, and which infinite; clients that have none of these are untouched."""
    svm, x, s = SquaredSvm(18), case.x[case.index].float() * case.unit, case.s[case.index]
    F, g = case.kernel.evaluate(case.w, case.index)
    assert g is not None
    loss, slope = svm.gradients(case.w[:, 0], x, s)
    for found, wanted in ((F[:, 0], loss), (g[:, 0], slope)):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert bool(torch.isfinite(g[1]).all())


def test_what_does_not_fit() -> None:
    case = Case(2, 3, 8)
    kernel, w = case.kernel, case.w[:, 0]
    for row in (-1, ROWS, 2**62):
        with pytest.raises(IndexError, match="row number"):
            kernel.find_slopes(w, torch.tensor([[0, 1, 2], [3, row, 4]]))
    with pytest.raises(TypeError, match="8 numbers of float32, not 8"):
        kernel.find_slopes(w.double(), case.index)
    with pytest.raises(TypeError, match="8 numbers of float32, not 7"):
        kernel.find_slopes(w[:, :7], case.index)


def test_rows_that_only_pytorch_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not has_svm_kernel(torch.float64)
    assert not has_svm_kernel(torch.int64)
    assert has_svm_kernel(torch.uint8)
    monkeypatch.setenv("FEDVECA_KERNELS", "off")
    assert not has_svm_kernel(torch.uint8)


def test_a_kernel_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    library = load_kernels("squared_svm")
    assert library is not None
    assert squared_svm._find_checked.__wrapped__(library) is not None

    class Wrong(SvmKernel):
        def find_slopes(self, w: Tensor, index: Tensor) -> Tensor:
            return 1.001 * super().find_slopes(w, index)

    monkeypatch.setattr(squared_svm, "SvmKernel", Wrong)
    with caplog.at_level(logging.WARNING):
        assert squared_svm._find_checked.__wrapped__(library) is None
    assert "does not agree with PyTorch" in caplog.text


def make_cohort(lr: float = 0.01, threads: int = 1, probe: int = 10) -> LocalCohort:
    G = torch.Generator().manual_seed(5)
    x, y = torch.randint(0, 256, (600, 1, 6, 7), generator=G, dtype=torch.uint8), torch.arange(600)
    shares = Shares(torch.randperm(600, generator=G), torch.tensor([0, 30, 330, 420, 600]))
    svm = SquaredSvm(42)
    return LocalCohort(FedAvg(lr), svm, x, y, shares, batch=13, pixels="unit", threads=threads, probe=probe)


def run_rounds(cohort: LocalCohort, rounds: int = 3) -> Iterator[tuple[Tensor, object]]:
    state = cohort.algorithm.init(cohort.problem.init(), torch.tensor([5, 3, 9, 1]))
    for after, record in federate(cohort.algorithm, cohort, state, rounds):
        yield after.w, record.get("train_loss")


@pytest.mark.parametrize("probe", [0, 10, 290])
def test_a_run_with_and_without(probe: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cohort = make_cohort(probe=probe)
    assert cohort.passes.stored
    found = list(run_rounds(cohort))
    assert cohort.lanes == 2**22 // (4 * 8 * 42)  # no room for batches
    monkeypatch.setenv("FEDVECA_KERNELS", "off")
    cohort = make_cohort(probe=probe)
    assert cohort.passes.stored is None
    for (w, loss), (wanted, wanted_loss) in zip(found, run_rounds(cohort), strict=True):
        torch.testing.assert_close(w, wanted, rtol=1e-5, atol=1e-7)
        assert loss == pytest.approx(wanted_loss, rel=1e-6)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_run_that_diverges_is_noticed() -> None:
    with pytest.raises(Diverged):
        list(run_rounds(make_cohort(lr=1e20), 60))


def test_the_environment_says_what_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str, **words: Any) -> str | None:
        return run(Experiment(model=name, data="digits", rounds=1, **words), device="cpu").environment.get("kernels")

    models = "svm", "cnn", "mlp", "logistic"
    assert {find(model) for model in models} == {describe_compiler()} != {PYTORCH}
    assert find("svm", engine="debug") is None
    assert find("mlp", augment="flip") is None  # autograd, wherever it runs
    monkeypatch.setenv("FEDVECA_KERNELS", "off")
    assert {find(model) for model in models} == {PYTORCH}
