"""The study of rivals: its budget, its leads by Holm's rule, and what docs/choose.md says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedveca import run
from fedveca.runs.folder import Run
from studies.rivals import results
from studies.rivals import run as rivals
from studies.rivals.run import RIVALS, RivalOutcome, Unit

DOCS = Path(__file__).parents[3] / "docs"


def outcome(last: float, **more: Any) -> RivalOutcome:
    plain = RivalOutcome(last=last, kept=last, best=last, rows=1, diverged=False, returns=0)
    return plain | more  # type: ignore[return-value]


def unit(method: str, lasts: list[float], case: str = "heart") -> Unit:
    runs = {str(seed): outcome(last) for seed, last in enumerate(lasts)}
    return Unit(case=case, method=method, tuning=[], settings={}, runs=runs, grid={})


@pytest.mark.parametrize("method", ["fedavg", "fedvecam"])
def test_every_method_has_the_budget_of_the_case(method: str) -> None:
    """FedAvg takes 12 mini-batches per client and round; FedVecaM 10, and the probe is the rest."""
    e = rivals.make_rival("digits-case3", method, {"lr": 0.1}, 501)
    assert (e.tau_0, e.rounds) == ((10, 60) if method == "fedvecam" else (12, 60))
    done = run(e.replace(rounds=6), device="cpu")
    rows = [record["rows"] for record in done.rounds]
    assert sum(rows) == pytest.approx(rivals.count_budget("digits-case3") / 10, rel=0.02)


def test_methods_with_their_own_steps_count_up_to_the_budget() -> None:
    lines: list[Any] = [
        {"round": k, "rows": 10, "train_loss": loss, "test_accuracy": accuracy, "test_loss": 1.0}
        for k, (loss, accuracy) in enumerate([(3.0, 0.1), (2.0, 0.5), (1.0, 0.3), (0.5, 0.9)])
    ]
    summary: Any = {"last": {"test_accuracy": 0.9}, "kept": {"test_accuracy": 0.9}}
    done = Run(rivals.make_rival("heart", "fedveca", {}, 0), lines, summary)
    cut = rivals.describe_rival(done, 35)
    assert (cut["last"], cut["kept"], cut["best"], cut["rows"]) == (30.0, 50.0, 50.0, 30)
    assert rivals.describe_rival(done, 40)["last"] == 90.0


def test_holm_multiplies_by_how_many_are_left() -> None:
    assert results.correct_holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert results.correct_holm([0.9, 0.8]) == [1.0, 1.0]


def test_a_lead_is_clear_where_the_seeds_agree() -> None:
    ours = unit("fedvecam", [90.0, 91.0, 92.0, 93.0])
    far, near = unit("fedavg", [80.0, 81.2, 82.1, 83.0]), unit("feddyn", [91.0, 90.0, 93.0, 92.0])
    ahead = unit("scaffold", [95.0, 96.1, 97.0, 98.2])
    (verdict,) = results.judge_cases([ours, far, near, ahead], "last")
    assert verdict.place == 2
    assert [one.rival for one in verdict.behind] == ["scaffold"]
    assert verdict.behind[0].lead == pytest.approx(-5.075)
    assert [one.rival for one in verdict.ahead] == ["fedavg"]


def test_the_page_shows_the_results() -> None:
    page = (DOCS / "choose.md").read_text("utf-8")
    stored: list[Unit] = json.loads((DOCS / "results" / "rivals.json").read_text("utf-8"))
    units = results.keep_complete(stored)
    assert len(units) == len(stored)
    for table in (results.make_main_table(units, "last"), results.make_grid_table(units)):
        assert table in page
    found = results.find_findings(units)
    for sentence in (
        f"On {found.level['last']} of the {found.cases} cases no rival is ahead of FedVecaM's last model beyond chance",
        f"with kept models on {found.level['kept']} of {found.cases}",
        f"{found.near} of its {found.tuned} tuned runs end within one point of their best round",
        f"{found.diverged['scaffold']} of SCAFFOLD's {found.grid} runs diverge, {found.diverged['fedavg']} of FedAvg's "
        f"and {found.diverged['fedvecam']} of FedVecaM's",
        f"{found.below} of its {found.grid} runs end more than one point below FedAvg's",
    ):
        assert sentence in page, sentence
    for verdict in results.judge_cases(units, "last"):
        for lead in verdict.behind:
            assert f"{results.name_rival(lead.rival)} is ahead by {-lead.lead:.2f} points" in page
    assert {unit["method"] for unit in units} == set(RIVALS)
    readme = (DOCS.parent / "README.md").read_text("utf-8")
    assert (
        f"no rival is ahead of its last model beyond chance on {found.level['last']} of {found.cases} cases" in readme
    )
