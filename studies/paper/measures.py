"""What the claims and figures read from runs of several seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from fedveca.runs.folder import Run
from fedveca.runs.schema import Direction, Round, finite_number, get_number
from fedveca.runs.statistics import Difference, mean_and_spread, median_rounds, paired_difference, rounds_to_reach
from fedveca.views import series

Runs = Mapping[str, Sequence[Run]]  # by study
Array = NDArray[np.float64]
Which = Literal["kept", "last"]
MODELS: tuple[Which, ...] = ("kept", "last")


def title_of(method: str) -> str:
    """The method's name as figures and sentences have it."""
    return series.find_look(method)[0]


def runs_of(runs: Runs, study: str, method: str = "fedveca") -> list[Run]:
    """One method's runs of a study, in the order of their seeds."""
    return sorted((r for r in runs[study] if r.experiment.method == method), key=lambda r: r.experiment.seed)


def by_round(runs: Sequence[Run], name: str) -> Array:
    """[seeds, K] of one recorded name; NaN where a round does not have it."""
    length = min(len(r.rounds) for r in runs)
    known = ([get_number(line, name) for line in r.rounds[:length]] for r in runs)
    return np.array([[math.nan if v is None else v for v in row] for row in known])


def by_client(rounds: Sequence[Round], name: str) -> Array:
    """[rounds, clients] of what is recorded per client, or [rounds]."""
    values = [line.get(name) for line in rounds]
    return np.array(
        [[finite_number(v) for v in value] if isinstance(value, list) else value for value in values], float
    )


def deviation(values: Array) -> Array:
    """The sample's standard deviation along the first axis; 0 for one seed."""
    return np.asarray(values.std(0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1:]))


def kept_so_far(run: Run) -> Run:
    """The run with the test values of the kept model: on line k those of the best of w_1 ... w_(k+1)."""
    accepted = [line["accepted"] for line in run.rounds[1:]] + [run.summary["kept"]["round"] == len(run.rounds)]
    rounds: list[Round] = []
    for line, is_better in zip(run.rounds, accepted, strict=True):
        best = line if is_better or not rounds else rounds[-1]
        values = {name: best.get(name) for name in ("test_loss", run.metric)}
        rounds.append(cast(Round, {**line, **values}))
    return replace(run, rounds=rounds)


def final_values(runs: Sequence[Run], which: Which, name: str) -> list[float]:
    """One value per seed, of the last or the kept model."""
    values = [get_number(r.summary[which], name) for r in runs]
    return [math.nan if value is None else value for value in values]


def mean_of_last(runs: Sequence[Run], name: str) -> float:
    """The mean over seeds of the last model's value."""
    return statistics.fmean(final_values(runs, "last", name))


def reaches_reported(values: Sequence[float], reported: float) -> bool:
    """Whether the mean over seeds is at most one standard deviation below the reported value."""
    spread = mean_and_spread(values)
    return spread.mean is not None and spread.mean >= reported - spread.std


def better(name: str) -> Direction:
    """Whether a higher or a lower value is the better one."""
    return "higher" if "accuracy" in name else "lower"


def rounds_until(runs: Sequence[Run], name: str, target: float) -> list[int | None]:
    """The rounds that each seed needs until its test value is first as good as the target; None if it never is."""
    return [rounds_to_reach((line.get(name) for line in r.rounds), target, better(name)) for r in runs]


def median(rounds: Iterable[int | None]) -> float:
    """The median over seeds; infinite where half of the seeds or more never arrive."""
    found = median_rounds(rounds)
    return math.inf if found is None else found


def format_median(rounds: Sequence[int | None]) -> str:
    """The median in words."""
    found = median_rounds(rounds)
    return "never in half of the seeds" if found is None else f"{found:g}"


def roughness(runs: Sequence[Run], name: str, rounds: int = 50) -> float:
    """The mean absolute change from round to round over the last rounds, over seeds."""
    return float(np.abs(np.diff(by_round(runs, name)[:, -rounds - 1 :])).mean())


def variation(values: Array) -> Array:
    """Standard deviation over mean, along the first axis."""
    return np.asarray(values.std(0) / values.mean(0))


def lead(runs: Runs, study: str, rival: str, which: Which, name: str) -> Difference:
    """FedVeca minus the rival, seed by seed."""
    ours, theirs = (final_values(runs_of(runs, study, method), which, name) for method in ("fedveca", rival))
    return paired_difference(ours, theirs)
