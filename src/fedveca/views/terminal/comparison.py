"""A comparison in the terminal: the table, the costs until targets, and sentences; digits are never cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedveca.runs.folder import Run
from fedveca.runs.schema import describe_quantity
from fedveca.runs.statistics import Spread
from fedveca.runs.value_text import format_spread, short_label
from fedveca.views.clients import name_statistic
from fedveca.views.comparison import Comparison, compare_curves, find_gap, find_leader, find_winner
from fedveca.views.comparison_text import (
    explain_costs,
    explain_table,
    format_cost,
    format_gap,
    format_reached,
    format_target,
    give_answer,
)
from fedveca.views.run_text import describe_privacies
from fedveca.views.series import AXES, Which, group_curves
from fedveca.views.targets import Target, find_main_target
from fedveca.views.terminal.console import FULL_WIDTH

GAP, WORST = "minus the best", "worst 10 %"
SHORTEST_PROSE = 80  # columns of the sentences below narrower tables, where the terminal has as many
COST_LABELS = AXES | {"rounds": "rounds", "bytes": "MB"} | {"clock": "device s", "joules": "joules"}


class Column(NamedTuple):
    """Two lines of heading, one cell per method; columns of higher rank are the first ones to go."""

    top: str
    bottom: str
    cells: list[Text]
    name: str  # in the line on columns that are not shown
    rank: int = 0


class Fitted(NamedTuple):
    """A table that is as wide as the terminal allows, and the names of its columns and of those left out."""

    table: Table
    shown: list[str]
    left_out: list[str]


def make_method_table(runs: Sequence[Run], name: str, width: int = 80) -> Table:
    """The methods side by side, what they needed to reach targets, and what the numbers mean.

    Columns that do not fit are left out, the least important ones first, and named below the tables; where even two do
    not fit, values are stacked below the methods' names.

    Args:
        runs: The runs of the comparison; those that differ by their seed alone are one row.
        name: The title.
        width: Columns of the terminal.
    """
    comparison = compare_curves(group_curves(runs))
    labels = [_label(comparison, i) for i in range(len(comparison.rows))]
    method, targets = Column("", "method", labels, "method"), comparison.targets
    results = _fit([method, *_list_columns(comparison)], width)
    costs = _fit([method, *_list_costs(comparison, targets)], width) if targets else Fitted(Table(), [], [])
    widest = max(_measure(results.table), _measure(costs.table), SHORTEST_PROSE)
    page = Table.grid()
    page.add_column(overflow="fold", max_width=min(width, widest))
    page.add_row(Text(name, style="italic"))
    page.add_row(results.table)
    if targets:
        page.add_row("")
        better = comparison.directions[comparison.metric]
        least = "at least" if better == "higher" else "at most"
        page.add_row(Text(f"until test {short_label(comparison.metric)} is {least}"))
        page.add_row(costs.table)
    if left_out := [*results.left_out, *costs.left_out]:
        page.add_row(Text(f"Not shown at this width: {', '.join(left_out)}; the report has them.", style="dim"))
    page.add_row("")
    page.add_row(Text(give_answer(comparison)))
    if privacy := describe_privacies(comparison.curves):
        page.add_row(Text(privacy))
    said = explain_table(comparison, gaps=GAP in results.shown)
    said += explain_costs(comparison, rows=any("rows" in name.split() for name in [*results.shown, *costs.shown]))
    page.add_row(Text(" ".join(said), style="dim"))
    return page


def _label(comparison: Comparison, at: int) -> Text:
    row = comparison.rows[at]
    notes = [(row.diverged, "diverged"), (row.unfinished, "not ended")]
    return Text(row.label + "".join(f" ({count} {what})" for count, what in notes if count))


def _list_columns(comparison: Comparison) -> list[Column]:
    """From the most important to the least: metric, its difference to the best, steps, then the rest.

    The worst tenth of the clients comes second where it was asked for.
    """
    c, metric = comparison, comparison.metric
    columns = [_make_column(c, c.which, metric)] if metric else []
    if metric and any(find_gap(c, i, c.which, metric) for i in range(len(c.rows))):
        best = find_leader(c, c.which, metric)
        gaps = [find_gap(c, i, c.which, metric) for i in range(len(c.rows))]
        cells = ["best" if i == best else format_gap(metric, gap) if gap else "-" for i, gap in enumerate(gaps)]
        interval = "[95 % interval]" if any(gap and gap.interval for gap in gaps) else ""
        columns.append(Column(GAP, interval, list(map(Text, cells)), GAP))
    columns += [_make_worst_column(c, name) for name in [metric] if name_statistic(name, "_worst") in c.statistics]
    columns.append(_make_total_column("local", "steps", [_show(row.steps, "steps") for row in c.rows]))
    rest = [(c.which, n) for n in c.names[1:]] + [(w, n) for w in c.models if w != c.which for n in c.names]
    columns += [_make_column(c, which, name) for which, name in rest]
    columns.append(_make_total_column("gradient", "rows", [_show(row.gradient_rows, "rows") for row in c.rows]))
    columns.append(_make_total_column("", "seconds", [_show(row.seconds, "seconds") for row in c.rows]))
    if len({row.seeds for row in c.rows}) > 1 or c.rows[0].seeds > 1:
        columns.append(_make_total_column("", "seeds", [Text(str(row.seeds)) for row in c.rows]))
    ranked = sorted(columns, key=lambda column: (column is not columns[0], not column.name.startswith(WORST)))
    return [column._replace(rank=ranked.index(column)) for column in columns]


def _make_total_column(top: str, bottom: str, cells: list[Text]) -> Column:
    return Column(top, bottom, cells, f"{top} {bottom}".strip())


def _make_column(comparison: Comparison, which: Which, name: str) -> Column:
    unit = " %" if describe_quantity(name).unit == "share" else ""
    heading = "kept = last" if comparison.same_models else which
    label = f"{short_label(name)}{unit}"
    return Column(heading, label, _show_values(comparison, which, name), f"{which} {label}")


def _make_worst_column(comparison: Comparison, metric: str) -> Column:
    """The metric of the tenth of the clients that a method's models serve worst."""
    unit = " (%)" if describe_quantity(metric).unit == "share" else ""
    cells = _show_values(comparison, comparison.which, name_statistic(metric, "_worst"))
    return Column(WORST, f"of clients{unit}", cells, f"{WORST} of clients{unit}")


def _show_values(comparison: Comparison, which: Which, name: str) -> list[Text]:
    """A value of every method with its spread over seeds; the best one in bold."""
    winner, cells = find_winner(comparison, which, name), []
    for i, row in enumerate(comparison.rows):
        value = row.models[which][name]
        text = format_spread(name, value.mean, value.std)
        text = text if value.n > 1 else text.partition(" ±")[0]
        cells.append(Text(text, style="bold" if i == winner else ""))
    return cells


def _list_costs(comparison: Comparison, targets: Sequence[Target]) -> list[Column]:
    """Rounds until every target; all other costs until the main one, whose rounds are the last to go."""
    columns, main = [], find_main_target(targets)
    asked = [(target, "rounds") for target in targets]
    asked += [(main, axis) for axis in COST_LABELS if axis != "rounds" and axis in main.costs[0]]
    for rank, (target, axis) in enumerate(asked, 1):
        cells = [Text(format_reached(axis, costs[axis])) for costs in target.costs]
        heading = format_target(comparison.metric, target.value)
        label, rank = COST_LABELS[axis], 0 if target is main and axis == "rounds" else rank
        columns.append(Column(heading, label, cells, f"{label} until {heading}", rank))
    return columns


def _show(value: Spread, axis: str) -> Text:
    return Text("-" if value.mean is None else format_cost(axis, value.mean))


def _fit(columns: Sequence[Column], width: int) -> Fitted:
    """As many columns as fit, the most important ones; stacked where only one would be left."""
    ranked = sorted(columns, key=lambda column: column.rank)
    for count in range(len(columns), 2, -1):
        chosen = [column for column in columns if column in ranked[:count]]
        table = _build(chosen)
        if _measure(table) <= width:
            left_out = [column.name for column in columns if column not in chosen]
            return Fitted(table, [column.name for column in chosen], left_out)
    return Fitted(_stack(columns), [column.name for column in columns], [])


def _measure(table: Table) -> int:
    return Console(width=FULL_WIDTH).measure(table).maximum


def _build(columns: Sequence[Column]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    double = any(column.top for column in columns)
    for i, (top, bottom, *_) in enumerate(columns):
        heading = Text(f"{top}\n{bottom}" if double else bottom)
        table.add_column(heading, justify="right" if i else "left", no_wrap=True)
    for cells in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*cells)
    return table


def _stack(columns: Sequence[Column]) -> Table:
    """Every method's name, and below it one line per value."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(overflow="fold")
    table.add_column(justify="right", overflow="fold")
    for i, name in enumerate(columns[0].cells):
        table.add_row(name, "")
        for top, bottom, cells, *_ in columns[1:]:
            table.add_row(Text(f"  {top} {bottom}".replace("   ", "  ").rstrip()), cells[i])
    return table
