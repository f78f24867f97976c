"""What a round costs against clients known, clients in flight, steps, parameters and workers, and the models that fit.

    python benchmarks/scale.py --out docs/results/scale.json --figure docs/results/scale.svg

Every part runs in a process of its own (`--parts known,flight` takes some and keeps the others of --out). Times are
the least of several rounds taken in turn, so that what else runs on the machine counts as little as it can; `core_s`
is the processor time of all threads of the process.
"""

import argparse
import json
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from scale_chart import draw
from scipy.optimize import nnls

from fedveca.algorithms import Algorithm, FedAvg, FedVeca, Scaffold
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.cohorts.local.threads import ThreadPool
from fedveca.cohorts.random import sample_clients
from fedveca.runs.build import build
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import describe_environment
from fedveca.runs.run import run
from fedveca.tasks.models import model
from fedveca.tasks.partition import Shares, partition
from fedveca.tasks.problem import SquaredSvm

BATCH = 20


def peak() -> float:
    """MB of this process at the most."""
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 1024


def least(*calls, turns: int = 9) -> list[dict]:
    """The least time of each call, taken in turn after one turn that does not count."""
    times = []
    for _ in range(turns + 1):
        times.append([])
        for call in calls:
            began, cpu = time.perf_counter(), time.process_time()
            call()
            times[-1].append((time.perf_counter() - began, time.process_time() - cpu))
    columns = (zip(*column, strict=True) for column in zip(*times[1:], strict=True))
    return [{"seconds": min(wall), "core_s": min(cores)} for wall, cores in columns]


def round_of(cohort, algorithm: Algorithm, w: torch.Tensor, ids: torch.Tensor, tau: int):
    """One round of `tau` steps each as a function without arguments."""
    order = algorithm.order(algorithm.init(w, torch.ones(1, dtype=torch.int64)))
    steps = torch.full((len(ids),), tau)
    return lambda: cohort(1, order, ids, steps)


def even(clients: int, rows: int, features: int) -> tuple[torch.Tensor, torch.Tensor, Shares]:
    """Random rows, as many for each client."""
    x = torch.randn(clients * rows, features, generator=torch.Generator().manual_seed(0))
    y = torch.arange(clients * rows) % 10
    return x, y, Shares(torch.arange(len(y)), torch.arange(clients + 1) * rows)


def hundred_thousand(method: str) -> dict:
    """100,000 synthetic clients, 1,000 a round, as a user runs them: folder, checkpoints, test set."""
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


def known(clients: int) -> dict:
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


def flight(_: int) -> list[dict]:
    """The SVM's rounds over clients in flight, steps and parameters, each alone; FedAvg, no probe."""
    points = [(n, 10, 60) for n in (100, 300, 1000, 3000, 10_000)]
    points += [(1000, tau, 60) for tau in (2, 5, 20, 50)]
    points += [(1000, 10, features) for features in (120, 240, 480, 960)]
    out = []
    for features in sorted({features for *_, features in points}):
        mine = [(n, tau) for n, tau, f in points if f == features]
        x, y, shares = even(10_000 if features == 60 else 1000, 20, features)
        problem = SquaredSvm(features)
        cohort = LocalCohort(FedAvg(0.01), problem, x, y, shares, batch=BATCH, want_loss=False)
        calls = [round_of(cohort, FedAvg(0.01), problem.init(), torch.arange(n), tau) for n, tau in mine]
        for (n, tau), times in zip(mine, least(*calls), strict=True):
            out.append({"n": n, "tau": tau, "P": features, "steps": n * tau} | times)
    return out


def thousand_cnns(method: str) -> dict:
    """1,000 clients of the paper's CNN in flight, two steps each, images of MNIST's size."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (20_000, 1, 28, 28), dtype=torch.uint8, generator=generator)
    y = torch.arange(20_000) % 10
    problem, algorithm = model("cnn", (1, 28, 28), 10), {"fedveca": FedVeca(0.01), "scaffold": Scaffold(0.01)}[method]
    cohort = LocalCohort(algorithm, problem, x, y, partition("case1", y, 10, 1000), batch=BATCH, pixels="unit")
    began = time.perf_counter()
    round_of(cohort, algorithm, problem.init(), torch.arange(1000), 2)()
    return {"method": method, "P": problem.size, "seconds": time.perf_counter() - began, "peak_mb": peak()}


def overhead(features: int) -> list[dict]:
    """Rounds of one step of one client a worker: what Ray costs beside the work, over workers and parameters."""
    from fedveca.cohorts.ray.cohort import RayCohort

    out = []
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


def engines(job: str) -> list[dict]:
    """The same rounds on the local engine, with one thread and with as many as there are cores, and on Ray, in turn."""
    words = {"data": "synthetic", "partition": "writer", "clients": 10_000, "participation": 0.1, "batch": BATCH}
    words |= {"model": "svm", "tau_0": 10} if job == "svm" else {"model": "mlp", "hidden": 256, "tau_0": 20}
    here = build(Experiment(**words))
    ids, out = sample_clients(0, 1, 10_000, 1000), []
    one, all_ = here.cohort, build(Experiment(**words)).cohort
    one.pool = ThreadPool(1)
    for workers in (1, 2):
        ray = build(Experiment(**words, engine="ray", workers=workers)).cohort
        mine = one if workers == 1 else all_
        calls = [round_of(cohort, here.algorithm, here.state.w, ids, words["tau_0"]) for cohort in (mine, ray)]
        local, theirs = least(*calls, turns=15)
        row = {"job": job, "P": here.problem.size, "workers": workers}
        out.append(row | {"local_s": local["seconds"], "ray_s": theirs["seconds"]})
        del ray, calls
    return out


def fit(rows: list[dict], what: str, terms: dict) -> dict:
    """Time as a sum of terms, none below zero, by least squares of the relative error."""
    t = np.array([row[what] for row in rows])
    A = np.array([[f(row) for f in terms.values()] for row in rows], float)
    c, _ = nnls(A / t[:, None], np.ones_like(t))
    error = np.abs(A @ c / t - 1)
    coefficients = dict(zip(terms, c.tolist(), strict=True))
    return {what: coefficients, "error_median": float(np.median(error)), "error_most": float(error.max())}


PARTS = {
    "hundred_thousand": (hundred_thousand, ["fedveca", "scaffold"]),
    "known": (known, [10_000, 100_000, 1_000_000]),
    "flight": (flight, [0]),
    "thousand_cnns": (thousand_cnns, ["fedveca", "scaffold"]),
    "overhead": (overhead, [1000, 100_000, 1_000_000]),
    "engines": (engines, ["svm", "mlp"]),
}


def modelled(result: dict) -> dict:
    rows, ray = result["flight"], result["overhead"]
    local = {
        "a round": lambda r: 1,
        "a client": lambda r: r["n"],
        "a step": lambda r: r["steps"],
        "a step's row and parameter": lambda r: r["steps"] * BATCH * r["P"],
    }
    over = {
        "a round": lambda r: 1,
        "a worker": lambda r: r["workers"],
        "a parameter": lambda r: r["P"],
        "a worker's parameter": lambda r: r["workers"] * r["P"],
    }
    return {"local": fit(rows, "core_s", local), "ray": fit(ray, "seconds", over)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--parts", default=",".join(PARTS))
    args = parser.parse_args()
    result = json.loads(args.out.read_text()) if args.out and args.out.exists() else {}
    result["environment"] = describe_environment("cpu")
    for name in args.parts.split(","):
        work, jobs = PARTS[name]
        with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
            told = list(pool.map(work, jobs))
        result[name] = [row for part in told for row in part] if isinstance(told[0], list) else told
        print(name, json.dumps(result[name], indent=1), flush=True)
        if args.out:
            args.out.write_text(json.dumps(result, indent=2) + "\n")
    if all(name in result for name in PARTS):
        rows = [row for row in result["flight"] if (row["tau"], row["P"]) == (10, 60)]
        few, many = rows[0], rows[-1]
        result["step_10000_over_100"] = {
            what: many[what] / many["steps"] / (few[what] / few["steps"]) for what in ("seconds", "core_s")
        }
        result["models"] = modelled(result)
        print(json.dumps(result["models"], indent=1))
        if args.out:
            args.out.write_text(json.dumps(result, indent=2) + "\n")
        if args.figure:
            draw(result, args.figure)


if __name__ == "__main__":
    main()
