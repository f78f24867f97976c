"""The paper's fair protocol: a method that chooses its steps first, then every rival with the same total of them."""

from __future__ import annotations

import json
import multiprocessing
import re
import shutil
import signal
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import torch

from fedveca.algorithms import Algorithm
from fedveca.runs.experiment import ADAPTIVE, TABLE_I, Experiment
from fedveca.runs.given import Own, name_of, named
from fedveca.runs.record import Run, refuse
from fedveca.runs.run import run
from fedveca.tasks.data import Dataset, load
from fedveca.tasks.fetch import silent
from fedveca.tasks.own import OWN

Method = str | Algorithm
NONE: Own = {}
Started = Callable[[Experiment], Callable[[dict[str, Any]], None] | None]


class Chain(NamedTuple):
    """The runs of one seed, in order: the total of steps that the first one chooses is the others'."""

    experiment: Experiment
    methods: tuple[Method, ...]
    out: Path
    device: str

    def __call__(self, started: Started | None = None, own: Own = NONE) -> list[Run]:
        runs: list[Run] = []
        tau_all = self.experiment.tau_all
        for method in self.methods:
            e = replace(self.experiment, tau_all=0 if method in ADAPTIVE else tau_all)
            mine: Own = {**own}
            if isinstance(method, str):
                e = replace(e, method=method)
            else:
                mine["method"] = method
            folder = self.out / f"{called(method)}-seed{e.seed}"
            done = finished(folder, e, mine) or run(
                e, folder, device=self.device, watch=started(e) if started else None, **mine
            )
            tau_all = done.summary["tau_all"] if method in ADAPTIVE and not runs else tau_all
            runs.append(done)
        return runs


def compare(
    experiment: Experiment,
    seeds: int,
    out: Path | str,
    *,
    methods: tuple[Method, ...] = TABLE_I,
    device: str = "auto",
    workers: int = 1,
    started: Started | None = None,
    ended: Callable[[Run], None] | None = None,
    say: Callable[[str], None] | None = silent,
    **own: Unpack[Own],
) -> list[Run]:
    """Runs every method for every seed into folders of `out`, and writes table.json there.

    A run that is already there, whole and with the same settings, is not repeated; one that was interrupted
    starts again. With several workers, seeds run in processes side by side and only `ended` is told.
    Methods are names, or objects of your own; so are `data`, `model`, `loss`, `metric` and `partition` (see `Own`).
    """
    out = Path(out)
    refuse(out)
    if own.get("method") is not None:
        raise ValueError("compare takes methods=(...), names or objects, not method=")
    if workers > 1 and (own or not all(isinstance(m, str) for m in methods)):
        raise ValueError(f"workers={workers}: objects of your own are compared in this process, workers=1")
    if len({called(m) for m in methods}) < len(methods):
        raise ValueError(f"methods are named twice: {', '.join(map(called, methods))}")
    chains = [
        Chain(replace(experiment, seed=seed), methods, out, device)
        for seed in range(experiment.seed, experiment.seed + seeds)
    ]
    there = (out / f"{called(m)}-seed{c.experiment.seed}" / "summary.json" for c in chains for m in methods)
    if "data" not in own and not all(map(Path.exists, there)):
        own["data"] = _shared(experiment, say)  # read before anything is written
    runs = []
    for batch in _side_by_side(chains, workers) if workers > 1 else (chain(started, own) for chain in chains):
        for done in batch:
            runs.append(done)
            if ended:
                ended(done)
    (out / "table.json").write_text(json.dumps(table(runs), indent=2) + "\n")
    return runs


def _side_by_side(chains: list[Chain], workers: int) -> Iterator[list[Run]]:
    threads = max(1, torch.get_num_threads() // workers)
    fresh = multiprocessing.get_context("spawn")  # CUDA and threads do not survive a fork
    with ProcessPoolExecutor(workers, fresh, _worker, (threads,)) as pool:
        try:
            yield from pool.map(Chain.__call__, chains)
        except BrokenProcessPool as error:
            raise OSError("a worker was ended from outside; the same command goes on from there") from error


def _worker(threads: int) -> None:
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a word; the parent tells


def called(method: Method) -> str:
    """A method's name, fit for a folder."""
    return method if isinstance(method, str) else re.sub(r"[^\w.=]+", "-", name_of("method", method)[4:]).strip("-")


def finished(folder: Path, experiment: Experiment, own: Own = NONE) -> Run | None:
    """The run of this experiment that `folder` holds; half a run is cleared away, another's is refused.

    Where the data lie and who tracks the run decide no number, so they may differ.
    """
    if not folder.exists():
        return None
    early = ("experiment.toml", "environment.json", "partition.json")
    if all(path.name.lstrip(".").startswith(early) for path in folder.iterdir()):
        shutil.rmtree(folder)  # stopped before its first round
        return None
    done = Run.open(folder)
    e = named(experiment, **(dict.fromkeys(Own.__annotations__) | own))
    if own.get("partition") is not None:
        e = replace(e, clients=done.experiment.clients)
    if replace(done.experiment, data_dir="", track="") != replace(e, data_dir="", track=""):
        raise ValueError(f"{folder} holds a run with other settings; name another --out")
    if done.summary:
        return done
    shutil.rmtree(folder)
    return None


def table(runs: list[Run]) -> list[dict[str, Any]]:
    """One row a method: last and kept model, mean and spread over seeds."""
    rows = []
    for method in dict.fromkeys(r.experiment.method for r in runs):
        mine = [r for r in runs if r.experiment.method == method]
        row: dict[str, Any] = {"method": method, "seeds": [r.experiment.seed for r in mine]}
        row["tau_all"] = statistics.fmean(r.summary["tau_all"] for r in mine)
        for which in ("last", "kept"):
            for name in ("test_loss", mine[0].metric):
                row.setdefault(which, {})[name] = spread([r.summary[which][name] for r in mine])
        rows.append(row)
    return rows


def spread(values: list[float | None]) -> dict[str, Any]:
    """Mean and standard deviation over seeds; a run that diverged has no value and is counted out."""
    known = [v for v in values if v is not None]
    return {
        "mean": statistics.fmean(known) if known else None,
        "std": statistics.stdev(known) if len(known) > 1 else 0.0,
        "values": values,
    }


def _shared(e: Experiment, say: Callable[[str], None] | None) -> Dataset | None:
    """Data that do not depend on the seed are read once."""
    return None if e.data == "synthetic" or e.data.startswith(OWN) else load(e.data, e.data_dir, say=say)
