"""Observers: who is called when, also where a run does not come to its end."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from same_runs import SMALL, lines

import fedveca
from fedveca import Experiment, Observer, Run, compare, resume, run
from fedveca.errors import UserError
from fedveca.runs.interrupt import Stopped
from fedveca.runs.schema import Round
from fedveca.tasks.datasets.dataset import load

E = Experiment(**(SMALL | {"rounds": 4}))


class Diary(Observer):
    """Writes down what it is called with; `fails` names the call at which it raises."""

    def __init__(self, fails: str = "", entries: list[Any] | None = None, name: str = "") -> None:
        self.fails, self.name = fails, name
        self.entries = [] if entries is None else entries
        self.runs: list[Run] = []

    def write(self, *entry: Any) -> None:
        self.entries.append((*entry, self.name) if self.name else entry)
        if self.fails == " ".join(map(str, entry[:2])):
            raise RuntimeError(f"{self.fails} fails")

    def start(self, experiment: Experiment, folder: Path | None) -> None:
        self.write("start", experiment.method, folder)

    def round(self, record: Round) -> None:
        self.write("round", record["round"])

    def end(self, run: Run) -> None:
        self.runs.append(run)
        self.write("end", len(run.rounds), bool(run.summary))


def rounds(*ks: int) -> list[tuple[str, int]]:
    return [("round", k) for k in ks]


def test_start_rounds_end(tmp_path: Path) -> None:
    for folder in (None, tmp_path / "run"):
        diary = Diary()
        done = run(E, folder, device="cpu", observers=[diary])
        assert diary.entries == [("start", "fedveca", folder), *rounds(0, 1, 2, 3), ("end", 4, True)]
        assert diary.runs == [done]


def test_a_line_is_in_the_folder_before_it_is_observed(tmp_path: Path) -> None:
    class Reader(Observer):
        def round(self, record: Round) -> None:
            assert Run.open(tmp_path / "run").rounds[-1] == record
            seen.append(record["round"])

    seen: list[int] = []
    run(E, tmp_path / "run", device="cpu", observers=[Reader()])
    assert seen == [0, 1, 2, 3]


def test_several_are_called_in_their_order() -> None:
    entries: list[Any] = []
    run(replace(E, rounds=1), device="cpu", observers=(Diary(entries=entries, name=name) for name in "ab"))
    assert [(entry[0], entry[-1]) for entry in entries] == [
        (call, name) for call in ("start", "round", "end") for name in "ab"
    ]


def test_a_base_observer_does_nothing() -> None:
    assert run(E, device="cpu", observers=[Observer()]).summary["rounds"] == 4
    assert fedveca.Observer is Observer


# the end is always called


def test_the_end_of_a_run_that_is_stopped(tmp_path: Path) -> None:
    diary = Diary()
    with pytest.raises(Stopped):
        run(E, tmp_path / "run", device="cpu", observers=[diary], stop=lambda: len(diary.entries) == 3)
    assert diary.entries == [("start", "fedveca", tmp_path / "run"), *rounds(0, 1), ("end", 2, False)]
    (interrupted,) = diary.runs
    assert interrupted == Run.open(tmp_path / "run")
    assert interrupted.summary == {}


def test_the_end_of_a_run_that_diverged() -> None:
    data = load("digits")
    diary = Diary()
    run(E, device="cpu", observers=[diary], data=replace(data, x=data.x * math.nan))
    assert diary.entries == [("start", "fedveca", None), ("end", 0, True)]
    assert diary.runs[0].diverged
    assert diary.runs[0].summary["stopped"].startswith("round 1: ")


def test_the_end_where_the_federation_itself_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    diary, evaluate = Diary(), fedveca.runs.evaluate.Evaluator.__call__  # type: ignore[attr-defined]

    def fails(self: Any, w: Any) -> Any:
        if len(diary.entries) == 3:
            raise ZeroDivisionError
        return evaluate(self, w)

    monkeypatch.setattr("fedveca.runs.evaluate.Evaluator.__call__", fails)
    with pytest.raises(ZeroDivisionError):
        run(E, device="cpu", observers=[diary])
    assert diary.entries == [("start", "fedveca", None), *rounds(0, 1), ("end", 2, False)]


@pytest.mark.parametrize(
    ("fails", "seen"),
    [
        ("start fedveca", ["end"]),
        ("round 1", ["start", "round", "end"]),
        ("end 4", ["start", *["round"] * 4, "end"]),
    ],
)
def test_the_end_of_the_others_where_an_observer_fails(fails: str, seen: list[str]) -> None:
    failing, other = Diary(fails), Diary()
    with pytest.raises(RuntimeError, match=f"^{fails} fails$"):
        run(E, device="cpu", observers=[failing, other])
    assert [entry[0] for entry in other.entries] == seen
    assert [entry[0] for entry in failing.entries][-1] == "end"
    assert other.entries[-1][2] == (fails == "end 4")  # whether it has a summary


def test_an_observer_that_fails_leaves_a_run_to_resume(tmp_path: Path) -> None:
    run(E, tmp_path / "whole", device="cpu")
    with pytest.raises(RuntimeError):
        run(E, tmp_path / "cut", device="cpu", observers=[Diary("round 1")])
    diary = Diary()
    resume(tmp_path / "cut", device="cpu", observers=[diary])
    assert diary.entries == [("start", "fedveca", tmp_path / "cut"), *rounds(2, 3), ("end", 4, True)]
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")


# what they are given


def test_what_an_observer_changes_stays_out_of_the_run(tmp_path: Path) -> None:
    class Spoils(Observer):
        def round(self, record: Any) -> None:
            record["tau"].append(99)
            record["test_loss"] = 0.0
            record["mine"] = 1

    class Reads(Observer):
        def round(self, record: Round) -> None:
            read.append(record)

    read: list[Round] = []
    plain = run(E, tmp_path / "plain", device="cpu")
    run(E, tmp_path / "spoiled", device="cpu", observers=[Spoils(), Reads()])
    assert lines(tmp_path / "spoiled") == lines(tmp_path / "plain")
    assert [record["tau"] for record in read] == [record["tau"] for record in plain.rounds]  # not the next one's either


@pytest.mark.parametrize(
    ("wrong", "named"),
    [(3, "3"), ([print], "<built-in function print>"), ("print", "'print'"), ([Observer(), None], "None")],
)
def test_what_is_not_an_observer_is_rejected(wrong: Any, named: str, tmp_path: Path) -> None:
    for call in (
        lambda: run(E, tmp_path / "a", observers=wrong),
        lambda: compare(E, 1, tmp_path / "a", observers=wrong),
    ):
        with pytest.raises(UserError, match=f"^observers: {named} is not an Observer; see fedveca.Observer$"):
            call()
    assert list(tmp_path.iterdir()) == []


def test_a_class_is_not_an_observer() -> None:
    with pytest.raises(UserError, match="is not an Observer"):
        run(E, observers=[Diary])  # type: ignore[list-item]


# many runs


@pytest.mark.slow
def test_compare_in_this_process_and_in_workers(tmp_path: Path) -> None:
    """In worker processes only the end of each run is seen."""
    e = replace(E, rounds=2)
    here, workers = Diary(), Diary()
    runs = compare(e, 2, tmp_path / "here", methods=("fedveca", "fedavg"), device="cpu", observers=[here])
    folders = [tmp_path / "here" / f"{method}-seed{seed}" for method in ("fedveca", "fedavg") for seed in (0, 1)]
    assert here.entries == [
        entry
        for folder in folders
        for entry in (("start", folder.name.partition("-")[0], folder), *rounds(0, 1), ("end", 2, True))
    ]
    assert here.runs == [runs[at] for at in (0, 2, 1, 3)]  # first those that set the budgets
    compare(e, 2, tmp_path / "workers", methods=("fedveca", "fedavg"), device="cpu", workers=2, observers=[workers])
    assert workers.entries == [("end", 2, True)] * 4
    assert {(r.experiment.method, r.experiment.seed) for r in workers.runs[:2]} == {("fedveca", 0), ("fedveca", 1)}
    assert {(r.experiment.method, r.experiment.seed) for r in workers.runs[2:]} == {("fedavg", 0), ("fedavg", 1)}
