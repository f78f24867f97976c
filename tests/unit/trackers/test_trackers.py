"""Trackers: what they were told is read back from their own files; one that fails never stops a run."""

from __future__ import annotations

import os
import signal
import sqlite3
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from fedveca import Experiment, Run, resume, run
from fedveca.cli import main
from fedveca.runs.build import build
from fedveca.runs.checkpoint import identify_run
from fedveca.trackers import backends
from fedveca.trackers.tracking import CLIENTS, TrackerFailed, to_values

SMALL = Experiment(model="svm", rounds=4, batch=8, clients=3, tau_max=6)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No one's account, no one's server."""
    for name in list(os.environ):
        if name.startswith(("WANDB_", "MLFLOW_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", "/nowhere/netrc")


def expected(told: Run) -> dict[tuple[str, int], float]:
    """Every number that a tracker should hold, by name and step."""
    found: dict[tuple[str, int], float] = {}
    for line in cast("list[dict[str, Any]]", told.rounds):
        for name, v in line.items():
            step = line["round"] + 1
            if name in ("left_out", "faults"):
                found[name, step] = len(v)
            elif isinstance(v, list) and name != "ids":
                found |= {(f"{name}/client_{i}", step): x for i, x in zip(line["ids"], v, strict=True)}
            elif name not in ("ids", "round"):
                found[name, step] = v
    return {key: float(v) for key, v in found.items() if v is not None}  # None: not known in that round


def events(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0, "histograms": 0})
    return read.Reload()


def scalars(folder: Path) -> dict[tuple[str, int], float]:
    read = events(folder)
    return {(tag, e.step): e.value for tag in read.Tags()["scalars"] for e in read.Scalars(tag)}


def close(found: dict[Any, float], wanted: dict[Any, float]) -> None:
    assert set(wanted) <= set(found)
    assert {key: found[key] for key in wanted} == pytest.approx(wanted, rel=1e-5)


# TensorBoard


def test_tensorboard_holds_every_recorded_name_the_settings_and_the_model(tmp_path: Path) -> None:
    told = run(replace(SMALL, track="tensorboard"), tmp_path / "a", device="cpu")
    found = scalars(tmp_path / "a")
    close(found, expected(told))
    assert found["kept/test_accuracy", 4] == pytest.approx(told.summary["kept"]["test_accuracy"])
    read = events(tmp_path / "a")
    assert "_hparams_/experiment" in read.summary_metadata
    assert b"tau_max = 6" in read.Tensors("experiment.toml/text_summary")[0].tensor_proto.string_val[0]
    assert set(read.Tags()["histograms"]) == {f"model/{name}" for name in told.model}


def test_many_clients_are_told_by_their_spread(tmp_path: Path) -> None:
    many = replace(SMALL, clients=CLIENTS + 1, partition="dirichlet", rounds=2, track="tensorboard")
    told = run(many, tmp_path / "a", device="cpu")
    found, tau = scalars(tmp_path / "a"), told.rounds[1]["tau"]
    assert (found["tau/min", 2], found["tau/max", 2]) == (min(tau), max(tau))
    assert not any("client_" in name for name, _ in found)
    assert events(tmp_path / "a").Histograms("tau")[1].histogram_value.num == len(tau)


@pytest.mark.slow
def test_a_resumed_run_goes_on_in_the_same_place(tmp_path: Path) -> None:
    run(replace(SMALL, track="tensorboard,mlflow"), tmp_path / "a", device="cpu")
    told = resume(tmp_path / "a", rounds=6, device="cpu")
    close(scalars(tmp_path / "a"), expected(told))
    read = events(tmp_path / "a")
    assert [e.step for e in read.Scalars("tau_k")] == [1, 2, 3, 4, 5, 6]  # none twice
    client, only = mlflow_run(f"sqlite:///{tmp_path}/a/mlflow/mlflow.db")
    assert [m.step for m in client.get_metric_history(only.info.run_id, "tau_k")] == [1, 2, 3, 4, 5, 6]


def test_rounds_that_never_arrived_are_sent_when_the_run_goes_on(tmp_path: Path) -> None:
    run(replace(SMALL, track="tensorboard"), tmp_path / "a", device="cpu")
    notes = tmp_path / "a" / "trackers.json"
    notes.write_text(notes.read_text().replace('"sent": 4', '"sent": 2'))
    resume(tmp_path / "a", rounds=5, device="cpu")
    assert [e.step for e in events(tmp_path / "a").Scalars("tau_k")] == [1, 2, 3, 4, 3, 4, 5]
    notes.write_text("garbage")
    resume(tmp_path / "a", rounds=6, device="cpu")
    assert [e.step for e in events(tmp_path / "a").Scalars("tau_k")][-6:] == [1, 2, 3, 4, 5, 6]


# MLflow


def mlflow_run(place: str) -> tuple[Any, Any]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(place)
    home = client.get_experiment_by_name("fedveca")
    assert home is not None
    (only,) = client.search_runs([home.experiment_id])
    return client, only


@pytest.mark.slow
def test_mlflow_holds_every_recorded_name_the_settings_and_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"sqlite:///{tmp_path}/shared.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", place)
    monkeypatch.chdir(tmp_path)  # where MLflow puts artifacts of a store that names no place
    told = run(replace(SMALL, track="mlflow"), tmp_path / "a", device="cpu")
    client, only = mlflow_run(place)
    names = {name for name, _ in expected(told)}
    found = {(n, m.step): m.value for n in names for m in client.get_metric_history(only.info.run_id, n)}
    close(found, expected(told))
    assert (only.data.params["method"], only.data.params["tau_max"], only.info.status) == ("fedveca", "6", "FINISHED")
    assert only.data.metrics["kept/test_loss"] == pytest.approx(told.summary["kept"]["test_loss"])
    model = client.download_artifacts(only.info.run_id, "model/model.safetensors", str(tmp_path))
    assert Path(model).read_bytes() == (tmp_path / "a" / "model.safetensors").read_bytes()
    assert not (tmp_path / "a" / "mlflow").exists()
    with sqlite3.connect(tmp_path / "shared.db") as store:
        assert store.execute("select count(*) from runs").fetchone() == (1,)
    store.close()


# Weights & Biases


def records(path: Path) -> list[Any]:
    """All records of an offline run: W&B's own process may still write the last ones when `finish` has returned."""
    limit = time.monotonic() + 30
    while "exit" not in {r.WhichOneof("record_type") for r in read_records(path)}:
        assert time.monotonic() < limit, "the file has no end"
        time.sleep(0.05)
    return read_records(path)


def read_records(path: Path) -> list[Any]:
    """The records that are in the file: LevelDB's log format, blocks of 32 KiB, each record in one or more pieces."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]  # made while it is imported

    content, at, piece, found = path.read_bytes(), 7, b"", []
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack_from("<IHB", content, at)
        piece += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            found.append(Record.FromString(piece))
            piece = b""
    return found


def history(kinds: list[Any]) -> dict[tuple[str, int], float]:
    """Every number by its name and step."""
    found = {}
    for record in (r for r in kinds if r.WhichOneof("record_type") == "history"):
        for item in record.history.item:
            name = item.key or "/".join(item.nested_key)
            if not name.startswith("_"):
                found[name, record.history.step.num] = float(item.value_json)
    return found


@pytest.mark.slow
def test_wandb_offline_holds_every_recorded_name_the_settings_and_the_model_and_goes_on(tmp_path: Path) -> None:
    told = run(replace(SMALL, track="wandb"), tmp_path / "a", device="cpu")
    (first,) = (tmp_path / "a").glob("wandb/offline-run-*/run-*.wandb")
    kinds = records(first)
    close(history(kinds), expected(told))
    (started,) = (r.run for r in kinds if r.WhichOneof("record_type") == "run")
    settings = {u.key: u.value_json for u in started.config.update}
    assert (settings["method"], settings["tau_max"]) == ('"fedveca"', "6")
    artifacts = [r for r in kinds if "artifact" in str(r.WhichOneof("record_type")) or "artifact" in str(r)[:400]]
    assert any("model.safetensors" in str(r) for r in artifacts)

    more = resume(tmp_path / "a", rounds=6, device="cpu")
    (second,) = set((tmp_path / "a").glob("wandb/offline-run-*/run-*.wandb")) - {first}
    assert second.name == first.name  # the same run, to be synced after the first
    rest = history(records(second))
    assert {step for _, step in rest} == {5, 6}
    close(history(kinds) | rest, expected(more))


# failures


class Broken:
    """A tracker that fails at its n-th call."""

    key = "broken"

    def __init__(self, at: str) -> None:
        self.at, self.calls = at, list[str]()
        self._do("open")

    def _do(self, what: str) -> None:
        self.calls.append(what)
        if what == self.at:
            raise RuntimeError(f"cannot {what}\nand more")

    def send(self, rounds: list[Any]) -> None:
        if rounds:
            self._do("send")

    def end(self, told: Run, numbers: dict[str, float]) -> None:
        self._do("end")

    def close(self, ended: bool) -> None:
        self._do("close")


@pytest.mark.parametrize("at", ["open", "send", "end", "close"])
def test_a_tracker_that_fails_warns_once_and_never_stops_a_run(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedveca.trackers.tracking.SECONDS_BETWEEN", 0.0)
    monkeypatch.setitem(backends.BACKENDS, "mlflow", lambda e, folder, key: Broken(at))
    with pytest.warns(TrackerFailed) as told:
        done = run(replace(SMALL, track="mlflow,tensorboard"), tmp_path / "a", device="cpu")
    assert [str(w.message) for w in told] == [
        f"track=mlflow failed: cannot {at} and more; the run continues without it"
    ]
    plain = run(SMALL, tmp_path / "b", device="cpu")
    assert [x["test_loss"] for x in done.rounds] == [x["test_loss"] for x in plain.rounds]
    close(scalars(tmp_path / "a"), expected(done))  # the other tracker saw it all


def test_a_missing_package_is_told_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.warns(TrackerFailed, match=r"track=wandb needs the extra fedveca\[track\]: pip install") as told:
        done = run(replace(SMALL, track="wandb"), tmp_path / "a", device="cpu")
    assert len(told) == 1
    assert done.summary["rounds"] == 4


def test_without_a_folder_there_is_no_place_for_trackers() -> None:
    with pytest.warns(TrackerFailed, match="needs a run folder"):
        assert run(replace(SMALL, track="tensorboard"), device="cpu").summary["rounds"] == 4


@pytest.mark.slow
def test_the_terminal_says_it_in_one_line(tmp_path: Path) -> None:
    words = ["run", "model=svm", "rounds=2", "batch=8", "track=mlflow", "--out", str(tmp_path / "a"), "--quiet"]
    environment = os.environ | {"MLFLOW_TRACKING_URI": "nothing-of-the-kind://x"}
    command = [sys.executable, "-m", "fedveca.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0
    said = done.stderr.strip().splitlines()
    assert len(said) == 1
    assert said[0].startswith("track=mlflow failed: ")
    assert said[0].endswith("the run continues without it")


# the setting


@pytest.mark.parametrize("word", ["tensorbord", "tensorboard;mlflow", "mlflow,,wandb"])
def test_an_unknown_tracker_is_refused(word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", f"track={word}", "--out", str(tmp_path / "a")]) == 2
    assert "is not known" in (said := capsys.readouterr().err)
    assert "allowed: some of tensorboard, mlflow, wandb" in said
    assert not (tmp_path / "a").exists()


# run folders made by someone else


def linked(folder: Path, name: str, outside: Path) -> None:
    """A link where a tracker writes, to a folder that is not the run's."""
    if name == "mlflow/mlflow.db":
        (folder / "mlflow").mkdir()
        (folder / name).symlink_to(outside / "mlflow.db")
    elif name == "tensorboard/below":
        (folder / "tensorboard").mkdir()
        (folder / name).symlink_to(outside)
    else:
        (folder / name).symlink_to(outside)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("track", "name", "why"),
    [
        ("tensorboard", "tensorboard", "tensorboard in the run folder is a link"),
        ("tensorboard", "tensorboard/below", "tensorboard/below in the run folder is a link that leads out of tensorb"),
        ("mlflow", "mlflow", "mlflow in the run folder is a link"),
        ("mlflow", "mlflow/mlflow.db", "mlflow/mlflow.db in the run folder is a link that leads out of mlflow"),
        ("wandb", "wandb", "wandb in the run folder is a link"),
        ("wandb", ".wandb", ".wandb in the run folder is a link"),
    ],
)
def test_no_tracker_writes_through_a_link(track: str, name: str, why: str, tmp_path: Path) -> None:
    run(SMALL, tmp_path / "a", device="cpu")
    (tmp_path / "a" / "experiment.toml").write_text(replace(SMALL, track=track).toml())
    (tmp_path / "outside").mkdir()
    linked(tmp_path / "a", name, tmp_path / "outside")
    with pytest.warns(TrackerFailed) as told:
        done = resume(tmp_path / "a", rounds=5, device="cpu")
    (said,) = [str(w.message) for w in told]
    assert said.startswith(f"track={track} failed: {why}")
    assert said.endswith("; the run continues without it")
    assert done.summary["rounds"] == 5
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_linked_trackers_json_is_neither_read_nor_written_through(tmp_path: Path) -> None:
    run(SMALL, tmp_path / "a", device="cpu")
    (tmp_path / "a" / "experiment.toml").write_text(replace(SMALL, track="tensorboard").toml())
    outside = '{"tensorboard": {"key": "tensorboard", "sent": 3}}'
    (tmp_path / "outside.json").write_text(outside)
    (tmp_path / "a" / "trackers.json").symlink_to("../outside.json")
    resume(tmp_path / "a", rounds=5, device="cpu")
    assert (tmp_path / "outside.json").read_text() == outside
    assert [e.step for e in events(tmp_path / "a").Scalars("tau_k")] == [1, 2, 3, 4, 5]
    assert not (tmp_path / "a" / "trackers.json").is_symlink()


NOTE = '{"tensorboard": {"key": "tensorboard", "sent": 2}}'


@pytest.mark.parametrize(
    ("content", "first"),
    [
        (NOTE, 3),
        (None, 1),
        ('{"tensorboard": ' + "[" * 3000 + "]" * 3000 + "}", 1),
        (NOTE.replace("2", "-2"), 1),
        (NOTE.replace("2", "true"), 1),
        (NOTE.replace('"key": "tensorboard"', '"key": "../x"'), 1),
        (NOTE.replace("2", "9" * 400), 6),
    ],
)
def test_notes_of_any_kind_end_in_a_run(content: str | None, first: int, tmp_path: Path) -> None:
    run(SMALL, tmp_path / "a", device="cpu")
    (tmp_path / "a" / "experiment.toml").write_text(replace(SMALL, track="tensorboard").toml())
    if content is None:
        os.mkfifo(tmp_path / "a" / "trackers.json")
    else:
        (tmp_path / "a" / "trackers.json").write_text(content)
    former = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits for someone to write into a pipe"))
    signal.alarm(60)
    try:
        resume(tmp_path / "a", rounds=5, device="cpu")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)
    read = events(tmp_path / "a")
    sent = [e.step for e in read.Scalars("tau_k")] if "tau_k" in read.Tags()["scalars"] else []
    assert sent == list(range(first, 6))


def test_notes_that_are_a_folder_leave_the_run_alone(tmp_path: Path) -> None:
    run(SMALL, tmp_path / "a", device="cpu")
    (tmp_path / "a" / "experiment.toml").write_text(replace(SMALL, track="tensorboard").toml())
    (tmp_path / "a" / "trackers.json").mkdir()
    with pytest.warns(TrackerFailed, match=r"^track=tensorboard needs a file trackers\.json, which is a folder here; "):
        assert resume(tmp_path / "a", rounds=5, device="cpu").summary["rounds"] == 5
    assert not list((tmp_path / "a").glob(".trackers.json*"))


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
def test_a_store_that_names_another_place_for_artifacts_is_rejected(known: bool, tmp_path: Path) -> None:
    run(replace(SMALL, track="mlflow"), tmp_path / "a", device="cpu")
    (tmp_path / "outside").mkdir()
    uri = (tmp_path / "outside").as_uri()
    with sqlite3.connect(tmp_path / "a" / "mlflow" / "mlflow.db") as store:
        store.execute("update runs set artifact_uri = ?", (uri,))
        store.execute("update experiments set artifact_location = ?", (uri,))
    store.close()
    if not known:
        (tmp_path / "a" / "trackers.json").unlink()
    why = "track=mlflow failed: mlflow/mlflow.db puts artifacts outside of the run folder, at file:"
    with pytest.warns(TrackerFailed, match=f"^{why}"):
        assert resume(tmp_path / "a", rounds=5, device="cpu").summary["rounds"] == 5
    assert list((tmp_path / "outside").iterdir()) == []


def test_lines_of_any_kind_have_values() -> None:
    odd: Any = {
        "round": 0,
        "faults": 3,
        "left_out": None,
        "tau": [1, 2],
        "loss": 10**400,
        "note": {},
        "test_loss": 1e150,
    }
    assert to_values(odd, 3) == (1, {"faults": 3.0, "test_loss": 1e150}, {})
    assert to_values(odd | {"test_loss": 1e308}, 3).numbers == {"faults": 3.0}  # what a run records as null
    assert to_values(odd | {"ids": [0, 1], "tau": ["x", 10**400]}, 99).many == {}


def test_tracking_decides_no_number() -> None:
    assert identify_run(build(SMALL)) == identify_run(build(replace(SMALL, track="wandb")))
    assert identify_run(build(SMALL)) != identify_run(build(replace(SMALL, lr=0.02)))


def test_values_of_a_line() -> None:
    line: Any = {"round": 2, "ids": [0, 4], "tau": [3, 5], "L": None, "left_out": [7], "accepted": False, "note": "x"}
    step, numbers, many = to_values(line, 5)
    assert (step, many) == (3, {})
    assert numbers == {"tau/client_0": 3, "tau/client_4": 5, "left_out": 1, "accepted": 0}
    assert to_values(line, 99).many == {"tau": [3, 5]}
    assert torch.tensor(to_values(line, 99).numbers["tau/mean"]) == 4
