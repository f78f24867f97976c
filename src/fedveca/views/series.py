"""From runs to what is drawn: curves over seeds, heat maps, closing values. Pure functions to plain lists."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import Any, NamedTuple, cast

from fedveca.algorithms.registry import concerns, is_pooled, methods
from fedveca.errors import UserError
from fedveca.runs.experiment import FIELDS
from fedveca.runs.files import read_object
from fedveca.runs.folder import Run

# Okabe and Ito's colours: told apart by colour-blind readers too.
OTHERS = ("#7E57C2", "#8D6E63", "#C62828", "#B8860B")  # methods of one's own
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#444444")
DASHES = ("-", "--", "-.", ":")
AXES = {"rounds": "round", "steps": "local steps", "bytes": "bytes sent, up and down", "seconds": "seconds"}
ALIKE = ("seed", "data_dir", "tau_all", "test_every", "checkpoint_every", "track")  # may differ within one curve
RISING = ("accuracy", "r2", "score", "auc", "f1")  # parts of the names whose larger value is the better one
WHICH = ("kept", "last")
LARGEST = 1e100  # beyond it is no number of a run, and sums, squares and axes would overflow
NAMES = 50  # of test values that can be shown together; a run records two or three
PARTITION = 16 * 2**20  # bytes of partition.json


class Curve(NamedTuple):
    """Runs that differ by their seed alone, and how they look together."""

    label: str
    colour: str
    dash: str  # as matplotlib writes it
    runs: tuple[Run, ...]

    @property
    def method(self) -> str:
        return self.runs[0].experiment.method


def curves(runs: Iterable[Run]) -> list[Curve]:
    """One curve for all runs with the same settings, named by what tells it from the others."""
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(v for k, v in asdict(run.experiment).items() if k not in ALIKE), []).append(run)
    each = [sorted(mine, key=lambda r: r.experiment.seed) for mine in groups.values()]
    order = dict.fromkeys((*methods(), *(mine[0].experiment.method for mine in each)))
    each.sort(key=lambda mine: list(order).index(mine[0].experiment.method))
    names = [mine[0].experiment.method for mine in each]
    told = _telling([mine[0] for mine in each])
    found = []
    for i, (method, mine) in enumerate(zip(names, each, strict=True)):
        name, colour, dash = look(method)
        if len(set(names)) < len(names):
            colour, dash = COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)]
        settings = asdict(mine[0].experiment)
        label = " ".join([name, *(f"{k}={settings[k]}" for k in told if concerns(k, method))])
        found.append(Curve(label, colour, dash, tuple(mine)))
    return found


def look(method: str) -> tuple[str, str, str]:
    """A method's name, colour and dash."""
    title, colour, dash = method.removeprefix("custom:"), "", "-"
    if entry := methods().get(method):
        title, colour, dash = entry.title, entry.colour, entry.dash
    return title, colour or OTHERS[sum(method.encode()) % len(OTHERS)], dash


def _telling(runs: Sequence[Run]) -> list[str]:
    """Settings that differ between runs of one method."""
    found: dict[str, None] = {}
    for method in dict.fromkeys(r.experiment.method for r in runs):
        mine = [asdict(r.experiment) for r in runs if r.experiment.method == method]
        found |= dict.fromkeys(k for k in FIELDS if k not in ALIKE and len({settings[k] for settings in mine}) > 1)
    return [key for key in FIELDS if key in found]


def sections(runs: Iterable[Run], most: int = 12) -> list[list[Run]]:
    """Runs whose numbers may be compared: one data set and model; where curves are many, one partition too."""
    found: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        found.setdefault((run.experiment.data, run.experiment.model), []).append(run)
    out = []
    for mine in found.values():
        finer: dict[tuple[Any, ...], list[Run]] = {}
        for run in mine if len(curves(mine)) > most else ():
            finer.setdefault((run.experiment.partition, run.experiment.clients), []).append(run)
        out += list(finer.values()) or [mine]
    return out


def number(value: Any) -> float | None:
    """A finite number that can be drawn, or none."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST else None


def metrics(runs: Iterable[Run]) -> list[str]:
    """What was measured of the model over the rounds: every test value, and the training loss.

    ValueError for more names than can be shown.
    """
    names = {n for run in runs for line in run.rounds for n, value in line.items() if number(value) is not None}
    first = [n for n in ("test_loss", "test_accuracy") if n in names]
    rest = sorted(n for n in names if n.startswith("test_") and n not in first)
    if len(first + rest) > NAMES:
        raise UserError(f"rounds.jsonl has {len(first + rest)} names of test values; at most {NAMES} can be shown")
    return first + rest + [n for n in ("train_loss",) if n in names]


def rises(name: str) -> bool:
    """Whether a larger value is the better one."""
    return any(part in name for part in RISING)


def spent(run: Run) -> dict[str, list[float]]:
    """By axis, what the run had used up after each of its rounds."""
    lines = run.rounds
    steps = (sum(number(t) or 0 for t in _list(line.get("tau"))) for line in lines)
    traffic = ((number(line.get("bytes_up")) or 0) + (number(line.get("bytes_down")) or 0) for line in lines)
    return {
        "rounds": [k + 1 for k in range(len(lines))],
        "steps": list(accumulate(steps)),
        "bytes": list(accumulate(traffic)),
        "seconds": list(accumulate(number(line.get("seconds")) or 0.0 for line in lines)),
    }


def band(runs: Sequence[Run], name: str, most: int = 1000) -> dict[str, Any]:
    """Mean and standard deviation over those runs that have the round, against every axis (its mean over them).

    `train_loss` is of the model that a round starts from, so it stands where the round before it ended.
    """
    late = name != "train_loss"
    at: dict[int, list[tuple[float, dict[str, float]]]] = {}
    for run in runs:
        used = spent(run)
        for k, line in enumerate(run.rounds):
            if (y := number(line.get(name))) is not None:
                x = {axis: v[k] if late else v[k - 1] if k else 0 for axis, v in used.items()}
                at.setdefault(k, []).append((y, x))
    rounds = sorted(at)
    rounds = [rounds[i] for i in thin(len(rounds), most)]
    values = [[y for y, _ in at[k]] for k in rounds]
    return {
        "x": {axis: [statistics.fmean(x[axis] for _, x in at[k]) for k in rounds] for axis in AXES},
        "mean": [statistics.fmean(v) for v in values],
        "std": [statistics.stdev(v) if len(v) > 1 else 0.0 for v in values],
        "seeds": [len(v) for v in values],
    }


def heat(run: Run, name: str, clients: int = 100, rounds: int = 500) -> dict[str, Any]:
    """One number a client and round as a map: z[client][round], none where the client had no part.

    Of more clients or rounds than asked for, so many evenly spaced ones.
    """
    lines = [(k + 1, line) for k, line in enumerate(run.rounds) if isinstance(line.get(name), list)]
    lines = [lines[i] for i in thin(len(lines), rounds)]
    each = [dict(zip(_list(line.get("ids")), _list(line.get(name)), strict=False)) for _, line in lines]
    known = sorted({i for values in each for i in values if isinstance(i, int)})
    ids = [known[i] for i in thin(len(known), clients)]
    z = [[number(values.get(i)) for values in each] for i in ids]
    return {"clients": ids, "rounds": [k for k, _ in lines], "z": z, "all": len(known)}


def partition(run: Run, clients: int = 100) -> dict[str, Any] | None:
    """Rows of each label that each client owns, as the run folder has it: `clients`, `labels`, `sizes`, `all`.

    None where there is no partition.json, or one that no run writes.
    """
    try:
        told = read_object(run.folder, "partition.json", PARTITION) if run.folder else {}
    except (OSError, ValueError):
        return None
    ids, sizes, labels = (_list(told.get(name)) for name in ("clients", "sizes", "labels"))
    wide = len(_list(labels[0])) if labels else 0
    if not wide or not len(ids) == len(sizes) == len(labels) or any(len(_list(row)) != wide for row in labels):
        return None
    if not all(map(_count, [told.get("all"), *ids, *sizes, *(n for row in labels for n in row)])):
        return None
    ids, sizes, labels = ([values[i] for i in thin(len(ids), clients)] for values in (ids, sizes, labels))
    return {"clients": ids, "sizes": sizes, "labels": labels, "all": told["all"]}


def closing(run: Run) -> dict[str, dict[str, Any]]:
    """The kept and the last model's values; of a run that has not ended, the last line's."""
    told = {which: cast("dict[str, Any]", run.summary).get(which) for which in WHICH}
    if all(isinstance(values, dict) for values in told.values()):
        return {which: dict(values or {}) for which, values in told.items()}
    tested = ({n: v for n, v in line.items() if n.startswith("test_")} for line in reversed(run.rounds))
    return {"kept": {}, "last": next(filter(None, tested), {})}


def spread(values: Iterable[Any]) -> dict[str, Any]:
    """Mean and standard deviation of those that are numbers, and how many they are."""
    known = [v for v in map(number, values) if v is not None]
    return {
        "mean": statistics.fmean(known) if known else None,
        "std": statistics.stdev(known) if len(known) > 1 else 0.0,
        "count": len(known),
    }


def table(found: Sequence[Curve]) -> list[dict[str, Any]]:
    """One row a curve: local steps, and for the kept and the last model every test value over seeds."""
    names = [n for n in metrics(r for c in found for r in c.runs) if n.startswith("test_")]
    rows: list[dict[str, Any]] = []
    for curve in found:
        ends = [closing(run) for run in curve.runs]
        row: dict[str, Any] = {"label": curve.label, "method": curve.method, "seeds": len(curve.runs)}
        row["steps"] = spread(run.summary.get("tau_all", (spent(run)["steps"] or [0])[-1]) for run in curve.runs)
        row["stopped"] = sum("stopped" in run.summary for run in curve.runs)
        row["unfinished"] = sum(not run.summary for run in curve.runs)
        rows.append(row | {which: {n: spread(end[which].get(n) for end in ends) for n in names} for which in WHICH})
    return rows


def best(rows: Sequence[dict[str, Any]], which: str, name: str) -> float | None:
    """The best mean of a column; a pooled method is not a rival."""
    known = [row[which][name]["mean"] for row in rows if not is_pooled(row["method"])]
    return (max if rises(name) else min)((v for v in known if v is not None), default=None)


def thin(length: int, most: int) -> list[int]:
    """Places of `most` evenly spaced among so many, the first and the last one of them."""
    if length <= most:
        return list(range(length))
    return [round(i * (length - 1) / (most - 1)) for i in range(most)]


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
