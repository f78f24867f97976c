"""The tables that a terminal shows, as Rich wants them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.table import Table

from fedveca.errors import count_noun
from fedveca.runs.folder import Run
from fedveca.runs.schema import get_number
from fedveca.runs.value_text import format_value, short_label
from fedveca.views.clients import STAGES, STATISTIC_LABELS, list_client_metrics, list_client_values, name_statistic
from fedveca.views.series import WHICH

if TYPE_CHECKING:  # at run time they would load PyTorch
    from torch import Tensor

GAP = 2  # columns between those of a table
SHORT_LIST = ("", "_worst", "_best")  # aggregates over clients that a terminal shows


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


def make_client_table(run: Run) -> Table | None:
    """How the kept and the last model do for the clients: one line each; None where clients test nothing."""
    names = list_client_metrics([run])[:1]
    if not names:
        return None
    table = Table(box=None, pad_edge=False, title_justify="left", title_style="")
    clients = len(list_client_values(run.summary["last"], names[0])) or run.experiment.clients
    table.title = f"test {short_label(names[0])} of {count_noun(clients, 'client')}"
    for heading in ("model", *(STATISTIC_LABELS[statistic] for statistic in SHORT_LIST)):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for stage in STAGES:
        for which in WHICH:
            found = [
                get_number(run.summary[which], name_statistic(names[0], statistic, stage)) for statistic in SHORT_LIST
            ]
            if any(value is not None for value in found):
                tuned = ", tuned" if stage == "tuned" else ""
                table.add_row(f"{which}{tuned}", *(format_value(names[0], value) for value in found))
    return table


def make_partition_table(counts: Tensor, width: int = 80) -> Table:
    """Label counts [N, classes], one row per client; a single column is the rows alone.

    Labels that do not fit into a line are shown in further tables below the first.

    Args:
        counts: The rows of each client and label.
        width: Columns of the terminal.
    """
    rows = counts.tolist()
    labels = [[str(label), *(str(row[label] or "·") for row in rows)] for label in range(counts.shape[1])]
    clients, sums = ["client", *map(str, range(len(rows)))], ["rows", *(str(sum(row)) for row in rows)]
    labels = labels if len(labels) > 1 else []
    room = width - sum(max(map(len, cells)) + GAP for cells in (clients, sums))
    fit = max(1, room // (max((len(cell) for cells in labels for cell in cells), default=1) + GAP))
    if sum(max(map(len, cells)) + GAP for cells in labels) <= room + GAP:
        fit = len(labels) or 1
    blocks = math.ceil(len(labels) / fit) or 1
    each = math.ceil(len(labels) / blocks) or 1
    page = Table.grid()
    for at in range(blocks):
        shown = [clients, *labels[at * each : (at + 1) * each], *([sums] if at == blocks - 1 else [])]
        table = Table(box=None, pad_edge=False)
        for heading, *_ in shown:
            table.add_column(heading, justify="right", no_wrap=True)
        for cells in zip(*(cells for _, *cells in shown), strict=True):
            table.add_row(*cells)
        page.add_row(table)
        if at < blocks - 1:
            page.add_row("")
    return page


def describe_work(run: Run) -> str:
    """What a finished run computed: its local steps, its rounds and its gradient rows, where it recorded them."""
    s = run.summary
    rows = f", {s['rows']:,} gradient rows" if "rows" in s else ""
    return f"{count_noun(s['tau_all'], 'local step')} in {count_noun(len(run.rounds), 'round')}{rows}"


def describe_simulated_time(run: Run) -> str:
    """What a run took on the devices of its clients, simulated or real; "" where nobody knows."""
    clock, joules = get_number(run.summary, "clock"), get_number(run.summary, "joules")
    if clock is None:
        return ""
    if not run.experiment.devices:
        return f"on its nodes: {clock:,.1f} s"
    return f"on {run.experiment.devices}: {clock:,.1f} simulated s" + ("" if joules is None else f", {joules:,.4g} J")
