"""What `fedveca deploy check` shows: one line per node, then what is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

STATES = {"ready": "green", "warning": "yellow", "problem": "red"}


def show_checks(
    console: Console, rows: Sequence[Mapping[str, str]], problems: Sequence[str], warnings: Sequence[str]
) -> None:
    """A table and sentences below it.

    Args:
        console: where to print.
        rows: one per node, by heading; `state` is one of STATES.
        problems: why the federation should not start.
        warnings: what else should be known.
    """
    table = Table(box=None, pad_edge=False)
    for heading in rows[0] if rows else ():
        table.add_column(heading, justify="left" if heading in ("node", "state", "device") else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(value, STATES.get(value, "") if name == "state" else "") for name, value in row.items()))
    console.print(table)
    for kind, sentences in (("problem", problems), ("warning", warnings)):
        for sentence in sentences:
            console.print(Text(f"{kind}: {sentence}", STATES[kind]), soft_wrap=True)
