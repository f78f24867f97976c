"""Many runs, one after another or side by side, in this process or in others: each is finished, resumed or begun."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple

import torch

from fedveca.algorithms import Algorithm
from fedveca.errors import UserError
from fedveca.runs.experiment import Experiment, read_experiment
from fedveca.runs.files import LineTail
from fedveca.runs.folder import Run
from fedveca.runs.interrupt import SIGNALS, Stopped, StopRequest, listen_for_signals
from fedveca.runs.lock import lock_folder, lock_on_behalf_of
from fedveca.runs.observers import ComparisonObserver, Observer
from fedveca.runs.overrides import CustomObjects, name_objects
from fedveca.runs.population import MOST_MEMBERS, is_shared, run_population, shares_steps
from fedveca.runs.resources import discard_unbegun
from fedveca.runs.run import log_of_results, resolve_device, resume, run
from fedveca.runs.schema import Round
from fedveca.runs.validate_records import parse_object, validate_round
from fedveca.runs.worker_server import WORKERS, limit_arenas, start_server
from fedveca.tasks.datasets.dataset import load
from fedveca.tasks.names import CUSTOM

NO_OBJECTS: CustomObjects = {}
LOOK_SECONDS = 0.2  # between two looks at what workers have written
MOST_LINE = 2**28  # bytes of a line of rounds.jsonl


class RunPool:
    """Completes runs, several at a time where there are workers; the first Ctrl-C or SIGTERM ends them between rounds.

    Args:
        workers: Processes; 1 is this one.
        observers: Who sees the rounds. Of runs in other processes they see the ends alone, unless they are a
            `ComparisonObserver`.
        custom: Objects that all runs share; only in this process.
    """

    def __init__(self, workers: int, observers: tuple[Observer, ...] = (), custom: CustomObjects = NO_OBJECTS) -> None:
        self.workers, self.observers, self.custom = workers, observers, custom
        self.watching = [observer for observer in observers if isinstance(observer, ComparisonObserver)]
        self._flag = WORKERS.RawValue("b", 0)  # no lock that a killed worker could keep
        self._context = contextlib.ExitStack()
        self._pool: ProcessPoolExecutor | None = None
        self._others: set[Any] = set()

    def __enter__(self) -> RunPool:
        listening = listen_for_signals(first=lambda: setattr(self._flag, "value", 1))
        self._stopping = self._context.enter_context(listening)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._context:
            if self._pool and error and not isinstance(error, Stopped):
                for child in set(multiprocessing.active_children()) - self._others:
                    child.kill()  # what it wrote is whole
            if self._pool:
                self._pool.shutdown(cancel_futures=True)  # each worker ends its round
        if isinstance(error, Stopped):
            raise Stopped("stopped after a whole round, all saved; the same command resumes it") from None

    def share_data(self, e: Experiment, folders: Sequence[Path]) -> None:
        """Reads data that do not depend on the seed once, before anything is written, unless all runs are finished."""
        self.custom = share_data(e, folders, self.custom)

    def complete(self, plans: Sequence[RunPlan]) -> list[Run]:
        """The finished runs of plans that do not depend on each other, in their order."""
        groups = group_plans(plans, self.workers)
        runs = {run.folder: run for batch in self._run(groups) for run in batch}
        return [runs[plan.folder] for plan in plans]

    def _run(self, groups: Sequence[Sequence[RunPlan]]) -> Iterator[list[Run]]:
        if self.workers == 1:
            for plans in groups:
                yield complete_runs(plans, self._stopping, self.observers, self.custom)
            return
        follower = Follower([plan.folder for plans in groups for plan in plans], self.watching)
        try:
            futures = [self._start().submit(_complete_in_worker, plans) for plans in groups]
            for plans, future in zip(groups, futures, strict=True):
                while wait([future], LOOK_SECONDS).not_done:
                    follower.look()
                future.result()
                follower.look()
                batch = [Run.open(plan.folder) for plan in plans]
                for observer, done in product(self.observers, batch):
                    if observer not in self.watching:  # which saw it as soon as it was over
                        observer.end(done)
                yield batch
        except BrokenProcessPool as error:
            raise OSError("a worker was ended from outside; the same command resumes it") from error

    def _start(self) -> ProcessPoolExecutor:
        if self._pool is None:
            start_server()
            self._others = set(multiprocessing.active_children())
            threads = max(1, torch.get_num_threads() // self.workers)
            self._pool = ProcessPoolExecutor(self.workers, WORKERS, _worker, (threads, self._flag, dict(os.environ)))
        return self._pool


def complete_run(
    e: Experiment,
    folder: Path,
    device: str,
    stop: StopRequest,
    observers: tuple[Observer, ...] = (),
    custom: CustomObjects = NO_OBJECTS,
) -> Run:
    """The finished run of these settings in a folder: as it lies there, resumed, or run now."""
    if done := find_finished(folder, e, custom):
        for watcher in (observer for observer in observers if isinstance(observer, ComparisonObserver)):
            watcher.count_done(done)
        return done
    if stop():
        raise Stopped
    if folder.exists():
        return resume(folder, device=device, observers=observers, data_dir=e.data_dir, stop=stop, **custom)
    with discard_unbegun(folder):
        return run(e, folder, device=device, observers=observers, stop=stop, **custom)


def share_data(e: Experiment, folders: Sequence[Path], custom: CustomObjects) -> CustomObjects:
    """The objects of runs with their data, which do not depend on the seed; without, where all runs are finished."""
    if "data" in custom or all((folder / "summary.json").exists() for folder in folders):
        return custom
    own = e.data == "synthetic" or e.data.startswith(CUSTOM)
    return {**custom, "data": None if own else load(e.data, e.data_dir)}


class RunPlan(NamedTuple):
    """A run to be completed: its settings, its folder, and its method where that is an object."""

    experiment: Experiment
    folder: Path
    device: str
    method: Algorithm | None = None


def complete_runs(
    plans: Sequence[RunPlan],
    stop: StopRequest,
    observers: tuple[Observer, ...] = (),
    custom: CustomObjects = NO_OBJECTS,
) -> list[Run]:
    """The finished runs of these plans, which do not depend on each other: side by side where that is quicker."""
    watching = [observer for observer in observers if isinstance(observer, ComparisonObserver)]

    def complete(plan: RunPlan, observers: tuple[Observer, ...], stop: StopRequest) -> Run:
        mine: CustomObjects = custom if plan.method is None else {**custom, "method": plan.method}
        return complete_run(plan.experiment, plan.folder, plan.device, stop, observers, mine)

    together = len(plans) > 1 and len(watching) == len(observers) and custom.keys() <= {"data"}
    if not together or not all(is_shared(plan.experiment, resolve_device(plan.device)) for plan in plans):
        return [complete(plan, observers, stop) for plan in plans]
    custom = share_data(plans[0].experiment, [plan.folder for plan in plans], custom)
    done: list[Run] = []
    with _quiet_results(bool(watching)):
        for some in _split_evenly(plans, MOST_MEMBERS):
            relays = [tuple(MemberObserver(observer) for observer in watching) for _ in some]
            calls = [partial(complete, plan, relay) for plan, relay in zip(some, relays, strict=True)]
            done += run_population(calls, stop, resolve_device(plans[0].device))
    return done


def _split_evenly(plans: Sequence[RunPlan], most: int) -> list[Sequence[RunPlan]]:
    """As few populations as possible, of nearly equal sizes: one of two runs would leave a device idle."""
    count = -(-len(plans) // most)
    ends = [len(plans) * i // count for i in range(count + 1)]
    return [plans[a:b] for a, b in pairwise(ends)]


def group_plans(plans: Sequence[RunPlan], workers: int) -> list[tuple[RunPlan, ...]]:
    """Plans that are quicker side by side in one group, but a group for each worker; each other plan alone."""
    shared = [is_shared(plan.experiment, resolve_device(plan.device)) for plan in plans]
    if not all(shared):
        return [(plan,) for plan in plans]
    if all(shares_steps(plan.experiment, resolve_device(plan.device)) for plan in plans):
        size = max(1, -(-len(plans) // workers))
        return [tuple(plans[at : at + size]) for at in range(0, len(plans), size)]
    seeds: dict[int, list[RunPlan]] = {}
    for plan in plans:
        seeds.setdefault(plan.experiment.seed, []).append(plan)
    parts = -(-workers // max(1, len(seeds)))
    sizes = {seed: -(-len(mine) // parts) for seed, mine in seeds.items()}
    return [
        tuple(mine[at : at + sizes[seed]]) for seed, mine in seeds.items() for at in range(0, len(mine), sizes[seed])
    ]


class MemberObserver(ComparisonObserver):
    """Passes on what one of several runs does to an observer that sees many at a time."""

    def __init__(self, observer: ComparisonObserver) -> None:
        self.observer = observer
        self._folder = Path()

    def start(self, experiment: Experiment, folder: Path | None) -> None:
        self._folder = folder or Path()
        self.observer.begin_in_worker(experiment, self._folder)

    def round(self, record: Round) -> None:
        self.observer.see_round_in_worker(self._folder, record)

    def end(self, run: Run) -> None:
        self.observer.end(run)

    def count_done(self, run: Run) -> None:
        self.observer.count_done(run)


@contextlib.contextmanager
def _quiet_results(quiet: bool) -> Iterator[None]:
    """Inside the context, what summaries say is not logged: the observers of several runs at a time show it."""
    before = log_of_results.disabled
    log_of_results.disabled = before or quiet
    try:
        yield
    finally:
        log_of_results.disabled = before


def find_finished(folder: Path, experiment: Experiment, custom: CustomObjects = NO_OBJECTS) -> Run | None:
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


_flag: Any = None  # in a worker: whether to stop
_busy = threading.Lock()


def _worker(threads: int, flag: Any, environment: dict[str, str]) -> None:
    global _flag
    _flag = flag
    os.environ.clear()  # the process that this one was forked from may have begun with another one
    os.environ.update(environment)
    torch.set_num_threads(threads)
    limit_arenas()
    log_of_results.disabled = True  # the parent shows what the summaries say
    if parent := multiprocessing.parent_process():
        lock_on_behalf_of(parent.pid or 0)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # the parent gets them and sets the flag
    threading.Thread(target=_outlived, daemon=True).start()


def _complete_in_worker(plans: Sequence[RunPlan]) -> None:
    """The runs stay in their folders: tensors would travel through shared memory, of which a container has little."""
    with _busy:
        complete_runs(plans, lambda: bool(_flag.value))


def _outlived() -> None:
    """A worker whose parent was killed ends its round and exits."""
    parent = multiprocessing.parent_process()
    assert parent
    parent.join()
    _flag.value = 1
    with _busy:
        os._exit(1)
