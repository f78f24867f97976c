"""Devices that are fitted to recorded rounds, and what they predict: known devices have to come out again."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveca.cli import main
from fedveca.cohorts.clock.fleet import Work
from fedveca.cohorts.clock.profiles import DeviceProfile
from fedveca.errors import UserError
from fedveca.runs.clock_settings import read_devices
from fedveca.runs.device_fit import (
    ClientTime,
    TimePredictor,
    collect_samples,
    fit_devices,
    make_rule,
    measure_rounds,
    predict_own_rounds,
    read_sizes,
    write_devices,
)
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.run import run

E = Experiment(model="svm", clients=3, rounds=8, batch=16, lr=0.05)
KNOWN = (
    DeviceProfile("a", forward_ms=0.1, backward_ms=0.2, latency_ms=40.0, down_mbit=0.5, up_mbit=0.5),
    DeviceProfile("b", forward_ms=0.2, backward_ms=0.4, latency_ms=50.0, down_mbit=0.2, up_mbit=0.2),
    DeviceProfile("c", forward_ms=0.5, backward_ms=1.0, latency_ms=60.0, down_mbit=2.0, up_mbit=2.0),
)
FIELDS = ("forward_ms", "backward_ms", "latency_ms", "down_mbit", "up_mbit", "spread", "network_spread")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Two models on known devices: 64 and 650 parameters, so that the bytes differ."""
    folder = tmp_path_factory.mktemp("fit")
    (folder / "known.toml").write_text(write_devices(KNOWN, "known"))
    e = replace(E, devices=str(folder / "known.toml"))
    made = (("svm", e), ("logistic", replace(e, model="logistic")))
    return [run(each, folder / name, device="cpu") for name, each in made]


def compare(found: Sequence[DeviceProfile], known: Sequence[DeviceProfile], fields: Sequence[str] = FIELDS) -> None:
    for ours, theirs in zip(found, known, strict=True):
        for name in fields:
            assert getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=1e-6, abs=1e-9), (ours.name, name)


def test_simulated_devices_come_out_again(runs: list[Run]) -> None:
    compare(fit_devices([s for each in runs for s in collect_samples(each)], 3), KNOWN)


def test_without_different_messages_their_time_is_latency(runs: list[Run]) -> None:
    """With 264 bytes down and 544 up."""
    found = fit_devices(collect_samples(runs[0]), 3)
    compare(found, KNOWN, ("forward_ms", "backward_ms"))
    for ours, known in zip(found, KNOWN, strict=True):
        assert math.isinf(ours.down_mbit)
        assert math.isinf(ours.up_mbit)
        assert ours.latency_ms == pytest.approx(known.latency_ms + 1000 * (264 + 544) / (known.up_mbit * 125_000) / 2)


def test_rounds_are_predicted_from_others(runs: list[Run]) -> None:
    for each in runs:
        times = predict_own_rounds(each)
        assert [time.measured for time in times] == pytest.approx(measure_rounds(each))
        assert [time.error for time in times] == pytest.approx([0.0] * 8, abs=1e-9)
        assert sum(time.measured for time in times) == pytest.approx(each.summary["clock"])


def test_a_round_is_not_predicted_from_itself(runs: list[Run]) -> None:
    """A round that took 100 s longer says nothing about its own prediction, and something about that of others."""
    slow = [dict(record) for record in runs[0].rounds]
    slow[2]["client_seconds"] = [t + 100 for t in runs[0].rounds[2]["client_seconds"] if t is not None]
    found = predict_own_rounds(replace(runs[0], rounds=slow))  # type: ignore[arg-type]
    assert found[2].predicted == pytest.approx(predict_own_rounds(runs[0])[2].predicted)
    assert found[3].predicted > 10


def sample(
    rows: int, down: int, up: int, wait: float, work: float, back: float, losses: float | None = None
) -> ClientTime:
    return ClientTime(0, rows, 0 if losses is None else 50, down, up, wait + work + back, work, wait, losses)


def test_the_parts_that_nodes_report_tell_down_from_up() -> None:
    """wait = 0.2 + down / 1e6, work = 0.1 + 0.003 rows, back = 0.4 + up / 5e5."""
    sizes = [(100, 10_000, 40_000), (300, 10_000, 40_000), (50, 500_000, 800_000), (200, 900_000, 100_000)]
    samples = [sample(r, d, u, 0.2 + d / 1e6, 0.1 + 0.003 * r, 0.4 + u / 5e5) for r, d, u in sizes]
    (found,) = fit_devices(samples, 1)
    assert found.forward_ms + found.backward_ms == pytest.approx(3.0)
    assert found.down_mbit == pytest.approx(8.0)
    assert found.up_mbit == pytest.approx(4.0)
    assert found.latency_ms == pytest.approx(1000 * (0.2 + 0.1 + 0.4) / 2)
    assert found.spread == found.network_spread == 0.0


def test_rows_come_from_the_work_whatever_the_network_does() -> None:
    """The longest waits are those of the fewest rows; a fit to whole times would find that rows take no time."""
    waits = {400: 0.1, 200: 1.0, 100: 3.0}
    samples = [sample(r, 8, 8, wait, 0.01 * r, 0.0) for r, wait in waits.items()]
    (found,) = fit_devices(samples, 1)
    assert found.forward_ms + found.backward_ms == pytest.approx(10.0)
    assert found.latency_ms == pytest.approx(1000 * np.mean(list(waits.values())) / 2)
    assert found.network_spread == pytest.approx(np.std(list(waits.values()), ddof=1) / np.mean(list(waits.values())))
    (whole,) = fit_devices([s._replace(work=None) for s in samples], 1)
    assert whole.forward_ms + whole.backward_ms < 5.0


def test_a_bandwidth_is_not_read_into_noise() -> None:
    """A few bytes more and half a second more, in polling: 500 bytes per second would be absurd for a larger model."""
    samples = [sample(100, 8, up, 0.1, 1.0, back) for up, back in ((272, 1.0), (272, 1.4), (544, 1.5), (544, 1.9))]
    (found,) = fit_devices(samples, 1)
    assert math.isinf(found.up_mbit)
    samples = [sample(100, 8, up, 0.1, 1.0, back) for up, back in ((100, 1.0), (100, 1.4), (9000, 1.1), (9000, 1.5))]
    (found,) = fit_devices(samples, 1)
    assert math.isinf(found.up_mbit)
    samples = [
        sample(100, 8, up, 0.1, 1.0, back) for up, back in ((100, 1.0), (100, 1.1), (90_000, 9.0), (90_000, 9.1))
    ]
    (found,) = fit_devices(samples, 1)
    assert found.up_mbit == pytest.approx(8 * (90_000 - 100) / 8.0 / 1e6)


def test_the_spread_of_the_work() -> None:
    """1 % up and down around 0.01 s per row."""
    samples = [sample(r, 8, 8, 0.1, 0.01 * r * f, 0.0) for r in (100, 300) for f in (0.9, 1.1)]
    (found,) = fit_devices(samples, 1)
    assert found.forward_ms + found.backward_ms == pytest.approx(10.0)
    noise = [-0.1, 0.1, -0.3, 0.3]
    assert found.spread == pytest.approx(np.std(noise, ddof=1) / 2.0)
    assert found.network_spread == 0.0


def test_losses_alone_say_what_a_forward_pass_costs() -> None:
    """50 rows whose loss alone is computed take 0.2 s, and 100 more rows of gradients 1.2 s."""
    samples = [sample(r, 8, 8, 0.1, 0.2 + 0.012 * r, 0.0, losses=0.2) for r in (100, 200)]
    (found,) = fit_devices(samples, 1)
    assert found.forward_ms == pytest.approx(4.0)
    assert found.backward_ms == pytest.approx(8.0)
    assert found.latency_ms == pytest.approx(50.0)


def test_where_all_rounds_have_as_many_rows() -> None:
    """All of the work is the rows', where nodes report it; without that, nothing is known but the whole time."""
    samples = [sample(100, 8, 8, 0.5, 2.0, 0.5)] * 3
    (found,) = fit_devices(samples, 1)
    assert (found.forward_ms + found.backward_ms, found.latency_ms) == pytest.approx((20.0, 500.0))
    (whole,) = fit_devices([s._replace(work=None) for s in samples], 1)
    assert (whole.forward_ms + whole.backward_ms, whole.latency_ms) == pytest.approx((0.0, 1500.0))


@settings(max_examples=30)
@given(
    per_row=st.floats(1e-6, 1.0),
    latency=st.floats(0.0, 10.0),
    rows=st.lists(st.integers(1, 1000), min_size=2, max_size=6, unique=True),
)
def test_times_without_noise_are_predicted_exactly(per_row: float, latency: float, rows: list[int]) -> None:
    samples = [ClientTime(0, r, 0, 8, 8, 2 * latency + per_row * r, per_row * r, latency, None) for r in rows]
    predictor = TimePredictor(fit_devices(samples, 1), 1)
    for r, s in zip(rows, samples, strict=True):
        if max(rows) - min(rows) > 0.05 * max(rows):
            import torch

            work = Work(torch.tensor([r]), torch.tensor([0]), 8, 8)
            assert predictor.predict_round(0, [0], work) == pytest.approx(s.total, rel=1e-6, abs=1e-9)


def test_a_prediction_is_the_mean_over_the_spread_and_the_slowest_counts() -> None:
    import torch

    none = torch.zeros(2, dtype=torch.int64)
    wide = [DeviceProfile(name, latency_ms=500.0, network_spread=0.5) for name in ("a", "b")]
    found = TimePredictor(wide, 2)
    one = found.predict_round(0, [0], Work(none[:1], none[:1], 0, 0))
    two = found.predict_round(0, [0, 1], Work(none, none, 0, 0))
    assert one == pytest.approx(1.0, rel=0.2)
    assert two > one * 1.1  # of two draws the longer one is longer on average
    slow = [DeviceProfile("a", latency_ms=500.0), DeviceProfile("b", latency_ms=900.0)]
    assert TimePredictor(slow, 2).predict_round(0, [0, 1], Work(none, none, 0, 0)) == 1.8


def test_a_round_that_waited_for_a_client_lasted_its_timeout(runs: list[Run]) -> None:
    predictor, rule = TimePredictor(KNOWN, 3), make_rule(runs[0])
    record = runs[0].rounds[0]
    assert predictor.predict_record(record, rule, 9.0) == pytest.approx(record["clock"])
    left = {**record, "ids": [0, 1], "tau": record["tau"][:2], "left_out": [2]}
    faults = [{"client": 2, "what": "timed out after 9 s"}]
    assert predictor.predict_record({**left, "faults": faults}, rule, 9.0) == 9.0  # type: ignore[typeddict-item]
    faults = [{"client": 2, "what": "is not connected"}]
    assert predictor.predict_record({**left, "faults": faults}, rule, 9.0) < 1.0  # type: ignore[typeddict-item]


def test_a_file_of_fitted_devices_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "d.toml").write_text(write_devices(KNOWN, "of\nnowhere [x]"))
    compare(read_devices(str(tmp_path / "d.toml")), KNOWN)


def test_what_cannot_be_fitted_is_said(runs: list[Run], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="client 2 has no answer with a time in these rounds"):
        fit_devices([s for s in collect_samples(runs[0]) if s.client != 2], 3)
    plain = run(replace(E, rounds=1), tmp_path / "plain", device="cpu")
    with pytest.raises(UserError, match="has no times of its clients"):
        measure_rounds(plain)
    (tmp_path / "plain" / "partition.json").unlink()
    with pytest.raises(UserError, match="does not say how many rows each of its clients has"):
        read_sizes(plain)
    for wrong in ([1, 2], [1, 2, -3], [1, 2, "3"], {"0": 1}):
        environment = json.loads((tmp_path / "plain" / "environment.json").read_text()) | {"sizes": wrong}
        (tmp_path / "plain" / "environment.json").write_text(json.dumps(environment))
        with pytest.raises(UserError, match="does not say how many rows"):
            read_sizes(plain)


def test_the_command(runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "devices.toml"
    folders = [str(each.folder) for each in runs]
    assert main(["devices", *folders, "-o", str(out)]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[:3] for line in shown.splitlines()[1:4]] == [
        ["client-0", "16", "0.3"],
        ["client-1", "16", "0.6"],
        ["client-2", "16", "1.5"],
    ]
    assert "rounds are predicted from other rounds: 0 % off on average" in shown
    compare(read_devices(str(out)), KNOWN, FIELDS[:5])
    assert main(["devices", *folders, "-o", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["answers"] == 48
    assert main(["devices", *folders, "-o", "devices.csv"]) == 2
    assert main(["devices", str(tmp_path)]) == 2
