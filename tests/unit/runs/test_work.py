"""What a round costs: gradient rows, counted at the server."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fedveca
from fedveca.algorithms.contract import Fault
from fedveca.algorithms.registry import load_method
from fedveca.runs.experiment import Experiment, count_probe_rows
from fedveca.runs.folder import Run
from fedveca.runs.schema import Round
from fedveca.runs.work import RowCount, find_computing

SMALL = {"rounds": 3, "tau_0": 3, "batch": 7, "partition": "dirichlet", "concentration": 0.3}
SIZES = torch.tensor([5, 40, 100])
TAU = torch.tensor([2, 3, 4])


@pytest.mark.parametrize(
    ("probe", "gradient", "rows"),
    [
        (20, False, 10 * (2 + 3 + 4)),
        (20, True, 10 * (2 + 3 + 4) + 5 + 20 + 20),
        (0, True, 10 * (2 + 3 + 4) + 5 + 40 + 100),
    ],
)
def test_rows_are_those_of_mini_batches_and_of_the_probe(probe: int, gradient: bool, rows: int) -> None:
    assert RowCount(10, probe, gradient)(SIZES, TAU) == rows


def test_who_computed_is_who_answered_and_who_lost_its_work() -> None:
    ids, answered = torch.arange(6), torch.tensor([0])
    faults = [Fault(client=c, what=what) for c, what in ((2, "drop"), (3, "crash"), (4, "late"), (5, "nan"))]
    # 1 has no fault: its numbers were not finite
    assert find_computing(ids, answered, faults).tolist() == [True, True, False, False, True, True]
    assert find_computing(ids, ids, faults).tolist() == [True] * 6


def count(e: Experiment, record: Round, sizes: list[int], probes: bool) -> int:
    """The formula once more, in plain Python, of a round in which every client answered."""
    most = count_probe_rows(e)
    probed = (min(sizes[i], most) if most else sizes[i] for i in record["ids"])
    return sum(tau * e.batch for tau in record["tau"]) + (sum(probed) if probes else 0)


@pytest.mark.parametrize("engine", ["local", "debug"])
@pytest.mark.parametrize("method", ["fedveca", "fedavg", "mimelite", "centralised"])
def test_every_round_and_the_run_record_them(method: str, engine: str) -> None:
    e = Experiment(method=method, engine=engine, **SMALL)  # type: ignore[arg-type]
    built = fedveca.build(e)
    done = fedveca.run(e)
    probes = method in ("fedveca", "mimelite")
    assert load_method(method).algorithm.needs_gradient == probes
    each = [count(e, record, built.shares.sizes.tolist(), probes) for record in done.rounds]
    assert [record["rows"] for record in done.rounds] == each
    assert done.summary["rows"] == sum(each)


@pytest.mark.parametrize("settings", [{"sampling": "shuffle"}, {"batch": 1000}, {"participation": 0.4}, {"probe": 0}])
def test_all_mini_batches_have_the_same_size(settings: dict[str, object]) -> None:
    """Also those of clients with fewer rows, and at the end of an epoch: the rows are drawn on."""
    e = Experiment(**SMALL).replace(**settings)  # type: ignore[arg-type]
    sizes = fedveca.build(e).shares.sizes.tolist()
    done = fedveca.run(e)
    assert [record["rows"] for record in done.rounds] == [count(e, record, sizes, True) for record in done.rounds]


def test_work_that_was_lost_counts_and_absence_does_not() -> None:
    e = Experiment(method="fedavg", rounds=6, tau_0=2, batch=10, faults="drop:0.4")
    done = fedveca.run(e)
    assert any(record["left_out"] for record in done.rounds)
    assert [record["rows"] for record in done.rounds] == [20 * len(record["ids"]) for record in done.rounds]
    for faults in ("late:0.4", "nan:0.4"):
        late = fedveca.run(e.replace(faults=faults))
        assert any(record["left_out"] for record in late.rounds)
        assert {record["rows"] for record in late.rounds} == {20 * 5}


def test_a_resumed_run_counts_on(tmp_path: Path) -> None:
    e = Experiment(**SMALL)  # type: ignore[arg-type]
    whole = fedveca.run(e, tmp_path / "whole")
    fedveca.run(e.replace(rounds=1), tmp_path / "half")
    later = fedveca.resume(tmp_path / "half", rounds=3)
    assert [record["rows"] for record in later.rounds] == [record["rows"] for record in whole.rounds]
    assert later.summary["rows"] == whole.summary["rows"] == Run.open(tmp_path / "half").summary["rows"]


def test_the_rows_of_a_run_with_older_rounds_are_not_known(tmp_path: Path) -> None:
    e = Experiment(**SMALL)  # type: ignore[arg-type]
    fedveca.run(e.replace(rounds=1), tmp_path / "run")
    lines = tmp_path / "run" / "rounds.jsonl"
    text = lines.read_text()
    start = text.index(', "rows": ')
    lines.write_text(text[:start] + text[text.index(", ", start + 2) :])
    done = fedveca.resume(tmp_path / "run", rounds=3)
    assert "rows" not in done.rounds[0]
    assert "rows" in done.rounds[1]
    assert "rows" not in done.summary
