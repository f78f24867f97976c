"""What the claims read from runs; every number worked by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.run import run
from studies.paper.measures import (
    by_round,
    deviation,
    format_median,
    kept_so_far,
    lead,
    median,
    reaches_reported,
    roughness,
    rounds_until,
    runs_of,
    variation,
)


def invented(*losses: float, accepted: str = "", kept: int = 0) -> Run:
    lines: list[Any] = [
        {"round": k, "test_loss": v, "test_accuracy": 1 - v, "accepted": (accepted or "1" * len(losses))[k] == "1"}
        for k, v in enumerate(losses)
    ]
    return Run(Experiment(), lines, {"kept": {"round": kept}})


def test_rounds_until_a_level() -> None:
    runs = [invented(0.5, 0.3, 0.2), invented(0.5, 0.4, 0.35), invented(0.3, 0.9, 0.9)]
    assert rounds_until(runs, "test_loss", 0.3) == [2, None, 1]
    assert rounds_until(runs, "test_accuracy", 0.5) == [1, 1, 1]
    assert median([2, None, 1]) == 2
    assert median([1, 2]) == 1.5
    assert math.isinf(median([1, None]))
    assert format_median([1, 2]) == "1.5"
    assert format_median([None]) == "never in half of the seeds"
    assert roughness(runs[:1], "test_loss", 2) == pytest.approx(0.15)
    assert roughness(runs[:1], "test_loss", 1) == pytest.approx(0.1)


def test_the_kept_model_is_the_last_accepted_one() -> None:
    # w_1 is judged on line 1, w_2 on line 2, w_3 in the summary; line 0 judges w_0
    for accepted, kept, curve in (("110", 3, [0.5, 0.5, 0.2]), ("111", 2, [0.5, 0.7, 0.7])):
        seen = kept_so_far(invented(0.5, 0.7, 0.2, accepted=accepted, kept=kept))
        assert by_round([seen], "test_loss").tolist() == [curve]


def test_the_kept_curve_ends_at_the_kept_model() -> None:
    done = run(Experiment(rounds=12, batch=8), device="cpu")
    for name in ("test_loss", "test_accuracy"):
        assert kept_so_far(done).rounds[-1][name] == done.summary["kept"][name]


def seeds(method: str, *accuracies: float) -> list[Run]:
    """Runs of a method, the last seed first."""
    ends: list[Any] = [{"kept": {"test_accuracy": a}, "last": {"test_accuracy": a / 2}} for a in accuracies]
    return [Run(Experiment(method=method, seed=i), [], end) for i, end in enumerate(ends)][::-1]


def test_a_lead_pairs_the_same_seeds_whatever_their_order() -> None:
    runs = {"s": [*seeds("fedveca", 0.5, 0.7, 0.9), *seeds("fedavg", 0.4, 0.6, 0.8)[::-1]]}
    assert [r.experiment.seed for r in runs_of(runs, "s", "fedavg")] == [0, 1, 2]
    found = lead(runs, "s", "fedavg", "kept", "test_accuracy")
    assert found.mean == pytest.approx(0.1)
    assert found.interval == pytest.approx((0.1, 0.1))
    assert lead(runs, "s", "fedavg", "last", "test_accuracy").mean == pytest.approx(0.05)


def test_a_reported_value_is_reached_within_one_standard_deviation() -> None:
    values = [0.80, 0.82, 0.84]  # mean 0.82, standard deviation 0.02 of a sample
    assert reaches_reported(values, 0.8399)
    assert not reaches_reported(values, 0.8401)
    assert not reaches_reported([0.82], 0.8201)


def test_deviation_and_variation() -> None:
    assert deviation(np.array([[1.0, 5.0], [3.0, 5.0]])).tolist() == [math.sqrt(2), 0.0]
    assert deviation(np.array([[1.0, 5.0]])).tolist() == [0.0, 0.0]
    assert variation(np.array([1.0, 3.0])) == pytest.approx(0.5)  # of the population: 1 over 2
