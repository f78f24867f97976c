"""A method's own loss: FedLC and MOON against their papers transcribed, in each engine, and what is rejected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from rival_oracles import Federation, fedlc, moon
from torch import Tensor, nn

from fedveca import Experiment, UserError
from fedveca.algorithms import Algorithm, FedAvg, FedLC, Moon, Order, Outputs
from fedveca.algorithms.contract import LocalLoss
from fedveca.cohorts.debug import DebugCohort
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.runs.build import build
from fedveca.runs.federate import federate
from fedveca.runs.run import run
from fedveca.tasks.custom import from_arrays
from fedveca.tasks.datasets.dataset import load
from fedveca.tasks.models import model
from fedveca.tasks.module_problem import ModuleProblem
from fedveca.tasks.partition import partition
from fedveca.tasks.replica import find_head
from fedveca.testing import check_algorithm

ETA, BATCH, SEED, K, N = 0.1, 4, 3, 4, 5
STEPS = [3, 2, 4, 1, 2]
Oracle = Callable[[Federation, Tensor, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]], Iterator[Tensor]]
RIVALS: list[tuple[Algorithm, Oracle]] = [
    (FedLC(ETA, lc_tau=0.7), lambda f, w, score: fedlc(f, w, ETA, 0.7, score)),
    (Moon(ETA, moon_mu=2.0), lambda f, w, score: moon(f, w, ETA, 2.0, 0.5, score)),
]


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 12), nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x.flatten(1))))  # type: ignore[no-any-return]


def make_problem() -> ModuleProblem:
    torch.manual_seed(0)
    return ModuleProblem(TwoLayers())


def make_plain_problem() -> ModuleProblem:
    """Of layers that have kernels in C, and no autograd, where the loss is their own."""
    torch.manual_seed(0)
    return ModuleProblem(nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10)))


def score(problem: ModuleProblem, w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """By hand: scores, and what the last layer takes in."""
    matrix, bias, head, last = problem.named(w).values()
    z = x.flatten(1) @ matrix.T + bias
    z = z.relu() if problem.layers else torch.tanh(z)
    return z @ head.T + last, z


@pytest.mark.parametrize("engine", [LocalCohort, DebugCohort])
@pytest.mark.parametrize("participation", [1.0, 0.6])
@pytest.mark.parametrize(("algorithm", "oracle"), RIVALS, ids=lambda v: type(v).__name__)
def test_it_is_its_papers_algorithm(algorithm: Algorithm, oracle: Oracle, participation: float, engine: Any) -> None:
    data, problem = load("digits"), make_problem()
    shares = partition("shards", data.y, 10, N, seed=1)
    owned = [shares.rows[shares.start[i] : shares.start[i + 1]][:40] for i in range(N)]
    x, y = torch.cat([data.x[own] for own in owned]), torch.cat([data.y[own] for own in owned])
    shares = type(shares)(torch.arange(len(y)), torch.tensor([0, *(len(own) for own in owned)]).cumsum(0))
    rows = [(data.x[own], data.y[own]) for own in owned]
    f = Federation(lambda w, x, y: w.sum(), rows, STEPS, BATCH, SEED, round(participation * N))
    wanted = oracle(f, problem.init(), lambda w, x: score(problem, w, x))
    cohort = engine(algorithm, problem, x, y, shares, batch=BATCH, seed=SEED, probe=3)
    state = algorithm.init(problem.init(), torch.tensor(STEPS))
    for after, record in federate(algorithm, cohort, state, K, participation=participation, seed=SEED):
        assert float((after.w - next(wanted)).abs().max()) <= 1e-5, record["round"]
    assert float((after.w - problem.init()).abs().max()) > 1e-3


@pytest.mark.parametrize("make", [make_problem, make_plain_problem])
def test_the_gradient_is_that_of_a_hand_written_loss(make: Callable[[], ModuleProblem]) -> None:
    problem, x, y = make(), torch.randn(1, 6, 1, 8, 8), torch.tensor([[0, 1, 2, 3, 4, 5]])
    w, other = problem.init(), problem.init() + 0.1 * torch.randn(problem.size)
    counts = torch.tensor([[5.0, 1.0, 0.0, 2.0, 7.0, 1.0]])  # four labels are not counted: they have no rows

    def method(base: Any, out: Outputs, y: Tensor, counts: Tensor, others: dict[str, Outputs]) -> Tensor:
        assert counts.tolist() == [5, 1, 0, 2, 7, 1, 0, 0, 0, 0]
        assert not others["other"].features.requires_grad
        return base(out.scores + counts, y) * (out.features - others["other"].features).square().sum(-1)

    found = problem.slope(w[None], x, y, loss=LocalLoss(method, counts, {"other": other[None]}))
    leaf = w.clone().requires_grad_()
    scores, z = score(problem, leaf, x[0])
    rows = nn.functional.cross_entropy(scores + torch.cat([counts[0], torch.zeros(4)]), y[0], reduction="none")
    want = (rows * (z - score(problem, other, x[0])[1]).square().sum(-1)).mean()
    assert torch.allclose(found[0], torch.autograd.grad(want, leaf)[0], atol=1e-6)


def test_other_models_leave_running_statistics_alone() -> None:
    module = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))
    problem = ModuleProblem(module, running=("1.running_mean", "1.running_var"))
    x, y = torch.randn(1, 8, 64), torch.arange(8)[None]
    once, plain = problem.initial_statistics()[None].clone(), problem.initial_statistics()[None].clone()
    w = problem.init()[None]
    problem.slope(w, x, y, statistics=plain)
    loss = LocalLoss(Moon(0.1).loss, torch.zeros(1, 0), {"global": w, "previous": w + 1})
    problem.slope(w, x, y, statistics=once, loss=loss)
    assert torch.equal(once, plain)


@pytest.mark.parametrize("method", ["fedlc", "moon"])
def test_without_its_term_it_is_fedavg(method: str) -> None:
    common: dict[str, Any] = {"rounds": 3, "clients": 3, "tau_0": 2, "batch": 8, "probe": 8, "lr": 0.05}
    want = run(Experiment(method="fedavg", **common), device="cpu").rounds[-1]["test_loss"]
    off: dict[str, Any] = {"fedlc": {"lc_tau": 0.0}, "moon": {"moon_mu": 0.0}}[method]
    assert run(Experiment(method=method, **common, **off), device="cpu").rounds[-1]["test_loss"] == pytest.approx(want)
    other = run(Experiment(method=method, **common, optimizer="sgd", momentum=0.5), device="cpu").rounds[-1]
    assert other["test_loss"] != pytest.approx(want)  # a recipe passes the loss on


@pytest.mark.parametrize("method", ["fedlc", "moon"])
def test_the_closed_form_svm_is_rejected(method: str) -> None:
    with pytest.raises(UserError, match=f"^method={method} has a loss of its own, which model=svm does not take; take"):
        build(Experiment(method=method, model="svm"))


def test_fedlc_rejects_targets_that_are_numbers() -> None:
    data = from_arrays(torch.randn(20, 3).numpy(), torch.randn(20).numpy())
    with pytest.raises(UserError, match=r"^method=fedlc counts labels, but the targets are numbers; take data with "):
        build(Experiment(method="fedlc", model="mlp", clients=2, batch=4, partition="iid"), data=data)


def test_features_are_what_the_last_linear_layer_takes_in() -> None:
    assert isinstance(find_head(TwoLayers()), nn.Linear)
    assert find_head(nn.Sequential(nn.Flatten(), nn.Linear(64, 10))) is None  # its input is the row itself
    assert find_head(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten())) is None
    for name in ("mlp", "cnn"):
        problem = model(name, (1, 28, 28), 10)
        assert isinstance(problem, ModuleProblem)
        head = find_head(problem.module)
        assert head is not None
        assert head.out_features == 10


@dataclass(frozen=True)
class FedNTD(FedAvg):
    """Lee et al. 2022: the global model's scores of all labels but the true one are kept."""

    beta: float = 1.0
    has_loss: ClassVar[bool] = True

    def models(self, order: Order, s: Any) -> dict[str, Tensor]:
        return {"global": order.w}

    def loss(self, base: Any, out: Outputs, y: Tensor, counts: Tensor, others: dict[str, Outputs]) -> Tensor:
        true = nn.functional.one_hot(y, out.scores.shape[-1]).bool()
        mine, its = (scores.masked_fill(true, -1e9).log_softmax(-1) for scores in (out.scores, others["global"].scores))
        return base(out.scores, y) + self.beta * (its.exp() * (its - mine)).sum(-1)


def test_a_custom_method_with_a_loss_passes_the_contract_suite() -> None:
    check_algorithm(FedNTD(lr=0.1))

    @dataclass(frozen=True)
    class Averages(FedNTD):
        def loss(self, base: Any, out: Outputs, y: Tensor, counts: Tensor, others: dict[str, Outputs]) -> Tensor:
            return base(out.scores, y).mean()

    with pytest.raises(AssertionError, match=r"^Averages loss gives \[\] for 3 rows; it is one number per row"):
        check_algorithm(Averages(lr=0.1))
