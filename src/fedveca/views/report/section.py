"""What one section of a report draws, as numbers for the page's script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from fedveca.algorithms.registry import DASHES, is_pooled
from fedveca.runs.folder import Run
from fedveca.runs.folder_types import Partition
from fedveca.runs.schema import SCHEMA, describe_quantity
from fedveca.runs.theory import CONDITIONS, count_conditions, list_values
from fedveca.views.clients import list_client_metrics, name_statistic
from fedveca.views.comparison_text import name_quantity
from fedveca.views.report.clients import ClientsData, ConfusionData
from fedveca.views.report.numbers import round_numbers
from fedveca.views.report.table import GapData
from fedveca.views.report.text import describe_heat_map, describe_line
from fedveca.views.series import (
    Band,
    Curve,
    HeatMap,
    compute_band,
    find_direction,
    list_axes,
    list_metrics,
    list_seed_values,
    make_heat_map,
    pick_evenly,
    read_partition,
)

MOST_NUMBERS = 300_000  # of heat maps in one report
MOST_CHOICES = 12  # runs, and partitions, that a section lets one choose from
MAP_SCALES = {"tau": False, "A": True, "beta": True, "delta": True}  # whether the scale is logarithmic
DRAWN_LINES = ("tau_k", "L", *CONDITIONS)
LINE_SYMBOLS = {"tau_k": "τₖ", "premise": "η τₖ L", "condition_drift": "‖dₖ‖ / ‖∇F‖"}  # in place of the schema's
MOST_SEED_NUMBERS = 200_000  # of single seeds' curves in one section


class MetricData(TypedDict):
    name: str
    label: str
    percent: bool
    rising: bool


class CurveBand(Band):
    each: list[list[float | None]]  # by seed and point, [] where there is no room


class CurveData(TypedDict):
    label: str
    run_seeds: list[int]
    colour: str
    dash: list[float]  # on and off, in widths of the line
    strong: bool
    metrics: dict[str, CurveBand]


class MapData(HeatMap):
    name: str
    symbol: str
    unit: str
    log: bool
    small: bool
    alternative: str


class LineData(TypedDict):
    name: str
    symbol: str
    bound: float | None
    rounds: list[int]
    y: list[float]
    alternative: str
    conclusion: str


class PartitionData(Partition):
    label: str


class RunData(TypedDict):
    """One run round by round: its clients' numbers as maps, its own as lines."""

    label: str
    maps: list[MapData]
    lines: list[LineData]
    partition: int | None  # its place in the section's


class SectionData(TypedDict):
    axes: dict[str, str]
    metrics: list[MetricData]
    curves: list[CurveData]
    runs: list[RunData]
    partitions: list[PartitionData]
    adaptive: int  # runs that adapt their steps, of which some may be left out
    csv: str  # the table of results
    gaps: GapData | None
    clients: ClientsData | None
    confusions: list[ConfusionData]


def make_sections(sections: Sequence[Sequence[Curve]]) -> list[SectionData]:
    """The curves of every section; runs that adapt their steps, first seeds first, as far as there is room."""
    made = [_make_section(curves) for curves in sections]
    room = MOST_NUMBERS
    each = [
        (rank, section, names, curve, run)
        for section, names, curves in zip(made, map(_list_lines, sections), sections, strict=True)
        for curve in curves
        for rank, run in enumerate(curve.runs)
    ]
    for _, section, names, curve, run in sorted(each, key=lambda entry: entry[0]):
        label = f"{curve.label}, seed {run.experiment.seed}"
        if _is_adaptive(run) and len(section["runs"]) < MOST_CHOICES:
            maps = [_make_map(run, name) for name in MAP_SCALES]
            size = sum(len(heat["z"]) * len(heat["rounds"]) for heat in maps)
            if size <= room:
                room -= size
                lines = [_make_line(run, name) for name in names]
                place = _place_partition(section, run, label)
                section["runs"].append({"label": label, "maps": maps, "lines": lines, "partition": place})
        elif not is_pooled(curve.method):
            _place_partition(section, run, label)
    return made


def _make_section(curves: Sequence[Curve]) -> SectionData:
    runs = [run for curve in curves for run in curve.runs]
    names = list_metrics(runs)
    names += [name_statistic(name, "_worst") for name in list_client_metrics(runs)[:1]]
    space = len(names) * sum(min(500, len(run.rounds)) for run in runs) <= MOST_SEED_NUMBERS
    return {
        "axes": list_axes(runs),
        "metrics": [
            {
                "name": name,
                "label": name_quantity(name),
                "percent": describe_quantity(name).unit == "share",
                "rising": find_direction(runs, name) == "higher",
            }
            for name in names
        ],
        "curves": [
            {
                "label": curve.label,
                "run_seeds": [run.experiment.seed for run in curve.runs],
                "colour": curve.colour,
                "dash": list(DASHES[curve.dash]),
                "strong": curve.method == "fedveca",
                "metrics": {name: _make_band(curve.runs, name, space) for name in names},
            }
            for curve in curves
        ],
        "runs": [],
        "partitions": [],
        "adaptive": sum(map(_is_adaptive, runs)),
        "csv": "",
        "gaps": None,
        "clients": None,
        "confusions": [],
    }


def _make_map(run: Run, name: str) -> MapData:
    heat = round_numbers(make_heat_map(run, name), 4)
    return {
        **heat,
        "name": name,
        "symbol": SCHEMA[name].symbol,
        "unit": "local steps" if name == "tau" else "",
        "log": MAP_SCALES[name],
        "small": name != "tau",
        "alternative": describe_heat_map(name_map(name), heat),
    }


def _list_lines(curves: Sequence[Curve]) -> list[str]:
    """The lines of a section's runs: the same for all; a run of version 0.1 has fewer conditions."""
    recorded = {name for curve in curves for run in curve.runs for name in count_conditions(run.rounds)}
    return [name for name in DRAWN_LINES if name in recorded or name not in CONDITIONS or name == "premise"]


def _make_line(run: Run, name: str) -> LineData:
    points = [(k + 1, v) for k, v in list_values(run.rounds, name)]
    points = [points[i] for i in pick_evenly(len(points), 500)]
    y = round_numbers([v for _, v in points])
    condition = CONDITIONS.get(name)
    count = count_conditions(run.rounds).get(name)
    return {
        "name": name,
        "symbol": LINE_SYMBOLS.get(name, SCHEMA[name].symbol),
        "bound": condition.bound if condition else None,
        "rounds": [k for k, _ in points],
        "y": y,
        "alternative": describe_line(name_line(name), y),
        "conclusion": count.describe() if count else "No round has a value yet." if condition else "",
    }


def _make_band(runs: Sequence[Run], name: str, space: bool) -> CurveBand:
    """Mean and spread, and every seed where there are several and room for them."""
    each = list_seed_values(runs, name, 500) if space and len(runs) > 1 else []
    band: CurveBand = {**compute_band(runs, name, 500), "each": each}
    return round_numbers(band)


def name_map(name: str) -> str:
    """A heat map's title."""
    return "Local steps τ of each client and round" if name == "tau" else SCHEMA[name].label


def name_line(name: str) -> str:
    """A line's title."""
    return CONDITIONS[name].title if name in CONDITIONS else SCHEMA[name].label


def _place_partition(section: SectionData, run: Run, label: str) -> int | None:
    """The place of the run's partition in its section, which holds each once."""
    part, known = read_partition(run), section["partitions"]
    if part is None:
        return None
    for i, other in enumerate(known):
        if {**other, "label": ""} == {**part, "label": ""}:
            return i
    if len(known) == MOST_CHOICES:
        return None
    known.append({**part, "label": label})
    return len(known) - 1


def _is_adaptive(run: Run) -> bool:
    return any(isinstance(record.get("A"), list) for record in run.rounds)
