"""Comparisons in which runs diverge: they are left out of the table, and their rivals still get a budget."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from recorded import require_number

from fedveca import Experiment, FedVeca, Run, compare, run
from fedveca.runs.compare import find_budget, list_fitting, make_table
from fedveca.tasks.datasets.dataset import load

E = Experiment(model="svm", rounds=6, batch=8, lr=0.05, tau_0=3)
WILD = replace(E, lr=1e4, rounds=20)  # it diverges after some rounds
DATA = load("digits")
NOT_FINITE = replace(DATA, x=DATA.x * math.nan)


def test_a_run_that_diverged_is_left_out_and_named() -> None:
    good = [run(replace(E, method="fedavg", seed=seed), device="cpu") for seed in (0, 2)]
    bad = run(replace(WILD, method="fedavg", seed=1), device="cpu")
    assert bad.diverged
    assert math.isfinite(bad.summary["kept"]["test_loss"] or math.nan)  # or it would be left out for that
    (row,) = make_table([good[0], bad, good[1]])
    assert row["seeds"] == [0, 1, 2]
    assert row["diverged"] == [1]
    assert row["tau_all"] == sum(r.summary["tau_all"] for r in good) / 2
    for which in ("last", "kept"):
        for name in ("test_loss", "test_accuracy"):
            a, b = (require_number(r.summary[which], name) for r in good)
            found = row[which][name]
            assert found["values"] == [a, None, b]
            assert found["mean"] == pytest.approx((a + b) / 2)
            assert found["std"] == pytest.approx(abs(a - b) / 2**0.5)
    assert "diverged" not in make_table(good)[0]


def test_a_method_whose_runs_all_diverged_has_no_mean() -> None:
    (row,) = make_table([run(replace(WILD, method="fedavg"), device="cpu")])
    assert (row["diverged"], row["tau_all"]) == ([0], None)
    assert row["kept"]["test_loss"] == {"mean": None, "std": 0.0, "values": [None]}


def test_the_budget_of_a_run_that_ends_is_what_it_took() -> None:
    done = run(E, device="cpu")
    assert find_budget(done) == done.summary["tau_all"] == sum(sum(record["tau"]) for record in done.rounds)


@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_rivals_of_a_run_that_diverged_in_its_first_round(
    participation: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No pace is known: tau_0 steps for each client that takes part in a round."""
    e = replace(E, participation=participation)
    fedveca, fedavg = compare(e, 1, tmp_path, methods=("fedveca", "fedavg"), device="cpu", data=NOT_FINITE)
    assert (fedveca.diverged, fedveca.rounds) == (True, [])
    budget = 3 * round(5 * participation) * 6
    assert Run.open(fedavg.folder or "").experiment.tau_all == budget
    assert f"tau_all = {budget}\n" in (tmp_path / "fedavg-seed0" / "experiment.toml").read_text()
    assert caplog.messages == [
        f"fedveca seed 0 stopped: {fedveca.summary['stopped']}",
        f"fedveca seed 0 diverged; its rivals get {budget} local steps in all",
        f"fedavg seed 0 stopped: {fedavg.summary['stopped']}",
    ]


def test_rivals_of_a_run_that_diverged_half_way(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What it would have taken at the pace of its rounds."""
    fedveca, fedavg = compare(WILD, 1, tmp_path, methods=("fedveca", "fedavg"), device="cpu")
    k = len(fedveca.rounds)
    assert fedveca.diverged
    assert 0 < k < 20
    taken = sum(sum(record["tau"]) for record in fedveca.rounds)
    budget = round(taken / k * 20)
    assert budget > taken
    assert fedavg.experiment.tau_all == budget
    assert f"tau_all = {budget}\n" in (tmp_path / "fedavg-seed0" / "experiment.toml").read_text()
    assert caplog.messages == [
        f"fedveca seed 0 stopped: {fedveca.summary['stopped']}",
        f"fedveca seed 0 diverged; its rivals get {budget} local steps in all",
        f"fedavg seed 0 stopped: {fedavg.summary['stopped']}",
    ]
    rows = json.loads((tmp_path / "table.json").read_text())
    assert rows[0]["diverged"] == [0]
    again = compare(
        WILD, 1, tmp_path, methods=("fedveca", "fedavg"), device="cpu"
    )  # the same budget, so none is repeated
    assert [r.summary["seconds"] for r in again] == [fedveca.summary["seconds"], fedavg.summary["seconds"]]


def test_the_budget_is_the_first_adaptive_methods(tmp_path: Path) -> None:
    first, second, rival = compare(E, 1, tmp_path, methods=("fedveca", "corrected", "fedavg"), device="cpu")
    assert first.summary["tau_all"] != second.summary["tau_all"]
    assert rival.experiment.tau_all == first.summary["tau_all"]


def test_all_methods_are_those_that_fit() -> None:
    names = ("fedavg", "fedlc", "moon", "scaffnew")
    assert list_fitting(Experiment(model="mlp"), names) == names
    assert list_fitting(Experiment(model="svm"), names) == ("fedavg", "scaffnew")
    assert list_fitting(Experiment(model="svm", participation=0.5), names) == ("fedavg",)


def test_the_rivals_of_an_object_take_its_steps_too(tmp_path: Path) -> None:
    e = Experiment(model="svm", rounds=5, batch=8)
    adaptive, rival = compare(e, 1, tmp_path, methods=(FedVeca(lr=0.02, alpha=0.9), "fedavg"), device="cpu")
    assert adaptive.experiment.method.startswith("custom:FedVeca(")
    assert adaptive.experiment.tau_all == 0
    assert rival.experiment.tau_all == adaptive.summary["tau_all"] > 0
    named = compare(e.replace(lr=0.02, alpha=0.9), 1, tmp_path / "named", methods=("fedveca", "fedavg"), device="cpu")
    assert [run.summary["tau_all"] for run in named] == [adaptive.summary["tau_all"], rival.summary["tau_all"]]
