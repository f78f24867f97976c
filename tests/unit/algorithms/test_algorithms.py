"""The methods against numbers worked by hand, against each other, and the controller under any input."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedveca.algorithms import Algorithm, Corrected, FedAvg, FedNova, FedProx, FedVeca, Order, Report, Scaffold
from fedveca.algorithms.control import control

ETA = 0.1
# Two clients of a three-weight model: F_i = |w - centre_i|^2 / 2, so a gradient is w - centre_i.
CENTRES = torch.tensor([[1.0, 0.0, 2.0], [0.0, -1.0, 4.0]])
P = torch.tensor([0.25, 0.75], dtype=torch.float64)
TAU = torch.tensor([2, 3])
W0 = torch.zeros(3)
METHODS = [
    FedAvg(ETA),
    FedProx(ETA, mu=0.5),
    FedNova(ETA),
    Scaffold(ETA),
    FedVeca(ETA),
    Corrected(ETA, probe_steps=0),
]


def walk(algorithm: Algorithm, order: Order, memory: list[dict[str, Tensor]], tau: Tensor) -> list[tuple]:
    """Every client alone, step by step."""
    out = []
    for centre, m, steps in zip(CENTRES, memory, tau.tolist(), strict=True):
        w = order.w
        s = algorithm.start(order, m, w - centre)
        for _ in range(steps):
            w, s = algorithm.step(order, s, w, w - centre)
        out.append(algorithm.finish(order, s, w, torch.tensor([float(steps)])))
    return out


def rounds(algorithm: Algorithm, n: int, tau: Tensor = TAU) -> Tensor:
    """w_n after n rounds of both clients."""
    state = algorithm.init(W0, tau)
    memory = [algorithm.memory(W0)] * 2
    for _ in range(n):
        out = walk(algorithm, algorithm.order(state), memory, tau)
        memory = [o[2] for o in out]
        mean = {name: sum(float(p) * o[0][name] for p, o in zip(P, out, strict=True)) for name in out[0][0]}
        each = {name: torch.cat([o[1][name] for o in out]).double() for name in out[0][1]} | {"tau": tau.double()}
        state, _ = algorithm.update(state, torch.arange(2), P, Report(mean, each, 1.0))
    return state.w


def pulled(centre: Tensor, steps: int, w: Tensor = W0, rate: float = ETA) -> Tensor:
    """Closed form of `steps` gradient steps on |w - centre|^2 / 2."""
    return centre + (1 - rate) ** steps * (w - centre)


def test_fedavg_by_hand() -> None:
    # 2 steps of 0.1 go 0.19 of the way, 3 steps 0.271.
    want = 0.25 * 0.19 * CENTRES[0] + 0.75 * 0.271 * CENTRES[1]
    assert torch.allclose(rounds(FedAvg(ETA), 1), want, atol=1e-6)
    assert torch.allclose(want, torch.tensor([0.0475, -0.20325, 0.908]), atol=1e-6)


def test_fedprox_by_hand() -> None:
    # With mu = 0.5 a step is w - 0.1 (w - c + 0.5 w): it tends to c / 1.5 at rate 0.15.
    want = sum(p * (1 - 0.85**t) * c / 1.5 for p, t, c in zip(P.tolist(), TAU.tolist(), CENTRES, strict=True))
    assert torch.allclose(rounds(FedProx(ETA, mu=0.5), 1), want, atol=1e-6)


def test_fednova_by_hand() -> None:
    # tau_k = 0.25 * 2 + 0.75 * 3 = 2.75; the directions are 0.19 / 0.2 and 0.271 / 0.3 of the way to a centre.
    d = 0.25 * 0.19 / 0.2 * -CENTRES[0] + 0.75 * 0.271 / 0.3 * -CENTRES[1]
    assert torch.allclose(rounds(FedNova(ETA), 1), -0.1 * 2.75 * d, atol=1e-6)


def test_scaffold_by_hand() -> None:
    # Round 0 is FedAvg's, for c = c_i = 0. Then c_i is the mean gradient, and a step goes along g - c_i + c.
    first = [pulled(c, t) for c, t in zip(CENTRES, TAU.tolist(), strict=True)]
    c_i = [(W0 - w) / (ETA * t) for w, t in zip(first, TAU.tolist(), strict=True)]
    c = 0.25 * c_i[0] + 0.75 * c_i[1]
    w1 = 0.25 * first[0] + 0.75 * first[1]
    second = [pulled(centre + mine - c, t, w1) for centre, mine, t in zip(CENTRES, c_i, TAU.tolist(), strict=True)]
    assert torch.allclose(rounds(Scaffold(ETA), 2), 0.25 * second[0] + 0.75 * second[1], atol=1e-6)


def test_scaffolds_c_is_the_mean_of_all_clients_c() -> None:
    """Also when only a part of the clients takes part: c = sum over all of p_i c_i."""
    algorithm = Scaffold(ETA)
    state, memory = algorithm.init(W0, TAU), [algorithm.memory(W0)] * 2
    for here in ([0], [1], [0, 1], [1]):
        out = walk(algorithm, algorithm.order(state), memory, TAU)
        memory = [out[i][2] if i in here else memory[i] for i in range(2)]
        p = P[here] / P[here].sum()
        mean = {name: sum(float(q) * out[i][0][name] for q, i in zip(p, here, strict=True)) for name in out[0][0]}
        report = Report(mean, {"tau": TAU[here].double()}, float(P[here].sum()))
        state, _ = algorithm.update(state, torch.tensor(here), p, report)
        want = sum((float(q) * m["c"] for q, m in zip(P, memory, strict=True)), torch.zeros_like(W0))
        assert torch.allclose(state.c, want, atol=1e-6)


def test_fedveca_by_hand() -> None:
    """beta is 1 for |w - c|^2 / 2; the sum of lambda + 1 gradients is (1 - 0.9^(lambda + 1)) / 0.1 of the way."""
    out = walk(FedVeca(ETA), Order(W0, {}), [{}, {}], TAU)
    for (_, numbers, _), centre, tau in zip(out, CENTRES, TAU.tolist(), strict=True):
        spread = max(((1 - 0.9 ** (lam + 1)) / 0.1) ** 2 / (lam + 1) for lam in range(1, tau)) * float(centre @ centre)
        assert float(numbers["beta"]) == pytest.approx(1, rel=1e-5)
        assert float(numbers["spread"]) == pytest.approx(spread, rel=1e-5)


@pytest.mark.parametrize("tau", [1, 4])
def test_equal_tau_makes_fednova_and_fedveca_fedavg(tau: int) -> None:
    equal = torch.tensor([tau, tau])
    for other in (FedNova(ETA), FedVeca(ETA)):
        assert torch.allclose(rounds(other, 2, equal), rounds(FedAvg(ETA), 2, equal), atol=1e-6)


def test_mu_0_makes_fedprox_fedavg() -> None:
    assert torch.equal(rounds(FedProx(ETA, mu=0.0), 3), rounds(FedAvg(ETA), 3))


@pytest.mark.parametrize("algorithm", METHODS, ids=lambda a: type(a).__name__)
def test_one_step_each_is_one_step_of_sgd(algorithm: Algorithm) -> None:
    gradient = sum(float(p) * (W0 - c) for p, c in zip(P, CENTRES, strict=True))
    assert torch.allclose(rounds(algorithm, 1, torch.tensor([1, 1])), W0 - ETA * gradient, atol=1e-6)


@pytest.mark.parametrize("algorithm", METHODS, ids=lambda a: type(a).__name__)
def test_many_clients_at_once_are_each_alone(algorithm: Algorithm) -> None:
    """The contract's last axis: [n, P] gives what [P] gives n times."""
    state = algorithm.init(torch.randn(3, generator=torch.Generator().manual_seed(0)), TAU)
    order = algorithm.order(state)
    alone = walk(algorithm, order, [algorithm.memory(W0)] * 2, torch.tensor([3, 3]))
    w = order.w.expand(2, -1)
    s = algorithm.start(order, {k: v.expand(2, -1) for k, v in algorithm.memory(W0).items()}, w - CENTRES)
    for _ in range(3):
        w, s = algorithm.step(order, s, w, w - CENTRES)
    together = algorithm.finish(order, s, w, torch.full((2, 1), 3.0))
    for i in range(2):
        for many, one in zip(together, alone[i], strict=True):
            for name in one:
                assert torch.allclose(many[name][i], one[name], atol=1e-6), name


def test_a_rejected_round_keeps_L() -> None:
    algorithm = FedVeca(ETA)
    state = algorithm.init(torch.ones(3), TAU)
    out = walk(algorithm, algorithm.order(state), [{}, {}], TAU)
    mean = {name: sum(float(p) * o[0][name] for p, o in zip(P, out, strict=True)) for name in out[0][0]}
    each = {name: torch.cat([o[1][name] for o in out]).double() for name in out[0][1]} | {"tau": TAU.double()}
    first, _ = algorithm.update(state, torch.arange(2), P, Report(mean, each, 1.0))
    again, _ = algorithm.update(first._replace(w=state.w), torch.arange(2), P, Report(mean, each, 1.0))
    assert float(again.L) == float(first.L) > 0


def test_what_fedveca_records_by_hand() -> None:
    """delta, A, L and the premise of one round, from numbers that are easy to divide."""
    algorithm = FedVeca(0.5, alpha=0.9)
    state = algorithm.init(torch.zeros(2), torch.tensor([4, 4]))._replace(
        k=torch.tensor(1), grad_last=torch.tensor([3.0, 4.0]), L=torch.tensor(2.0, dtype=torch.float64)
    )
    each = {"tau": [2.0, 6.0], "beta": [3.0, 1.0], "spread": [50.0, 100.0]}
    numbers = {name: torch.tensor(v, dtype=torch.float64) for name, v in each.items()}
    weights = torch.tensor([0.25, 0.75], dtype=torch.float64)
    report = Report({"G": 3 * torch.ones(2), "grad": torch.ones(2)}, numbers, 1.0)
    _, recorded = algorithm.update(state, torch.arange(2), weights, report)
    assert recorded["delta"].tolist() == pytest.approx([50 / 25, 100 / 25])  # A2.17: over |grad F(w_(k-1))|^2
    assert recorded["A"].tolist() == pytest.approx([0.5 * 9 * 2, 0.5 * 1 * 4])  # eta beta^2 delta
    assert float(recorded["L"]) == 2
    assert float(recorded["premise"]) == pytest.approx(0.5 * 5 * 2)  # eta tau_k L, tau_k = 0.25 * 2 + 0.75 * 6
    assert float(recorded["condition_alpha"]) == pytest.approx(0.9 * 2 / 4)  # alpha min A / 2 L
    bracket = 0.25 * (2 * (4 + 9) - 9) + 0.75 * (6 * (4 + 2) - 2)  # (14)
    assert float(recorded["condition_step"]) == pytest.approx(0.5 / 4 * bracket - 1)
    assert float(recorded["condition_drift"]) == pytest.approx(3)  # |d_k| / |grad F(w_k)|


HAND = [  # A, alpha, tau_max, tau
    ([1, 1, 1], 0.95, 50, [20, 20, 20]),  # 1 / (1 - 0.95) is 19.999999999999982 in binary
    ([1, 2, 4], 0.95, 50, [20, 2, 2]),  # 1 / (1 - .475) = 1.9 and 1.3 are raised to 2
    ([1, 1.1, 1.4], 0.95, 50, [20, 7, 3]),  # 7.33, 3.1
    ([1, 1.1], 0.995, 50, [50, 10]),  # 200 is capped; 10.47
    ([1, 1.5], 0.5, 50, [2, 2]),
    ([0, 0], 0.95, 50, [20, 20]),
    ([0, 1], 0.95, 50, [20, 2]),
    ([math.nan, 1], 0.95, 50, [2, 20]),
    ([math.inf, 1], 0.95, 50, [2, 20]),
    ([math.inf, math.inf], 0.95, 50, [2, 2]),
    ([math.nan], 0.95, 50, [2]),
    ([3], 0.9, 2, [2]),
]


@pytest.mark.parametrize(("A", "alpha", "tau_max", "tau"), HAND)
def test_control_by_hand(A: list[float], alpha: float, tau_max: int, tau: list[int]) -> None:
    assert control(torch.tensor(A), alpha, tau_max).tolist() == tau


def test_the_smallest_A_that_may_be_false_do_not_decide() -> None:
    """With a third distrusted, the second smallest A stands for the minimum, and the smallest counts as equal to it."""
    assert control(torch.tensor([1.0, 1.5, 0.0]), 0.95, 50, distrust=0.34).tolist() == [20, 2, 20]
    assert control(torch.tensor([1.0, 1.5, 0.0]), 0.95, 50, distrust=0.33).tolist() == [2, 2, 20]


anything = st.lists(st.floats(allow_nan=True, allow_infinity=True, width=64), min_size=1, max_size=20)
positive = st.lists(st.floats(1e-100, 1e100), min_size=2, max_size=20)
alphas = st.floats(0, 1, exclude_min=True, exclude_max=True)
caps = st.integers(2, 1000)


@given(anything, alphas, caps)
def test_control_always_answers(A: list[float], alpha: float, cap: int) -> None:
    tau = control(torch.tensor(A, dtype=torch.float64), alpha, cap)
    assert tau.dtype == torch.int64
    assert all(2 <= t <= cap for t in tau.tolist())


@given(positive, alphas, caps, st.integers(-200, 200))
def test_control_does_not_know_the_scale(A: list[float], alpha: float, cap: int, power: int) -> None:
    a = torch.tensor(A, dtype=torch.float64)
    assert torch.equal(control(a, alpha, cap), control(a * 2.0**power, alpha, cap))


@given(positive, alphas, caps)
def test_control_is_monotone(A: list[float], alpha: float, cap: int) -> None:
    a = torch.tensor(A, dtype=torch.float64).sort().values
    tau = control(a, alpha, cap)
    assert bool((tau.diff() <= 0).all())
    assert int(tau[0]) == min(max(math.floor(1 / (1 - alpha) + 1e-9), 2), cap)
