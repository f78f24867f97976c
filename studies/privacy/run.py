"""What differential privacy costs: epsilon and accuracy over the noise, FedVeca compared with FedAvg.

    python -m studies.privacy --out docs/results/privacy.json

A hundred clients share the digits of scikit-learn evenly; every client takes part in every round. What all runs have
in common is in preset.toml.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import NotRequired, TypedDict

import torch

from fedveca.runs.build import build
from fedveca.runs.experiment import Experiment, preset
from fedveca.runs.folder import describe_environment
from fedveca.runs.run import run
from fedveca.runs.schema import get_number
from fedveca.tasks.datasets.dataset import load

Settings = dict[str, str | int | float]
COMMON = preset(str(Path(__file__).with_name("preset.toml")))
NOISE = (0.0, 1.0, 4.0, 16.0, 64.0)
METHODS: dict[str, Settings] = {
    "FedAvg": {"method": "fedavg", "dp_clip": 2.0},
    "SCAFFOLD": {"method": "scaffold", "dp_clip": 2.0},
    "FedNova": {"method": "fednova", "dp_clip": 0.5},
    "FedVeca": {"method": "fedveca", "dp_clip": 0.5},
}


class Row(TypedDict):
    """One method under one noise; the accuracy is the mean over seeds, a run that diverged counting as a guess."""

    method: str
    keep: str
    participation: float
    noise: float
    epsilon: float | None
    accuracy: NotRequired[float]


def measure(seeds: int) -> list[Row]:
    """Epsilon of every method with and without a kept model and sampling, then accuracy over the noise."""
    digits, rows = load("digits"), list[Row]()
    for name, settings in METHODS.items():
        for keep in ("last", "best"):
            for participation in (1.0, 0.1):
                more = {"keep": keep, "participation": participation, "dp_noise": 16.0}
                e = Experiment(**(COMMON | settings | more))
                account = build(e, data=digits).account
                assert account
                epsilon = account.spent_in_all(e.rounds)
                rows.append(Row(method=name, keep=keep, participation=participation, noise=16.0, epsilon=epsilon))
                print(rows[-1], flush=True)
    for name, settings in METHODS.items():
        for noise in NOISE:
            done = []
            for seed in range(seeds):
                more = {"keep": "last", "dp_noise": noise, "seed": seed}
                done.append(run(Experiment(**(COMMON | settings | more)), data=digits))
            row = Row(method=name, keep="last", participation=1.0, noise=noise, epsilon=done[0].summary.get("epsilon"))
            shares = (get_number(r.summary["last"], "test_accuracy") for r in done)
            row["accuracy"] = statistics.fmean(share or 0.1 for share in shares)
            rows.append(row)
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = measure(args.seeds)
    content = {"settings": COMMON, "methods": METHODS, "seeds": args.seeds, "environment": describe_environment("cpu")}
    if args.out:
        args.out.write_text(json.dumps(content | {"rows": rows}, indent=1) + "\n")
