"""What differential privacy costs: epsilon and accuracy over the noise, FedVeca beside FedAvg.

    python benchmarks/privacy.py --out docs/results/privacy.json

A hundred clients share the digits of scikit-learn evenly; every client takes part in every round.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from fedveca.runs.build import build
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import describe_environment
from fedveca.runs.run import run
from fedveca.tasks.datasets.dataset import load

COMMON: dict[str, Any] = {
    "clients": 100,
    "partition": "case1",
    "rounds": 15,
    "batch": 8,
    "lr": 0.3,
    "tau_0": 5,
    "test_every": 15,
}
NOISE = (0.0, 1.0, 4.0, 16.0, 64.0)
METHODS = {
    "FedAvg": {"method": "fedavg", "dp_clip": 2.0},
    "SCAFFOLD": {"method": "scaffold", "dp_clip": 2.0},
    "FedNova": {"method": "fednova", "dp_clip": 0.5},
    "FedVeca": {"method": "fedveca", "dp_clip": 0.5},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    digits, rows = load("digits"), []
    for name, settings in METHODS.items():
        for keep in ("last", "best"):
            for participation in (1.0, 0.1):
                e = Experiment(**(COMMON | settings | {"keep": keep, "participation": participation, "dp_noise": 16.0}))
                account = build(e, data=digits).account
                assert account
                rows.append({"method": name, "keep": keep, "participation": participation, "noise": 16.0})
                rows[-1]["epsilon"] = account.spent_in_all(COMMON["rounds"])
                print(rows[-1], flush=True)
    for name, settings in METHODS.items():
        for noise in NOISE:
            done = [
                run(Experiment(**(COMMON | settings | {"keep": "last", "dp_noise": noise, "seed": seed})), data=digits)
                for seed in range(args.seeds)
            ]
            rows.append({"method": name, "keep": "last", "participation": 1.0, "noise": noise})
            rows[-1]["epsilon"] = done[0].summary.get("epsilon")
            rows[-1]["accuracy"] = statistics.fmean(r.summary["last"]["test_accuracy"] or 0.1 for r in done)
            print(rows[-1], flush=True)
    content = {"settings": COMMON, "methods": METHODS, "seeds": args.seeds, "environment": describe_environment("cpu")}
    if args.out:
        args.out.write_text(json.dumps(content | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
