"""Clients on many machines: distributed over the workers of a Ray cluster. The only file that imports ray.

A worker holds its clients' rows and what they remember, runs the local cohort on them and returns one mean per vector
and the list of numbers: O(P) per worker and round, however many its clients. All draws are a pure function of (seed,
round, client), so a worker that is lost is replaced from the data, the memory as it was last collected and the orders
since, and computes the same numbers.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import math
import os
import re
import secrets
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, Unpack

import ray
import torch
from ray._private import ray_constants
from ray.exceptions import GetTimeoutError, NodeDiedError, ObjectLostError, RayActorError, WorkerCrashedError
from torch import Tensor

from fedveca.algorithms.contract import Algorithm, Named, Norms, Order, Report
from fedveca.cohorts.client_memory import MEMORY_BYTES, ClientMemory, make_new_memory
from fedveca.cohorts.client_store import PIECE_BYTES
from fedveca.cohorts.contract import ClientScores, CohortOptions, HeldPart
from fedveca.cohorts.ray.worker import (
    PartialMean,
    ScoreAnswer,
    TurnAnswer,
    Worker,
    WorkerInfo,
    assign_clients,
    merge_means,
    to_arrays,
    to_tensors,
)
from fedveca.cohorts.transfer import PLAIN
from fedveca.errors import UserError
from fedveca.tasks.datasets.lazy import LazyRows
from fedveca.tasks.partition import Shares
from fedveca.tasks.problem import Problem
from fedveca.version import __version__

_LOST = (RayActorError, ObjectLostError, NodeDiedError, WorkerCrashedError)
_TRIES = 5  # losses of workers in one round before the round fails
_START_SECONDS = 300.0  # until every worker has a place and its data
_MERGED_HERE = 4  # means that are merged here; more are merged in pairs by the workers
_OLDEST_RAY = (2, 52)  # the first version that can require a token
_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # 0: Ray listens on 127.0.0.1 alone, on every system
_PATH_CHARACTERS = 24  # of a folder in which the paths of Ray's sockets still stay below 104
_HISTORY = 16  # rounds that a lost worker may have to repeat where clients remember


class Turn(NamedTuple):
    """One call of the cohort."""

    number: int
    k: int
    order: Any  # Ray's reference: the order lies in its store once, whoever reads it
    ids: Tensor
    tau: Tensor


class RayCohort:
    """The clients of `shares` on `workers` processes, each one core or a share of a GPU."""

    def __init__(
        self,
        algorithm: Algorithm,
        problem: Callable[[], Problem],
        x: Tensor | LazyRows,
        y: Tensor,
        shares: Shares,
        *,
        workers: int = 0,
        address: str = "",
        gpus: float = 0.0,
        **options: Unpack[CohortOptions],
    ) -> None:
        """Starts the workers and sends them their clients' rows.

        Args:
            algorithm: The method, of which the clients' half runs on the workers.
            problem: Makes the problem, once on each worker.
            x: The training rows, [D, ...]; each worker opens the source of lazily read ones itself.
            y: Their labels or targets, [D, ...].
            shares: Which client owns which rows.
            workers: Number of workers; 0 takes one per core, or as many as fit on the GPUs.
            address: `auto` or HOST:PORT of a Ray cluster; an empty text starts one on this machine.
            gpus: Share of a GPU per worker.
            **options: Those of `LocalCohort`.

        Raises:
            UserError: If the cluster cannot be reached or has too few GPUs, or a worker cannot be started.
        """
        self.algorithm, self.problem, self.x, self.y, self.shares = algorithm, problem, x, y, shares
        held = options.pop("held", None)
        self.parts = [shares, held.val, held.test] if held else [shares]
        self.options, self.gpus, self.sizes = options, gpus, shares.sizes
        self.transfer = options.get("transfer", PLAIN)
        self.weights = torch.ones_like(self.sizes) if options.get("equal_weights") else self.sizes  # [N]
        self.total_weight = float(self.weights.sum())
        connect(address, 16 * len(x) if isinstance(x, LazyRows) else 2 * x.numel() * x.element_size())
        cluster: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        cores, cards = cluster.get("CPU", 0.0), cluster.get("GPU", 0.0)
        self.count = min(workers or int(cards / gpus if gpus else cores) or 1, len(self.sizes))
        if gpus * self.count > cards:
            raise UserError(f"worker_gpus={gpus:g}: {self.count} workers need more GPUs than the cluster's {cards:g}")
        self.share = 1 / math.ceil(self.count / max(cores, 1.0))  # of a core: more workers than cores take turns
        self.owner = assign_clients(self.sizes, self.count)  # [N] the worker of each client
        self.lost = 0  # workers replaced so far
        self.workers = [self._start(j, self.share) for j in range(self.count)]
        self._wait_for_start()
        self._memory = ClientMemory(len(self.sizes), options.get("memory_bytes", MEMORY_BYTES))
        self._history: list[Turn] = []  # since the memory was last complete
        self._collected = torch.full_like(self.sizes, -1)  # [N] the turn after which each client's row was collected
        self._number, self._restored = -1, False
        self._width = 1  # floats that a client remembers
        self._resets = 0  # how often the workers have forgotten all

    @property
    def memory(self) -> ClientMemory:
        """What all clients remember: the rows that changed since last time are collected from the workers."""
        self._collect()
        return self._memory

    def __call__(self, k: int, order: Order, ids: Tensor, tau: Tensor) -> tuple[Tensor, Report]:
        self._prepare_workers(order)
        self._number += 1
        turn = Turn(self._number, k, self._put(order), ids, tau)
        total, who, each, norms = self._run_turn(turn)
        if self._width and bool(tau.max() > 0):
            self._history.append(turn)
            if len(self._history) >= _HISTORY:
                self._collect()
        report = Report(to_tensors(total.mean, order.w.device), each, total.mass / self.total_weight, norms=norms)
        return who, self.transfer.label(report)

    def evaluate(self, k: int, order: Order, part: HeldPart, finetune: int = 0) -> ClientScores:
        """What each client finds on the rows that it holds back, as `Cohort` has it; a lost worker's is asked anew."""
        self._prepare_workers(order)
        reference = self._put(order)
        for _ in range(_TRIES):
            try:
                jobs = [worker.evaluate.remote(k, reference, part, finetune) for worker in self.workers]
                answered: list[ScoreAnswer] = ray.get(jobs)
            except _LOST:
                self._replace()
                continue
            ids, rows = (torch.cat([torch.tensor(some[at]) for some in answered]) for at in (0, 1))
            values = {name: torch.cat([torch.tensor(a.values[name]) for a in answered]) for name in answered[0].values}
            rising = ids.argsort()
            return ClientScores(ids[rising], rows[rising], {name: v[rising] for name, v in values.items()})
        raise OSError(f"round {k + 1}: workers of the Ray cluster were lost {_TRIES} times while clients evaluated")

    def _prepare_workers(self, order: Order) -> None:
        """Gives the workers what the clients of a run that is resumed remember, before the first call."""
        local = self.options.get("local_statistics", False)
        memory = make_new_memory(self.algorithm, order, local, self.transfer)
        self._width = sum(v.shape[-1] for v in memory.values())
        if self._memory.resets != self._resets:
            self._resets = self._memory.resets
            for worker in self.workers:
                worker.forget.remote()
        for j in () if self._restored else range(self.count):
            self._restore(j)
        self._restored = True

    @staticmethod
    def _put(order: Order) -> Any:
        return ray.put((order.w.detach().cpu().numpy(), to_arrays(order.aux)))

    def _run_turn(self, turn: Turn) -> tuple[PartialMean, Tensor, Named, Norms]:
        """One round; where workers are lost, the others repeat their answers and the new ones compute theirs."""
        owner = self.owner[turn.ids]
        for _ in range(_TRIES):
            answers = {j: self._start_turn(j, turn, owner == j) for j in sorted(set(owner.tolist()))}
            try:
                answered: list[TurnAnswer] = ray.get([numbers for _, numbers in answers.values()])
                total = self._merge({j: mean for j, (mean, _) in answers.items()})
            except _LOST:
                self._replace()
                continue
            who = torch.cat([torch.tensor(some.who) for some in answered])
            names = answered[0].each
            each = {name: torch.cat([torch.tensor(some.each[name]) for some in answered]) for name in names}
            norms = Norms(*(torch.cat([torch.tensor(a.norms[name]) for a in answered], -1) for name in Norms._fields))
            place = torch.empty_like(self.sizes)
            place[turn.ids] = torch.arange(len(turn.ids))
            order = place[who].argsort()  # as they were asked
            return total, who[order], {name: v[order] for name, v in each.items()}, norms
        raise OSError(f"round {turn.k + 1}: workers of the Ray cluster were lost {_TRIES} times, so it failed")

    def _start_turn(self, j: int, turn: Turn, mine: Tensor) -> Any:
        """Ray's references to the mean and the numbers of the worker's clients."""
        ids, tau = turn.ids[mine].numpy(), turn.tau[mine].numpy()
        return self.workers[j].run_turn.options(num_returns=2).remote(turn.number, turn.k, turn.order, ids, tau)

    def _merge(self, means: dict[int, Any]) -> PartialMean:
        """The mean over all, in a fixed order; of many, the workers merge pairs first, so that few come here."""
        while len(means) > _MERGED_HERE:
            items = list(means.items())
            pairs = zip(items[::2], items[1::2], strict=False)
            means = {j: self.workers[j].merge.remote(a, b) for (j, a), (_, b) in pairs}
            means |= dict(items[len(items) // 2 * 2 :])
        here: list[PartialMean] = ray.get(list(means.values()))
        return functools.reduce(merge_means, here)

    def _start(self, j: int, cores: float) -> Any:
        """A new worker with the rows of its clients."""
        pieces, starts = [], []
        for part in self.parts:
            clients = torch.arange(len(part.sizes)).clamp(max=len(self.sizes) - 1)  # one client may train for all
            mine = self.owner[clients] == j
            pieces.append(part.rows[mine.repeat_interleave(part.sizes)])
            sizes = torch.where(mine, part.sizes, 0)
            starts.append(torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]).numpy())
        rows = torch.cat(pieces)
        worker = ray.remote(Worker).options(num_cpus=cores, num_gpus=self.gpus, max_restarts=0)
        return worker.remote(
            self.algorithm,
            self.problem,
            ray.put(self.x[rows] if isinstance(self.x, LazyRows) else self.x[rows].numpy()),
            ray.put(self.y[rows].numpy()),
            starts,
            "cuda" if self.gpus else "cpu",
            os.getcwd(),
            self.options,
        )

    def _wait_for_start(self) -> None:
        """Waits until every worker has started, and checks its version."""
        try:
            infos: list[WorkerInfo] = ray.get([w.describe.remote() for w in self.workers], timeout=_START_SECONDS)
        except GetTimeoutError:
            free = ray.available_resources()  # type: ignore[no-untyped-call]
            raise UserError(
                f"workers={len(self.workers)} did not all find a place on the Ray cluster in {_START_SECONDS:.0f} s; "
                f"free: {free.get('CPU', 0):g} cores, {free.get('GPU', 0):g} GPUs"
            ) from None
        except RayActorError as error:
            raise UserError(f"a Ray worker could not be started: {str(error).strip().splitlines()[-1]}") from error
        for info in infos:
            if info["fedveca"] != __version__:
                raise UserError(f"a Ray worker has fedveca {info['fedveca']}, not {__version__}; install the same")

    def _replace(self) -> None:
        """A new worker for each that is lost; where no core is free it shares one, so that the run continues."""
        for j, worker in enumerate(self.workers):
            try:
                ray.get(worker.describe.remote())
            except _LOST:
                self.lost += 1
                with contextlib.suppress(Exception):
                    ray.kill(worker)
                self.workers[j] = self._start(j, 0)
                self._restore(j)

    def _restore(self, j: int) -> None:
        """Gives a new worker what its clients remember: the rows that are here, and the rounds since."""
        known = torch.tensor(list(self._memory), dtype=torch.int64)
        for ids in torch.split(known[self.owner[known] == j], self._piece()):
            rows = self._memory.recall(ids)
            self.workers[j].remember.remote(ids.numpy(), to_arrays(rows))
        for turn in self._history:
            mine = (self.owner[turn.ids] == j) & (self._collected[turn.ids] < turn.number)
            if bool(mine.any()):
                self._start_turn(j, turn, mine)

    def _collect(self) -> None:
        """Collects what the clients of the rounds since remember; a worker that is lost meanwhile repeats them."""
        if not self._history:
            return
        last = self._history[-1].number
        ids = torch.unique(torch.cat([turn.ids for turn in self._history]))
        for _ in range(_TRIES):
            try:
                for j in range(self.count):
                    left = ids[(self.owner[ids] == j) & (self._collected[ids] < last)]
                    for some in torch.split(left, self._piece()):
                        seen, rows = ray.get(self.workers[j].recall.remote(some.numpy()))
                        self._memory.remember(torch.tensor(seen), to_tensors(rows))
                        self._collected[some] = last
            except _LOST:
                self._replace()
                continue
            self._history = []
            return
        raise OSError(f"workers of the Ray cluster were lost {_TRIES} times while the clients' memory was collected")

    def _piece(self) -> int:
        """How many clients' rows travel at once."""
        return max(1, PIECE_BYTES // (4 * max(1, self._width)))


def connect(address: str, data_bytes: int) -> None:
    """Connects to the cluster at `address`, or to a new one for this process alone; does nothing where Ray is up."""
    if ray.is_initialized():
        return
    if tuple(int(part) for part in re.findall(r"\d+", ray.__version__)[:2]) < _OLDEST_RAY:
        need = ".".join(map(str, _OLDEST_RAY))
        raise UserError(f"Ray {ray.__version__} is installed; engine=ray needs {need} or newer: pip install -U ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: _RayOptions = {"address": address or "local", "logging_level": logging.ERROR, "log_to_driver": False}
    if not address:
        options |= {"num_cpus": os.cpu_count(), "include_dashboard": False}
        options |= {"object_store_memory": max(256 * 2**20, data_bytes)}
    elif address != "auto":
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), 5).close()
        except (OSError, ValueError, OverflowError) as error:
            allowed = "it is auto or HOST:PORT of a Ray cluster that this machine is a node of"
            raise UserError(f"ray_address={address} cannot be reached ({error}); {allowed}") from None
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with contextlib.ExitStack() as stack:
            ray.init(**options if address else options | stack.enter_context(_make_private()))
    except Exception as error:  # Ray raises bare ones too
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        what = f"ray_address={address} cannot be reached" if address else "Ray cannot be started"
        raise UserError(f"{what}: {reason}") from error
    if handler not in (None, signal.SIG_DFL) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # Ray replaces the caller's by its own


class _RayOptions(TypedDict, total=False):
    """Arguments of ray.init."""

    address: str
    logging_level: int
    log_to_driver: bool
    num_cpus: int | None
    include_dashboard: bool
    object_store_memory: int
    _temp_dir: str


@contextlib.contextmanager
def _make_private() -> Iterator[_RayOptions]:
    """Inside the context, a cluster that Ray starts is for this process alone.

    It requires a token, which only this process and what it starts know; it listens on 127.0.0.1; and its folder with
    sockets and logs, which Ray opens to all users of the machine, lies in one that only this user can enter. Those of
    Ray's variables that the user has set stay as they are.
    """
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # else Ray leaves one in ~/.ray that others can read
        ray._raylet.Config.initialize("")  # type: ignore[attr-defined]  # Ray read its variables when it was imported
    clusters, mine = ray_constants.ENABLE_RAY_CLUSTER, _LOOPBACK not in os.environ
    home = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    if len(home) > _PATH_CHARACTERS and Path("/tmp").is_dir():
        home = "/tmp"
    folder = tempfile.mkdtemp(prefix="fv-", dir=home)
    atexit.register(_shut_down, folder, os.getpid())
    if mine:
        ray_constants.ENABLE_RAY_CLUSTER, os.environ[_LOOPBACK] = False, "0"
    try:
        yield {"_temp_dir": f"{folder}/r"}
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = clusters
        if mine:
            del os.environ[_LOOPBACK]


def _shut_down(folder: str, pid: int) -> None:
    """Ends the cluster, then removes its folder; not where the process was forked."""
    if os.getpid() == pid:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
