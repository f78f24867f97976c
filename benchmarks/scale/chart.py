"""The figure of what a round costs. Redraw it: python -m benchmarks.scale.chart scale.json scale.svg"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Literal, TypedDict

BATCH = 20
INK, ONE, TWO, THREE = "#7f8894", "#e07b1f", "#3f8fd0", "#2ca089"  # readable on white and on black alike


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
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

    plt.rcParams.update({"svg.hashsalt": "scale", "font.size": 9, "text.color": INK, "axes.edgecolor": INK})
    figure, panels = plt.subplots(1, 4, figsize=(12, 3.1), layout="constrained")
    flight, overhead = result["flight"], result["overhead"]
    local, ray = result["models"]["local"]["core_s"], result["models"]["ray"]["seconds"]
    sweeps: tuple[tuple[Literal["n", "tau", "P"], str, list[FlightRow]], ...] = (
        ("n", "clients in flight", [r for r in flight if (r["tau"], r["P"]) == (10, 60)]),
        ("tau", "steps of each of 1,000 clients", [r for r in flight if (r["n"], r["P"]) == (1000, 60)]),
        ("P", "parameters (SVM), 1,000 clients", [r for r in flight if (r["n"], r["tau"]) == (1000, 10)]),
    )
    for panel, (key, label, rows) in zip(panels, sweeps, strict=False):
        rows = sorted(rows, key=lambda row: row[key])
        at = [row[key] for row in rows]
        parts = [(1, r["n"], r["steps"], r["steps"] * BATCH * r["P"]) for r in rows]
        panel.plot(at, [1e3 * predict(local, *part) for part in parts], color=ONE, alpha=0.6)
        panel.plot(at, [1e3 * row["core_s"] for row in rows], "o", color=ONE)
        panel.set_xlabel(label, color=INK)
    for P, colour in zip(sorted({row["P"] for row in overhead}), (ONE, TWO, THREE), strict=True):
        mine = [row for row in overhead if row["P"] == P]
        at = [row["workers"] for row in mine]
        parts = [(1, r["workers"], r["P"], r["workers"] * r["P"]) for r in mine]
        panels[3].plot(at, [1e3 * predict(ray, *part) for part in parts], color=colour, alpha=0.6)
        panels[3].plot(at, [1e3 * row["seconds"] for row in mine], "o", color=colour, label=f"P = {P:,}")
    panels[3].set_xlabel("Ray workers, one step of one client each", color=INK)
    panels[3].legend(frameon=False, labelcolor=INK)
    panels[0].set_ylabel("core-milliseconds a round", color=INK)
    panels[3].set_ylabel("milliseconds a round", color=INK)
    for panel in panels:
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.xaxis.set_major_locator(FixedLocator(sorted(set(panel.lines[0].get_xdata()))))
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_formatter("{x:,g}")
            axis.set_minor_locator(NullLocator())
        panel.tick_params(colors=INK, which="both", length=0)
        panel.grid(color=INK, alpha=0.2, linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
        panel.patch.set_alpha(0)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", transparent=True, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
