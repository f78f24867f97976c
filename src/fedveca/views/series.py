"""From runs to what is drawn: curves over seeds, heat maps, closing values. Pure functions to plain lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from statistics import fmean
from typing import Literal, NamedTuple, TypedDict, cast, get_args

from fedveca.algorithms.registry import DASHES, concerns, find_method, methods, shorten_method
from fedveca.errors import UserError
from fedveca.runs.budget import COST_NAMES, measure_cost
from fedveca.runs.files import read_object
from fedveca.runs.folder import Run
from fedveca.runs.folder_types import Partition
from fedveca.runs.schema import Direction, describe_quantity, finite_number, get_number, is_count, is_number
from fedveca.runs.setting_checks import FIELDS
from fedveca.runs.statistics import Spread, mean_and_spread
from fedveca.tasks.names import CUSTOM

Which = Literal["kept", "last"]
WHICH: tuple[Which, ...] = get_args(Which)
OTHER_COLOURS = ("#7E57C2", "#8D6E63", "#C62828", "#B8860B")  # of methods that state none
# Okabe and Ito's colours, which colour-blind readers can tell apart too; pink, sky and amber darker, so that a line of
# any of them has a contrast of at least 3:1 with white.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#BC5E94", "#2B93D1", "#B77900", "#444444")
AXES = {"rounds": "round"} | COST_NAMES | {"bytes": "bytes sent, up and down"}
SIMULATED_AXES = {"clock": "device seconds", "joules": "joules"}  # simulated, or measured in a deployment
MAY_DIFFER = ("seed", "data_dir", "tau_all", "budget", "test_every", "checkpoint_every", "track")  # within one curve
MOST_METRICS = 50  # test values that can be shown together; a run records two or three
PARTITION_BYTES = 16 * 2**20
TESTED = ("test_", "tested", "client_", "clients_", "tuned_")  # how the names of a tested model's values begin


class Curve(NamedTuple):
    """Runs that differ by their seed alone, and how they look together."""

    label: str
    colour: str
    dash: str  # a name of DASHES
    runs: tuple[Run, ...]  # one per seed
    identical: int = 0  # repeats of a seed with the same results, which are not shown again
    conflicting: int = 0  # repeats of a seed with other results, which are not shown

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
    seeds: int  # distinct ones
    steps: Spread
    gradient_rows: Spread
    seconds: Spread  # of the rounds, without testing
    traffic: Spread  # bytes up and down
    diverged: int
    unfinished: int
    models: dict[Which, dict[str, Spread]]
    by_seed: dict[Which, dict[str, dict[int, float | None]]]


def find_look(method: str) -> tuple[str, str, str]:
    """A method's title, colour and dash."""
    other = OTHER_COLOURS[sum(method.encode()) % len(OTHER_COLOURS)]
    entry = find_method(method)
    if entry:
        return entry.title, entry.colour or other, entry.dash
    return method.removeprefix(CUSTOM) if method.startswith(CUSTOM) else shorten_method(method), other, "-"


def group_curves(runs: Iterable[Run]) -> list[Curve]:
    """One curve for all runs with the same settings, one run per seed, named by what is unusual about it."""
    groups: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(v for k, v in asdict(run.experiment).items() if k not in MAY_DIFFER), []).append(run)
    each = [part for mine in groups.values() for part in _split_budgets(mine)]
    order = list(dict.fromkeys((*methods(), *(mine[0].experiment.method for mine in each))))
    each.sort(key=lambda mine: order.index(mine[0].experiment.method))
    names = [mine[0].experiment.method for mine in each]
    curves = []
    for label, (colour, dash), mine in zip(_name_groups(each), _choose_looks(names), each, strict=True):
        shown, identical = _pick_one_per_seed(mine)
        curves.append(Curve(label, colour, dash, shown, identical, len(mine) - len(shown) - identical))
    return curves


def _choose_looks(names: Sequence[str]) -> list[tuple[str, str]]:
    """Colour and dash of curves with these methods: a method keeps its colour, and its settings differ by the dash.

    Settings of one method alone, or more of them than there are dashes, have colours of their own.
    """
    dashes, looks, seen = list(DASHES), [], Counter[str]()
    if len(names) > 1 and (len(set(names)) == 1 or max(Counter(names).values()) > len(dashes)):
        return [(COLOURS[i % len(COLOURS)], dashes[(i + i // len(COLOURS)) % len(dashes)]) for i in range(len(names))]
    for name in names:
        _, colour, dash = find_look(name)
        looks.append((colour, dashes[(dashes.index(dash) + seen[name]) % len(dashes)]))
        seen[name] += 1
    return looks


def _split_budgets(runs: list[Run]) -> list[list[Run]]:
    """Runs of one seed with different totals of local steps belong to different comparisons: one per folder above."""
    if len({r.experiment.seed for r in runs}) == len({(r.experiment.seed, *_get_budget(r)) for r in runs}):
        return [runs]
    parts: dict[object, list[Run]] = {}
    for run in runs:
        parts.setdefault(run.folder.parent if run.folder else None, []).append(run)
    if len(parts) == 1:
        parts = {}
        for run in runs:
            parts.setdefault(_get_budget(run), []).append(run)
    return list(parts.values())


def _get_budget(run: Run) -> tuple[int, str]:
    return run.experiment.tau_all, run.experiment.budget


def _pick_one_per_seed(runs: Sequence[Run]) -> tuple[tuple[Run, ...], int]:
    """Of every seed the run that went furthest, the first one of equals; how many repeats have the same results."""
    seeds: dict[int, list[Run]] = {}
    for run in runs:
        seeds.setdefault(run.experiment.seed, []).append(run)
    shown = {seed: max(mine, key=lambda run: (bool(run.summary), len(run.rounds))) for seed, mine in seeds.items()}
    alike = (_list_results(run) == _list_results(shown[run.experiment.seed]) for run in runs)
    return tuple(shown[seed] for seed in sorted(shown)), sum(alike) - len(shown)


def _list_results(run: Run) -> list[dict[str, object]]:
    """What a run computed: everything of its rounds but how long they took."""
    return [{name: value for name, value in record.items() if name != "seconds"} for record in run.rounds]


def _name_groups(groups: Sequence[Sequence[Run]]) -> list[str]:
    """The method's title and the settings that are not the most common ones; all of a setting where none is.

    Groups that only their totals of local steps tell apart show those, or the folders above their runs.
    """
    settings = [asdict(mine[0].experiment) for mine in groups]
    labels = [find_look(mine["method"])[0] for mine in settings]
    for key in FIELDS:
        if key == "method" or key in MAY_DIFFER or (key == "rounds" and any(mine["budget"] for mine in settings)):
            continue
        values = {i: mine[key] for i, mine in enumerate(settings) if concerns(key, mine["method"])}
        common = Counter(values.values()).most_common(2)
        usual = {common[0][0]} if len(common) == 1 or (common and common[0][1] > common[1][1]) else set()
        for i, value in values.items():
            labels[i] += "" if value in usual else f" {key}={value}"
    for i in [i for i, label in enumerate(labels) if labels.count(label) > 1]:
        above = groups[i][0].folder
        alone = len(groups[i]) == 1 or above is None
        labels[i] += f" tau_all={settings[i]['tau_all']}" if alone or above is None else f" in {above.parent.name}"
    return [label if labels.count(label) == 1 else f"{label} ({i + 1})" for i, label in enumerate(labels)]


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
    """What was measured of a model over the rounds: test loss, main metrics, others, validation, training loss.

    UserError for more names than can be shown.
    """
    runs = list(runs)
    names = {n for run in runs for record in run.rounds for n, value in record.items() if is_number(value)}
    first = [n for n in dict.fromkeys(("test_loss", *(run.metric for run in runs))) if n in names]
    rest = sorted(n for n in names if n.startswith("test_") and n not in first)
    rest += [n for n in (f"val_{name.removeprefix('test_')}" for name in first + rest) if n in names]
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
    clock = accumulate((get_number(record, "clock") or 0.0 for record in run.rounds), max)  # since the start
    joules = accumulate(get_number(record, "joules") or 0.0 for record in run.rounds)
    simulated = {"clock": list(clock), "joules": list(joules)}
    return {
        "rounds": [k + 1 for k in range(len(run.rounds))],
        "steps": list(accumulate(measure_cost(record, "steps") for record in run.rounds)),
        "rows": list(accumulate(_count_rows(run, record) for record in run.rounds)),
        "bytes": list(accumulate(measure_cost(record, "bytes") for record in run.rounds)),
        "seconds": list(accumulate(measure_cost(record, "seconds") for record in run.rounds)),
        **{axis: simulated[axis] for axis in list_axes([run]) if axis in simulated},
    }


def list_axes(runs: Iterable[Run]) -> dict[str, str]:
    """What curves of these runs can be drawn against, with its label: the time of devices where all have it."""
    each = [run.rounds for run in runs if run.rounds]
    found = [axis for axis in SIMULATED_AXES if each and all(any(axis in r for r in rounds) for rounds in each)]
    return AXES | {axis: SIMULATED_AXES[axis] for axis in found}


def counts_probes(run: Run) -> bool:
    """Whether the run recorded its gradient rows; those of an older version did not."""
    return all("rows" in record for record in run.rounds)


def _count_rows(run: Run, record: Mapping[str, object]) -> float:
    """The gradient rows of a round; where they were not recorded, those of the mini-batches, without a probe."""
    rows = get_number(record, "rows")
    return run.experiment.batch * measure_cost(record, "steps") if rows is None else rows


def compute_band(runs: Sequence[Run], name: str, most: int = 1000) -> Band:
    """Mean and standard deviation over those runs that have the round, against every axis (its mean over them).

    A quantity of the model that a round starts from is drawn where the round before it ended.
    """
    at_end, axes = describe_quantity(name).at == "end", list_axes(runs)
    at: dict[int, list[tuple[float, dict[str, float]]]] = {}
    for run in runs:
        costs = sum_costs(run)
        for k, record in enumerate(run.rounds):
            if (y := get_number(record, name)) is not None:
                x = {axis: costs[axis][k] if at_end else costs[axis][k - 1] if k else 0 for axis in axes}
                at.setdefault(k, []).append((y, x))
    known = sorted(at)
    points = [at[known[i]] for i in pick_evenly(len(known), most)]
    spreads = [mean_and_spread(y for y, _ in point) for point in points]
    return {
        "x": {axis: [fmean(x[axis] for _, x in point) for point in points] for axis in axes},
        "mean": [cast(float, spread.mean) for spread in spreads],  # a point has a number
        "std": [spread.std for spread in spreads],
        "seeds": [spread.n for spread in spreads],
    }


def list_seed_values(runs: Sequence[Run], name: str, most: int = 1000) -> list[list[float | None]]:
    """Every run's values at the rounds of `compute_band`: None where it has none."""
    each = [[get_number(record, name) for record in run.rounds] for run in runs]
    known = [k for k in range(max(map(len, each), default=0)) if any(k < len(y) and y[k] is not None for y in each)]
    places = [known[i] for i in pick_evenly(len(known), most)]
    return [[y[k] if k < len(y) else None for k in places] for y in each]


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
    columns = {"clients": ids, "sizes": sizes, "labels": labels}
    columns |= {name: held for name in ("val", "test") if len(held := _list(part.get(name))) == len(ids)}
    counts = [part.get("all"), *(n for name, values in columns.items() if name != "labels" for n in values)]
    if not all(is_count(n) and n >= 0 for n in [*counts, *(n for row in labels for n in _list(row))]):
        return None
    at = pick_evenly(len(ids), clients)
    return cast(Partition, {name: [values[i] for i in at] for name, values in columns.items()} | {"all": part["all"]})


def get_closing_values(run: Run) -> dict[Which, Mapping[str, object]]:
    """The kept and the last model's values; of a run that has not ended, the last tested round's."""
    if "kept" in run.summary and "last" in run.summary:
        return {"kept": run.summary["kept"], "last": run.summary["last"]}
    tests = ({n: v for n, v in record.items() if n.startswith(TESTED)} for record in reversed(run.rounds))
    return {"kept": {}, "last": next(filter(None, tests), {})}


def tabulate(curves: Sequence[Curve], more: Iterable[str] = ()) -> list[Row]:
    """One row per curve: its costs, and every test value, and `more`, of the kept and the last model over seeds."""
    names = [n for n in list_metrics(r for c in curves for r in c.runs) if n.startswith("test_")]
    names += more
    rows = []
    for curve in curves:
        runs = [run for run in curve.runs if not run.diverged]
        costs = [{axis: values[-1] if values else 0 for axis, values in sum_costs(run).items()} for run in runs]
        steps = (run.summary.get("tau_all", cost["steps"]) for run, cost in zip(runs, costs, strict=True))
        ends = {run.experiment.seed: get_closing_values(run) for run in runs}
        by_seed: dict[Which, dict[str, dict[int, float | None]]] = {
            which: {n: {seed: get_number(end[which], n) for seed, end in ends.items()} for n in names}
            for which in WHICH
        }
        models = {w: {n: mean_and_spread(values.values()) for n, values in by_seed[w].items()} for w in WHICH}
        rows.append(
            Row(
                label=curve.label,
                method=curve.method,
                seeds=len(curve.runs),
                steps=mean_and_spread(steps),
                gradient_rows=mean_and_spread(cost["rows"] for cost in costs),
                seconds=mean_and_spread(cost["seconds"] for cost in costs),
                traffic=mean_and_spread(cost["bytes"] for cost in costs),
                diverged=len(curve.runs) - len(runs),
                unfinished=sum(not run.summary for run in runs),
                models=models,
                by_seed=by_seed,
            )
        )
    return rows


def pick_evenly(length: int, most: int) -> list[int]:
    """Places of `most` evenly spaced among so many, the first and the last one of them."""
    if length <= most:
        return list(range(length))
    return [round(i * (length - 1) / (most - 1)) for i in range(most)]


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
