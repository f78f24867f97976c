"""What a deployment measures of its nodes, and what it believes of what they report."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

pytest.importorskip("flwr")
from flower_grid import Change, Grid
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedveca.algorithms.contrib.equaltime import equalise_times
from fedveca.cohorts.flower import roster
from fedveca.cohorts.flower.messages import InvalidAnswer
from fedveca.cohorts.flower.times import Inbox, measure_answer
from fedveca.deploy import local
from fedveca.deploy.server import make_cohort
from fedveca.deploy.superlink import FederationFailed
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.run import run
from fedveca.runs.schema import Round, find_quantity
from fedveca.runs.task_data import load_data
from fedveca.runs.validate_records import validate_round

E = Experiment(model="svm", clients=3, rounds=3, batch=16, lr=0.05, round_timeout=5.0, test_by="both", val=0.1)
PARTS = ("client_seconds", "wait_seconds", "work_seconds", "probe_seconds", "step_seconds")


@pytest.fixture(autouse=True)
def _flower(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_task_id": 1, "_run_id": 1, "_node_id": 1}.items():
        monkeypatch.setattr(TaskIdentity, name, value)
    monkeypatch.setattr(roster, "POLL_SECONDS", 0.001)


def deployed(e: Experiment, folder: Path, changes: dict[tuple[int, int], Change]) -> Run:
    grid: Any = Grid(e, folder, changes)
    data = load_data(e)[0]
    return run(e, device="cpu", data=data, cohort=make_cohort(grid, e, data, say=lambda text: None))


def test_every_round_has_the_times_of_every_node_and_message(tmp_path: Path) -> None:
    done = deployed(E, tmp_path, {})
    clock = 0.0
    for k, record in enumerate(done.rounds):
        assert validate_round(record, k)
        for name in (*PARTS, "order_bytes", "answer_bytes", "evaluation_seconds"):
            quantity = find_quantity(name)
            assert quantity is not None
            assert len(record[name]) == 3  # type: ignore[literal-required]
        for total, wait, work, probe, steps in zip(*(record[name] for name in PARTS), strict=True):  # type: ignore[literal-required]
            assert 0 < probe + steps <= work <= total
            assert 0 <= wait <= total - work
        assert sum(record["order_bytes"]) == record["bytes_down"]
        assert sum(record["answer_bytes"]) == record["bytes_up"]
        assert record["clock"] - clock >= max(t for t in record["client_seconds"] if t is not None)
        assert record["clock"] - clock <= record["seconds"]
        clock = record["clock"]
    assert done.summary["clock"] == clock
    assert done.environment["sizes"] == [n for n in done.environment["sizes"] if n > 0]
    assert len(done.environment["sizes"]) == 3


LIES: dict[str, tuple[float | int | list[float], str]] = {
    "not a number": (math.nan, "sent the time work = nan; allowed: a number of seconds, 0 or more"),
    "without end": (math.inf, "sent the time work = inf"),
    "below zero": (-0.5, "sent the time work = -0.5"),
    "a list": ([0.5], "sent the time work = [0.5]"),
    "a whole number": (1, "sent the time work = 1"),
}


@pytest.mark.parametrize("lie", LIES)
def test_what_is_not_a_time_is_rejected(lie: str, tmp_path: Path) -> None:
    value, why = LIES[lie]

    def change(records: dict[str, Any]) -> None:
        records["times"]["work"] = value

    done = deployed(replace(E, test_by="server", val=0.0), tmp_path, {(1, 1): change})
    assert done.rounds[1]["ids"] == [0, 2]
    assert done.rounds[1]["faults"][0]["client"] == 1
    assert done.rounds[1]["faults"][0]["what"].startswith(why)


def test_a_node_cannot_have_worked_longer_than_the_server_saw_nor_before_it_was_asked(tmp_path: Path) -> None:
    def change(records: dict[str, Any]) -> None:
        records["times"].update({"work": 1e30, "steps": 1e30, "probe": 1e30, "received": 1.0})

    done = deployed(replace(E, test_by="server", val=0.0), tmp_path, {(1, 1): change})
    record: Round = done.rounds[1]
    assert record["ids"] == [0, 1, 2]
    total = record["client_seconds"][1]
    assert total is not None
    assert total < 5
    assert record["work_seconds"][1] == record["probe_seconds"][1] == total
    assert record["step_seconds"][1] == 0
    assert record["wait_seconds"][1] is None  # its clock is not the server's


def test_a_node_that_reports_no_times_takes_part_all_the_same(tmp_path: Path) -> None:
    done = deployed(
        replace(E, test_by="server", val=0.0), tmp_path, {(1, 1): lambda records: records.pop("times") and None}
    )
    assert done.rounds[1]["ids"] == [0, 1, 2]
    assert [v is None for v in done.rounds[1]["work_seconds"]] == [False, True, False]
    assert all(done.rounds[1]["client_seconds"])


@pytest.mark.parametrize("method", ["adacomm", "adaptivetau", "equaltime", "fedveca_time"])
def test_a_deployment_does_not_say_that_nobody_measures_seconds(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`deploy local` builds the experiment here first, to see that it fits; its nodes then measure."""

    def fail(*args: object, **more: object) -> NoReturn:
        raise FederationFailed("it stops here")

    monkeypatch.setattr(local, "Federation", fail)
    e = replace(E, method=method, test_by="server", val=0.0)
    with caplog.at_level(logging.WARNING):
        with pytest.raises(FederationFailed):
            local.run_locally(e, tmp_path / "out")
        deployed(e, tmp_path / "nodes", {})
    assert "adapts to simulated seconds" not in caplog.text


def test_methods_adapt_to_the_seconds_that_are_measured(tmp_path: Path) -> None:
    e = replace(E, method="equaltime", test_by="server", val=0.0)
    rounds = deployed(e, tmp_path / "equaltime", {}).rounds
    for record, after in pairwise(rounds):
        cost = torch.tensor(record["client_seconds"], dtype=torch.float64) / torch.tensor(record["tau"])
        assert after["tau"] == equalise_times(torch.full((3,), e.tau_0), cost, e.tau_max).tolist()
    e = replace(e, method="adacomm", tau_0=16, ada_interval=1e-6)
    steps = [record["tau"] for record in deployed(e, tmp_path / "adacomm", {}).rounds]
    assert steps[0] == [16, 16, 16]
    assert steps[0] > steps[1] > steps[2]


def answer_with(times: dict[str, float]) -> Message:
    content = RecordDict({"answer": ConfigRecord({"client": 0}), "times": MetricRecord(dict(times))})
    return Message(content, 1, "train")


def test_a_wait_is_known_where_the_clocks_agree() -> None:
    """Sent at 100 by the server's clock; 5 s until the answer was there, 2 of them of work."""
    for received, wait in ((101.0, 1.0), (103.0, 3.0), (99.97, 0.0), (103.03, 3.0), (99.0, None), (104.0, None)):
        found = measure_answer(answer_with({"received": received, "work": 2.0}), 5.0, 100.0, 7, 9)
        assert found.wait == (None if wait is None else pytest.approx(wait))
        assert (found.total, found.work, found.down, found.up) == (5.0, 2.0, 7, 9)
    with pytest.raises(InvalidAnswer, match="sent times"):
        measure_answer(answer_with({"seconds": 1.0}), 5.0, 100.0, 7, 9)


class LateGrid:
    """Answers that come at certain times."""

    def __init__(self, at: dict[str, float], size: int = 8) -> None:
        self.at, self.size, self.start, self.asked = at, size, time.monotonic(), list[list[str]]()

    def pull_messages(self, ids: list[str]) -> list[Message]:
        self.asked.append(list(ids))
        vectors = ArrayRecord({"G": Array("float32", (self.size // 4,), "numpy.ndarray", b"0" * self.size)})
        came = [i for i in ids if time.monotonic() - self.start >= self.at[i]]
        return [Message(RecordDict({"answer": ConfigRecord({"is": i}), "vectors": vectors}), 1, "train") for i in came]


def wait_for(inbox: Inbox, message: str) -> Message:
    while (found := inbox.take(message)) is None:
        time.sleep(0.005)
    return found


def test_an_answer_arrives_when_it_is_there_not_when_its_turn_comes() -> None:
    grid: Any = LateGrid({"a": 0.3, "b": 0.1, "c": 0.2})
    inbox = Inbox(grid)
    inbox.await_answers(["a", "b", "c"], 8)
    got = [wait_for(inbox, message) for message in ("a", "b", "c")]
    assert [m.content["answer"]["is"] for m in got] == ["a", "b", "c"]  # each order has its own
    assert all(len(ids) == 1 for ids in grid.asked)  # so that no answer passes for another's
    for message, at in grid.at.items():
        assert at <= inbox.arrived[message] < at + 0.08, message


def test_answers_that_are_not_due_wait_elsewhere_when_there_is_no_room() -> None:
    grid: Any = LateGrid({"a": 0.1, "b": 0.0, "c": 0.0, "d": 0.0})
    inbox = Inbox(grid)
    inbox.start_clock(room=9)
    inbox.await_answers(["a", "b", "c", "d"], 8)
    wait_for(inbox, "a")
    assert inbox._held.keys() == {"b", "c"}  # there was room for more when c came, and none when d did
    assert ["d"] not in grid.asked
    for message in ("b", "c", "d"):
        wait_for(inbox, message)
    assert inbox.room == 9
