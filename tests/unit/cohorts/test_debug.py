"""The debug engine: the local engine's results, one client after another, and errors that say where they arose."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedveca.algorithms import Algorithm, Corrected, FedAvg, FedNova, FedProx, FedVeca, Scaffold
from fedveca.algorithms.contract import Order, Report
from fedveca.cohorts.contract import Cohort
from fedveca.cohorts.debug import ClientError, DebugCohort
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.cohorts.privacy import Privacy
from fedveca.cohorts.random import draw_rows
from fedveca.runs.build import build
from fedveca.runs.experiment import Experiment
from fedveca.runs.federate import Rollback, federate
from fedveca.runs.run import resume, run
from fedveca.tasks.custom import from_arrays
from fedveca.tasks.datasets.dataset import load, prepare
from fedveca.tasks.models import model
from fedveca.tasks.partition import partition

METHODS = [FedAvg(0.05), FedProx(0.05), FedNova(0.05), Scaffold(0.05), FedVeca(0.05), Corrected(0.05)]
KINDS = (DebugCohort, LocalCohort)
UNEQUAL = torch.tensor([7, 2, 3, 1, 9, 2, 4, 2])
SMALL: dict[str, Any] = {"model": "svm", "rounds": 4, "batch": 8, "clients": 10, "partition": "quantity", "lr": 0.05}


def make_pair(algorithm: Algorithm, name: str, **options: Any) -> tuple[LocalCohort, DebugCohort, Tensor]:
    """The same eight clients of unequal size in both engines, and the first model."""
    data = load("digits")
    problem, shares = model(name, (1, 8, 8), 10, seed=3), partition("dirichlet", data.y, 10, 8, seed=1)
    local = LocalCohort(algorithm, problem, data.x, data.y, shares, batch=8, seed=5, **options)
    debug = DebugCohort(algorithm, problem, data.x, data.y, shares, batch=8, seed=5, **options)
    return local, debug, problem.init()


def check_same(debug: tuple[Tensor, Report], local: tuple[Tensor, Report]) -> None:
    (who, report), (want_who, want) = debug, local
    assert who.tolist() == want_who.tolist()
    assert report.mass == want.mass
    assert list(report.each) == list(want.each)
    for name, v in want.each.items():
        assert report.each[name].tolist() == pytest.approx(v.tolist(), rel=1e-3, abs=1e-5), name
    assert report.mean.keys() == want.mean.keys()
    for name, v in want.mean.items():
        assert float((report.mean[name] - v).abs().max()) < 1e-4, name
    assert report.faults == want.faults


@pytest.mark.parametrize("name", ["svm", "mlp"])
@pytest.mark.parametrize("algorithm", METHODS, ids=lambda a: type(a).__name__)
def test_reports_are_those_of_the_local_engine(algorithm: Algorithm, name: str) -> None:
    """Three rounds with memory, probe and the loss after the steps; the local engine's state drives both."""
    local, debug, w = make_pair(algorithm, name, probe=7, want_loss_after=True)
    state, ids = algorithm.init(w, UNEQUAL), torch.tensor([6, 0, 2, 3, 4, 5, 7])
    for k in range(3):
        order = algorithm.order(state)
        want = local(k, order, ids, state.tau[ids])
        check_same(debug(k, order, ids, state.tau[ids]), want)
        assert list(debug.memory) == list(local.memory)
        for name_, v in local.memory.recall(ids).items():
            assert torch.allclose(debug.memory.recall(ids)[name_], v, atol=1e-4), name_
        p = local.sizes[want[0]].double()
        state, _ = algorithm.update(state, want[0], p / p.sum(), want[1])
    check_same(
        debug(3, algorithm.order(state), ids, torch.zeros_like(ids)),
        local(3, algorithm.order(state), ids, torch.zeros_like(ids)),
    )


def test_steps_are_taken_in_the_order_of_the_draws() -> None:
    """By hand: w - lr g on the rows of step 1, then on those of step 2. In another order the model is another."""
    _, debug, w = make_pair(FedAvg(0.5), "svm")
    size, start = int(debug.sizes[2]), int(debug.start[2])
    draws = draw_rows(5, 4, torch.tensor([2]), torch.tensor([size]), 3, 8)[0] + start
    here = w[None]
    for rows in draws:
        x, y = debug.rows.pick(rows[None])
        here = here - 0.5 * debug.problem.gradients(here, x, y)[1]
    _, report = debug(4, Order(w, {}), torch.tensor([2]), torch.tensor([3]))
    assert torch.allclose(report.mean["G"], (w - here[0]) / 0.5, atol=1e-6)
    assert float(report.each["tau"][0]) == 3


@pytest.mark.parametrize("want_loss", [False, True])
@pytest.mark.parametrize("algorithm", [FedAvg(0.05), FedVeca(0.05)], ids=lambda a: type(a).__name__)
def test_a_loss_is_reported_where_it_is_wanted(algorithm: Algorithm, want_loss: bool) -> None:
    local, debug, w = make_pair(algorithm, "svm", want_loss=want_loss)
    order, ids = algorithm.order(algorithm.init(w, UNEQUAL)), torch.arange(8)
    _, report = debug(0, order, ids, UNEQUAL)
    assert report.each.keys() == local(0, order, ids, UNEQUAL)[1].each.keys()
    assert ("loss" in report.each) == (want_loss or algorithm.needs_gradient)
    assert "after" not in report.each


@pytest.mark.parametrize("pixels", ["unit", "standardised", "channels:0.3:0.4"])
def test_rows_are_prepared_for_the_model(pixels: str) -> None:
    data = load("digits")
    x = (data.x * 255).to(torch.uint8)
    problem, shares = model("mlp", (1, 8, 8), 10), partition("dirichlet", data.y, 10, 8, seed=1)
    order = FedVeca(0.05).order(FedVeca(0.05).init(problem.init(), UNEQUAL))
    raw = DebugCohort(FedVeca(0.05), problem, x, data.y, shares, batch=8, pixels=pixels)
    ready = DebugCohort(FedVeca(0.05), problem, prepare(x, pixels), data.y, shares, batch=8)
    check_same(raw(0, order, torch.arange(8), UNEQUAL), ready(0, order, torch.arange(8), UNEQUAL))


def test_the_probe_reads_its_rows_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    _, debug, w = make_pair(FedVeca(0.05), "mlp", probe=0)
    order, ids = FedVeca(0.05).order(FedVeca(0.05).init(w, UNEQUAL)), torch.arange(8)
    want = debug(0, order, ids, torch.ones_like(ids))
    monkeypatch.setattr("fedveca.cohorts.debug._PROBE_ROWS", 7)
    check_same(debug(0, order, ids, torch.ones_like(ids)), want)


def test_a_client_that_is_not_finite_is_left_out() -> None:
    data = load("digits")
    problem, shares = model("svm", (1, 8, 8), 10), partition("case1", data.y, 10, 5)
    bad, algorithm, tau = data.x.clone(), Scaffold(0.05), torch.tensor([2, 3, 4, 5, 2])
    bad[shares.rows[shares.start[3] : shares.start[4]]] = torch.nan
    order = algorithm.order(algorithm.init(problem.init(), tau))
    both = [kind(algorithm, problem, bad, data.y, shares, batch=8) for kind in KINDS]
    debug, local = (cohort(0, order, torch.arange(5), tau) for cohort in both)
    check_same(debug, local)
    assert debug[0].tolist() == list(both[0].memory) == [0, 1, 2, 4]
    nobody = both[0](0, order, torch.tensor([3]), tau[3:4])
    assert (len(nobody[0]), nobody[1].mean, nobody[1].mass) == (0, {}, 0.0)


def test_a_client_that_is_not_finite_sends_zeros_under_privacy_and_keeps_its_memory() -> None:
    data = load("digits")
    problem, shares = model("svm", (1, 8, 8), 10), partition("case1", data.y, 10, 5)
    bad, algorithm, tau = data.x.clone(), Scaffold(0.05), torch.tensor([2, 3, 4, 5, 2])
    bad[shares.rows[shares.start[3] : shares.start[4]]] = torch.nan
    order = algorithm.order(algorithm.init(problem.init(), tau))
    options: dict[str, Any] = {"batch": 8, "equal_weights": True}
    send = Privacy(clip=1.0, noise=0.0, bound=10.0, seed=0, wanted=("loss",)).send
    debug, local = (kind(algorithm, problem, bad, data.y, shares, send=send, **options) for kind in KINDS)
    check_same(debug(0, order, torch.arange(5), tau), local(0, order, torch.arange(5), tau))
    assert list(debug.memory) == list(local.memory) == [0, 1, 2, 3, 4]
    remembered = debug.memory.recall(torch.arange(5))["c"]
    assert torch.equal(remembered[3], torch.zeros(64))
    assert torch.allclose(remembered, local.memory.recall(torch.arange(5))["c"], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"method": "scaffold", "participation": 0.5},
        {"method": "fedveca", "keep": "rollback"},
        {"method": "fedavg", "keep": "last", "model": "mlp"},
        {"method": "corrected", "probe": 0},
        {"method": "fedvecam", "probe": 0, "participation": 0.5},
        {"method": "scaffold", "faults": "drop:0.2,crash:0.1:2,late:0.1,nan:0.1,scale:0.1:3,flip:0.1,lie:0.1"},
        {"method": "fedveca", "aggregate": "clip", "faults": "scale:0.2:-10"},
        {"method": "fedveca", "aggregate": "trimmed", "faults": "lie:0.2"},
        {"method": "scaffold", "aggregate": "median", "faults": "flip:0.2"},
        {"method": "fedveca", "dp_noise": 0.5, "dp_seed": 1, "faults": "drop:0.2"},
        {"method": "scaffold", "dp_noise": 0.5, "dp_seed": 1, "participation": 0.5, "keep": "last"},
        {"method": "centralised"},
    ],
    ids=lambda s: "-".join(map(str, s.values())),
)
def test_runs_are_those_of_the_local_engine(settings: dict[str, Any]) -> None:
    """Through faults, aggregation rules, privacy and sampling, with the same settings but `engine`."""
    ended = {}
    for engine in ("local", "debug"):
        built = build(Experiment(**(SMALL | settings | {"engine": engine})))
        e = built.experiment
        rounds = federate(
            built.algorithm,
            built.cohort,
            built.state,
            4,
            participation=e.participation,
            seed=e.seed,
            rollback=Rollback() if e.keep == "rollback" else None,
        )
        ended[engine] = list(rounds)
    for (want, line), (state, same) in zip(ended["local"], ended["debug"], strict=True):
        assert same.keys() == line.keys()
        assert state.tau.tolist() == want.tau.tolist()
        assert float((state.w - want.w).abs().max()) < 1e-4
        for name in ("ids", "left_out", "tau"):
            assert same[name] == line[name], name
        assert same.get("faults") == line.get("faults")
        assert same.get("train_loss", 0.0) == pytest.approx(line.get("train_loss", 0.0), rel=1e-4)


def find_engine(cohort: Cohort) -> Cohort:
    return find_engine(cohort.cohort) if hasattr(cohort, "cohort") else cohort


def test_the_setting_chooses_the_engine(tmp_path: Path) -> None:
    settings = SMALL | {"engine": "debug", "method": "scaffold", "rounds": 4}
    assert isinstance(find_engine(build(Experiment(**settings)).cohort), DebugCohort)
    assert isinstance(find_engine(build(Experiment(**settings, faults="drop:0.1")).cohort), DebugCohort)
    whole = run(Experiment(**settings), device="cpu")
    run(Experiment(**(settings | {"rounds": 2})), tmp_path / "half", device="cpu")
    again = resume(tmp_path / "half", rounds=4, device="cpu")
    assert all(torch.equal(v, whole.model[name]) for name, v in again.model.items())


# errors


@dataclass(frozen=True)
class Failing(FedAvg):
    """FedAvg that fails at one place, from the second round on."""

    where: str = "step"

    def start(self, order: Order, memory: Any, g0: Tensor) -> Any:
        return self._fail("start", torch.zeros(1, 1), order)

    def step(self, order: Order, s: Any, w: Tensor, g: Tensor) -> tuple[Tensor, Any]:
        return super().step(order, (), w, g)[0], self._fail("step", s + 1, order)

    def finish(self, order: Order, s: Any, w: Tensor, tau: Tensor) -> Any:
        self._fail("finish", s, order)
        return super().finish(order, (), w, tau)

    def _fail(self, where: str, steps: Tensor, order: Order) -> Tensor:
        reached = where != "step" or float(steps) == 2
        if where == self.where and reached and bool(order.w.any()):  # w_0 of the SVM is 0: not in the first round
            raise KeyError("no such thing")
        return steps


@pytest.mark.parametrize(("where", "place"), [("start", "start"), ("step", "local step 2"), ("finish", "finish")])
def test_an_error_in_a_method_names_round_client_and_step(where: str, place: str) -> None:
    e = Experiment(**(SMALL | {"engine": "debug", "tau_0": 3}))
    with pytest.raises(ClientError, match=rf"^round 2, client 0, {place}: KeyError: 'no such thing'$") as caught:
        run(e, device="cpu", method=Failing(0.05, where))
    assert type(caught.value.__cause__) is KeyError


class Picky(nn.Module):
    """A linear model that fails on rows of one kind."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        if bool((x > 90).any()):
            raise ArithmeticError("a row of 99s")
        out: Tensor = self.linear(x)
        return out


def picky_loss(scores: Tensor, y: Tensor) -> Tensor:
    if bool((y == 1).any()):
        raise ArithmeticError("a row of 99s")
    return nn.functional.cross_entropy(scores, y, reduction="none")


@pytest.mark.parametrize("custom", ["model", "loss"])
@pytest.mark.parametrize(("probe", "place"), [(40, "probe"), (1, r"local step \d+")])
def test_an_error_in_a_model_or_a_loss_names_round_client_and_step(custom: str, probe: int, place: str) -> None:
    """The model and the loss fail on all rows of client 7 but its first, and on no others."""
    x, y = torch.rand(400, 4), torch.zeros(400, dtype=torch.int64)
    x[281:320], y[281:320] = 99.0, 1
    data = from_arrays(x, y, test=(torch.rand(20, 4), torch.zeros(20, dtype=torch.int64)))
    objects: dict[str, Any] = (
        {"model": Picky()} if custom == "model" else {"loss": picky_loss, "model": nn.Linear(4, 2)}
    )
    shares = [range(40 * i, 40 * i + 40) for i in range(10)]
    e = Experiment(engine="debug", method="fedavg", rounds=2, batch=8, clients=10, probe=probe, tau_0=3)
    with pytest.raises(ClientError, match=rf"^round 1, client 7, {place}: ArithmeticError: a row of 99s$") as caught:
        run(e, device="cpu", data=data, partition=shares, **objects)
    assert type(caught.value.__cause__) is ArithmeticError


def test_what_is_not_an_error_passes() -> None:
    """Ctrl-C is not turned into an error of a client."""

    class Stop(FedAvg):
        def step(self, order: Order, s: Any, w: Tensor, g: Tensor) -> tuple[Tensor, Any]:
            raise KeyboardInterrupt

    _, debug, w = make_pair(Stop(0.1), "svm")
    with pytest.raises(KeyboardInterrupt):
        debug(0, Order(w, {}), torch.arange(8), UNEQUAL)
