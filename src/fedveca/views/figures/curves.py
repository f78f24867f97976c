"""Figures for papers, from run folders alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray

from fedveca.algorithms.registry import is_pooled
from fedveca.errors import UserError, printable
from fedveca.runs.folder import Run
from fedveca.runs.overrides import check_runs
from fedveca.runs.schema import Direction, describe_quantity, get_number
from fedveca.views.figures.style import (
    STYLE,
    draw_band,
    escape_label,
    find_linestyle,
    label_lines,
    save_figure,
)
from fedveca.views.series import Curve, find_direction, find_look, group_curves, list_axes, list_metrics, sum_costs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_PANELS = 12  # of one figure
MOST_NAMES, MOST_LETTERS = 10, 30  # of lines that are named at their ends; a legend names more and longer ones
SeedRounds = NDArray[np.float64]


def draw_curves(runs: Sequence[Run], path: Path, title: str, against: str = "rounds") -> None:
    """What was tested over rounds, or another axis of `list_axes`: mean over seeds, band of one standard deviation."""
    runs = check_runs(runs)
    labels = list_axes(runs)
    if against not in labels:
        raise UserError(f"these runs have no {printable(against)} to draw against; they have {', '.join(labels)}")
    names = [name for name in list_metrics(runs) if name.startswith("test_")] or ["test_loss", "test_accuracy"]
    if len(names) > MOST_PANELS:
        raise UserError(f"these runs have {len(names)} names of test values; one figure shows at most {MOST_PANELS}")
    curves = group_curves(runs)
    seeds = max(len(curve.runs) for curve in curves)
    with plt.rc_context(STYLE):
        wide = 5.2 * len(names)
        figure, axes = plt.subplots(1, len(names), figsize=(wide, 3.9), layout="constrained", squeeze=False)
        for axis, name in zip(axes[0], names, strict=True):
            for curve in curves:
                look = (escape_label(curve.label), curve.colour, curve.dash)
                draw_line(axis, curve.runs, name, look, against=against)
            focus_axis(axis, runs, name)
            axis.set_xlabel(labels[against])
            axis.set_ylabel(name_axis(name))
        spread = f"mean of {seeds} seeds, band of one standard deviation" if seeds > 1 else ""
        shown = ", ".join(name.replace("_", " ") for name in names)
        if title or spread:
            figure.suptitle(escape_label(title or spread))
        _name_lines(axes[0], curves)
        listed = "; ".join(curve.label for curve in curves)
        over = f"{shown} over {'rounds' if against == 'rounds' else labels[against]}"
        about = ", ".join(filter(None, (over, spread)))
        save_figure(figure, path, title or over, f"{about}. Lines: {listed}.")


def name_axis(name: str) -> str:
    """What stands next to an axis of a test value: its name, and per cent where it is a share."""
    unit = " (%)" if describe_quantity(name).unit == "share" else ""
    return escape_label(name.replace("_", " ")) + unit


def _name_lines(axes: Sequence[Axes], curves: Sequence[Curve]) -> None:
    """Names at the lines' ends where they fit, else one legend."""
    if len(curves) <= MOST_NAMES and max(len(curve.label) for curve in curves) <= MOST_LETTERS:
        label_lines(*axes)
    elif axes[-1].get_legend_handles_labels()[0]:
        axes[-1].legend(loc="upper left", bbox_to_anchor=(1, 1))


def collect_values(runs: Sequence[Run], name: str) -> tuple[SeedRounds, SeedRounds]:
    """Rounds [K], and values [seeds, K] up to the shortest run; shares in per cent."""
    each = [
        [(record["round"] + 1, v) for record in run.rounds if (v := get_number(record, name)) is not None]
        for run in runs
    ]
    length = min(map(len, each))
    scale = 100 if describe_quantity(name).unit == "share" else 1
    values = np.array([[v for _, v in points[:length]] for points in each], dtype=float)
    return np.array([k for k, _ in each[0][:length]], dtype=float), scale * values


def draw_line(
    axis: Axes,
    runs: Sequence[Run],
    name: str,
    look: tuple[str, str, str] | None = None,
    band: bool = True,
    against: str = "rounds",
) -> None:
    """The mean over seeds and its band, in the look (label, colour, dash) of the runs' method unless one is given."""
    method = runs[0].experiment.method
    label, colour, dash = look or find_look(method)
    rounds, each = collect_values(runs, name)
    if not each.size:
        return
    mean, std = each.mean(0), each.std(0, ddof=1) if len(each) > 1 else 0 * each[0]
    if is_pooled(method):  # one number, drawn across the rounds as in the paper
        axis.axhline(mean[-1], color=colour, linestyle=find_linestyle(dash), linewidth=1.5, label=label)
        return
    if against != "rounds":
        costs = np.array([[sum_costs(run)[against][int(k) - 1] for k in rounds] for run in runs], dtype=float)
        rounds = costs.mean(0)
    draw_band(axis, rounds, mean, std if band else None, (label, colour, dash), 2 if method == "fedveca" else 1.6)


def focus_axis(axis: Axes, runs: Sequence[Run], name: str) -> None:
    """The first steep rounds may be outside of the picture: the end is what is compared."""
    each = [v for run in runs if len(v := collect_values([run], name)[1][0]) > 5]
    if not each:
        return
    focus_values(axis, [v[len(v) // 20 :] for v in each], find_direction(runs, name))


def focus_values(axis: Axes, values: Sequence[NDArray[np.float64]], better: Direction | None) -> None:
    """Limits that leave out the worst 2 % of these values."""
    rest = np.concatenate(values)
    low, high = np.nanpercentile(rest, [2 if better == "higher" else 0, 98 if better == "lower" else 100])
    pad = max(0.06 * (high - low or 1), 1e-9 * abs(high))
    axis.set_ylim(low - pad, high + pad)
