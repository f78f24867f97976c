"""The study behind docs/guard.md: what guard=on does over learning rates at which some methods diverge.

    python -m studies.guard svm digits --out docs/results/guard.json --table
    python -m studies.guard --out docs/results/guard.json --table

The tasks are in tasks.toml. Every method runs at every rate with guard=off and guard=on, on seeds 411 to 413; the rules
of the guard were chosen on seeds 401 and 402 (`--choose`). Methods that do not choose their local steps take 10.
What is in --out already is not repeated.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import TypedDict

import torch

from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run, describe_environment
from fedveca.runs.folder_types import Environment
from fedveca.runs.guard import GROWTH
from fedveca.runs.run import run
from fedveca.runs.schema import Round, get_number
from fedveca.runs.study import read_study
from fedveca.tasks.datasets.dataset import Dataset, load

TASKS = {study.name: study for study in read_study(Path(__file__).with_name("tasks.toml"))}
RATES = (0.003, 0.01, 0.03, 0.1)
CHOICE_SEEDS = (401, 402)
COMMAND = "python -m studies.guard svm digits --out docs/results/guard.json --table"


class GuardOutcome(TypedDict):
    """One run."""

    best: float  # the highest test accuracy of a round
    last: float  # of the last model
    kept: float
    loss: float | None  # test loss of the last model; None where it is not finite
    diverged: bool  # whether the run ended early, or with a loss of GROWTH times that of its first round
    returns: int  # how often the guard went back


class GuardPair(TypedDict):
    """The same run without and with the guard."""

    off: GuardOutcome
    on: GuardOutcome
    same: int  # rounds at the beginning whose records are equal, except for the seconds
    rounds: int


class GuardContent(TypedDict):
    """What guard.json holds: pairs by task, method, rate and seed."""

    command: str
    environment: Environment
    results: dict[str, dict[str, dict[str, dict[str, GuardPair]]]]


def describe_run(done: Run) -> GuardOutcome:
    """The closing values of a run, and whether it diverged."""
    last, first = done.summary["last"], get_number(done.rounds[0], "test_loss") if done.rounds else None
    loss = get_number(last, "test_loss")
    far = loss is None or (first is not None and loss > GROWTH * first)
    return {
        "best": max((get_number(record, "test_accuracy") or 0.0 for record in done.rounds), default=0.0),
        "last": get_number(last, "test_accuracy") or 0.0,
        "kept": get_number(done.summary["kept"], "test_accuracy") or 0.0,
        "loss": loss,
        "diverged": far or "stopped" in done.summary,
        "returns": done.summary.get("guarded", 0),
    }


def run_pair(e: Experiment, data: Dataset) -> GuardPair:
    """Trains twice."""
    off, on = (run(e.replace(guard=guard), device="cpu", data=data) for guard in ("off", "on"))
    same = 0
    for a, b in zip(off.rounds, on.rounds, strict=False):
        if _without_seconds(a) != _without_seconds(b):
            break
        same += 1
    return {"off": describe_run(off), "on": describe_run(on), "same": same, "rounds": len(off.rounds)}


def _without_seconds(record: Round) -> dict[str, object]:
    return {name: value for name, value in record.items() if name not in ("seconds", "warning")}


def measure(path: Path, tasks: list[str], seeds: list[int], rates: tuple[float, ...] = RATES) -> GuardContent:
    """Runs what is not in the file yet; the file is written after each pair."""
    content: GuardContent = {"command": COMMAND, "environment": describe_environment("cpu"), "results": {}}
    if path.exists():
        content = json.loads(path.read_text())
    for name in tasks:
        task, found = TASKS[name], content["results"].setdefault(name, {})
        data = load(task.experiment().data)
        for seed in seeds:
            for method in task.methods:
                for rate in rates:
                    of = found.setdefault(method, {}).setdefault(f"{rate:g}", {})
                    if str(seed) in of:
                        continue
                    e = task.experiment().replace(method=method, lr=rate, seed=seed)
                    of[str(seed)] = run_pair(e, data)
                    print(f"{name} {method} {rate:g} {seed}: {of[str(seed)]}", flush=True)
                    path.write_text(json.dumps(content, indent=1) + "\n")
    return content


def make_table(content: GuardContent) -> str:
    """A table per task: means over the seeds, and how many of them diverged."""
    lines = []
    for name, found in content["results"].items():
        lines += [f"\n**{name}**\n"]
        lines += [
            "| method | lr | diverged, off | last %, off | diverged, on | last %, on | best − last, on | returns |"
        ]
        lines += ["|---|---|---|---|---|---|---|---|"]
        for method, rates in found.items():
            lines += [_make_row(method, rate, list(pairs.values())) for rate, pairs in rates.items()]
    return "\n".join(lines)


def _make_row(method: str, rate: str, pairs: list[GuardPair]) -> str:
    off, on = [pair["off"] for pair in pairs], [pair["on"] for pair in pairs]
    cells = [method, rate]
    for some in (off, on):
        cells.append(f"{sum(each['diverged'] for each in some)} of {len(some)}")
        cells.append(f"{100 * statistics.fmean(each['last'] for each in some):.2f}")
    cells.append(f"{100 * max(each['best'] - each['last'] for each in on):.2f}")
    cells.append(", ".join(str(each["returns"]) for each in on))
    return f"| {' | '.join(cells)} |"


def main(words: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help=", ".join(TASKS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--choose", action="store_true", help="the seeds on which the rules of the guard were chosen")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args(words)
    torch.set_num_threads(1)
    if unknown := set(args.tasks) - set(TASKS):
        parser.error(f"{min(unknown)} is not a task")
    seeds = list(CHOICE_SEEDS if args.choose else range(411, 411 + args.seeds))
    content = measure(args.out, args.tasks, seeds)
    if args.table:
        print(make_table(content))
