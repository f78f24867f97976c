"""What the study of rivals shows: `python -m studies.rivals.results docs/results/rivals.json` prints its tables."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from scipy import stats

from fedveca.algorithms.registry import find_method
from fedveca.runs.presets import read_toml
from studies.rivals.run import CASES_FILE, GRID, GRID_SEEDS, RATES, RIVALS, Unit, read_cases

OURS = "fedvecam"
LEVEL = 0.05
Which = Literal["last", "kept"]


class RivalLead(NamedTuple):
    """FedVecaM against a rival on a case, over the same seeds."""

    case: str
    rival: str
    lead: float  # points of accuracy, above 0 where FedVecaM is ahead
    p: float  # of a paired t test, by Holm's rule over all comparisons


def compare_units(units: Iterable[Unit], which: Which) -> list[RivalLead]:
    """Every rival on every case of which FedVecaM has been run, too."""
    by = {(unit["case"], unit["method"]): unit["runs"] for unit in units}
    raw = []
    for (case, rival), runs in by.items():
        if rival == OURS or (case, OURS) not in by:
            continue
        each = [by[case, OURS][seed][which] - runs[seed][which] for seed in runs]
        raw.append(RivalLead(case, rival, statistics.fmean(each), _test(each)))
    adjusted = correct_holm([one.p for one in raw])
    return [one._replace(p=p) for one, p in zip(raw, adjusted, strict=True)]


def _test(differences: list[float]) -> float:
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
    """How FedVecaM stands on a case."""

    case: str
    place: int  # by the mean
    behind: list[RivalLead]  # rivals that are ahead beyond chance
    ahead: list[RivalLead]  # rivals that it is ahead of beyond chance


def judge_cases(units: list[Unit], which: Which) -> list[Verdict]:
    found = []
    comparisons = compare_units(units, which)
    for case in read_cases():
        mine = [one for one in comparisons if one.case == case]
        if mine:
            clear = [one for one in mine if one.p < LEVEL]
            behind = sorted((one for one in clear if one.lead < 0), key=lambda one: one.lead)
            place = 1 + sum(one.lead < 0 for one in mine)
            found.append(Verdict(case, place, behind, [one for one in clear if one.lead > 0]))
    return found


def is_fresh(case: str) -> bool:
    """Whether a case's data took no part in the choice of FedVecaM."""
    found: dict[str, Any] = read_toml(str(CASES_FILE))
    return not found["cases"][case].get("chosen_on", False)


def name_rival(method: str) -> str:
    """As tables call it."""
    name, _, more = method.partition(" ")
    known = find_method(name)
    return f"{known.title if known else name} {more}".strip()


def make_main_table(units: list[Unit], which: Which) -> str:
    """Mean accuracies: a line per case, a column per method; * marks a rival from which FedVecaM differs clearly."""
    by = {(unit["case"], unit["method"]): unit["runs"] for unit in units}
    clear = {(one.case, one.rival) for one in compare_units(units, which) if one.p < LEVEL}
    titles = [name_rival(method) for method in RIVALS]
    lines = [f"| case | {' | '.join(titles)} |", "|---" * (len(titles) + 1) + "|"]
    for case in read_cases():
        if (case, OURS) not in by:
            continue
        cells = []
        for method in RIVALS:
            runs = by.get((case, method))
            value = f"{statistics.fmean(run[which] for run in runs.values()):.2f}" if runs else "–"
            cells.append(value + ("*" if (case, method) in clear else ""))
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return "\n".join(lines)


def make_grid_table(units: list[Unit]) -> str:
    """What happens where nobody tunes: by rate, over all cases and seeds."""
    lines = ["| lr | method | diverged | last %, mean | best − last, worst | returns |", "|---|---|---|---|---|---|"]
    for rate in RATES:
        for method in GRID:
            runs = [run for u in units if u["method"] == method for run in u["grid"].get(f"{rate:g}", {}).values()]
            if runs:
                worst = max(run["best"] - run["last"] for run in runs)
                last = statistics.fmean(run["last"] for run in runs)
                diverged, returns = sum(run["diverged"] for run in runs), sum(run["returns"] for run in runs)
                title = name_rival(method)
                lines.append(
                    f"| {rate:g} | {title} | {diverged} of {len(runs)} | {last:.2f} | {worst:.2f} | {returns} |"
                )
    return "\n".join(lines)


class Findings(NamedTuple):
    """The numbers of the page's sentences."""

    cases: int  # that every method has run
    level: dict[Which, int]  # cases on which no rival is clearly ahead of FedVecaM
    near: int  # tuned runs of FedVecaM that end within a point of their best round
    tuned: int
    diverged: dict[str, int]  # of each method of the grid, at rates up to 0.1
    grid: int  # how many of each there are
    below: int  # of them, runs of FedVecaM that end more than a point below FedAvg's


def keep_complete(units: list[Unit]) -> list[Unit]:
    """The units of the cases that every method has run."""
    done = {case: {unit["method"] for unit in units if unit["case"] == case} for case in read_cases()}
    return [unit for unit in units if done[unit["case"]] == set(RIVALS)]


def find_findings(units: list[Unit]) -> Findings:
    by = {(unit["case"], unit["method"]): unit for unit in units}
    cases = [case for case in read_cases() if (case, OURS) in by]
    runs = [run for case in cases for run in by[case, OURS]["runs"].values()]
    level: dict[Which, int] = {
        which: sum(not verdict.behind for verdict in judge_cases(units, which)) for which in get_args(Which)
    }
    cells = [(case, f"{rate:g}", str(seed)) for case in cases for rate in RATES[:-1] for seed in GRID_SEEDS]
    found = {m: [by[case, m]["grid"][rate][seed] for case, rate, seed in cells] for m in GRID}
    return Findings(
        len(cases),
        level,
        sum(run["best"] - run["last"] <= 1 for run in runs),
        len(runs),
        {method: sum(run["diverged"] for run in some) for method, some in found.items()},
        len(cells),
        sum(ours["last"] < theirs["last"] - 1 for ours, theirs in zip(found[OURS], found["fedavg"], strict=True)),
    )


def main() -> None:
    units: list[Unit] = keep_complete(json.loads(Path(sys.argv[1]).read_text("utf-8")))
    for which in get_args(Which):
        print(f"\n{which}\n\n{make_main_table(units, which)}\n")
        for verdict in judge_cases(units, which):
            behind = ", ".join(f"{one.rival} by {-one.lead:.2f}" for one in verdict.behind)
            print(verdict.case, "place", verdict.place, "| behind", behind or "none", "| ahead of", len(verdict.ahead))
    print(f"\n{make_grid_table(units)}\n\n{find_findings(units)}")


if __name__ == "__main__":
    main()
