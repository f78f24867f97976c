"""A node's work: the local cohort with one client in it, kept between messages."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import threading
import time
from functools import lru_cache
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load, save
from safetensors.torch import load_file
from safetensors.torch import save as save_tensors
from torch import Tensor

from fedveca.algorithms.contract import Named, Order
from fedveca.cohorts.client_memory import ClientMemory
from fedveca.cohorts.flower.wire import narrow, wide
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.deploy.node import alive
from fedveca.deploy.pin import read_pin
from fedveca.deploy.private_api import find_socket, make_private
from fedveca.errors import UserError, printable
from fedveca.runs.build import load_data, make_method
from fedveca.runs.experiment import FIELDS, Experiment
from fedveca.runs.files import write_atomic
from fedveca.tasks.models import model
from fedveca.tasks.partition import Shares

IDLE_SECONDS = 3600.0
DAYS = 30  # memory of runs that nobody goes on with is thrown away then


def work(content: bytes, folder: Path) -> bytes:
    """A request as bytes, its answer as bytes; an error becomes an answer that says so."""
    try:
        size = int.from_bytes(content[:8], "little")
        request = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["request"])
        said, numbers, vectors = _answer(request, load(content), folder)
        return save(vectors, {"answer": json.dumps({"said": said, "numbers": numbers})})
    except Exception as error:
        why = f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)
        return save({}, {"answer": json.dumps({"error": why})})


def _answer(
    request: dict[str, Any], arrays: dict[str, Any], folder: Path
) -> tuple[dict[str, Any], dict[str, float], dict[str, Any]]:
    order, client = request["order"], request["client"]
    settings = {key: value for key, value in request["settings"].items() if key in FIELDS}
    e = Experiment(**settings)
    pinned = read_pin(folder)
    if pinned is not None and ":" in e.model and e.model != pinned["model"]:
        raise UserError(f"the server named model={printable(e.model)}; this node is pinned to {pinned['model']}")
    local = _local(e, client, order["classes"], order["pixels"])
    if "round" not in order:
        return {"client": client, "rows": int(local.sizes[client])}, {}, {}
    named = {name: torch.from_numpy(wide(v, order["wire"])).to(local.device) for name, v in arrays.items()}
    if len(named["w"]) != local.problem.size:
        raise UserError(f"the model has {local.problem.size} parameters here, {len(named['w'])} at the server")
    given = Order(named.pop("w"), named)
    store, here = Store(folder, order["token"], client, e.checkpoint_every), torch.tensor([client])
    local.memory = ClientMemory(client + 1)
    if local.algorithm.memory(given.w):
        local.memory.remember(here, store.before(order["known"]))
    who, report = local(order["round"], given, here, torch.tensor([order["tau"]]))
    said = {"client": client, "round": order["round"], "tau": order["tau"]}
    if len(who) == 0:
        return said | {"wild": True}, {}, {}
    if len(local.memory) and order["tau"]:
        kept = local.memory.recall(here, local.memory.blank())
        store.after(order["round"], order["known"], {name: v[0] for name, v in kept.items()})
    numbers = {name: float(v[0]) for name, v in report.each.items() if name != "tau"}
    vectors = {name: narrow(v.cpu().numpy(), order["wire"]) for name, v in report.mean.items()}
    return said, numbers, vectors


class Store:
    """What a client remembers of its rounds, on disk: it survives a killed node, and a server that goes back a round.

    The server says which round's memory counts; some former ones stay, as many as its checkpoints reach back.
    """

    def __init__(self, folder: Path, token: int, client: int, reach: int) -> None:
        self.folder, self.client, self.room = folder / "memory" / f"{token:x}", client, 2 * reach + 2

    def before(self, known: int) -> Named:
        """[1, ...] each: after round `known`; -1 is none."""
        if known < 0:
            return {}
        path = self._path(known)
        if not path.exists():
            raise UserError(f"client {self.client} has lost what it remembered of round {known + 1}")
        return {name: v[None] for name, v in load_file(path).items()}

    def after(self, k: int, known: int, memory: Named) -> None:
        if not self.folder.exists():
            self.folder.mkdir(parents=True)
            for old in self.folder.parent.iterdir():
                if time.time() - old.stat().st_mtime > DAYS * 86400:
                    shutil.rmtree(old, ignore_errors=True)
        write_atomic(self._path(k), save_tensors({name: v.cpu().contiguous() for name, v in memory.items()}))
        rounds = sorted(int(path.stem.split("-")[1]) for path in self.folder.glob(f"{self.client}-*.safetensors"))
        for former in rounds[: -self.room]:
            if former != known:
                self._path(former).unlink(missing_ok=True)

    def _path(self, k: int) -> Path:
        return self.folder / f"{self.client}-{k}.safetensors"


@lru_cache(maxsize=64)
def _local(e: Experiment, client: int, classes: int, pixels: str) -> LocalCohort:
    """One client, under its own number: it draws the rows that the simulator would have drawn."""
    x, y = rows(e, client)
    if len(x) == 0:
        raise UserError(f"client {client} has no rows")
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= classes:
        raise UserError(f"client {client} has labels from {low} to {high}; there are {classes} classes")
    problem = model(
        e.model, tuple(x.shape[1:]), classes, init=e.init, hidden=e.hidden, precision=e.precision, seed=e.seed
    )
    alone = Shares(torch.arange(len(y)), torch.tensor([0] * (client + 1) + [len(y)]))
    return LocalCohort(
        make_method(e),
        problem,
        x,
        y,
        alone,
        batch=e.batch,
        seed=e.seed,
        probe=e.probe,
        loss=e.keep != "last",
        after=e.keep == "rollback",
        pixels=pixels,
        device="cuda" if torch.cuda.is_available() else "cpu",
    )


def rows(e: Experiment, client: int) -> tuple[Tensor, Tensor]:
    """The client's own rows: what FEDVECA_NODE_DATA names, else its share of the experiment's data set."""
    if own := os.environ.get("FEDVECA_NODE_DATA", ""):
        return own_rows(own, "FEDVECA_NODE_DATA")
    if client >= e.clients:
        raise UserError(f"partition-id {client} is out of range; clients={e.clients} allows 0 to {e.clients - 1}")
    data, shares = load_data(e)
    mine = shares.rows[shares.start[client] : shares.start[client + 1]]
    return data.x[mine], data.y[mine]


def own_rows(name: str, source: str) -> tuple[Tensor, Tensor]:
    """x [D, ...] and y [D] from an npz, a folder with x.npy and y.npy, or package.module:load."""
    try:
        if Path(name).is_dir():
            x, y = (np.load(Path(name) / f"{part}.npy", mmap_mode="c") for part in ("x", "y"))
        elif name.endswith(".npz"):
            with open(name, "rb") as content, np.load(content) as file:
                x, y = file["x"], file["y"]
        else:
            module, _, function = name.partition(":")
            sys.path.insert(0, str(Path.cwd()))
            x, y = getattr(importlib.import_module(module), function)()
        x, y = (torch.from_numpy(np.ascontiguousarray(v)) if not isinstance(v, Tensor) else v for v in (x, y))
    except Exception as error:
        how = "an npz with x and y, a folder with x.npy and y.npy, or package.module:load"
        said = printable(" ".join(f"{type(error).__name__}: {error}".split()))
        raise UserError(f"{source}={name} cannot be read ({said}); it is {how}") from error
    if x.dim() < 1 or y.dim() != 1 or len(x) != len(y):
        raise UserError(f"{source}={name} has x of shape {list(x.shape)} and y of shape {list(y.shape)}")
    if x.is_complex() or y.is_complex() or (y.is_floating_point() and not bool(torch.isfinite(y).all())):
        raise UserError(f"{source}={name} has x of {x.dtype} and y of {y.dtype}; numbers and whole labels are wanted")
    if x.dtype not in (torch.uint8, torch.float32):
        x = x.float()
    return x, y.long()


def main() -> None:
    """Answers requests on a socket in the node's private folder until the SuperNode is gone."""
    folder, parent = Path(sys.argv[1]), int(sys.argv[2])
    used = [time.monotonic()]
    os.umask(0o077)
    make_private(folder)
    for former in folder.glob("worker-*.sock"):  # of workers that were killed
        if not alive(int(former.stem.removeprefix("worker-"))):
            former.unlink(missing_ok=True)
    mine = folder / f"worker-{os.getpid()}.sock"
    mine.unlink(missing_ok=True)
    listener = Listener(find_socket(folder, mine.name), family="AF_UNIX")

    def leave() -> None:
        while alive(parent) and time.monotonic() - used[0] < IDLE_SECONDS:
            time.sleep(0.5)
        mine.unlink(missing_ok=True)
        os._exit(0)

    threading.Thread(target=leave, daemon=True).start()
    write_atomic(folder / "worker.json", json.dumps({"pid": os.getpid()}).encode())
    while True:
        try:
            with listener.accept() as connection:
                used[0] = float("inf")
                connection.send_bytes(work(connection.recv_bytes(), folder))
        except (OSError, EOFError) as error:
            print(f"a message was lost: {error!r}", file=sys.stderr, flush=True)
        used[0] = time.monotonic()


if __name__ == "__main__":
    main()
