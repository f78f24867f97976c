"""sampling=shuffle: each epoch of a client has every row once, and every engine takes the same rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedveca import Experiment
from fedveca.cohorts.debug import DebugCohort
from fedveca.cohorts.local import chunks
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.cohorts.random import draw_rows, shuffle_rows
from fedveca.runs.build import build, cohort_options
from fedveca.runs.federate import federate
from fedveca.runs.run import run

E = Experiment(data="digits", clients=4, rounds=2, batch=16, tau_0=5, lr=0.05, keep="last", sampling="shuffle")


def order_of(seed: int, k: int, client: int, size: int, steps: int, batch: int) -> Tensor:
    """[steps * batch]: one client's rows, one after another."""
    return shuffle_rows(seed, k, torch.tensor([client]), torch.tensor([size]), steps, batch).flatten()


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    batch=st.integers(1, 17),
    steps=st.integers(1, 12),
    first=st.integers(0, 30),
    seed=st.integers(0, 2**31),
)
def test_an_epoch_has_every_row_once(sizes: list[int], batch: int, steps: int, first: int, seed: int) -> None:
    ids = torch.arange(len(sizes)) * 3 + 1
    all_of_them = shuffle_rows(seed, 7, ids, torch.tensor(sizes), first + steps, batch)
    assert all_of_them.shape == (len(sizes), first + steps, batch)
    for size, rows in zip(sizes, all_of_them.flatten(1), strict=True):
        for epoch in rows.split(size):
            assert len(set(epoch.tolist())) == len(epoch)  # the last one may be cut off
            assert all(0 <= row < size for row in epoch.tolist())
    later = shuffle_rows(seed, 7, ids, torch.tensor(sizes), steps, batch, first)
    assert torch.equal(later, all_of_them[:, first:])  # wherever a block of steps begins
    alone = shuffle_rows(seed, 7, ids[-1:], torch.tensor(sizes[-1:]), steps, batch, first)
    assert torch.equal(alone[0], later[-1])  # whoever else is in the chunk


def test_the_order_depends_on_seed_round_client_and_epoch() -> None:
    first, second = order_of(1, 2, 3, 50, 2, 50).split(50)
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(50))
    others = [second, order_of(2, 2, 3, 50, 1, 50), order_of(1, 3, 3, 50, 1, 50), order_of(1, 2, 4, 50, 1, 50)]
    for other in others:
        assert not torch.equal(first, other)
    assert torch.equal(first, order_of(1, 2, 3, 50, 1, 50))


def test_every_order_is_as_likely() -> None:
    orders = shuffle_rows(0, 0, torch.arange(6000), torch.full((6000,), 3), 1, 3)[:, 0] @ torch.tensor([9, 3, 1])
    counts = torch.unique(orders, return_counts=True)[1].double()
    assert len(counts) == 6
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 22  # chi-squared, 5 degrees: 1 in 2,000


def test_batches_run_on_over_the_end_of_an_epoch() -> None:
    rows = shuffle_rows(0, 0, torch.tensor([0]), torch.tensor([5]), 3, 4)[0]
    assert rows.shape == (3, 4)  # 12 rows: two epochs of 5, and 2 rows of the third
    assert set(rows.flatten()[5:10].tolist()) == set(range(5))
    assert set(rows[1, :1].tolist()) | set(rows[0].tolist()) == set(range(5))


@pytest.mark.parametrize("model", ["svm", "mlp", "cnn"])
def test_local_and_debug_take_the_same_rows(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    e = replace(E, model=model, method="fedavg", partition="quantity", lr=0.002)
    built = build(e)
    data, options = built.data, cohort_options(e)
    ended = []
    for cohort in (
        built.cohort,
        LocalCohort(built.algorithm, built.problem, data.x, data.y, built.shares, lanes=1, threads=2, **options),
        DebugCohort(built.algorithm, built.problem, data.x, data.y, built.shares, **options),
    ):
        ended.append(list(federate(built.algorithm, cohort, built.state, 2))[-1][0].w)
    monkeypatch.setattr(chunks, "_ROWS_PER_DRAW", 64)  # a block of one step
    ended.append(list(federate(built.algorithm, build(e).cohort, built.state, 2))[-1][0].w)
    for w in ended[1:]:
        assert float((w - ended[0]).abs().max()) < 1e-6
    other = list(federate(built.algorithm, build(replace(e, sampling="random")).cohort, built.state, 2))[-1][0].w
    assert float((other - ended[0]).abs().max()) > 1e-5


def test_one_epoch_without_replacement_is_the_whole_gradient() -> None:
    """A batch of all rows in shuffled order: FedAvg of one step each is gradient descent on F."""
    built = build(replace(E, method="fedavg", partition="case1", clients=1, model="logistic", tau_0=1))
    data, w = built.data, built.state.w
    options = cohort_options(built.experiment) | {"batch": len(data.y)}
    cohort = LocalCohort(built.algorithm, built.problem, data.x, data.y, built.shares, **options)  # type: ignore[arg-type]
    stepped = next(federate(built.algorithm, cohort, built.state, 1))[0].w
    g = built.problem.gradients(w[None], data.x[None], data.y[None])[1][0]
    torch.testing.assert_close(stepped, w - built.experiment.lr * g, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_ray_takes_the_same_rows() -> None:
    local, ray = (run(replace(E, engine=where, workers=2), device="cpu") for where in ("local", "ray"))
    assert max(float((v - ray.model[name]).abs().max()) for name, v in local.model.items()) < 1e-6


def test_random_stays_what_it_was() -> None:
    """With replacement, the draws of version 0.1: by the bits of splitmix64."""
    assert Experiment().sampling == "random"
    rows = draw_rows(0, 0, torch.tensor([0, 1]), torch.tensor([10, 100]), 1, 5)
    assert rows.tolist() == [[[1, 2, 7, 7, 7]], [[1, 82, 48, 74, 4]]]
