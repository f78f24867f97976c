"""FedVecaM: the total of the local steps, where the clients start, and what the server's momentum is."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedveca.algorithms import Corrected, FedVecaM, Report
from fedveca.algorithms.contract import Order
from fedveca.algorithms.contrib.fedvecam import FedVecaMState, find_trust, share_steps

P = torch.tensor([0.25, 0.75], dtype=torch.float64)
CLIENTS = st.lists(st.tuples(st.integers(2, 50), st.integers(1, 10**5)), min_size=1, max_size=40)  # steps and rows


def share(clients: list[tuple[int, int]], mean_tau: float) -> tuple[Tensor, Tensor]:
    """The shares, and steps times rows, to which they are proportional."""
    steps, rows = (torch.tensor(numbers) for numbers in zip(*clients, strict=True))
    return share_steps(steps, rows.double() / rows.sum(), mean_tau), steps.double() * rows


@settings(max_examples=60, deadline=None)
@given(CLIENTS, st.floats(2, 100))
def test_the_total_of_the_local_steps_is_the_same_in_every_round(
    clients: list[tuple[int, int]], mean_tau: float
) -> None:
    tau, _ = share(clients, mean_tau)
    assert abs(int(tau.sum()) - len(clients) * mean_tau) <= len(clients) / 2 + 1e-6  # each is rounded by itself


@settings(max_examples=60, deadline=None)
@given(CLIENTS, st.floats(2, 100))
def test_a_clients_share_is_in_proportion_to_its_steps_and_rows(
    clients: list[tuple[int, int]], mean_tau: float
) -> None:
    tau, parts = share(clients, mean_tau)
    wanted = parts / parts.sum() * len(clients) * mean_tau
    assert float((tau - wanted).abs().max()) <= 0.5 + 1e-6
    order = parts.argsort()
    assert bool((tau[order].diff() >= 0).all())


def test_shares_depend_on_the_ratios_of_steps_and_rows_alone() -> None:
    steps, p = torch.tensor([20, 2, 6]), torch.tensor([0.5, 0.2, 0.3])
    assert share_steps(steps, p, 11.0).tolist() == share_steps(7 * steps, p, 11.0).tolist() == [27, 1, 5]
    assert share_steps(steps, torch.tensor([1.0, 0.0, 0.0]), 4.0).tolist() == [12, 0, 0]


def report(G: list[float], tau: list[int], beta: list[float], spread: list[float], grad: float = 1.0) -> Report:
    each = {"tau": tau, "beta": beta, "spread": spread}
    mean = {"G": torch.tensor(G), "grad": torch.tensor([grad, 0.0])}
    return Report(mean, {name: torch.tensor(v, dtype=torch.float64) for name, v in each.items()}, 1.0)


def follow(a: FedVecaM, tau: list[int], *reports: Report) -> list[FedVecaMState]:
    states = [a.init(torch.tensor([1.0, 2.0]), torch.tensor(tau))]
    for one in reports:
        states.append(a.update(states[-1], torch.arange(2), P, one)[0])
    return states


def test_two_rounds_by_hand() -> None:
    """tau_k is 0.25 * 2 + 0.75 * 6 = 5, so a round's own move is -0.1 * 5 G; a quarter of the first is continued."""
    a = FedVecaM(0.1, share_alpha=0.95, lookahead=0.5)
    one = report([2.0, 0.0], [2, 6], [1.0, 2.0], [1.0, 1.0])
    start, first, second = follow(a, [2, 6], one, one)
    assert a.order(start).w.tolist() == [1, 2]  # without a momentum yet, the model itself
    assert (first.z.tolist(), first.w.tolist(), first.m.tolist()) == ([0, 2], [0, 2], [-1, 0])
    assert a.order(first).w.tolist() == [-0.25, 2]  # ahead of z by a quarter of the last move
    assert (second.m.tolist(), second.z.tolist()) == ([-1.25, 0], [-1.25, 2])
    assert second.w.tolist() == pytest.approx([-1.25 * 9 / 10, 2])  # z_1 counts 8!, and z_2 nine times as much
    assert second.v_last.tolist() == [-0.25, 2]
    assert first.tau.tolist() == [2, 6]  # of the first round nothing is known that A could be made of
    # A is 1 : 4, so (16) gives 20 and 2 steps; by rows 5 : 1.5 of the 8 steps that the settings gave
    assert second.tau.tolist() == [6, 2]
    assert [float(state.mean_tau) for state in (start, first, second)] == [4, 4, 4]


def test_what_is_recorded_is_measured_at_the_points_from_which_clients_start() -> None:
    """The gradients are 1 at v_0 = (1, 2) and 3 at v_1 = (-0.25, 2): L_1 is 2 / 1.25, above L_0 = 1 / |v_0|."""
    a, (sent, then) = (
        FedVecaM(0.1, lookahead=0.5),
        (report([2.0, 0.0], [2, 6], [1.0, 2.0], [4.0, 4.0], g) for g in (1, 3)),
    )
    _, first, second = follow(a, [2, 6], sent, then)
    assert float(first.L) == pytest.approx(5**-0.5)
    assert float(second.L) == pytest.approx(2 / 1.25)
    seen = a.update(first, torch.arange(2), P, then)[1]
    assert seen["delta"].tolist() == [4, 4]  # over the square of the gradient of the round before
    assert seen["A"].tolist() == pytest.approx([0.4, 1.6])
    assert float(seen["premise"]) == pytest.approx(0.1 * 5 * 5**-0.5)
    assert not a.update(a.init(torch.ones(2), torch.tensor([2, 6])), torch.arange(2), P, sent)[1]
    third = a.update(second, torch.arange(2), P, report([2.0, 0.0], [6, 2], [4.0, 2.0], [4.0, 4.0], 3))[1]["A"]
    assert float(third[1] / third[0]) == pytest.approx((4 * 0.25) ** 0.5)  # half of the former round's ratio


def test_the_steps_stay_within_their_bounds() -> None:
    one = report([2.0, 0.0], [30, 30], [1.0, 9.0], [1.0, 1.0])
    assert follow(FedVecaM(0.1, 0.95, tau_max=40), [30, 30], one, one)[-1].tau.tolist() == [40, 14]
    few = report([2.0, 0.0], [2, 2], [1.0, 9.0], [1.0, 1.0])
    assert follow(FedVecaM(0.1, 0.95), [2, 2], few, few)[-1].tau.tolist() == [3, 2]


def test_a_client_that_was_cut_short_is_unknown_and_takes_the_fewest_steps() -> None:
    """A of a single step is not known: it decides nothing."""
    one = report([2.0, 0.0], [10, 1], [1.0, 0.0], [1.0, 0.0])
    assert follow(FedVecaM(0.1, 0.95), [10, 10], one, one)[-1].tau.tolist() == [15, 5]  # 20 * 0.25 : 2 * 0.75


@pytest.mark.parametrize("scale", [0.5, 0.125])
def test_after_a_shorter_step_the_momentum_is_still_the_servers_last_move(scale: float) -> None:
    a = FedVecaM(0.1)
    one = report([2.0, -1.0], [2, 6], [1.0, 2.0], [1.0, 1.0])
    _, before, after = follow(a, [2, 6], one, one)
    short = a.shorten(before, after, scale)
    assert torch.allclose(short.z - before.z, scale * (after.z - before.z))
    assert torch.allclose(short.m, short.z - before.z)
    assert torch.allclose(short.w, 0.1 * before.w + 0.9 * short.z)  # of two points
    assert not short.m.equal(after.m)
    others = set(FedVecaMState._fields) - {"w", "z", "m"}
    assert all(getattr(short, name).equal(getattr(after, name)) for name in others)


def test_without_lookahead_only_the_total_of_the_steps_differs_from_corrected() -> None:
    a, corrected = FedVecaM(0.1, 0.95, lookahead=0), Corrected(0.1, probe_steps=0)
    one = report([2.0, -1.0], [2, 6], [1.0, 2.0], [1.0, 1.0])
    states = follow(a, [2, 6], one, one)
    rival = corrected.init(torch.tensor([1.0, 2.0]), torch.tensor([2, 6]))
    for state in states[1:]:
        rival, _ = corrected.update(rival, torch.arange(2), P, one)
        assert torch.allclose(state.z, rival.w)
        assert a.order(state).w.equal(state.z)
        assert torch.allclose(state.c, rival.c)
        assert torch.allclose(state.log_A, rival.log_A, equal_nan=True)
    assert (states[-1].tau.tolist(), rival.tau.tolist()) == ([6, 2], [10, 3])


def test_the_model_is_an_average_in_which_late_points_count_most() -> None:
    """z_j counts j (j + 1) ... (j + 7); the initial model counts nothing."""
    a, moves = FedVecaM(0.1), ([2.0, 0.0], [-1.0, 1.0], [0.5, 3.0], [0.0, -2.0])
    _, *states = follow(a, [2, 6], *(report(G, [2, 6], [1.0, 2.0], [1.0, 1.0]) for G in moves))
    for k in range(1, 5):
        weight = torch.tensor([math.prod(range(j, j + 8)) for j in range(1, k + 1)], dtype=torch.float64)
        points = torch.stack([state.z for state in states[:k]]).double()
        assert torch.allclose(states[k - 1].w.double(), weight @ points / weight.sum(), atol=1e-6)
    assert not torch.allclose(states[-1].w, states[-1].z)


def test_another_end_of_the_servers_step_is_what_the_average_takes_in() -> None:
    """As where a server optimiser takes the step: the state's point and its average are those of the new end."""
    one = report([2.0, -1.0], [2, 6], [1.0, 2.0], [1.0, 1.0])
    a = FedVecaM(0.1)
    _, before, after = follow(a, [2, 6], one, one)
    point = torch.tensor([7.0, -3.0])
    moved = a.relocate(before, after, point)
    assert a.locate(moved).equal(point)
    assert torch.allclose(moved.w, 0.1 * before.w + 0.9 * point)
    assert a.locate(before).equal(before.z)


def test_the_lookahead_rises_in_the_first_rounds() -> None:
    """lambda_k is k / (k + 3), at most the setting."""
    a, zero = FedVecaM(0.1, lookahead=0.6), report([0.0, 0.0], [2, 6], [1.0, 2.0], [1.0, 1.0])
    states = [state._replace(m=torch.tensor([1.0, 0.0])) for state in follow(a, [2, 6], *[zero] * 5)]
    ahead = [float((a.order(state).w - state.z)[0]) for state in states]
    assert ahead == pytest.approx([0, 1 / 4, 2 / 5, 3 / 6, 4 / 7, 0.6])
    moves = [float(a.update(state, torch.arange(2), P, zero)[0].m[0]) for state in states]
    assert moves == pytest.approx(ahead)  # what is continued is what the clients started ahead by


def test_a_remembered_correction_counts_as_far_as_the_gradient_agrees() -> None:
    """The cosine of (3, 4) and (2, 0) is 0.6; where they point apart, or one is unknown or zero, nothing is left."""
    a, order = FedVecaM(0.1), Order(torch.zeros(2), {"c": torch.tensor([1.0, 1.0])})
    c_i = {"c": torch.tensor([3.0, 4.0])}
    steps = a.start(order, c_i, torch.tensor([2.0, 0.0]))
    assert a.direction(order, steps, order.w, torch.tensor([5.0, 5.0])).tolist() == pytest.approx([3.8, 3.2])
    for memory, g0 in ((c_i["c"], [-2.0, 0.0]), (c_i["c"], [0.0, 0.0]), (torch.full((2,), torch.nan), [2.0, 0.0])):
        steps = a.start(order, {"c": memory}, torch.tensor(g0))
        assert steps.turn.tolist() == [0, 0]
    several = torch.tensor([[3.0, 4.0], [3e30, 4e30], [1e-30, 0.0]])  # lengths whose squares float32 cannot hold
    found = find_trust(several, torch.tensor([1.0, 0.0]))
    assert (found[0].tolist(), found[1:].tolist()) == ([pytest.approx(0.6)], [[0], [1]])


def test_a_client_reports_and_remembers_its_own_gradients_without_the_correction() -> None:
    a, order = FedVecaM(0.1), Order(torch.zeros(2), {"c": torch.tensor([1.0, 1.0])})
    carry, w, g = a.start(order, {"c": torch.tensor([3.0, 4.0])}, torch.tensor([2.0, 0.0])), order.w, torch.ones(2)
    for k in range(2):
        w, carry = a.step(order, carry, w, (k + 1) * g)
    vectors, _, memory = a.finish(order, carry, w, torch.tensor([2.0]))
    assert vectors["G"].tolist() == pytest.approx([1.5 + 0.6 * (1 - 3), 1.5 + 0.6 * (1 - 4)])
    assert vectors["mean"].tolist() == pytest.approx([1.5, 1.5])
    assert memory["c"].equal(vectors["mean"])
    assert vectors["grad"].tolist() == [2, 0]


def test_c_moves_by_the_rows_of_the_round_as_a_part_of_all_that_were_seen() -> None:
    a = FedVecaM(0.1)
    state, each = (
        a.init(torch.zeros(2), torch.tensor([2, 6])),
        {"tau": torch.tensor([2.0]).double(), "beta": torch.ones(1)},
    )
    for client, mass, wanted in ((0, 0.25, 4.0), (1, 0.75, 7.0), (0, 0.25, 6.25)):
        own = torch.tensor([4.0 * (1 + client), 0.0])
        mean = {"G": torch.full((2,), 9.0), "grad": torch.ones(2), "mean": own}
        one = Report(mean, each | {"spread": torch.ones(1)}, mass)
        state, _ = a.update(state, torch.tensor([client]), torch.ones(1, dtype=torch.float64), one)
        assert state.c.tolist() == pytest.approx([wanted, 0])


def test_by_default_no_client_takes_more_than_twice_the_steps_of_another_by_A() -> None:
    one = report([2.0, 0.0], [10, 10], [1.0, 30.0], [1.0, 1.0])
    states = [FedVecaM(0.1).init(torch.ones(2), torch.tensor([10, 10]))]
    for _ in range(2):
        states.append(FedVecaM(0.1).update(states[-1], torch.arange(2), torch.full((2,), 0.5).double(), one)[0])
    assert states[-1].tau.tolist() == [13, 7]
