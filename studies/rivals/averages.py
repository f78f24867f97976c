"""`python -m studies.rivals.averages digits-case3 --rates 0.1 0.3 --seeds 401 402`: which average FedVecaM hands out.

FedVecaM trains once per rate and seed; the server's points of all rounds are then averaged in several ways. Printed are
the mean test accuracy of the last model and the largest difference between the best round of a run and its last model.
"""

from __future__ import annotations

import argparse
import statistics

import torch
from torch import Tensor

from fedveca.runs.build import Built, build
from fedveca.runs.checkpoint import make_guard
from fedveca.runs.client_evaluation import ModelEvaluator
from fedveca.runs.evaluate import Evaluator
from fedveca.runs.federate import federate
from fedveca.runs.schema import get_number
from studies.rivals.run import RATES, make_rival, parse_case

FACTORS = (4, 6, 8, 12)


def follow_points(built: Built, device: str) -> list[tuple[int, Tensor]]:
    """After each round, the server's point z [P] and how many rounds the average has; the guard may begin anew."""
    e, guard = built.experiment, make_guard(built)
    evaluator = ModelEvaluator(built, device)
    if guard and evaluator.needs_judges:
        guard.find_loss = evaluator.find_training_loss
    states = federate(
        built.algorithm, built.cohort, built.state, e.rounds, participation=e.participation, seed=e.seed, guard=guard
    )
    return [(int(state.k), state.z) for state, _ in states]


def average_points(points: list[tuple[int, Tensor]], factors: int) -> list[Tensor]:
    """The models of all rounds; z_j counts j (j + 1) ... with so many factors."""
    models: list[Tensor] = []
    for k, z in points:
        models.append(z if k <= 1 else torch.lerp(models[-1], z, (factors + 1) / (factors + k)))
    return models


def measure_models(evaluate: Evaluator, models: list[Tensor]) -> tuple[float, float]:
    """The accuracy of the last one in per cent, and how far it is below the best one."""
    accuracy = [100 * (get_number(evaluate(model), "test_accuracy") or 0.0) for model in models]
    return accuracy[-1], max(accuracy) - accuracy[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", type=parse_case)
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--seeds", type=int, nargs="+", default=(401, 402, 403))
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    for rate in args.rates:
        found: dict[str, list[tuple[float, float]]] = {}
        for seed in args.seeds:
            built = build(make_rival(args.case, "fedvecam", {"lr": rate}, seed), args.device)
            points, evaluate = follow_points(built, args.device), Evaluator(built.problem, built.data, args.device)
            ways = {"latest": [z for _, z in points]} | {f"{n} factors": average_points(points, n) for n in FACTORS}
            for name, models in ways.items():
                found.setdefault(name, []).append(measure_models(evaluate, models))
        for name, runs in found.items():
            last, below = zip(*runs, strict=True)
            print(f"{args.case} lr={rate:g} {name}: {statistics.fmean(last):.2f} ({max(below):.2f})", flush=True)


if __name__ == "__main__":
    main()
