"""Table I and the claims as a terminal shows them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from studies.paper.results import ClaimRow, TaskTable, Values


def make_table1(task: TaskTable) -> Table:
    """Ours and the paper's, of one task."""
    shown = Table(title=Text(f"Table I, {task['task']}"), title_justify="left", box=None, pad_edge=False)
    shown.add_column("\nmethod", no_wrap=True)
    for heading in ("accuracy %\nkept", "\nlast", "\npaper", "loss x 100\nkept", "\nlast", "\npaper"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in task["rows"]:
        cells = []
        for name in ("test_accuracy", "test_loss"):
            digits = 1 if row["paper"][name] > 1 else 2
            cells += [_cell(row["kept"][name], digits), _cell(row["last"][name], digits)]
            cells.append(f"{100 * row['paper'][name]:.{digits}f}")
        shown.add_row(row["method"], *cells)
    return shown


def _cell(values: Values, digits: int) -> str:
    mean, std = values["mean"], values["std"]
    assert isinstance(mean, float)
    assert isinstance(std, float)
    return f"{100 * mean:.{digits}f} ±{100 * std:.{digits}f}"


def make_claims(what: str, claims: Sequence[ClaimRow]) -> Table:
    """What the paper says of a result, whether it holds, and on what evidence."""
    shown = Table(title=Text(what), title_justify="left", box=None, pad_edge=False, show_header=False)
    for claim in claims:
        holds = claim["holds"]
        word, style = ("partly", "yellow") if holds == "partly" else ("yes", "green") if holds else ("no", "red")
        shown.add_row(Text(word, style=style), Text.assemble(claim["claim"], "\n", (claim["evidence"], "dim")))
    return shown
