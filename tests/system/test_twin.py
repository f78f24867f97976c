"""The twin of a deployment: three nodes that are slowed on purpose, their run again, and the times of its rounds.

`benchmarks/products/twin.py` measures how right predictions are; here they only have to be far from what a wrong
formula would give. Most of the time of these tests is waited for.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fedveca.cli import main
from fedveca.deploy.launch import Federation
from fedveca.deploy.local import follow
from fedveca.deploy.provision import write_app
from fedveca.runs.clock_settings import read_devices
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run

pytestmark = pytest.mark.slow
ROW_MS = 8.0  # of the fastest node; client 1 takes 5 times as long, client 2 twice
E = Experiment(model="svm", clients=3, rounds=4, batch=8, lr=0.05, round_timeout=120.0)


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("twin")
    root = str(Path(__file__).parents[2])
    slow = {
        "FEDVECA_NODE_DATA": "benchmarks.products.slow_rows:load_{client}",
        "SLOW_ROW_MS": str(ROW_MS),
        "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", "")))),
    }
    with Federation(folder / "deployment", 3, slow) as federation:
        write_app(folder / "app", E)
        federation.submit([f"out={json.dumps(str(folder / 'run'))}"], folder / "app")
        follow(federation, folder / "run", 3)
    return Run.open(folder / "run")


def test_the_slow_nodes_run_comes_out_again_and_its_times_are_predicted(
    deployed: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The local steps of client 1, the slowest, are 10, 10, 2 and 20: no constant is near three of these rounds.

    Another process may hold up one of them, so three have to be right.
    """
    assert [record["tau"][1] for record in deployed.rounds] == [10, 10, 2, 20]
    assert main(["replay", str(deployed.folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["same"]
    assert found["difference"] <= 1e-6
    measured = [each["measured"] for each in found["rounds"]]
    assert max(measured) > 1.5 * min(measured)
    assert sum(abs(each["error"]) < 0.3 for each in found["rounds"]) >= 3, found["rounds"]


def test_the_fitted_devices_are_as_slow_as_they_were_made(
    deployed: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "devices.toml"
    assert main(["devices", str(deployed.folder), "-o", str(out), "--quiet"]) == 0
    found = [profile.forward_ms + profile.backward_ms for profile in read_devices(str(out))]
    for per_row, factor in zip(found, (1, 5, 2), strict=True):
        assert per_row == pytest.approx(ROW_MS * factor, rel=0.25)
    for record in deployed.rounds:
        for work, tau, factor in zip(record["work_seconds"], record["tau"], (1, 5, 2), strict=True):
            assert work is not None
            assert work > factor * ROW_MS / 1000 * 8 * tau  # it slept so long at least
    words = [f"{name}={getattr(E, name)}" for name in ("model", "clients", "rounds", "batch", "lr")]
    assert main(["plan", *words, "--devices", str(out), "--past", str(deployed.folder), "--json"]) == 0
    (past,) = json.loads(capsys.readouterr().out)["past"]
    assert abs(past["seconds_error"]) < 0.2
    assert past["bytes_error"] == 0
