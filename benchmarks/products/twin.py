"""How well a deployment's times are predicted: three nodes on this machine, slowed on purpose (1x, 5x and 2x).

    python -m benchmarks.products.twin --rounds 10 --out docs/results/twin.json

Devices are fitted to two runs over Flower. The first is replayed, and its rounds are predicted from its other rounds.
Then `fedveca plan` says what three other experiments will take on the fitted devices: another number of local steps,
another mini-batch, and another method with a larger model. Each is run afterwards over the same nodes, and compared.
`benchmarks.products.slow_rows` is what slows the nodes; all else is a deployment as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.products.slow_rows import FACTORS, NODE_DATA, SLOW_ROW_MS
from fedveca.deploy.launch import Federation
from fedveca.deploy.local import follow
from fedveca.deploy.provision import write_app
from fedveca.deploy.replay import replay
from fedveca.runs.device_fit import collect_samples, fit_devices, measure_rounds, write_devices
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.plan import make_plan

NODES = len(FACTORS)
FITTED = Experiment(model="svm", clients=NODES, batch=16, lr=0.05, round_timeout=120.0)
LOSSES = replace(FITTED, method="fedavg", tau_0=4)  # whose clients compute losses alone, too
OTHERS = {
    "FedAvg, tau = 12": replace(FITTED, method="fedavg", tau_0=12),
    "FedVeca, batch 8": replace(FITTED, batch=8),
    "FedNova, MLP, tau = 8": replace(FITTED, method="fednova", model="mlp", tau_0=8),
}


def deploy(federation: Federation, folder: Path, name: str, e: Experiment) -> Run:
    """One run over the nodes."""
    app, out = folder / f"app-{name}", folder / name
    write_app(app, e)
    federation.submit([f"out={json.dumps(str(out))}"], app)
    follow(federation, out, NODES)
    return Run.open(out)


def measure(folder: Path, rounds: int, row_ms: float) -> dict[str, object]:
    """All four runs, one after another."""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
    slow = {"FEDVECA_NODE_DATA": NODE_DATA, SLOW_ROW_MS: str(row_ms), "PYTHONPATH": path}
    with Federation(folder / "deployment", NODES, slow) as federation:
        fitted = deploy(federation, folder, "fitted", replace(FITTED, rounds=rounds))
        again = replay(fitted)
        losses = deploy(federation, folder, "losses", replace(LOSSES, rounds=max(2, rounds // 2)))
        profiles = fit_devices(collect_samples(fitted) + collect_samples(losses), NODES)
        devices = folder / "devices.toml"
        devices.write_text(write_devices(profiles, "fitted"))
        plans = []
        for n, (title, e) in enumerate(OTHERS.items()):
            e = replace(e, rounds=max(2, rounds // 2))
            plan = make_plan(e, str(devices))  # before it starts
            done = deploy(federation, folder, f"other-{n}", e)
            seconds = sum(measure_rounds(done))
            moved = sum(record["bytes_down"] + record["bytes_up"] for record in done.rounds)
            plans.append(
                {
                    "run": title,
                    "way": plan.way,
                    "rounds": plan.rounds,
                    "seconds": seconds,
                    "predicted_seconds": plan.seconds,
                    "seconds_error": plan.seconds / seconds - 1,
                    "bytes": moved,
                    "predicted_bytes": plan.bytes_down + plan.bytes_up,
                    "bytes_error": (plan.bytes_down + plan.bytes_up) / moved - 1,
                    "whole_seconds": done.summary["seconds"],
                }
            )
            print(json.dumps(plans[-1]), flush=True)
    errors = [abs(time.error) for time in again.times]
    return {
        "row_ms": row_ms,
        "factors": FACTORS,
        "profiles": [asdict(p) | {"down_mbit": None, "up_mbit": None} for p in profiles],
        "replay": {
            "same": again.is_same,
            "difference": again.difference,
            "rounds": [{"measured": t.measured, "predicted": t.predicted, "error": t.error} for t in again.times],
            "mean_error": sum(errors) / len(errors),
            "largest_error": max(errors),
        },
        "plans": plans,
    }


def format_tables(found: dict[str, Any]) -> str:
    """What docs/twin.md has of a result, in Markdown."""
    again, count = found["replay"], len(found["replay"]["rounds"])
    lines = [
        f"weights differ by {again['difference']:g}; {count} rounds: {100 * again['mean_error']:.0f} % off on average, "
        f"{100 * again['largest_error']:.0f} % at the most",
        "",
        "| round | measured s | predicted s | error |",
        "|---|---|---|---|",
    ]
    for k, t in enumerate(again["rounds"], 1):
        lines.append(f"| {k} | {t['measured']:.1f} | {t['predicted']:.1f} | {100 * t['error']:+.1f} % |")
    lines += ["", "| run | rounds | seconds | predicted | error | bytes | error |", "|---|---|---|---|---|---|---|"]
    for p in found["plans"]:
        seconds = f"{p['seconds']:.1f} | {p['predicted_seconds']:.1f} | {100 * p['seconds_error']:+.1f} %"
        lines.append(f"| {p['run']} | {p['rounds']} | {seconds} | {p['bytes']:,} | {100 * p['bytes_error']:+.1f} % |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="of the run that is fitted; the others have half of it")
    parser.add_argument("--row-ms", type=float, default=15.0, help="milliseconds per row of the fastest node")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), args.rounds, args.row_ms)
    print(format_tables(found))
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
