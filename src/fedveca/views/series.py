"""From runs to what is drawn: curves over seeds, heat maps, closing values. Pure functions to plain lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from statistics import fmean
from typing import Literal, NamedTuple, TypedDict, cast, get_args

from fedveca.algorithms.registry import DASHES, concerns, is_pooled, methods
from fedveca.errors import UserError
from fedveca.runs.experiment import FIELDS
from fedveca.runs.files import read_object
from fedveca.runs.folder import Run
from fedveca.runs.schema import (
    Direction,
    Partition,
    describe_quantity,
    finite_number,
    get_number,
    is_count,
    is_number,
    pick_best,
)
from fedveca.runs.statistics import Spread, mean_and_spread
from fedveca.tasks.custom import CUSTOM

Which = Literal["kept", "last"]
WHICH: tuple[Which, ...] = get_args(Which)
OTHER_COLOURS = ("#7E57C2", "#8D6E63", "#C62828", "#B8860B")  # of methods that state none
# Okabe and Ito's colours, which colour-blind readers can tell apart too; pink, sky and amber darker, so that a line of
# any of them has a contrast of at least 3:1 with white.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#BC5E94", "#2B93D1", "#B77900", "#444444")
AXES = {"rounds": "round", "steps": "local steps", "bytes": "bytes sent, up and down", "seconds": "seconds"}
MAY_DIFFER = ("seed", "data_dir", "tau_all", "test_every", "checkpoint_every", "track")  # within one curve
MOST_METRICS = 50  # test values that can be shown together; a run records two or three
PARTITION_BYTES = 16 * 2**20


class Curve(NamedTuple):
    """Runs that differ by their seed alone, and how they look together."""

    label: str
    colour: str
    dash: str  # a name of DASHES
    runs: tuple[Run, ...]

    @property
    def method(self) -> str:
        return self.runs[0].experiment.method


class Band(TypedDict):
    """Mean and standard deviation over seeds, by the rounds that have a value."""

    x: dict[str, list[float]]  # by axis
    mean: list[float]
    std: list[float]
    seeds: list[int]


class HeatMap(TypedDict):
    """One number per client and round: z[client][round], None where the client had no part."""

    clients: list[int]
    rounds: list[int]
    z: list[list[float | None]]
    all: int  # clients that there are, of which some may be left out


class Row(NamedTuple):
    """One curve's closing values; runs that diverged count in `diverged` alone."""

    label: str
    method: str
    seeds: int
    steps: Spread
    diverged: int
    unfinished: int
    models: dict[Which, dict[str, Spread]]


def find_look(method: str) -> tuple[str, str, str]:
    """A method's title, colour and dash."""
    other = OTHER_COLOURS[sum(method.encode()) % len(OTHER_COLOURS)]
    entry = methods().get(method)
    return (entry.title, entry.colour or other, entry.dash) if entry else (method.removeprefix(CUSTOM), other, "-")


def group_curves(runs: Iterable[Run]) -> list[Curve]:
    """One curve for all runs with the same settings, named by what tells it from the others."""
    groups: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(v for k, v in asdict(run.experiment).items() if k not in MAY_DIFFER), []).append(run)
    each = [sorted(mine, key=lambda r: r.experiment.seed) for mine in groups.values()]
    order = list(dict.fromkeys((*methods(), *(mine[0].experiment.method for mine in each))))
    each.sort(key=lambda mine: order.index(mine[0].experiment.method))
    names = [mine[0].experiment.method for mine in each]
    differing = _find_differing([mine[0] for mine in each])
    curves = []
    for i, (method, mine) in enumerate(zip(names, each, strict=True)):
        title, colour, dash = find_look(method)
        if len(set(names)) < len(names):
            colour, dash = COLOURS[i % len(COLOURS)], list(DASHES)[i // len(COLOURS) % len(DASHES)]
        settings = asdict(mine[0].experiment)
        label = " ".join([title, *(f"{k}={settings[k]}" for k in differing if concerns(k, method))])
        curves.append(Curve(label, colour, dash, tuple(mine)))
    return curves


def _find_differing(runs: Sequence[Run]) -> list[str]:
    """The settings that differ between runs of one method."""
    found: set[str] = set()
    for method in {r.experiment.method for r in runs}:
        mine = [asdict(r.experiment) for r in runs if r.experiment.method == method]
        found |= {k for k in FIELDS if k not in MAY_DIFFER and len({settings[k] for settings in mine}) > 1}
    return [key for key in FIELDS if key in found]


def group_sections(runs: Iterable[Run], most: int = 12) -> list[list[Run]]:
    """Runs whose numbers can be compared: one data set and model; where there are many curves, one partition too."""
    tasks: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        tasks.setdefault((run.experiment.data, run.experiment.model), []).append(run)
    sections = []
    for mine in tasks.values():
        finer: dict[tuple[str, int], list[Run]] = {}
        for run in mine if len(group_curves(mine)) > most else ():
            finer.setdefault((run.experiment.partition, run.experiment.clients), []).append(run)
        sections += list(finer.values()) or [mine]
    return sections


def list_metrics(runs: Iterable[Run]) -> list[str]:
    """What was measured of the model over the rounds: every test value, and the training loss.

    UserError for more names than can be shown.
    """
    names = {n for run in runs for record in run.rounds for n, value in record.items() if is_number(value)}
    first = [n for n in ("test_loss", "test_accuracy") if n in names]
    rest = sorted(n for n in names if n.startswith("test_") and n not in first)
    if len(first + rest) > MOST_METRICS:
        many = len(first + rest)
        raise UserError(f"rounds.jsonl has {many} names of test values; at most {MOST_METRICS} can be shown")
    return first + rest + [n for n in ("train_loss",) if n in names]


def find_direction(runs: Iterable[Run], name: str) -> Direction | None:
    """Whether a higher or a lower value is better, as the schema and the runs state it; None where they do not."""
    stated = {better for run in runs if (better := run.better(name))}
    return stated.pop() if len(stated) == 1 else None


def sum_costs(run: Run) -> dict[str, list[float]]:
    """By axis, what the run had used up after each of its rounds."""
    steps = (sum(finite_number(t) or 0 for t in _list(record.get("tau"))) for record in run.rounds)
    traffic = ((get_number(r, "bytes_up") or 0) + (get_number(r, "bytes_down") or 0) for r in run.rounds)
    return {
        "rounds": [k + 1 for k in range(len(run.rounds))],
        "steps": list(accumulate(steps)),
        "bytes": list(accumulate(traffic)),
        "seconds": list(accumulate(get_number(record, "seconds") or 0.0 for record in run.rounds)),
    }


def compute_band(runs: Sequence[Run], name: str, most: int = 1000) -> Band:
    """Mean and standard deviation over those runs that have the round, against every axis (its mean over them).

    A quantity of the model that a round starts from is drawn where the round before it ended.
    """
    at_end = describe_quantity(name).at == "end"
    at: dict[int, list[tuple[float, dict[str, float]]]] = {}
    for run in runs:
        costs = sum_costs(run)
        for k, record in enumerate(run.rounds):
            if (y := get_number(record, name)) is not None:
                x = {axis: v[k] if at_end else v[k - 1] if k else 0 for axis, v in costs.items()}
                at.setdefault(k, []).append((y, x))
    known = sorted(at)
    points = [at[known[i]] for i in pick_evenly(len(known), most)]
    spreads = [mean_and_spread(y for y, _ in point) for point in points]
    return {
        "x": {axis: [fmean(x[axis] for _, x in point) for point in points] for axis in AXES},
        "mean": [cast(float, spread.mean) for spread in spreads],  # a point has a number
        "std": [spread.std for spread in spreads],
        "seeds": [spread.n for spread in spreads],
    }


def make_heat_map(run: Run, name: str, clients: int = 100, rounds: int = 500) -> HeatMap:
    """A quantity per client over the rounds; of more clients or rounds than asked for, so many evenly spaced ones."""
    records = [(k + 1, record) for k, record in enumerate(run.rounds) if isinstance(record.get(name), list)]
    records = [records[i] for i in pick_evenly(len(records), rounds)]
    each = [dict(zip(_list(record.get("ids")), _list(record.get(name)), strict=False)) for _, record in records]
    known = sorted({i for values in each for i in values if isinstance(i, int)})
    ids = [known[i] for i in pick_evenly(len(known), clients)]
    z = [[finite_number(values.get(i)) for values in each] for i in ids]
    return {"clients": ids, "rounds": [k for k, _ in records], "z": z, "all": len(known)}


def read_partition(run: Run, clients: int = 100) -> Partition | None:
    """The run folder's partition.json, of at most so many clients; None where it has none that a run writes."""
    try:
        part = read_object(run.folder, "partition.json", PARTITION_BYTES) if run.folder else {}
    except (OSError, ValueError):
        return None
    ids, sizes, labels = (_list(part.get(name)) for name in ("clients", "sizes", "labels"))
    wide = len(_list(labels[0])) if labels else 0
    if not wide or not len(ids) == len(sizes) == len(labels) or any(len(_list(row)) != wide for row in labels):
        return None
    counts = [part.get("all"), *ids, *sizes, *(n for row in labels for n in _list(row))]
    if not all(is_count(n) and n >= 0 for n in counts):
        return None
    ids, sizes, labels = ([values[i] for i in pick_evenly(len(ids), clients)] for values in (ids, sizes, labels))
    return cast(Partition, {"clients": ids, "sizes": sizes, "labels": labels, "all": part["all"]})


def get_closing_values(run: Run) -> dict[Which, Mapping[str, object]]:
    """The kept and the last model's values; of a run that has not ended, the last tested round's."""
    if "kept" in run.summary and "last" in run.summary:
        return {"kept": run.summary["kept"], "last": run.summary["last"]}
    tests = ({n: v for n, v in record.items() if n.startswith("test_")} for record in reversed(run.rounds))
    return {"kept": {}, "last": next(filter(None, tests), {})}


def tabulate(curves: Sequence[Curve]) -> list[Row]:
    """One row per curve: local steps, and every test value of the kept and the last model over seeds."""
    names = [n for n in list_metrics(r for c in curves for r in c.runs) if n.startswith("test_")]
    rows = []
    for curve in curves:
        runs = [run for run in curve.runs if not run.diverged]
        ends = [get_closing_values(run) for run in runs]
        steps = mean_and_spread(run.summary.get("tau_all", (sum_costs(run)["steps"] or [0])[-1]) for run in runs)
        models = {which: {n: mean_and_spread(end[which].get(n) for end in ends) for n in names} for which in WHICH}
        diverged, unfinished = len(curve.runs) - len(runs), sum(not run.summary for run in runs)
        rows.append(Row(curve.label, curve.method, len(curve.runs), steps, diverged, unfinished, models))
    return rows


def find_best(rows: Sequence[Row], which: Which, name: str, better: Direction | None) -> float | None:
    """The best mean of a column of several; None where no direction is known. A pooled method is not a rival."""
    rivals = (row.models[which][name].mean for row in rows if not is_pooled(row.method))
    return pick_best(rivals, better) if len(rows) > 1 else None


def pick_evenly(length: int, most: int) -> list[int]:
    """Places of `most` evenly spaced among so many, the first and the last one of them."""
    if length <= most:
        return list(range(length))
    return [round(i * (length - 1) / (most - 1)) for i in range(most)]


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
