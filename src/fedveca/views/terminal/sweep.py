"""What a sweep chose, in the terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from fedveca.runs.sweep_file import SweepContent
from fedveca.views.comparison_text import name_quantity
from fedveca.views.sweep import explain_sweep, list_chosen

NARROW_TABLE = 72  # columns of a terminal that has no room for how many were tried


def make_sweep_table(content: SweepContent, name: str, width: int = 80) -> Table:
    """The chosen settings of every method with their validation value, and how they were chosen.

    Args:
        content: What sweep.json holds.
        name: The title.
        width: Columns of the terminal.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(Text("method"), no_wrap=True)
    table.add_column(Text("chosen"), overflow="fold")
    table.add_column(Text(name_quantity(content["quantity"])), justify="right", overflow="fold")
    if width >= NARROW_TABLE:
        table.add_column(Text("settings tried"), justify="right", no_wrap=True)
    for label, chosen, value, tried in list_chosen(content):
        cells = [label, chosen, value, *([tried] if width >= NARROW_TABLE else [])]
        table.add_row(*map(Text, cells))
    page = Table.grid()
    page.add_column(overflow="fold")
    rows = "validation rows" if content["val"] else "the training loss"
    page.add_row(Text(f"{name}: settings chosen on {rows}", style="italic"))
    page.add_row(table)
    if width < NARROW_TABLE:
        page.add_row(Text("Not shown at this width: settings tried; the report has them.", style="dim"))
    page.add_row("")
    page.add_row(Text(" ".join(explain_sweep(content)), style="dim"))
    return page
