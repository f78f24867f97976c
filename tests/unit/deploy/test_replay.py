"""A deployment's run comes out again in this process: the same clients, the same weights, at the recorded times."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")
from flower_grid import Change, Grid
from flwr.app import Error
from flwr.supercore.task_identity import TaskIdentity

from fedveca.cli import main
from fedveca.cohorts.clock.profiles import DeviceProfile
from fedveca.cohorts.flower import roster
from fedveca.deploy.node_process import NODE_DATA, load_client_data, make_node_cohort
from fedveca.deploy.replay import replay
from fedveca.deploy.server import join_without_data, load_test_data, make_cohort
from fedveca.errors import UserError
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.interrupt import LOCAL
from fedveca.runs.run import resume, run

E = Experiment(model="svm", clients=3, rounds=4, batch=16, lr=0.05, round_timeout=5.0)


@pytest.fixture(autouse=True)
def _flower(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_task_id": 1, "_run_id": 1, "_node_id": 1}.items():
        monkeypatch.setattr(TaskIdentity, name, value)
    monkeypatch.setattr(roster, "POLL_SECONDS", 0.001)
    make_node_cohort.cache_clear()


def deploy(e: Experiment, folder: Path, changes: dict[tuple[int, int], Change] | None = None) -> Run:
    """A run over nodes in this process, in a folder as a deployment writes it."""
    grid: Any = Grid(e, folder / "nodes", changes or {})
    if e.test_by == "client":
        cohort, data = join_without_data(grid, e, say=lambda text: None)
    else:
        data = load_test_data(e)
        cohort = make_cohort(grid, e, data, say=lambda text: None)
    run(e, folder / "run", device="cpu", data=data, cohort=cohort, started_by=LOCAL)
    make_node_cohort.cache_clear()
    return Run.open(folder / "run")


def fail(records: dict[str, Any]) -> Error:
    return Error(code=1, reason="the disk is full")


CASES: dict[str, Experiment] = {
    "fedveca": E,
    "memory": replace(E, method="scaffold", momentum=0.9, optimizer_state="keep", keep="last"),
    "wire": replace(E, wire="float16"),
    "sparse wire": replace(E, model="logistic", wire="topk", wire_share=0.3),
    "whole numbers": replace(E, model="logistic", wire="int8"),
    "time": replace(E, method="equaltime"),
    "clients test": replace(E, model="logistic", test_by="client", val=0.1),
    "some take part": replace(E, participation=0.7, weights="uniform"),
    "robust": replace(E, aggregate="median", guard="on"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_replay_is_the_same_run(name: str, tmp_path: Path) -> None:
    """Client 1 fails in round 2, so it is left out there and here."""
    former = deploy(CASES[name], tmp_path, {(1, 1): fail})
    again = replay(former, tmp_path / "again")
    assert again.is_same
    assert again.difference <= 1e-6
    assert len(again.run.rounds) == len(former.rounds)
    for ours, theirs in zip(again.run.rounds, former.rounds, strict=True):
        for key in ("ids", "left_out", "tau", "bytes_down", "bytes_up", "client_seconds", "work_seconds"):
            assert ours[key] == theirs[key], key  # type: ignore[literal-required]
        assert ours["clock"] == pytest.approx(theirs["clock"])
        assert ours.get("faults") == theirs.get("faults")
        assert ours["predicted_seconds"] == again.times[ours["round"]].predicted > 0
    if 1 in [*former.rounds[1]["ids"], *former.rounds[1]["left_out"]]:
        assert 1 in former.rounds[1]["left_out"]
    for which in ("kept", "last"):
        results = [each.summary[which] for each in (again.run, former)]  # type: ignore[literal-required]
        assert results[0].keys() == results[1].keys()
        assert results[0]["test_loss"] == pytest.approx(results[1]["test_loss"], abs=1e-6)
    with pytest.raises(UserError, match="is a replay, which is not resumed"):
        resume(tmp_path / "again")


def test_the_rows_are_those_of_the_nodes_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(3):
        own = load_client_data(E, i)
        np.savez(tmp_path / f"rows-{i}.npz", x=own.x[: 100 + i].numpy(), y=own.y[: 100 + i].numpy())
    monkeypatch.setenv(NODE_DATA, str(tmp_path / "rows-{client}.npz"))
    e = replace(E, model="logistic", test_by="client", val=0.1)
    former = deploy(e, tmp_path)
    assert replay(former).is_same
    make_node_cohort.cache_clear()
    monkeypatch.delenv(NODE_DATA)
    with pytest.raises(UserError, match=r"client 0 has \d+ rows here and had \d+ at its node; FEDVECA_NODE_DATA names"):
        replay(former)
    monkeypatch.setenv(NODE_DATA, str(tmp_path / "gone-{client}.npz"))
    with pytest.raises(UserError, match=r"is replayed with the rows that its nodes had: .*gone-0.npz cannot be read"):
        replay(former)


def test_other_rows_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As many as the nodes had, but not theirs."""
    former = deploy(E, tmp_path)
    for i in range(3):
        own = load_client_data(E, i)
        np.savez(tmp_path / f"rows-{i}.npz", x=own.x.flip(2).numpy(), y=own.y.numpy())
    monkeypatch.setenv(NODE_DATA, "")  # the command sets it
    assert main(["replay", str(former.folder), "--data", str(tmp_path / "rows-{client}.npz"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["same"]
    assert found["difference"] > 1e-3


def test_a_table_of_what_was_measured_and_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    former = deploy(E, tmp_path)
    assert main(["replay", str(former.folder), "--out", str(tmp_path / "again")]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split() == ["round", "answered", "measured", "s", "predicted", "s", "error"]
    assert [line.split()[:4] for line in out.splitlines()[1:5]] == [[str(k), "3", "of", "3"] for k in (1, 2, 3, 4)]
    assert "the same run: the same local steps, and weights that differ by at most 0" in out
    assert Run.open(tmp_path / "again").rounds[0]["predicted_seconds"] > 0


def test_devices_that_are_named_predict(tmp_path: Path) -> None:
    former = deploy(E, tmp_path)
    slow = replay(former, devices=[DeviceProfile("slow", latency_ms=4000.0)])
    assert [time.predicted for time in slow.times] == pytest.approx([8.0] * 4)


def test_asynchronous_and_masked_rounds_are_rejected(tmp_path: Path) -> None:
    former = deploy(E, tmp_path)
    for settings in ({"schedule": "buffered", "keep": "last"}, {"secure": "on", "keep": "last"}):
        e: Any = SimpleNamespace(**{**vars(E), **settings})
        name, value = next(iter(settings.items()))
        with pytest.raises(UserError, match=f"has {name}={value}, .* cannot be replayed"):
            replay(replace(former, experiment=e))


def test_what_cannot_be_replayed_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(replace(E, rounds=2), tmp_path / "simulated", device="cpu")
    assert main(["replay", str(tmp_path / "simulated")]) == 2
    assert "is not the run of a deployment" in capsys.readouterr().err
    former = deploy(E, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    old = [{k: v for k, v in line.items() if k not in ("clock", "client_seconds")} for line in lines]
    (tmp_path / "run" / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in old))
    with pytest.raises(UserError, match="has no times of its clients"):
        replay(Run.open(tmp_path / "run"))
    (tmp_path / "run" / "summary.json").unlink()
    with pytest.raises(UserError, match="has not ended; resume it first"):
        replay(Run.open(tmp_path / "run"))
    assert torch.is_tensor(next(iter(former.model.values())))
