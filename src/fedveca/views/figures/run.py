"""Figures for papers of single runs: local steps by client, all that FedVeca estimates, the partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray

from fedveca.errors import UserError, printable
from fedveca.runs.folder import Run
from fedveca.runs.overrides import check_runs
from fedveca.views import series
from fedveca.views.figures.clients import draw_clients
from fedveca.views.figures.curves import draw_curves
from fedveca.views.figures.style import (
    CATEGORIES,
    INK,
    STYLE,
    escape_label,
    label_lines,
    require_figure_file,
    save_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LABELS = 1000  # columns of discs
PANELS = {  # what is drawn of a quantity, by its name in a round
    "tau": "local steps τ of each client",
    "tau_k": "mean local steps τₖ",
    "premise": "premise η τₖ L",
    "L": "smoothness L",
    "beta": "β of each client",
    "delta": "δ of each client, log scale",
    "A": "A of each client, log scale",
}
INSTANT = ("tau", "tau_k", "premise", "beta", "delta", "A")


class QuantityValues(NamedTuple):
    """A quantity over the rounds: one value per round, or [clients, rounds]."""

    rounds: Sequence[int]
    values: NDArray[np.float64]
    clients: Sequence[int] = ()


def draw_figure(what: str, runs: Sequence[Run], path: Path, against: str = "rounds") -> None:
    """Draws a figure by its name; UserError where it cannot be drawn.

    Args:
        what: A key of FIGURES.
        runs: The runs to draw.
        path: The file, whose ending says how: .svg, .pdf or .png.
        against: Of curves, what they are drawn against: a key of `series.list_axes`.
    """
    path = Path(path)
    if what not in FIGURES:
        raise UserError(f"the figure {what} is not known; it is one of {', '.join(FIGURES)}")
    require_figure_file(path)
    if against != "rounds":
        if what != "curves":
            raise UserError(f"the figure {what} is drawn against rounds, not {printable(against)}; only curves is")
        _draw_one_task(check_runs(runs), path, against)
        return
    FIGURES[what](check_runs(runs), path)


def _draw_one_task(runs: Sequence[Run], path: Path, against: str = "rounds") -> None:
    if len(series.group_sections(runs)) > 1:
        tasks = dict.fromkeys(f"{run.experiment.model} on {run.experiment.data}" for run in runs)
        raise UserError(f"one figure of curves shows one task; these runs are of {printable(', '.join(tasks), 400)}")
    if not series.list_metrics(runs):
        raise UserError("no round of these runs has a test value yet")
    draw_curves(runs, path, "", against)


def _find_adaptive(runs: Sequence[Run], what: str) -> Run:
    found = next(
        (run for run in runs if all(series.make_heat_map(run, name)["clients"] for name in ("A", "tau"))), None
    )
    if found is None:
        raise UserError(f"the figure {what} needs a run of FedVeca of two rounds or more; none is here")
    return found


def draw_tau(runs: Sequence[Run], path: Path) -> None:
    """The first FedVeca run's local steps as a map of clients and rounds, its clients' label mix next to it."""
    run = _find_adaptive(runs, "tau")
    heat, mix = series.make_heat_map(run, "tau"), series.read_partition(run)
    height = min(7.0, 1.5 + 0.22 * len(heat["clients"]))
    with plt.rc_context(STYLE | {"axes.grid": False}):
        wide = [5, 1.4] if mix else [1]
        figure, axes = plt.subplots(
            1, len(wide), figsize=(8.5, height), layout="constrained", squeeze=False, width_ratios=wide
        )
        grid = np.array([[np.nan if v is None else v for v in row] for row in heat["z"]], dtype=float)
        edges = (heat["rounds"][0] - 0.5, heat["rounds"][-1] + 0.5)
        look: Any = {"aspect": "auto", "interpolation": "nearest"}
        image = axes[0, 0].imshow(grid, cmap="cividis", extent=(*edges, len(grid) - 0.5, -0.5), **look)
        axes[0, 0].set_xlabel("round")
        axes[0, 0].set_ylabel("client")
        ticks = series.pick_evenly(len(grid), 12)
        axes[0, 0].set_yticks(ticks, [str(heat["clients"][i]) for i in ticks])
        figure.colorbar(image, ax=axes[0, 0], label="local steps τ", pad=0.01)
        if mix:
            counts = np.array(mix["labels"], dtype=float)
            share = dict(zip(mix["clients"], counts / np.maximum(1, counts.sum(1, keepdims=True)), strict=True))
            known = np.array([share.get(i, np.full(counts.shape[1], np.nan)) for i in heat["clients"]])
            axes[0, 1].imshow(known, cmap="Blues", vmin=0, **look)
            axes[0, 1].set_yticks([])
            axes[0, 1].set_xlabel("label (darker: more)")
            axes[0, 1].set_xticks(series.pick_evenly(known.shape[1], 10))
        title = f"{find_title(run)}: local steps of each client over the rounds"
        figure.suptitle(escape_label(title))
        save_figure(figure, path, title, "Rows are clients, columns are rounds.")


def draw_instant(runs: Sequence[Run], path: Path) -> None:
    """Six quantities of the first FedVeca run, round by round: of each client where they are the clients' own."""
    run = _find_adaptive(runs, "instant")
    found: dict[str, QuantityValues] = {}
    for name in INSTANT:
        if name in ("tau_k", "premise"):
            points = series.compute_band([run], name)
            rounds = [round(k) for k in points["x"]["rounds"]]
            found[name] = QuantityValues(rounds, np.array(points["mean"], dtype=float))
        else:
            heat = series.make_heat_map(run, name)
            z = np.array([[np.nan if v is None else v for v in row] for row in heat["z"]], dtype=float)
            found[name] = QuantityValues(heat["rounds"], z, heat["clients"])
    draw_quantities(found, path, f"{find_title(run)}: what is estimated in each round")


def find_title(run: Run) -> str:
    """The method of a run and its task, in a few words."""
    e = run.experiment
    return f"{series.find_look(e.method)[0]}, {e.model} on {e.data}, seed {e.seed}"


def draw_quantities(found: Mapping[str, QuantityValues], path: Path, title: str, note: str = "") -> None:
    """Six panels: local steps as a map, the server's numbers as a line, the clients' numbers as a line each.

    Args:
        found: What is drawn, by a name of PANELS; clients are counted from 0, as everywhere.
        path: The file.
        title: What it is of.
        note: What a reader has to know of it.
    """
    everyone = sorted({client for quantity in found.values() for client in quantity.clients})
    few = len(everyone) <= len(CATEGORIES)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(2, 3, figsize=(11, 5.8), layout="constrained")
        named = []
        for axis, (name, quantity) in zip(axes.flat, found.items(), strict=True):
            axis.set_title(PANELS[name])
            axis.set_xlabel("round")
            if not quantity.clients:
                axis.plot(quantity.rounds, quantity.values, color=INK, linewidth=1.5)
                if name == "premise":
                    axis.axhline(1, color=INK, linestyle=":", linewidth=1.2, label="bound")
                    named.append(axis)
                axis.set_ylim(bottom=0)
            elif name == "tau":
                _draw_map(axis, quantity)
            else:
                for client, row in zip(quantity.clients, quantity.values, strict=True):
                    colour = CATEGORIES[everyone.index(client) % len(CATEGORIES)]
                    label = f"client {client}" if few else ""
                    axis.plot(quantity.rounds, row, color=colour, linewidth=1.1 if few else 0.5, label=label)
                if name != "beta" and (quantity.values > 0).any():
                    axis.set_yscale("log")
                named += [axis] * few
        figure.suptitle(escape_label(f"{title} ({note})" if note else title))
        if named:
            label_lines(*named)
        shown = "; ".join(PANELS[name] for name in found)
        save_figure(figure, path, title, f"Six panels over the rounds: {shown}. {note}")


def _draw_map(axis: Axes, quantity: QuantityValues) -> None:
    """A row per client, a column per round."""
    edges = (quantity.rounds[0] - 0.5, quantity.rounds[-1] + 0.5, len(quantity.clients) - 0.5, -0.5)
    image = axis.imshow(quantity.values, cmap="cividis", aspect="auto", interpolation="nearest", extent=edges)
    axis.grid(False)
    ticks = series.pick_evenly(len(quantity.clients), 10)
    axis.set_yticks(ticks, [str(quantity.clients[i]) for i in ticks])
    axis.set_ylabel("client")
    plt.colorbar(image, cax=axis.inset_axes((1.02, 0, 0.04, 1)), label="local steps")


def draw_partition(runs: Sequence[Run], path: Path) -> None:
    """Rows of each label that each client owns, as discs."""
    found = next((part for run in runs if (part := series.read_partition(run)) and len(part["clients"]) > 1), None)
    if found is None:
        raise UserError("the figure partition needs a run folder with partition.json of several clients; none is here")
    counts = np.array(found["labels"], dtype=float)
    if counts.shape[1] > MOST_LABELS:
        raise UserError(
            f"the figure partition shows at most {MOST_LABELS} labels; partition.json has {counts.shape[1]}"
        )
    with plt.rc_context(STYLE):
        high = min(9.0, 1.2 + 0.3 * len(counts))
        figure, axis = plt.subplots(figsize=(min(400.0, 1.5 + 0.5 * counts.shape[1]), high), layout="constrained")
        y, x = np.nonzero(counts)
        axis.scatter(x, y, s=260 * counts[y, x] / counts.max() * min(1.0, 20 / len(counts)), color=CATEGORIES[0])
        ticks = series.pick_evenly(len(counts), 20)
        axis.set_yticks(ticks, [f"{found['clients'][i]} ({found['sizes'][i]} rows)" for i in ticks])
        axis.set_xticks(series.pick_evenly(counts.shape[1], 10))
        axis.set_ylim(len(counts) - 0.5, -0.5)
        axis.set_xlim(-0.6, counts.shape[1] - 0.4)
        axis.set_xlabel("label")
        axis.set_ylabel("client")
        axis.set_title("rows of each label on each client; a larger disc: more rows")
        save_figure(figure, path, "How the rows of each label are distributed over the clients")


FIGURES: dict[str, Callable[[Sequence[Run], Path], None]] = {
    "curves": _draw_one_task,
    "tau": draw_tau,
    "instant": draw_instant,
    "partition": draw_partition,
    "clients": draw_clients,
}
