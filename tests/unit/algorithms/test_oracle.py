"""FedVeca against Algorithms 1 and 2 transcribed, FedVeca corrected and FedVecaM against their pages transcribed."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from corrected_oracle import (
    CorrectedClient,
    CorrectedRound,
    Rules,
    TrustingClient,
    follow_corrected,
    follow_fedvecam,
)
from oracle import Client, server
from torch import Tensor, nn
from torch.func import functional_call

from fedveca.algorithms import Algorithm, Corrected, FedVeca, FedVecaM
from fedveca.cohorts import random as draws
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.runs.federate import Rollback, federate
from fedveca.tasks.datasets.dataset import load
from fedveca.tasks.models import model
from fedveca.tasks.partition import Shares, partition
from fedveca.tasks.problem import Problem

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]  # (w, x, y)
ALPHA, BATCH, SEED = 0.95, 16, 3
ETA = {"svm": 0.05, "mlp": 0.05, "cnn": 0.002}  # rounding tips a max-pool of the CNN now and then, by eta
ROUNDS = {"svm": 12, "mlp": 12, "cnn": 6}
SLOW_MLP = pytest.param("mlp", marks=pytest.mark.slow)


def slow_svm(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    sign = torch.where(y % 2 == 0, 1.0, -1.0)
    return 0.05 * (w**2).sum() + (0.5 * torch.relu(1 - sign * (x.flatten(1) @ w)) ** 2).mean()


def find_loss(name: str, problem: Problem) -> Loss:
    """F of one vector, by the module itself."""
    if name == "svm":
        return slow_svm
    module: nn.Module = problem.module  # type: ignore[attr-defined]

    def loss(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(module, problem.named(w), (x,)), y)

    return loss


def split_rows(shares: Shares) -> list[Tensor]:
    """The rows of each client."""
    return [shares.rows[a:b] for a, b in itertools.pairwise(shares.start.tolist())]


def draw_batches(i: int, rows: int) -> Callable[[int, int], Tensor]:
    """The rows of a client's mini-batch, by round and local step."""

    def draw(k: int, lam: int) -> Tensor:
        return draws.draw_rows(SEED, k, torch.tensor([i]), torch.tensor([rows]), lam + 1, BATCH)[0, lam]

    return draw


@functools.cache
def follow_paper(name: str, rollback: bool) -> list[dict[str, Any]]:
    """The rounds of the transcription, which knows nothing of lanes."""
    data = load("digits")
    problem = model(name, (1, 8, 8), 10, seed=1)
    loss, rows = find_loss(name, problem), split_rows(partition("case3", data.y, 10, 5))
    clients = [Client(loss, data.x[r], data.y[r], ETA[name], draw_batches(i, len(r))) for i, r in enumerate(rows)]
    return server(clients, problem.init(), ETA[name], ALPHA, 10, 50, ROUNDS[name], rollback)


@pytest.mark.parametrize("rollback", [False, True])
@pytest.mark.parametrize("name", ["svm", SLOW_MLP, pytest.param("cnn", marks=pytest.mark.slow)])
@pytest.mark.parametrize("lanes", [0, 2])
def test_fedveca_is_the_papers_algorithm(name: str, rollback: bool, lanes: int) -> None:
    data = load("digits")
    shares = partition("case3", data.y, 10, 5)
    problem = model(name, (1, 8, 8), 10, seed=1)
    expected = follow_paper(name, rollback)
    algorithm = FedVeca(ETA[name], ALPHA, 50)
    cohort = LocalCohort(
        algorithm,
        problem,
        data.x,
        data.y,
        shares,
        batch=BATCH,
        seed=SEED,
        probe=0,
        want_loss_after=rollback,
        lanes=lanes,
    )
    state = algorithm.init(problem.init(), torch.full((5,), 10))
    rule = Rollback() if rollback else None
    rounds = federate(algorithm, cohort, state, ROUNDS[name], rollback=rule)
    for want, (after, trace) in zip(expected, rounds, strict=True):
        assert trace["tau"] == want["tau"]
        assert float((after.w - want["w"]).abs().max()) <= 1e-5, trace["round"]
        assert trace["tau_k"] == pytest.approx(want["tau_k"])
        if rollback:
            assert bool(trace["accepted"]) == want["accepted"]
        for seen in ("beta", "delta", "A"):
            if seen in want:
                assert trace[seen] == pytest.approx(want[seen], rel=5e-3)
        if want.get("L"):
            assert trace["L"] == pytest.approx(want["L"], rel=1e-3)
    taus = {t for want in expected[2:] for t in want["tau"]}
    assert max(taus) == 20  # 1 / (1 - alpha) for the client with the least A
    assert min(taus) >= 2
    if rollback and name == "svm":
        assert not all(want["accepted"] for want in expected)


CLIENTS, ASKED = 8, {1.0: 8, 0.4: 3}
CORRECTED_ETA, FEW = 0.02, 4  # steps at the start
CORRECTED = {
    "corrected": (Corrected, follow_corrected, CorrectedClient),
    "fedvecam": (FedVecaM, follow_fedvecam, TrustingClient),
}


@functools.cache
def follow_description(method: str, name: str, participation: float) -> list[CorrectedRound]:
    """On clients of very different sizes."""
    data = load("digits")
    problem = model(name, (1, 8, 8), 10, seed=1)
    loss, rows = find_loss(name, problem), split_rows(partition("dirichlet", data.y, 10, CLIENTS, seed=2))
    clients = [
        CORRECTED[method][2](loss, data.x[r].double(), data.y[r], CORRECTED_ETA, draw_batches(i, len(r)))
        for i, r in enumerate(rows)
    ]

    def who(k: int) -> list[int]:
        return draws.sample_clients(SEED, k, CLIENTS, ASKED[participation]).tolist()

    rounds = CORRECTED[method][1](clients, problem.init().double(), Rules(ALPHA, FEW, 50, who))
    return list(itertools.islice(rounds, 12))


@pytest.mark.parametrize("participation", [1.0, 0.4])
@pytest.mark.parametrize("name", ["svm", SLOW_MLP])
@pytest.mark.parametrize("lanes", [0, 2])
@pytest.mark.parametrize("method", CORRECTED)
def test_corrected_steps_are_what_the_methods_page_describes(
    method: str, name: str, participation: float, lanes: int
) -> None:
    data = load("digits")
    shares = partition("dirichlet", data.y, 10, CLIENTS, seed=2)
    problem = model(name, (1, 8, 8), 10, seed=1)
    expected = follow_description(method, name, participation)
    algorithm: Algorithm[Any, Any] = CORRECTED[method][0](CORRECTED_ETA, ALPHA, 50)
    cohort = LocalCohort(algorithm, problem, data.x, data.y, shares, batch=BATCH, seed=SEED, probe=0, lanes=lanes)
    state = algorithm.init(problem.init(), torch.full((CLIENTS,), FEW))
    rounds = federate(algorithm, cohort, state, len(expected), participation=participation, seed=SEED)
    for want, (after, trace) in zip(expected, rounds, strict=True):
        assert trace["tau"] == want.tau, trace["round"]
        assert float((after.w - want.w).abs().max()) <= 1e-5, trace["round"]
        if want.A:
            A = [number or 0.0 for number in trace["A"]]
            assert [a / A[0] for a in A] == pytest.approx([a / want.A[0] for a in want.A], rel=5e-3)
    taus = {t for want in expected[2:] for t in want.tau}
    assert min(taus) == 2
    assert max(taus) > (20 if method == "corrected" else 2 * FEW)  # 20 is 1 / (1 - alpha), the most without rows
