"""The figure of what a round costs. Redraw it: python -m benchmarks.scale.chart scale.json scale.svg"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Literal, TypedDict

import matplotlib.pyplot as plt
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

from fedveca.views.figures.style import CATEGORIES, STYLE, label_lines, save_figure

BATCH = 20
ONE, TWO, THREE = CATEGORIES[:3]


class FlightRow(TypedDict):
    """A round of `n` clients in flight, `tau` steps each, with `P` parameters."""

    n: int
    tau: int
    P: int
    steps: int
    seconds: float
    core_s: float


class OverheadRow(TypedDict):
    """A round of one step per worker, on Ray and in this process."""

    workers: int
    P: int
    seconds: float
    local_s: float


class LocalFit(TypedDict):
    """Core-seconds per unit of each term, and the relative error of their sum."""

    core_s: dict[str, float]
    error_median: float
    error_most: float


class RayFit(TypedDict):
    """Seconds per unit of each term, and the relative error of their sum."""

    seconds: dict[str, float]
    error_median: float
    error_most: float


class Models(TypedDict):
    local: LocalFit
    ray: RayFit


class Result(TypedDict):
    """What the figure needs of scale.json."""

    flight: list[FlightRow]
    overhead: list[OverheadRow]
    models: Models


def predict(terms: dict[str, float], *units: float) -> float:
    """The sum of the model's terms."""
    return sum(cost * unit for cost, unit in zip(terms.values(), units, strict=True))


def draw(result: Result, path: Path) -> None:
    """Four panels: clients in flight, steps, parameters, workers; dots are measured, lines are the model's."""
    with plt.rc_context(STYLE):
        _draw(result, path)


def _draw(result: Result, path: Path) -> None:
    figure, grid = plt.subplots(2, 2, figsize=(9.5, 6), layout="constrained")
    panels = grid.flat
    flight, overhead = result["flight"], result["overhead"]
    local, ray = result["models"]["local"]["core_s"], result["models"]["ray"]["seconds"]
    sweeps: tuple[tuple[Literal["n", "tau", "P"], str, str, list[FlightRow]], ...] = (
        (
            "n",
            "clients per round",
            "10 steps each, 60 parameters",
            [r for r in flight if (r["tau"], r["P"]) == (10, 60)],
        ),
        ("tau", "steps of each client", "1,000 clients", [r for r in flight if (r["n"], r["P"]) == (1000, 60)]),
        ("P", "parameters (SVM)", "1,000 clients, 10 steps", [r for r in flight if (r["n"], r["tau"]) == (1000, 10)]),
    )
    for panel, (key, label, fixed, rows) in zip(panels, sweeps, strict=False):
        rows = sorted(rows, key=lambda row: row[key])
        at = [row[key] for row in rows]
        parts = [(1, r["n"], r["steps"], r["steps"] * BATCH * r["P"]) for r in rows]
        panel.plot(at, [1e3 * predict(local, *part) for part in parts], color=ONE, alpha=0.6)
        panel.plot(at, [1e3 * row["core_s"] for row in rows], "o", color=ONE)
        panel.set_xlabel(label)
        panel.set_ylabel("core-milliseconds per round")
        panel.set_title(f"local engine, {fixed}")
    last = grid[1, 1]
    for P, colour in zip(sorted({row["P"] for row in overhead}), (ONE, TWO, THREE), strict=True):
        mine = [row for row in overhead if row["P"] == P]
        at = [row["workers"] for row in mine]
        parts = [(1, r["workers"], r["P"], r["workers"] * r["P"]) for r in mine]
        predicted = [1e3 * predict(ray, *part) for part in parts]
        last.plot(at, predicted, color=colour, alpha=0.6, label=f"{P:,} parameters")
        last.plot(at, [1e3 * row["seconds"] for row in mine], "o", color=colour)
    last.set_xlabel("Ray workers")
    last.set_ylabel("milliseconds per round")
    last.set_title("Ray, one step of one client per worker")
    for panel in grid.flat:
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.xaxis.set_major_locator(FixedLocator(sorted(set(panel.lines[0].get_xdata()))))
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_formatter("{x:,g}")
            axis.set_minor_locator(NullLocator())
    caption = "What one round costs: dots are measured, lines are the fitted model; both axes are logarithmic"
    figure.suptitle(caption)
    label_lines(last)
    save_figure(figure, path, caption, "Four panels: cost against clients, local steps, parameters and Ray workers.")


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
