"""Figures for papers, from run folders alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from fedveca.runs.record import Run

matplotlib.use("Agg")
import matplotlib.pyplot as plt

# Okabe and Ito's colours: told apart by colour-blind readers too.
LOOK: dict[str, tuple[str, str, str]] = {
    "fedveca": ("FedVeca", "#D55E00", "-"),
    "scaffold": ("SCAFFOLD", "#0072B2", "-"),
    "fedavg": ("FedAvg", "#009E73", "-"),
    "fedprox": ("FedProx", "#CC79A7", "--"),
    "fednova": ("FedNova", "#56B4E9", "-."),
    "centralised": ("centralised", "#444444", ":"),
}
OTHERS = ("#B8860B", "#7E57C2", "#8D6E63", "#C62828")  # methods of one's own
STYLE: Any = {
    "font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#e5e5e5",
    "grid.linewidth": 0.8, "axes.axisbelow": True, "legend.frameon": False, "svg.hashsalt": "fedveca",
    "svg.fonttype": "none", "figure.facecolor": "white",
}


def curves(runs: Sequence[Run], path: Path, title: str) -> None:
    """Test loss and accuracy over rounds: mean over seeds, band of one standard deviation."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.9), layout="constrained")
        for axis, name in zip(axes, ("test_loss", runs[0].metric), strict=True):
            for method in dict.fromkeys(r.experiment.method for r in runs):
                line(axis, [r for r in runs if r.experiment.method == method], name)
            focus(axis, runs, name)
            axis.set_xlabel("round")
            axis.set_ylabel(name.replace("_", " ") + (" (%)" if "accuracy" in name else ""))
        if axes[1].get_legend_handles_labels()[0]:
            axes[1].legend(loc="lower right")
        figure.suptitle(title, fontsize=11)
        save(figure, path)


def save(figure: Any, path: Path) -> None:
    """The same bytes for the same runs."""
    metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None} if path.suffix == ".png" else None
    figure.savefig(path, dpi=150, metadata=metadata)
    plt.close(figure)


def values(runs: Sequence[Run], name: str) -> tuple[Any, Any]:
    """Rounds [K], and values [seeds, K] up to the shortest run."""
    each = [[(line["round"] + 1, line[name]) for line in r.rounds if line.get(name) is not None] for r in runs]
    length = min(len(e) for e in each)
    scale = 100 if "accuracy" in name else 1
    return np.array([k for k, _ in each[0][:length]]), scale * np.array([[v for _, v in e[:length]] for e in each])


def line(
    axis: Any, runs: Sequence[Run], name: str, look: tuple[str, str, str] | None = None, band: bool = True
) -> None:
    """The mean over seeds and its band, in the look of the runs' method unless told otherwise."""
    method = runs[0].experiment.method
    others = (method.removeprefix("own:"), OTHERS[sum(method.encode()) % len(OTHERS)], "-")
    label, colour, dash = look or LOOK.get(method, others)
    rounds, each = values(runs, name)
    if not each.size:
        return
    mean, std = each.mean(0), each.std(0, ddof=1) if len(each) > 1 else 0 * each[0]
    if method == "centralised":  # one number, drawn across the rounds as in the paper
        axis.axhline(mean[-1], color=colour, linestyle=dash, linewidth=1.5, label=label)
        return
    width, over = (2, 2.5) if method == "fedveca" else (1.5, {"-": 2, "--": 2.1, "-.": 2.2}[dash])
    axis.plot(rounds, mean, color=colour, linestyle=dash, linewidth=width, label=label, zorder=over)
    if band:
        axis.fill_between(rounds, mean - std, mean + std, color=colour, alpha=0.15, linewidth=0)


def focus(axis: Any, runs: Sequence[Run], name: str) -> None:
    """The first steep rounds may leave the picture: the end is what is compared."""
    each = [v for r in runs if len(v := values([r], name)[1][0]) > 5]
    if not each:
        return
    rest = np.concatenate([v[len(v) // 20 :] for v in each])
    low, high = np.nanpercentile(rest, [0, 98] if "loss" in name else [2, 100])
    pad = 0.06 * (high - low or 1)
    axis.set_ylim(low - pad, high + pad)
