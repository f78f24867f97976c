"""A figure for papers of how a test value is distributed over the clients, from run folders alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np

from fedveca.errors import UserError
from fedveca.runs.folder import Run
from fedveca.runs.schema import describe_quantity
from fedveca.views.clients import Distribution, Stage, compute_distribution, list_client_metrics
from fedveca.views.figures.curves import MOST_PANELS, name_axis
from fedveca.views.figures.style import INK, STYLE, escape_label, save_figure
from fedveca.views.series import Curve, group_curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ACROSS = 3  # panels side by side
STAGE_NAMES: dict[Stage, str] = {"clients": "", "tuned": " after local steps"}


def draw_clients(runs: Sequence[Run], path: Path) -> None:
    """One panel per method: the mean over clients, their middle half, and the worst and the best tenth."""
    names = list_client_metrics(runs)
    if not names:
        raise UserError(
            "the figure clients needs runs whose clients test the model (test_by=client or both); none is here"
        )
    panels = _list_panels(group_curves(runs), names[0])
    if len(panels) > MOST_PANELS:
        raise UserError(f"these runs give {len(panels)} panels of clients; one figure shows at most {MOST_PANELS}")
    pairs = bool(list_client_metrics(runs, "tuned"))  # the model as it is, and next to it after local steps
    across = min(2 if pairs else ACROSS, len(panels))
    down = -(-len(panels) // across)
    with plt.rc_context(STYLE):
        size = (max(5.0, 3.6 * across), 0.7 + 2.9 * down)
        figure, axes = plt.subplots(
            down, across, figsize=size, layout="constrained", squeeze=False, sharex=True, sharey=True
        )
        for axis, (label, curve, found) in zip(axes.flat, panels, strict=False):
            draw_distribution(axis, found, names[0], curve.colour)
            axis.set_title(escape_label(label))
        for axis in axes.flat[len(panels) :]:
            axis.set_visible(False)
        for axis in axes[:, 0]:
            axis.set_ylabel(name_axis(names[0]))
        for axis in (
            axes[down - 1 if at + across * (down - 1) < len(panels) else down - 2, at] for at in range(across)
        ):
            axis.set_xlabel("round")
            axis.tick_params(labelbottom=True)
        handles, texts = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, texts, loc="outside upper left", ncols=len(texts))
        seeds = max(len(curve.runs) for _, curve, _ in panels)
        spread = f", mean of {seeds} seeds" if seeds > 1 else ""
        title = f"{describe_quantity(names[0]).label} over the clients{spread}"
        listed = "; ".join(label for label, _, _ in panels)
        save_figure(figure, path, title, f"One panel each: {listed}.")


def _list_panels(curves: Sequence[Curve], name: str) -> list[tuple[str, Curve, Distribution]]:
    panels = []
    for curve in curves:
        for stage, what in STAGE_NAMES.items():
            found = compute_distribution(curve.runs, name, stage)
            if found["mean"]:
                panels.append((curve.label + what, curve, found))
    return panels


def draw_distribution(axis: Axes, found: Distribution, name: str, colour: str) -> None:
    """The mean over clients as a line, the middle half and the range between the tenths as bands."""
    scale = 100 if describe_quantity(name).unit == "share" else 1
    rounds = np.array(found["x"]["rounds"])
    mean, worst, low, high, best = (
        scale * np.array([np.nan if v is None else v for v in values], dtype=float)
        for values in (found["mean"], found["worst"], found["low"], found["high"], found["best"])
    )
    few = len(rounds) < 2
    if np.isfinite([worst, best]).all():
        axis.fill_between(rounds, worst, best, color=colour, alpha=0.15, linewidth=0, label="worst to best tenth")
    if np.isfinite([low, high]).all():
        axis.fill_between(rounds, low, high, color=colour, alpha=0.3, linewidth=0, label="middle half")
    axis.plot(rounds, mean, color=colour, linewidth=1.8, marker="o" if few else "", label="mean of clients")
    if np.isfinite(worst).all():
        axis.plot(rounds, worst, color=INK, linewidth=1, linestyle="--", marker="." if few else "", label="worst tenth")
