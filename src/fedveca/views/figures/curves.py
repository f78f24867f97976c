"""Figures for papers, from run folders alone."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from fedveca.algorithms.registry import is_pooled
from fedveca.errors import UserError, printable
from fedveca.runs.files import write_atomic
from fedveca.runs.folder import Run
from fedveca.runs.overrides import check_runs
from fedveca.views import series
from fedveca.views.report.report import require_file, writing_file

matplotlib.use("Agg")
import matplotlib.pyplot as plt

STYLE: Any = {
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
DATED = {".svg": "Date", ".pdf": "CreationDate", ".png": "Software"}
PANELS = 12  # of one figure


def escape_label(text: str) -> str:
    """A text from a folder as it stands: on one line, not a formula, not without end."""
    return printable(text, 200).replace("$", r"\$")


def curves(runs: Sequence[Run], path: Path, title: str) -> None:
    """What was tested over rounds: mean over seeds, band of one standard deviation."""
    runs = check_runs(runs)
    names = [name for name in series.metrics(runs) if name.startswith("test_")] or ["test_loss", "test_accuracy"]
    if len(names) > PANELS:
        raise UserError(f"these runs have {len(names)} names of test values; one figure shows at most {PANELS}")
    with plt.rc_context(STYLE):
        wide = 4.75 * len(names)
        figure, axes = plt.subplots(1, len(names), figsize=(wide, 3.9), layout="constrained", squeeze=False)
        for axis, name in zip(axes[0], names, strict=True):
            for curve in series.curves(runs):
                line(axis, curve.runs, name, (escape_label(curve.label), curve.colour, curve.dash))
            focus(axis, runs, name)
            axis.set_xlabel("round")
            axis.set_ylabel(escape_label(name.replace("_", " ")) + (" (%)" if "accuracy" in name else ""))
        if axes[0, -1].get_legend_handles_labels()[0]:
            axes[0, -1].legend(loc="lower right" if series.rises(names[-1]) else "upper right")
        figure.suptitle(escape_label(title), fontsize=11)
        save(figure, path)


def save(figure: Any, path: Path) -> None:
    """The same bytes for the same runs, whole or not at all."""
    path = Path(path)
    require_file(path)
    if path.suffix not in DATED:
        plt.close(figure)
        raise UserError(f"{path} is no figure's name; it ends in {', '.join(DATED)}")
    dated, content = DATED[path.suffix], io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font|constrained_layout not applied")  # of odd names
        figure.savefig(content, format=path.suffix[1:], dpi=150, metadata={dated: None})
    plt.close(figure)
    with writing_file(path):
        write_atomic(path, content.getvalue())


def values(runs: Sequence[Run], name: str) -> tuple[Any, Any]:
    """Rounds [K], and values [seeds, K] up to the shortest run."""
    each = [
        [(line["round"] + 1, float(v)) for line in r.rounds if (v := series.number(line.get(name))) is not None]
        for r in runs
    ]
    length = min(len(e) for e in each)
    scale = 100 if "accuracy" in name else 1
    return np.array([k for k, _ in each[0][:length]]), scale * np.array([[v for _, v in e[:length]] for e in each])


def line(
    axis: Any, runs: Sequence[Run], name: str, look: tuple[str, str, str] | None = None, band: bool = True
) -> None:
    """The mean over seeds and its band, in the look of the runs' method unless told otherwise."""
    method = runs[0].experiment.method
    label, colour, dash = look or series.look(method)
    rounds, each = values(runs, name)
    if not each.size:
        return
    mean, std = each.mean(0), each.std(0, ddof=1) if len(each) > 1 else 0 * each[0]
    if is_pooled(method):  # one number, drawn across the rounds as in the paper
        axis.axhline(mean[-1], color=colour, linestyle=dash, linewidth=1.5, label=label)
        return
    width, over = (2, 2.5) if method == "fedveca" else (1.5, {"-": 2, "--": 2.1, "-.": 2.2, ":": 2.3}[dash])
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
    pad = max(0.06 * (high - low or 1), 1e-9 * abs(high))
    axis.set_ylim(low - pad, high + pad)
