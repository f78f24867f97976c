"""Rows that clients hold back: who has how many, that nodes have the same, and that nobody uses them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedveca.cohorts.holdout import hold_out
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.errors import UserError
from fedveca.runs.build import build
from fedveca.runs.experiment import Experiment
from fedveca.runs.run import run
from fedveca.runs.task_data import load_data
from fedveca.tasks.datasets.dataset import load
from fedveca.tasks.partition import RULES, Shares, from_lists, partition

E = Experiment(model="svm", clients=4, rounds=2, batch=4, lr=0.05, tau_0=3, test_by="client", val=0.15)


def rows_of(shares: Shares, i: int) -> list[int]:
    found: list[int] = shares.rows[shares.start[i] : shares.start[i + 1]].tolist()
    return found


def deal(sizes: list[int]) -> Shares:
    """Clients of these sizes, whose rows are scattered."""
    order = torch.randperm(sum(sizes), generator=torch.Generator().manual_seed(1))
    return from_lists(list(torch.split(order, sizes)), sum(sizes))


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=8),
    st.integers(0, 2**31),
    st.floats(0, 0.9),
    st.floats(0.01, 0.99),
)
def test_the_parts_are_all_rows_and_have_none_in_common(sizes: list[int], seed: int, val: float, test: float) -> None:
    shares = deal(sizes)
    held = hold_out(shares, seed, val=val, test=test)
    for i, size in enumerate(sizes):
        train, chosen, tested = (rows_of(part, i) for part in held)
        assert sorted(train + chosen + tested) == rows_of(shares, i)
        assert all(part == sorted(part) for part in (train, chosen, tested))
        assert len(train) >= 1
        assert len(tested) == min(int(test * size + 0.5), size - 1)
        assert len(chosen) == min(int(val * size + 0.5), size - 1 - len(tested))


@given(st.lists(st.integers(1, 30), min_size=2, max_size=6), st.integers(0, 2**31))
def test_a_node_that_has_its_own_rows_only_makes_the_same_split(sizes: list[int], seed: int) -> None:
    shares = deal(sizes)
    together = hold_out(shares, seed, val=0.2, test=0.3)
    for i, size in enumerate(sizes):
        alone = hold_out(Shares(torch.arange(size), torch.tensor([0] * (i + 1) + [size])), seed, val=0.2, test=0.3)
        mine = torch.tensor(rows_of(shares, i))
        for whole, part in zip(together, alone, strict=True):
            assert rows_of(whole, i) == mine[part.rows].tolist()


def test_the_split_is_random_and_depends_on_seed_client_and_size() -> None:
    def tested(seed: int, client: int, size: int) -> list[int]:
        alone = Shares(torch.arange(size), torch.tensor([0] * (client + 1) + [size]))
        return hold_out(alone, seed, test=0.5).test.rows.tolist()

    first = tested(1, 2, 50)
    assert first == tested(1, 2, 50)
    for other in (tested(2, 2, 50), tested(1, 3, 50), tested(1, 2, 51)):
        assert other != first
    often = torch.zeros(10)
    for seed in range(600):
        often[tested(seed, 0, 10)] += 1
    assert 240 < float(often.min()) <= float(often.max()) < 360  # every place as likely: 300


def test_without_a_share_the_rows_are_the_same_object() -> None:
    shares = deal([3, 4])
    held = hold_out(shares, 0)
    assert held.train is shares
    assert held.val.sizes.tolist() == held.test.sizes.tolist() == [0, 0]


# nobody uses them


class Watch:
    """Sees which rows the training rows of a cohort give out."""

    def __init__(self, cohort: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows, self.used = cohort.rows, set[int]()
        for name in ("pick", "batches"):
            monkeypatch.setattr(self.rows, name, self._follow(getattr(self.rows, name)))
        blocks, stored = self.rows.blocks, self.rows.stored

        def follow_blocks(start: int, size: int, count: int, block: int) -> Any:
            self.used |= {start + j * size // count for j in range(count)}
            return blocks(start, size, count, block)

        def follow_stored(index: Iterable[Tensor]) -> Any:
            parts = list(index)
            self.used |= set(torch.cat([part.flatten() for part in parts]).tolist())
            return stored(parts)

        monkeypatch.setattr(self.rows, "blocks", follow_blocks)
        monkeypatch.setattr(self.rows, "stored", follow_stored)

    def _follow(self, function: Any) -> Any:
        def follow(index: Tensor) -> Any:
            self.used |= set(index.flatten().tolist())
            return function(index)

        return follow


@pytest.mark.parametrize("kind", sorted(RULES))
@pytest.mark.parametrize("sampling", ["random", "shuffle"])
@pytest.mark.parametrize("name", ["local", "debug"])
def test_no_row_that_is_held_back_is_drawn_or_probed(
    kind: str, sampling: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a cohort steps on and probes are its training rows, and those are none that is held back."""
    data = "synthetic" if kind == "writer" else "digits"
    words: Any = {"data": data, "partition": kind, "sampling": sampling, "engine": name, "finetune_steps": 2}
    e = replace(E, **words, probe=0, concentration=5.0, labels_per_client=3, test_share=0.3)
    built = build(e)
    assert built.held
    x, _ = built.data.x, built.data.y
    train, val, test = (set(part.rows.tolist()) for part in built.held)
    assert train & (val | test) == set()
    assert len(val) > 0 < len(test)
    assert built.cohort.sizes.tolist() == built.held.train.sizes.tolist()
    seen = Watch(built.cohort, monkeypatch)
    order, ids = built.algorithm.order(built.state), torch.arange(e.clients)
    built.cohort(0, order, ids, torch.full((e.clients,), 40))
    built.cohort.evaluate(0, order, "test", finetune=20)
    assert len(seen.used) > 0.8 * len(train)  # all by the probe
    there = built.held.train.rows[torch.tensor(sorted(seen.used))]  # a cohort has its rows side by side
    assert set(there.tolist()) <= train
    assert torch.equal(seen.rows.x[sorted(seen.used)], x[there])


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 2**20),
    st.sampled_from(["iid", "quantity", "labels", "dirichlet_balanced"]),
    st.sampled_from(["random", "shuffle"]),
    st.floats(0.05, 0.4),
    st.floats(0.05, 0.4),
)
def test_steps_and_probes_never_see_what_is_held_back(
    seed: int, kind: str, sampling: str, val: float, test: float
) -> None:
    """Rows that are held back are NaN, and nothing that clients send is: whatever the seed and the shares."""
    data = load("digits")
    shares = partition(kind, data.y, 10, 5, seed=seed)
    held = hold_out(shares, seed, val=val, test=test)
    x = data.x.float()
    x[torch.cat([held.val.rows, held.test.rows])] = torch.nan
    built = build(Experiment(model="svm", lr=0.01, batch=8, probe=0))
    cohort = LocalCohort(
        built.algorithm, built.problem, x, data.y, held.train, batch=8, seed=seed, probe=0, sampling=sampling
    )
    order = built.algorithm.order(built.state)
    who, report = cohort(0, order, torch.arange(5), torch.full((5,), 30))
    assert len(who) == 5
    assert bool(torch.isfinite(report.mean["G"]).all())
    assert bool(torch.isfinite(report.each["loss"]).all())


def test_training_counts_training_rows_only() -> None:
    """p_i, D_i and epochs are of the rows that are trained on."""
    e = replace(E, method="fedavg", epochs="1", partition="quantity", test_share=0.3)
    built = build(e)
    assert built.held
    assert torch.equal(built.shares.sizes, built.held.train.sizes)
    assert built.state.tau.tolist() == [max(1, -(-int(n) // e.batch)) for n in built.held.train.sizes]
    owned = load_data(e)[1].sizes
    assert torch.equal(sum((part.sizes for part in built.held), torch.zeros(4, dtype=torch.int64)), owned)


def test_pooled_rows_are_those_that_the_clients_would_train_on() -> None:
    one, many = (build(replace(E, method=method)) for method in ("centralised", "fedavg"))
    assert one.held
    assert many.held
    assert one.shares.rows.tolist() == sorted(many.shares.rows.tolist())
    assert one.cohort.sizes.tolist() == [len(many.shares.rows)]
    for mine, theirs in zip(one.held[1:], many.held[1:], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    last = run(replace(one.experiment, finetune_steps=2), device="cpu").rounds[-1]
    assert last["tested"] == [0, 1, 2, 3]
    assert not any(name.startswith(("tuned_", "client_tuned_")) for name in last)  # nobody's rows to tune on


# what cannot be

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "all rows are held back": (
        {"test_share": 0.6, "val": 0.4},
        "test_share=0.6 and val=0.4 leave no row to train on; their sum is less than 1",
    ),
    "a share of nothing": ({"test_share": 0.0}, "test_share=0.0 is out of range; allowed: (0, 1)"),
    "a share of all": ({"test_share": 1.0}, "test_share=1.0 is out of range; allowed: (0, 1)"),
    "too large a share": ({"val": 0.95}, "val=0.95 is out of range; allowed: [0, 0.9]"),
    "a negative share": ({"val": -0.1}, "val=-0.1 is out of range; allowed: [0, 0.9]"),
    "an unknown tester": (
        {"test_by": "clients"},
        "test_by=clients is not known (did you mean client?); allowed: server | client | both",
    ),
    "steps before no test": (
        {"test_by": "server", "finetune_steps": 3},
        "finetune_steps=3 needs test rows of each client: test_by=client or both",
    ),
    "noise on nothing": (
        {"dp_noise": 1.0},
        "test_by=client cannot go with dp_noise: what each client evaluates gets no noise",
    ),
    "noise on no validation": (
        {"dp_noise": 1.0, "test_by": "server"},
        "val=0.15 cannot go with dp_noise: what each client evaluates gets no noise",
    ),
    "negative steps": ({"finetune_steps": -1}, "finetune_steps=-1 is out of range; allowed: [0, 100000]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_settings_are_rejected_with_one_sentence(name: str) -> None:
    words, said = WRONG[name]
    with pytest.raises(UserError) as error:
        replace(E, **words)
    assert str(error.value) == said


def test_shares_that_leave_nobody_a_row_are_rejected() -> None:
    with pytest.raises(UserError, match=r"^test_share=0.001 leaves no client a row to hold back; take a larger share$"):
        build(replace(E, test_share=0.001))
    with pytest.raises(UserError, match=r"^val=0.001 leaves no client a row to hold back; take a larger share$"):
        build(replace(E, val=0.001, test_by="server"))
