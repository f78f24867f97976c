"""The figure of the scale benchmark. Redraw it: python benchmarks/scale_chart.py scale.json scale.svg"""

import json
import sys
from pathlib import Path

BATCH = 20
INK, ONE, TWO, THREE = "#7f8894", "#e07b1f", "#3f8fd0", "#2ca089"  # readable on white and on black alike


def draw(result: dict, path: Path) -> None:
    """Four panels: clients in flight, steps, parameters, workers; dots are measured, lines are the model's."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

    plt.rcParams.update({"svg.hashsalt": "scale", "font.size": 9, "text.color": INK, "axes.edgecolor": INK})
    figure, panels = plt.subplots(1, 4, figsize=(12, 3.1), layout="constrained")
    local, ray = result["models"]["local"]["core_s"], result["models"]["ray"]["seconds"]

    def modelled(row: dict) -> float:
        parts = (1, row["n"], row["steps"], row["steps"] * BATCH * row["P"])
        return sum(c * v for c, v in zip(local.values(), parts, strict=True))

    def over(row: dict) -> float:
        parts = (1, row["workers"], row["P"], row["workers"] * row["P"])
        return sum(c * v for c, v in zip(ray.values(), parts, strict=True))

    sweeps = (
        ("n", "clients in flight", [r for r in result["flight"] if (r["tau"], r["P"]) == (10, 60)]),
        ("tau", "steps of each of 1,000 clients", [r for r in result["flight"] if (r["n"], r["P"]) == (1000, 60)]),
        ("P", "parameters (SVM), 1,000 clients", [r for r in result["flight"] if (r["n"], r["tau"]) == (1000, 10)]),
    )
    for panel, (key, label, rows) in zip(panels, sweeps, strict=False):
        rows = sorted(rows, key=lambda row: row[key])
        at = [row[key] for row in rows]
        panel.plot(at, [1e3 * modelled(row) for row in rows], color=ONE, alpha=0.6)
        panel.plot(at, [1e3 * row["core_s"] for row in rows], "o", color=ONE)
        panel.set_xlabel(label, color=INK)
    for P, colour in zip(sorted({row["P"] for row in result["overhead"]}), (ONE, TWO, THREE), strict=True):
        rows = [row for row in result["overhead"] if row["P"] == P]
        at = [row["workers"] for row in rows]
        panels[3].plot(at, [1e3 * over(row) for row in rows], color=colour, alpha=0.6)
        panels[3].plot(at, [1e3 * row["seconds"] for row in rows], "o", color=colour, label=f"P = {P:,}")
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
