"""Aggregation: the mean as ever, and rules that bad clients cannot carry away."""

from __future__ import annotations

import doctest
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recorded import require_number
from torch import Tensor

from fedveca.algorithms import FedVeca
from fedveca.algorithms.registry import paper_methods
from fedveca.cohorts import aggregate as module
from fedveca.cohorts.aggregate import AGGREGATION_RULES, aggregation_rule, trimmed_mean, winsorise
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.runs.build import build
from fedveca.runs.experiment import Experiment
from fedveca.runs.run import run
from fedveca.tasks.datasets.dataset import load
from fedveca.tasks.models import model
from fedveca.tasks.partition import partition

SMALL: dict[str, Any] = {"model": "svm", "rounds": 8, "batch": 8, "clients": 10, "partition": "case1", "lr": 0.05}


def one_by_one(rule: str, v: Tensor, weight: Tensor, **options: float) -> Tensor:
    """As a server does that hears its clients one after the other."""
    aggregator = aggregation_rule(rule, **options)()
    for row, w in zip(v, weight, strict=True):
        aggregator.add(aggregator.reduce(w[None], {"G": row[None]}))
    return aggregator.close(float(weight.sum()))["G"]


def at_once(rule: str, v: Tensor, weight: Tensor, **options: float) -> Tensor:
    aggregator = aggregation_rule(rule, **options)()
    aggregator.add(aggregator.reduce(weight, {"G": v}))
    return aggregator.close(float(weight.sum()))["G"]


def test_examples() -> None:
    assert doctest.testmod(module, extraglobs={"torch": torch}).failed == 0


@pytest.mark.parametrize("rule", AGGREGATION_RULES)
def test_clients_may_come_one_by_one(rule: str) -> None:
    v, weight = torch.randn(12, 40, generator=torch.Generator().manual_seed(1)), torch.arange(1.0, 13)
    v[3] *= 50
    assert torch.allclose(one_by_one(rule, v, weight), at_once(rule, v, weight), atol=1e-6)


@pytest.mark.slow
@given(st.integers(1, 9), st.integers(0, 10**6))
def test_median_and_trimmed_mean_of_equal_weights(n: int, seed: int) -> None:
    v = torch.randn(n, 5, generator=torch.Generator().manual_seed(seed))
    ones = torch.ones(n)
    want = v.double().quantile(0.5, dim=0)
    assert torch.allclose(trimmed_mean(v, ones, 0.5).double(), want, atol=1e-5)
    for cut in range((n + 1) // 2):
        want = v.sort(dim=0).values[cut : n - cut].mean(0)
        assert torch.allclose(trimmed_mean(v, ones, cut / n), want, atol=1e-5)
    assert torch.allclose(trimmed_mean(v, ones, 0.0), v.mean(0), atol=1e-6)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6).filter(sum), st.sampled_from([0.0, 0.1, 0.3, 0.5]))
def test_a_weight_is_so_many_equal_clients(weights: list[int], cut: float) -> None:
    v = torch.randn(len(weights), 7, generator=torch.Generator().manual_seed(sum(weights)))
    copies = v.repeat_interleave(torch.tensor(weights), dim=0)
    a, b = trimmed_mean(v, torch.tensor(weights).float(), cut), trimmed_mean(copies, torch.ones(len(copies)), cut)
    assert torch.allclose(a, b, atol=1e-5)


def test_columns_are_sorted_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    v, weight = torch.randn(5, 100), torch.rand(5)
    whole = trimmed_mean(v, weight, 0.2)
    monkeypatch.setattr(module, "_COLUMNS", 7)
    assert torch.equal(trimmed_mean(v, weight, 0.2), whole)


def test_the_mean_counts_clients_by_their_weight() -> None:
    aggregator = aggregation_rule("mean")()
    aggregator.add(aggregator.reduce(torch.tensor([1.0, 3.0]), {"G": torch.tensor([[1.0, 0.0], [5.0, 4.0]])}))
    assert aggregator.close(4.0)["G"].tolist() == [4.0, 3.0]  # (1 + 15) / 4, 12 / 4


def test_clipping_by_a_fixed_norm_is_exact() -> None:
    v = torch.tensor([[3.0, 4.0], [30.0, 40.0], [0.3, 0.4], [0.0, 0.0]])
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0])
    cut = torch.tensor([[1.2, 1.6], [1.2, 1.6], [0.3, 0.4], [0.0, 0.0]])
    assert torch.allclose(at_once("clip", v, weight, clip=2.0), weight @ cut / 10)


def test_clipping_by_the_median_is_exact_on_its_grid() -> None:
    """Norms 1, 1, 3, 5, 1000: the median 3 stands between 2^1.5 and 2^2, so the bound is 4."""
    v = torch.eye(5) * torch.tensor([1.0, 1.0, 3.0, 5.0, 1000.0])
    want = torch.tensor([1.0, 1.0, 3.0, 4.0, 4.0]) / 5
    assert torch.allclose(at_once("clip", v, torch.ones(5)), want)
    assert torch.allclose(one_by_one("clip", v, torch.ones(5)), want)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e15])
def test_the_median_clip_follows_the_scale(scale: float) -> None:
    v = torch.randn(9, 6, generator=torch.Generator().manual_seed(0)).double() * scale
    v[0] *= 1e6
    got = at_once("clip", v, torch.ones(9, dtype=torch.float64)) * 9
    norms = v.norm(dim=1)
    assert float((got - v[1:].sum(0)).norm()) <= 2 * norms.median() * len(v)
    assert float(got.norm()) <= 1.4143 * norms.quantile(0.5) * len(v)


def test_clip_holds_few_sums() -> None:
    """Streaming: a thousand clients of like norm leave a handful of sums, not a thousand vectors."""
    aggregator = aggregation_rule("clip")()
    for seed in range(1000):
        v = torch.randn(1, 64, generator=torch.Generator().manual_seed(seed))
        aggregator.add(aggregator.reduce(torch.ones(1), {"G": v}))
    assert len(aggregator.levels["G"]) <= 6  # type: ignore[attr-defined]


def test_a_client_that_is_not_well_has_no_say() -> None:
    v, weight = torch.tensor([[1.0], [2.0], [6.0], [0.0]]), torch.tensor([1.0, 1.0, 1.0, 0.0])
    for rule in AGGREGATION_RULES:
        others = at_once(rule, v[:3], weight[:3])
        assert torch.allclose(at_once(rule, v, weight), others)


def cohort(rule: str, **options: Any) -> LocalCohort:
    data = load("digits")
    shares = partition("case1", data.y, 10, 8)
    problem = model("svm", (1, 8, 8), 10)
    return LocalCohort(
        FedVeca(0.05), problem, data.x, data.y, shares, batch=8, aggregate=aggregation_rule(rule), **options
    )


@pytest.mark.parametrize("rule", AGGREGATION_RULES)
def test_chunks_and_threads_do_not_change_the_result(rule: str) -> None:
    tau, ids = torch.tensor([7, 2, 3, 1, 9, 2, 4, 2]), torch.arange(8)
    order = FedVeca(0.05).order(FedVeca(0.05).init(torch.zeros(64), tau))
    plain = cohort(rule, lanes=1, threads=1)(0, order, ids, tau)[1]
    for options in ({"lanes": 8}, {"lanes": 3, "threads": 2}):
        report = cohort(rule, **options)(0, order, ids, tau)[1]
        assert all(torch.allclose(v, plain.mean[name], atol=1e-5) for name, v in report.mean.items())
        assert all(torch.allclose(v, plain.each[name], rtol=1e-4) for name, v in report.each.items())


@pytest.mark.parametrize("method", [m for m in (*paper_methods(), "corrected", "fedvecam") if m != "centralised"])
def test_defences_withstand_what_ruins_the_mean(method: str) -> None:
    """Two of ten clients send their vectors reversed and ten times too long: only the mean is ruined."""

    def accuracy(**settings: Any) -> float:
        mild = {"probe_steps": 1, "probe": 0}  # two steps, or a probe of few rows, are too much at this learning rate
        run_of = run(Experiment(**(SMALL | mild | {"method": method, "keep": "last"} | settings)), device="cpu")
        return float(run_of.summary["last"]["test_accuracy"] or 0)

    clean, bad = accuracy(), "scale:0.2:-10"
    assert accuracy(faults=bad) < clean - 0.25
    for rule in ("clip", "trimmed", "median"):
        assert accuracy(faults=bad, aggregate=rule) > clean - 0.1
        assert accuracy(aggregate=rule) > clean - 0.05


def test_liars_about_numbers_do_not_set_every_tau() -> None:
    """A beta of 0 is the least A of all, and every other client takes 2 steps; unless the least are distrusted."""

    def honest(rule: str) -> Tensor:
        e = Experiment(**(SMALL | {"faults": "lie:0.2", "aggregate": rule, "rounds": 8}))
        bad = _bad(e)
        lines = run(e, device="cpu").rounds[2:]
        return torch.tensor([[t for i, t in zip(x["ids"], x["tau"], strict=True) if i not in bad] for x in lines])

    assert int(honest("mean").max()) == 2
    for rule in ("clip", "trimmed", "median"):
        assert bool((honest(rule).max(1).values == 20).all())
        assert float(honest(rule).double().mean()) > 3.5


def test_liars_about_losses_do_not_hide_that_the_model_is_bad() -> None:
    def told(**settings: Any) -> float:
        e = Experiment(**(SMALL | {"method": "fedavg", "rounds": 2} | settings))
        return require_number(run(e, device="cpu").rounds[1], "train_loss")

    clean = told()
    assert told(faults="lie:0.2") < 0.85 * clean
    assert told(faults="lie:0.2", aggregate="clip") > 0.95 * clean


def _bad(e: Experiment) -> dict[int, str]:
    built = build(e)
    return built.cohort.faults.attackers  # type: ignore[attr-defined, no-any-return]


def test_numbers_are_pulled_in() -> None:
    v = torch.tensor([5.0, 1.0, 2.0, 1000.0, 3.0])
    assert winsorise(v, 0.2).tolist() == [5.0, 2.0, 2.0, 5.0, 3.0]
    assert winsorise(v, 0.0).tolist() == v.tolist()
    assert winsorise(v, 0.5).tolist() == [3.0] * 5
    assert winsorise(torch.tensor([]), 0.2).tolist() == []


def test_refused() -> None:
    with pytest.raises(ValueError, match=r"^aggregate=medain is not known \(did you mean median\?\)"):
        Experiment(aggregate="medain")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^aggregate_trim=0.6 is out of range; allowed: \[0, 0.5\]"):
        Experiment(aggregate_trim=0.6)
