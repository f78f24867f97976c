"""A run in a notebook: a table and small curves that need no script."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment

from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.observers import Observer
from fedveca.runs.schema import Round, describe_quantity, is_number
from fedveca.runs.value_text import format_value, short_label
from fedveca.views.clients import STAGES, STATISTIC_LABELS, list_client_metrics, name_statistic
from fedveca.views.comparison_text import name_quantity
from fedveca.views.series import compute_band, find_look, get_closing_values, list_metrics
from fedveca.views.terminal.lines import Pace, describe_end, describe_round, describe_start, find_device

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 300, 150, 46, 8, 10, 24
TEMPLATE = """
{%- set cell = "text-align:left;padding:2px 12px 2px 0" -%}
<div style="font-family:system-ui,sans-serif"><b>{{ title }}</b>
<div style="opacity:.7">{{ state }}</div>
{% for heads, rows in tables %}
<table><tr>{% for name in heads %}<th style="{{ cell }}">{{ name }}</th>{% endfor %}</tr>
{% for row in rows %}<tr>{% for text in row %}<td style="{{ cell }}">{{ text }}</td>{% endfor %}</tr>
{% endfor %}</table>
{% endfor %}
{% for curve in curves %}
<svg role="img" aria-label="{{ curve.about }}" width="{{ width }}" height="{{ height }}" style="margin:6px 12px 6px 0">
<g fill="none" stroke="currentColor" stroke-opacity=".3"><path d="{{ frame }}"/></g>
<polyline points="{{ curve.points }}" fill="none" stroke="#D55E00" stroke-width="1.8"/>
{% for x, y, anchor, text in curve.labels -%}
<text x="{{ x }}" y="{{ y }}" text-anchor="{{ anchor }}" font-size="11" fill="currentColor">{{ text }}</text>
{%- endfor %}
</svg>
{% endfor %}
{% if folder %}<div style="opacity:.7"><a href="{{ link }}">{{ folder }}</a></div>{% endif %}
</div>
"""


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell" or "google.colab" in type(shell).__module__


class NotebookProgress(Observer):
    """One line below the cell, replaced after each round; it needs no widgets."""

    def start(self, experiment: Experiment, folder: Path | None) -> None:
        from IPython.display import display

        self._experiment, self._pace = experiment, Pace()
        text = ", ".join(describe_start(experiment, find_device(folder), folder=folder))
        self._handle = display({"text/plain": text}, raw=True, display_id=True)  # type: ignore[no-untyped-call]

    def round(self, record: Round) -> None:
        self._pace.add()
        left = self._pace.left(self._experiment.rounds - record["round"] - 1)
        self._handle.update({"text/plain": describe_round(self._experiment, record, left)}, raw=True)

    def end(self, run: Run) -> None:
        if run.summary:
            self._handle.update({"text/plain": describe_end(run)}, raw=True)


class SmallCurve(NamedTuple):
    about: str
    points: str
    labels: list[tuple[int, int, str, str]]


def render_run(run: Run) -> str:
    """What a notebook shows of a run, as HTML."""
    e, names, why = run.experiment, list[str](), ""
    try:
        names = [name for name in list_metrics([run]) if name.startswith("test_")]
    except ValueError as error:
        why = f"; {error}"
    stopped = f", stopped: {run.summary['stopped']}" if run.diverged else ""
    closing = [(str(which), values) for which, values in get_closing_values(run).items()]
    if closing[0][1] == closing[-1][1]:
        closing = [("kept = last", closing[0][1])]
    rows = [
        (which, str(values.get("round", "-")), *(format_value(name, values.get(name)) for name in names))
        for which, values in closing
    ]
    worst = {name_statistic(n, "_worst"): f"{short_label(n)}, worst 10 %" for n in list_client_metrics([run])[:1]}
    html = (
        Environment(autoescape=True)
        .from_string(TEMPLATE)
        .render(
            title=f"{find_look(e.method)[0]}: {e.model} on {e.data}, {e.partition}, {e.clients} clients",
            state=f"{len(run.rounds)} of {e.rounds} rounds{stopped}, seed {e.seed}{_describe_steps(run)}{why}",
            tables=[(["model", "of round", *map(name_quantity, names)], rows), *_make_client_tables(run, closing)],
            curves=list(
                filter(None, (_make_curve(run, name, worst.get(name, "")) for name in (*names[:3], *worst, "tau_k")))
            ),
            width=WIDTH,
            height=HEIGHT,
            frame=f"M{LEFT},{TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}",
            folder=run.folder and str(run.folder),
            link=run.folder and run.folder.absolute().as_uri(),
        )
    )
    return html.encode("utf-8", "backslashreplace").decode()  # JSON and file names may hold half a surrogate pair


def _make_client_tables(
    run: Run, closing: list[tuple[str, Mapping[str, object]]]
) -> list[tuple[list[str], list[tuple[str, ...]]]]:
    """The main metric's aggregates over clients, one line per model; no table where clients test nothing."""
    tables = []
    for name in list_client_metrics([run])[:1]:
        rows = []
        for stage in STAGES:
            for which, values in closing:
                each = [values.get(name_statistic(name, statistic, stage)) for statistic in STATISTIC_LABELS]
                if any(map(is_number, each)):
                    label = f"{which}, tuned" if stage == "tuned" else which
                    rows.append((label, *(format_value(name, value) for value in each)))
        tables.append(([f"{name_quantity(name)} of clients", *STATISTIC_LABELS.values()], rows))
    return tables


def _describe_steps(run: Run) -> str:
    """How many local steps the clients took per round, from the fewest to the most."""
    tau = [steps for record in run.rounds for steps in record.get("tau", [])]
    if not tau:
        return ""
    return f", τ = {tau[0]}" if min(tau) == max(tau) else f", τ from {min(tau)} to {max(tau)}"


def _make_curve(run: Run, name: str, label: str = "") -> SmallCurve | None:
    """One quantity over the rounds, below it its label or another; None for fewer than two points."""
    band = compute_band([run], name, 300)
    x, y = band["x"]["rounds"], band["mean"]
    if len(x) < 2:
        return None
    low, high = min(y), max(y)
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - BOTTOM - TOP
    points = (
        f"{LEFT + wide * (k - x[0]) / (x[-1] - x[0]):.1f},{TOP + tall * (high - v) / ((high - low) or 1):.1f}"
        for k, v in zip(x, y, strict=True)
    )
    below = HEIGHT - 8
    return SmallCurve(
        f"{describe_quantity(name).label} over rounds, from {format_value(name, y[0])} to {format_value(name, y[-1])}",
        " ".join(points),
        [
            (LEFT - 4, TOP + 4, "end", _format_tick(name, high)),
            (LEFT - 4, TOP + tall, "end", _format_tick(name, low)),
            (LEFT, below, "start", f"{x[0]:.0f}"),
            (WIDTH - RIGHT, below, "end", f"round {x[-1]:.0f}"),
            (LEFT + wide // 2, below, "middle", label or name_quantity(name)),
        ],
    )


def _format_tick(name: str, value: float) -> str:
    return f"{100 * value:.0f} %" if describe_quantity(name).unit == "share" else f"{value:.3g}"
