"""The study behind docs/method.md's section on the probe: how many rows of a client, and which.

    python -m studies.probe digits svm --out docs/results/probe.json [--confirm]
    python -m studies.probe cnn-short --seeds 2 --variants 1024,auto,fedavg --out docs/results/probe.json
    python -m studies.probe cnn resnet --device cuda --out docs/results/probe.json [--confirm]
    python -m studies.probe --out docs/results/probe.json --table

The tasks are in tasks.toml. A variant is a number of rows (the same, evenly spaced ones in every round), all rows,
auto, the rows of the round's first mini-batches, fresh rows in every round, or a probe whose gradient is the first step
as well; the latter three have as many rows as auto. FedAvg takes as many steps as FedVeca with probe=auto. Variants are
judged on seeds 401 to 404; `--confirm` repeats the choice, auto and FedAvg, and 1,024 rows on seeds 411 to 414. What is
in --out already is not repeated. Seconds are of the process's CPU time in one thread, so that a busy machine does not
count; on a CUDA device they are of the clock.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import TypedDict

import torch

from fedveca.runs.build import build, cohort_options
from fedveca.runs.experiment import Experiment, count_probe_rows
from fedveca.runs.folder import Run, describe_environment
from fedveca.runs.folder_types import Environment
from fedveca.runs.run import run
from fedveca.runs.schema import get_number
from fedveca.runs.study import Study, read_study
from fedveca.tasks.datasets.dataset import Dataset, load
from studies.probe.variants import DrawnProbe, ProbeFirst

TASKS = {study.name: study for study in read_study(Path(__file__).with_name("tasks.toml"))}
REFERENCE, CHOSEN, FEDAVG = "1024", "auto", "fedavg"
VARIANTS = (REFERENCE, CHOSEN, "50", "100", "200", "400", "all", "first mini-batches", "fresh", "first step", FEDAVG)
CONFIRMED = (REFERENCE, CHOSEN, FEDAVG)
LATER = 10  # from a seed on which variants are judged to the one on which the choice is confirmed


class Outcome(TypedDict):
    """One run."""

    kept: float | None  # test accuracy
    last: float | None
    tau: list[float]  # mean over the rounds, client by client
    step_rows: int  # gradient rows of local steps
    probe_rows: int  # gradient rows of the probe
    seconds: float


class Content(TypedDict):
    """What probe.json holds: outcomes by task, variant and seed."""

    command: str
    environment: Environment
    results: dict[str, dict[str, dict[str, Outcome]]]


def make_experiment(task: Study, variant: str, seed: int) -> Experiment:
    """The settings of a variant; those that are not a number of rows have auto's."""
    e = task.experiment().replace(seed=seed, probe="auto")
    if variant == "all":
        return e.replace(probe=0)
    return e.replace(probe=int(variant)) if variant.isdigit() else e


def run_variant(e: Experiment, variant: str, data: Dataset, device: str) -> Outcome:
    """Trains once and counts."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    method = ProbeFirst(e.lr, e.alpha, e.tau_max) if variant == "first step" else None
    built = build(e, device, data, method=method)
    parts = (built.algorithm, built.problem, built.data.x, built.data.y, built.shares)
    options = cohort_options(e) | {"pixels": built.data.pixels}
    cohort = built.cohort
    if variant in ("first mini-batches", "fresh"):
        cohort = DrawnProbe(*parts, rows="fresh" if variant == "fresh" else "first", device=device, **options)
    began = clock()
    done = run(e, device=device, data=built.data, cohort=cohort, method=method)
    if device == "cuda":
        torch.cuda.synchronize()
    return describe_run(done, built.shares.sizes.tolist(), variant, clock() - began)


def describe_run(done: Run, sizes: list[int], variant: str, seconds: float) -> Outcome:
    """Accuracy, steps and gradient rows of a run in which every client took part in every round."""
    e, taus = done.experiment, [record["tau"] for record in done.rounds]
    steps, rows = sum(map(sum, taus)), count_probe_rows(e)
    if variant == "first step":
        steps -= sum(map(len, taus))  # those steps' mini-batches need no gradient
    probed = sum(min(rows, size) if rows else size for size in sizes) * len(taus)
    return {
        "kept": get_number(done.summary["kept"], "test_accuracy"),
        "last": get_number(done.summary["last"], "test_accuracy"),
        "tau": [round(statistics.fmean(each), 3) for each in zip(*taus, strict=True)],
        "step_rows": steps * e.batch,
        "probe_rows": 0 if e.method == FEDAVG else probed,
        "seconds": round(seconds, 2),
    }


def measure(path: Path, tasks: list[str], variants: list[str], seeds: list[int], device: str) -> Content:
    """Runs what is not in the file yet; the file is written after each run."""
    content: Content = {"command": "", "environment": describe_environment(device), "results": {}}
    if path.exists():
        content = json.loads(path.read_text())
    content["command"] = "python -m studies.probe digits svm --out docs/results/probe.json"
    for name in tasks:
        task, found = TASKS[name], content["results"].setdefault(name, {})
        data = load(task.experiment().data)
        for seed in seeds:
            for variant in variants:
                of = found.setdefault(variant, {})
                if str(seed) in of:
                    continue
                e = make_experiment(task, variant, seed)
                if variant == FEDAVG:
                    e = e.replace(method=FEDAVG, tau_all=found[CHOSEN][str(seed)]["step_rows"] // e.batch)
                of[str(seed)] = run_variant(e, variant, data, device)
                print(f"{name} {variant} {seed}: {of[str(seed)]}", flush=True)
                path.write_text(json.dumps(content, indent=1) + "\n")
    return content


def make_table(content: Content) -> str:
    """A table per task, seeds to judge and seeds to confirm apart."""
    lines = []
    for name, found in content["results"].items():
        first = TASKS[name].experiment().seed
        for of, begin in (("judged", first), ("confirmed", first + LATER)):
            seeds = [str(seed) for seed in range(begin, begin + LATER) if str(seed) in found[REFERENCE]]
            if seeds:
                said = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
                lines += [f"\n**{name}**, {of} on {said}\n", *_make_rows(found, seeds)]
    return "\n".join(lines)


def _make_rows(found: dict[str, dict[str, Outcome]], seeds: list[str]) -> list[str]:
    lines = ["| probe | kept % | last % | steps | client's steps | probe's share of gradient rows | times FedAvg |"]
    lines.append("|---|---|---|---|---|---|---|")
    for variant, all_runs in found.items():
        mine = [seed for seed in seeds if seed in all_runs]
        if not mine:
            continue
        kept, last = (
            100 * statistics.fmean(all_runs[seed][which] or 0.1 for seed in mine) for which in ("kept", "last")
        )
        pairs = [(all_runs[seed]["tau"], found[REFERENCE][seed]["tau"]) for seed in mine if seed in found[REFERENCE]]
        total = 100 * (statistics.fmean(sum(a) / sum(b) for a, b in pairs) - 1)
        means = [(statistics.fmean(a), statistics.fmean(b)) for a, b in _by_client(pairs)]
        most = max((100 * (a / b - 1) for a, b in means), key=abs)
        share = statistics.fmean(
            all_runs[s]["probe_rows"] / (all_runs[s]["probe_rows"] + all_runs[s]["step_rows"]) for s in mine
        )
        both = [seed for seed in mine if seed in found.get(FEDAVG, {})]
        times = [_per_step(all_runs[seed]) / _per_step(found[FEDAVG][seed]) for seed in both]
        slower = f"{statistics.median(times):.2f}" if times else ""
        lines.append(
            f"| {variant} | {kept:.2f} | {last:.2f} | {total:+.1f} % | {most:+.1f} % | {100 * share:.0f} % | {slower} |"
        )
    return lines


def _per_step(outcome: Outcome) -> float:
    """Seconds; FedAvg's share of the steps is rounded down, so that it takes a few fewer."""
    return outcome["seconds"] / sum(outcome["tau"])


def _by_client(pairs: list[tuple[list[float], list[float]]]) -> list[tuple[list[float], list[float]]]:
    """Each client's mean steps over the seeds, of the variant and of the reference."""
    clients = range(len(pairs[0][0]))
    return [([a[i] for a, _ in pairs], [b[i] for _, b in pairs]) for i in clients]


def main(words: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help=", ".join(TASKS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--variants", default="", help=f"with commas between: {', '.join(VARIANTS)}")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--confirm", action="store_true")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args(words)
    torch.set_num_threads(1)
    variants = args.variants.split(",") if args.variants else list(CONFIRMED if args.confirm else VARIANTS)
    unknown = [*(set(args.tasks) - set(TASKS)), *(set(variants) - set(VARIANTS))]
    if unknown:
        parser.error(f"{unknown[0]} is not a task or a variant")
    first = 401 + (LATER if args.confirm else 0)
    content = measure(args.out, args.tasks, variants, list(range(first, first + args.seeds)), args.device)
    if args.table:
        print(make_table(content))
