"""In how many rounds the conditions of the theory were met."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedveca import Experiment, run
from fedveca.cli import main
from fedveca.runs.schema import SCHEMA
from fedveca.runs.theory import CONDITIONS, count_conditions, list_values

RECORDS: list[dict[str, float | None]] = [
    {},
    {"premise": 0.0, "condition_alpha": None, "condition_step": None, "condition_drift": 2.0},  # L is not known
    {"premise": 1.0, "condition_alpha": 1.0, "condition_step": 0.0, "condition_drift": 1.0},
    {"premise": 0.9, "condition_alpha": 0.9, "condition_step": -0.1, "condition_drift": 0.9},
]


def test_rounds_are_counted_by_hand() -> None:
    """At its bound, a value is met by at least and at most, and not by less than."""
    counts = {name: (count.met, count.rounds) for name, count in count_conditions(RECORDS).items()}
    assert counts == {"premise": (1, 2), "condition_alpha": (1, 2), "condition_step": (1, 2), "condition_drift": (2, 3)}
    assert list_values(RECORDS, "premise") == [(2, 1.0), (3, 0.9)]
    assert count_conditions(RECORDS)["condition_alpha"].describe() == "Theorem 2's condition held in 1 of 2 rounds."
    assert count_conditions(RECORDS[:1]) == {}


def test_the_formulas_state_their_bounds() -> None:
    for name, condition in CONDITIONS.items():
        assert f"{condition.bound:g}" in SCHEMA[name].formula
        assert SCHEMA[name].symbol


@pytest.mark.parametrize("method", ["fedveca", "corrected", "fedvecam", "fedavg"])
def test_show_says_how_often_each_was_met(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    done = run(Experiment(method=method, model="svm", rounds=4, batch=8), tmp_path / "run", device="cpu")
    counts = count_conditions(done.rounds)
    assert len(counts) == (0 if method == "fedavg" else 4)
    assert main(["show", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert ("asks for" in shown) == bool(counts)
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    for name, ((title, sign, bound), met, rounds) in counts.items():
        assert f"{title} {SCHEMA[name].symbol} {sign} {bound:g} {met} of {rounds}" in lines
    assert main(["show", str(tmp_path / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["conditions"]
    assert found == {name: {"met": met, "rounds": rounds} for name, (_, met, rounds) in counts.items()}
