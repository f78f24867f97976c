"""Which method is the best, by how much, and at what cost: the numbers behind what every view says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypedDict

from fedveca.algorithms.registry import is_adaptive, is_pooled
from fedveca.runs.budget import COST_KINDS, COST_NAMES, CostKind, RunBudget, parse_budget
from fedveca.runs.compare import find_budget
from fedveca.runs.schema import Direction
from fedveca.runs.statistics import (
    Difference,
    Spread,
    is_clear,
    paired_difference,
)
from fedveca.views.clients import list_statistics
from fedveca.views.series import WHICH, Curve, Row, Which, find_direction, list_metrics, tabulate
from fedveca.views.targets import FEWEST_SEEDS, Target, find_targets

UNEQUAL = 1.1  # totals of local steps whose ratio is larger are different budgets


class TargetEntry(TypedDict):
    """What one method used up until a target, as `compare --json` prints it."""

    quantity: str
    target: float
    method: str
    cost: str
    mean: float | None  # geometric, over the seeds that reached it
    interval: tuple[float, float] | None  # 95 %, Student's t of the logarithms; None for fewer than three seeds
    reached: int  # seeds
    seeds: int


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
    interval: tuple[float, float] | None  # 95 %, Student's t; None for fewer than three seeds
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
        targets=find_targets(curves, metric, directions[metric]) if metric else [],
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
    """A row minus the best one, over the seeds that both have; None for the best, and where no seed is shared.

    Fewer than three seeds have no interval: it would be far wider than what is possible.
    """
    best = find_leader(comparison, which, name)
    if best is None or best == at:
        return None
    mine, other = (comparison.rows[i].by_seed[which].get(name, {}) for i in (at, best))
    pairs = [(mine[seed], other[seed]) for seed in mine if mine[seed] is not None and other.get(seed) is not None]
    if not pairs:
        return None
    gap = paired_difference([a for a, _ in pairs], [b for _, b in pairs])
    return gap if gap.n >= FEWEST_SEEDS else gap._replace(interval=None)


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
    return best if all(is_behind(find_gap(comparison, i, which, name), better) for i in rivals) else None


class FairProtocol(NamedTuple):
    """What all methods were allowed to use up as much of, and whose total that was."""

    kind: CostKind
    setter: Curve


def find_protocol(curves: Sequence[Curve]) -> FairProtocol | None:
    """How the budgets of these curves were made equal; None where they were not."""
    given = [parse_budget(run.experiment.budget) for curve in curves for run in curve.runs]
    kinds = {budget.kind for budget in given if budget and budget.kind != "clock"}
    if not kinds:
        setter = find_budget_setter(curves)
        return FairProtocol("steps", setter) if setter else None
    for kind in kinds if len(kinds) == 1 else ():
        for curve in curves:
            rivals = [run.experiment for other in curves if other is not curve for run in other.runs]
            finished = {run.experiment.seed: run for run in curve.runs if run.rounds and not run.experiment.budget}
            budgets = {seed: str(RunBudget(kind, find_budget(run, kind))) for seed, run in finished.items()}
            if rivals and len(finished) == len(curve.runs) and all(budgets.get(e.seed) == e.budget for e in rivals):
                return FairProtocol(kind, curve)
    return None


def list_totals(comparison: Comparison) -> dict[str, dict[CostKind, float | None]]:
    """What each method used up per run, the mean over seeds, by kind of cost."""
    return {row.label: {kind: get_total(row, kind).mean for kind in COST_KINDS} for row in comparison.rows}


def get_total(row: Row, kind: CostKind) -> Spread:
    """What a method used up per run, of one kind of cost."""
    return {"steps": row.steps, "rows": row.gradient_rows, "bytes": row.traffic, "seconds": row.seconds}[kind]


def find_budget_setter(curves: Sequence[Curve]) -> Curve | None:
    """The method whose total of local steps each rival with fixed steps got as `tau_all`, seed by seed."""
    rivals = [run.experiment for curve in curves if not is_adaptive(curve.method) for run in curve.runs]
    for curve in curves:
        finished = [run for run in curve.runs if run.summary and not run.diverged]
        if rivals and is_adaptive(curve.method) and finished:
            budgets = {run.experiment.seed: find_budget(run) for run in finished}
            if all(budgets.get(e.seed) == e.tau_all for e in rivals):
                return curve
    return None


def is_exact_share(curves: Sequence[Curve]) -> bool:
    """Whether every rival with fixed steps takes the whole of its budget (`share=exact`)."""
    return all(run.experiment.share == "exact" for c in curves if not is_adaptive(c.method) for run in c.runs)


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


def is_behind(gap: Difference | None, better: Direction) -> bool:
    """Whether a difference to the best is more than chance: its interval is on the worse side of 0."""
    return gap is not None and gap.interval is not None and is_clear(gap, "lower" if better == "higher" else "higher")


def _rival(row: Row, which: Which, name: str) -> float | None:
    return None if is_pooled(row.method) else row.models[which][name].mean


def _check_protocol(protocol: FairProtocol, curves: Sequence[Curve], rows: Sequence[Row]) -> str:
    """In words, how totals differ although a budget was given; less than one round below it is as near as it gets.

    A rival whose first round exceeds the budget has more, and one that did not use it up in all of its rounds has less.
    """
    totals = {
        curve.label: total
        for curve, row in zip(curves, rows, strict=True)
        if not is_pooled(curve.method) and (total := get_total(row, protocol.kind).mean) is not None
    }
    ends = [
        run.ended
        for curve in curves
        if curve is not protocol.setter
        for run in curve.runs
        if run.summary and not run.diverged
    ]
    own = totals.get(protocol.setter.label, 0.0)
    if own and totals and (max(totals.values()) > UNEQUAL * own or None in ends):
        return f"{min(totals.values()):,.6g} to {max(totals.values()):,.6g} {COST_NAMES[protocol.kind]}"
    return ""


def _compare_budgets(curves: Sequence[Curve], rows: Sequence[Row]) -> str:
    """In words, how rounds or local steps differ between rivals; a total that a rival was given does not count."""
    protocol = find_protocol(curves)
    if protocol and protocol.kind != "steps":
        return _check_protocol(protocol, curves, rows)
    rivals = [curve for curve in curves if not is_pooled(curve.method)]
    budgets = {run.experiment.budget if run.ended == "budget" else "" for curve in rivals for run in curve.runs}
    if len(budgets) == 1 and budgets != {""}:
        return ""  # the same one for all
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
