"""The paper's fair protocol: FedVeca first, then every rival with the same total of local steps."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import statistics
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedveca.runs.experiment import METHODS, Experiment
from fedveca.runs.lock import held
from fedveca.runs.record import Run, refuse, whole
from fedveca.runs.run import resume, run
from fedveca.runs.stop import SIGNALS, Asked, Stopped, listening
from fedveca.tasks.data import Dataset, load

Started = Callable[[Experiment], Callable[[dict[str, Any]], None] | None]


class Chain(NamedTuple):
    """The runs of one seed, in order: FedVeca's total of steps is the others'."""

    experiment: Experiment
    methods: tuple[str, ...]
    out: Path
    device: str

    def __call__(self, stop: Asked, started: Started | None = None, data: Dataset | None = None) -> list[Run]:
        runs: list[Run] = []
        tau_all = self.experiment.tau_all
        for method in self.methods:
            e = replace(self.experiment, method=method, tau_all=0 if method == "fedveca" else tau_all)
            folder = self.out / f"{method}-seed{e.seed}"
            done = finished(folder, e)
            if not done:
                if stop():
                    raise Stopped
                watch = started(e) if started else None
                if folder.exists():
                    done = resume(folder, device=self.device, watch=watch, data=data, data_dir=e.data_dir, stop=stop)
                else:
                    done = run(e, folder, device=self.device, watch=watch, data=data, stop=stop)
            tau_all = done.summary["tau_all"] if method == "fedveca" else tau_all
            runs.append(done)
        return runs


def compare(
    experiment: Experiment,
    seeds: int,
    out: Path,
    *,
    methods: tuple[str, ...] = METHODS,
    device: str = "auto",
    workers: int = 1,
    started: Started | None = None,
    ended: Callable[[Run], None] | None = None,
) -> list[Run]:
    """Runs every method for every seed into folders of `out`, and writes table.json there.

    A run that is already there, whole and with the same settings, is not repeated; one that was interrupted
    goes on. With several workers, seeds run in processes side by side and only `ended` is told. Ctrl-C or SIGTERM
    ends it after the rounds under way: all saved, then Stopped.
    """
    refuse(out)
    chains = [
        Chain(replace(experiment, seed=seed), methods, out, device)
        for seed in range(experiment.seed, experiment.seed + seeds)
    ]
    there = (out / f"{m}-seed{c.experiment.seed}" / "summary.json" for c in chains for m in methods)
    data = None if all(map(Path.exists, there)) else _shared(experiment)  # read before anything is written
    flag = FRESH.RawValue("b", 0)  # no lock that a killed worker could keep
    runs = []
    try:
        with listening(first=lambda: setattr(flag, "value", 1)) as asked:
            batches = _side_by_side(chains, workers, flag) if workers > 1 else (c(asked, started, data) for c in chains)
            for batch in batches:
                for done in batch:
                    runs.append(done)
                    if ended:
                        ended(done)
    except Stopped:
        raise Stopped("stopped after a whole round, all saved; the same command goes on from there") from None
    whole(out / "table.json", json.dumps(table(runs), indent=2).encode() + b"\n")
    return runs


FRESH = multiprocessing.get_context("spawn")  # CUDA and threads do not survive a fork


def _side_by_side(chains: list[Chain], workers: int, flag: Any) -> Iterator[list[Run]]:
    threads, others = max(1, torch.get_num_threads() // workers), set(multiprocessing.active_children())
    with ProcessPoolExecutor(workers, FRESH, _worker, (threads, flag)) as pool:
        try:
            try:
                yield from pool.map(_in_worker, chains)
            except Stopped:
                pool.shutdown(cancel_futures=True)  # each worker ends its round
                raise
        except BrokenProcessPool as error:
            raise OSError("a worker was ended from outside; the same command goes on from there") from error
        except Stopped:
            raise
        except BaseException:
            for child in set(multiprocessing.active_children()) - others:
                child.kill()  # what it wrote is whole
            raise


_flag: Any = None  # in a worker: whether to stop
_busy = threading.Lock()


def _worker(threads: int, flag: Any) -> None:
    global _flag
    _flag = flag
    torch.set_num_threads(threads)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # the parent hears them and tells
    threading.Thread(target=_outlived, daemon=True).start()


def _in_worker(chain: Chain) -> list[Run]:
    with _busy:
        return chain(lambda: bool(_flag.value))


def _outlived() -> None:
    """A worker whose parent was killed ends its round and goes."""
    parent = multiprocessing.parent_process()
    assert parent
    parent.join()
    _flag.value = 1
    with _busy:
        os._exit(1)


def finished(folder: Path, experiment: Experiment) -> Run | None:
    """The run of this experiment that `folder` holds; what is none yet is cleared away, another's is refused.

    Where the data lie decides no number, so it may differ.
    """
    if not folder.exists():
        return None
    names = {path.name for path in folder.iterdir() if path.name[0] != "." and path.stat().st_size}
    if not {"experiment.toml", "rounds.jsonl"} <= names and names <= {"experiment.toml", "environment.json"}:
        with held(folder):
            shutil.rmtree(folder)  # stopped before its first round
        return None
    done = Run.open(folder)
    if replace(done.experiment, data_dir="") != replace(experiment, data_dir=""):
        raise ValueError(f"{folder} holds a run with other settings; name another --out")
    return done if done.summary else None


def table(runs: list[Run]) -> list[dict[str, Any]]:
    """One row a method: last and kept model, mean and spread over seeds."""
    rows = []
    for method in dict.fromkeys(r.experiment.method for r in runs):
        mine = [r for r in runs if r.experiment.method == method]
        row: dict[str, Any] = {"method": method, "seeds": [r.experiment.seed for r in mine]}
        row["tau_all"] = statistics.fmean(r.summary["tau_all"] for r in mine)
        for which in ("last", "kept"):
            for name in ("test_loss", "test_accuracy"):
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


def _shared(e: Experiment) -> Dataset | None:
    """Data that do not depend on the seed are read once."""
    return None if e.data == "synthetic" else load(e.data, e.data_dir)
