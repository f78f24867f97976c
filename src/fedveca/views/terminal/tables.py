"""The tables that a terminal shows, as Rich wants them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from rich.table import Table
from rich.text import Text
from torch import Tensor

from fedveca.algorithms import registry
from fedveca.algorithms.registry import is_pooled
from fedveca.runs.compare import TableRow
from fedveca.runs.experiment import FIELDS, presets, range_of
from fedveca.runs.folder import Run
from fedveca.runs.schema import (
    Direction,
    describe_quantity,
    format_spread,
    format_value,
    get_number,
    pick_best,
    short_label,
)
from fedveca.tasks.datasets.dataset import DATASETS
from fedveca.tasks.models import MODELS
from fedveca.tasks.partition import RULES


def models(run: Run) -> Table:
    """One run's kept and last model."""
    rows = Table(box=None, pad_edge=False)
    for heading in ("model", "of round", f"test {metric_label(run.metric)}", "test loss"):
        rows.add_column(heading, justify="left" if heading == "model" else "right")
    for which in ("kept", "last"):
        s = run.summary[which]
        rows.add_row(
            which, str(s["round"]), format_value(run.metric, get_number(s, run.metric)), number(s["test_loss"])
        )
    return rows


def methods(rows: list[TableRow], name: str, directions: Mapping[str, Direction] | None = None) -> Table:
    """The methods side by side, kept and last model; the best of each column in bold where a direction is known."""
    shown = Table(title=Text(name), title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    shown.add_column("\nmethod", no_wrap=True)
    shown.add_column("local\nsteps", justify="right", no_wrap=True)
    names = sorted(rows[0]["kept"], key=lambda name: name == "test_loss")  # the loss last
    columns: list[tuple[Literal["kept", "last"], str]] = [("kept", n) for n in names] + [("last", n) for n in names]
    best = {}
    for which, what in columns:
        quantity = describe_quantity(what, directions)
        unit = " %" if quantity.unit == "share" else ""
        shown.add_column(f"{which}\n{short_label(what)}{unit}", justify="right", no_wrap=True)
        rivals = (row[which][what]["mean"] for row in rows if not is_pooled(row["method"]))
        best[which, what] = pick_best(rivals, quantity.better)
    for row in rows:
        cells = []
        for which, what in columns:
            found = row[which][what]
            text = format_spread(what, found["mean"], found["std"])
            bold = found["mean"] is not None and found["mean"] == best[which, what] and not is_pooled(row["method"])
            cells.append(f"[bold]{text}[/bold]" if bold else text)
        steps = "-" if row["tau_all"] is None else f"{row['tau_all']:.0f}"
        note = f" ({len(row['diverged'])} diverged)" if "diverged" in row else ""
        shown.add_row(row["method"] + note, steps, *cells)
    return shown


def partition(counts: Tensor) -> Table:
    """Label counts [N, classes], one row a client."""
    shown = Table(box=None, pad_edge=False)
    shown.add_column("client", justify="right")
    for label in range(counts.shape[1]):
        shown.add_column(str(label), justify="right")
    shown.add_column("rows", justify="right")
    for i, row in enumerate(counts.tolist()):
        shown.add_row(str(i), *(str(c) if c else "·" for c in row), str(sum(row)))
    return shown


def allowed() -> Table:
    """Every setting."""
    shown = Table(title="settings (key=value)", title_justify="left", box=None, pad_edge=False)
    for heading in ("key", "default", "allowed", "meaning"):
        shown.add_column(heading, no_wrap=heading == "key", overflow="fold")
    for key, of in settings().items():
        shown.add_row(key, str(of["default"]) or '""', of["allowed"].replace("[", "\\["), of["text"])
    return shown


def named() -> dict[str, list[str]]:
    """The values that can be named, by what they are of."""
    methods, models = list(registry.methods()), [*MODELS, "package.module:factory"]
    data, rules = list(DATASETS), list(RULES)
    return {"methods": methods, "data": data, "models": models, "partitions": rules, "presets": presets()}


def settings() -> dict[str, dict[str, Any]]:
    """Every setting with its default, what is allowed and its line of text."""
    return {
        key: {"default": field.default, "allowed": range_of(field), "text": field.metadata["text"]}
        for key, field in FIELDS.items()
    }


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:5.2f} %"


def metric_label(name: str) -> str:
    """test_absolute_error -> absolute error."""
    return name.removeprefix("test_").replace("_", " ")


def value(name: str, value: float | None) -> str:
    return percent(value) if name == "test_accuracy" else number(value)


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
