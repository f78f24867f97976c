"""FedVeca corrected: its bookkeeping, and what docs/corrected.md states about Theorem 1's error term, on quadratics."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedveca.algorithms import Corrected, FedVeca, Named, Order, Report
from fedveca.algorithms.contrib.corrected import average_log_A
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.runs.federate import federate
from fedveca.tasks.datasets.dataset import load
from fedveca.tasks.models import model
from fedveca.tasks.partition import partition

ETA, SIZE = 0.05, 6
P = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)


class Bowls:
    """F_i = (w - b_i)' H_i (w - b_i) / 2 with full gradients, in double: beta_i is H_i's largest eigenvalue."""

    def __init__(self, seed: int, apart: float = 3.0) -> None:
        make = torch.Generator().manual_seed(seed)
        roots = [torch.randn(SIZE, SIZE, generator=make, dtype=torch.float64) for _ in P]
        self.H = [root @ root.T / SIZE + 0.2 * torch.eye(SIZE, dtype=torch.float64) for root in roots]
        self.b = [apart * torch.randn(SIZE, generator=make, dtype=torch.float64) for _ in P]
        self.beta = [float(torch.linalg.eigvalsh(H)[-1]) for H in self.H]

    def slope(self, i: int, w: Tensor) -> Tensor:
        return self.H[i] @ (w - self.b[i])

    def whole(self, w: Tensor) -> Tensor:
        """grad F(w)."""
        return sum(float(p) * self.slope(i, w) for i, p in enumerate(P))  # type: ignore[return-value]


class Seen:
    """One client's round: where it was at each step, its mean raw gradient, its turn."""

    def __init__(self, path: list[Tensor], raw: Tensor, turn: Tensor) -> None:
        self.path, self.raw, self.turn = path, raw, turn


def one_round(
    algorithm: Any, bowls: Bowls, state: Any, memory: list[Named], who: list[int] | None = None
) -> tuple[Any, list[Seen]]:
    """One client after the other, with full gradients; those not in `who` are absent."""
    who = list(range(len(P))) if who is None else who
    order, seen, outs = algorithm.order(state), [], []
    for i in who:
        w = order.w
        s = algorithm.start(order, memory[i], bowls.slope(i, w))
        path, raws = [], []
        for _ in range(int(state.tau[i])):
            path.append(w)
            raws.append(bowls.slope(i, w))
            w, s = algorithm.step(order, s, w, raws[-1])
        out = algorithm.finish(order, s, w, torch.tensor([float(state.tau[i])]))
        memory[i] = out[2]
        outs.append(out)
        turn = s.turn if isinstance(algorithm, Corrected) else torch.zeros_like(w)
        seen.append(Seen(path, torch.stack(raws).mean(0), turn))
    ids = torch.tensor(who)
    p = P[ids] / P[ids].sum()
    mean = {name: sum(float(q) * out[0][name] for q, out in zip(p, outs, strict=True)) for name in outs[0][0]}
    each = {name: torch.cat([out[1][name] for out in outs]) for name in outs[0][1]} | {"tau": state.tau[ids].double()}
    state, _ = algorithm.update(state, ids, p, Report(mean, each, float(P[ids].sum())))
    return state, seen


def fresh(algorithm: Any, seed: int) -> tuple[Any, list[Named]]:
    w = torch.randn(SIZE, generator=torch.Generator().manual_seed(seed + 50), dtype=torch.float64)
    return algorithm.init(w, torch.tensor([6, 3, 9])), [algorithm.memory(w) for _ in P]


@pytest.mark.parametrize("seed", range(4))
def test_the_corrections_cancel_and_the_server_moves_along_the_mean_gradient(seed: int) -> None:
    bowls, algorithm = Bowls(seed), Corrected(ETA, tau_max=12, probe_steps=0)
    state, memory = fresh(algorithm, seed)
    for _ in range(8):
        before = state
        state, seen = one_round(algorithm, bowls, state, memory)
        assert float(sum(p * s.turn for p, s in zip(P, seen, strict=True)).norm()) < 1e-9  # type: ignore[union-attr]
        d = sum((float(p) * s.raw for p, s in zip(P, seen, strict=True)), torch.zeros_like(before.w))
        tau_k = float(P @ before.tau.double())
        assert torch.allclose(state.w, before.w - ETA * tau_k * d, atol=1e-9)
        assert torch.allclose(state.c, d, atol=1e-9)


def test_c_is_the_mean_over_the_clients_ever_seen() -> None:
    bowls, algorithm = Bowls(1), Corrected(ETA, tau_max=12)
    state, memory = fresh(algorithm, 1)
    for who in ([1], [0, 1], [0], [0, 2], [2], [0, 1, 2]):
        state, _ = one_round(algorithm, bowls, state, memory, who)
        known = [i for i, m in enumerate(memory) if not bool(torch.isnan(m["c"]).any())]
        mean = sum(float(P[i]) * memory[i]["c"] for i in known) / float(P[known].sum())
        assert torch.allclose(state.c, mean, atol=1e-9)  # type: ignore[arg-type]
    assert known == [0, 1, 2]


def test_a_new_client_walks_uncorrected() -> None:
    bowls, algorithm = Bowls(2), Corrected(ETA)
    state, memory = fresh(algorithm, 2)
    state, _ = one_round(algorithm, bowls, state, memory, [0])
    assert float(state.c.norm()) > 0
    _, seen = one_round(algorithm, bowls, state, memory, [0, 1])
    assert float(seen[1].turn.norm()) == 0  # client 1 was never seen
    assert not torch.isnan(memory[1]["c"]).any()


def test_the_probe_steps_are_steps_of_the_whole_gradient() -> None:
    bowls = Bowls(3)
    with_it, without = Corrected(ETA, probe_steps=3), Corrected(ETA, probe_steps=0)
    w = fresh(with_it, 3)[0].w
    after = [one_round(a, bowls, *fresh(a, 3))[0].w for a in (with_it, without)]
    assert torch.allclose(after[1] - after[0], 3 * ETA * bowls.whole(w), atol=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_the_error_term_of_theorem_1_stays_within_its_bound(seed: int) -> None:
    """T_k <= sum p_i / tau_i sum_lambda [((1 + r)^lambda - 1) (|grad F| + |e_i|)]^2 with r = eta beta_i."""
    bowls, algorithm = Bowls(seed), Corrected(ETA, tau_max=12)
    state, memory = fresh(algorithm, seed)
    last: list[list[Tensor]] = []
    for _ in range(30):
        before, known = state, [m["c"].clone() for m in memory]
        state, seen = one_round(algorithm, bowls, state, memory)
        grad = bowls.whole(before.w)
        d = sum(float(p) * s.raw for p, s in zip(P, seen, strict=True))
        T, bound = float((grad - d).norm()) ** 2, 0.0
        for i, s in enumerate(seen):
            e = s.turn - (grad - bowls.slope(i, before.w))  # how stale the correction is
            reach, r = float(grad.norm() + e.norm()), ETA * bowls.beta[i]
            for lam, w in enumerate(s.path):
                far = ((1 + r) ** lam - 1) / bowls.beta[i] * reach
                assert float((w - before.w).norm()) <= far * (1 + 1e-9) + 1e-12
                bound += float(P[i]) / len(s.path) * (bowls.beta[i] * far) ** 2
            if last:
                stale = known[i] - bowls.slope(i, before.w)
                assert float(stale.norm()) <= bowls.beta[i] * max(float((w - before.w).norm()) for w in last[i]) + 1e-9
        assert bound * (1 + 1e-9) + 1e-15 >= T
        last = [s.path for s in seen]


@pytest.mark.slow
def test_only_the_corrected_error_vanishes_with_the_gradient() -> None:
    """Where d_k = 0 training stands still: FedVeca's T_k is |grad F|^2 there, and the gradient is not zero."""
    left = {}
    for algorithm in (FedVeca(ETA, tau_max=12), Corrected(ETA, tau_max=12)):
        bowls = Bowls(0)
        state, memory = fresh(algorithm, 0)
        for _ in range(400):
            state, _ = one_round(algorithm, bowls, state, memory)
        left[type(algorithm)] = float(bowls.whole(state.w).norm())
    assert left[FedVeca] > 0.01
    assert left[Corrected] < 1e-6


def average(old: list[float], who: list[int], A: list[float], smooth: float) -> Tensor:
    return average_log_A(
        torch.tensor(old, dtype=torch.float64), torch.tensor(who), torch.tensor(A, dtype=torch.float64), smooth
    )


def test_log_A_is_averaged_over_rounds_by_hand() -> None:
    e = float(torch.e)
    assert average([0, 1], [0, 1], [e, e**5], 0.75).tolist() == pytest.approx([0.25, 2.0])
    unknown = torch.nan
    assert average([unknown, unknown], [0, 1], [e, e**5], 0.75).tolist() == pytest.approx([1, 5])  # the first round
    assert average([0, 0, 7], [0, 1], [e**3, e**5], 0.75).tolist() == pytest.approx([0.75, 1.25, 8])  # the last follows
    assert average([0, 0, 7], [0, 1, 2], [e**3, e**5, unknown], 0.75).tolist() == pytest.approx([0.75, 1.25, 8])
    joined = average([0, 0, unknown], [0, 1, 2], [e**3, e**5, e**4], 0.75).tolist()
    assert joined == pytest.approx([0.75, 1.25, 1])  # a new client as large as the others' mean is so on their level
    assert average([0, 1], [0], [torch.inf], 0.5).tolist() == [torch.inf, 1]


def test_what_is_common_to_a_round_cancels_from_log_A_whoever_takes_part() -> None:
    """Clients that differ by a constant factor, in rounds of any common size and any participants."""
    make = torch.Generator().manual_seed(3)
    own = torch.randn(6, generator=make, dtype=torch.float64)
    log_A = torch.full((6,), torch.nan, dtype=torch.float64)
    for _ in range(30):
        who = torch.randperm(6, generator=make)[:3]
        size = 5 * torch.randn((), generator=make, dtype=torch.float64)
        log_A = average_log_A(log_A, who, torch.exp(own[who] + size), 0.5)
    apart = log_A - own
    assert float(apart.max() - apart.min()) < 1e-3  # groups that met late have come to one level
    log_A = average_log_A(log_A, torch.arange(6), torch.exp(own + 9), 0.5)
    assert float((log_A - own).std()) < 1e-3


def test_an_identical_client_that_was_away_takes_as_many_steps() -> None:
    """Two identical clients, one away in six rounds while the gradient shrinks: both take 20 steps after it."""
    algorithm = Corrected(0.5, by_rows=False)
    state = algorithm.init(torch.ones(2), torch.full((2,), 10))
    for k in range(12):
        ids = torch.tensor([0, 1] if k < 3 or k > 8 else [0])
        n = torch.ones(len(ids), dtype=torch.float64)
        each = {"tau": state.tau[ids].double(), "beta": 3 * n, "spread": 5 * n}
        mean = {"G": torch.ones(2), "grad": torch.ones(2) * 0.5**k}
        state, _ = algorithm.update(state, ids, n / len(ids), Report(mean, each, len(ids) / 2))
        assert state.tau.tolist() == ([20, 20] if k else [10, 10])


@pytest.mark.parametrize("algorithm", [FedVeca(0.5), Corrected(0.5, by_rows=False)])
def test_an_A_that_is_not_known_does_not_decide_the_smallest(algorithm: Any) -> None:
    """After one step beta and spread are 0 because nothing was measured: 2 steps, and the others as without it."""
    ids, n = torch.arange(3), torch.ones(3, dtype=torch.float64)
    state = algorithm.init(torch.ones(2), torch.tensor([1, 4, 4]))._replace(k=torch.tensor(1), grad_last=torch.ones(2))
    each = {"tau": state.tau.double(), "beta": torch.tensor([0.0, 1.0, 3.0]), "spread": torch.tensor([0.0, 2.0, 2.0])}
    report = Report({"G": torch.ones(2), "grad": torch.ones(2)}, each, 1.0)
    after, recorded = algorithm.update(state, ids, n / 3, report)
    assert after.tau.tolist() == [2, 20, 2]
    assert torch.isnan(recorded["A"]).tolist() == [True, False, False]
    zero = {"beta": torch.zeros(3), "spread": torch.zeros(3), "tau": n}
    after, _ = algorithm.update(state._replace(tau=torch.ones(3).long()), ids, n / 3, report._replace(each=zero))
    assert after.tau.tolist() == [2, 2, 2]  # nobody's is known


def test_absent_clients_keep_tau_and_memory() -> None:
    data, algorithm = load("digits"), Corrected(0.05, tau_max=9)
    problem = model("svm", (1, 8, 8), 10)
    cohort = LocalCohort(algorithm, problem, data.x, data.y, partition("dirichlet", data.y, 10, 8, seed=1), batch=8)
    state = algorithm.init(problem.init(), torch.full((8,), 4))
    for after, trace in federate(algorithm, cohort, state, 8, participation=0.25):
        absent = torch.ones(8, dtype=torch.bool)
        absent[trace["ids"]] = False
        assert torch.equal(after.tau[absent], state.tau[absent])
        assert bool(((after.tau >= 2) & (after.tau <= 9)).all())
        state = after


def test_beta_and_spread_of_corrected_steps_by_hand() -> None:
    """c - c_i = (-1, 1): after g = (1, 0) the client is eta (0, 1) away, after g = (3, 4) eta (2, 6)."""
    algorithm = Corrected(0.5)
    order = Order(torch.zeros(2), {"c": torch.tensor([0.0, 1.0])})
    s = algorithm.start(order, {"c": torch.tensor([1.0, 0.0])}, torch.tensor([1.0, 0.0]))
    w, s = algorithm.step(order, s, order.w, torch.tensor([1.0, 0.0]))
    assert (s.walk.beta.item(), s.walk.spread.item()) == (0.0, 0.0)  # nothing to compare with yet
    w, s = algorithm.step(order, s, w, torch.tensor([3.0, 4.0]))
    assert w.tolist() == [-1.0, -3.0]
    assert s.walk.beta.item() == pytest.approx(20**0.5 / 0.5)  # A2.15: |g0 - g| / |w_k - w|
    assert s.walk.spread.item() == pytest.approx(40 / 2)  # A2.17: |(2, 6)|^2 / (lambda + 1)
    _, s = algorithm.step(order, s, w, torch.tensor([-1.0, -7.0]))  # |(0, 0)|: the largest of both stay
    assert s.walk.beta.item() == pytest.approx(20**0.5 / 0.5)
    assert s.walk.spread.item() == pytest.approx(20)


@pytest.mark.parametrize(
    ("by_rows", "shares", "tau"),
    [
        (True, [0.5, 0.2, 0.3], [15, 6, 9]),
        (True, [0.525, 0.19, 0.285], [16, 6, 9]),  # 15.75, 5.7 and 8.55 are rounded
        (False, [0.5, 0.2, 0.3], [10, 10, 10]),
    ],
)
def test_tau_and_what_is_recorded_by_hand(by_rows: bool, shares: list[float], tau: list[int]) -> None:
    """With A alike, tau is 1 / (1 - alpha) = 10, or in proportion to the rows 10 n p_i."""
    algorithm = Corrected(0.5, alpha=0.9, by_rows=by_rows)
    ids, p = torch.arange(3), torch.tensor(shares, dtype=torch.float64)
    state = algorithm.init(torch.zeros(2), torch.full((3,), 4))._replace(
        k=torch.tensor(1), grad_last=torch.tensor([3.0, 4.0]), L=torch.tensor(2.0, dtype=torch.float64)
    )
    each = {"tau": torch.full((3,), 4.0), "beta": torch.full((3,), 3.0), "spread": torch.full((3,), 50.0)}
    mean = {"G": torch.ones(2), "grad": torch.ones(2)}
    report = Report(mean, {name: v.double() for name, v in each.items()}, 1.0)
    after, recorded = algorithm.update(state, ids, p, report)
    assert after.tau.tolist() == tau
    assert recorded["delta"].tolist() == pytest.approx([50 / 25] * 3)  # A2.17: over |grad F(w_(k-1))|^2
    assert recorded["A"].tolist() == pytest.approx([0.5 * 9 * 2] * 3)  # eta beta^2 delta
    assert float(recorded["premise"]) == pytest.approx(0.5 * 4 * 2)  # eta tau_k L
    assert float(recorded["condition_alpha"]) == pytest.approx(0.9 * 9 / 4)  # alpha min A / 2 L
    assert float(recorded["condition_step"]) == pytest.approx(0.5 / 4 * (4 * (4 + 9) - 9) - 1)  # (14)
    assert float(recorded["condition_drift"]) == pytest.approx(1)
