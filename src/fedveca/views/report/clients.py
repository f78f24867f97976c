"""What a report shows of single clients: distributions over the rounds, clients next to their rows, confusions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypedDict

from fedveca.runs.schema import Direction, describe_quantity
from fedveca.runs.value_text import format_value
from fedveca.views.clients import (
    STAGES,
    STATISTIC_LABELS,
    ClientPoint,
    Distribution,
    Stage,
    compute_distribution,
    list_client_metrics,
    list_client_points,
    list_models,
    name_statistic,
    read_confusion,
)
from fedveca.views.comparison import Comparison, find_gap, find_leader, find_winner
from fedveca.views.comparison_text import name_quantity
from fedveca.views.report.numbers import round_numbers
from fedveca.views.report.table import Cell, ReportTable, TablePart, make_gap_cell, make_value_cell
from fedveca.views.series import Curve, Which, find_direction

MOST_MODELS = 24  # whose clients, or confusion matrices, a section lets one choose from
MOST_CELLS = 100_000  # of confusion matrices in one section
STAGE_TITLES: dict[Stage, str] = {"clients": "Global model", "tuned": "After local steps"}


class ClientMetric(TypedDict):
    name: str
    label: str
    percent: bool
    better: Direction | None


class ClientCurve(TypedDict):
    """A method's distributions, by stage and test value, with their text alternatives."""

    label: str
    colour: str
    seeds: int
    stages: dict[Stage, dict[str, Distribution]]
    alternatives: dict[Stage, dict[str, str]]


class ClientModel(TypedDict):
    """One model of one run: its clients' rows and labels, and their values by stage and test value."""

    label: str
    clients: list[int]
    rows: list[int]
    tested: list[int | None]
    main: list[int | None]
    share: list[float]
    labels: list[int]
    values: dict[Stage, dict[str, list[float | None]]]
    alternatives: dict[Stage, dict[str, str]]


class ClientsData(TypedDict):
    metrics: list[ClientMetric]
    stages: list[Stage]
    curves: list[ClientCurve]
    models: list[ClientModel]
    classes: int  # labels that there are; 0 where rows have none


class ConfusionData(TypedDict):
    label: str
    counts: list[list[float]]
    alternative: str


class ClientTable(NamedTuple):
    """A test value's aggregates over clients, one row per method."""

    title: str
    content: ReportTable


def make_clients(curves: Sequence[Curve]) -> ClientsData | None:
    """The clients' values of all curves, and of single models as far as there is room; None where there are none."""
    runs = [run for curve in curves for run in curve.runs]
    metrics, stages = list_client_metrics(runs), [stage for stage in STAGES if list_client_metrics(runs, stage)]
    if not metrics:
        return None
    models = _make_models(curves, metrics, stages)
    return {
        "metrics": [
            {
                "name": name,
                "label": name_quantity(name),
                "percent": describe_quantity(name).unit == "share",
                "better": find_direction(runs, name),
            }
            for name in metrics
        ],
        "stages": stages,
        "curves": [made for curve in curves if (made := _make_curve(curve, metrics, stages))],
        "models": models,
        "classes": max((label + 1 for model in models for label in model["main"] if label is not None), default=0),
    }


def _make_curve(curve: Curve, metrics: Sequence[str], stages: Sequence[Stage]) -> ClientCurve | None:
    each = {stage: {name: compute_distribution(curve.runs, name, stage) for name in metrics} for stage in stages}
    if not any(found["mean"] for found in each["clients"].values()):
        return None
    said = {
        stage: {name: _describe_distribution(curve.label, name, stage, found) for name, found in mine.items()}
        for stage, mine in each.items()
    }
    return {
        "label": curve.label,
        "colour": curve.colour,
        "seeds": len(curve.runs),
        "stages": round_numbers(each),
        "alternatives": said,
    }


def _describe_distribution(label: str, name: str, stage: Stage, found: Distribution) -> str:
    what = f"{describe_quantity(name).label} over the clients of {label}, {STAGE_TITLES[stage].lower()}"
    if not found["mean"]:
        return f"{what}: not recorded."
    parts = (("the mean", found["mean"][-1]), ("the worst tenth", found["worst"][-1]), ("the best", found["best"][-1]))
    ends = (f"{part} has {format_value(name, value)}" for part, value in parts if value is not None)
    return f"{what}: after round {found['x']['rounds'][-1]:.0f} {', '.join(ends)}."


def _make_models(curves: Sequence[Curve], metrics: Sequence[str], stages: Sequence[Stage]) -> list[ClientModel]:
    """First seeds first."""
    ranked = sorted(
        ((rank, curve, run) for curve in curves for rank, run in enumerate(curve.runs)), key=lambda entry: entry[0]
    )
    models: list[ClientModel] = []
    for _, curve, run in ranked:
        for _, which in list_models([run]):
            points = list_client_points(run, metrics[0], which)
            if points and len(models) < MOST_MODELS:
                label = f"{curve.label}, seed {run.experiment.seed}, {which} model"
                known = {
                    stage: {name: _align(points, list_client_points(run, name, which, stage)) for name in metrics}
                    for stage in stages
                }
                models.append(_make_model(label, points, known))
    return models


def _align(points: Sequence[ClientPoint], others: Sequence[ClientPoint]) -> list[float | None]:
    values = {point.client: point.value for point in others}
    return [values.get(point.client) for point in points]


def _make_model(
    label: str, points: Sequence[ClientPoint], values: dict[Stage, dict[str, list[float | None]]]
) -> ClientModel:
    said = {
        stage: {name: _describe_points(label, name, stage, points, each) for name, each in mine.items()}
        for stage, mine in values.items()
    }
    return {
        "label": label,
        "clients": [point.client for point in points],
        "rows": [point.rows for point in points],
        "tested": [point.tested for point in points],
        "main": [point.label for point in points],
        "share": round_numbers([point.share for point in points], 3),
        "labels": [point.labels for point in points],
        "values": round_numbers(values),
        "alternatives": said,
    }


def _describe_points(
    label: str, name: str, stage: Stage, points: Sequence[ClientPoint], values: Sequence[float | None]
) -> str:
    """The clients in words; of many, those with the lowest and the highest values."""
    known = sorted(
        ((value, point) for value, point in zip(values, points, strict=True) if value is not None),
        key=lambda entry: entry[0],
    )
    shown = known if len(known) <= 12 else [*known[:5], *known[-5:]]
    each = (f"client {point.client} with {point.rows} rows {format_value(name, value)}" for value, point in shown)
    some = f" (the lowest and the highest of {len(known)})" if len(shown) < len(known) else ""
    return (
        f"{describe_quantity(name).label} by client, {label}, {STAGE_TITLES[stage].lower()}{some}: {'; '.join(each)}."
    )


def make_confusions(curves: Sequence[Curve]) -> list[ConfusionData]:
    """The confusion matrices of single models, first seeds first, as far as there is room."""
    ranked = sorted(
        ((rank, curve, run) for curve in curves for rank, run in enumerate(curve.runs)), key=lambda entry: entry[0]
    )
    found: list[ConfusionData] = []
    room = MOST_CELLS
    for _, curve, run in ranked:
        for _, which in list_models([run]):
            counts = read_confusion(run, which)
            if counts is not None and len(found) < MOST_MODELS and len(counts) ** 2 <= room:
                room -= len(counts) ** 2
                label = f"{curve.label}, seed {run.experiment.seed}, {which} model"
                found.append({"label": label, "counts": counts, "alternative": _describe_confusion(label, counts)})
    return found


def _describe_confusion(label: str, counts: Sequence[Sequence[float]]) -> str:
    each = []
    for i, row in enumerate(counts[:20]):
        total = sum(row)
        right = f"{100 * row[i] / total:.0f} %" if total else "none"
        wrong = max((j for j in range(len(row)) if j != i), key=lambda j: row[j], default=None)
        often = wrong is not None and row[wrong]
        each.append(f"label {i}: {right} right" + (f", most often taken for {wrong}" if often else ""))
    return f"Confusion matrix of {label}: {'; '.join(each)}."


def make_client_tables(comparison: Comparison) -> list[ClientTable]:
    """Of each test value that clients have, the mean, the spread and both ends, of the global and the tuned model."""
    c = comparison
    runs = [run for curve in c.curves for run in curve.runs]
    tables = []
    for name in list_client_metrics(runs):
        stages = [stage for stage in STAGES if name in list_client_metrics(runs, stage)]
        tables.append(ClientTable(describe_quantity(name).label, _make_table(c, name, stages)))
    return tables


def _make_table(comparison: Comparison, name: str, stages: Sequence[Stage]) -> ReportTable:
    c, parts, columns = comparison, list[TablePart](), list[tuple[Which, str, int | None]]()
    worst = name_statistic(name, "_worst")
    best = find_leader(c, c.which, worst)
    gaps = [find_gap(c, i, c.which, worst) for i in range(len(c.rows))]
    interval = ", [95\N{NO-BREAK SPACE}%]" if any(gap and gap.interval for gap in gaps) else ""
    for stage in stages:
        parts.append(TablePart(f"{STAGE_TITLES[stage].lower()}, {c.which}", list(STATISTIC_LABELS.values())))
        for statistic in STATISTIC_LABELS:
            of = name_statistic(name, statistic, stage)
            columns.append((c.which, of, find_winner(c, c.which, of)))
        if stage == "clients" and best is not None:
            parts.append(TablePart(f"minus the best{interval}", [STATISTIC_LABELS["_worst"]]))
            columns.append((c.which, "", None))
    rows = []
    for i, row in enumerate(c.rows):
        cells: list[Cell] = []
        for which, of, winner in columns:
            if of:
                cells.append(make_value_cell(name, row.models[which][of], i == winner))
            else:
                cells.append(make_gap_cell(name, gaps[i], i == best))
        rows.append((row.label, "", cells))
    return ReportTable(parts, rows)
