"""A budget of local steps, divided over clients and rounds: the paper's floor, and exactly."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedveca import Experiment, compare, resume, run
from fedveca.errors import UserError
from fedveca.runs.build import build
from fedveca.runs.federate import choose_clients
from fedveca.runs.local_steps import divide_steps, initial_steps, make_step_rule
from fedveca.views.comparison import compare_curves
from fedveca.views.comparison_text import explain_table
from fedveca.views.report.text import ask_question
from fedveca.views.series import group_curves

SIZES = st.lists(st.integers(1, 10**5), min_size=1, max_size=30)
SVM = Experiment(model="svm", method="fedavg", rounds=7, batch=8, tau_all=200, share="exact")


@given(SIZES, st.integers(0, 10**6), st.integers(1, 5))
def test_divided_steps_add_up_and_are_near_their_quota(sizes: list[int], more: int, fewest: int) -> None:
    total = fewest * len(sizes) + more
    steps = divide_steps(total, sizes, fewest)
    assert sum(steps) == total
    assert min(steps) >= fewest
    quotas = [total * size / sum(sizes) for size in sizes]
    if min(quotas) >= fewest:
        assert all(abs(step - quota) < 1 + 1e-9 for step, quota in zip(steps, quotas, strict=True))
    assert all(
        a <= b + 1 for a, i in zip(steps, sizes, strict=True) for b, j in zip(steps, sizes, strict=True) if i <= j
    )


def test_the_largest_remainder_by_hand() -> None:
    """Quotas 5.1, 5.1, 5.1, 5.9, 8.8: two steps are left after the floor; then a tie, and a client below its least."""
    assert divide_steps(30, [17, 17, 17, 20, 29]) == [5, 5, 5, 6, 9]
    assert divide_steps(10, [1, 1, 1, 1]) == [3, 3, 2, 2]  # of equal remainders the lower client
    assert divide_steps(10, [1, 100, 100]) == [1, 5, 4]  # 0.05 is raised to 1, and the others share 9
    assert divide_steps(3, [1, 100, 100]) == [1, 1, 1]


@given(SIZES, st.integers(1, 30), st.integers(0, 10**4))
def test_all_rounds_take_exactly_the_total(sizes: list[int], rounds: int, more: int) -> None:
    e = dataclasses.replace(SVM, rounds=rounds, tau_all=rounds * len(sizes) + more)
    rule, ids = make_step_rule(e, torch.tensor(sizes)), torch.arange(len(sizes))
    assert rule is not None
    taken = torch.stack([rule(k, ids) for k in range(rounds)])  # [K, N]
    assert int(taken.sum()) == e.tau_all
    assert int(taken.min()) >= 1
    assert taken.sum(0).tolist() == divide_steps(e.tau_all, sizes, rounds)
    assert bool((taken.max(0).values - taken.min(0).values <= 1).all())  # evenly over the rounds


@given(SIZES, st.integers(1, 30), st.integers(0, 10**6))
def test_floor_is_the_papers(sizes: list[int], rounds: int, total: int) -> None:
    e = dataclasses.replace(SVM, share="floor", rounds=rounds, tau_all=total)
    assert make_step_rule(e, torch.tensor(sizes)) is None
    if total:
        expected = [max(1, total * size // (rounds * sum(sizes))) for size in sizes]
        assert initial_steps(e, torch.tensor(sizes)).tolist() == expected


@pytest.mark.parametrize("method", ["fedavg", "fednova", "scaffold", "centralised"])
def test_a_run_takes_exactly_its_total(method: str) -> None:
    done = run(dataclasses.replace(SVM, method=method), device="cpu")
    assert done.summary["tau_all"] == 200
    floor = run(dataclasses.replace(SVM, method=method, share="floor"), device="cpu")
    assert floor.summary["tau_all"] < 200


def test_with_partial_participation_each_round_divides_its_part() -> None:
    e = dataclasses.replace(SVM, clients=10, participation=0.3, partition="dirichlet")
    built, done = build(e), run(e, device="cpu")
    assert done.summary["tau_all"] == 200
    for k, record in enumerate(done.rounds):
        ids = choose_clients(built.cohort, k, e.participation, e.seed)
        part = 200 * (k + 1) // 7 - 200 * k // 7
        assert record["tau"] == divide_steps(part, built.shares.sizes[ids].tolist())


def test_rivals_get_exactly_the_steps_of_the_first(tmp_path: Path) -> None:
    e = dataclasses.replace(SVM, tau_all=0)
    done = compare(e, 1, tmp_path / "exact", methods=("fedveca", "fedavg", "centralised"), device="cpu")
    assert len({run.summary["tau_all"] for run in done}) == 1
    total = f"{done[0].summary['tau_all']:,}"
    curves = group_curves(done)
    said = explain_table(compare_curves(curves))
    sentence = f"Methods with fixed steps take as many local steps as FedVeca: {total} compared with {total}."
    assert sentence in said
    assert "takes as many local steps as FedVeca took: the paper's fair protocol." in ask_question(curves)


def test_too_few_steps_are_rejected() -> None:
    with pytest.raises(
        UserError, match=r"^tau_all=34 with share=exact is less than one local step per client and round"
    ):
        run(dataclasses.replace(SVM, tau_all=34), device="cpu")
    assert run(dataclasses.replace(SVM, tau_all=35), device="cpu").summary["tau_all"] == 35


def test_a_run_is_resumed_with_the_same_steps_and_not_with_more_rounds(tmp_path: Path) -> None:
    whole = run(SVM, tmp_path / "whole", device="cpu")
    asked = iter(range(1, 9))
    with pytest.raises(KeyboardInterrupt):
        run(SVM, tmp_path / "half", device="cpu", stop=lambda: next(asked) == 3)
    done = resume(tmp_path / "half", device="cpu")
    assert [record["tau"] for record in done.rounds] == [record["tau"] for record in whole.rounds]
    few = dataclasses.replace(SVM, tau_all=41)  # one step per client and round, rounded down, with 7 and with 8 rounds
    run(few, tmp_path / "few", device="cpu")
    for name, total in (("whole", 200), ("few", 41)):
        with pytest.raises(UserError, match=f"would change every round: tau_all={total} is shared out over all"):
            resume(tmp_path / name, rounds=8, device="cpu")


def test_the_steps_of_a_private_run_do_not_depend_on_who_takes_part() -> None:
    with pytest.raises(UserError, match=r"^share=exact cannot go with dp_noise"):
        dataclasses.replace(SVM, dp_noise=1.0)
