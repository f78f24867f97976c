"""Accuracy against bytes up: the forms of `wire`, under three methods.

    python -m studies.wire digits --out docs/results/wire.json
    python -m studies.wire --out docs/results/wire.json --table

The task is in tasks.toml: a preset as it is, with every method's own settings, for so many rounds. No setting
is chosen here; the target accuracy was, on seed 701. What is in --out already is not repeated. `--table`
prints the table of docs/wire.md.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TypedDict

import torch

from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run, describe_environment
from fedveca.runs.folder_types import Environment
from fedveca.runs.run import run
from fedveca.runs.schema import get_number
from fedveca.runs.statistics import mean_and_spread
from fedveca.runs.study import read_study
from fedveca.tasks.datasets.dataset import load

TASKS = {study.name: study for study in read_study(Path(__file__).with_name("tasks.toml"))}
FORMS: dict[str, dict[str, str | float]] = {
    "float32": {"wire": "float32"},
    "float16": {"wire": "float16"},
    "int8": {"wire": "int8"},
    "topk 10 %": {"wire": "topk", "wire_share": 0.1},
    "topk 1 %": {"wire": "topk", "wire_share": 0.01},
}
TARGETS = {"digits": 0.85}  # test accuracy, for the bytes until it is reached


class Outcome(TypedDict):
    """One run."""

    accuracy: float | None  # of the last model on the test rows
    bytes_up: int  # of all clients and rounds
    bytes_to_target: int | None  # until the test accuracy is TARGETS' for the first time; None where it never is


class Content(TypedDict):
    """What wire.json holds: outcomes by task, method, form and seed."""

    command: str
    environment: Environment
    cpu_seconds: float
    results: dict[str, dict[str, dict[str, dict[str, Outcome]]]]


def describe_run(done: Run, target: float) -> Outcome:
    """Accuracy and bytes of a run that was tested after every round."""
    total, reached = 0, None
    for record in done.rounds:
        total += record["bytes_up"]
        accuracy = get_number(record, "test_accuracy")
        if reached is None and accuracy is not None and accuracy >= target:
            reached = total
    last = get_number(done.summary["last"], "test_accuracy")
    return {"accuracy": last, "bytes_up": total, "bytes_to_target": reached}


def make_experiment(task: str, method: str, form: str, seed: int) -> Experiment:
    return TASKS[task].experiment().replace(method=method, seed=seed, **FORMS[form])


def measure(path: Path, tasks: list[str], seeds: int) -> Content:
    """Runs what is not in the file yet; the file is written after each seed."""
    content: Content = {"command": "", "environment": describe_environment("cpu"), "cpu_seconds": 0.0, "results": {}}
    if path.exists():
        content = json.loads(path.read_text("utf-8"))
    content["command"] = f"python -m studies.wire {' '.join(TASKS)} --out docs/results/wire.json"
    for name in tasks:
        task = TASKS[name]
        data, first = load(task.experiment().data), task.experiment().seed
        for seed in range(first, first + seeds):
            began = time.process_time()
            for method in task.methods:
                for form in FORMS:
                    of = content["results"].setdefault(name, {}).setdefault(method, {}).setdefault(form, {})
                    if str(seed) in of:
                        continue
                    done = run(make_experiment(name, method, form, seed), device="cpu", data=data)
                    of[str(seed)] = describe_run(done, TARGETS[name])
                    print(f"{name} {method} {form} {seed}: {of[str(seed)]}", flush=True)
            content["cpu_seconds"] = round(content["cpu_seconds"] + time.process_time() - began, 1)
            path.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    return content


def make_table(content: Content, task: str) -> str:
    """One table: accuracy, bytes in all and bytes until the target, method by method and form by form."""
    goal = f"{100 * TARGETS[task]:.0f} %"
    lines = [
        f"| method | `wire` | kB up per round | accuracy of the last model | kB up until {goal} |",
        "|---|---|---|---|---|",
    ]
    for method, forms in content["results"][task].items():
        for form, by_seed in forms.items():
            runs = list(by_seed.values())
            mean, spread = mean_and_spread([100 * (one["accuracy"] or 0.0) for one in runs])[:2]
            reached = [one["bytes_to_target"] for one in runs]
            found = [count for count in reached if count is not None]
            said = f"{sum(found) / len(found) / 1e3:,.0f}" if found else "-"
            said += "" if len(found) == len(runs) else f" ({len(found)} of {len(runs)} seeds)"
            each = sum(one["bytes_up"] for one in runs) / len(runs) / TASKS[task].experiment().rounds / 1e3
            lines.append(f"| {method} | {form} | {each:,.1f} | {mean:.2f} ± {spread:.2f} % | {said} |")
    return "\n".join(lines)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.wire", description=__doc__.partition("\n")[0])
    parser.add_argument("tasks", nargs="*", help=f"some of {', '.join(TASKS)}")
    parser.add_argument("--out", type=Path, required=True, help="the results, a JSON file; they are added to")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--table", action="store_true", help="print the table of the docs")
    given = parser.parse_args(words)
    torch.set_num_threads(1)
    content = measure(given.out, given.tasks, given.seeds)
    for name in content["results"] if given.table else ():
        print(f"\n**{name}**\n\n{make_table(content, name)}")
