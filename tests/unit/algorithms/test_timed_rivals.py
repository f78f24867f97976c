"""Methods that choose local steps by the second: against their algorithms transcribed, and what each promises."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rival_oracles import Federation, Seconds, adacomm, adaptivetau, fedveca_time
from torch import Tensor, nn
from torch.func import functional_call

import fedveca
from fedveca import Experiment
from fedveca.algorithms import AdaComm, AdaptiveTau, Algorithm, EqualTime, FedAvg, FedVeca, FedVecaTime
from fedveca.algorithms.contract import Report, Timing
from fedveca.algorithms.contrib.adacomm import lower_steps
from fedveca.algorithms.contrib.adaptivetau import bound_loss
from fedveca.algorithms.contrib.fedveca_time import add_spent, fit_steps
from fedveca.algorithms.fedveca import FedVecaState
from fedveca.algorithms.optimizers import LocalOptimizer
from fedveca.algorithms.recipe import Recipe
from fedveca.cohorts.clock.cohort import TimedCohort, WorkRule
from fedveca.cohorts.clock.fleet import Fleet
from fedveca.cohorts.clock.profiles import DeviceProfile
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.runs.experiment import count_probe_rows
from fedveca.runs.federate import federate
from fedveca.tasks.datasets.dataset import load
from fedveca.tasks.models import model
from fedveca.tasks.partition import partition

ETA, BATCH, SEED, K, N = 0.05, 8, 3, 6, 6
SPEEDS = [1.0, 3.0, 0.5, 2.0, 1.5, 8.0]  # ms per row and direction
LATENCY = [40.0, 10.0, 60.0, 5.0, 0.0, 20.0]
Timed = Callable[[Federation, Tensor, Seconds], Iterator[tuple[Tensor, list[int]]]]
# the method, its first steps, the probe's passes that count as a gradient and as a loss alone, the transcription
RIVALS: list[tuple[Algorithm, list[int], int, int, Timed]] = [
    (
        AdaptiveTau(ETA, tau_max=12, wang_phi=0.025, wang_seconds=40.0),
        [1] * N,
        2,
        0,
        lambda f, w, s: adaptivetau(f, w, ETA, 0.025, 40.0, 12, s),
    ),
    (
        AdaComm(ETA, ada_interval=5.0, ada_gamma=0.75),
        [9, 9, 6, 9, 3, 9],
        0,
        1,
        lambda f, w, s: adacomm(f, w, ETA, 5.0, 0.75, s),
    ),
    (
        FedVecaTime(ETA, alpha=0.9, tau_max=9),
        [4, 2, 7, 3, 5, 5],
        1,
        0,
        lambda f, w, s: fedveca_time(f, w, ETA, 0.9, 9, s),
    ),
]


def slow_svm(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    sign = torch.where(y % 2 == 0, 1.0, -1.0)
    return 0.05 * (w**2).sum() + (0.5 * torch.relu(1 - sign * (x.flatten(1) @ w)) ** 2).mean()


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("name", ["svm", "mlp"])
@pytest.mark.parametrize(("method", "tau", "gradients", "losses", "oracle"), RIVALS, ids=lambda v: type(v).__name__)
def test_a_timed_rival_is_its_algorithm(
    method: Algorithm, tau: list[int], gradients: int, losses: int, oracle: Timed, name: str, participation: float
) -> None:
    """Clients with unequal rows on six devices: the same models and the same local steps in every round."""
    data, problem = load("digits"), model(name, (1, 8, 8), 10, seed=1)
    shares = partition("dirichlet", data.y, 10, N, seed=1)

    def loss(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        if name == "svm":
            return slow_svm(w, x, y)
        module: nn.Module = problem.module  # type: ignore[attr-defined]
        return nn.functional.cross_entropy(functional_call(module, problem.named(w), (x,)), y)

    def seconds(i: int, steps: int) -> tuple[float, float]:
        probe = int(shares.sizes[i]) * SPEEDS[i] * (2 * gradients + losses)
        return 2 * SPEEDS[i] * steps * BATCH / 1000, (2 * LATENCY[i] + probe) / 1000

    rows = [shares.rows[shares.start[i] : shares.start[i + 1]] for i in range(N)]
    federation = Federation(
        loss, [(data.x[own], data.y[own]) for own in rows], tau, BATCH, SEED, round(participation * N)
    )
    wanted = oracle(federation, problem.init(), seconds)
    profiles = [
        DeviceProfile(str(i), forward_ms=SPEEDS[i], backward_ms=SPEEDS[i], latency_ms=LATENCY[i]) for i in range(N)
    ]
    inner = LocalCohort(
        method, problem, data.x, data.y, shares, batch=BATCH, seed=SEED, probe=0, want_loss=method.needs_loss
    )
    rule = WorkRule(method, shares.sizes, BATCH, 0, False, False)
    cohort = TimedCohort(inner, Fleet(profiles, N, SEED), rule)
    state = method.init(problem.init(), torch.tensor(tau))
    found = set()
    for after, record in federate(method, cohort, state, K, participation=participation, seed=SEED):
        w, steps = next(wanted)
        assert record["tau"] == steps, record["round"]
        assert float((after.w - w).abs().max()) <= 1e-5, record["round"]
        assert record["client_seconds"] == pytest.approx(
            [sum(seconds(i, steps[j])) for j, i in enumerate(record["ids"])]
        )
        found.add(tuple(steps))
    assert len(found) > 2  # it has adapted more than once


# FedVeca by time


def find_rate(tau: list[int], p: list[float], step: list[float], fixed: list[float]) -> float:
    lasts = max(f + t * s for t, s, f in zip(tau, step, fixed, strict=True))
    return sum(q * t for q, t in zip(p, tau, strict=True)) / lasts if lasts else float("inf")


seconds_of = st.lists(st.floats(1e-3, 10) | st.just(0.0), min_size=3, max_size=3)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(2, 6), min_size=3, max_size=3), seconds_of, seconds_of, st.floats(0.05, 0.9))
def test_no_other_steps_are_faster(caps: list[int], step: list[float], fixed: list[float], first: float) -> None:
    """Of all combinations of steps within FedVeca's; among those as fast none has more steps for a client."""
    p = [first, (1 - first) / 3, (1 - first) * 2 / 3]
    tensors = (torch.tensor(v, dtype=torch.float64) for v in (p, step, fixed))
    found = fit_steps(torch.tensor(caps), *tensors).tolist()
    assert all(2 <= t <= cap for t, cap in zip(found, caps, strict=True))
    best = max(find_rate(list(tau), p, step, fixed) for tau in itertools.product(*(range(2, cap + 1) for cap in caps)))
    assert find_rate(found, p, step, fixed) >= best * (1 - 1e-9)


def test_fit_steps_by_hand() -> None:
    """Two clients, p = 1/2, caps 6 and 3, 1 s per step: with 4 s of messages 2 + 2 in 6 s (1/3 per second), 3 + 3 in 7
    (3/7), 4 + 3 in 8 (7/16), 5 + 3 in 9 (4/9), 6 + 3 in 10 (9/20), which is the best. With 1 s: 2/3, 3/4, 3.5/5, ..."""
    caps, half, second = torch.tensor([6, 3]), torch.full((2,), 0.5), torch.ones(2)
    assert fit_steps(caps, half, second, 4 * second).tolist() == [6, 3]
    assert fit_steps(caps, half, second, second).tolist() == [3, 3]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(2, 50), min_size=4, max_size=4), st.floats(1e-3, 10), st.floats(0, 10))
def test_where_it_is_fedvecas(caps: list[int], step: float, fixed: float) -> None:
    """Where steps cost nothing next to the messages; and on equal devices where A is the same for all, also where
    messages cost nothing. Where they cost nothing and A differs, all take as many steps as the one that may least."""
    most, p, one = torch.tensor(caps), torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.ones(4, dtype=torch.float64)
    assert fit_steps(most, p, 0 * one, fixed * one).equal(most)
    assert fit_steps(most, p, step * one, 1e4 * step * one).equal(most)
    alike = torch.full_like(most, caps[0])
    assert fit_steps(alike, p, step * one, fixed * one).equal(alike)
    assert fit_steps(most, p, step * one, 0 * one).tolist() == [min(caps)] * 4


def test_seconds_add_up_over_rounds() -> None:
    timing = Timing(9.0, torch.tensor([3.0, 5.0]).double(), None, steps=torch.tensor([1.0, 4.0]).double())
    spent, ids = torch.zeros(3, 4, dtype=torch.float64), torch.tensor([0, 2])
    once = add_spent(spent, ids, torch.tensor([10.0, 20.0]), timing)
    assert once.tolist() == [[10, 1, 1, 2], [0, 0, 0, 0], [20, 4, 1, 1]]
    twice = add_spent(once, ids[:1], torch.tensor([5.0]), Timing(1.0, torch.tensor([7.0]).double(), None))
    assert twice[0].tolist() == [15, 8, 2, 2]  # seconds that nobody has measured apart are those of the steps


def test_it_never_takes_more_steps_than_fedveca_would(tmp_path: Path) -> None:
    """A round of FedVeca from the same state gives at least as many steps to everyone, and the same model."""
    devices = str(tmp_path / "unequal.csv")
    Path(devices).write_text("backward_ms,latency_ms\n1,9\n20,9\n3,9\n9,9\n40,9\n", "utf-8")
    e = Experiment(model="svm", clients=5, rounds=5, batch=10, devices=devices, method="fedveca_time", seed=2)
    built = fedveca.build(e)
    method, lower = built.algorithm, 0
    plain = FedVeca(method.lr, alpha=e.alpha, tau_max=e.tau_max)
    state = built.state
    for k, (after, record) in enumerate(federate(method, built.cohort, state, e.rounds, seed=e.seed)):
        again = LocalCohort(
            plain, built.problem, built.data.x, built.data.y, built.shares, batch=10, seed=2, probe=count_probe_rows(e)
        )
        inner = FedVecaState(*state[: len(FedVecaState._fields)])
        ids = torch.tensor(record["ids"])
        who, report = again(k, plain.order(inner), ids, state.tau[ids])
        p = built.shares.sizes[who].double() / built.shares.sizes[who].sum()
        wanted, _ = plain.update(inner, who, p, report)
        assert torch.allclose(wanted.w, after.w, atol=1e-6)
        assert bool((after.tau <= wanted.tau).all())
        lower += int((after.tau < wanted.tau).sum())
        state = after
    assert lower


# adaptive tau


def test_the_bound_by_hand() -> None:
    """eta = 1, phi = 1/2, rho = 1, beta = 1, delta = 2, c = 1, b = 2, R = 13, so that R' = 10. h(1) = 2 (2 - 1) - 2 = 0
    and h(2) = 2 (4 - 1) - 4 = 2. 1/T is 3/10 and 4/20; G(1) = (0.3 + 0.3) / 1, G(2) = 0.2 + sqrt(0.04 + 2) + 2."""
    one = torch.tensor(1.0, dtype=torch.float64)
    found = bound_loss(2, one, one, 2 * one, torch.tensor([1.0, 2.0]), 13.0, 1.0, 0.5)
    assert found.tolist() == pytest.approx([0.6, 2.2 + 2.04**0.5])


def test_a_bound_that_cannot_be_computed_is_infinite() -> None:
    huge = torch.tensor(1e300, dtype=torch.float64)
    found = bound_loss(50, huge, huge, huge, torch.tensor([1.0, 2.0]), 13.0, 1.0, 0.5)
    assert bool(torch.isinf(found[5:]).all())
    assert not bool(torch.isnan(found).any())


def test_where_clients_agree_more_steps_are_better() -> None:
    """delta = 0: only the messages count, and tau is the most that the search allows, ten times the last."""
    one = torch.tensor(1.0, dtype=torch.float64)
    found = bound_loss(40, one, one, 0 * one, torch.tensor([1.0, 2.0]), 13.0, 0.1, 0.5)
    assert int(found.argmin()) == 39


def test_the_search_is_at_most_ten_times_as_far() -> None:
    a = AdaptiveTau(0.1, tau_max=70)
    state = a.init(torch.zeros(2), torch.tensor([3, 3]))._replace(cost=torch.tensor([1.0, 2.0], dtype=torch.float64))
    numbers = {"rho": torch.ones(2), "beta": torch.ones(2), "square": torch.zeros(2), "tau": torch.full((2,), 3.0)}
    timing = Timing(8.0, torch.tensor([8.0, 5.0]).double(), None, steps=torch.tensor([6.0, 3.0]).double())
    report = Report({"G": torch.ones(2), "grad": torch.zeros(2)}, numbers, 1.0, timing=timing)
    half = torch.tensor([0.5, 0.5], dtype=torch.float64)
    after, _ = a.update(state, torch.arange(2), half, report)
    assert after.tau.tolist() == [30, 30]
    assert after.cost.tolist() == [2, 2]  # 6 s of three steps, and 8 - 6 s
    assert a.update(after._replace(tau=torch.tensor([9, 9])), torch.arange(2), half, report)[0].tau.tolist() == [70, 70]


# under another optimiser


def test_seconds_are_per_local_step_whatever_the_optimiser() -> None:
    """With momentum 0.9, three steps are as long as 1 + 1.9 + 2.71 plain ones; a second is still one of three steps."""
    local = LocalOptimizer(momentum=0.9)
    timing = Timing(4.0, torch.tensor([4.0]).double(), None, steps=torch.tensor([3.0]).double())
    numbers = {
        "tau": torch.tensor([3.0]).double(),
        "beta": torch.ones(1),
        "spread": torch.ones(1),
        "rho": torch.ones(1),
    }
    numbers |= {"square": torch.ones(1), "loss": torch.ones(1)}
    report = Report({"G": torch.ones(2), "grad": torch.ones(2)}, numbers, 1.0, timing=timing)
    one, ids = torch.ones(1, dtype=torch.float64), torch.tensor([0])

    def update(method: Algorithm) -> Any:
        recipe = Recipe(method, local)
        return recipe.update(recipe.init(torch.ones(2), torch.tensor([3])), ids, one, report)[0]

    assert update(EqualTime(0.1)).cost.tolist() == pytest.approx([4 / 3])
    assert update(FedVecaTime(0.1)).spent.tolist() == [[3, 3, 1, 1]]
    assert update(AdaptiveTau(0.1)).cost.tolist() == [1, 1]


# AdaComm


def test_steps_fall_with_the_root_of_the_loss_or_by_gamma() -> None:
    base = torch.tensor([20, 20, 20, 3])
    assert lower_steps(base, base, torch.tensor(0.25), 0.5).tolist() == [10, 10, 10, 2]
    assert lower_steps(base, base, torch.tensor(0.26), 0.5).tolist() == [11, 11, 11, 2]
    stuck = torch.tensor([11, 5, 1, 2])
    assert lower_steps(stuck, base, torch.tensor(0.26), 0.5).tolist() == [6, 3, 1, 1]
    assert lower_steps(base, base, torch.tensor(4.0), 0.25).tolist() == [5, 5, 5, 1]  # the loss has risen


# all of them

SMALL = {"model": "svm", "clients": 6, "batch": 10, "tau_0": 8, "rounds": 6, "devices": "phones", "ada_interval": 0.2}
METHODS = ("fedveca_time", "adaptivetau", "adacomm")


@pytest.mark.parametrize("method", METHODS)
def test_it_resumes(method: str, tmp_path: Path) -> None:
    e = Experiment(**(SMALL | {"method": method}))  # type: ignore[arg-type]
    whole = fedveca.run(e)
    assert len({tuple(record["tau"]) for record in whole.rounds}) > 1
    fedveca.run(e.replace(rounds=3), tmp_path / "run")
    resumed = fedveca.resume(tmp_path / "run", rounds=6)
    for name in ("tau", "clock", "test_loss"):
        assert whole.column(name) == resumed.column(name)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("more", [{"engine": "debug"}, {"momentum": 0.5}, {"schedule": "deadline", "deadline": 0.3}])
def test_it_runs_everywhere(method: str, more: dict[str, object]) -> None:
    """The debug engine takes the same steps; another optimiser and rounds with a deadline give finite models."""
    e = Experiment(**(SMALL | {"method": method, "seed": 1}))  # type: ignore[arg-type]
    done = fedveca.run(e.replace(**more))
    assert all(loss is not None for loss in done.column("test_loss"))
    if "engine" in more:
        assert done.column("tau") == fedveca.run(e).column("tau")


@pytest.mark.parametrize("method", METHODS)
def test_buffered_rounds_have_seconds_of_steps_too(method: str) -> None:
    e = Experiment(**(SMALL | {"method": method, "schedule": "buffered", "buffer": 3, "keep": "last"}))  # type: ignore[arg-type]
    assert len({tuple(record["tau"]) for record in fedveca.run(e).rounds}) > 1


@pytest.mark.parametrize(
    ("method", "plain"), [("fedveca_time", "fedveca"), ("adaptivetau", "fedavg"), ("adacomm", "fedavg")]
)
def test_without_seconds_it_is_the_plain_method_and_says_so(
    method: str, plain: str, caplog: pytest.LogCaptureFixture
) -> None:
    e = Experiment(**(SMALL | {"devices": ""}))  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        found = fedveca.run(e.replace(method=method))
    assert f"method={method} adapts to simulated seconds, and there are none without devices" in caplog.text
    assert found.column("test_loss") == fedveca.run(e.replace(method=plain)).column("test_loss")


def test_a_gradient_after_the_steps_costs_a_probe_more(tmp_path: Path) -> None:
    """A second per row forward and 1,000 backward; two steps with 4 rows and 32 rows of the probe, once or twice."""
    file = tmp_path / "rows.toml"
    file.write_text("[slow]\nforward_ms = 1e3\nbackward_ms = 1e6\n", "utf-8")
    e = Experiment(devices=str(file), rounds=1, batch=4, tau_0=2, probe=32, clients=3)
    for method, keep, rows, loss_rows in (
        ("adaptivetau", "best", 8 + 64, 0),
        ("adaptivetau", "rollback", 8 + 64, 0),
        ("fedveca_time", "rollback", 8 + 32, 32),
        ("adacomm", "last", 8, 32),
    ):
        (record,) = fedveca.run(e.replace(method=method, keep=keep)).rounds
        assert record["client_seconds"] == pytest.approx([1001 * rows + loss_rows] * 3)
        assert record["rows"] == 3 * rows


def test_the_seconds_of_steps_are_known_apart() -> None:
    """2 + 4 ms per row, steps of 5 rows: 30 ms each; latency and probe are the rest."""
    profile = DeviceProfile("a", forward_ms=2, backward_ms=4, latency_ms=10)
    built = fedveca.build(Experiment(method="fedavg", clients=3, batch=5, keep="last", model="svm"))
    rule = WorkRule(FedAvg(0.1), built.shares.sizes, 5, 10, True, False)
    cohort = TimedCohort(built.cohort, Fleet((profile,), 3, 0), rule)
    order = built.algorithm.order(built.state)
    _, report = cohort(0, order, torch.tensor([0, 2]), torch.tensor([4, 7]))
    assert report.timing is not None
    steps, rest = report.timing.split()
    assert steps.tolist() == pytest.approx([0.12, 0.21])
    assert rest.tolist() == pytest.approx([0.04, 0.04])  # 20 ms of messages, 10 rows forward
