"""The paper's tables and figures beside ours: from runs to JSON, SVG and verdicts on what the paper says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedveca.algorithms.registry import is_pooled, paper_methods
from fedveca.runs.compare import spread, table
from fedveca.runs.files import read_object
from fedveca.runs.folder import Run
from fedveca.runs.reproduce import Study
from fedveca.views import claims, claims_svm, paper_figures
from fedveca.views.claims import Claim
from fedveca.views.measures import Runs, clear, grid, handed_out, of, paired
from fedveca.views.paper_figures import Numbers, task

# Table I: loss x 100 and accuracy in %, in the order of paper_methods().
_TABLE1 = {
    "svm-mnist": ((22.22, 23.13, 23.14, 23.44, 22.07, 22.06), (86.63, 85.75, 85.76, 85.32, 86.92, 86.87)),
    "cnn-mnist": ((24.25, 32.32, 32.76, 33.05, 20.80, 22.67), (93.04, 90.67, 90.47, 90.37, 93.86, 93.43)),
    "cnn-cifar10": ((160.32, 170.50, 170.77, 171.63, 163.28, 160.88), (42.41, 38.62, 38.17, 38.10, 41.23, 42.38)),
}
PAPER: Numbers = {
    name: {
        method: {"test_loss": round(loss / 100, 6), "test_accuracy": round(accuracy / 100, 6)}
        for method, loss, accuracy in zip(paper_methods(), *columns, strict=True)
    }
    for name, columns in _TABLE1.items()
}
CHECKS: dict[str, tuple[Callable[[Runs, Numbers], Claim | None], ...]] = {
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
FIGURES: dict[str, dict[str, Callable[[Runs, Path], None]]] = {
    "table1": {"table1": lambda runs, path: paper_figures.table1(runs, path, PAPER)},
    "curves": {"curves": paper_figures.curves, "curves-kept": paper_figures.curves_kept},
    "premise": {"premise": paper_figures.premise},
    "cases": {"cases": paper_figures.cases},
    "instant": {"instant": lambda runs, path: paper_figures.instant(of(runs, next(iter(runs)))[0], path)},
    "alpha": {"alpha": paper_figures.alpha},
    "clients": {"clients": paper_figures.clients},
}


def write(what: str, studies: Sequence[Study], runs: Runs, folder: Path, command: str) -> dict[str, Any]:
    """Makes what.json and its figures in `folder`; returns what the JSON holds."""
    runs = {study.name: runs[study.name] for study in studies}
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in FIGURES[what].items():
        draw(runs, folder / f"{name}.svg")
    made = [claim for check in CHECKS[what] if (claim := check(runs, PAPER)) is not None]
    content = {
        "what": what,
        "command": command,
        "environments": _environments(runs),
        "studies": {s.name: {"preset": s.preset, "settings": s.settings, "methods": s.methods} for s in studies},
        "figures": [f"{name}.svg" for name in FIGURES[what]],
        "results": RESULTS[what](runs),
        "claims": [claim._asdict() for claim in made],
    }
    (folder / f"{what}.json").write_text(_compact(content), "utf-8")
    return content


def _table1(runs: Runs) -> list[dict[str, Any]]:
    """One entry a task: every method's closing values, the paper's, and FedVeca's lead over it."""
    out = []
    for study in runs:
        rows: list[dict[str, Any]] = []
        for row in table(list(runs[study])):
            method, name = row["method"], task(study)
            for which in ("last", "kept"):
                row[which] = {m: _spread(v["values"]) for m, v in row[which].items()}
            row["paper"] = PAPER[name][method]
            if method == "fedveca":
                kept = row["kept"]["test_accuracy"]
                row["reaches_paper"] = kept["mean"] >= row["paper"]["test_accuracy"] - kept["std"]
            else:
                row["fedveca_minus_this"] = {
                    which: {m: _lead(rows[0][which][m], row[which][m], m) for m in row[which]}
                    for which in ("last", "kept")
                }
            rows.append(row)
        out.append({"task": task(study), "rows": rows})
    return out


def _spread(values: Sequence[float]) -> dict[str, Any]:
    each: list[float | None] = [float(f"{v:.6g}") for v in values]
    return {name: _short(v, 7) for name, v in spread(each).items()}


def _lead(ours: dict[str, Any], theirs: dict[str, Any], metric: str) -> dict[str, Any]:
    found = paired(ours["values"], theirs["values"])
    return {name: _short(v) for name, v in found.items()} | {"ahead": clear(found, metric)}


def _curves(runs: Runs) -> dict[str, Any]:
    """By study and method: local steps, closing values, and mean and standard deviation of each round's model."""
    out: dict[str, Any] = {}
    for study, mine in runs.items():
        for row in table(list(mine)):
            end: dict[str, Any] = {"tau_all": row["tau_all"]}
            for which in ("last", "kept"):
                end[which] = {m: {k: _short(v[k]) for k in ("mean", "std")} for m, v in row[which].items()}
            out.setdefault(study, {})[row["method"]] = end | _band(of(runs, study, row["method"]))
    return out


def _curves_kept(runs: Runs) -> dict[str, Any]:
    kept = {study: [handed_out(run) for run in runs[study]] for study in runs}
    return {"every round's model": _curves(runs), "the model kept so far": _curves(kept)}


def _band(runs: Sequence[Run], names: Sequence[str] = claims.METRICS) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name in names:
        values = grid(runs, name)
        values = values[:, -1:] if is_pooled(runs[0].experiment.method) else values  # a flat line
        std = values.std(0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])
        out[name] = {"mean": _short(values.mean(0).tolist()), "std": _short(std.tolist(), 3)}
    return out


def _premise(runs: Runs) -> dict[str, Any]:
    return {study: _band(of(runs, study), ("premise", "L", "tau_k")) for study in runs}


def _instant(runs: Runs) -> dict[str, Any]:
    run = of(runs, next(iter(runs)))[0]
    names = ("round", "tau", "tau_k", "L", "beta", "delta", "A")
    return {"seed": run.experiment.seed} | {n: [_short(line.get(n)) for line in run.rounds[:50]] for n in names}


RESULTS: Mapping[str, Callable[[Runs], Any]] = {
    "table1": _table1,
    "curves": _curves_kept,
    "premise": _premise,
    "cases": _curves,
    "instant": _instant,
    "alpha": lambda runs: _curves({study: of(runs, study) for study in runs}),
    "clients": lambda runs: _curves({s: v if "clients" in s else of(runs, s) for s, v in runs.items()}),
}


def _environments(runs: Runs) -> list[dict[str, Any]]:
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


def _short(value: Any, digits: int = 5) -> Any:
    """Numbers to so many digits, through lists."""
    if isinstance(value, list):
        return [_short(v, digits) for v in value]
    if isinstance(value, float):
        return None if value != value else float(f"{value:.{digits}g}")
    return value


def _compact(content: dict[str, Any]) -> str:
    """Indented JSON with a list of plain values on one line."""
    text = json.dumps(content, indent=1, allow_nan=False)
    return re.sub(r"\[\n\s+([^\[\]{}]*?)\n\s+\]", lambda m: "[" + re.sub(r"\n\s+", " ", m[1]) + "]", text) + "\n"
