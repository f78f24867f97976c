"""Runs on simulated devices: what they record, who is late, and that they resume."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import fedveca
from fedveca import Experiment, Run
from fedveca.algorithms.contract import AskLoss, ServerState
from fedveca.algorithms.fedavg import FedAvg
from fedveca.errors import UserError
from fedveca.runs.clock_settings import read_devices

SMALL = {"rounds": 4, "batch": 10, "tau_0": 3, "clients": 3, "keep": "last", "method": "fedavg", "seed": 5}
# By hand, of one local step with 10 rows: 0.1 s, 0.2 s and 0.5 s.
THREE = "name,forward_ms,backward_ms,latency_ms\na,4,6,0\nb,8,12,0\nc,20,30,0\n"


@dataclass(frozen=True)
class HighestLoss(FedAvg):
    """Takes the clients with the highest losses."""

    chooses: ClassVar[bool] = True

    def choose(self, state: ServerState, p: Tensor, u: Tensor, m: int, ask: AskLoss) -> Tensor:
        return ask(torch.arange(len(p))).topk(m).indices


@pytest.fixture
def devices(tmp_path: Path) -> str:
    file = tmp_path / "three.csv"
    file.write_text(THREE, "utf-8")
    return str(file)


def run(**settings: object) -> Run:
    return fedveca.run(Experiment(**(SMALL | settings)))  # type: ignore[arg-type]


def strip(r: Run) -> list[dict[str, object]]:
    mine = ("seconds", "clock", "client_seconds", "joules")
    return [{name: v for name, v in record.items() if name not in mine} for record in r.rounds]


def test_sync_by_hand(devices: str) -> None:
    """Three steps: 0.3, 0.6 and 1.5 s; a round lasts as long as its slowest client. All else is as without devices."""
    r = run(devices=devices)
    for k, record in enumerate(r.rounds):
        assert record["client_seconds"] == pytest.approx([0.3, 0.6, 1.5])
        assert record["clock"] == pytest.approx(1.5 * (k + 1))
        assert "joules" not in record  # no device states any
    assert r.summary["clock"] == pytest.approx(6.0)
    bare = run()
    assert strip(r) == strip(bare)
    assert "clock" not in bare.rounds[0]
    assert "clock" not in bare.summary


def test_deadline_by_hand(devices: str) -> None:
    """After one second the third client is missing, and the server has waited for it."""
    r = run(devices=devices, schedule="deadline", deadline=1)
    for k, record in enumerate(r.rounds):
        assert (record["ids"], record["left_out"]) == ([0, 1], [2])
        assert record["faults"] == [{"client": 2, "what": "late"}]
        assert record["client_seconds"] == pytest.approx([0.3, 0.6])
        assert record["clock"] == pytest.approx(k + 1)


def test_steps_are_cut_by_hand(devices: str) -> None:
    """Within one second the third client has time for two steps of 0.5 s."""
    r = run(devices=devices, schedule="deadline", deadline=1, late="cut")
    for record in r.rounds:
        assert record["tau"] == [3, 3, 2]
        assert record["client_seconds"] == pytest.approx([0.3, 0.6, 1.0])
        assert record["left_out"] == []
    assert r.summary["clock"] == pytest.approx(4.0)
    assert r.summary["tau_all"] == 4 * 8


def test_over_selection_by_hand(devices: str) -> None:
    """Of three that are asked, the round takes the first two: 2 / 3 of 3 clients, half as many more."""
    r = run(devices=devices, participation=2 / 3, over_selection=0.5)
    assert [record["ids"] for record in r.rounds] == [[0, 1]] * 4
    assert r.summary["clock"] == pytest.approx(4 * 0.6)


def test_a_long_deadline_is_sync(devices: str) -> None:
    late = run(devices=devices, schedule="deadline", deadline=1e6)
    sync = run(devices=devices)
    assert strip(late) == strip(sync)
    assert [record["clock"] for record in late.rounds] == [record["clock"] for record in sync.rounds]


@pytest.mark.parametrize(
    "method",
    ["fedavg", "fedveca", "scaffold", "fedprox", "corrected", "mimelite", "feddyn", "moon", "fedadam"],
)
@pytest.mark.parametrize("keep", ["last", "best", "rollback"])
def test_what_a_client_sends_is_known_before(method: str, keep: str, tmp_path: Path) -> None:
    """One byte per second up, and nothing else that takes time: a client's seconds are the bytes of its answer."""
    file = tmp_path / "up.toml"
    file.write_text("[slow]\nup_mbit = 8e-6\n", "utf-8")
    r = run(devices=str(file), method=method, keep=keep, rounds=2, batch=4)
    for record in r.rounds:
        assert sum(record["client_seconds"]) == pytest.approx(record["bytes_up"])  # type: ignore[arg-type]


def test_what_a_client_computes(tmp_path: Path) -> None:
    """A second per row forward, 1,000 backward; two steps with 4 rows, and 32 rows of the probe."""
    file = tmp_path / "rows.toml"
    file.write_text("[slow]\nforward_ms = 1e3\nbackward_ms = 1e6\njoules_per_row = 1\n", "utf-8")
    few = {"devices": str(file), "rounds": 1, "batch": 4, "tau_0": 2, "probe": 32}
    for method, keep, rows, loss_rows in (
        ("fedavg", "last", 8, 0),
        ("fedavg", "best", 8, 32),
        ("fedavg", "rollback", 8, 64),
        ("fedveca", "best", 40, 0),
        ("fedveca", "rollback", 40, 32),
    ):
        (record,) = run(**few, method=method, keep=keep).rounds
        assert record["client_seconds"] == pytest.approx([1001 * rows + loss_rows] * 3)
        assert record["joules"] == pytest.approx(3 * (rows + loss_rows / 1001))


def test_phones_are_often_absent() -> None:
    r = run(devices="phones", clients=20, rounds=3)
    faults = [fault for record in r.rounds for fault in record.get("faults", [])]
    assert faults
    assert {fault["what"] for fault in faults} == {"unavailable"}
    clocks = [record["clock"] for record in r.rounds]
    assert clocks == sorted(clocks)
    assert all(record["joules"] > 0 for record in r.rounds)
    assert r.summary["joules"] == pytest.approx(sum(record["joules"] for record in r.rounds))


def test_faults_hold_a_round_up_to_its_deadline(devices: str) -> None:
    """Who drops out is waited for; the record says why each client is missing."""
    dropped = run(devices=devices, schedule="deadline", deadline=9, faults="drop:1", rounds=1)
    assert [fault["what"] for fault in dropped.rounds[0]["faults"]] == ["drop"] * 3
    assert dropped.rounds[0]["clock"] == 9


@pytest.mark.parametrize(
    "settings",
    [{}, {"schedule": "deadline", "deadline": 0.4, "late": "cut"}, {"participation": 0.5, "over_selection": 1.0}],
)
def test_resume_is_the_same(settings: dict[str, object], tmp_path: Path) -> None:
    e = Experiment(**(SMALL | {"devices": "phones", "clients": 6} | settings))  # type: ignore[arg-type]
    whole = fedveca.run(e)
    fedveca.run(e.replace(rounds=2), tmp_path / "run")
    resumed = fedveca.resume(tmp_path / "run", rounds=4)
    clocks = [[record[name] for record in r.rounds] for r in (whole, resumed) for name in ("clock", "client_seconds")]
    assert clocks[:2] == clocks[2:]
    assert strip(whole) == strip(resumed)
    assert whole.summary["clock"] == resumed.summary["clock"]


def test_resume_needs_the_same_devices(devices: str, tmp_path: Path) -> None:
    e = Experiment(**(SMALL | {"devices": devices}))  # type: ignore[arg-type]
    fedveca.run(e.replace(rounds=2), tmp_path / "run")
    Path(devices).write_text(THREE.replace("12", "13"), "utf-8")
    with pytest.raises(UserError, match="belongs to another experiment or other data"):
        fedveca.resume(tmp_path / "run", rounds=4)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"devices": "phone"}, "devices=phone is not known (did you mean phones?); it is five-raspberry-pis, phones"),
        ({"deadline": 2.0}, "deadline=2.0 needs schedule=deadline"),
        ({"schedule": "deadline"}, "schedule=deadline needs a deadline in seconds, such as"),
        ({"schedule": "soon"}, "schedule=soon is not known; allowed: sync | deadline"),
        ({"devices": "uniform", "schedule": "deadline"}, "schedule=deadline needs a deadline in seconds, such as"),
        ({"devices": "uniform", "deadline": 3.0}, "deadline=3.0 needs schedule=deadline"),
        ({"devices": "uniform", "late": "cut"}, "late=cut needs schedule=deadline"),
        ({"devices": "uniform", "over_selection": 0.3}, "over_selection=0.3 needs a participation below 1"),
        ({"devices": "uniform", "deadline": -1.0}, "deadline=-1.0 is out of range"),
    ],
)
def test_mistakes_in_settings(settings: dict[str, object], said: str) -> None:
    with pytest.raises(UserError) as caught:
        Experiment(**settings)  # type: ignore[arg-type]
    assert said in str(caught.value)


@pytest.mark.parametrize("more", [{"schedule": "deadline", "deadline": 2.0}, {"schedule": "buffered", "keep": "last"}])
def test_a_simulation_needs_devices_for_a_schedule(more: dict[str, object]) -> None:
    """The settings by themselves are those of a deployment, whose nodes take real time."""
    with pytest.raises(
        UserError, match=f"schedule={more['schedule']} needs simulated devices, such as devices=uniform"
    ):
        run(**more)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("no.toml", None, "no.toml does not exist"),
        ("a.toml", "[a", "a.toml is not TOML"),
        ("a.toml", "forward_ms = 3", "forward_ms is not a table of fields"),
        ("a.csv", "name,forward_ms\na,1,2\n", "line 2 has not as many cells as the heading"),
        ("a.csv", "name,forward_ms\na,1\na,2\n", "two profiles are called a"),
        ("a.csv", "", "has no profile"),
        ("a.csv", 'name,forward_ms\n"a"x,1\n', "is not CSV"),
    ],
)
def test_mistakes_in_files(name: str, text: str | None, said: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / name).write_text(text, "utf-8")
    with pytest.raises(UserError) as caught:
        read_devices(str(tmp_path / name))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_too_few_profiles(devices: str) -> None:
    with pytest.raises(UserError, match=r"three.csv has 3 profiles without a share for 4 clients; name one for each"):
        run(devices=devices, clients=4)


def test_a_pooled_method_has_the_first_device(devices: str) -> None:
    r = run(devices=devices, method="centralised")
    assert [record["client_seconds"] for record in r.rounds] == [[pytest.approx(0.3)]] * 4


def test_asking_for_losses_before_a_choice_takes_time(tmp_path: Path) -> None:
    """A method that chooses by losses: 32 rows forward at all clients before the round, at 1 s per row."""
    file = tmp_path / "rows.toml"
    file.write_text("[slow]\nforward_ms = 1e3\n", "utf-8")
    e = Experiment(**(SMALL | {"devices": str(file), "probe": 32, "rounds": 1, "participation": 0.4}))  # type: ignore[arg-type]
    (record,) = fedveca.run(e, method=HighestLoss(0.05)).rounds
    (steps,) = record["client_seconds"]
    assert steps == pytest.approx(30)
    assert record["clock"] == pytest.approx(32 + 30)
