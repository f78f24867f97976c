"""The figure of the speed benchmark: seconds of each engine on a log axis, a panel for each job.

Redraw it from a result without running anything: python -m benchmarks.speed.chart speed.json speed.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NotRequired, TypedDict

import matplotlib.pyplot as plt

from fedveca.views.figures.style import CATEGORIES, FRAME, INK, QUIET, STYLE, save_figure

LABELS = {
    "ours": "fedveca",
    "plain": "plain PyTorch loop",
    "fedjax": "FedJAX",
    "fedlab": "FedLab",
    "fluke": "fluke",
    "pfl": "pfl",
    "flower": "Flower",
    "nvflare": "NVFlare",
    "ours-probe": "fedveca, FedAvg + probe",
    "ours-fedveca": "fedveca, FedVeca",
}
MORE_WORK = ("ours-probe", "ours-fedveca")  # gradients on up to 1,024 more rows per client and round
OURS, PLAIN, PEER = CATEGORIES[0], CATEGORIES[1], QUIET


class Row(TypedDict):
    """The medians of one engine on one job; ratio and drop are relative to the plain loop in the same pass."""

    job: str
    engine: str
    passes: int
    seconds: float
    setup: float
    memory: float
    ratio: NotRequired[float]
    drop: NotRequired[float]


def draw(rows: list[Row], path: Path) -> None:
    """One dot and its seconds for each engine and job; an engine that did not run a job says so."""
    with plt.rc_context(STYLE):
        _draw(rows, path)


def _draw(rows: list[Row], path: Path) -> None:
    jobs = list(dict.fromkeys(row["job"] for row in rows))
    engines = [name for name in LABELS if any(row["engine"] == name for row in rows)]
    more = next((i for i, name in enumerate(engines) if name in MORE_WORK), len(engines))
    places = [i + 0.9 * (i >= more) for i in range(len(engines))]  # what does more work stands apart
    size = (2.2 + 2.2 * len(jobs), 1.5 + 0.3 * len(engines))
    figure, panels = plt.subplots(1, len(jobs), figsize=size, sharey=True, squeeze=False, layout="constrained")
    for panel, job in zip(panels[0], jobs, strict=True):
        mine = [row for row in rows if row["job"] == job]
        low, high = min(row["seconds"] for row in mine), max(row["seconds"] for row in mine)
        for row in mine:
            y, x = places[engines.index(row["engine"])], row["seconds"]
            own = row["engine"].startswith("ours")
            colour = OURS if own else PLAIN if row["engine"] == "plain" else PEER
            panel.plot([low / 2, x], [y, y], color=colour, linewidth=1.5, alpha=0.5)
            panel.plot(x, y, "o", color=colour, markersize=6)
            weight = "bold" if own else "normal"
            look = {"va": "center", "color": colour, "weight": weight, "fontsize": 9.5}
            panel.annotate(f"{x:.3g} s", (x, y), xytext=(7, 0), textcoords="offset points", **look)
        for name in set(engines) - {row["engine"] for row in mine}:
            y = places[engines.index(name)]
            panel.text(low / 2, y, "not run", va="center", style="italic", color=QUIET, fontsize=9.5)
        if more < len(engines):
            panel.axhline(places[more] - 0.95, color=FRAME, linewidth=0.8)
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter("{x:g}")
        panel.set_xlim(low / 2, high * (high / low * 4) ** 0.45)
        panel.set_title(job, weight="bold")
        panel.tick_params(axis="both", which="both", length=0)
        panel.tick_params(axis="x", which="minor", labelbottom=False)
        panel.grid(visible=False, axis="y")
        panel.spines["left"].set_visible(False)
    first = panels[0][0]
    first.set_yticks(places, [LABELS[name] for name in engines])
    first.set_ylim(places[-1] + 0.5, -0.5)
    if more < len(engines):
        said = "more work: a probe per round"
        place = (0, places[more] - 0.5)
        first.annotate(
            said, place, xycoords=("axes fraction", "data"), xytext=(-5, 0), textcoords="offset points",
            ha="right", va="center", style="italic", color=INK, fontsize=9, annotation_clip=False,
        )  # fmt: skip
    caption = "Seconds for all rounds on MNIST, four jobs (model and clients); log scale, lower is better"
    figure.suptitle(caption)
    about = "One panel per job, one row per engine."
    if more < len(engines):
        about += " The rows under the line also compute gradients on up to 1,024 rows per client and round."
    save_figure(figure, path, caption, about)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text())["summary"], Path(sys.argv[2]))
