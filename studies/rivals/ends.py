"""`python -m studies.rivals.ends digits-case3 --seeds 401 402 --out ends.json`: with which model a guarded run ends.

FedVecaM trains once per rate and seed. Of each run the file has the loss of its last model and of the guard's best one,
each evaluated on the rows by which the guard judges, and the test accuracies of both. `--read` prints the mean accuracy
for rules that replace the last model where it has lost more than a share of what the loss has fallen by.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import statistics
from collections import deque
from pathlib import Path
from typing import TypedDict

import torch

from fedveca.runs.build import build
from fedveca.runs.checkpoint import make_guard
from fedveca.runs.client_evaluation import ModelEvaluator
from fedveca.runs.evaluate import Evaluator, Keeper
from fedveca.runs.federate import Diverged, federate
from fedveca.runs.schema import get_number
from studies.rivals.run import RATES, make_rival, parse_case

SHARES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class RunEnd(TypedDict):
    case: str
    lr: float
    seed: int
    lost: float  # share of what the loss has fallen by that the last model has lost
    replaces: bool  # whether the best model's own loss is the lower one
    last: float  # test accuracy in per cent
    best: float


def measure_end(job: tuple[str, float, int, str]) -> RunEnd | None:
    """Trains to the end, and evaluates the last model and the guard's best one; None where the guard gave up."""
    case, lr, seed, device = job
    torch.set_num_threads(1)
    built = build(make_rival(case, "fedvecam", {"lr": lr}, seed), device)
    e, guard, evaluator = built.experiment, make_guard(built), ModelEvaluator(built, device)
    assert guard
    if evaluator.needs_judges:
        guard.find_loss = evaluator.find_training_loss
    states = federate(
        built.algorithm, built.cohort, built.state, e.rounds, participation=e.participation, seed=e.seed, guard=guard
    )
    try:
        (state, _), *_ = deque(states, maxlen=1)
    except Diverged:  # such a run ends at its best model
        return None
    keeper, evaluate = Keeper("last", state, round=e.rounds, guard=guard), Evaluator(built.problem, built.data, device)
    last, best, n = evaluator.find_last_loss(keeper), evaluator.find_best_loss(keeper), guard.numbers
    accuracy = [100 * (get_number(evaluate(w), "test_accuracy") or 0.0) for w in (keeper.model, guard.best)]
    lost = (last - n.lowest) / max(n.start - n.lowest, 1e-12)
    return {
        "case": case, "lr": lr, "seed": seed, "lost": lost, "replaces": best < last,
        "last": accuracy[0], "best": accuracy[1],
    }  # fmt: skip


def count_accuracy(end: RunEnd, share: float) -> float:
    """What the run's last model has where the guard's best one replaces it beyond a share."""
    return end["best"] if end["replaces"] and not end["lost"] <= share else end["last"]


def describe_ends(ends: list[RunEnd]) -> str:
    """By case: mean accuracy for each share, how many runs it replaces, and by how much the worst of them falls."""
    lines = [f"{'':32}" + "".join(f"{share:>16g}" for share in SHARES)]
    for case, mine in itertools.groupby(sorted(ends, key=lambda end: end["case"]), lambda end: end["case"]):
        runs, cells = list(mine), []
        for share in SHARES:
            found = [count_accuracy(end, share) for end in runs]
            replaced = sum(end["replaces"] and not end["lost"] <= share for end in runs)
            worst = min(value - end["last"] for value, end in zip(found, runs, strict=True))
            cells.append(f"{statistics.fmean(found):7.2f} {replaced:2d} {worst:5.1f}")
        lines.append(f"{case:32}" + "".join(f"{cell:>16}" for cell in cells))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", type=parse_case, metavar="case")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--seeds", type=int, nargs="+", default=(401, 402, 403, 404))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--read", type=Path, nargs="*", default=[])
    args = parser.parse_args()
    ends: list[RunEnd] = [end for path in args.read for end in json.loads(path.read_text("utf-8"))]
    jobs = [(*job, args.device) for job in itertools.product(args.cases, args.rates, args.seeds)]
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        for end in pool.imap_unordered(measure_end, jobs):
            ends += [end] if end else []
            if args.out:
                args.out.write_text(json.dumps(ends) + "\n", "utf-8")
    print(describe_ends(ends))


if __name__ == "__main__":
    main()
