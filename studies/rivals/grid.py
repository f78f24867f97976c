"""What happens where nobody tunes: the methods of GRID at every learning rate, on the seeds GRID_SEEDS."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import NamedTuple

from studies.rivals.cases import OURS, find_chance, find_family, list_cases, name_rival
from studies.rivals.run import GRID, GRID_SEEDS, RATES, RivalOutcome, Unit

MARGIN = 5.0  # points above a guess within which a model is near chance
MODELS = {"linear, MLP": ("linear", "MLP"), "CNN": ("CNN",)}


class Cell(NamedTuple):
    """A run's place in the grid, in which every method has a run."""

    case: str
    rate: str
    seed: str


def list_cells(cases: Iterable[str], rates: Iterable[float] = RATES) -> list[Cell]:
    return [Cell(case, f"{rate:g}", str(seed)) for case in cases for rate in rates for seed in GRID_SEEDS]


def index_grid(units: list[Unit]) -> dict[str, dict[Cell, RivalOutcome]]:
    """The runs of each method of the grid."""
    return {
        method: {
            Cell(unit["case"], rate, seed): run
            for unit in units
            if unit["method"] == method
            for rate, runs in unit["grid"].items()
            for seed, run in runs.items()
        }
        for method in GRID
    }


def is_near_chance(case: str, run: RivalOutcome) -> bool:
    """Whether a run's last model is at most MARGIN points better than a guess."""
    return run["last"] <= find_chance(case) + MARGIN


def has_failed(case: str, run: RivalOutcome) -> bool:
    return run["diverged"] or is_near_chance(case, run)


def find_rate_loss(units: list[Unit], method: str, cases: list[str]) -> float:
    """How far a rate is from the method's best one on the same case, in points: the mean over rates and cases."""
    found, lost = index_grid(units)[method], []
    for case in cases:
        means = [statistics.fmean(found[cell]["last"] for cell in list_cells([case], [rate])) for rate in RATES]
        lost += [max(means) - mean for mean in means]
    return statistics.fmean(lost)


class Against(NamedTuple):
    """FedVecaM against a method with the same rate and seed, over the whole grid."""

    diverged: list[Cell]  # where FedVecaM diverges and the other does not
    failed: list[Cell]  # where it diverges or ends near chance and the other does neither
    spared: list[Cell]  # where the other fails and FedVecaM does not
    ahead: int  # by more than a point
    behind: int


def compare_grid(units: list[Unit], rival: str) -> Against:
    found = index_grid(units)
    pairs = {cell: (found[OURS][cell], found[rival][cell]) for cell in list_cells(list_cases(units))}
    failed = {cell: tuple(has_failed(cell.case, run) for run in pair) for cell, pair in pairs.items()}
    return Against(
        [cell for cell, (ours, theirs) in pairs.items() if ours["diverged"] and not theirs["diverged"]],
        [cell for cell, fails in failed.items() if fails == (True, False)],
        [cell for cell, fails in failed.items() if fails == (False, True)],
        sum(ours["last"] > theirs["last"] + 1 for ours, theirs in pairs.values()),
        sum(ours["last"] < theirs["last"] - 1 for ours, theirs in pairs.values()),
    )


def make_grid_table(units: list[Unit]) -> str:
    """By kind of model and rate: the mean of last models, and how many runs diverged or ended near chance."""
    found, titles = index_grid(units), [name_rival(method) for method in GRID]
    heads = ["model", "lr", "runs", *titles, *(f"{title} fails" for title in titles), "returns"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for model, families in MODELS.items():
        cases = [case for case in list_cases(units) if find_family(case) in families]
        for rate in RATES if cases else ():
            cells = list_cells(cases, [rate])
            means = [f"{statistics.fmean(found[method][cell]['last'] for cell in cells):.2f}" for method in GRID]
            fails = [
                f"{sum(found[method][cell]['diverged'] for cell in cells)}, "
                f"{sum(is_near_chance(cell.case, found[method][cell]) for cell in cells)}"
                for method in GRID
            ]
            returns = sum(found[OURS][cell]["returns"] for cell in cells)
            row = [model, f"{rate:g}", str(len(cells)), *means, *fails, str(returns)]
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)
