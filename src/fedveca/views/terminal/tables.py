"""The tables that a terminal shows, as Rich wants them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TypedDict

from rich.table import Table
from rich.text import Text
from torch import Tensor

from fedveca.algorithms.registry import is_pooled, methods
from fedveca.runs.compare import TableRow
from fedveca.runs.experiment import FIELDS, Experiment, presets, range_of
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
from fedveca.views.series import WHICH


class SettingInfo(TypedDict):
    """A setting's default, what is allowed, and its line of text."""

    default: str | int | float
    allowed: str
    text: str


def make_model_table(run: Run) -> Table:
    """One run's kept and last model."""
    table = Table(box=None, pad_edge=False)
    for heading in ("model", "of round", f"test {short_label(run.metric)}", "test loss"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for which in WHICH:
        result = run.summary[which]
        values = (format_value(name, get_number(result, name)) for name in (run.metric, "test_loss"))
        table.add_row(which, str(result["round"]), *values)
    return table


def make_method_table(rows: list[TableRow], name: str, directions: Mapping[str, Direction] | None = None) -> Table:
    """The methods side by side, kept and last model; the best of each column in bold where a direction is known."""
    table = Table(title=Text(name), title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("\nmethod", no_wrap=True)
    table.add_column("local\nsteps", justify="right", no_wrap=True)
    names = sorted(rows[0]["kept"], key=lambda name: name == "test_loss")  # the loss last
    columns = [(which, name) for which in WHICH for name in names]
    best = {}
    for which, what in columns:
        quantity = describe_quantity(what, directions)
        unit = " %" if quantity.unit == "share" else ""
        table.add_column(f"{which}\n{short_label(what)}{unit}", justify="right", no_wrap=True)
        rivals = (row[which][what]["mean"] for row in rows if not is_pooled(row["method"]))
        best[which, what] = pick_best(rivals, quantity.better)
    for row in rows:
        cells = []
        for which, what in columns:
            value, top = row[which][what], best[which, what]
            bold = top is not None and value["mean"] == top and not is_pooled(row["method"])
            cells.append(Text(format_spread(what, value["mean"], value["std"]), style="bold" if bold else ""))
        steps = "-" if row["tau_all"] is None else f"{row['tau_all']:.0f}"
        note = f" ({len(row['diverged'])} diverged)" if "diverged" in row else ""
        table.add_row(Text(row["method"] + note), steps, *cells)
    return table


def make_partition_table(counts: Tensor) -> Table:
    """Label counts [N, classes], one row per client; a single column is the rows alone."""
    table = Table(box=None, pad_edge=False)
    labels = counts.shape[1] if counts.shape[1] > 1 else 0
    for heading in ("client", *map(str, range(labels)), "rows"):
        table.add_column(heading, justify="right")
    for i, row in enumerate(counts.tolist()):
        table.add_row(str(i), *(str(c) if c else "·" for c in row[:labels]), str(sum(row)))
    return table


def make_settings_table() -> Table:
    """Every setting."""
    table = Table(title="settings (key=value)", title_justify="left", box=None, pad_edge=False)
    for heading in ("key", "default", "allowed", "meaning"):
        table.add_column(heading, no_wrap=heading == "key", overflow="fold")
    for key, setting in list_settings().items():
        table.add_row(key, str(setting["default"]) or '""', Text(setting["allowed"]), setting["text"])
    return table


def list_choices() -> dict[str, list[str]]:
    """The methods, data sets, models, partitions and presets that settings can name."""
    return {
        "methods": list(methods()),
        "data": list(DATASETS),
        "models": [*MODELS, "package.module:factory"],
        "partitions": list(RULES),
        "presets": presets(),
    }


def list_settings() -> dict[str, SettingInfo]:
    """Every setting with its default, what is allowed and its line of text."""
    defaults = asdict(Experiment())
    return {
        key: {"default": defaults[key], "allowed": range_of(field), "text": field.metadata["text"]}
        for key, field in FIELDS.items()
    }
