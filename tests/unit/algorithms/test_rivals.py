"""The methods of contrib against their papers' algorithms transcribed, and what each of them promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from rival_oracles import Federation, fedacg, feddyn, fedexp, mimelite, scaffnew
from torch import Tensor, nn
from torch.func import functional_call

from fedveca import Experiment, UserError, compare
from fedveca.algorithms import Algorithm, FedACG, FedAvg, FedDyn, FedExP, MimeLite, Report, Scaffnew
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.runs.build import build
from fedveca.runs.federate import federate
from fedveca.tasks.datasets.dataset import load
from fedveca.tasks.models import model
from fedveca.tasks.partition import partition

ETA, BATCH, SEED, K, N = 0.05, 8, 3, 6, 6
UNEQUAL = [4, 2, 7, 3, 1, 5]
Oracle = Callable[[Federation, Tensor], Iterator[Tensor]]
RIVALS: list[tuple[Algorithm, Oracle]] = [
    (FedDyn(ETA, dyn=0.3), lambda f, w: feddyn(f, w, ETA, 0.3)),
    (FedExP(ETA, exp_eps=1e-3), lambda f, w: fedexp(f, w, ETA, 1e-3)),
    (FedACG(ETA, acg_lambda=0.6, acg_beta=0.2), lambda f, w: fedacg(f, w, ETA, 0.6, 0.2)),
    (MimeLite(ETA, mime_beta=0.7), lambda f, w: mimelite(f, w, ETA, 0.7)),
    (Scaffnew(ETA), lambda f, w: scaffnew(f, w, ETA)),
]


def slow_svm(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    sign = torch.where(y % 2 == 0, 1.0, -1.0)
    return 0.05 * (w**2).sum() + (0.5 * torch.relu(1 - sign * (x.flatten(1) @ w)) ** 2).mean()


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("name", ["svm", "mlp"])
@pytest.mark.parametrize(("algorithm", "oracle"), RIVALS, ids=lambda v: type(v).__name__)
def test_a_rival_is_its_papers_algorithm(algorithm: Algorithm, oracle: Oracle, name: str, participation: float) -> None:
    """Six rounds of clients with unequal rows and steps, all of them or three per round."""
    data, problem = load("digits"), model(name, (1, 8, 8), 10, seed=1)
    shares = partition("dirichlet", data.y, 10, N, seed=1)

    def loss(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        if name == "svm":
            return slow_svm(w, x, y)
        module: nn.Module = problem.module  # type: ignore[attr-defined]
        return nn.functional.cross_entropy(functional_call(module, problem.named(w), (x,)), y)

    owned = [shares.rows[shares.start[i] : shares.start[i + 1]] for i in range(N)]
    rows = [(data.x[own], data.y[own]) for own in owned]
    wanted = oracle(Federation(loss, rows, UNEQUAL, BATCH, SEED, round(participation * N)), problem.init())
    cohort = LocalCohort(algorithm, problem, data.x, data.y, shares, batch=BATCH, seed=SEED, probe=0)
    state = algorithm.init(problem.init(), torch.tensor(UNEQUAL))
    for after, record in federate(algorithm, cohort, state, K, participation=participation, seed=SEED):
        assert len(record["ids"]) == round(participation * N)
        assert float((after.w - next(wanted)).abs().max()) <= 1e-5, record["round"]


# what each of them promises: F_i = (w - b_i)' H_i (w - b_i) / 2 with full gradients, in double

SHARE = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)


class Bowls:
    def __init__(self, seed: int = 0) -> None:
        make = torch.Generator().manual_seed(seed)
        roots = [torch.randn(5, 5, generator=make, dtype=torch.float64) for _ in SHARE]
        self.H = [root @ root.T / 5 + 0.3 * torch.eye(5, dtype=torch.float64) for root in roots]
        self.b = [2 * torch.randn(5, generator=make, dtype=torch.float64) for _ in SHARE]

    def slope(self, i: int, w: Tensor) -> Tensor:
        return self.H[i] @ (w - self.b[i])

    def minimum(self) -> Tensor:
        """Of sum_i p_i F_i."""
        H = sum((p * H for p, H in zip(SHARE, self.H, strict=True)), torch.zeros_like(self.H[0]))
        pulled = sum((p * H @ b for p, H, b in zip(SHARE, self.H, self.b, strict=True)), torch.zeros_like(self.b[0]))
        return torch.linalg.solve(H, pulled)


def train(a: Algorithm, bowls: Bowls, rounds: int, tau: list[int], who: Callable[[int], list[int]]) -> Tensor:
    """The model after rounds of full gradients, one client after another."""
    state = a.init(torch.zeros(5, dtype=torch.float64), torch.tensor(tau))
    memory = [a.memory(state.w) for _ in SHARE]
    for k in range(rounds):
        here, order, out = who(k), a.order(state), {}
        for i in here:
            w, s = order.w, a.start(order, memory[i], bowls.slope(i, order.w))
            for _ in range(tau[i]):
                w, s = a.step(order, s, w, bowls.slope(i, w))
            out[i] = a.finish(order, s, w, torch.tensor([float(tau[i])], dtype=torch.float64))
            memory[i] = out[i][2]
        p = SHARE[here] / SHARE[here].sum()
        mean = {n: sum(float(q) * out[i][0][n] for q, i in zip(p, here, strict=True)) for n in out[here[0]][0]}
        each = {n: torch.cat([out[i][1][n] for i in here]) for n in out[here[0]][1]}
        each |= {"tau": torch.tensor([float(tau[i]) for i in here], dtype=torch.float64)}
        report = Report(mean, each, float(SHARE[here].sum()))  # type: ignore[arg-type]
        state, _ = a.update(state, torch.tensor(here), p, report)
    return state.w


def everyone(k: int) -> list[int]:
    return [0, 1, 2]


def two_of_three(k: int) -> list[int]:
    return [i for i in range(3) if i != k % 3]


def distance(a: Algorithm, tau: list[int], who: Callable[[int], list[int]] = everyone, rounds: int = 400) -> float:
    bowls = Bowls()
    return float((train(a, bowls, rounds, tau, who) - bowls.minimum()).norm())


def test_feddyn_and_scaffnew_reach_the_minimum_of_the_whole_where_fedavg_does_not() -> None:
    assert distance(FedAvg(0.05), [6, 3, 9]) > 1e-2
    assert distance(FedDyn(0.05, dyn=0.5), [6, 3, 9]) < 1e-6
    assert distance(Scaffnew(0.05), [6, 3, 9]) < 1e-6  # also where clients take unequally many steps


def test_feddyn_reaches_it_with_a_part_of_the_clients_and_scaffnew_does_not() -> None:
    assert distance(FedDyn(0.05, dyn=0.5), [6, 6, 6], two_of_three) < 1e-6
    assert distance(Scaffnew(0.05), [6, 6, 6], two_of_three) > 1e-2


def test_scaffnew_rejects_participation(tmp_path: Path) -> None:
    settings = Experiment(method="scaffnew", participation=0.5)
    sentence = r"^participation=0\.5 cannot go with method=scaffnew, which .*; take participation=1$"
    with pytest.raises(UserError, match=sentence):
        build(settings)
    with pytest.raises(UserError, match=sentence):
        compare(settings, 1, tmp_path / "c", methods=("fedavg", "scaffnew"))
    assert not (tmp_path / "c").exists()  # before anything runs
    build(settings.replace(participation=1.0))


def test_fedexp_by_hand() -> None:
    """Updates (3, 4) and (-3, 4), half each: the mean is (0, 4), so eta_g is 25 / (2 (16 + eps))."""
    a = FedExP(1.0, exp_eps=0.25)
    state = a.init(torch.zeros(2), torch.tensor([1, 1]))
    half = torch.tensor([0.5, 0.5], dtype=torch.float64)
    out = [a.finish(a.order(state), (), -torch.tensor(d), torch.ones(1)) for d in ([3.0, 4.0], [-3.0, 4.0])]
    assert [float(o[1]["square"]) for o in out] == [25, 25]
    each = {"square": torch.cat([o[1]["square"] for o in out]).double()}
    after, recorded = a.update(state, torch.arange(2), half, Report({"G": torch.tensor([0.0, 4.0])}, each, 1.0))
    assert float(recorded["eta_g"]) == 1  # 25 / 32.5 is below it
    each["square"] = each["square"] * 4
    after, recorded = a.update(state, torch.arange(2), half, Report({"G": torch.tensor([0.0, 4.0])}, each, 1.0))
    assert float(recorded["eta_g"]) == pytest.approx(100 / 32.5)
    assert after.w.tolist() == pytest.approx([0, -4 * 100 / 32.5])


@pytest.mark.parametrize(
    "limit", [FedExP(0.05, exp_eps=1e6), FedACG(0.05, acg_lambda=0, acg_beta=0), MimeLite(0.05, 0)]
)
def test_in_their_limits_they_are_fedavg(limit: Algorithm) -> None:
    want = train(FedAvg(0.05), Bowls(), 5, [3, 4, 5], two_of_three)
    assert torch.allclose(train(limit, Bowls(), 5, [3, 4, 5], two_of_three), want, atol=1e-12)


def test_mimelites_momentum_is_the_servers_gradient_averaged() -> None:
    a, bowls = MimeLite(0.05, mime_beta=0.5), Bowls()
    w = torch.zeros(5, dtype=torch.float64)
    grad = sum((p * bowls.slope(i, w) for i, p in enumerate(SHARE)), torch.zeros_like(w))
    first = train(a, bowls, 1, [1, 1, 1], everyone)
    assert torch.allclose(first, w - 0.05 * 0.5 * grad)
    then = sum((p * bowls.slope(i, first) for i, p in enumerate(SHARE)), torch.zeros_like(w))
    second = train(a, bowls, 2, [1, 1, 1], everyone)
    assert torch.allclose(second, first - 0.05 * (0.5 * then + 0.5 * 0.5 * grad))
