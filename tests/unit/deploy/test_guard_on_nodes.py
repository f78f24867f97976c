"""guard=on over Flower nodes: after a return every node starts as one that was never seen, as in the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
from flower_grid import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedveca.cohorts.flower import roster
from fedveca.deploy.node_process import make_node_cohort
from fedveca.deploy.server import make_cohort
from fedveca.runs.experiment import Experiment
from fedveca.runs.run import run
from fedveca.runs.task_data import load_data


@pytest.fixture(autouse=True)
def _flower(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_task_id": 1, "_run_id": 1, "_node_id": 1}.items():
        monkeypatch.setattr(TaskIdentity, name, value)
    monkeypatch.setattr(roster, "POLL_SECONDS", 0.001)
    make_node_cohort.cache_clear()


def test_a_guarded_deployment_is_the_guarded_simulation(tmp_path: Path) -> None:
    e = Experiment(
        method="scaffold", model="svm", clients=3, rounds=6, batch=8, lr=0.5, tau_0=8, guard="on", round_timeout=5.0,
        partition="dirichlet",
    )  # fmt: skip
    grid: Any = Grid(e, tmp_path, {}, 3)
    data = load_data(e)[0]
    deployed = run(e, data=data, cohort=make_cohort(grid, e, data, say=lambda text: None), device="cpu")
    simulated = run(e, device="cpu")
    back = [record.get("guarded", "").split(":")[0] for record in simulated.rounds]
    assert [record.get("guarded", "").split(":")[0] for record in deployed.rounds] == back
    assert sum(map(bool, back)) >= 2
    for name, v in simulated.model.items():
        assert float((deployed.model[name] - v).abs().max()) < 1e-5
