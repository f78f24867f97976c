"""Figures for papers of single runs: local steps by client, all that FedVeca estimates, the partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from fedveca.errors import UserError, printable
from fedveca.runs.folder import Run
from fedveca.runs.overrides import check_runs
from fedveca.views import series
from fedveca.views.figures.curves import STYLE, curves, save
from fedveca.views.report.report import require_file

SUFFIXES = (".svg", ".pdf", ".png")
LABELS = 1000  # columns of discs
PANELS = {
    "tau": r"local steps $\tau_{(k,i)}$",
    "tau_k": r"mean local steps $\tau_k$",
    "premise": r"premise $\eta\,\tau_k L$",
    "beta": r"$\beta_{(k,i)}$",
    "delta": r"$\delta_{(k,i)}$ (log scale)",
    "A": r"$A_{(k,i)}$ (log scale)",
}


def draw(what: str, runs: Sequence[Run], path: Path) -> None:
    """Draws `what` into a file whose name says how; ValueError where it cannot be drawn."""
    path = Path(path)
    if what not in FIGURES:
        raise UserError(f"the figure {what} is not known; it is one of {', '.join(FIGURES)}")
    if path.suffix not in SUFFIXES:
        raise UserError(f"{path} is no figure's name; it ends in {', '.join(SUFFIXES)}")
    require_file(path)
    FIGURES[what](check_runs(runs), path)


def _curves(runs: Sequence[Run], path: Path) -> None:
    if len(series.sections(runs)) > 1:
        tasks = dict.fromkeys(f"{run.experiment.model} on {run.experiment.data}" for run in runs)
        raise UserError(f"one figure of curves shows one task; these runs are of {printable(', '.join(tasks), 400)}")
    if not series.metrics(runs):
        raise UserError("no round of these runs has a test value yet")
    curves(runs, path, "")


def _adaptive(runs: Sequence[Run], what: str) -> Run:
    found = next((run for run in runs if all(series.heat(run, name)["clients"] for name in ("A", "tau"))), None)
    if found is None:
        raise UserError(f"the figure {what} needs a run of FedVeca of two rounds or more; none is here")
    return found


def tau(runs: Sequence[Run], path: Path) -> None:
    """The first FedVeca run's local steps as a map of clients and rounds, its clients' label mix beside it."""
    run = _adaptive(runs, "tau")
    seen, mix = series.heat(run, "tau"), series.partition(run)
    height = min(7.0, 1.5 + 0.22 * len(seen["clients"]))
    with plt.rc_context(STYLE | {"axes.grid": False}):
        wide = [5, 1.4] if mix else [1]
        figure, axes = plt.subplots(
            1, len(wide), figsize=(8.5, height), layout="constrained", squeeze=False, width_ratios=wide
        )
        grid = np.array([[np.nan if v is None else v for v in row] for row in seen["z"]], dtype=float)
        edges = (seen["rounds"][0] - 0.5, seen["rounds"][-1] + 0.5)
        look: Any = {"aspect": "auto", "interpolation": "nearest"}
        shown = axes[0, 0].imshow(grid, cmap="cividis", extent=(*edges, len(grid) - 0.5, -0.5), **look)
        axes[0, 0].set_xlabel("round")
        axes[0, 0].set_ylabel("client")
        ticks = series.thin(len(grid), 12)
        axes[0, 0].set_yticks(ticks, [str(seen["clients"][i]) for i in ticks])
        figure.colorbar(shown, ax=axes[0, 0], label=r"$\tau_{(k,i)}$", pad=0.01)
        if mix:
            counts = np.array(mix["labels"], dtype=float)
            share = dict(zip(mix["clients"], counts / np.maximum(1, counts.sum(1, keepdims=True)), strict=True))
            known = np.array([share.get(i, np.full(counts.shape[1], np.nan)) for i in seen["clients"]])
            axes[0, 1].imshow(known, cmap="Blues", vmin=0, **look)
            axes[0, 1].set_yticks([])
            axes[0, 1].set_xlabel("label (darker: more)")
            axes[0, 1].set_xticks(series.thin(known.shape[1], 10))
        save(figure, path)


def instant(runs: Sequence[Run], path: Path) -> None:
    """Six quantities of the first FedVeca run, round by round: of each client where they are the clients' own."""
    run = _adaptive(runs, "instant")
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(2, 3, figsize=(11, 6), layout="constrained", sharex=True)
        for axis, (name, label) in zip(axes.flat, PANELS.items(), strict=True):
            if name in ("tau_k", "premise"):
                points = series.band([run], name)
                axis.plot(points["x"]["rounds"], points["mean"], color="black", linewidth=1.6)
                axis.set_ylim(bottom=0)
            else:
                seen = series.heat(run, name)
                few = len(seen["clients"]) <= len(series.COLOURS)
                for i, (client, row) in enumerate(zip(seen["clients"], seen["z"], strict=True)):
                    y = [np.nan if v is None else v for v in row]
                    colour = series.COLOURS[i % len(series.COLOURS)]
                    dots: Any = {"linestyle": "none", "marker": "o", "markersize": 2.5}
                    look = dots if name == "tau" else {"linewidth": 1 if few else 0.5}
                    axis.plot(seen["rounds"], y, color=colour, label=f"client {client}", **look)
            if name == "premise":
                axis.axhline(1, color="#444444", linestyle=":")
            if name in ("delta", "A") and any((v or 0) > 0 for row in seen["z"] for v in row):
                axis.set_yscale("log")
            axis.set_ylabel(label)
        for axis in axes[1]:
            axis.set_xlabel("round")
        if few:
            figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=7)
        save(figure, path)


def partition(runs: Sequence[Run], path: Path) -> None:
    """Rows of each label that each client owns, as discs."""
    found = next((part for run in runs if (part := series.partition(run)) and len(part["clients"]) > 1), None)
    if found is None:
        raise UserError("the figure partition needs a run folder with partition.json of several clients; none is here")
    counts = np.array(found["labels"], dtype=float)
    if counts.shape[1] > LABELS:
        raise UserError(f"the figure partition shows at most {LABELS} labels; partition.json has {counts.shape[1]}")
    with plt.rc_context(STYLE):
        high = min(9.0, 1.2 + 0.3 * len(counts))
        figure, axis = plt.subplots(figsize=(min(400.0, 1.5 + 0.5 * counts.shape[1]), high), layout="constrained")
        y, x = np.nonzero(counts)
        axis.scatter(x, y, s=260 * counts[y, x] / counts.max() * min(1.0, 20 / len(counts)), color="#0072B2")
        ticks = series.thin(len(counts), 20)
        axis.set_yticks(ticks, [f"{found['clients'][i]} ({found['sizes'][i]} rows)" for i in ticks])
        axis.set_xticks(series.thin(counts.shape[1], 10))
        axis.set_ylim(len(counts) - 0.5, -0.5)
        axis.set_xlim(-0.6, counts.shape[1] - 0.4)
        axis.set_xlabel("label")
        axis.set_ylabel("client")
        save(figure, path)


FIGURES: dict[str, Callable[[Sequence[Run], Path], None]] = {
    "curves": _curves,
    "tau": tau,
    "instant": instant,
    "partition": partition,
}
