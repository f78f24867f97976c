"""What an average like FedVecaM's gives to its rivals: `python -m studies.rivals.averaged digits-case3 --out FILE`.

FedVecaM's model is an average of the server's points. Here the models of other methods are averaged with the same
weights. The rules are those of the study (`studies.rivals.run`): rows, settings tried, seeds. Each method's settings
are chosen for its averaged model. The runs themselves do not change, only what they return.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
from pathlib import Path
from typing import Any, TypedDict

import torch

from fedveca.runs.build import build
from fedveca.runs.client_evaluation import ModelEvaluator
from fedveca.runs.federate import Diverged, federate
from fedveca.runs.schema import get_number
from studies.rivals.averages import average_points
from studies.rivals.cases import OURS, name_rival
from studies.rivals.results import LEVEL, RivalLead, correct_holm, find_p
from studies.rivals.run import (
    STORED,
    VAL,
    Tried,
    Unit,
    choose_settings,
    list_tuned,
    make_rival,
    parse_case,
    read_cases,
    read_plan,
    tune,
)

METHODS = ("fedavg", "scaffold tuned", "fedacg")
FACTORS = 8  # as in FedVecaM


class AveragedUnit(TypedDict):
    """A method on a case, its model an average."""

    case: str
    method: str
    tuning: list[Tried]
    settings: dict[str, Any]
    runs: dict[str, float]  # test accuracy of the last average in per cent, by seed


def find_accuracy(case: str, method: str, settings: dict[str, Any], seed: int, device: str, val: float) -> float:
    """Of the last average in per cent: on the rows held back where there are any, else on the test rows."""
    built = build(make_rival(case, method, settings, seed).replace(val=val), device)
    e, evaluator = built.experiment, ModelEvaluator(built, device)
    states = federate(built.algorithm, built.cohort, built.state, e.rounds, participation=e.participation, seed=e.seed)
    points, state = [], built.state
    try:
        for k, (state, _) in enumerate(states):
            points.append((k + 1, state.w))
    except Diverged:
        return 0.0
    found = evaluator.describe(e.rounds, state, average_points(points, FACTORS)[-1])
    return 100 * (get_number(found, "val_accuracy" if val else "test_accuracy") or 0.0)


def measure_averaged(job: tuple[str, str, str]) -> AveragedUnit:
    """Chooses the settings, then runs the seeds with them."""
    case, method, device = job
    torch.set_num_threads(1)

    def find(settings: dict[str, Any], seed: int, val: float = VAL) -> float:
        return find_accuracy(case, method, settings, seed, device, val)

    plan, tuning = read_plan(case), list[Tried]()
    tune(plan, list_tuned(method, plan.rates), tuning, find)
    best = choose_settings(tuning)
    runs = {str(seed): round(find(best, seed, 0.0), 3) for seed in plan.seeds}
    return {"case": case, "method": method, "tuning": tuning, "settings": best, "runs": runs}


def compare_averaged(stored: list[Unit], averaged: list[AveragedUnit]) -> list[RivalLead]:
    """FedVecaM against each of them over the same seeds, by Holm's rule over all."""
    ours = {unit["case"]: unit["runs"] for unit in stored if unit["method"] == OURS}
    raw = []
    for unit in averaged:
        each = [ours[unit["case"]][seed]["last"] - last for seed, last in unit["runs"].items()]
        raw.append(RivalLead(unit["case"], unit["method"], statistics.fmean(each), find_p(each)))
    return [lead._replace(p=p) for lead, p in zip(raw, correct_holm([lead.p for lead in raw]), strict=True)]


def make_averaged_table(stored: list[Unit], averaged: list[AveragedUnit]) -> str:
    """A line per case: FedVecaM, and each method without and with the average; * where that differs from FedVecaM."""
    known = {
        (unit["case"], unit["method"]): statistics.fmean(r["last"] for r in unit["runs"].values()) for unit in stored
    }
    mean = {(unit["case"], unit["method"]): statistics.fmean(unit["runs"].values()) for unit in averaged}
    clear = {(lead.case, lead.rival) for lead in compare_averaged(stored, averaged) if lead.p < LEVEL}
    titles = [title for method in METHODS for title in (name_rival(method), "averaged")]
    lines = [f"| case | {name_rival(OURS)} | {' | '.join(titles)} |", "|---" * (len(titles) + 2) + "|"]
    for case in read_cases():
        if (case, METHODS[0]) in mean:
            cells = [f"{known[case, OURS]:.2f}"]
            for at in ((case, method) for method in METHODS):
                cells += [f"{known[at]:.2f}", f"{mean[at]:.2f}{'*' if at in clear else ''}"]
            lines.append(f"| {case} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", type=parse_case, metavar="case")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    units: list[AveragedUnit] = json.loads(args.out.read_text("utf-8")) if args.out.exists() else []
    known = {(unit["case"], unit["method"]) for unit in units}
    jobs = [(case, method, args.device) for case in args.cases for method in args.methods.split(",")]
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        for unit in pool.imap_unordered(measure_averaged, [job for job in jobs if job[:2] not in known]):
            units.append(unit)
            args.out.write_text(json.dumps(units) + "\n", "utf-8")
            mean = sum(unit["runs"].values()) / len(unit["runs"])
            print(f"{unit['case']} {unit['method']} {unit['settings']}: {mean:.2f} %", flush=True)
    print(make_averaged_table(json.loads(STORED.read_text("utf-8")), units))


if __name__ == "__main__":
    main()
