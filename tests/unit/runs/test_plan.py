"""What a plan says before a start is what the run takes then."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedveca.cli import main
from fedveca.runs.build import build
from fedveca.runs.experiment import Experiment
from fedveca.runs.memory_plan import estimate_memory
from fedveca.runs.plan import COMPUTED, SIMULATED, make_plan
from fedveca.runs.run import run

E = Experiment(model="svm", clients=3, rounds=5, batch=16, lr=0.05, tau_0=4)
ON = replace(E, devices="uniform")
DEVICES = """
[a]
forward_ms = 0.1
backward_ms = 0.2
latency_ms = 40
down_mbit = 0.5
up_mbit = 0.25
joules_per_row = 0.001
[b]
forward_ms = 0.2
backward_ms = 0.4
latency_ms = 50
[c]
forward_ms = 0.5
backward_ms = 1.0
latency_ms = 60
"""


@pytest.fixture
def devices(tmp_path: Path) -> str:
    (tmp_path / "d.toml").write_text(DEVICES)
    return str(tmp_path / "d.toml")


CASES = {
    "fedavg": (replace(E, method="fedavg"), COMPUTED),
    "statistics": (replace(E, method="fedavg", model="mlp", norm="batch"), COMPUTED),
    "some": (replace(E, method="fednova", participation=0.7), COMPUTED),
    "epochs": (replace(E, method="fedavg", epochs="1", rounds=2), COMPUTED),
    "pooled": (replace(E, method="centralised"), COMPUTED),
    "last": (replace(E, method="scaffold", keep="last"), COMPUTED),
    "fedveca": (E, SIMULATED),
    "time": (replace(E, method="equaltime"), SIMULATED),
    "deadline": (replace(ON, method="fedavg", schedule="deadline", deadline=0.3), SIMULATED),
    "buffered": (replace(ON, method="fedavg", schedule="buffered", buffer=2, keep="last"), SIMULATED),
    "faults": (replace(E, method="fedavg", faults="drop:0.3"), SIMULATED),
}


@pytest.mark.parametrize("name", CASES)
def test_a_plan_is_what_the_run_takes(name: str, devices: str) -> None:
    e, way = CASES[name]
    plan, done = make_plan(e, devices), run(replace(e, devices=devices), device="cpu")
    assert plan.way == way
    assert plan.rounds == len(done.rounds)
    assert plan.seconds == pytest.approx(done.summary["clock"])
    assert plan.joules == pytest.approx(done.summary["joules"])
    assert plan.bytes_down == sum(record["bytes_down"] for record in done.rounds)
    assert plan.bytes_up == sum(record["bytes_up"] for record in done.rounds)
    assert plan.epsilon is None


def test_a_target_ends_it(devices: str) -> None:
    e = replace(E, rounds=40)
    reached = make_plan(e, devices, target=0.82)
    done = run(replace(e, devices=devices, target=0.82), device="cpu")
    assert (reached.way, reached.reached, reached.rounds) == (SIMULATED, True, len(done.rounds))
    assert reached.rounds < 40
    missed = make_plan(replace(e, rounds=3), devices, target=0.999)
    assert (missed.reached, missed.rounds) == (False, 3)


@pytest.mark.parametrize("method", ["fedavg", "fedveca"])
def test_a_narrow_wire_carries_half_the_bytes_in_less_time(method: str, devices: str) -> None:
    """64 numbers of 2 bytes down and 8 for tau; client 0 has half a megabit down and a quarter up."""
    wide, narrow = (make_plan(replace(E, method=method, wire=wire), devices) for wire in ("float32", "float16"))
    assert wide.bytes_down == 5 * 3 * (4 * 64 + 8)
    assert narrow.bytes_down == 5 * 3 * (2 * 64 + 8)
    vectors = {"fedavg": 1, "fedveca": 2}[method]
    assert wide.bytes_up - narrow.bytes_up == 5 * 3 * vectors * 2 * 64
    assert narrow.seconds <= wide.seconds


def test_the_privacy_that_is_spent(devices: str) -> None:
    pytest.importorskip("dp_accounting")
    e = replace(E, method="fedavg", partition="iid", dp_noise=1.0)
    plan, done = make_plan(e, devices), run(replace(e, devices=devices), device="cpu")
    assert plan.epsilon == pytest.approx(done.summary["epsilon"])


def test_what_would_have_been_said_before_past_runs(devices: str, tmp_path: Path) -> None:
    past = run(replace(E, devices=devices, clients=3), tmp_path / "past", device="cpu")
    same = make_plan(replace(E, method="fedavg"), devices, past=[past])
    assert same.past[0].seconds == pytest.approx(past.summary["clock"])
    assert same.past[0].seconds_error == pytest.approx(0, abs=1e-9)
    assert same.past[0].bytes_error == 0
    assert same.past[0].bytes == sum(r["bytes_down"] + r["bytes_up"] for r in past.rounds)
    (tmp_path / "slow.toml").write_text("[all]\nlatency_ms = 1000\n")
    slow = make_plan(replace(E, method="fedavg"), str(tmp_path / "slow.toml"), past=[past])
    assert slow.past[0].predicted_seconds == pytest.approx(5 * 2.0)
    assert slow.past[0].seconds_error == pytest.approx(10.0 / past.summary["clock"] - 1)


def test_the_memory_of_devices_and_server() -> None:
    """Rows of 64 float32 and a label of int64; eight vectors to step with, an order and an answer of each."""
    e = replace(E, method="fedavg", devices="uniform")
    built = build(e)
    plan, P = estimate_memory(built), 64
    assert 50e6 < plan.process < 20e9
    each = (4 * 64 + 8) * built.shares.sizes + 4 * P * (2 + 8)
    extra = [memory - plan.process - int(known) for memory, known in zip(plan.devices, each, strict=True)]
    assert extra == [int(n) * built.problem.row_bytes for n in built.shares.sizes.clamp(max=8192)]
    more = estimate_memory(build(replace(e, model="mlp", hidden=1000)))
    assert more.device - plan.device > 4 * 10 * (65 * 1000 + 10 * 1001 - P)
    assert more.server > plan.server
    assert plan.device == max(plan.devices)


def test_the_command(devices: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = ["model=svm", "clients=3", "rounds=5", "batch=16", "tau_0=4", "lr=0.05", "method=fedavg"]
    assert main(["plan", *words, "--devices", devices]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines()] == ["rounds", "seconds", "bytes", "joules", "memory", "how"]
    assert "computed from the settings" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert main(["plan", *words, "--devices", devices, "--target", "0.8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["way"] == SIMULATED
    assert found["reached"] is True
    assert len(found["memory"]["devices"]) == 3


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "a plan needs devices"),
        (["--devices", "gone.toml"], "gone.toml does not exist"),
        (["--devices", "fones"], "devices=fones is not known"),
        (["clients=4", "--devices", "DEVICES"], "has 3 profiles without a share for 4 clients"),
        (["--devices", "phones", "--past", "nowhere"], "nowhere is not a run folder"),
        (["--devices", "phones", "--target", "nan"], "target=nan"),
    ],
)
def test_bad_input_is_one_sentence(
    words: list[str], why: str, devices: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *(devices if word == "DEVICES" else word for word in words)]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("fedveca: ")
    assert why in said
