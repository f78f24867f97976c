"""The controls of the NIID-Bench tables: partitions as their sources draw them, and results that are added."""

from __future__ import annotations

import json
import random
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from studies.public import niid_controls
from studies.public.niid_controls import CONTROLS, Found, add_outcome, has_run, make_partition
from studies.public.run import Outcome

COMMITTED = Path(__file__).parents[3] / "docs" / "results" / "public-niid_controls.json"


def invent(method: str, seed: int) -> Outcome:
    return {
        "method": method,
        "seed": seed,
        "accuracy": [0.1, 0.2],
        "loss": [],
        "tau_all": 10,
        "seconds": 1.0,
        "device": "cpu",
        "stopped": "",
    }


@pytest.mark.parametrize("name", CONTROLS)
def test_every_row_has_one_owner(name: str) -> None:
    y = torch.arange(10).repeat(60)
    owned = make_partition(CONTROLS[name], 0)(Mock(y=y), 10, 0)
    assert torch.equal(torch.cat(owned).sort().values, torch.arange(600))
    if name.endswith("labels"):
        labels = [set(y[rows].tolist()) for rows in owned]
        assert [len(each) for each in labels] == [2] * 10
        assert all(i in each for i, each in enumerate(labels))


def test_the_authors_draw_labels_with_python_and_rows_with_numpy() -> None:
    """Seed 1: client 0 has label 0 and the first other label that Python's generator draws."""
    y = torch.arange(10).repeat(60)
    owned = make_partition(CONTROLS["authors_labels"], 1)(Mock(y=y), 10, 0)
    drawn = random.Random(1)
    second = next(label for label in iter(lambda: drawn.randint(0, 9), -1) if label)
    assert set(y[owned[0]].tolist()) == {0, second}
    rows = np.flatnonzero(y.numpy() == 0)
    np.random.RandomState(1).shuffle(rows)
    mine = [row for row in owned[0].tolist() if int(y[row]) == 0]
    assert mine == rows[: len(mine)].tolist()


def test_new_runs_are_added_to_the_committed_ones() -> None:
    """Two controls have one name: what is published tells them apart."""
    before: list[Found] = json.loads(COMMITTED.read_text("utf-8"))
    new = invent("scaffold", 0)
    after = add_outcome(before, "flower_labels", new)
    assert len(after) == len(before)
    for old, now in zip(before, after, strict=True):
        is_changed = old["published"] == CONTROLS["flower_labels"].published
        assert now["runs"] == [*old["runs"], *([new] if is_changed else [])]
    assert has_run(after, "flower_labels", "scaffold", 0)
    assert not has_run(after, "flower", "scaffold", 0)
    assert add_outcome([], "authors_labels", new)[0]["published"] == CONTROLS["authors_labels"].published


def test_the_command_runs_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, str, int]] = []

    def run_control(name: str, method: str, seed: int, *_: object) -> Outcome:
        ran.append((name, method, seed))
        return invent(method, seed)

    monkeypatch.setattr(niid_controls, "run_control", run_control)
    for methods in ("fedprox", "fedavg,fedprox"):
        words = ["flower_labels", "rounds=2", "--methods", methods, "--seeds", "1", "--out", str(tmp_path)]
        monkeypatch.setattr("sys.argv", ["niid_controls", *words])
        niid_controls.main()
    assert ran == [("flower_labels", "fedprox", 0), ("flower_labels", "fedavg", 0)]
    (found,) = json.loads((tmp_path / "niid_controls.json").read_text("utf-8"))
    assert [run["method"] for run in found["runs"]] == ["fedprox", "fedavg"]
