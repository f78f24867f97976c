"""The paper's fair protocol: a method that chooses its steps first, then every rival with the same total of them."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import signal
import statistics
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import torch

from fedveca.algorithms import Algorithm
from fedveca.algorithms.registry import is_adaptive, paper_methods
from fedveca.errors import UserError
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run, require_free, write_atomic
from fedveca.runs.interrupt import SIGNALS, Stopped, StopRequest, listen_for_signals
from fedveca.runs.lock import lock_folder
from fedveca.runs.overrides import (
    CustomObjects,
    check_experiment,
    check_folder,
    check_functions,
    check_seeds_and_methods,
    name_objects,
    name_of,
)
from fedveca.runs.resources import discard_unbegun
from fedveca.runs.run import resume, run
from fedveca.tasks.custom import CUSTOM
from fedveca.tasks.datasets.dataset import Dataset, load
from fedveca.tasks.datasets.download import do_nothing

Method = str | Algorithm
NONE: CustomObjects = {}
Started = Callable[[Experiment], Callable[[dict[str, Any]], None] | None]


class Chain(NamedTuple):
    """The runs of one seed, in order: the total of steps that the first one chooses is the others'."""

    experiment: Experiment
    methods: tuple[Method, ...]
    out: Path
    device: str

    def __call__(self, stop: StopRequest, started: Started | None = None, custom: CustomObjects = NONE) -> list[Run]:
        runs: list[Run] = []
        tau_all = self.experiment.tau_all
        for method in self.methods:
            e = replace(self.experiment, tau_all=0 if is_adaptive(method) else tau_all)
            mine: CustomObjects = {**custom}
            if isinstance(method, str):
                e = replace(e, method=method)
            else:
                mine["method"] = method
            folder = self.out / f"{called(method)}-seed{e.seed}"
            done = finished(folder, e, mine)
            if not done:
                if stop():
                    raise Stopped
                watch = started(e) if started else None
                if folder.exists():
                    done = resume(folder, device=self.device, watch=watch, data_dir=e.data_dir, stop=stop, **mine)
                else:
                    with discard_unbegun(folder):
                        done = run(e, folder, device=self.device, watch=watch, stop=stop, **mine)
            tau_all = done.summary["tau_all"] if is_adaptive(method) and not runs else tau_all
            runs.append(done)
        return runs


def compare(
    experiment: Experiment,
    seeds: int,
    out: Path | str,
    *,
    methods: tuple[Method, ...] | None = None,
    device: str = "auto",
    workers: int = 1,
    started: Started | None = None,
    ended: Callable[[Run], None] | None = None,
    say: Callable[[str], None] | None = do_nothing,
    **custom: Unpack[CustomObjects],
) -> list[Run]:
    """Runs every method for every seed into folders of `out`, and writes table.json there.

    A run that is already there, whole and with the same settings, is not repeated; one that was interrupted
    goes on. With several workers, seeds run in processes side by side and only `ended` is told. Ctrl-C or SIGTERM
    ends it after the rounds under way: all saved, then Stopped.
    Methods are names or custom objects; so are `data`, `model`, `loss`, `metric` and `partition` (see
    `CustomObjects`).
    """
    check_experiment(experiment)
    check_folder(out)
    check_functions(started=started, ended=ended, say=say)
    methods = check_seeds_and_methods(seeds, paper_methods() if methods is None else methods, workers)
    out = Path(out)
    require_free(out)
    if custom.get("method") is not None:
        raise UserError("compare takes methods=(...), names or objects, not method=")
    if workers > 1 and (custom or not all(isinstance(m, str) for m in methods)):
        raise UserError(f"workers={workers}: objects of your own are compared in this process, workers=1")
    if len({called(m) for m in methods}) < len(methods):
        raise UserError(f"methods are named twice: {', '.join(map(called, methods))}")
    chains = [
        Chain(replace(experiment, seed=seed), methods, out, device)
        for seed in range(experiment.seed, experiment.seed + seeds)
    ]
    there = (out / f"{called(m)}-seed{c.experiment.seed}" / "summary.json" for c in chains for m in methods)
    if "data" not in custom and not all(map(Path.exists, there)):
        custom["data"] = _shared(experiment, say)  # read before anything is written
    flag = FRESH.RawValue("b", 0)  # no lock that a killed worker could keep
    runs = []
    try:
        with listen_for_signals(first=lambda: setattr(flag, "value", 1)) as asked:
            batches = (
                _side_by_side(chains, workers, flag) if workers > 1 else (c(asked, started, custom) for c in chains)
            )
            for batch in batches:
                for done in batch:
                    runs.append(done)
                    if ended:
                        ended(done)
    except Stopped:
        raise Stopped("stopped after a whole round, all saved; the same command goes on from there") from None
    write_atomic(out / "table.json", json.dumps(table(runs), indent=2).encode() + b"\n")
    return runs


FRESH = multiprocessing.get_context("spawn")  # CUDA and threads do not survive a fork


def _side_by_side(chains: list[Chain], workers: int, flag: Any) -> Iterator[list[Run]]:
    threads, others = max(1, torch.get_num_threads() // workers), set(multiprocessing.active_children())
    with ProcessPoolExecutor(min(workers, len(chains)), FRESH, _worker, (threads, flag)) as pool:
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


def called(method: Method) -> str:
    """A method's name, fit for a folder."""
    return (
        method
        if isinstance(method, str)
        else re.sub(r"[^\w.=]+", "-", name_of("method", method).removeprefix(CUSTOM)).strip("-")
    )


def finished(folder: Path, experiment: Experiment, custom: CustomObjects = NONE) -> Run | None:
    """The run of this experiment that `folder` holds; what is none yet is cleared away, another's is refused.

    Where the data lie and who tracks the run decide no number, so they may differ.
    """
    if not folder.exists():
        return None
    names = {path.name for path in folder.iterdir() if path.name[0] != "." and path.stat().st_size}
    early = {"experiment.toml", "environment.json", "partition.json"}
    if not {"experiment.toml", "rounds.jsonl"} <= names and names <= early:
        with lock_folder(folder):
            shutil.rmtree(folder)  # stopped before its first round
        return None
    done = Run.open(folder)
    e = name_objects(experiment, **(dict.fromkeys(CustomObjects.__annotations__) | custom))
    if custom.get("partition") is not None:
        e = replace(e, clients=done.experiment.clients)
    if replace(done.experiment, data_dir="", track="") != replace(e, data_dir="", track=""):
        raise UserError(f"{folder} holds a run with other settings; name another folder")
    return done if done.summary else None


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
    return None if e.data == "synthetic" or e.data.startswith(CUSTOM) else load(e.data, e.data_dir, say=say)
