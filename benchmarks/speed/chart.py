"""The figure of the speed benchmark: seconds of each engine on a log axis, a panel for each job.

Redraw it from a result without running anything: python -m benchmarks.speed.chart speed.json speed.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NotRequired, TypedDict

LABELS = {
    "ours": "fedveca (FedAvg)",
    "ours-probe": "fedveca (FedAvg and a probe)",
    "ours-fedveca": "fedveca (FedVeca)",
    "plain": "plain PyTorch loop",
    "flower": "Flower",
    "pfl": "pfl",
    "fluke": "fluke",
    "fedlab": "FedLab",
    "fedjax": "FedJAX",
    "nvflare": "NVFlare",
}
# Middle tones, readable on white and on black alike.
INK, OURS, PLAIN, PEER = "#7f8894", "#e07b1f", "#3f8fd0", "#8b93a0"


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
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "speed", "font.size": 9, "text.color": INK, "axes.edgecolor": INK})
    jobs = list(dict.fromkeys(row["job"] for row in rows))
    engines = [name for name in LABELS if any(row["engine"] == name for row in rows)]
    size = (1.6 + 2.3 * len(jobs), 0.8 + 0.3 * len(engines))
    figure, panels = plt.subplots(1, len(jobs), figsize=size, sharey=True, squeeze=False)
    for panel, job in zip(panels[0], jobs, strict=True):
        mine = [row for row in rows if row["job"] == job]
        low, high = min(row["seconds"] for row in mine), max(row["seconds"] for row in mine)
        for row in mine:
            y, x = engines.index(row["engine"]), row["seconds"]
            own = row["engine"].startswith("ours")
            colour = OURS if own else PLAIN if row["engine"] == "plain" else PEER
            panel.plot([low / 2, x], [y, y], color=colour, linewidth=1.5, alpha=0.5)
            panel.plot(x, y, "o", color=colour, markersize=6)
            weight = "bold" if own else "normal"
            panel.text(x, y, f"   {x:.3g} s", va="center", color=colour, weight=weight)
        for name in set(engines) - {row["engine"] for row in mine}:
            panel.text(low / 2, engines.index(name), " not run", va="center", style="italic")
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter("{x:g}")
        panel.set_xlim(low / 2, high * (high / low * 4) ** 0.45)
        panel.set_title(job, color=INK, loc="left", weight="bold")
        panel.tick_params(colors=INK, which="both", length=0)
        panel.tick_params(axis="x", which="minor", labelbottom=False)
        panel.grid(axis="x", color=INK, alpha=0.2, linewidth=0.6)
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.patch.set_alpha(0)
    first = panels[0][0]
    first.set_yticks(range(len(engines)), [LABELS[name] for name in engines])
    first.set_ylim(len(engines) - 0.5, -0.5)
    figure.supxlabel("seconds for all rounds, log scale; less is better", color=INK, fontsize=9)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", transparent=True, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text())["summary"], Path(sys.argv[2]))
