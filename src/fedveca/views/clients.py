"""How a model does for each client: distributions over the rounds, single clients, aggregates. Pure functions.

A run whose clients hold test rows records a value per client (`client_test_accuracy`, over `tested`), its aggregates
(`clients_accuracy_worst`), and the same after local steps at each client (`client_tuned_accuracy`, `tuned_accuracy`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Literal, NamedTuple, TypedDict, get_args

import numpy as np

from fedveca.runs.folder import Run
from fedveca.runs.schema import finite_number, get_number, is_count, is_number
from fedveca.views.series import WHICH, Which, get_closing_values, list_axes, pick_evenly, read_partition, sum_costs

Stage = Literal["clients", "tuned"]  # the model as it is, or after local steps at each client
STAGES: tuple[Stage, ...] = get_args(Stage)
LISTS: dict[Stage, str] = {"clients": "client_test_", "tuned": "client_tuned_"}
STATISTIC_LABELS = {"": "mean", "_rows": "by rows", "_sd": "sd", "_worst": "worst 10 %", "_best": "best 10 %"}
MOST_CLIENT_METRICS = 12  # test values of clients that are shown
MOST_POINTS = 200  # clients of one figure of single clients, as many as partition.json has
MOST_DRAWN_CLASSES = 200  # of a confusion matrix that is drawn


class Distribution(TypedDict):
    """A test value over the clients, by the rounds that have it: means over seeds of each run's own numbers."""

    x: dict[str, list[float]]  # by axis
    mean: list[float]
    worst: list[float | None]  # mean of the worst tenth; None where no direction is better
    low: list[float | None]  # a quarter of the clients is below
    middle: list[float | None]
    high: list[float | None]
    best: list[float | None]
    seeds: list[int]


class ClientPoint(NamedTuple):
    """One client of a run."""

    client: int
    value: float
    rows: int  # it trains on
    tested: int | None  # rows that it is tested on, where the folder says so
    label: int | None  # that most of its rows have; None where rows have no labels
    share: float  # of its rows that have this label
    labels: int  # different ones


def list_client_metrics(runs: Sequence[Run], stage: Stage = "clients") -> list[str]:
    """The test values that runs have of their clients, such as test_accuracy; a run's own metric first, loss last."""
    found: dict[str, None] = {}
    for run in runs:
        for record in run.rounds:
            for name in record:
                metric = name.removeprefix(f"{stage}_")
                if metric != name and f"{name}_rows" in record and get_number(record, name) is not None:
                    found[f"test_{metric}"] = None
    main = Counter(run.metric for run in runs).most_common(1)
    ranked = sorted(found, key=lambda name: (name == "test_loss", not main or name != main[0][0]))
    return ranked[:MOST_CLIENT_METRICS]


def name_statistic(name: str, statistic: str = "", stage: Stage = "clients") -> str:
    """The recorded name of a test value's aggregate over clients.

    Examples:
        >>> name_statistic("test_accuracy", "_worst")
        'clients_accuracy_worst'
    """
    return f"{stage}_{name.removeprefix('test_')}{statistic}"


def list_statistics(runs: Sequence[Run]) -> dict[str, str]:
    """The recorded names of all aggregates over clients, each with its test value."""
    return {
        name_statistic(name, statistic, stage): name
        for stage in STAGES
        for name in list_client_metrics(runs, stage)
        for statistic in STATISTIC_LABELS
    }


def compute_distribution(runs: Sequence[Run], name: str, stage: Stage = "clients", most: int = 200) -> Distribution:
    """How a test value is distributed over the clients after each round that tested them.

    Args:
        runs: The runs of one curve.
        name: The test value, such as test_accuracy.
        stage: The model as it is, or after local steps at each client.
        most: Rounds; of more than these, evenly spaced ones.
    """
    mean, worst, best = (name_statistic(name, statistic, stage) for statistic in ("", "_worst", "_best"))
    known = sorted({k for run in runs for k, record in enumerate(run.rounds) if get_number(record, mean) is not None})
    at = [known[i] for i in pick_evenly(len(known), most)]
    costs = [sum_costs(run) for run in runs]
    out: Distribution = {
        "x": {axis: [] for axis in list_axes(runs)},
        "mean": [],
        "worst": [],
        "low": [],
        "middle": [],
        "high": [],
        "best": [],
        "seeds": [],
    }
    for k in at:
        there = [i for i, run in enumerate(runs) if k < len(run.rounds) and get_number(run.rounds[k], mean) is not None]
        records = [runs[i].rounds[k] for i in there]
        for axis, values in out["x"].items():
            values.append(fmean(costs[i][axis][k] for i in there))
        out["mean"] += [value for value in [_average(records, mean)] if value is not None]
        out["worst"].append(_average(records, worst))
        out["best"].append(_average(records, best))
        quartiles = [find_quartiles(list_client_values(record, name, stage).values()) for record in records]
        full = [each for each in quartiles if each]
        for place, values_ in enumerate((out["low"], out["middle"], out["high"])):
            values_.append(fmean(each[place] for each in full) if len(full) == len(records) else None)
        out["seeds"].append(len(records))
    return out


def find_quartiles(values: Iterable[float]) -> tuple[float, float, float] | None:
    """The first quartile, the median and the third one; None of no values."""
    known = list(values)
    if not known:
        return None
    low, middle, high = np.percentile(known, (25, 50, 75)).tolist()
    return low, middle, high


def list_client_values(record: Mapping[str, object], name: str, stage: Stage = "clients") -> dict[int, float]:
    """A record's value of each client that has one."""
    ids, values = record.get("tested"), record.get(LISTS[stage] + name.removeprefix("test_"))
    if not isinstance(ids, list) or not isinstance(values, list) or len(ids) != len(values):
        return {}
    return {i: v for i, v in zip(ids, values, strict=True) if is_count(i) and is_number(v)}


def list_client_points(run: Run, name: str, which: Which, stage: Stage = "clients") -> list[ClientPoint]:
    """Each client's value of the kept or the last model next to what rows it has, as far as partition.json says so."""
    values, part = list_client_values(get_closing_values(run)[which], name, stage), read_partition(run, MOST_POINTS)
    if part is None:
        return []
    tested: Sequence[int | None] = part.get("test", ()) or [None] * len(part["clients"])
    points = []
    for client, rows, labels, held in zip(part["clients"], part["sizes"], part["labels"], tested, strict=True):
        if client in values:
            most, several = max(labels), len(labels) > 1
            points.append(
                ClientPoint(
                    client=client,
                    value=values[client],
                    rows=rows,
                    tested=held,
                    label=labels.index(most) if several and most else None,
                    share=most / max(1, sum(labels)),
                    labels=sum(count > 0 for count in labels) if several else 0,
                )
            )
    return points


def read_confusion(run: Run, which: Which) -> list[list[float]] | None:
    """The kept or the last model's confusion matrix: rows are true labels, columns predicted ones; None without one."""
    found = get_closing_values(run)[which].get("test_confusion")
    if not isinstance(found, list) or not 0 < len(found) <= MOST_DRAWN_CLASSES:
        return None
    matrix = []
    for row in found:
        if not isinstance(row, list) or len(row) != len(found):
            return None
        numbers = [value for cell in row if (value := finite_number(cell)) is not None and value >= 0]
        if len(numbers) != len(found):
            return None
        matrix.append(numbers)
    return matrix


def list_models(runs: Iterable[Run]) -> Iterator[tuple[Run, Which]]:
    """Each run with each of its models, the kept ones first; of equal models one."""
    for run in runs:
        ends = get_closing_values(run)
        for which in WHICH:
            if ends[which] and (which == "kept" or ends["kept"] != ends["last"]):
                yield run, which


def _average(records: Sequence[Mapping[str, object]], name: str) -> float | None:
    """The mean over runs of a number; None where one does not have it."""
    known = [v for record in records if (v := get_number(record, name)) is not None]
    return fmean(known) if known and len(known) == len(records) else None
