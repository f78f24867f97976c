"""What clients remember between rounds: one row per client ever seen, in RAM up to a limit, the rest in a file."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from fedveca.algorithms.contract import STATISTICS, Algorithm, Named, Order
from fedveca.cohorts.client_store import NOWHERE, ClientMemoryError, ClientStore
from fedveca.cohorts.local.threads import use_one_thread
from fedveca.cohorts.transfer import PLAIN, RESIDUAL, VectorTransfer
from fedveca.errors import UserError

MEMORY_BYTES = 2**30  # bytes in RAM


def make_new_memory(
    algorithm: Algorithm, order: Order, local_statistics: bool, transfer: VectorTransfer = PLAIN
) -> Named:
    """What a client that was never seen remembers.

    That is the method's part, running statistics that stay with clients, and what was not sent of their vectors.
    """
    kept = {STATISTICS: order.aux[STATISTICS]} if local_statistics and STATISTICS in order.aux else {}
    return reject_statistics(algorithm.memory(order.w), "memory") | kept | transfer.make_memory(algorithm, order)


def reject_statistics(named: Named, where: str) -> Named:
    """A method's vectors; UserError where one has the name under which running statistics travel."""
    if STATISTICS in named:
        raise UserError(
            f"{where} gives a vector called {STATISTICS!r}, which is the name of the model's running statistics; "
            "give it another name"
        )
    return named


def split_statistics(named: Named) -> tuple[Named, Tensor | None]:
    """What is the method's, and the running statistics, where there are any."""
    mine = {name: v for name, v in named.items() if name != STATISTICS and not name.startswith(RESIDUAL)}
    return mine, named.get(STATISTICS)


def start_statistics(size: int, shared: Tensor | None, mine: Tensor | None, n: int) -> Tensor | None:
    """[n, S] with which the clients start, theirs to change; None where the model has no running statistics.

    `shared` [S] are the server's, `mine` [n, S] those that stay with the clients.
    """
    if shared is None:
        if size:
            raise UserError("the model has running statistics: give federate(..., statistics=RunningStatistics(...))")
        return None
    return shared.repeat(n, 1) if mine is None else mine.clone()


class PersistentMemory(Protocol):
    """What a checkpoint needs of a cohort's memory."""

    home: Path | None

    def save(self) -> Named: ...

    def load(self, path: Path, saved: Named, device: str, new: Named) -> None: ...

    def forget(self) -> None:
        """Every client counts as never seen."""
        ...


class ClientMemory:
    """First come, first in RAM: clients are drawn at random, so none is likelier than another to be needed next."""

    def __init__(self, clients: int, limit: int = MEMORY_BYTES) -> None:
        self.clients, self.limit = clients, limit
        self.home: Path | None = None  # the file's name; None: one without a name, gone with the process
        self.slot = torch.full((clients,), NOWHERE)  # [N] the row in RAM
        self.dirty = torch.zeros(clients, dtype=torch.bool)  # [N] changed in RAM since it was last on disk
        self.rows = torch.empty(0, 0)  # [slots, M] on the clients' device
        self.used = 0  # of the slots
        self.widths: dict[str, int] = {}  # floats of each name; M is their sum
        self.store: ClientStore | None = None
        self.resets = 0  # how often all was forgotten, for a cohort whose clients remember elsewhere

    def __iter__(self) -> Iterator[int]:
        """The clients ever seen."""
        return iter(torch.nonzero(self.has_row(torch.arange(self.clients))).flatten().tolist())

    def __len__(self) -> int:
        return int(self.has_row(torch.arange(self.clients)).sum())

    def has_row(self, ids: Tensor) -> Tensor:
        """[n] bool: whether clients have a row."""
        near = self.slot[ids] != NOWHERE
        return near | (self.store.at[ids] != NOWHERE) if self.store else near

    def recall(self, ids: Tensor, new: Named | None = None) -> Named:
        """[n, ...] each: what clients remember; `new`, or zeros, where they were never seen."""
        if new is None:
            new = {name: torch.zeros(width) for name, width in self.widths.items()}
        if not new:
            return {}
        new = _sort(new)
        rows = torch.cat([v.expand(len(ids), -1) for v in new.values()], -1)
        slot, seen = self.slot[ids], self.has_row(ids)
        if bool(seen.any()):
            rows, near = rows.clone(), slot != NOWHERE
            if bool(near.any()):
                rows[near.to(rows.device)] = self.rows[slot[near].to(self.rows.device)].to(rows.device)
            if bool((seen & ~near).any()):
                assert self.store
                far = seen & ~near
                rows[far.to(rows.device)] = self.store.read(ids[far]).to(rows.device)
        parts = torch.split(rows, [v.shape[-1] for v in new.values()], -1)
        return dict(zip(new, parts, strict=True))

    def remember(self, ids: Tensor, values: Named) -> None:
        """Stores values [n, ...] of distinct clients."""
        if not values or not len(ids):
            return
        values = _sort(values)
        rows = torch.cat(list(values.values()), -1)
        if not self.widths:
            self._allocate({name: v.shape[-1] for name, v in values.items()}, rows.device)
        new = ids[~self.has_row(ids)][: len(self.rows) - self.used]
        self.slot[new] = torch.arange(self.used, self.used + len(new))
        self.used += len(new)
        slot = self.slot[ids]
        near = slot != NOWHERE
        if bool(near.any()):
            self.rows[slot[near].to(self.rows.device)] = rows[near.to(rows.device)].to(self.rows.device)
            self.dirty[ids[near]] = True
        if not bool(near.all()):
            self._open_store().write(ids[~near], rows[(~near).to(rows.device)])

    def save(self) -> Named:
        """Writes all rows to disk and returns what a checkpoint needs to find them, if there is anything."""
        if not len(self):
            if self.store:
                self.store.save()
            return {}
        store = self._open_store()
        for some in torch.split(torch.nonzero(self.dirty).flatten(), store.piece):
            with use_one_thread():
                rows = self.rows[self.slot[some].to(self.rows.device)]
            store.write(some, rows)
        self.dirty.fill_(False)
        widths = {f"width.{name}": torch.tensor(width) for name, width in self.widths.items()}
        return store.save() | widths

    def forget(self) -> None:
        """Every client counts as never seen."""
        self.slot.fill_(NOWHERE)
        self.dirty.fill_(False)
        self.used, self.resets = 0, self.resets + 1
        if self.store:
            self.store.forget()

    def load(self, path: Path, saved: Named, device: str, new: Named) -> None:
        """Restores what was saved of memories like `new`; ClientMemoryError where it is damaged."""
        self.home = path
        if not saved:
            return
        widths = {name: v.shape[-1] for name, v in _sort(new).items()}
        if not self._fits(saved, widths):
            raise ClientMemoryError(f"{path.name} does not fit its checkpoint")
        store = ClientStore.load(self.clients, path, saved)
        self._allocate(widths, torch.device(device))
        self.store = store
        near = saved["ids"][: len(self.rows)]
        self.slot[near], self.used = torch.arange(len(near)), len(near)
        for some in torch.split(near, store.piece):
            self.rows[self.slot[some].to(self.rows.device)] = store.read(some).to(self.rows.device)

    def _fits(self, saved: Named, widths: dict[str, int]) -> bool:
        """Whether it is what `save` gives for these clients and widths."""
        wanted = {"width": sum(widths.values())} | {f"width.{name}": width for name, width in widths.items()}
        lists = [saved.get(name, torch.empty(0)) for name in ("ids", "at", "sums")]
        if saved.keys() != {"ids", "at", "sums", *wanted} or not widths:
            return False
        if any(_read_integer(saved[name]) != width for name, width in wanted.items()):
            return False
        if any(v.dtype != torch.int64 or v.shape != lists[0].shape or v.dim() != 1 for v in lists) or not len(lists[0]):
            return False
        ids, at, _ = lists
        rising = bool((ids.diff() > 0).all()) and int(ids[0]) >= 0 and int(ids[-1]) < self.clients
        return rising and int(at.min()) >= 0 and len(torch.unique(at)) == len(at)

    def _allocate(self, widths: dict[str, int], device: torch.device) -> None:
        """Room for rows: allocated at once, but the machine provides it only as it is filled."""
        self.widths = widths
        width = sum(widths.values())
        self.rows = torch.empty(min(self.clients, self.limit // (4 * width)), width, device=device)

    def _open_store(self) -> ClientStore:
        if self.store is None:
            self.store = ClientStore(self.clients, sum(self.widths.values()), self.home)
        return self.store


class NodeLedger:
    """All that the server knows of the nodes' memory: which round each is of, and the run's name to the nodes."""

    NAMES: ClassVar = {"rounds", "token"}  # of what is saved

    def __init__(self, clients: int) -> None:
        self.rounds = torch.full((clients,), -1)  # [N] the last round of each that counted
        self.token = secrets.randbits(62)  # the same after the server was killed and resumed
        self.home: Path | None = None

    def save(self) -> Named:
        return {"rounds": self.rounds.clone(), "token": torch.tensor(self.token)}

    def load(self, path: Path, saved: Named, device: str, new: Named) -> None:
        rounds, token = (saved.get(name, torch.empty(0)) for name in ("rounds", "token"))
        fits = saved.keys() == self.NAMES and (rounds.dtype, rounds.shape) == (torch.int64, self.rounds.shape)
        if not fits or not 0 <= _read_integer(token) < 2**62:
            raise ClientMemoryError("the checkpoint does not say what the clients remember")
        self.rounds, self.token = rounds, int(token)

    def forget(self) -> None:
        """Each node is asked to start as one that was never seen; what it has stored stays there, and ages."""
        self.rounds.fill_(-1)


def _read_integer(v: Tensor) -> int:
    """The one integer of a tensor; -1 where it is something else."""
    return int(v) if v.dtype == torch.int64 and v.numel() == 1 else -1


def _sort(named: Named) -> Named:
    """By name, as a row holds them: a method, and a file of a node, may name them in any order."""
    return dict(sorted(named.items()))
