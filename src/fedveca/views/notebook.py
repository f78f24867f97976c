"""A run in a notebook: a table and small curves that need no script, and its rounds as a pandas frame."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fedveca.runs.folder import Run
from fedveca.views.report.words import called, shown
from fedveca.views.series import band, closing, look, metrics

WIDTH, HEIGHT, LEFT, BOTTOM = 300, 150, 46, 24
CELL = 'style="text-align:left;padding:2px 12px 2px 0"'


def render_run(run: Run) -> str:
    """What a notebook shows of a run."""
    e, names, why = run.experiment, list[str](), ""
    try:
        names = metrics([run])
    except ValueError as error:
        why = f"; {error}"
    title = f"{look(e.method)[0]}: {e.model} on {e.data}, {e.partition}, {e.clients} clients"
    done = f"{len(run.rounds)} of {e.rounds} rounds"
    reason = run.summary.get("stopped")
    stopped = f", stopped: {reason}" if isinstance(reason, str) else ""
    test = [name for name in names if name.startswith("test_")]
    heads = "".join(f"<th {CELL}>{escape(called(name))}</th>" for name in ("model", "of round", *test))
    rows = []
    for which, values in closing(run).items():
        cells = (str(values.get("round", "-")), *(shown(name, values.get(name)) for name in test))
        rows.append(f"<tr><td {CELL}>{which}</td>{''.join(f'<td {CELL}>{escape(c)}</td>' for c in cells)}</tr>")
    curves = "".join(_curve(run, name) for name in test[:3])
    where = f'<div style="opacity:.7">{escape(str(run.folder))}</div>' if run.folder else ""
    made = (
        f'<div style="font-family:system-ui,sans-serif"><b>{escape(title)}</b>'
        f'<div style="opacity:.7">{escape(done + stopped)}, seed {e.seed}{escape(why)}</div>'
        f"<table><tr>{heads}</tr>{''.join(rows)}</table>{curves}{where}</div>"
    )
    return made.encode("utf-8", "backslashreplace").decode()  # JSON and file names may hold half a surrogate pair


def _curve(run: Run, name: str) -> str:
    """One name over the rounds as a small picture."""
    points = band([run], name, 300)
    x, y = points["x"]["rounds"], points["mean"]
    if len(x) < 2:
        return ""
    low, high = min(y), max(y)
    wide, tall = WIDTH - LEFT - 8, HEIGHT - BOTTOM - 10
    at = [
        f"{LEFT + wide * (k - x[0]) / (x[-1] - x[0]):.1f},{10 + tall * (high - v) / ((high - low) or 1):.1f}"
        for k, v in zip(x, y, strict=True)
    ]
    said = f"{called(name)} over rounds, from {shown(name, y[0])} to {shown(name, y[-1])}"
    return (
        f'<svg role="img" aria-label="{escape(said)}" width="{WIDTH}" height="{HEIGHT}" style="margin:6px 12px 6px 0">'
        f'<g fill="none" stroke="currentColor" stroke-opacity=".3"><path d="M{LEFT},10V{10 + tall}H{WIDTH - 8}"/></g>'
        f'<polyline points="{" ".join(at)}" fill="none" stroke="#D55E00" stroke-width="1.8"/>'
        + _words(
            [
                (LEFT - 4, 14, "end", _tick(name, high)),
                (LEFT - 4, 10 + tall, "end", _tick(name, low)),
                (LEFT, HEIGHT - 8, "start", f"{x[0]:.0f}"),
                (WIDTH - 8, HEIGHT - 8, "end", f"round {x[-1]:.0f}"),
                (LEFT + wide / 2, HEIGHT - 8, "middle", called(name)),
            ]
        )
        + "</svg>"
    )


def _words(words: Sequence[tuple[float, float, str, str]]) -> str:
    return "".join(
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="11" fill="currentColor">{escape(text)}</text>'
        for x, y, anchor, text in words
    )


def _tick(name: str, value: float) -> str:
    return f"{100 * value:.0f} %" if "accuracy" in name else f"{value:.3g}"
