"""The one wiring: every setting reaches the part that it is for, at a value that is not its default."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedveca.runs.build import build, cohort_options, make_problem
from fedveca.runs.experiment import Experiment
from fedveca.runs.task_data import load_data
from fedveca.tasks.partition import label_counts

E = Experiment(clients=6, batch=16, rounds=2)


def test_hidden_is_the_width_of_the_mlp() -> None:
    problem = make_problem(replace(E, hidden=7), (64,), 10)
    assert problem.size == 64 * 7 + 7 + 7 * 10 + 10


def test_init_chooses_the_first_weights() -> None:
    """The paper's are normal with a standard deviation of 0.1 and biases alike; PyTorch's go with the layer's width."""
    paper, theirs = (
        make_problem(replace(E, model="cnn", init=way), (1, 8, 8), 10).init() for way in ("paper", "torch")
    )
    assert not torch.equal(paper, theirs)
    assert float(paper.std()) > 2 * float(theirs.std())


def test_seed_draws_the_first_weights() -> None:
    one, two = (make_problem(replace(E, seed=seed), (64,), 10).init() for seed in (0, 1))
    assert not torch.equal(one, two)


def test_metric_is_what_is_measured() -> None:
    assert make_problem(replace(E, metric="absolute_error"), (4,), 0).metrics[0].name == "absolute_error"
    with pytest.raises(ValueError, match="metric=accuracy"):
        make_problem(replace(E, metric="accuracy"), (4,), 0, sample=(torch.zeros(2, 4), torch.tensor([0.5, 1.5])))


def test_loss_is_what_is_minimised() -> None:
    """Where targets are numbers, auto is the squared error, and cross-entropy cannot be had."""
    sample = (torch.zeros(2, 4), torch.tensor([0.5, 1.5]))
    make_problem(E, (4,), 0, sample=sample)
    with pytest.raises(ValueError, match="0 classes need"):
        make_problem(replace(E, loss="cross_entropy"), (4,), 0, sample=sample)


@pytest.mark.parametrize(
    ("settings", "name", "value"),
    [
        ({"batch": 3}, "batch", 3),
        ({"seed": 5}, "seed", 5),
        ({"probe": 77}, "probe", 77),
        ({"tau_0": 20}, "probe", 64),
        ({"keep": "last"}, "want_loss", False),
        ({"keep": "rollback"}, "want_loss_after", True),
        ({"memory_mb": 9}, "memory_bytes", 9 * 2**20),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_an_option_of_the_cohort(settings: dict[str, Any], name: str, value: object) -> None:
    assert dict(cohort_options(replace(E, **settings)))[name] == value


def test_aggregate_clip_is_the_largest_norm() -> None:
    rule = cohort_options(replace(E, aggregate="clip", aggregate_clip=2.0)).get("aggregate")
    assert rule
    aggregator = rule()
    aggregator.add(aggregator.reduce(torch.ones(1), {"G": torch.tensor([[8.0, 0.0]])}))
    assert aggregator.close(1.0)["G"].tolist() == [2.0, 0.0]


@pytest.mark.parametrize(("trim", "mean"), [(0.0, 22.0), (0.2, 3.0)])
def test_aggregate_trim_is_cut_at_each_end(trim: float, mean: float) -> None:
    rule = cohort_options(replace(E, aggregate="trimmed", aggregate_trim=trim)).get("aggregate")
    assert rule
    aggregator = rule()
    for value in (1.0, 2.0, 3.0, 4.0, 100.0):
        aggregator.add(aggregator.reduce(torch.ones(1), {"G": torch.tensor([[value]])}))
    assert aggregator.close(5.0)["G"].item() == pytest.approx(mean)


def test_concentration_makes_sizes_uneven() -> None:
    even, uneven = (
        load_data(replace(E, partition="quantity", concentration=c))[1].sizes.double().std() for c in (1000.0, 0.3)
    )
    assert float(uneven) > 5 * float(even)


def test_labels_per_client_are_those_of_partition_labels() -> None:
    for k in (1, 3):
        data, shares = load_data(replace(E, partition="labels", clients=10, labels_per_client=k))
        assert (label_counts(shares, data.y, 10) > 0).sum(1).tolist() == [k] * 10


def test_the_exponent_makes_sizes_uneven() -> None:
    even, uneven = (load_data(replace(E, partition="power_law", exponent=x))[1].sizes for x in (0.0, 2.0))
    assert int(even.max() - even.min()) <= 1
    assert int(uneven[0]) == pytest.approx(4 * int(uneven[1]), abs=4)


def test_shards_are_the_pieces_of_a_client() -> None:
    """Rows sorted by label are cut into N times so many pieces: more pieces, more labels per client."""
    counts = []
    for shards in (1, 8):
        data, shares = load_data(replace(E, partition="shards", shards=shards))
        counts.append(label_counts(shares, data.y, data.classes).gt(0).sum(1).double().mean())
    assert float(counts[0]) < 4 < float(counts[1])


def test_heterogeneity_changes_the_synthetic_rows() -> None:
    alike, apart = (
        load_data(replace(E, data="synthetic", partition="writer", heterogeneity=h))[0].x for h in (0.0, 1.0)
    )
    assert alike.shape != apart.shape or not torch.equal(alike, apart)


def test_privacy_gets_its_settings() -> None:
    pytest.importorskip("dp_accounting")
    settings: dict[str, Any] = {"dp_noise": 2.0, "dp_clip": 3.0, "dp_bound": 4.0, "dp_delta": 1e-3, "dp_seed": 0}
    built = build(replace(E, **settings))
    privacy: Any = built.cohort.privacy  # type: ignore[attr-defined]
    assert (privacy.noise, privacy.clip, privacy.bound) == (2.0, 3.0, 4.0)
    assert built.account is not None
    assert built.account.delta == 1e-3
