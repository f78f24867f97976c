"""What a round costs against clients known, clients in flight, steps, parameters and workers, and the models that fit.

    python -m benchmarks.scale.rounds --out docs/results/scale.json --figure docs/results/scale.svg

Every part runs in a process of its own (`--parts known,flight` takes some and keeps the others of --out). Times are
the least of several rounds taken in turn, so that what else runs on the machine counts as little as it can; `core_s`
is the processor time of all threads of the process.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np
import torch
from scipy.optimize import nnls

from benchmarks.scale.chart import FlightRow, LocalFit, Models, OverheadRow, RayFit, draw
from fedveca.algorithms import Algorithm, FedAvg, FedVeca, Order, Report, Scaffold
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.cohorts.random import sample_clients
from fedveca.runs.build import build
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import describe_environment
from fedveca.runs.run import run
from fedveca.tasks.models import model
from fedveca.tasks.partition import Shares, partition
from fedveca.tasks.svm import SquaredSvm

BATCH = 20
Ask = Callable[[int, Order, torch.Tensor, torch.Tensor], tuple[torch.Tensor, Report]]  # a cohort


class Times(TypedDict):
    """Seconds of one call, on the wall and of all threads."""

    seconds: float
    core_s: float


class EngineRow(TypedDict):
    """The same round on the local engine and on Ray."""

    job: str
    P: int
    workers: int
    local_s: float
    ray_s: float


def peak() -> float:
    """MB of this process at the most."""
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 1024


def least(*calls: Callable[[], object], turns: int = 9) -> list[Times]:
    """The shortest time of each call, taken in turn after one turn that does not count."""
    times: list[list[Times]] = [[] for _ in calls]
    for _ in range(turns + 1):
        for call, mine in zip(calls, times, strict=True):
            began, cpu = time.perf_counter(), time.process_time()
            call()
            mine.append({"seconds": time.perf_counter() - began, "core_s": time.process_time() - cpu})
    return [
        {"seconds": min(t["seconds"] for t in mine[1:]), "core_s": min(t["core_s"] for t in mine[1:])} for mine in times
    ]


def round_of(cohort: Ask, algorithm: Algorithm, w: torch.Tensor, ids: torch.Tensor, tau: int) -> Callable[[], object]:
    """One round of `tau` steps each as a function without arguments."""
    order = algorithm.order(algorithm.init(w, torch.ones(1, dtype=torch.int64)))
    steps = torch.full((len(ids),), tau)
    return lambda: cohort(1, order, ids, steps)


def even(clients: int, rows: int, features: int) -> tuple[torch.Tensor, torch.Tensor, Shares]:
    """Random rows, as many for each client."""
    x = torch.randn(clients * rows, features, generator=torch.Generator().manual_seed(0))
    y = torch.arange(clients * rows) % 10
    return x, y, Shares(torch.arange(len(y)), torch.arange(clients + 1) * rows)


def hundred_thousand(method: str) -> dict[str, object]:
    """100,000 synthetic clients, 1,000 per round, as a user runs them: folder, checkpoints, test set."""
    e = Experiment(
        data="synthetic",
        partition="writer",
        model="svm",
        clients=100_000,
        participation=0.01,
        rounds=10,
        batch=BATCH,
        method=method,
    )
    began, cpu = time.perf_counter(), time.process_time()
    built = build(e)
    setup, cores = time.perf_counter() - began, time.process_time() - cpu
    rows = len(built.data.y)
    del built
    with tempfile.TemporaryDirectory() as folder:
        done = run(e, Path(folder) / "run", device="cpu")
        disk = sum(path.stat().st_size for path in (Path(folder) / "run").iterdir()) / 2**20
    seconds = [line["seconds"] for line in done.rounds]
    return {
        "method": method,
        "rows": rows,
        "setup_s": setup,
        "setup_core_s": cores,
        "peak_mb": peak(),
        "round_s": min(seconds),
        "folder_mb": disk,
    }


def known(clients: int) -> dict[str, object]:
    """1,000 clients in flight of ever more known, a row each: what those who are not asked cost."""
    x, y, shares = even(clients, 1, 60)
    problem = SquaredSvm(60)
    cohort = LocalCohort(FedVeca(0.01), problem, x, y, shares, batch=BATCH)
    algorithm = FedVeca(0.01)
    state = algorithm.init(problem.init(), torch.full((clients,), 10))

    def whole() -> None:
        ids = sample_clients(0, 1, clients, min(1000, clients))
        who, report = cohort(1, algorithm.order(state), ids, state.tau[ids])
        p = cohort.sizes[who].double() / cohort.sizes[who].sum()
        algorithm.update(state._replace(k=torch.tensor(1)), who, p, report)

    total, draw_s = least(whole, lambda: sample_clients(0, 1, clients, min(1000, clients)))
    return {"clients": clients, "round": total, "sample": draw_s, "peak_mb": peak()}


def flight(_: int) -> list[FlightRow]:
    """The SVM's rounds over clients in flight, steps and parameters, each alone; FedAvg, no probe."""
    points = [(n, 10, 60) for n in (100, 300, 1000, 3000, 10_000)]
    points += [(1000, tau, 60) for tau in (2, 5, 20, 50)]
    points += [(1000, 10, features) for features in (120, 240, 480, 960)]
    out: list[FlightRow] = []
    for features in sorted({features for *_, features in points}):
        mine = [(n, tau) for n, tau, f in points if f == features]
        x, y, shares = even(10_000 if features == 60 else 1000, 20, features)
        problem = SquaredSvm(features)
        cohort = LocalCohort(FedAvg(0.01), problem, x, y, shares, batch=BATCH, want_loss=False)
        calls = [round_of(cohort, FedAvg(0.01), problem.init(), torch.arange(n), tau) for n, tau in mine]
        for (n, tau), times in zip(mine, least(*calls), strict=True):
            out.append(FlightRow(n=n, tau=tau, P=features, steps=n * tau, **times))
    return out


def thousand_cnns(method: str) -> dict[str, object]:
    """1,000 clients of the paper's CNN in flight, two steps each, images of MNIST's size."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (20_000, 1, 28, 28), dtype=torch.uint8, generator=generator)
    y = torch.arange(20_000) % 10
    problem = model("cnn", (1, 28, 28), 10)
    algorithm: Algorithm = FedVeca(0.01) if method == "fedveca" else Scaffold(0.01)
    cohort = LocalCohort(algorithm, problem, x, y, partition("case1", y, 10, 1000), batch=BATCH, pixels="unit")
    began = time.perf_counter()
    round_of(cohort, algorithm, problem.init(), torch.arange(1000), 2)()
    return {"method": method, "P": problem.size, "seconds": time.perf_counter() - began, "peak_mb": peak()}


def overhead(features: int) -> list[OverheadRow]:
    """Rounds of one step of one client per worker: Ray's own cost, over workers and parameters."""
    from fedveca.cohorts.ray.cohort import RayCohort

    out: list[OverheadRow] = []
    for workers in (1, 2, 4, 8):
        x, y, shares = even(workers, 2, features)
        cohort = RayCohort(
            FedAvg(0.01), lambda: SquaredSvm(features), x, y, shares, workers=workers, batch=1, want_loss=False
        )
        alone = LocalCohort(FedAvg(0.01), SquaredSvm(features), x, y, shares, batch=1, want_loss=False, threads=1)
        w, ids = torch.zeros(features), torch.arange(workers)
        calls = [round_of(c, FedAvg(0.01), w, ids, 1) for c in (cohort, alone)]
        ours, local = least(*calls, turns=100)
        out.append({"workers": workers, "P": features, "seconds": ours["seconds"], "local_s": local["seconds"]})
        del cohort, calls
    return out


def engines(job: str) -> list[EngineRow]:
    """The same rounds on the local engine, with one thread and with as many as there are cores, and on Ray, in turn."""
    common: dict[str, Any] = {"data": "synthetic", "partition": "writer", "clients": 10_000, "participation": 0.1}
    more: dict[str, Any] = (
        {"model": "svm", "tau_0": 10} if job == "svm" else {"model": "mlp", "hidden": 256, "tau_0": 20}
    )
    e = Experiment(batch=BATCH, **common, **more)
    ids, cores = sample_clients(0, 1, 10_000, 1000), torch.get_num_threads()
    out: list[EngineRow] = []
    for workers in (1, 2):
        torch.set_num_threads(1 if workers == 1 else cores)
        here = build(e)
        torch.set_num_threads(cores)
        ray = build(replace(e, engine="ray", workers=workers)).cohort
        calls = [round_of(cohort, here.algorithm, here.state.w, ids, e.tau_0) for cohort in (here.cohort, ray)]
        local, theirs = least(*calls, turns=15)
        row = EngineRow(
            job=job, P=here.problem.size, workers=workers, local_s=local["seconds"], ray_s=theirs["seconds"]
        )
        out.append(row)
        del ray, calls
    return out


class Fitted(NamedTuple):
    """Seconds per unit of each term, and the relative error of their sum."""

    terms: dict[str, float]
    error_median: float
    error_most: float


def fit(seconds: Sequence[float], units: Sequence[Sequence[float]], names: Sequence[str]) -> Fitted:
    """Time as a sum of terms, none below zero, by least squares of the relative error."""
    t, A = np.array(seconds), np.array(units, float)
    c, _ = nnls(A / t[:, None], np.ones_like(t))
    error = np.abs(A @ c / t - 1)
    return Fitted(dict(zip(names, c.tolist(), strict=True)), float(np.median(error)), float(error.max()))


def fit_models(rows: Sequence[FlightRow], ray: Sequence[OverheadRow]) -> Models:
    """The two models that the figure draws."""
    local = fit(
        [r["core_s"] for r in rows],
        [(1, r["n"], r["steps"], r["steps"] * BATCH * r["P"]) for r in rows],
        ("a round", "a client", "a step", "a step's row and parameter"),
    )
    over = fit(
        [r["seconds"] for r in ray],
        [(1, r["workers"], r["P"], r["workers"] * r["P"]) for r in ray],
        ("a round", "a worker", "a parameter", "a worker's parameter"),
    )
    return {
        "local": LocalFit(core_s=local.terms, error_median=local.error_median, error_most=local.error_most),
        "ray": RayFit(seconds=over.terms, error_median=over.error_median, error_most=over.error_most),
    }


class Part(NamedTuple):
    """What is measured, and on what."""

    measure: Callable[[Any], object]  # of one job: a row, or a list of rows
    jobs: Sequence[object]


PARTS: Mapping[str, Part] = {
    "hundred_thousand": Part(hundred_thousand, ["fedveca", "scaffold"]),
    "known": Part(known, [10_000, 100_000, 1_000_000]),
    "flight": Part(flight, [0]),
    "thousand_cnns": Part(thousand_cnns, ["fedveca", "scaffold"]),
    "overhead": Part(overhead, [1000, 100_000, 1_000_000]),
    "engines": Part(engines, ["svm", "mlp"]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--parts", default=",".join(PARTS))
    args = parser.parse_args()
    result: dict[str, Any] = json.loads(args.out.read_text()) if args.out and args.out.exists() else {}
    result["environment"] = describe_environment("cpu")
    for name in args.parts.split(","):
        with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
            found = list(pool.map(PARTS[name].measure, PARTS[name].jobs))
        result[name] = [row for part in found for row in (part if isinstance(part, list) else [part])]
        print(name, json.dumps(result[name], indent=1), flush=True)
        if args.out:
            args.out.write_text(json.dumps(result, indent=2) + "\n")
    if all(name in result for name in PARTS):
        rows = [row for row in result["flight"] if (row["tau"], row["P"]) == (10, 60)]
        few, many = rows[0], rows[-1]
        result["step_10000_over_100"] = {
            what: many[what] / many["steps"] / (few[what] / few["steps"]) for what in ("seconds", "core_s")
        }
        result["models"] = fit_models(result["flight"], result["overhead"])
        print(json.dumps(result["models"], indent=1))
        if args.out:
            args.out.write_text(json.dumps(result, indent=2) + "\n")
        if args.figure:
            draw({"flight": result["flight"], "overhead": result["overhead"], "models": result["models"]}, args.figure)


if __name__ == "__main__":
    main()
