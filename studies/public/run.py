"""One public table: every method on every seed, and the published number of each."""

from __future__ import annotations

import json
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NotRequired, TypedDict, TypeVar

from fedveca import Experiment, run
from fedveca.runs.folder import Run
from fedveca.runs.presets import read_toml
from studies.public.heart import load_rows, rate_hospitals

FOLDER = Path(__file__).parent
Job = TypeVar("Job")
Result = TypeVar("Result")
TABLES = tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


class Outcome(TypedDict):
    """One run."""

    method: str
    seed: int
    accuracy: list[float]  # after each round
    loss: list[float]
    tau: NotRequired[list[list[int]]]  # local steps of each client in each round
    tau_all: int
    seconds: float
    device: str
    stopped: str
    cut: NotRequired[int]  # the rounds that were asked for, where the time ended before them
    hospitals: NotRequired[list[float]]  # heart: the last model's accuracy on each hospital's test rows, on its scale


def read_table(name: str) -> dict[str, Any]:
    """A table's title, source, published numbers, settings and methods."""
    return read_toml(str(FOLDER / f"{name}.toml"))


def make_experiment(table: dict[str, Any], method: str, seed: int, more: dict[str, Any]) -> Experiment:
    return Experiment(**{**table["settings"], **table.get(method, {}), **more, "method": method, "seed": seed})


def run_one(name: str, method: str, seed: int, device: str, more: dict[str, Any], until: float = math.inf) -> Outcome:
    """One run, which ends after the round in which `time.time()` passes `until`."""
    experiment = make_experiment(read_table(name), method, seed, more)
    is_heart = experiment.data == "heart"
    data = load_rows(method) if is_heart else None
    done = run(experiment, device=device, stop=lambda: time.time() > until, data=data)
    outcome = describe_outcome(done, method, seed, device)
    return outcome | {"hospitals": rate_hospitals(done.model)} if is_heart else outcome


def describe_outcome(done: Run, method: str, seed: int, device: str) -> Outcome:
    """What a table keeps of a run."""
    tested = [record for record in done.rounds if "test_accuracy" in record]
    outcome: Outcome = {
        "method": method,
        "seed": seed,
        "accuracy": [round(record["test_accuracy"] or 0.0, 6) for record in tested],
        "loss": [record["test_loss"] or 0.0 for record in tested],
        "tau": [record["tau"] for record in done.rounds],
        "tau_all": done.summary["tau_all"],
        "seconds": round(done.summary["seconds"], 1),
        "device": done.environment.get("processor", "") if device == "cpu" else device,
        "stopped": done.summary.get("stopped", ""),
    }
    if done.summary.get("ended") == "stop" and len(done.rounds) < done.experiment.rounds:
        outcome["cut"] = done.experiment.rounds
    return outcome


def say_outcome(label: str, outcome: Outcome) -> None:
    """One line of the terminal."""
    last, best, cut = outcome["accuracy"][-1], max(outcome["accuracy"]), outcome.get("cut")
    rounds = f"{len(outcome['accuracy'])} of {cut} rounds, " if cut else ""
    print(
        f"{label} {outcome['method']} seed {outcome['seed']}: last {100 * last:.2f} %, best {100 * best:.2f} %, "
        f"{rounds}{outcome['tau_all']} steps, {outcome['seconds']:.0f} s {outcome['stopped']}",
        flush=True,
    )


def call_all(call: Callable[[Job], Result], jobs: Sequence[Job], processes: int) -> Iterator[Result]:
    """What `call` returns for each job, as it becomes known; one that fails is raised after all others have ended."""
    failed: list[Exception] = []
    with ExitStack() as stack:
        pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(processes)) if processes > 1 else None
        results = iter(pool.imap_unordered(call, jobs) if pool else map(call, jobs))
        for _ in jobs:
            try:
                result = next(results)
            except Exception as error:
                print(f"{type(error).__name__}: {error}", flush=True)
                failed.append(error)
                continue
            yield result
    if failed:
        raise failed[0]


def run_table(
    name: str,
    seeds: list[int],
    device: str,
    processes: int,
    out: Path,
    methods: list[str],
    more: dict[str, Any],
    until: float = math.inf,
) -> list[Outcome]:
    """All runs of a table that `out` does not hold in full yet; it is written after each of them."""
    done: list[Outcome] = json.loads(out.read_text("utf-8")) if out.exists() else []
    known = {(outcome["method"], outcome["seed"]) for outcome in done if "cut" not in outcome}
    wanted = [(method, seed) for seed in seeds for method in methods or read_table(name)["methods"]]
    jobs = [(name, method, seed, device, more, until) for method, seed in wanted if (method, seed) not in known]
    for outcome in call_all(_call, jobs, processes):
        done = replace_outcome(done, outcome)
        out.write_text(json.dumps(done) + "\n", "utf-8")
        say_outcome(name, outcome)
    return done


def replace_outcome(outcomes: list[Outcome], new: Outcome) -> list[Outcome]:
    """The outcomes with a new one, in place of that of its method and seed."""
    key = new["method"], new["seed"]
    return [*(outcome for outcome in outcomes if (outcome["method"], outcome["seed"]) != key), new]


def _call(job: tuple[str, str, int, str, dict[str, Any], float]) -> Outcome:
    return run_one(*job)


class Line(TypedDict):
    """A method's row of a table, in per cent."""

    method: str
    published: float | None
    best: float
    best_sd: float
    last: float
    last_sd: float
    seeds: int
    steps: float
    hospitals: NotRequired[list[float]]  # the mean of each


def summarise(name: str, outcomes: list[Outcome]) -> list[Line]:
    """Mean and standard deviation over seeds, method by method."""
    table, lines = read_table(name), []
    for method in table["methods"]:
        mine = [outcome for outcome in outcomes if outcome["method"] == method]
        if not mine:
            continue
        best = [100 * max(outcome["accuracy"]) for outcome in mine]
        last = [100 * outcome["accuracy"][-1] for outcome in mine]
        line = Line(
            method=method,
            published=table["published"].get(method),
            best=round(statistics.mean(best), 2),
            best_sd=round(statistics.stdev(best), 2) if len(best) > 1 else 0.0,
            last=round(statistics.mean(last), 2),
            last_sd=round(statistics.stdev(last), 2) if len(last) > 1 else 0.0,
            seeds=len(mine),
            steps=round(statistics.mean(outcome["tau_all"] for outcome in mine)),
        )
        hospitals = [outcome["hospitals"] for outcome in mine if "hospitals" in outcome]
        if hospitals:
            line["hospitals"] = [round(100 * statistics.mean(column), 2) for column in zip(*hospitals, strict=True)]
        lines.append(line)
    return lines
