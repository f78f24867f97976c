"""The study of the corrected method, small: its variants keep the contract, and its runs become rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from shrunken_studies import Shrink, shrink  # noqa: F401 (a fixture)

from fedveca.algorithms import Corrected
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.testing import check_algorithm
from studies.corrected.results import METHODS, Row, load_rows
from studies.corrected.run import main
from studies.corrected.variants import ABLATIONS, Probed, RawSpread, make_ablation


@pytest.mark.parametrize("label", ABLATIONS)
def test_every_ablation_keeps_the_contract_and_differs_from_the_method(label: str) -> None:
    method = make_ablation(label, Experiment(lr=0.05))
    check_algorithm(method)
    assert method != Corrected(0.05)


def test_scaffold_with_the_probes_steps_keeps_the_contract() -> None:
    check_algorithm(Probed(0.05))


def test_the_raw_spread_is_that_of_the_summed_gradients() -> None:
    """Two steps of gradients 1 and 3: the largest |sum|^2 / steps from the second step on is 16 / 2."""
    method = RawSpread(0.1)
    w, g = torch.zeros(1), torch.ones(1)
    order = method.order(method.init(w, torch.tensor([2])))
    carry = method.start(order, {"c": torch.full((1,), 5.0)}, g)  # a correction, which must not count
    for gradient in (1.0, 3.0):
        w, carry = method.step(order, carry, w, gradient * g)
    assert method.finish(order, carry, w, torch.tensor([2.0]))[1]["spread"].item() == pytest.approx(8)


@pytest.mark.slow
def test_runs_become_rows(shrink: Shrink, tmp_path: Path) -> None:
    shrink(rounds=2, test_every=1)
    main(["main", "--out", "runs", "--seeds", "2", "--workers", "1", "--device", "cpu", "--write", "."])
    rows: list[Row] = json.loads((tmp_path / "corrected.json").read_text())["rows"]
    assert [row["method"] for row in rows if row["task"] == "svm-mnist"] == list(METHODS)
    assert {tuple(row["seeds"]) for row in rows} == {(300, 301)}
    assert (tmp_path / "corrected-leads.svg").exists()
    assert rows == load_rows(Path("runs"))
    steps = {row["method"]: row["tau_all"] or 0 for row in rows if row["task"] == "svm-mnist"}
    assert steps["scaffold"] == steps["scaffold probed"] <= steps["corrected"] < steps["scaffold+"]
    kept = Run.open("runs/main/svm-mnist-case3/fedavg-seed301").summary["kept"]["test_accuracy"]
    row = next(row for row in rows if (row["task"], row["method"]) == ("svm-mnist", "fedavg"))
    assert row["kept_test_accuracy"]["values"][1] == kept
