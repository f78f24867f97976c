"""The study behind docs/secure_aggregation.md: FedVeca's controller where the server sees no client's numbers.

    python -m studies.secure --out docs/results/secure-scalars.json [--table]

The controller needs min A. Each client could put a 1 into the bin of its own log A; the sum of these vectors, which
secure aggregation gives, is a histogram, and the edge of its lowest bin that is not empty stands for min A. The server
would send the edge, and each client would find its own tau. Here the server computes all this from A itself, so the
histogram is exact and only its bins matter. A few minutes of one core.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

import torch
from torch import Tensor

from fedveca.algorithms import FedVeca, Report
from fedveca.algorithms.contract import Named
from fedveca.algorithms.control import control
from fedveca.algorithms.fedveca import FedVecaState
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import describe_environment
from fedveca.runs.folder_types import Environment
from fedveca.runs.run import run
from fedveca.runs.schema import get_number

BINS = (1, 2, 4, 8, 16, 32)  # per factor of two
SEEDS = (501, 502, 503)
Edge = Literal["lower", "upper"]


def find_edge(A: Tensor, bins: int, edge: Edge) -> Tensor:
    """[]: an edge of the lowest bin of a histogram of log A that is not empty.

    >>> float(find_edge(torch.tensor([3.0, 9.0]), 1, "lower")), float(find_edge(torch.tensor([3.0, 9.0]), 1, "upper"))
    (2.0, 4.0)
    """
    known = A[torch.isfinite(A) & (A > 0)]
    lowest = torch.floor(bins * torch.log2(known.double().min()))
    return torch.exp2((lowest + (edge == "upper")) / bins)


@dataclass(frozen=True)
class HistogramFedVeca(FedVeca):
    """FedVeca whose controller knows min A to the width of a bin."""

    bins: int = 8
    edge: Edge = "lower"

    def update(self, state: FedVecaState, ids: Tensor, p: Tensor, report: Report) -> tuple[FedVecaState, Named]:
        after, seen = super().update(state, ids, p, report)
        if "A" not in seen or not bool((torch.isfinite(seen["A"]) & (seen["A"] > 0)).any()):
            return after, seen
        edge, tau = find_edge(seen["A"], self.bins, self.edge), after.tau.clone()
        A = torch.where(seen["A"] < edge, edge, seen["A"])  # below the upper edge all are the lowest
        tau[ids] = control(torch.cat([A, edge[None]]), self.alpha, self.tau_max)[:-1]
        return after._replace(tau=tau), seen


class ScalarsOutcome(TypedDict):
    """One run."""

    accuracy: float | None  # of the kept model, on test rows
    tau: float  # mean over rounds and clients


class ScalarsContent(TypedDict):
    """What secure-scalars.json holds: outcomes by variant and seed."""

    command: str
    environment: Environment
    results: dict[str, dict[str, ScalarsOutcome]]


def list_variants(bins: tuple[int, ...]) -> dict[str, tuple[int, Edge]]:
    """By name: how many bins, and which edge; none for the paper's controller."""
    edges: tuple[Edge, ...] = ("lower", "upper")
    variants: dict[str, tuple[int, Edge]] = {"exact": (0, "lower")}
    return variants | {f"{edge} {n}": (n, edge) for edge in edges for n in bins}


def measure(e: Experiment, bins: int, edge: Edge) -> ScalarsOutcome:
    """One run."""
    method = HistogramFedVeca(e.lr, e.alpha, e.tau_max, bins=bins, edge=edge) if bins else None
    done = run(e, method=method)
    tau = [float(tau) for record in done.rounds[1:] for tau in record["tau"]]
    return {"accuracy": get_number(done.summary["kept"], "test_accuracy"), "tau": statistics.fmean(tau)}


def make_table(results: dict[str, dict[str, ScalarsOutcome]]) -> str:
    """The outcomes as a table of the docs: means over seeds."""
    lines = ["| what the server knows of A | test accuracy | mean tau |", "|---|---|---|"]
    for name, outcomes in results.items():
        accuracy = statistics.fmean(outcome["accuracy"] or 0.0 for outcome in outcomes.values())
        tau = statistics.fmean(outcome["tau"] for outcome in outcomes.values())
        lines.append(f"| {name} | {100 * accuracy:.1f} % | {tau:.1f} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Runs what is not in --out yet, and writes it there."""
    parser = argparse.ArgumentParser(prog="python -m studies.secure", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many")
    parser.add_argument("--bins", default=",".join(map(str, BINS)), help="per factor of two, with commas between")
    parser.add_argument("--table", action="store_true", help="print the table of the docs")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    content: ScalarsContent = {
        "command": "python -m studies.secure --out docs/results/secure-scalars.json",
        "environment": describe_environment("cpu"),
        "results": {},
    }
    for name, variant in list_variants(tuple(int(n) for n in args.bins.split(","))).items():
        for seed in SEEDS[: args.seeds]:
            e = Experiment.preset("digits-case3", seed=seed, rounds=args.rounds)
            content["results"].setdefault(name, {})[str(seed)] = measure(e, *variant)
            args.out.write_text(json.dumps(content, indent=1) + "\n")
    if args.table:
        print(make_table(content["results"]))
