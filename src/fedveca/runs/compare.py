"""The paper's fair protocol: a method that chooses its steps first, then every rival with the same total of them."""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple, Required, TypedDict, Unpack

import torch

from fedveca.algorithms import Algorithm
from fedveca.algorithms.registry import is_adaptive, paper_methods
from fedveca.algorithms.registry import methods as known_methods
from fedveca.cohorts.random import clients_per_round
from fedveca.errors import UserError
from fedveca.runs.build import check_epochs, check_participation
from fedveca.runs.experiment import Experiment, read_experiment
from fedveca.runs.files import LineTail, write_atomic
from fedveca.runs.folder import Run, require_free
from fedveca.runs.interrupt import SIGNALS, Stopped, StopRequest, listen_for_signals
from fedveca.runs.lock import lock_folder
from fedveca.runs.observers import ComparisonObserver, Observer, check_observers
from fedveca.runs.overrides import (
    CustomObjects,
    check_experiment,
    check_folder,
    check_seeds_and_methods,
    name_objects,
    name_of,
)
from fedveca.runs.resources import discard_unbegun
from fedveca.runs.run import log_of_results, resume, run
from fedveca.runs.schema import get_number, parse_object, validate_round
from fedveca.runs.statistics import mean_and_spread
from fedveca.tasks.datasets.dataset import Dataset, load
from fedveca.tasks.names import CUSTOM

Method = str | Algorithm
_NO_OBJECTS: CustomObjects = {}
_log = logging.getLogger(__name__)
LOOK_SECONDS = 0.2  # between two looks at what workers have written
MOST_LINE = 2**28  # bytes of a line of rounds.jsonl


class SeedValues(TypedDict):
    """One test value over the seeds: a run that diverged has null, and no part in mean and standard deviation."""

    mean: float | None
    std: float
    values: list[float | None]


class TableRow(TypedDict, total=False):
    """One method of a comparison, as table.json has it."""

    method: Required[str]
    seeds: Required[list[int]]
    tau_all: Required[float | None]
    last: Required[dict[str, SeedValues]]
    kept: Required[dict[str, SeedValues]]
    diverged: list[int]  # the seeds whose runs diverged


class Chain(NamedTuple):
    """The runs of one seed, in order: the total of local steps that the first one chooses is the others'."""

    experiment: Experiment
    methods: tuple[Method, ...]
    out: Path
    device: str

    def __call__(
        self, stop: StopRequest, observers: tuple[Observer, ...] = (), custom: CustomObjects = _NO_OBJECTS
    ) -> list[Run]:
        runs: list[Run] = []
        tau_all = self.experiment.tau_all
        for method in self.methods:
            e = replace(self.experiment, tau_all=0 if is_adaptive(method) else tau_all)
            mine: CustomObjects = {**custom}
            if isinstance(method, str):
                e = replace(e, method=method)
            else:
                mine["method"] = method
            folder = self.out / f"{folder_name(method)}-seed{e.seed}"
            done = find_finished(folder, e, mine)
            if done:
                for watcher in (o for o in observers if isinstance(o, ComparisonObserver)):
                    watcher.count_done(done)
            else:
                if stop():
                    raise Stopped
                if folder.exists():
                    done = resume(
                        folder, device=self.device, observers=observers, data_dir=e.data_dir, stop=stop, **mine
                    )
                else:
                    with discard_unbegun(folder):
                        done = run(e, folder, device=self.device, observers=observers, stop=stop, **mine)
            if is_adaptive(method) and not runs and not e.epochs:
                tau_all = find_budget(done)
                if done.diverged:
                    _log.warning("%s seed %d diverged; its rivals get %d local steps in all", method, e.seed, tau_all)
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
    observers: Iterable[Observer] = (),
    **custom: Unpack[CustomObjects],
) -> list[Run]:
    """Runs every method for every seed into folders of `out`, and writes table.json there.

    A run that is already there, finished and with the same settings, is not repeated; one that was interrupted is
    resumed.

    Args:
        experiment: The settings; its seed is the first one.
        seeds: How many seeds.
        out: The folder of all runs.
        methods: Names, or objects with the contract of `fedveca.algorithms.contract.Algorithm`. Where the first one
            chooses its own numbers of local steps, the others get the total of them, unless `epochs` is set: then
            each method with fixed steps takes the steps that `epochs` gives.
        device: "auto" (CUDA where there is one), "cpu" or "cuda".
        workers: Seeds that run in processes side by side; observers then see only the end of each run, unless they
            are a `ComparisonObserver`.
        observers: Objects that see each round as it ends.
        **custom: `data`, `model`, `loss`, `metric`, `partition` and `augment` as objects: see `CustomObjects`.

    Returns:
        The runs, seed by seed.

    Raises:
        UserError: With one sentence, where something given does not fit.
        Stopped: At Ctrl-C or SIGTERM, after the rounds under way, with everything saved.
    """
    check_experiment(experiment)
    check_folder(out)
    observers = check_observers(observers)
    methods = check_seeds_and_methods(seeds, paper_methods() if methods is None else methods, workers)
    out = Path(out)
    require_free(out)
    if custom.get("method") is not None:
        raise UserError("compare takes methods=(...), names or objects, not method=")
    if workers > 1 and (custom or not all(isinstance(m, str) for m in methods)):
        raise UserError(f"workers={workers}: custom objects are compared in this process, workers=1")
    if len({folder_name(m) for m in methods}) < len(methods):
        raise UserError(f"methods are named twice: {', '.join(map(folder_name, methods))}")
    for method in methods:
        check_epochs(experiment.epochs, method)
        algorithm = known_methods()[method].algorithm if isinstance(method, str) else method
        check_participation(experiment, algorithm, folder_name(method))
    if experiment.epochs and is_adaptive(methods[0]) and not all(map(is_adaptive, methods)):
        _log.info(
            "epochs=%s sets the local steps of the methods with fixed steps; the total of %s is not theirs",
            experiment.epochs,
            methods[0],
        )
    chains = [
        Chain(replace(experiment, seed=seed), methods, out, device)
        for seed in range(experiment.seed, experiment.seed + seeds)
    ]
    there = (out / f"{folder_name(m)}-seed{c.experiment.seed}" / "summary.json" for c in chains for m in methods)
    if "data" not in custom and not all(map(Path.exists, there)):
        custom["data"] = _load_shared(experiment)  # read before anything is written
    flag = FRESH.RawValue("b", 0)  # no lock that a killed worker could keep
    runs = []
    watching = [observer for observer in observers if isinstance(observer, ComparisonObserver)]
    for watcher in watching:
        watcher.plan(experiment, tuple(map(folder_name, methods)), seeds, workers, out)
    try:
        with listen_for_signals(first=lambda: setattr(flag, "value", 1)) as stopping:
            if workers > 1:
                folders = [out / f"{folder_name(m)}-seed{c.experiment.seed}" for c in chains for m in methods]
                batches = _run_in_processes(chains, workers, flag, Follower(folders, watching))
            else:
                batches = (chain(stopping, observers, custom) for chain in chains)
            for batch in batches:
                runs += batch
                for observer, done in product(observers if workers > 1 else (), batch):
                    if observer not in watching:  # which saw it as soon as it was over
                        observer.end(done)
    except Stopped:
        raise Stopped("stopped after a whole round, all saved; the same command resumes it") from None
    write_atomic(out / "table.json", json.dumps(make_table(runs), indent=2).encode() + b"\n")
    return runs


def list_fitting(experiment: Experiment, names: tuple[str, ...]) -> tuple[str, ...]:
    """The methods that can run with these settings.

    The closed-form SVM has no room for a loss of a method, and some methods need all clients in every round.
    """
    fitting = []
    for name in names:
        algorithm = known_methods()[name].algorithm
        unfit = algorithm.has_loss and experiment.model == "svm"
        unfit |= algorithm.needs_everyone and experiment.participation < 1
        fitting += [] if unfit else [name]
    return tuple(fitting)


def find_budget(run: Run) -> int:
    """The total of local steps that the rivals of an adaptive method get.

    Where its run diverged or ended early it is what all of its rounds would have taken at the pace of those that it
    has, or with tau_0 if it has none.
    """
    e, total = run.experiment, run.summary["tau_all"]
    if not run.diverged and not run.ended:
        return total
    steps = total / len(run.rounds) if run.rounds else e.tau_0 * clients_per_round(e.clients, e.participation)
    return max(1, round(steps * e.rounds))


FRESH = multiprocessing.get_context("spawn")  # CUDA and threads do not survive a fork


class Follower:
    """Reads what workers write into their run folders and passes it on: no channel that a killed worker could break.

    Args:
        folders: The run folders of the comparison, there already or not.
        observers: Who sees the rounds of these runs, and their ends.
    """

    def __init__(self, folders: list[Path], observers: list[ComparisonObserver]) -> None:
        self.observers = observers
        self._begun: set[Path] = set()
        self._tails: dict[Path, LineTail] = {}
        for folder in folders if observers else ():
            if (folder / "summary.json").exists():
                self._pass_on(folder, "count_done")
                continue
            self._tails[folder] = LineTail(folder, "rounds.jsonl", MOST_LINE)
            with contextlib.suppress(OSError, ValueError):
                self._tails[folder].read()  # of a run that was interrupted

    def look(self) -> None:
        """Passes on what has been written since the last look."""
        for folder, tail in list(self._tails.items()):
            with contextlib.suppress(OSError, ValueError):
                self._look_at(folder, tail)

    def _look_at(self, folder: Path, tail: LineTail) -> None:
        before, ended = tail.count, (folder / "summary.json").exists()
        lines = tail.read()
        if folder not in self._begun and (lines or (before == 0 and (folder / "experiment.toml").exists())):
            experiment = read_experiment((folder / "experiment.toml").read_text("utf-8"))
            self._begun.add(folder)
            for observer in self.observers:
                observer.begin_in_worker(experiment, folder)
        if lines and not ended:
            record = parse_object(lines[-1], "rounds.jsonl")
            if validate_round(record, tail.count - 1):
                for observer in self.observers:
                    observer.see_round_in_worker(folder, record)
        if ended:
            del self._tails[folder]
            self._pass_on(folder, "end")

    def _pass_on(self, folder: Path, call: Literal["count_done", "end"]) -> None:
        with contextlib.suppress(UserError):  # the worker finds the same, and its error is the command's
            run = Run.open(folder)
            for observer in self.observers:
                (observer.end if call == "end" else observer.count_done)(run)


def _run_in_processes(chains: list[Chain], workers: int, flag: Any, follower: Follower) -> Iterator[list[Run]]:
    threads, others = max(1, torch.get_num_threads() // workers), set(multiprocessing.active_children())
    with ProcessPoolExecutor(min(workers, len(chains)), FRESH, _worker, (threads, flag)) as pool:
        try:
            try:
                for future in [pool.submit(_in_worker, chain) for chain in chains]:
                    while wait([future], LOOK_SECONDS).not_done:
                        follower.look()
                    batch = future.result()
                    follower.look()
                    yield batch
            except Stopped:
                pool.shutdown(cancel_futures=True)  # each worker ends its round
                raise
        except BrokenProcessPool as error:
            raise OSError("a worker was ended from outside; the same command resumes it") from error
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
    log_of_results.disabled = True  # the parent shows what the summaries say
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # the parent gets them and sets the flag
    threading.Thread(target=_outlived, daemon=True).start()


def _in_worker(chain: Chain) -> list[Run]:
    with _busy:
        return chain(lambda: bool(_flag.value))


def _outlived() -> None:
    """A worker whose parent was killed ends its round and exits."""
    parent = multiprocessing.parent_process()
    assert parent
    parent.join()
    _flag.value = 1
    with _busy:
        os._exit(1)


def folder_name(method: Method) -> str:
    """A method's name, fit for a folder."""
    return (
        method
        if isinstance(method, str)
        else re.sub(r"[^\w.=]+", "-", name_of("method", method).removeprefix(CUSTOM)).strip("-")
    )


def find_finished(folder: Path, experiment: Experiment, custom: CustomObjects = _NO_OBJECTS) -> Run | None:
    """The run of this experiment that `folder` holds; one that never began is removed, another's is rejected.

    Where the data are and who tracks the run decide no number, so they may differ.
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


def make_table(runs: list[Run]) -> list[TableRow]:
    """One row per method: last and kept model, mean and standard deviation over the seeds that did not diverge."""
    rows = []
    for method in dict.fromkeys(r.experiment.method for r in runs):
        mine = [r for r in runs if r.experiment.method == method]
        steps = mean_and_spread(None if r.diverged else r.summary["tau_all"] for r in mine).mean
        row: TableRow = {
            "method": method,
            "seeds": [r.experiment.seed for r in mine],
            "tau_all": steps,
            "last": _collect(mine, "last"),
            "kept": _collect(mine, "kept"),
        }
        if any(r.diverged for r in mine):
            row["diverged"] = [r.experiment.seed for r in mine if r.diverged]
        rows.append(row)
    return rows


def _collect(runs: list[Run], which: Literal["last", "kept"]) -> dict[str, SeedValues]:
    out: dict[str, SeedValues] = {}
    for name in ("test_loss", runs[0].metric):
        values = [None if r.diverged else get_number(r.summary[which], name) for r in runs]
        mean, std, _ = mean_and_spread(values)
        out[name] = {"mean": mean, "std": std, "values": values}
    return out


def _load_shared(e: Experiment) -> Dataset | None:
    """Data that do not depend on the seed are read once."""
    return None if e.data == "synthetic" or e.data.startswith(CUSTOM) else load(e.data, e.data_dir)
