"""What the terminal and the report say alike about a comparison, in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedveca.algorithms.registry import is_pooled
from fedveca.runs.budget import COST_NAMES
from fedveca.runs.schema import Direction, describe_quantity
from fedveca.runs.statistics import (
    Difference,
    Spread,
)
from fedveca.runs.value_text import format_spread, format_value
from fedveca.views.comparison import (
    Comparison,
    find_budget_setter,
    find_gap,
    find_protocol,
    get_total,
    is_behind,
    is_exact_share,
)
from fedveca.views.series import Curve, counts_probes
from fedveca.views.targets import FEWEST_SEEDS, Reached


def give_answer(comparison: Comparison) -> str:
    """The result in a sentence or two that can be quoted: the best, the next, their paired difference."""
    c, name, which = comparison, comparison.metric, comparison.which
    runs = [run for curve in c.curves for run in curve.runs]
    if runs and all(run.diverged for run in runs):
        rates = ", ".join(f"lr={lr:g}" for lr in sorted({run.experiment.lr for run in runs}))
        said = "The run" if len(runs) == 1 else f"All {len(runs)} runs"
        return f"{said} diverged, so that there is no model to compare; a smaller lr usually helps (now {rates})."
    if not name:
        return "No model was tested yet."
    finite = [(mean, i) for i, row in enumerate(c.rows) if (mean := row.models[which][name].mean) is not None]
    rivals = [(mean, i) for mean, i in finite if not is_pooled(c.rows[i].method)] or finite
    if not rivals:
        return "No model has a finite test value."
    quantity, models = name_quantity(name), f"{which} models"
    if len(rivals) == 1:
        row = c.rows[rivals[0][1]]
        every = (f"{name_quantity(n)} {format_result(n, row.models[which][n])}" for n in c.names)
        return f"{row.label}: the {which} model has {', '.join(every)}{_count_seeds(row.models[which][name])}."
    listed = ", ".join(f"{c.rows[i].label} {format_result(name, c.rows[i].models[which][name])}" for _, i in rivals)
    if c.directions[name] is None:
        unknown = "The metric does not state whether a higher or a lower value is better."
        return f"The {models} have {quantity}: {listed}. {unknown}"
    rivals.sort(key=lambda rival: rival[0], reverse=c.directions[name] == "higher")
    first, second = (c.rows[i] for _, i in rivals[:2])
    value, other = (row.models[which][name] for row in (first, second))
    if c.budgets:
        return (
            f"No method is called the best, because the budgets differ: {c.budgets}. The "
            f"{'highest' if c.directions[name] == 'higher' else 'lowest'} mean {quantity} of the {models} is "
            f"that of {first.label}: {format_result(name, value)}{_count_seeds(value)}."
        )
    if rivals[0][0] == rivals[1][0]:
        return (
            f"{first.label} and {second.label} have the same {quantity} of the {models}: {format_result(name, value)}."
        )
    gap = find_gap(c, rivals[1][1], which, name)
    said = f"{first.label} has the best {quantity} of the {models}, {format_result(name, value)}{_count_seeds(value)}"
    next_ = f"next is {second.label} with {format_result(name, other)}"
    if gap is None:
        return f"{said}; {next_}; no seed is shared, so the difference has no paired interval."
    return f"{said}; {next_}, {_describe_gap(name, gap, c.directions[name])}."


def explain_table(comparison: Comparison, gaps: bool = True) -> list[str]:
    """Sentences to read below the table: what ± is, what is bold, how many steps everyone took, what was repeated.

    Args:
        comparison: What is shown.
        gaps: Whether the differences to the best are.
    """
    c, said = comparison, []
    several = any(row.seeds > 1 for row in c.rows)
    if several:
        said.append("± is one standard deviation over seeds.")
    elif len(c.rows) > 1:
        said.append("One seed each: differences may be due to chance, and nothing is marked as the best.")
    if any(row.diverged for row in c.rows):
        said.append("Runs that diverged are left out.")
    if several and len(c.rows) > 1 and not c.budgets:
        if max(row.seeds for row in c.rows) < FEWEST_SEEDS:
            said.append("Two seeds are too few for an interval, so nothing is marked as the best.")
        else:
            if gaps:
                said.append(
                    "A difference to the best is paired by seed, with a 95 % t interval, each on its own (not "
                    "corrected for the number of methods)."
                )
            said.append("A value is marked as the best only if no rival's interval includes 0.")
    if setter := find_budget_setter(c.curves):
        totals = [row.steps.mean for row in c.rows if row.label != setter.label and row.steps.mean is not None]
        own = next(row.steps.mean for row in c.rows if row.label == setter.label)
        if totals and own is not None:
            low, high = (f"{total:,.0f}" for total in (min(totals), max(totals)))
            rounded = f"at most as many local steps as {setter.label} (rounded down per client and round)"
            share = f"as many local steps as {setter.label}" if is_exact_share(c.curves) else rounded
            said.append(
                f"Methods with fixed steps take {share}: {low if low == high else f'{low} to {high}'} compared with "
                f"{own:,.0f}."
            )
    if text := _explain_protocol(c):
        said.append(text)
    if ends := describe_early_ends(c.curves):
        said.append(ends)
    if any(is_pooled(row.method) for row in c.rows):
        said.append("Centralised training has all rows in one place and is not a rival.")
    return said + explain_repeats(c.curves)


def explain_repeats(curves: Sequence[Curve]) -> list[str]:
    """Whether seeds were run more than once: they count once."""
    identical, conflicting = (sum(getattr(curve, what) for curve in curves) for what in ("identical", "conflicting"))
    said = []
    if identical:
        runs, repeat = ("run", "repeats") if identical == 1 else ("runs", "repeat")
        said.append(
            f"{identical} {runs} {repeat} a seed with identical results and {_is(identical)} not counted again."
        )
    if conflicting:
        runs, repeat = ("run", "repeats") if conflicting == 1 else ("runs", "repeat")
        said.append(
            f"{conflicting} {runs} {repeat} a seed with other results and {_is(conflicting)} left out: of each seed, "
            "the run that went furthest is shown."
        )
    return said


def format_gap(name: str, gap: Difference) -> str:
    """A difference to the best and its interval, in points where the quantity is a share."""
    scale, digits = _scale(name)
    ends = ", ".join(f"{scale * end:+.{digits}f}" for end in gap.interval or ())
    return f"{scale * gap.mean:+.{digits}f}{f' [{ends}]' if ends else ''}"


def format_reached(axis: str, reached: Reached) -> str:
    """A cost until a target: the mean over seeds and its interval, or how many seeds reached it, if any did."""
    if reached.cost is None:
        return "never"
    mean, *ends = (format_cost(axis, value) for value in (reached.cost.mean, *(reached.cost.interval or ())))
    if reached.complete:
        return f"{mean} [{', '.join(ends)}]" if ends else mean
    low, high = (format_cost(axis, value) for value in (reached.lowest, reached.highest))
    return f"in {reached.arrived} of {reached.seeds} seeds ({low if low == high else f'{low} to {high}'})"


def explain_costs(comparison: Comparison, rows: bool = True) -> list[str]:
    """Sentences to read below the costs until targets.

    Args:
        comparison: What is shown.
        rows: Whether gradient rows are.
    """
    c = comparison
    if not c.targets:
        return []
    every = {run.experiment.test_every for curve in c.curves for run in curve.runs}
    tested = f" (tested every {max(every)} rounds)" if max(every) > 1 else ""
    said = [f"Never: the target was not reached within the run{tested}."]
    if any(row.seeds > 1 for row in c.rows):
        each = [costs["rounds"] for target in c.targets for costs in target.costs]
        interval = any(reached.complete and reached.cost and reached.cost.interval for reached in each)
        cut = any(r.complete and r.cut for target in c.targets for costs in target.costs for r in costs.values())
        said.insert(
            0,
            "A cost until a target is the geometric mean over seeds"
            f"{', with a 95 % t interval' * interval}{', which ends at what a run could use up' * cut}.",
        )
        if any(reached.cost and not reached.complete for reached in each):
            said.insert(1, "Where some seeds never reach it: how many do, and the lowest to the highest cost of those.")
    if rows:
        said.append("Rows are those of which gradients were computed, the probe's included.")
    if rows and not all(counts_probes(run) for curve in c.curves for run in curve.runs):
        said.append("Runs that did not record them count those of their mini-batches alone.")
    return said


def format_cost(axis: str, value: float) -> str:
    """Rounds, steps, rows, megabytes or seconds for people."""
    if not math.isfinite(value):
        return "never"
    if axis == "bytes":
        value /= 1e6
    return f"{value:,.3g}" if axis in ("bytes", "seconds", "clock", "joules") and value < 100 else f"{value:,.0f}"


def describe_early_ends(curves: Sequence[Curve]) -> str:
    """Which methods ended before their last round, and when; "" where none did."""
    parts = []
    for curve in curves:
        if ended := [run for run in curve.runs if run.ended and run.ended != "budget"]:
            few, many = (end(len(run.rounds) for run in ended) for end in (min, max))
            rounds = f"round {few}" if few == many else f"rounds {few} to {many}"
            some = "" if len(ended) == len(curve.runs) else f" in {len(ended)} of {len(curve.runs)} seeds"
            parts.append(f"{curve.label} after {rounds}{some}")
    return f"Ended early by target or patience: {', '.join(parts)}." if parts else ""


def format_result(name: str, value: Spread) -> str:
    """A mean over seeds with its unit, and its standard deviation where there are several seeds."""
    if value.mean is None or value.n < 2:
        return format_value(name, value.mean)
    return format_spread(name, value.mean, value.std) + (" %" if describe_quantity(name).unit == "share" else "")


def format_target(name: str, value: float) -> str:
    """A target without decimals that say nothing: 90 %, 0.35."""
    return f"{100 * value:g} %" if describe_quantity(name).unit == "share" else f"{value:g}"


def name_quantity(name: str) -> str:
    """A recorded quantity within a sentence: `test accuracy`."""
    label = describe_quantity(name).label
    return label[:1].lower() + label[1:]


def _explain_protocol(comparison: Comparison) -> str:
    """What all methods were given as much of, where it is not a total of local steps; "" elsewhere."""
    protocol = find_protocol(comparison.curves)
    if protocol is None or protocol.kind == "steps":
        return ""
    kind, label = protocol.kind, protocol.setter.label
    totals = {row.label: total for row in comparison.rows if (total := get_total(row, kind).mean) is not None}
    others = [total for name, total in totals.items() if name != label]
    if not others or label not in totals:
        return ""
    name = {"bytes": "MB sent"}.get(kind, COST_NAMES[kind])
    low, high, own = (format_cost(kind, total) for total in (min(others), max(others), totals[label]))
    said = (
        f"Every method takes as many rounds as the {name} of {label} allow, with its own numbers of local steps: "
        f"{low if low == high else f'{low} to {high}'} compared with {own}."
    )
    return f"{said} Seconds differ from run to run, so this does not repeat exactly." if kind == "seconds" else said


def _describe_gap(name: str, gap: Difference, better: Direction | None) -> str:
    scale, digits = _scale(name)
    points = " points" if scale == 100 else ""
    far = f"{scale * abs(gap.mean):.{digits}f}{points} behind"
    if gap.interval is None:
        return f"{far}; with {'one seed' if gap.n == 1 else 'two seeds'}, this may be chance"
    low, high = sorted((-scale * end if better == "higher" else scale * end) for end in gap.interval)
    chance = "more than chance" if is_behind(gap, better or "higher") else "within chance"
    interval = f"{low:.{digits}f} to {high:.{digits}f}"
    return f"{far} (95 % interval {interval}, paired over {gap.n} seeds): {chance}"


def _scale(name: str) -> tuple[int, int]:
    return (100, 2) if describe_quantity(name).unit == "share" else (1, 4)


def _count_seeds(value: Spread) -> str:
    return f" (mean of {value.n} seeds)" if value.n > 1 else " (one seed)"


def _is(count: int) -> str:
    return "is" if count == 1 else "are"
