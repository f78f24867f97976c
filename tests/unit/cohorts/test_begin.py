"""Where a client's local steps start: at w_k, or at a model of its own that it remembers."""

from __future__ import annotations

import pytest
import torch
from half_way import HalfWay
from torch import Tensor

from fedveca.algorithms import Algorithm, FedAvg
from fedveca.algorithms.optimizers import LocalOptimizer
from fedveca.algorithms.recipe import Recipe
from fedveca.cohorts.debug import DebugCohort
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.cohorts.random import draw_rows
from fedveca.runs.federate import federate
from fedveca.tasks.datasets.dataset import load, prepare
from fedveca.tasks.models import model
from fedveca.tasks.partition import partition

TAU = torch.tensor([3, 1, 2, 3])


def train(algorithm: Algorithm, kind: type[LocalCohort | DebugCohort], name: str) -> tuple[list[Tensor], list[float]]:
    data, problem = load("digits"), model(name, (1, 8, 8), 10)
    shares = partition("dirichlet", data.y, 10, 4, seed=1)
    cohort = kind(algorithm, problem, data.x, data.y, shares, batch=8, seed=5, probe=0)
    rounds = list(federate(algorithm, cohort, algorithm.init(problem.init(), TAU), 4, participation=0.75, seed=2))
    return [state.w for state, _ in rounds], [record["train_loss"] or 0.0 for _, record in rounds]


@pytest.mark.parametrize("name", ["svm", "mlp"])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_the_engines_start_where_the_method_says(name: str, momentum: float) -> None:
    algorithm: Algorithm = HalfWay(0.05)
    if momentum:
        algorithm = Recipe(algorithm, LocalOptimizer(momentum=momentum, keep=True))
    (local, losses), (debug, want) = (train(algorithm, kind, name) for kind in (LocalCohort, DebugCohort))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(local, debug, strict=True))
    assert losses == pytest.approx(want, rel=1e-5)
    assert not torch.allclose(local[-1], train(FedAvg(0.05), LocalCohort, name)[0][-1], atol=1e-4)


def test_it_is_a_literal_loop_over_clients() -> None:
    """Steps and F_i are at the client's own start, which is w_k for a client that was never seen."""
    data, problem = load("digits"), model("svm", (1, 8, 8), 10)
    shares = partition("dirichlet", data.y, 10, 4, seed=1)
    x, y, w = prepare(data.x, "as-is"), data.y, problem.init()
    mine: dict[int, Tensor] = {}
    cohort = LocalCohort(HalfWay(0.05), problem, data.x, data.y, shares, batch=8, seed=5, probe=0)
    state = HalfWay(0.05).init(w, TAU)
    for k, (after, record) in enumerate(federate(HalfWay(0.05), cohort, state, 4, participation=0.75, seed=2)):
        loss, total, weight = 0.0, torch.zeros_like(w), 0
        for i, tau in zip(record["ids"], record["tau"], strict=True):
            at, rows = (w + mine.get(i, w)) / 2, shares.rows[shares.start[i] : shares.start[i + 1]]
            loss += len(rows) * float(problem.losses(at, x[rows], y[rows])[0])
            draws = draw_rows(5, k, torch.tensor([i]), torch.tensor([len(rows)]), tau, 8)[0]
            for step in range(tau):
                batch = rows[draws[step]]
                at = at - 0.05 * problem.slope(at[None], x[batch][None], y[batch][None])[0]
            mine[i], total, weight = at, total + len(rows) * (w - at), weight + len(rows)
        w = w - total / weight
        assert torch.allclose(after.w, w, atol=1e-6)
        assert record["train_loss"] == pytest.approx(loss / weight, rel=1e-5)
