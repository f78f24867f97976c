"""From runs to results: the JSON, the figures and the verdicts on what the paper says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NotRequired, TypedDict, cast

from fedveca.runs.files import read_object
from fedveca.runs.statistics import is_clear, mean_and_spread, paired_difference
from fedveca.runs.study import Study, StudySetting
from studies.paper import claims, claims_svm
from studies.paper.claims import METRICS, Claim, Holds
from studies.paper.figures import EVERY, FIGURES, SO_FAR, draw_results
from studies.paper.measures import (
    MODELS,
    Runs,
    better,
    by_round,
    deviation,
    final_values,
    kept_so_far,
    reaches_reported,
    runs_of,
)
from studies.paper.reported import REPORTED, task_of

CHECKS: dict[str, tuple[Callable[[Runs], Claim | None], ...]] = {
    "table1": (claims.paper_value, claims.mnist_rivals, claims.mnist_scaffold, claims.cifar_all),
    "curves": (claims.centralised_line, claims.scaffold_line, claims.faster, claims.steadier_svm),
    "premise": (claims.premise_holds, claims.premise_steady),
    "cases": (
        claims_svm.case1_overlaps,
        claims_svm.case1_converges,
        claims_svm.case2_first,
        claims_svm.same_rate,
        claims_svm.worse_case3,
    ),
    "instant": (
        claims_svm.tau_swings,
        claims_svm.most_in_turn,
        claims_svm.tau_k_steady,
        claims_svm.L_settles,
        claims_svm.apart,
    ),
    "alpha": (claims_svm.slow_and_smooth, claims_svm.first_and_rough, claims_svm.both),
    "clients": (claims_svm.not_faster, claims_svm.ahead_at_fifty),
}
Recorded = int | float | None | Sequence["Recorded"]


class Values(TypedDict):
    """Mean and standard deviation over seeds; of the rounds, one of each per round."""

    mean: Recorded
    std: Recorded
    values: NotRequired[list[float]]


class Lead(TypedDict):
    """FedVeca minus a rival, over the seeds; `ahead` where that is an advantage beyond chance."""

    mean: Recorded
    interval: Recorded
    ahead: bool


class TableRow(TypedDict):
    """One method of Table I: ours and the paper's."""

    method: str
    seeds: list[int]
    tau_all: float | None
    last: dict[str, Values]
    kept: dict[str, Values]
    paper: dict[str, float]
    reaches_paper: NotRequired[bool]
    fedveca_minus_this: NotRequired[dict[str, dict[str, Lead]]]


class TaskTable(TypedDict):
    """Table I of one task."""

    task: str
    rows: list[TableRow]


class ClaimRow(TypedDict):
    """One sentence of the paper."""

    claim: str
    holds: Holds
    evidence: str


class StudyRow(TypedDict):
    """What was run."""

    preset: str
    settings: dict[str, StudySetting]
    methods: tuple[str, ...]


Curves = dict[str, dict[str, object]]  # by study and method
Results = list[TaskTable] | Curves | dict[str, Curves] | dict[str, dict[str, Values]] | dict[str, Recorded]


class Content(TypedDict):
    """What a result's JSON file holds."""

    what: str
    command: str
    environments: list[dict[str, object]]
    studies: dict[str, StudyRow]
    figures: list[str]
    results: Results
    claims: list[ClaimRow]


def write_results(what: str, studies: Sequence[Study], runs: Runs, folder: Path, command: str) -> Content:
    """Writes what.json and its figures into `folder`; returns what the JSON holds."""
    runs = {study.name: runs[study.name] for study in studies}
    folder.mkdir(parents=True, exist_ok=True)
    made = [claim for check in CHECKS[what] if (claim := check(runs)) is not None]
    content: Content = {
        "what": what,
        "command": command,
        "environments": _environments(runs),
        "studies": {s.name: {"preset": s.preset, "settings": s.settings, "methods": s.methods} for s in studies},
        "figures": [f"{name}.svg" for name in FIGURES[what]],
        "results": RESULTS[what](runs),
        "claims": [{"claim": c.claim, "holds": c.holds, "evidence": c.evidence} for c in made],
    }
    (folder / f"{what}.json").write_text(_dump(content), "utf-8")
    draw_results(content, folder)
    return content


def _table1(runs: Runs) -> list[TaskTable]:
    """One entry per task: every method's final values, the paper's, and FedVeca's lead over it."""
    tables: list[TaskTable] = []
    for study in runs:
        rows: list[TableRow] = []
        for method in dict.fromkeys(run.experiment.method for run in runs[study]):
            mine = runs_of(runs, study, method)
            last, kept = ({m: _final(final_values(mine, which, m)) for m in METRICS} for which in ("last", "kept"))
            row: TableRow = {
                "method": method,
                "seeds": [run.experiment.seed for run in mine],
                "tau_all": mean_and_spread(run.summary["tau_all"] for run in mine).mean,
                "last": last,
                "kept": kept,
                "paper": REPORTED[task_of(study)][method],
            }
            if method == "fedveca":
                row["reaches_paper"] = reaches_reported(kept["test_accuracy"]["values"], row["paper"]["test_accuracy"])
            else:
                row["fedveca_minus_this"] = {
                    "last": {m: _lead(rows[0]["last"][m], last[m], m) for m in METRICS},
                    "kept": {m: _lead(rows[0]["kept"][m], kept[m], m) for m in METRICS},
                }
            rows.append(row)
        tables.append({"task": task_of(study), "rows": rows})
    return tables


def _final(values: Sequence[float]) -> Values:
    each = [float(f"{value:.6g}") for value in values]
    spread = mean_and_spread(each)
    return {"mean": _rounded(spread.mean, 7), "std": _rounded(spread.std, 7), "values": each}


def _lead(ours: Values, theirs: Values, metric: str) -> Lead:
    found = paired_difference(ours["values"], theirs["values"])
    interval = _rounded(found.interval)
    return {"mean": _rounded(found.mean), "interval": interval, "ahead": is_clear(found, better(metric))}


def _curves(runs: Runs) -> Curves:
    """By study and method: local steps, final values, and mean and standard deviation of each round's model."""
    out: Curves = {}
    for study in runs:
        for method in dict.fromkeys(run.experiment.method for run in runs[study]):
            mine = runs_of(runs, study, method)
            end: dict[str, object] = {"tau_all": mean_and_spread(run.summary["tau_all"] for run in mine).mean}
            for which in reversed(MODELS):
                spreads = {m: mean_and_spread(final_values(mine, which, m)) for m in METRICS}
                end[which] = {m: {"mean": _rounded(s.mean), "std": _rounded(s.std)} for m, s in spreads.items()}
            out.setdefault(study, {})[method] = end | _bands(runs, study, method)
    return out


def _curves_kept(runs: Runs) -> dict[str, Curves]:
    kept = {study: [kept_so_far(run) for run in runs[study]] for study in runs}
    return {EVERY: _curves(runs), SO_FAR: _curves(kept)}


def _bands(runs: Runs, study: str, method: str = "fedveca", names: Iterable[str] = METRICS) -> dict[str, Values]:
    out: dict[str, Values] = {}
    for name in names:
        values = by_round(runs_of(runs, study, method), name)
        values = values[:, -1:] if method == "centralised" else values  # a flat line
        out[name] = {"mean": _rounded(values.mean(0).tolist()), "std": _rounded(deviation(values).tolist(), 3)}
    return out


def _premise(runs: Runs) -> dict[str, dict[str, Values]]:
    return {study: _bands(runs, study, names=("premise", "L", "tau_k")) for study in runs}


def _instant(runs: Runs) -> dict[str, Recorded]:
    run = runs_of(runs, next(iter(runs)))[0]
    names = ("round", "tau", "tau_k", "L", "beta", "delta", "A")
    columns = {n: [_rounded(cast(Recorded, line.get(n))) for line in run.rounds[:50]] for n in names}
    return {"seed": run.experiment.seed, **columns}


RESULTS: Mapping[str, Callable[[Runs], Results]] = {
    "table1": _table1,
    "curves": _curves_kept,
    "premise": _premise,
    "cases": _curves,
    "instant": _instant,
    "alpha": lambda runs: _curves({study: runs_of(runs, study) for study in runs}),
    "clients": lambda runs: _curves({s: mine if "clients" in s else runs_of(runs, s) for s, mine in runs.items()}),
}


def _environments(runs: Runs) -> list[dict[str, object]]:
    """What made the runs, each with its studies; no names of machines."""
    found: dict[str, list[str]] = {}
    for study, mine in runs.items():
        for run in mine:
            about = read_object(run.folder, "environment.json") if run.folder else {}
            about.pop("platform", None)
            made = found.setdefault(json.dumps(about), [])
            if study not in made:
                made.append(study)
    return [json.loads(about) | {"studies": made} for about, made in found.items()]


def _rounded(value: Recorded, digits: int = 5) -> Recorded:
    """Numbers to so many digits, through lists."""
    if isinstance(value, Sequence):
        return [_rounded(v, digits) for v in value]
    if isinstance(value, float):
        return None if value != value else float(f"{value:.{digits}g}")
    return value


def _dump(content: Content) -> str:
    """Indented JSON with a list of plain values on one line."""
    text = json.dumps(content, indent=1, allow_nan=False)
    return re.sub(r"\[\n\s+([^\[\]{}]*?)\n\s+\]", lambda m: "[" + re.sub(r"\n\s+", " ", m[1]) + "]", text) + "\n"
