"""Clients on many machines: dealt over workers of a Ray cluster. The only file that imports ray.

A worker holds its clients' rows and what they remember, runs the local cohort on them and returns one sum for each
vector and the list of numbers: O(P) a worker and round, however many its clients. All chance is a pure function of
(seed, round, client), so a worker that is lost is made again from the data, the memory as it was last brought
here and the orders since, and gives the same numbers.
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
from typing import Any, NamedTuple

import ray
import torch
from ray._private import ray_constants
from ray.exceptions import GetTimeoutError, NodeDiedError, ObjectLostError, RayActorError, WorkerCrashedError
from torch import Tensor

from fedveca.algorithms.contract import Algorithm, Norms, Order, Report
from fedveca.cohorts.client_memory import LIMIT, ClientMemory
from fedveca.cohorts.client_store import PIECE_BYTES
from fedveca.cohorts.ray.worker import Sum, Worker, added, dealt, packed, unpacked
from fedveca.errors import UserError
from fedveca.tasks.partition import Shares
from fedveca.tasks.problem import Problem
from fedveca.version import __version__

LOST = (RayActorError, ObjectLostError, NodeDiedError, WorkerCrashedError)
TRIES = 5  # losses of workers in one round before it is given up
START_S = 300.0  # until every worker has a place and its data
FEW = 4  # sums that are added here; more are added in pairs by the workers
OLDEST = (2, 52)  # the first Ray that can ask for a token
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # 0: Ray listens on 127.0.0.1 alone, on every system
PATH_ROOM = 24  # characters of a folder in which Ray's sockets still find room below 104
PAST = 16  # rounds that a lost worker may have to repeat where clients remember


class Turn(NamedTuple):
    """One call of the cohort."""

    number: int
    k: int
    order: Any  # a reference: the order lies in Ray's store once, whoever reads it
    ids: Tensor
    tau: Tensor


class RayCohort:
    """The clients of `shares` on `workers` processes, each one core or a share of a GPU."""

    def __init__(
        self,
        algorithm: Algorithm,
        problem: Callable[[], Problem],
        x: Tensor,
        y: Tensor,
        shares: Shares,
        *,
        workers: int = 0,
        address: str = "",
        gpus: float = 0.0,
        memory_bytes: int = LIMIT,
        **options: Any,
    ) -> None:
        self.algorithm, self.problem, self.x, self.y, self.shares = algorithm, problem, x, y, shares
        self.options, self.gpus, self.sizes = options | {"memory_bytes": memory_bytes}, gpus, shares.sizes
        self.whole = float(len(self.sizes) if options.get("even") else self.sizes.sum())  # weight of all clients
        connect(address, 2 * x.numel() * x.element_size())
        whole: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        cores, cards = whole.get("CPU", 0.0), whole.get("GPU", 0.0)
        self.count = min(workers or int(cards / gpus if gpus else cores) or 1, len(self.sizes))
        if gpus * self.count > cards:
            raise UserError(f"worker_gpus={gpus:g}: {self.count} workers need more GPUs than the cluster's {cards:g}")
        self.share = 1 / math.ceil(self.count / max(cores, 1.0))  # of a core: more workers than cores take turns
        self.owner = dealt(self.sizes, self.count)  # [N] the worker of each client
        self.lost = 0  # workers replaced so far
        self.workers = [self._start(j, self.share) for j in range(self.count)]
        self._met(self.workers)
        self._memory = ClientMemory(len(self.sizes), memory_bytes)
        self._past: list[Turn] = []  # since the memory was last complete
        self._upto = torch.full_like(self.sizes, -1)  # [N] the turn after which each client's row was brought here
        self._number = -1
        self._width = 1  # floats that a client remembers

    @property
    def memory(self) -> ClientMemory:
        """What all clients remember: brought here from the workers, those rows that changed since last time."""
        self._collect()
        return self._memory

    def __call__(self, k: int, order: Order, ids: Tensor, tau: Tensor) -> tuple[Tensor, Report]:
        self._width = sum(v.shape[-1] for v in self.algorithm.memory(order.w).values())
        if self._number < 0:
            for j in range(self.count):
                self._fill(j)  # of a run that goes on
        self._number += 1
        sent = ray.put((order.w.detach().cpu().numpy(), packed(order.aux)))
        turn = Turn(self._number, k, sent, ids, tau)
        total, who, each, norms = self._asked(turn)
        if self._width and bool(tau.max() > 0):
            self._past.append(turn)
            if len(self._past) >= PAST:
                self._collect()
        mean = unpacked(total.mean, order.w.device)
        return who, Report(mean, each, total.mass / self.whole, norms=norms)

    def _asked(self, turn: Turn) -> tuple[Sum, Tensor, dict[str, Tensor], Norms]:
        """One round; where workers are lost, those that live repeat what they know and the new ones do theirs."""
        owner = self.owner[turn.ids]
        for _ in range(TRIES):
            answers = {j: self._ask(j, turn, owner == j) for j in sorted(set(owner.tolist()))}
            try:
                told = ray.get([numbers for _, numbers in answers.values()])
                total = self._added({j: sums for j, (sums, _) in answers.items()})
            except LOST:
                self._replace()
                continue
            who = torch.cat([torch.tensor(ids) for ids, _, _ in told])
            each = {name: torch.cat([torch.tensor(numbers[name]) for _, numbers, _ in told]) for name in told[0][1]}
            norms = Norms(*(torch.cat([torch.tensor(n[name]) for _, _, n in told], -1) for name in Norms._fields))
            place = torch.empty_like(self.sizes)
            place[turn.ids] = torch.arange(len(turn.ids))
            order = place[who].argsort()  # as they were asked
            return total, who[order], {name: v[order] for name, v in each.items()}, norms
        raise OSError(f"round {turn.k + 1}: workers of the Ray cluster were lost {TRIES} times, so it was given up")

    def _ask(self, j: int, turn: Turn, mine: Tensor) -> Any:
        ids, tau = turn.ids[mine].numpy(), turn.tau[mine].numpy()
        return self.workers[j].ask.options(num_returns=2).remote(turn.number, turn.k, turn.order, ids, tau)

    def _added(self, sums: dict[int, Any]) -> Sum:
        """The sum of all, in a fixed order; of many, the workers add pairs first, so that few come here."""
        while len(sums) > FEW:
            pairs = list(sums.items())
            twos = zip(pairs[::2], pairs[1::2], strict=False)
            sums = {j: self.workers[j].add.remote(a, b) for (j, a), (_, b) in twos}
            sums |= dict(pairs[len(pairs) // 2 * 2 :])
        here: list[Sum] = ray.get(list(sums.values()))
        return functools.reduce(added, here)

    def _start(self, j: int, cores: float) -> Any:
        """A new worker with the rows of its clients."""
        size = torch.where(self.owner == j, self.sizes, 0)
        rows = self.shares.rows[(self.owner == j).repeat_interleave(self.sizes)]
        start = torch.cat([torch.zeros(1, dtype=torch.int64), size.cumsum(0)])
        worker = ray.remote(Worker).options(num_cpus=cores, num_gpus=self.gpus, max_restarts=0)
        return worker.remote(
            self.algorithm,
            self.problem,
            ray.put(self.x[rows].numpy()),
            ray.put(self.y[rows].numpy()),
            start.numpy(),
            "cuda" if self.gpus else "cpu",
            os.getcwd(),
            self.options,
        )

    def _met(self, workers: list[Any]) -> None:
        """Waits until they stand."""
        try:
            self.about = ray.get([worker.about.remote() for worker in workers], timeout=START_S)
        except GetTimeoutError:
            free = ray.available_resources()  # type: ignore[no-untyped-call]
            raise UserError(
                f"workers={len(workers)} did not all find a place on the Ray cluster in {START_S:.0f} s; "
                f"free: {free.get('CPU', 0):g} cores, {free.get('GPU', 0):g} GPUs"
            ) from None
        except RayActorError as error:
            raise UserError(f"a Ray worker could not be started: {str(error).strip().splitlines()[-1]}") from error
        for theirs in self.about:
            if theirs["fedveca"] != __version__:
                raise UserError(f"a Ray worker has fedveca {theirs['fedveca']}, not {__version__}; install the same")

    def _replace(self) -> None:
        """A new worker for each that is gone; where no core is free it shares one, so that the run goes on."""
        for j, worker in enumerate(self.workers):
            try:
                ray.get(worker.about.remote())
            except LOST:
                self.lost += 1
                with contextlib.suppress(Exception):
                    ray.kill(worker)
                self.workers[j] = self._start(j, 0)
                self._fill(j)

    def _fill(self, j: int) -> None:
        """Gives a new worker what its clients remember: the rows that are here, and the rounds since."""
        known = torch.tensor(list(self._memory), dtype=torch.int64)
        for ids in torch.split(known[self.owner[known] == j], self._piece()):
            rows = self._memory.recall(ids, self._memory.blank())
            self.workers[j].remember.remote(ids.numpy(), packed(rows))
        for turn in self._past:
            mine = (self.owner[turn.ids] == j) & (self._upto[turn.ids] < turn.number)
            if bool(mine.any()):
                self._ask(j, turn, mine)

    def _collect(self) -> None:
        """Brings here what the clients of the rounds since remember; whoever is lost meanwhile repeats its rounds."""
        if not self._past:
            return
        last = self._past[-1].number
        ids = torch.unique(torch.cat([turn.ids for turn in self._past]))
        for _ in range(TRIES):
            try:
                for j in range(self.count):
                    left = ids[(self.owner[ids] == j) & (self._upto[ids] < last)]
                    for some in torch.split(left, self._piece()):
                        seen, rows = ray.get(self.workers[j].recall.remote(some.numpy()))
                        self._memory.remember(torch.tensor(seen), unpacked(rows))
                        self._upto[some] = last
            except LOST:
                self._replace()
                continue
            self._past = []
            return
        raise OSError(f"workers of the Ray cluster were lost {TRIES} times while the clients' memory was brought here")

    def _piece(self) -> int:
        """Clients whose rows travel at once."""
        return max(1, PIECE_BYTES // (4 * max(1, self._width)))


def connect(address: str, data_bytes: int) -> None:
    """Ray as it is, the cluster at `address`, or a new one on this machine for this process alone."""
    if ray.is_initialized():
        return
    if tuple(int(part) for part in re.findall(r"\d+", ray.__version__)[:2]) < OLDEST:
        need = ".".join(map(str, OLDEST))
        raise UserError(f"Ray {ray.__version__} is installed; engine=ray needs {need} or newer: pip install -U ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    how: dict[str, Any] = {"address": address or "local", "logging_level": logging.ERROR, "log_to_driver": False}
    if not address:
        how |= {"num_cpus": os.cpu_count(), "include_dashboard": False}
        how |= {"object_store_memory": max(256 * 2**20, data_bytes)}
    elif address != "auto":
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), 5).close()
        except (OSError, ValueError, OverflowError) as error:
            said = "it is auto or HOST:PORT of a Ray cluster that this machine is a node of"
            raise UserError(f"ray_address={address} cannot be reached ({error}); {said}") from None
    ends = signal.getsignal(signal.SIGTERM)
    try:
        with contextlib.ExitStack() as stack:
            ray.init(**how if address else how | stack.enter_context(_private()))
    except Exception as error:  # Ray raises bare ones too
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{f'ray_address={address} cannot be reached' if address else 'no Ray'}: {said}") from error
    if ends not in (None, signal.SIG_DFL) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, ends)  # Ray puts its own in the place of the caller's


@contextlib.contextmanager
def _private() -> Iterator[dict[str, Any]]:
    """While it lasts, a cluster that Ray starts is for this process alone.

    It asks for a token, which only this process and what it starts know; it listens on 127.0.0.1; and its folder with
    sockets and logs, which Ray opens to all users of the machine, lies in one that only this user can enter. What the
    user has set of Ray's own variables stays.
    """
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # else Ray leaves one in ~/.ray that others can read
        ray._raylet.Config.initialize("")  # type: ignore[attr-defined]  # Ray read its variables when it was imported
    clusters, mine = ray_constants.ENABLE_RAY_CLUSTER, LOOPBACK not in os.environ
    home = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    if len(home) > PATH_ROOM and Path("/tmp").is_dir():
        home = "/tmp"
    folder = tempfile.mkdtemp(prefix="fv-", dir=home)
    atexit.register(_leave, folder, os.getpid())
    if mine:
        ray_constants.ENABLE_RAY_CLUSTER, os.environ[LOOPBACK] = False, "0"
    try:
        yield {"_temp_dir": f"{folder}/r"}
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = clusters
        if mine:
            del os.environ[LOOPBACK]


def _leave(folder: str, pid: int) -> None:
    """Ends the cluster, then removes its folder; not where the process was forked."""
    if os.getpid() == pid:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
