"""weights=uniform: every client counts the same, wherever the clients are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedveca import Experiment, run
from fedveca.runs.build import build
from fedveca.runs.federate import federate
from fedveca.runs.task_data import load_data

E = Experiment(
    method="fedavg",
    model="mlp",
    hidden=4,
    clients=4,
    partition="dirichlet",
    rounds=3,
    batch=8,
    tau_0=3,
    weights="uniform",
)


@pytest.mark.parametrize("engine", ["local", "debug"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_the_mean_is_over_clients_and_not_over_rows(engine: Any, participation: float) -> None:
    e = replace(E, engine=engine, participation=participation)
    built, alone = build(e), build(replace(e, participation=1.0))
    assert len(set(built.shares.sizes.tolist())) == 4
    (state, record), *_ = federate(
        built.algorithm, built.cohort, built.state, 1, participation=participation, seed=e.seed
    )
    order, tau = alone.algorithm.order(alone.state), torch.tensor([3])
    each = [alone.cohort(0, order, torch.tensor([i]), tau)[1] for i in record["ids"]]
    w = alone.state.w - e.lr * torch.stack([report.mean["G"] for report in each]).mean(0)
    assert torch.allclose(state.w, w, atol=1e-6)
    losses = [float(report.each["loss"]) for report in each]
    assert record["train_loss"] == pytest.approx(sum(losses) / len(losses))
    rows = build(replace(e, weights="rows"))
    (other, _), *_ = federate(rows.algorithm, rows.cohort, rows.state, 1, participation=participation, seed=e.seed)
    assert not torch.allclose(other.w, w, atol=1e-4)


def test_scaffold_keeps_the_uniform_mean_of_the_clients_c() -> None:
    """Karimireddy et al.: c is the plain mean of c_i over all clients, also where only some take part."""
    built = build(replace(E, method="scaffold", participation=0.5))
    for state, _ in federate(built.algorithm, built.cohort, built.state, 3, participation=0.5, seed=E.seed):
        memory = built.cohort.memory.recall(torch.arange(4), built.algorithm.memory(state.w))  # type: ignore[attr-defined]
        assert torch.allclose(state.c, memory["c"].mean(0), atol=1e-6)


def test_with_clients_of_equal_size_nothing_changes() -> None:
    e = replace(E, partition="case1", clients=2)
    sizes = build(e).shares.sizes
    assert int(sizes.max() - sizes.min()) == 0
    uniform, rows = run(e, device="cpu"), run(replace(e, weights="rows"), device="cpu")
    for name, v in rows.model.items():
        assert torch.allclose(uniform.model[name], v, atol=1e-6)


def test_nodes_of_a_deployment_count_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr")
    from flower_grid import Grid
    from flwr.supercore.task_identity import TaskIdentity

    from fedveca.cohorts.flower import roster
    from fedveca.deploy.node_process import make_node_cohort
    from fedveca.deploy.server import make_cohort

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.setattr(roster, "POLL_SECONDS", 0.001)
    make_node_cohort.cache_clear()
    e = replace(E, method="scaffold", round_timeout=5.0)
    grid: Any = Grid(e, tmp_path, {}, 4)
    data = load_data(e)[0]
    deployed = run(e, data=data, cohort=make_cohort(grid, e, data, say=lambda text: None), device="cpu")
    simulated = run(e, device="cpu")
    for mine, other in zip(deployed.rounds, simulated.rounds, strict=True):
        assert mine["train_loss"] == pytest.approx(other["train_loss"], rel=1e-5)
    for name, v in simulated.model.items():
        assert float((deployed.model[name] - v).abs().max()) < 1e-5
