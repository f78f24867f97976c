"""The tables of a report: closing values, costs until targets, differences to the best."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import NamedTuple, TypedDict

from fedveca.algorithms.registry import is_pooled
from fedveca.runs.budget import COST_KINDS
from fedveca.runs.schema import describe_quantity
from fedveca.runs.statistics import Difference, Spread
from fedveca.views.comparison import Comparison, find_gap, find_leader, find_winner, get_total
from fedveca.views.comparison_text import (
    format_cost,
    format_gap,
    format_reached,
    format_result,
    format_target,
    name_quantity,
)
from fedveca.views.series import AXES

COST_HEADINGS = AXES | {"rounds": "rounds", "bytes": "MB sent"} | {"clock": "device s", "joules": "joules"}
FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")  # a cell that begins with one may be run by a spreadsheet


class Cell(NamedTuple):
    """A cell's text, the small text after it, the number to sort by ("" for none), and whether it is the best."""

    text: str
    small: str = ""
    value: float | str = ""
    best: bool = False


class TablePart(NamedTuple):
    """Columns under one heading; "" for no heading."""

    heading: str
    columns: list[str]


class ReportTable(NamedTuple):
    """Headings in two lines, and per method its label, notes and cells."""

    parts: list[TablePart]
    rows: list[tuple[str, str, list[Cell]]]


class GapData(TypedDict):
    """Differences to the best of one metric, as a figure draws them; shares in points."""

    best: str
    title: str
    unit: str
    labels: list[str]
    mean: list[float]
    low: list[float]
    high: list[float]
    texts: list[str]


def make_result_table(comparison: Comparison) -> ReportTable:
    """Every test value of the kept and the last model, the difference to the best, and what the runs cost."""
    c, metric = comparison, comparison.metric
    best = find_leader(c, c.which, metric) if metric else None
    names = [name_quantity(name) for name in c.names]
    titles = {which: f"{which} model" for which in c.models}
    if c.same_models:
        titles = {c.which: "kept model, which is the last one"}
    parts = [TablePart(title, names) for title in titles.values() if names]
    gaps = [find_gap(c, i, c.which, metric) for i in range(len(c.rows))] if best is not None else []
    interval = ", [95\N{NO-BREAK SPACE}%]" if any(gap and gap.interval for gap in gaps) else ""
    parts += [TablePart(f"minus the best{interval}", [name_quantity(metric)])] if best is not None else []
    parts.append(TablePart("cost of a run", [COST_HEADINGS[axis] for axis in COST_KINDS]))
    parts.append(TablePart("", ["seeds"]))
    winners = {(which, name): find_winner(c, which, name) for which in c.models for name in c.names}
    rows = []
    for i, row in enumerate(c.rows):
        cells = []
        for (which, name), winner in winners.items():
            cells.append(make_value_cell(name, row.models[which][name], i == winner))
        if best is not None:
            cells.append(make_gap_cell(metric, gaps[i], i == best))
        for axis in COST_KINDS:
            cost = get_total(row, axis)
            text = "-" if cost.mean is None else format_cost(axis, cost.mean)
            cells.append(Cell(text, value=_sortable(cost)))
        cells.append(Cell(str(row.seeds), value=row.seeds))
        rows.append((row.label, _note(row.diverged, row.unfinished), cells))
    return ReportTable(parts, rows)


def make_value_cell(name: str, value: Spread, best: bool) -> Cell:
    """A mean over seeds in the unit of a test value, and its spread."""
    text, _, small = format_result(name, value).partition(" ±")
    return Cell(text, f"±{small}" if small else "", _sortable(value), best)


def make_gap_cell(name: str, gap: Difference | None, best: bool) -> Cell:
    """A difference to the best and its interval."""
    text, _, small = (format_gap(name, gap) if gap else "best" if best else "-").partition(" ")
    return Cell(_sign(text), _sign(small), gap.mean if gap else 0 if best else "")


def make_cost_table(comparison: Comparison) -> ReportTable | None:
    """Rounds, local steps, rows, bytes and seconds until every target; None where there is no target."""
    c = comparison
    if not c.targets:
        return None
    axes = [axis for axis in COST_HEADINGS if axis in c.targets[0].costs[0]]
    sign = "≥" if c.directions[c.metric] == "higher" else "≤"
    parts = [
        TablePart(
            f"{name_quantity(c.metric)} {sign} {format_target(c.metric, target.value)}",
            [COST_HEADINGS[axis] for axis in axes],
        )
        for target in c.targets
    ]
    rows = []
    for i, row in enumerate(c.rows):
        cells = []
        for target in c.targets:
            for axis in axes:
                reached = target.costs[i][axis]
                text, _, small = format_reached(axis, reached).removeprefix("in ").partition(" [")
                small = small and f"[{small}"
                if not reached.complete:
                    text, _, small = text.partition(" seeds ")
                value = reached.cost.mean if reached.cost and reached.complete else 1e300 - reached.arrived
                cells.append(Cell(text, small and f"seeds {small}" if not reached.complete else small, value))
        rows.append((row.label, "", cells))
    return ReportTable(parts, rows)


def make_gaps(comparison: Comparison) -> GapData | None:
    """The rivals' differences to the best; None where no interval is known."""
    c, metric = comparison, comparison.metric
    best = find_leader(c, c.which, metric) if metric else None
    if best is None:
        return None
    scale = 100 if describe_quantity(metric).unit == "share" else 1
    found = [(row, find_gap(c, i, c.which, metric)) for i, row in enumerate(c.rows) if not is_pooled(row.method)]
    each = [(row.label, gap, gap.interval) for row, gap in found if gap and gap.interval]
    if not each:
        return None
    return {
        "best": c.rows[best].label,
        "title": describe_quantity(metric).label,
        "unit": "points" if scale == 100 else "",
        "labels": [label for label, _, _ in each],
        "mean": [float(f"{scale * gap.mean:.6g}") for _, gap, _ in each],
        "low": [float(f"{scale * low:.6g}") for _, _, (low, _) in each],
        "high": [float(f"{scale * high:.6g}") for _, _, (_, high) in each],
        "texts": [_sign(format_gap(metric, gap)) for _, gap, _ in each],
    }


def make_csv(comparison: Comparison) -> str:
    """The table of results in full precision, for a spreadsheet or a data frame."""
    c, out = comparison, io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    values = [(which, name) for which in ("kept", "last") for name in (*c.names, *c.statistics)]
    gap_names = [f"{c.which}_{c.metric}_minus_best{end}" for end in ("", "_low", "_high")] if c.metric else []
    heads = [f"{which}_{name}_{what}" for which, name in values for what in ("mean", "std")]
    names = ["method", "seeds", "diverged", *map(_neutral, (*heads, *gap_names)), "local_steps"]
    writer.writerow([*names, "gradient_rows", "bytes", "seconds"])
    for i, row in enumerate(c.rows):
        cells: list[object] = []
        for which, name in values:
            value = row.models["kept" if which == "kept" else "last"][name]
            cells += [value.mean, value.std if value.n > 1 else None]
        gap = find_gap(c, i, c.which, c.metric) if c.metric else None
        cells += [gap.mean if gap else None, *((gap and gap.interval) or (None, None))] if c.metric else []
        cells += [row.steps.mean, row.gradient_rows.mean, row.traffic.mean, row.seconds.mean]
        writer.writerow([_neutral(row.label), row.seeds, row.diverged, *cells])
    return out.getvalue()


def _neutral(word: str) -> str:
    """A word from a folder that no spreadsheet takes for a formula."""
    return f"'{word}" if word.startswith(FORMULA_SIGNS) else word


def _sortable(value: Spread) -> float | str:
    return "" if value.mean is None else value.mean


def _sign(text: str) -> str:
    return text.replace("-", "−") if any(map(str.isdigit, text)) else text


def _note(diverged: int, unfinished: int) -> str:
    counts: Iterable[tuple[int, str]] = ((diverged, "diverged"), (unfinished, "not ended"))
    return " ".join(f"({count} {what})" for count, what in counts if count)
