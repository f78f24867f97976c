"""A study's table in the terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from fedveca.runs.schema import describe_quantity
from fedveca.runs.study import StudyColumn, StudyTable
from fedveca.runs.value_text import format_spread, short_label
from fedveca.views.series import find_look
from fedveca.views.targets import FEWEST_SEEDS


def study_table(content: StudyTable) -> Table:
    """Mean ± standard deviation per method and model; of the metric also the paired difference from the first one."""
    rows = content["rows"]
    metric = next((name for row in rows for name in row["kept"] if name != "test_loss"), "test_accuracy")
    seeds = max(len(row["seeds"]) + len(row["diverged"]) for row in rows)
    titles = {row["method"]: find_look(row["method"])[0] for row in rows}
    title = Text(f"{content['name']}: {f'{seeds} seeds, mean ± standard deviation' if seeds > 1 else '1 seed'}")
    shown = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for heading in ("\nmethod", "\nmodel"):
        shown.add_column(heading, no_wrap=True)
    label = f"\n{short_label(metric)}{' %' if describe_quantity(metric).unit == 'share' else ''}"
    interval = "[95 % interval]" if seeds >= FEWEST_SEEDS else ""
    for heading in ("local\nsteps", label, f"minus {titles[rows[0]['method']]}\n{interval}", "\nloss"):
        shown.add_column(Text(heading), justify="right", no_wrap=True)
    for row in rows:
        steps = "-" if row["tau_all"] is None else f"{row['tau_all']:.0f}"
        for which, columns in (("kept", row["kept"]), ("last", row["last"])):
            value, gap = _cells(columns.get(metric), metric)
            shown.add_row(
                Text(titles[row["method"]]),
                which,
                steps,
                value,
                Text(gap),
                _cells(columns.get("test_loss"), "test_loss")[0],
            )
    left_out = [f"{titles[row['method']]} seed {seed}" for row in rows for seed in row["diverged"]]
    if left_out:
        shown.caption = Text(f"left out, because the run diverged: {', '.join(left_out)}", style="red")
        shown.caption_justify = "left"
    return shown


def _cells(column: StudyColumn | None, name: str) -> tuple[str, str]:
    """A value and its difference from the first method's."""
    if column is None:
        return "-", "-"
    several = sum(value is not None for value in column["values"]) > 1
    value, gap = format_spread(name, column["mean"], column["std"]), column["minus_first"]
    value = value if several else value.partition(" ±")[0]
    if gap is None:
        return value, ""
    scale, digits = (100, 2) if describe_quantity(name).unit == "share" else (1, 4)
    ends = gap["interval"] if gap["interval"] and gap["n"] >= FEWEST_SEEDS else ()
    shown = ", ".join(f"{scale * end:+.{digits}f}" for end in ends)
    return value, f"{scale * gap['mean']:+.{digits}f}{f' [{shown}]' if shown else ''}"
