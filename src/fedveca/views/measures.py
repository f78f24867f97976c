"""What is read off runs of several seeds: rounds until a level, roughness, paired differences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fedveca.runs.folder import Run

Runs = Mapping[str, Sequence[Run]]  # by study
Array = NDArray[np.float64]


def of(runs: Runs, study: str, method: str = "fedveca") -> list[Run]:
    """One method's runs of a study, in the order of their seeds."""
    return sorted((r for r in runs[study] if r.experiment.method == method), key=lambda r: r.experiment.seed)


def grid(runs: Sequence[Run], name: str) -> Array:
    """[seeds, K] of one recorded name; NaN where a round does not have it."""
    length = min(len(r.rounds) for r in runs)
    known = ([line.get(name) for line in r.rounds[:length]] for r in runs)
    return np.array([[math.nan if v is None else v for v in row] for row in known])


def handed_out(run: Run) -> Run:
    """The run as its keeper saw it: on line k the test values of the best of w_1 ... w_(k+1), by training loss."""
    judged = [line["accepted"] for line in run.rounds[1:]] + [run.summary["kept"]["round"] == len(run.rounds)]
    rounds: list[dict[str, Any]] = []
    for line, good in zip(run.rounds, judged, strict=True):
        best = line if good or not rounds else rounds[-1]
        rounds.append(line | {name: best[name] for name in ("test_loss", run.metric)})
    return replace(run, rounds=rounds)


def closing(runs: Sequence[Run], which: str, name: str) -> list[float]:
    """One value a seed, of the last or the kept model."""
    return [float(r.summary[which][name]) for r in runs]


def level(runs: Sequence[Run], name: str) -> float:
    """The mean over seeds of the last model's value."""
    return statistics.fmean(closing(runs, "last", name))


def reached(runs: Sequence[Run], name: str, at: float) -> list[float]:
    """Rounds each seed needs until its test value is first at the level or better; infinite if it never is."""
    values = grid(runs, name)
    hit = values >= at if "accuracy" in name else values <= at
    return [float(row.argmax() + 1) if row.any() else math.inf for row in hit]


def median(rounds: Sequence[float]) -> float:
    """Infinite where half of the seeds or more never arrive."""
    low, high = statistics.median_low(rounds), statistics.median_high(rounds)
    return math.inf if math.isinf(high) else (low + high) / 2


def said(rounds: Sequence[float]) -> str:
    """The median in words."""
    return "never in half of the seeds" if math.isinf(median(rounds)) else f"{median(rounds):g}"


def roughness(runs: Sequence[Run], name: str, rounds: int = 50) -> float:
    """The mean absolute change from round to round over the last rounds, over seeds."""
    return float(np.abs(np.diff(grid(runs, name)[:, -rounds - 1 :])).mean())


def variation(values: Array) -> Array:
    """Standard deviation over mean, along the first axis."""
    return np.asarray(values.std(0) / values.mean(0))


def paired(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """Ours minus theirs over the seeds: mean and 95 % t interval (none for one seed)."""
    each = [a - b for a, b in zip(ours, theirs, strict=True)]
    mean = statistics.fmean(each)
    if len(each) < 2:
        return {"mean": mean, "interval": None}
    half = float(stats.t.ppf(0.975, len(each) - 1)) * statistics.stdev(each) / math.sqrt(len(each))
    return {"mean": mean, "interval": [mean - half, mean + half]}


def lead(runs: Runs, study: str, rival: str, which: str, name: str) -> dict[str, Any]:
    """FedVeca minus the rival, seed by seed."""
    return paired(closing(of(runs, study), which, name), closing(of(runs, study, rival), which, name))


def clear(difference: Mapping[str, Any], name: str) -> bool:
    """Whether it is FedVeca's advantage beyond chance: the interval does not hold 0 (one seed: the sign alone)."""
    low, high = difference["interval"] or (difference["mean"], difference["mean"])
    return bool(low > 0 if "accuracy" in name else high < 0)
