"""Which method is the best, by how much, and at what cost: what the terminal and the report say alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple, TypedDict

from fedveca.algorithms.registry import is_adaptive, is_pooled
from fedveca.runs.compare import find_budget
from fedveca.runs.folder import Run
from fedveca.runs.schema import Direction, describe_quantity, format_spread, format_value, get_number
from fedveca.runs.statistics import (
    CostMean,
    Difference,
    Spread,
    is_clear,
    mean_cost,
    paired_difference,
    rounds_to_reach,
)
from fedveca.views.clients import list_statistics
from fedveca.views.series import WHICH, Curve, Row, Which, find_direction, list_metrics, sum_costs, tabulate

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99, 0.995, 0.999)
USUAL_LEVELS = (0.8, 0.9, 0.95)  # of a share, where some method reaches two of them
MOST_TARGETS = 3
COSTS = ("rounds", "steps", "rows", "bytes", "seconds")  # what methods use up until a target
UNEQUAL = 1.1  # totals of local steps whose ratio is larger are different budgets


class Reached(NamedTuple):
    """What one method used up until a target, over the seeds that reached it."""

    cost: CostMean | None  # None where no seed reached it
    lowest: float
    highest: float
    arrived: int  # seeds that reached it
    seeds: int

    @property
    def complete(self) -> bool:
        """Whether every seed reached it: only then is the mean one of the method."""
        return self.arrived == self.seeds


class TargetEntry(TypedDict):
    """What one method used up until a target, as `compare --json` prints it."""

    quantity: str
    target: float
    method: str
    cost: str
    mean: float | None  # geometric, over the seeds that reached it
    interval: tuple[float, float] | None  # 95 %, Student's t of the logarithms
    reached: int  # seeds
    seeds: int


class Target(NamedTuple):
    """A value of the metric, and what every method used up until it, by axis."""

    value: float
    costs: list[dict[str, Reached]]  # by row and axis


class Comparison(NamedTuple):
    """Methods over seeds: their rows, the metric that decides, and how they stand to the best."""

    curves: Sequence[Curve]
    rows: list[Row]
    names: list[str]  # test values, the decisive one first
    statistics: dict[str, str]  # aggregates over clients, each with its test value; empty where clients test nothing
    directions: dict[str, Direction | None]
    which: Which  # the models that the sentences are about
    same_models: bool  # whether kept and last models have the same values throughout
    budgets: str  # how the budgets differ, "" where they are alike
    targets: list[Target]

    @property
    def metric(self) -> str:
        """The test value that decides, "" where nothing was tested."""
        return self.names[0] if self.names else ""

    @property
    def models(self) -> tuple[Which, ...]:
        """The models that differ: one column is enough where they do not."""
        return (self.which,) if self.same_models else WHICH


class GapEntry(TypedDict):
    """A row minus the best row of the same model and quantity, as `compare --json` prints it."""

    model: Which
    quantity: str
    best: str
    method: str
    mean: float
    interval: tuple[float, float] | None  # 95 %, Student's t; None for one seed
    seeds: int
    clear: bool  # the whole interval is on one side of 0


def compare_curves(curves: Sequence[Curve]) -> Comparison:
    """Puts together what can be said of these curves; pure numbers, no words but those on budgets."""
    runs = [run for curve in curves for run in curve.runs]
    statistics = list_statistics(runs)
    rows = tabulate(curves, statistics)
    names = [name for name in list_metrics(runs) if name.startswith("test_")]
    directions = {name: find_direction(runs, name) for name in names}
    main = {run.metric for run in runs}
    names.sort(key=lambda name: (directions[name] is None, name == "test_loss", name not in main))
    directions |= {name: find_direction(runs, name) for name in statistics}
    metric = names[0] if names else ""
    kept = any(row.models["kept"][metric].mean is not None for row in rows) if metric else True
    same = bool(names) and all(row.by_seed["kept"] == row.by_seed["last"] for row in rows)
    return Comparison(
        curves=curves,
        rows=rows,
        names=names,
        statistics=statistics,
        directions=directions,
        which="kept" if kept else "last",
        same_models=same,
        budgets=_compare_budgets(curves, rows),
        targets=_find_targets(curves, metric, directions[metric]) if metric else [],
    )


def find_leader(comparison: Comparison, which: Which, name: str) -> int | None:
    """The place of the row with the best mean; None for equal ones, and where budgets differ. Pooled is not a rival."""
    better = comparison.directions[name]
    rivals = [(mean, i) for i, row in enumerate(comparison.rows) if (mean := _rival(row, which, name)) is not None]
    if better is None or len(rivals) < 2 or comparison.budgets:
        return None
    rivals.sort(key=lambda rival: rival[0], reverse=better == "higher")
    return rivals[0][1] if rivals[0][0] != rivals[1][0] else None


def find_gap(comparison: Comparison, at: int, which: Which, name: str) -> Difference | None:
    """A row minus the best one, over the seeds that both have; None for the best, and where no seed is shared."""
    best = find_leader(comparison, which, name)
    if best is None or best == at:
        return None
    mine, other = (comparison.rows[i].by_seed[which].get(name, {}) for i in (at, best))
    pairs = [(mine[seed], other[seed]) for seed in mine if mine[seed] is not None and other.get(seed) is not None]
    return paired_difference([a for a, _ in pairs], [b for _, b in pairs]) if pairs else None


def list_gaps(comparison: Comparison) -> list[GapEntry]:
    """The paired differences to the best row, for both models and every test value with a best row."""
    found: list[GapEntry] = []
    for which in WHICH:
        for name in comparison.names:
            best = find_leader(comparison, which, name)
            for at, row in enumerate(comparison.rows):
                gap = find_gap(comparison, at, which, name)
                if best is not None and gap is not None:
                    found.append(
                        GapEntry(
                            model=which,
                            quantity=name,
                            best=comparison.rows[best].method,
                            method=row.method,
                            mean=gap.mean,
                            interval=gap.interval,
                            seeds=gap.n,
                            clear=gap.interval is not None and not gap.interval[0] <= 0 <= gap.interval[1],
                        )
                    )
    return found


def find_winner(comparison: Comparison, which: Which, name: str) -> int | None:
    """The best row if every rival is behind it by more than chance: no paired 95 % interval includes 0."""
    best, better = find_leader(comparison, which, name), comparison.directions[name]
    if best is None or better is None:
        return None
    rivals = (i for i, row in enumerate(comparison.rows) if i != best and _rival(row, which, name) is not None)
    return best if all(_is_behind(find_gap(comparison, i, which, name), better) for i in rivals) else None


def find_budget_setter(curves: Sequence[Curve]) -> Curve | None:
    """The method whose total of local steps each rival with fixed steps got as `tau_all`, seed by seed."""
    rivals = [run.experiment for curve in curves if not is_adaptive(curve.method) for run in curve.runs]
    for curve in curves:
        finished = [run for run in curve.runs if run.summary]
        if rivals and is_adaptive(curve.method) and finished:
            budgets = {run.experiment.seed: find_budget(run) for run in finished}
            if all(budgets.get(e.seed) == e.tau_all for e in rivals):
                return curve
    return None


def find_main_target(targets: Sequence[Target]) -> Target:
    """The hardest of these targets that most methods reach, else the easiest one."""
    for target in reversed(targets):
        reached = sum(2 * costs["rounds"].arrived > costs["rounds"].seeds for costs in target.costs)
        if 2 * reached > len(target.costs):
            return target
    return targets[0]


def list_targets(comparison: Comparison) -> list[TargetEntry]:
    """The costs until every target, by method and kind of cost."""
    return [
        TargetEntry(
            quantity=comparison.metric,
            target=target.value,
            method=row.label,
            cost=axis,
            mean=reached.cost.mean if reached.cost else None,
            interval=reached.cost.interval if reached.cost else None,
            reached=reached.arrived,
            seeds=reached.seeds,
        )
        for target in comparison.targets
        for row, costs in zip(comparison.rows, target.costs, strict=True)
        for axis, reached in costs.items()
    ]


def give_answer(comparison: Comparison) -> str:
    """The result in a sentence or two that can be quoted: the best, the next, their paired difference."""
    c, name, which = comparison, comparison.metric, comparison.which
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


def explain_table(comparison: Comparison) -> list[str]:
    """Sentences to read below the table: what ± is, what is bold, how many steps everyone took, what was repeated."""
    c, said = comparison, []
    several = any(row.seeds > 1 for row in c.rows)
    if several:
        said.append("± is one standard deviation over seeds.")
    elif len(c.rows) > 1:
        said.append("One seed each: differences may be due to chance, and nothing is marked as the best.")
    if any(row.diverged for row in c.rows):
        said.append("Runs that diverged are left out.")
    if several and len(c.rows) > 1 and not c.budgets:
        said.append(
            "A difference to the best is paired by seed, with a 95 % t interval, each on its own (not corrected for "
            "the number of methods). A value is marked as the best only if no rival's interval includes 0."
        )
    if setter := find_budget_setter(c.curves):
        totals = [row.steps.mean for row in c.rows if row.label != setter.label and row.steps.mean is not None]
        own = next(row.steps.mean for row in c.rows if row.label == setter.label)
        if totals and own is not None:
            low, high = (f"{total:,.0f}" for total in (min(totals), max(totals)))
            said.append(
                f"Methods with fixed steps take at most as many local steps as {setter.label} (rounded down per client "
                f"and round): {low if low == high else f'{low} to {high}'} compared with {own:,.0f}."
            )
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


def explain_costs(comparison: Comparison) -> list[str]:
    """Sentences to read below the costs until targets."""
    c = comparison
    if not c.targets:
        return []
    every = {run.experiment.test_every for curve in c.curves for run in curve.runs}
    tested = f" (tested every {max(every)} rounds)" if max(every) > 1 else ""
    said = [f"Never: the target was not reached within the run{tested}."]
    if any(row.seeds > 1 for row in c.rows):
        said.insert(0, "A cost until a target is the geometric mean over seeds, with a 95 % t interval.")
        each = [costs["rounds"] for target in c.targets for costs in target.costs]
        if any(reached.cost and not reached.complete for reached in each):
            said.insert(1, "Where some seeds never reach it: how many do, and the lowest to the highest cost of those.")
    said.append("Rows are those of the local steps' mini-batches.")
    return said


def format_cost(axis: str, value: float) -> str:
    """Rounds, steps, megabytes or seconds for people."""
    if not math.isfinite(value):
        return "never"
    if axis == "bytes":
        value /= 1e6
    return f"{value:,.3g}" if axis in ("bytes", "seconds") and value < 100 else f"{value:,.0f}"


def describe_early_ends(curves: Sequence[Curve]) -> str:
    """Which methods ended before their last round, and when; "" where none did."""
    parts = []
    for curve in curves:
        if ended := [run for run in curve.runs if run.ended]:
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


def _describe_gap(name: str, gap: Difference, better: Direction | None) -> str:
    scale, digits = _scale(name)
    points = " points" if scale == 100 else ""
    far = f"{scale * abs(gap.mean):.{digits}f}{points} behind"
    if gap.interval is None:
        return f"{far}; with one seed, this may be chance"
    low, high = sorted((-scale * end if better == "higher" else scale * end) for end in gap.interval)
    chance = "more than chance" if _is_behind(gap, better or "higher") else "within chance"
    interval = f"{low:.{digits}f} to {high:.{digits}f}"
    return f"{far} (95 % interval {interval}, paired over {gap.n} seeds): {chance}"


def _is_behind(gap: Difference | None, better: Direction) -> bool:
    return gap is not None and gap.n > 1 and is_clear(gap, "lower" if better == "higher" else "higher")


def _rival(row: Row, which: Which, name: str) -> float | None:
    return None if is_pooled(row.method) else row.models[which][name].mean


def _scale(name: str) -> tuple[int, int]:
    return (100, 2) if describe_quantity(name).unit == "share" else (1, 4)


def _count_seeds(value: Spread) -> str:
    return f" (mean of {value.n} seeds)" if value.n > 1 else " (one seed)"


def _is(count: int) -> str:
    return "is" if count == 1 else "are"


def _compare_budgets(curves: Sequence[Curve], rows: Sequence[Row]) -> str:
    """In words, how rounds or local steps differ between rivals; a total that a rival was given does not count."""
    rivals = [curve for curve in curves if not is_pooled(curve.method)]
    rounds = [run.experiment.rounds for curve in rivals for run in curve.runs]
    if len(set(rounds)) > 1:
        return f"{min(rounds):,} to {max(rounds):,} rounds"
    setter = find_budget_setter(curves)
    steps = [
        row.steps.mean
        for row, curve in zip(rows, curves, strict=True)
        if not is_pooled(row.method) and row.steps.mean and (setter in (None, curve) or is_adaptive(row.method))
    ]
    if len(steps) > 1 and max(steps) > UNEQUAL * min(steps):
        return f"{min(steps):,.0f} to {max(steps):,.0f} local steps"
    return ""


def _find_targets(curves: Sequence[Curve], name: str, better: Direction | None) -> list[Target]:
    """The targets that runs have, and levels: 80, 90 and 95 % where a rival reaches two of these.

    Elsewhere up to three levels that at least one rival reaches in at least half of its seeds.
    """
    if better is None:
        return []
    stated = {run.experiment.target for curve in curves for run in curve.runs if run.experiment.target}
    each = [[_list_values(run, name) for run in curve.runs if not run.diverged] for curve in curves]
    pick = max if better == "higher" else min
    rivals = [mine for mine, curve in zip(each, curves, strict=True) if not is_pooled(curve.method)] or each
    tops = [median(tested) for mine in rivals if (tested := [pick(v) for y in mine if (v := _known(y))])]
    starts = [v[0] for mine in rivals for y in mine if (v := _known(y))]
    if not tops:
        return []
    top = pick(tops)
    if better == "higher" and describe_quantity(name).unit == "share":
        values = [level for level in LEVELS if level <= top and level > min(starts)]
        values = list(USUAL_LEVELS) if top >= USUAL_LEVELS[1] else values
    else:
        way = [max(starts) if better == "lower" else min(starts), top]
        values = [_shorten(way[0] + share * (way[1] - way[0]), better) for share in (0.5, 0.8, 0.95)]
        beyond = (lambda v: way[0] > v >= top) if better == "lower" else (lambda v: way[0] < v <= top)
        values = sorted(filter(beyond, set(values)), reverse=better == "lower")
    values = sorted({*values[-MOST_TARGETS:], *stated}, reverse=better == "lower")
    return [Target(value, [_reach(curve, name, value, better) for curve in curves]) for value in values]


def _reach(curve: Curve, name: str, target: float, better: Direction) -> dict[str, Reached]:
    found: dict[str, list[float]] = {axis: [] for axis in COSTS}
    for run in curve.runs:
        k = None if run.diverged else rounds_to_reach(_list_values(run, name), target, better)
        for axis, values in sum_costs(run).items() if k else ():
            found[axis].append(values[(k or 1) - 1])
    return {axis: _summarise(values, len(curve.runs)) for axis, values in found.items()}


def _summarise(costs: list[float], seeds: int) -> Reached:
    if not costs:
        return Reached(None, math.inf, math.inf, 0, seeds)
    return Reached(mean_cost(costs), min(costs), max(costs), len(costs), seeds)


def _list_values(run: Run, name: str) -> list[float | None]:
    return [get_number(record, name) for record in run.rounds]


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _shorten(value: float, better: Direction) -> float:
    """Two significant digits, rounded to the easier side, so that a value that was reached stays reached."""
    if not value:
        return 0.0
    unit = 10 ** (math.floor(math.log10(abs(value))) - 1)
    return float(f"{(math.ceil if better == 'lower' else math.floor)(value / unit) * unit:.2g}")
