"""What the study of rivals shows: `python -m studies.rivals.results docs/results/rivals.json` prints its tables."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from scipy import stats

from studies.rivals.cases import OURS, group_cases, keep_complete, list_cases, name_rival
from studies.rivals.grid import compare_grid, find_rate_loss, make_grid_table
from studies.rivals.run import GRID, RATES, RIVALS, Unit, count_budget
from studies.rivals.swings import make_swing_table

LEVEL = 0.05
NEAR = 0.3  # points: methods so close to the nearest one of a group are advised as well
ADVISED = {  # groups of cases, as the table of what to take names them
    "all clients, linear": "all clients in every round, linear model",
    "all clients, MLP": "all clients, network of dense layers",
    "all clients, CNN": "all clients, CNN",
    "all clients, Case 3 or Dirichlet 0.1": "all clients, labels very unevenly spread (Case 3, Dirichlet 0.1)",
    "all clients, Dirichlet 0.5": "all clients, labels less unevenly spread (Dirichlet 0.5)",
    "a fifth, linear": "a fifth of the clients per round, linear model",
    "a fifth, MLP": "a fifth of the clients, network of dense layers",
    "a fifth, CNN": "a fifth of the clients, CNN",
    "all": "one method for everything",
}
Which = Literal["last", "kept"]


class RivalLead(NamedTuple):
    """FedVecaM, or the method that is looked at, against a rival on a case, over the same seeds."""

    case: str
    rival: str
    lead: float  # points of accuracy, above 0 where FedVecaM is ahead
    p: float  # of a paired t test, by Holm's rule over all comparisons


def compare_units(units: Iterable[Unit], which: Which, ours: str = OURS) -> list[RivalLead]:
    """Every rival on every case of which FedVecaM, or the method `ours`, has been run, too."""
    by = {(unit["case"], unit["method"]): unit["runs"] for unit in units}
    raw = []
    for (case, rival), runs in by.items():
        if rival == ours or (case, ours) not in by:
            continue
        each = [by[case, ours][seed][which] - runs[seed][which] for seed in runs]
        raw.append(RivalLead(case, rival, statistics.fmean(each), find_p(each)))
    adjusted = correct_holm([one.p for one in raw])
    return [one._replace(p=p) for one, p in zip(raw, adjusted, strict=True)]


def find_p(differences: list[float]) -> float:
    """The p value of a mean that differs from 0."""
    if statistics.pstdev(differences) == 0:
        return 1.0 if differences[0] == 0 else 0.0
    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def correct_holm(p: list[float]) -> list[float]:
    """Holm's correction: the i-th smallest of n is multiplied by n - i + 1, and none may be below a smaller one.

    Examples:
        >>> correct_holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p)), key=p.__getitem__)
    corrected, highest = [0.0] * len(p), 0.0
    for rank, at in enumerate(order):
        highest = max(highest, min(1.0, (len(p) - rank) * p[at]))
        corrected[at] = highest
    return corrected


class Verdict(NamedTuple):
    """How FedVecaM, or the method that is looked at, stands on a case."""

    case: str
    place: int  # by the mean
    behind: list[RivalLead]  # rivals that are ahead beyond chance
    ahead: list[RivalLead]  # rivals that it is ahead of beyond chance


def judge_cases(units: list[Unit], which: Which, ours: str = OURS) -> list[Verdict]:
    found = []
    comparisons = compare_units(units, which, ours)
    for case in list_cases(units):
        mine = [one for one in comparisons if one.case == case]
        if mine:
            clear = [one for one in mine if one.p < LEVEL]
            behind = sorted((one for one in clear if one.lead < 0), key=lambda one: one.lead)
            place = 1 + sum(one.lead < 0 for one in mine)
            found.append(Verdict(case, place, behind, [one for one in clear if one.lead > 0]))
    return found


def make_main_table(units: list[Unit], which: Which, methods: Sequence[str] = tuple(RIVALS)) -> str:
    """Mean accuracies: a line per case, a column per method; * marks a rival from which FedVecaM differs clearly."""
    by = {(unit["case"], unit["method"]): unit["runs"] for unit in units}
    clear = {(one.case, one.rival) for one in compare_units(units, which) if one.p < LEVEL}
    titles = [name_rival(method) for method in methods]
    lines = [f"| case | {' | '.join(titles)} |", "|---" * (len(titles) + 1) + "|"]
    for case in list_cases(units):
        cells = []
        for method in methods:
            runs = by.get((case, method))
            value = f"{statistics.fmean(run[which] for run in runs.values()):.2f}" if runs else "–"
            cells.append(value + ("*" if (case, method) in clear else ""))
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return "\n".join(lines)


class Standing(NamedTuple):
    """A method on a group of cases."""

    method: str
    distance: float  # from the best method of each case: the mean over the cases, in points
    level: int  # cases on which no other method is ahead of it beyond chance
    rates: list[float]  # that tuning chose


def rank_methods(units: list[Unit], which: Which) -> dict[str, list[Standing]]:
    """Every method on every group of cases, the nearest to the best first; each is judged as FedVecaM is."""
    by = {(unit["case"], unit["method"]): unit for unit in units}
    mean = {at: statistics.fmean(run[which] for run in unit["runs"].values()) for at, unit in by.items()}
    clear = {m: {v.case for v in judge_cases(units, which, m) if v.behind} for m in RIVALS}
    ranked = {}
    for group, cases in group_cases(units).items():
        found = [
            Standing(
                method,
                statistics.fmean(max(mean[case, m] for m in RIVALS) - mean[case, method] for case in cases),
                sum(case not in clear[method] for case in cases),
                sorted({by[case, method]["settings"]["lr"] for case in cases}),
            )
            for method in RIVALS
        ]
        ranked[group] = sorted(found, key=lambda one: one.distance)
    return ranked


def make_group_table(units: list[Unit], standings: dict[str, list[Standing]]) -> str:
    """A line per group, a column per method: its distance from the best, and the cases on which none is ahead."""
    groups = group_cases(units)
    lines = [f"| cases | {' | '.join(map(name_rival, RIVALS))} |", "|---" * (len(RIVALS) + 1) + "|"]
    for group, ranked in standings.items():
        found = {one.method: f"{one.distance:.2f} ({one.level})" for one in ranked}
        lines.append(f"| {group}: {len(groups[group])} | {' | '.join(found[method] for method in RIVALS)} |")
    return "\n".join(lines)


def choose_methods(ranked: list[Standing]) -> list[Standing]:
    """The nearest to the best, and those within NEAR of it."""
    return [one for one in ranked if one.distance <= ranked[0].distance + NEAR]


def make_advice_table(units: list[Unit], standings: dict[str, list[Standing]]) -> str:
    """What to take in which situation."""
    groups = group_cases(units)
    lines = ["| your situation | take | points from the best (level) | rates |", "|---|---|---|---|"]
    for group, title in ADVISED.items():
        if group not in groups:
            continue
        chosen, count = choose_methods(standings[group]), len(groups[group])
        names = [name_rival(one.method) for one in chosen]
        columns = (
            f"**{' or '.join(', '.join(names).rsplit(', ', 1))}**",
            ", ".join(f"{one.distance:.2f} ({one.level} of {count})" for one in chosen),
            "; ".join(_write_span(one.rates) for one in chosen),
        )
        lines.append(f"| {title} | {' | '.join(columns)} |")
    return "\n".join(lines)


def _write_span(rates: list[float]) -> str:
    return f"{rates[0]:g}" if len(rates) == 1 else f"{rates[0]:g} to {rates[-1]:g}"


def count_level(units: list[Unit], which: Which) -> dict[str, int]:
    """On how many cases of each group no rival is clearly ahead of FedVecaM."""
    level = {verdict.case for verdict in judge_cases(units, which) if not verdict.behind}
    return {group: sum(case in level for case in cases) for group, cases in group_cases(units).items()}


def count_edges(units: list[Unit], method: str) -> tuple[int, int]:
    """On how many cases tuning chose the lowest rate, and on how many the highest: beyond them nobody looked."""
    rates = [unit["settings"]["lr"] for unit in units if unit["method"] == method]
    return rates.count(RATES[0]), rates.count(RATES[-1])


def find_spent(units: list[Unit], method: str) -> dict[str, tuple[float, float]]:
    """Gradient rows of a method's runs as parts of the budget: the lowest and the highest, by case."""
    found = {}
    for unit in units:
        if unit["method"] == method:
            rows = [run["rows"] / count_budget(unit["case"]) for run in unit["runs"].values()]
            found[unit["case"]] = min(rows), max(rows)
    return found


def main() -> None:
    units: list[Unit] = keep_complete(json.loads(Path(sys.argv[1]).read_text("utf-8")))
    for which in get_args(Which):
        standings = rank_methods(units, which)
        print(f"\n{which}\n\n{make_advice_table(units, standings)}\n\n{make_group_table(units, standings)}\n")
        print(f"{make_main_table(units, which)}\n\nlevel {count_level(units, which)}\n")
        for verdict in judge_cases(units, which):
            behind = ", ".join(f"{one.rival} by {-one.lead:.2f}" for one in verdict.behind)
            print(verdict.case, "place", verdict.place, "| behind", behind or "none", "| ahead of", len(verdict.ahead))
    for method in RIVALS:
        spent = find_spent(units, method).values()
        print(f"{method}: {min(low for low, _ in spent):.1%} to {max(high for _, high in spent):.1%} of the budget")
    print("\nrates at the edge", {method: count_edges(units, method) for method in RIVALS})
    print(f"\n{make_swing_table(units)}\n\n{make_grid_table(units)}\n")
    for rival in GRID[1:]:
        print(f"against {rival} with the same rate:", compare_grid(units, rival))
    for group, cases in group_cases(units).items():
        print(group, "rate loss", {method: round(find_rate_loss(units, method, cases), 2) for method in GRID})


if __name__ == "__main__":
    main()
