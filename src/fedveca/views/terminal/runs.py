"""Runs in the terminal: a list of them, one in detail, and two compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from statistics import median

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedveca.errors import count_noun
from fedveca.runs.early_stopping import describe_ending
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.interrupt import how_to_resume
from fedveca.runs.schema import SCHEMA, describe_quantity, get_number, is_number
from fedveca.runs.setting_checks import FIELDS
from fedveca.runs.theory import count_conditions
from fedveca.runs.value_text import format_value, short_label
from fedveca.views.board.index import Row
from fedveca.views.clients import list_client_metrics, name_statistic
from fedveca.views.run_text import describe_privacy, list_run_warnings
from fedveca.views.series import get_closing_values, read_partition, sum_costs
from fedveca.views.terminal.tables import (
    describe_simulated_time,
    describe_work,
    make_client_table,
    make_model_table,
)

TAIL = 5  # rounds that are shown of a run
SHORTEST_NAME = 28  # columns of a run's name before other columns give way
GIVE_WAY = ("model", "data", "age", "method")  # columns that a narrow terminal does without, in this order
STATE_STYLES = {"running": "cyan", "finished": "green", "paused": "yellow", "diverged": "red", "damaged": "red"}
ALWAYS = ("method", "data", "model", "partition", "clients", "rounds", "batch", "lr", "seed")
UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def show_run_list(console: Console, rows: Sequence[Row]) -> None:
    """One line per run; a narrow terminal does without some columns, and long names lose their middle."""
    columns: dict[str, Callable[[Row], Text]] = {
        "method": lambda row: Text(str(row.method or "-")),
        "data": lambda row: Text(str(row.data or "-")),
        "model": lambda row: Text(str(row.model or "-")),
        "rounds": lambda row: Text(f"{row.rounds}/{row.of or '?'}"),
        "state": lambda row: Text(row.state, STATE_STYLES.get(row.state, "")),
        "score": lambda row: Text(format_value(row.metric, row.score)),
        "age": lambda row: Text(format_age(time.time() - row.changed)),
    }
    cells = {name: [make(row) for row in rows] for name, make in columns.items()}
    widths = {name: max(len(name), *(len(cell) for cell in mine)) for name, mine in cells.items()}
    longest = max(3, *(len(row.id) for row in rows))
    left = list(columns)
    for name in GIVE_WAY:
        if console.width - sum(widths[n] + 2 for n in left) < min(longest, SHORTEST_NAME):
            left.remove(name)
    room = max(SHORTEST_NAME, console.width - sum(widths[n] + 2 for n in left))
    first, last = min(row.id for row in rows), max(row.id for row in rows)
    shared = next((at for at, pair in enumerate(zip(first, last, strict=False)) if len(set(pair)) > 1), 0)
    common = max(first.rfind("/", 0, shared), first.rfind("-", 0, shared)) + 1
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("run", no_wrap=True)
    left_out = [name for name in columns if name not in left]
    for name in left:
        table.add_column(name, justify="right" if name in ("rounds", "score", "age") else "left", no_wrap=True)
    for at, row in enumerate(rows):
        shown = shorten_name(row.id, common, room) if longest > room else row.id
        table.add_row(Text(shown), *(cells[name][at] for name in left))
    console.print(table)
    if left_out:
        console.print(Text(f"Not shown at this width: {', '.join(left_out)}.", "dim"))


def shorten_name(name: str, common: int, most: int) -> str:
    """A name of at most so many letters, without those that all names start with; its end has method and seed."""
    mark, rest = ("…", name[common:]) if common else ("", name)
    if len(mark + rest) > most:
        head = (most - 1 - len(mark)) // 3
        rest = f"{rest[:head]}…{rest[len(rest) - (most - 1 - len(mark) - head) :]}"
    return mark + rest


def format_age(seconds: float) -> str:
    """`5 min`, `3 h`: in the largest unit that makes it 1 or more."""
    unit, size = next(((u, s) for u, s in UNITS if seconds >= s), UNITS[-1])
    return f"{max(0, int(seconds / size))} {unit}"


def show_run(console: Console, run: Run, row: Row, every: bool = False) -> None:
    """A run: its settings, result, partition, last rounds, and how to resume it."""
    console.print(Text.assemble((str(run.folder), "bold"), "  ", (row.state, STATE_STYLES.get(row.state, ""))))
    if row.why and row.state != "paused":
        console.print(Text(row.why, "yellow"))
    for text in list_run_warnings(run):
        console.print(Text(f"warning: {text}", "yellow"))
    _show_heading(console, "settings", "" if every else "those that differ from the defaults, and the main ones")
    settings, defaults = asdict(run.experiment), asdict(Experiment())
    shown = [key for key in FIELDS if every or key in ALWAYS or settings[key] != defaults[key]]
    console.print(Text("  ".join(f"{key}={settings[key]}" for key in shown)))
    if run.summary:
        _show_heading(console, "result")
        console.print(make_model_table(run))
        if clients := make_client_table(run):
            console.print()
            console.print(clients)
        console.print(f"{describe_work(run)}, {sum_costs(run)['seconds'][-1] if run.rounds else 0:.1f} s")
        if simulated := describe_simulated_time(run):
            console.print(Text(simulated))
        if privacy := describe_privacy(run):
            console.print(privacy)
        if run.ended:
            console.print(Text(describe_ending(run.experiment, run.ended, len(run.rounds))))
    if part := read_partition(run, clients=200):
        _show_heading(console, "partition")
        sizes = part["sizes"]
        labels = [sum(count > 0 for count in of_client) for of_client in part["labels"]]
        said = f"{count_noun(part['all'], 'client')}; rows per client: {_format_range(sizes)}"
        said += f" (median {median(sizes):.0f})" if min(sizes) < max(sizes) else ""
        console.print(f"{said}; labels per client: {_format_range(labels)}")
    if conditions := count_conditions(run.rounds):
        _show_heading(console, "theory", "rounds in which the conditions of the paper's theorems were met")
        rows = []
        for name, ((title, sign, bound), met, known) in conditions.items():
            rows.append((title, f"{SCHEMA[name].symbol} {sign} {bound:g}", f"{met} of {known}"))
        console.print(_make_columns(("condition", "asks for", "held in"), rows))
    if run.rounds:
        _show_heading(console, f"last {count_noun(min(TAIL, len(run.rounds)), 'round')} of {len(run.rounds)}")
        console.print(_make_tail(run))
    if run.folder:
        console.print()
        resume, what = how_to_resume(run.folder), "to resume"
        if run.summary:
            what = "for more rounds"
            resume += f" rounds={2 * run.experiment.rounds}" if resume.startswith("fedveca ") else ""
        if row.state != "running" and not run.diverged and not run.ended:
            console.print(Text(f"{what}: {resume}"), soft_wrap=True)


def show_difference(console: Console, first: Run, second: Run) -> None:
    """The settings that two runs do not share, and their results."""
    names = [str(run.folder) for run in (first, second)]
    console.print(Text.assemble(("A  ", "bold"), names[0], "\n", ("B  ", "bold"), names[1]))
    differing = list_differences(first, second)
    _show_heading(console, "settings that differ" if differing else "no setting differs")
    if differing:
        console.print(_make_columns(("setting", "A", "B"), [(k, str(a), str(b)) for k, (a, b) in differing.items()]))
    rows = []
    for name, (a, b) in list_results(first, second).items():
        which, _, quantity = name.rpartition(" ")
        digits = 4 if which else 1 if name == "seconds" else 0
        gap = "-" if a is None or b is None else _format_gap(quantity, b - a, digits)
        values = (format_value(quantity, value, digits) for value in (a, b))
        rows.append((f"{which} {_name_result(quantity)}".strip(), *values, gap))
    _show_heading(console, "results")
    console.print(_make_columns(("", "A", "B", "B - A"), rows, right=True))


def list_differences(first: Run, second: Run) -> dict[str, tuple[object, object]]:
    """The settings that two runs do not share."""
    a, b = asdict(first.experiment), asdict(second.experiment)
    return {key: (a[key], b[key]) for key in FIELDS if a[key] != b[key]}


def list_results(first: Run, second: Run) -> dict[str, tuple[float | None, float | None]]:
    """The test values of both runs by model and quantity, such as `kept test_accuracy`, and what they cost."""
    ends = [get_closing_values(run) for run in (first, second)]
    found: dict[str, tuple[float | None, float | None]] = {}
    for which in ("kept", "last"):
        names = {name for end in ends for name, v in end[which].items() if name.startswith("test_") and is_number(v)}
        ranked = sorted(names, key=lambda name: (name == "test_loss", name))
        worst = [name_statistic(name, "_worst") for name in list_client_metrics((first, second))[:1]]
        for name in (*ranked, *worst):
            found[f"{which} {name}"] = (get_number(ends[0][which], name), get_number(ends[1][which], name))
    costs = [sum_costs(run) for run in (first, second)]
    for axis in ("rounds", "steps", "rows", "seconds"):
        a, b = ((cost[axis] or [0])[-1] for cost in costs)
        found[axis] = (a, b)
    return found


def _name_result(quantity: str) -> str:
    """A result's name within a line: `accuracy`, `accuracy of the worst 10 %`."""
    metric = quantity.removeprefix("clients_").removesuffix("_worst")
    return short_label(quantity) if metric == quantity else f"{short_label(metric)} of the worst 10 %"


def _format_gap(name: str, gap: float, digits: int) -> str:
    return f"{100 * gap:+.2f} points" if describe_quantity(name).unit == "share" else f"{gap:+.{digits}f}"


def _show_heading(console: Console, title: str, note: str = "") -> None:
    console.print()
    console.print(Text.assemble((title, "bold"), (f"  {note}" if note else "", "dim")))


def _make_tail(run: Run) -> Table:
    rows = []
    for record in run.rounds[-TAIL:]:
        value = format_value(run.metric, get_number(record, run.metric))
        losses = (format_value(name, get_number(record, name)) for name in ("test_loss", "train_loss"))
        rows.append((str(record["round"] + 1), value, *losses, _format_range(record["tau"])))
    return _make_columns(("round", short_label(run.metric), "test loss", "train loss", "local steps"), rows, right=True)


def _format_range(counts: Sequence[int]) -> str:
    if not counts:
        return "-"
    return str(counts[0]) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def _make_columns(headings: Sequence[str], rows: Sequence[Sequence[str]], right: bool = False) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="right" if right and at else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table
