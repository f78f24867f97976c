"""The section of a report on how the settings of a sweep were chosen: a table, and maps of what was tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypedDict

from fedveca.runs.schema import describe_quantity
from fedveca.runs.search import TriedValue
from fedveca.runs.sweep_file import SweepContent, TrialEntry, TuningEntry, choose_trial
from fedveca.runs.value_text import format_value
from fedveca.views.comparison_text import name_quantity
from fedveca.views.series import find_look
from fedveca.views.sweep import ChosenRow, explain_sweep, format_settings, list_chosen

MOST_CELLS = 4000  # of a map; of more values, every trial is in the table of sweep.json


class SweepFigure(TypedDict):
    """What one figure draws: a map of values by two settings, or points where they came from ranges."""

    kind: Literal["map", "points"]
    title: str
    about: str
    alternative: str
    x_title: str
    y_title: str
    x: list[TriedValue]  # of a map the columns, else of each point
    y: list[TriedValue]
    z: list[list[float | None]]  # of a map by row and column, else one row by point
    texts: list[list[str]]
    best: list[tuple[int, int]]  # row and column of what was chosen
    log_x: bool
    log_y: bool


class SweepData(TypedDict):
    """The figures of a sweep, which share one scale."""

    figures: list[SweepFigure]
    low: float
    high: float
    rising: bool
    percent: bool
    label: str


class SweepSection(NamedTuple):
    """The words of the section."""

    quantity: str
    rows: list[ChosenRow]
    notes: list[str]
    figures: list[SweepFigure]


def make_sweep_section(content: SweepContent) -> SweepSection:
    """The table and the words."""
    figures = _make_figures(content)
    return SweepSection(name_quantity(content["quantity"]), list_chosen(content), explain_sweep(content), figures)


def make_sweep_data(content: SweepContent) -> SweepData:
    """The numbers, as the page's script draws them."""
    figures, percent = _make_figures(content), describe_quantity(content["quantity"]).unit == "share"
    numbers = [v for figure in figures for row in figure["z"] for v in row if v is not None]
    return {
        "figures": figures,
        "low": min(numbers, default=0.0),
        "high": max(numbers, default=1.0),
        "rising": content["better"] == "higher",
        "percent": percent,
        "label": name_quantity(content["quantity"]),
    }


def _make_figures(content: SweepContent) -> list[SweepFigure]:
    entries = [entry for entry in content["methods"] if entry["trials"] and entry["trials"][0]["settings"]]
    ranges = {key for key, text in content["space"].items() if ".." in text}
    groups: dict[tuple[str, ...], list[TuningEntry]] = {}
    for entry in entries:
        groups.setdefault(tuple(entry["trials"][0]["settings"]), []).append(entry)
    figures = []
    for keys, mine in groups.items():
        if not ranges.isdisjoint(keys):
            figures += [_make_points(content, entry, keys) for entry in mine]
        elif len(keys) == 1:
            figures.append(_map_methods(content, mine, keys[0]))
        else:
            figures += [_map_settings(content, entry, keys) for entry in mine]
    return [figure for figure in figures if sum(map(len, figure["z"])) <= MOST_CELLS]


def _map_methods(content: SweepContent, entries: Sequence[TuningEntry], key: str) -> SweepFigure:
    """Methods that differ in one setting: a row for each."""
    values = list(dict.fromkeys(trial["settings"][key] for entry in entries for trial in entry["trials"]))
    by_value = [{trial["settings"][key]: trial for trial in entry["trials"]} for entry in entries]
    cells = [[mine.get(value) for value in values] for mine in by_value]
    names: list[TriedValue] = [find_look(entry["method"])[0] for entry in entries]
    return _draw_map(content, entries, cells, f"{name_all(names)} by {key}", (key, "method"), values, names)


def _map_settings(content: SweepContent, entry: TuningEntry, keys: Sequence[str]) -> SweepFigure:
    """A method with two settings or more: the first two span the map, and of the others the best is shown."""
    across, down = ([*dict.fromkeys(trial["settings"][key] for trial in entry["trials"])] for key in keys[:2])
    cells = [
        [
            choose_trial([t for t in entry["trials"] if (t["settings"][keys[0]], t["settings"][keys[1]]) == (x, y)], b)
            for x in across
            for b in [content["better"]]
        ]
        for y in down
    ]
    rest = f", the best of {', '.join(keys[2:])}" if keys[2:] else ""
    title = f"{find_look(entry['method'])[0]} by {keys[0]} and {keys[1]}{rest}"
    return _draw_map(content, [entry] * len(down), cells, title, (keys[0], keys[1]), across, down)


def _draw_map(
    content: SweepContent,
    entries: Sequence[TuningEntry],
    cells: list[list[TrialEntry | None]],
    title: str,
    axes: tuple[str, str],
    x: list[TriedValue],
    y: list[TriedValue],
) -> SweepFigure:
    scale = _find_scale(content)
    best = [
        (i, j)
        for i, (entry, row) in enumerate(zip(entries, cells, strict=True))
        for j, trial in enumerate(row)
        if trial and trial["settings"] == entry["chosen"]
    ]
    means = [[trial["mean"] if trial else None for trial in row] for row in cells]
    texts = [[_describe_trial(content, trial) for trial in row] for row in cells]
    each = (f"{y[i]} at {axes[0]}={x[j]}: {_format(content, means[i][j])}" for i, j in best)
    return {
        "kind": "map",
        "title": title,
        "about": _explain(content, [v for row in means for v in row]),
        "alternative": f"{title}. Chosen: {'; '.join(each) or 'nothing yet'}.",
        "x_title": axes[0],
        "y_title": axes[1],
        "x": x,
        "y": y,
        "z": [[None if v is None else scale * v for v in row] for row in means],
        "texts": texts,
        "best": best,
        "log_x": False,
        "log_y": False,
    }


def _make_points(content: SweepContent, entry: TuningEntry, keys: Sequence[str]) -> SweepFigure:
    """What a search in ranges tried: one setting against the value, or two settings with the value as the colour."""
    scale, label = _find_scale(content), find_look(entry["method"])[0]
    trials = [trial for trial in entry["trials"] if trial["mean"] is not None]
    values = [scale * (trial["mean"] or 0.0) for trial in trials]
    alone = len(keys) == 1
    title = f"{label} by {keys[0]}" + ("" if alone else f" and {keys[1]}")
    best = [(0, i) for i, trial in enumerate(trials) if trial["settings"] == entry["chosen"]]
    found = f"{format_settings(entry['chosen'])}" if entry["chosen"] else "nothing yet"
    other: list[TriedValue] = [*values] if alone else [trial["settings"][keys[1]] for trial in trials]
    first = [trial["settings"][keys[0]] for trial in trials]
    return {
        "kind": "points",
        "title": title,
        "about": f"Each point is a trial. {_explain(content, values)}",
        "alternative": f"{title}: {len(trials)} trials. Chosen: {found}.",
        "x_title": keys[0],
        "y_title": name_quantity(content["quantity"]) if alone else keys[1],
        "x": first,
        "y": other,
        "z": [[*values]],
        "texts": [[_describe_trial(content, trial) for trial in trials]],
        "best": best,
        "log_x": _is_log(content, keys[0]),
        "log_y": not alone and _is_log(content, keys[1]),
    }


def _explain(content: SweepContent, means: Sequence[float | None]) -> str:
    label, unit = describe_quantity(content["quantity"]).label, " in per cent" if _find_scale(content) == 100 else ""
    empty = " An empty cell diverged on at least one seed." if None in means else ""
    return f"{label}{unit}, the mean over the tuning seeds; ★ is what was chosen.{empty}"


def _describe_trial(content: SweepContent, trial: TrialEntry | None) -> str:
    if trial is None:
        return ""
    return f"{format_settings(trial['settings'])}: {_format(content, trial['mean'])}"


def _format(content: SweepContent, value: float | None) -> str:
    return "diverged" if value is None else format_value(content["quantity"], value)


def _find_scale(content: SweepContent) -> int:
    return 100 if describe_quantity(content["quantity"]).unit == "share" else 1


def _is_log(content: SweepContent, key: str) -> bool:
    """Whether a range is even on a log scale: where its lowest value is above 0."""
    low, dots, _ = content["space"].get(key, "").partition("..")
    try:
        return bool(dots) and float(low) > 0
    except ValueError:
        return False


def name_all(names: Sequence[TriedValue]) -> str:
    """A, B and C."""
    words = list(map(str, names))
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
