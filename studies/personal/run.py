"""What a head of its own is worth to a client: FedPer compared with FedAvg and FedAvg with fine-tuning.

    python -m studies.personal --seeds 3 --out docs/results/personal.json

Each writer of MNIST is a client. Accuracy is on the rows that each client holds back, of the model that it would use:
w_k with FedAvg, w_k after ten local steps of its own with fine-tuning, and w_k with the client's head with FedPer. What
all runs have in common is in preset.toml; FedPer is examples/fedper.py.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple, TypedDict

import torch

from fedveca.runs.experiment import Experiment, preset
from fedveca.runs.folder import describe_environment
from fedveca.runs.run import run
from fedveca.runs.schema import get_number

EXAMPLES = Path(__file__).parents[2] / "examples"
COMMON = preset(str(Path(__file__).with_name("preset.toml")))
METHODS = {"FedAvg": "fedavg", "FedPer": "fedper:FedPer"}
PARTS: dict[str, dict[str, int | float]] = {  # each client trains in about as many rounds in the first two
    "all clients, 20 rounds": {"participation": 1.0, "rounds": 20},
    "a tenth, 200 rounds": {"participation": 0.1, "rounds": 200},
    "a tenth, 40 rounds": {"participation": 0.1, "rounds": 40},
}


class Job(NamedTuple):
    """One run."""

    part: str
    method: str
    seed: int


class Row(TypedDict):
    """One way to personalise in one setting: percentages, of each seed."""

    part: str
    way: str
    mean: list[float]  # over clients
    worst: list[float]  # of the worst tenth
    bytes_up: float  # of the whole run


def measure(job: Job) -> list[Row]:
    """What a run's clients find on their rows, as they are and, with FedAvg, after local steps."""
    torch.set_num_threads(1)
    sys.path.insert(0, str(EXAMPLES))
    settings = COMMON | PARTS[job.part] | {"method": METHODS[job.method], "seed": job.seed}
    done = run(Experiment(**settings, test_every=int(PARTS[job.part]["rounds"])), device="cpu")
    last, sent = done.summary["last"], float(sum(record["bytes_up"] for record in done.rounds))
    ways = {job.method: "clients"} | ({f"{job.method}, fine-tuned": "tuned"} if job.method == "FedAvg" else {})
    rows = []
    for way, name in ways.items():
        mean, worst = (get_number(last, f"{name}_accuracy{which}") for which in ("", "_worst"))
        assert mean is not None
        assert worst is not None
        rows.append(Row(part=job.part, way=way, mean=[100 * mean], worst=[100 * worst], bytes_up=sent))
    print(rows, flush=True)
    return rows


def collect(found: list[Row]) -> list[Row]:
    """One row per setting and way, over the seeds."""
    rows: dict[tuple[str, str], Row] = {}
    for row in found:
        there = rows.setdefault((row["part"], row["way"]), Row({**row, "mean": [], "worst": []}))
        there["mean"] += row["mean"]
        there["worst"] += row["worst"]
    return list(rows.values())


def make_table(rows: list[Row]) -> str:
    """The table of docs/howto/method.md: mean and standard deviation over the seeds."""
    lines = ["| who takes part | model of a client | mean accuracy | worst tenth | sent up |", "|---|---|---|---|---|"]
    for row in rows:
        mean, worst = (f"{statistics.fmean(v):.1f} ± {statistics.stdev(v):.1f}" for v in (row["mean"], row["worst"]))
        lines.append(f"| {row['part']} | {row['way']} | {mean} | {worst} | {row['bytes_up'] / 1e6:.0f} MB |")
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1)
    args = parser.parse_args()
    jobs = [Job(part, method, seed) for part in PARTS for method in METHODS for seed in range(args.seeds)]
    with ProcessPoolExecutor(args.processes, get_context("spawn")) as pool:
        rows = collect([row for found in pool.map(measure, jobs) for row in found])
    content = {"settings": COMMON, "parts": PARTS, "seeds": args.seeds, "environment": describe_environment("cpu")}
    if args.out:
        args.out.write_text(json.dumps(content | {"rows": rows}, indent=1) + "\n")
    print(make_table(rows))
