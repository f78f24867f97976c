"""Runs side by side on a CUDA device: each is as it is alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedveca import Experiment, compare, run
from fedveca.algorithms.registry import load_method, methods
from fedveca.runs.interrupt import Stopped
from fedveca.runs.pool import RunPlan, complete_runs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
E = Experiment(model="mlp", hidden=32, rounds=4, batch=16, clients=5, partition="dirichlet", lr=0.05, tau_0=3)
NAMES = tuple(name for name in methods() if not load_method(name).algorithm.needs_timing)
SETTINGS = {
    "svm": {"model": "svm", "probe": 0},
    "cnn": {"model": "cnn", "lr": 0.01},
    "participation": {"participation": 0.5},
    "faults": {"faults": "drop:0.3,scale:0.3:-2", "aggregate": "clip"},
    "guard": {"guard": "on", "lr": 0.5},
    "checkpoints": {"checkpoint_every": 3, "participation": 0.8, "faults": "drop:0.2"},
    "recipe": {"momentum": 0.9, "server_optimizer": "adam", "lr_schedule": "cosine"},
    "validation": {"val": 0.2, "test_by": "both", "finetune_steps": 1, "clients": 2},
}


def never() -> bool:
    return False


def check_alike(together: Path, alone: Path) -> None:
    """Equal steps in every round, and weights that differ by at most 1e-5 of the largest one."""
    steps = [
        [json.loads(line)["tau"] for line in (folder / "rounds.jsonl").read_text("utf-8").splitlines()]
        for folder in (together, alone)
    ]
    assert steps[0] == steps[1]
    mine, other = (load_file(folder / "model.safetensors") for folder in (together, alone))
    assert mine.keys() == other.keys()
    for name, v in other.items():
        assert float((mine[name] - v).abs().max()) <= 1e-5 * max(1.0, float(v.abs().max())), name


def plan(experiments: list[Experiment], out: Path) -> list[RunPlan]:
    return [RunPlan(e, out / f"{n}-{e.method}", "cuda") for n, e in enumerate(experiments)]


@pytest.fixture(scope="module")
def everyone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All methods side by side."""
    out = tmp_path_factory.mktemp("together")
    complete_runs([RunPlan(replace(E, method=name), out / name, "cuda") for name in NAMES], never)
    return out


@pytest.mark.parametrize("name", NAMES)
def test_every_method_is_as_alone(name: str, everyone: Path, tmp_path: Path) -> None:
    run(replace(E, method=name), tmp_path / "alone", device="cuda")
    check_alike(everyone / name, tmp_path / "alone")


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_settings(settings: dict[str, object], tmp_path: Path) -> None:
    mine = plan([E.replace(method=name, **settings) for name in ("fedavg", "scaffold", "fedveca")], tmp_path / "all")
    complete_runs(mine, never)
    for each in mine:
        run(each.experiment, tmp_path / each.folder.name, device="cuda")
        check_alike(each.folder, tmp_path / each.folder.name)


def test_a_population_that_was_stopped_resumes(tmp_path: Path) -> None:
    mine = plan([replace(E, method=name, rounds=6) for name in ("fedavg", "scaffold", "fedveca")], tmp_path / "all")
    with pytest.raises(Stopped):
        complete_runs(mine, stop_after(12))
    assert not (mine[0].folder / "summary.json").exists()
    complete_runs(mine, never)
    for each in mine:
        run(each.experiment, tmp_path / each.folder.name, device="cuda")
        check_alike(each.folder, tmp_path / each.folder.name)


def stop_after(calls: int) -> Callable[[], bool]:
    """Who asks to stop once it was asked so often."""
    asked = iter(range(calls))
    return lambda: next(asked, None) is None


KILLED = """
import sys
from pathlib import Path
from fedveca.runs.experiment import read_experiment
from fedveca.runs.pool import RunPlan, complete_runs
e, out = read_experiment(Path(sys.argv[1]).read_text("utf-8")), Path(sys.argv[2])
names = ("fedavg", "scaffold", "fedveca")
complete_runs([RunPlan(e.replace(method=name), out / name, "cuda") for name in names], lambda: False)
"""


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_a_population_that_was_killed_resumes(model: str, tmp_path: Path) -> None:
    e = E.replace(model=model, rounds=60, participation=0.8, faults="drop:0.2", lr=0.05 if model == "mlp" else 0.01)
    names, out, settings = ("fedavg", "scaffold", "fedveca"), tmp_path / "all", tmp_path / "experiment.toml"
    settings.write_text(e.toml(), "utf-8")
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(settings), str(out)])
    lines, limit = out / "fedveca" / "rounds.jsonl", time.monotonic() + 120
    while not lines.exists() or lines.read_text("utf-8").count("\n") < 5:
        assert time.monotonic() < limit
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not any((out / name / "summary.json").exists() for name in names)  # all three were under way
    complete_runs([RunPlan(replace(e, method=name), out / name, "cuda") for name in names], never)
    for name in names:
        run(replace(e, method=name), tmp_path / name, device="cuda")
        check_alike(out / name, tmp_path / name)


def test_the_precision_of_products_is_what_it_was(tmp_path: Path) -> None:
    before = torch.get_float32_matmul_precision()
    compare(replace(E, rounds=2), 2, tmp_path / "out", methods=("fedavg", "scaffold"), device="cuda")
    assert torch.get_float32_matmul_precision() == before
