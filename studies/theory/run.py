"""What the paper's theory says about FedVeca's runs, and two questions behind it, all on the SVM for MNIST, Case 3.

    python -m studies.theory --out docs/results/theory.json

`conditions`: in how many rounds the conditions of Theorems 1 and 2 and Assumption 2 were met, of 100 rounds and of the
first 50, which docs/results/instant.json shows. `beta`: each client's beta as the method computes it, and along the
same local steps with gradients on all rows and with both gradients on one mini-batch. `weights`: SCAFFOLD with clients
weighted by their rows and uniformly, as Karimireddy et al. have it, with the steps of docs/paper.md's Table I.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Literal, TypedDict

import torch

from fedveca.runs.build import build, cohort_options
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run, describe_environment
from fedveca.runs.folder_types import Environment
from fedveca.runs.run import run
from fedveca.runs.schema import Round, get_number
from fedveca.runs.statistics import mean_and_spread
from fedveca.runs.theory import CONDITIONS, count_conditions, list_values
from fedveca.tasks.datasets.dataset import Dataset, load
from studies.theory.paths import Betas, PathCohort

PRESET = "svm-mnist-case3"
FIRST = 50  # rounds of docs/results/instant.json
ADAPTED = 2  # the first round whose numbers of local steps the controller chose
WEIGHTS: tuple[Literal["rows", "uniform"], ...] = ("rows", "uniform")
MODELS: tuple[Literal["kept", "last"], ...] = ("kept", "last")
SEEDS = 10
TABLE_STEPS = 3004  # FedVeca's local steps in Table I, mean of 10 seeds


class Held(TypedDict):
    """One condition in the rounds in which its value is known."""

    met: int
    rounds: int
    lowest: float
    median: float
    highest: float


class BetaResult(TypedDict):
    """Means over the rounds, client by client."""

    rounds: int
    recorded: list[float]
    full: list[float]
    paired: list[float]
    maxima: int
    at_first: int  # of the maxima, those at lambda = 1
    same_client: int  # rounds in which beta without noise gives the same client the smallest A


class Score(TypedDict):
    """A test value over the seeds."""

    mean: float | None
    std: float


class Content(TypedDict):
    """theory.json."""

    command: str
    environment: Environment
    conditions: dict[str, Held]
    conditions_of_first_rounds: dict[str, Held]
    beta: BetaResult
    weights: dict[str, dict[str, Score]]


def summarize_conditions(records: list[Round]) -> dict[str, Held]:
    """Each condition of a run."""
    counts = count_conditions(records)
    found: dict[str, Held] = {}
    for name in CONDITIONS:
        values = [v for _, v in list_values(records, name)]
        found[name] = {
            "met": counts[name].met,
            "rounds": counts[name].rounds,
            "lowest": min(values),
            "median": statistics.median(values),
            "highest": max(values),
        }
    return found


def summarize_betas(betas: list[list[Betas]], records: list[Round]) -> BetaResult:
    """Of the rounds whose steps were adapted; A has delta as it was recorded."""
    betas = betas[ADAPTED:]
    means = [
        [statistics.fmean(each) for each in zip(*([b[kind] for b in of] for of in betas), strict=True)]
        for kind in range(3)
    ]
    same = 0
    for of, record in zip(betas, records[ADAPTED:], strict=True):
        deltas = [delta or 0.0 for delta in record["delta"]]
        recorded_A, full_A = ([b[kind] ** 2 * delta for b, delta in zip(of, deltas, strict=True)] for kind in (0, 1))
        same += recorded_A.index(min(recorded_A)) == full_A.index(min(full_A))
    at = [b.at for of in betas for b in of]
    recorded, full, paired = ([round(v, 2) for v in mean] for mean in means)
    return {
        "rounds": len(betas),
        "recorded": recorded,
        "full": full,
        "paired": paired,
        "maxima": len(at),
        "at_first": at.count(1),
        "same_client": same,
    }


def follow_run(e: Experiment, data: Dataset | None = None) -> tuple[Run, list[list[Betas]]]:
    """FedVeca's run, and beta along each of its paths."""
    built = build(e, "cpu", data)
    parts = (built.algorithm, built.problem, built.data.x, built.data.y, built.shares)
    cohort = PathCohort(*parts, lr=e.lr, pixels=built.data.pixels, **cohort_options(e))
    done = run(e, device="cpu", data=built.data, cohort=cohort)
    return done, cohort.betas[: len(done.rounds)]


def weigh_clients(e: Experiment, data: Dataset, seeds: int) -> dict[str, dict[str, Score]]:
    """SCAFFOLD's test values, by how its clients are weighted."""
    found: dict[str, dict[str, Score]] = {}
    for weights in WEIGHTS:
        runs = [run(e.replace(seed=seed, weights=weights), device="cpu", data=data) for seed in range(seeds)]
        found[weights] = {}
        for which in MODELS:
            for name in ("test_accuracy", "test_loss"):
                spread = mean_and_spread([get_number(done.summary[which], name) for done in runs])
                found[weights][f"{which}_{name}"] = {"mean": spread.mean, "std": spread.std}
    return found


def main(argv: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the JSON file")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of SCAFFOLD's runs")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    e = Experiment.preset(PRESET)
    data = load(e.data)
    done, betas = follow_run(e, data)
    rival = e.replace(method="scaffold", tau_all=TABLE_STEPS)
    content: Content = {
        "command": "python -m studies.theory --out docs/results/theory.json",
        "environment": describe_environment("cpu"),
        "conditions": summarize_conditions(done.rounds),
        "conditions_of_first_rounds": summarize_conditions(done.rounds[:FIRST]),
        "beta": summarize_betas(betas, done.rounds),
        "weights": weigh_clients(rival, data, args.seeds),
    }
    args.out.write_text(json.dumps(content, indent=1) + "\n")
