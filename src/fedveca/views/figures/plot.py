"""One run as a figure that a notebook shows."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from fedveca.errors import UserError
from fedveca.runs.experiment import describe_task
from fedveca.runs.folder import Run
from fedveca.runs.output_file import write_file
from fedveca.views.clients import compute_distribution, list_client_metrics
from fedveca.views.figures.clients import draw_distribution
from fedveca.views.figures.curves import draw_line, name_axis
from fedveca.views.figures.style import DATED, STYLE, escape_label, require_figure_file
from fedveca.views.series import find_look, list_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_VALUES = 4  # test values of one figure


class RunFigure(Figure):
    """A figure that shows itself in a notebook, whatever its backend is."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png", dpi=110)
        return content.getvalue()


def plot_run(run: Run, path: Path | str | None = None) -> RunFigure:
    """Draws the test values, the clients' where they are recorded, and the local steps; see `Run.plot`."""
    from matplotlib import rc_context

    names = [name for name in list_metrics([run]) if name.startswith("test_")][:MOST_VALUES]
    if not run.rounds:
        raise UserError("the run has no round yet, so there is nothing to draw")
    file = None if path is None else Path(path)
    if file:
        require_figure_file(file)
    with rc_context(STYLE):
        clients = list_client_metrics([run])[:1]
        panels = len(names) + len(clients) + 1
        figure = RunFigure(figsize=(3.6 * panels, 3.2), layout="constrained")
        axes = figure.subplots(1, panels, squeeze=False)[0]
        for axis, name in zip(axes, names, strict=False):
            draw_line(axis, [run], name, band=False)
            axis.set_ylabel(name_axis(name))
        for name in clients:
            draw_distribution(axes[-2], compute_distribution([run], name), name, find_look(run.experiment.method)[1])
            axes[-2].set_ylabel(f"clients' {name_axis(name)}")
            axes[-2].legend(fontsize=8)
        _draw_steps(axes[-1], run)
        for axis in axes:
            axis.set_xlabel("round")
        figure.suptitle(escape_label(describe_task(run.experiment)), fontsize=11)
        if file:
            content = io.BytesIO()
            figure.savefig(content, format=file.suffix[1:], dpi=150, metadata={DATED[file.suffix]: None})
            write_file(file, content.getvalue())
    return figure


def _draw_steps(axis: Axes, run: Run) -> None:
    """The mean local steps, and a band from the fewest to the most."""
    asked = [record for record in run.rounds if record["tau"]]
    rounds = [record["round"] + 1 for record in asked]
    colour = find_look(run.experiment.method)[1]
    axis.fill_between(
        rounds,
        [min(record["tau"]) for record in asked],
        [max(record["tau"]) for record in asked],
        color=colour,
        alpha=0.15,
        linewidth=0,
    )
    axis.plot(rounds, [np.mean(record["tau"]) for record in asked], color=colour, linewidth=1.6)
    axis.set_ylim(bottom=0)
    axis.set_ylabel(r"local steps $\tau$ (mean, range)")
