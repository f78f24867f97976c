"""Figures for papers, from run folders alone."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from numpy.typing import NDArray

from fedveca.algorithms.registry import DASHES, is_pooled
from fedveca.errors import UserError, printable
from fedveca.runs.folder import Run
from fedveca.runs.overrides import check_runs
from fedveca.runs.schema import describe_quantity, get_number
from fedveca.views.paths import require_file, write_file
from fedveca.views.series import find_direction, find_look, group_curves, list_metrics

matplotlib.use("Agg")
import matplotlib.pyplot as plt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE: Any = {  # matplotlib types its keys one by one, and only in some versions
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e5e5",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.hashsalt": "fedveca",
    "svg.fonttype": "none",
    "figure.facecolor": "white",
}
DATED = {".svg": "Date", ".pdf": "CreationDate", ".png": "Software"}  # what would make two files differ
MOST_PANELS = 12  # of one figure
SeedRounds = NDArray[np.float64]


def escape_label(text: str) -> str:
    """A text from a folder for a figure: on one line, not a formula, and bounded."""
    return printable(text, 200).replace("$", r"\$")


def draw_curves(runs: Sequence[Run], path: Path, title: str) -> None:
    """What was tested over rounds: mean over seeds, band of one standard deviation."""
    runs = check_runs(runs)
    names = [name for name in list_metrics(runs) if name.startswith("test_")] or ["test_loss", "test_accuracy"]
    if len(names) > MOST_PANELS:
        raise UserError(f"these runs have {len(names)} names of test values; one figure shows at most {MOST_PANELS}")
    with plt.rc_context(STYLE):
        wide = 4.75 * len(names)
        figure, axes = plt.subplots(1, len(names), figsize=(wide, 3.9), layout="constrained", squeeze=False)
        for axis, name in zip(axes[0], names, strict=True):
            for curve in group_curves(runs):
                draw_line(axis, curve.runs, name, (escape_label(curve.label), curve.colour, curve.dash))
            focus_axis(axis, runs, name)
            axis.set_xlabel("round")
            unit = " (%)" if describe_quantity(name).unit == "share" else ""
            axis.set_ylabel(escape_label(name.replace("_", " ")) + unit)
        if axes[0, -1].get_legend_handles_labels()[0]:
            rising = find_direction(runs, names[-1]) == "higher"
            axes[0, -1].legend(loc="lower right" if rising else "upper right")
        figure.suptitle(escape_label(title), fontsize=11)
        save_figure(figure, path)


def require_figure_file(path: Path) -> None:
    """UserError where a figure cannot be written into this file."""
    require_file(path)
    if path.suffix not in DATED:
        raise UserError(f"{path} is not the name of a figure; it ends in {', '.join(DATED)}")


def save_figure(figure: Figure, path: Path) -> None:
    """Writes the same bytes for the same runs, whole or not at all, and closes the figure."""
    path, content = Path(path), io.BytesIO()
    try:
        require_figure_file(path)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from font|constrained_layout not applied")  # odd names
            figure.savefig(content, format=path.suffix[1:], dpi=150, metadata={DATED[path.suffix]: None})
    finally:
        plt.close(figure)
    write_file(path, content.getvalue())


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
    axis: Axes, runs: Sequence[Run], name: str, look: tuple[str, str, str] | None = None, band: bool = True
) -> None:
    """The mean over seeds and its band, in the look (label, colour, dash) of the runs' method unless one is given."""
    method = runs[0].experiment.method
    label, colour, dash = look or find_look(method)
    style: Any = (0, DASHES[dash]) if DASHES[dash] else "-"
    rounds, each = collect_values(runs, name)
    if not each.size:
        return
    mean, std = each.mean(0), each.std(0, ddof=1) if len(each) > 1 else 0 * each[0]
    if is_pooled(method):  # one number, drawn across the rounds as in the paper
        axis.axhline(mean[-1], color=colour, linestyle=style, linewidth=1.5, label=label)
        return
    width, order = (2, 2.5) if method == "fedveca" else (1.5, 2 + 0.1 * bool(DASHES[dash]))
    axis.plot(rounds, mean, color=colour, linestyle=style, linewidth=width, label=label, zorder=order)
    if band:
        axis.fill_between(rounds, mean - std, mean + std, color=colour, alpha=0.15, linewidth=0)


def focus_axis(axis: Axes, runs: Sequence[Run], name: str) -> None:
    """The first steep rounds may be outside of the picture: the end is what is compared."""
    each = [v for run in runs if len(v := collect_values([run], name)[1][0]) > 5]
    if not each:
        return
    rest = np.concatenate([v[len(v) // 20 :] for v in each])
    better = find_direction(runs, name)
    low, high = np.nanpercentile(rest, [2 if better == "higher" else 0, 98 if better == "lower" else 100])
    pad = max(0.06 * (high - low or 1), 1e-9 * abs(high))
    axis.set_ylim(low - pad, high + pad)
