"""A node's work: the local cohort with one client in it, kept between messages."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors.torch import load_file
from safetensors.torch import save as save_tensors
from torch import Tensor

from fedveca.algorithms.contract import Named, Order
from fedveca.cohorts.aggregate import Mean
from fedveca.cohorts.client_memory import ClientMemory, make_new_memory
from fedveca.cohorts.flower.wire import widen
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.cohorts.scores import LOSS
from fedveca.deploy.client_cohort import ClientCohort
from fedveca.deploy.exchange import (
    PROCESS,
    Arrays,
    ConfigValue,
    NodeAnswer,
    NodeOrder,
    NodeRequest,
    decode_request,
    encode,
)
from fedveca.deploy.inspection import inspect_node
from fedveca.deploy.logs import read_log_limit, rotate_log
from fedveca.deploy.monitoring import NodeFigures, make_node_figures
from fedveca.deploy.node_secure import answer_stage, prepare_masking
from fedveca.deploy.pin import read_pin
from fedveca.deploy.private_api import find_socket, make_private
from fedveca.deploy.processes import is_alive
from fedveca.errors import UserError, printable
from fedveca.monitor.logs import configure_logs
from fedveca.monitor.settings import find_log_form
from fedveca.runs.build import cohort_options, make_method, make_problem
from fedveca.runs.experiment import Experiment
from fedveca.runs.files import write_atomic
from fedveca.runs.setting_checks import FIELDS
from fedveca.runs.task_data import choose_sample, hold_back, holds_back, load_data
from fedveca.tasks.custom import import_object
from fedveca.tasks.datasets.dataset import CHANNELS, Dataset
from fedveca.tasks.datasets.lazy import LazyRows
from fedveca.tasks.losses import IGNORED
from fedveca.tasks.models import MODELS
from fedveca.tasks.noise import add_noise
from fedveca.tasks.partition import Shares
from fedveca.version import __version__

NODE_DATA = "FEDVECA_NODE_DATA"  # names a node's rows
NODE_IDLE_SECONDS = 3600.0
MEMORY_DAYS = 30  # then the memory of a run that nobody resumes is deleted
_log = logging.getLogger("fedveca.node")  # the module is run as __main__


def work(data: bytes, folder: Path, figures: NodeFigures | None = None) -> bytes:
    """A request as bytes, its answer as bytes; an error becomes an answer that says so."""
    began, order = time.monotonic(), None
    answer: NodeAnswer
    try:
        request, vectors = decode_request(data)
        order = request["order"]
        answer, result = _answer(request, vectors, folder)
    except Exception as error:
        why = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        answer, result = {"error": why}, {}
    if figures:
        figures.count(order, answer, time.monotonic() - began)
    return encode(answer, result)


def make_experiment(settings: dict[str, ConfigValue]) -> Experiment:
    """The experiment of a run-config, which may also hold what is not a setting."""
    known: dict[str, Any] = {name: value for name, value in settings.items() if name in FIELDS}
    return Experiment(**known)


def _answer(request: NodeRequest, arrays: Arrays, folder: Path) -> tuple[NodeAnswer, Arrays]:
    order, client, e = request["order"], request["client"], make_experiment(request["settings"])
    pinned = read_pin(folder)
    if pinned is not None:
        for name, value, allowed in (("model", e.model, pinned["model"]), ("method", e.method, pinned["method"])):
            if ":" in value and value != allowed:
                allowed = allowed or f"no {name}'s code"
                raise UserError(f"the server named {name}={printable(value)}; this node is pinned to {allowed}")
    if "stage" in order:
        return answer_stage(order, client, folder), {}
    if order.get("check"):
        return _inspect(e, client, order, folder), {}
    if "classes" not in order:
        return _describe_client(e, client), {}
    local = make_node_cohort(e, client, order["classes"], order["pixels"], order.get("tokens", False))
    _check_fixed(e, local, order)
    if "round" not in order:
        held = {part: int(rows.sizes[client]) for part, rows in local.held.items()}
        who: dict[str, ConfigValue] = {"client": client, "rows": int(local.sizes[client]), "version": __version__}
        return {"fields": who | held, "numbers": {}}, {}
    k, known = order["round"], order["known"]
    named = {name: torch.from_numpy(widen(v, order["wire"])).to(local.device) for name, v in arrays.items()}
    _check_size(local, len(named["w"]))
    sent = Order(named.pop("w"), named)
    files, here = NodeMemoryFiles(folder, order["token"], client, e.checkpoint_every), torch.tensor([client])
    local.memory = ClientMemory(client + 1)
    if make_new_memory(local.algorithm, sent, local.local_statistics, local.transfer):
        local.memory.remember(here, files.read(known))
    if "part" in order:
        return _evaluate(local, client, sent, order), {}
    tau = order["tau"]
    local.times.clear()
    masking = prepare_masking(order, client, folder)
    local.aggregate = Mean if masking is None else masking.make_sum
    answered, report = local(k, sent, here, torch.tensor([tau]))
    fields: dict[str, ConfigValue] = {"client": client, "round": k, "tau": tau}
    if len(answered) == 0:
        return {"fields": fields | {"diverged": True}, "numbers": {}}, masking.finish() if masking else {}
    if len(local.memory) and tau:
        memory = local.memory.recall(here)
        files.write(k, known, {name: v[0] for name, v in memory.items()})
    numbers = {name: float(v[0]) for name, v in report.each.items() if name != "tau"}
    vectors = masking.finish() if masking else local.transfer.pack(report.mean)
    return {"fields": fields, "numbers": numbers, "times": dict(local.times)}, vectors


def _check_fixed(e: Experiment, local: LocalCohort, order: NodeOrder) -> None:
    """UserError where the frozen part of the model is not the server's."""
    fixed = local.problem.hash_fixed()
    if fixed != order.get("fixed", ""):
        raise UserError(
            f"the frozen part of model={printable(e.model)} (weights and buffers) is not the server's here: "
            f"its hash is {fixed[:12] or 'none'}, not {order.get('fixed', '')[:12] or 'none'}; install the same files"
        )


def _check_size(local: LocalCohort, size: int) -> None:
    """UserError where the model has another number of parameters than at the server."""
    if size != local.problem.size:
        raise UserError(f"the model has {local.problem.size} parameters here, {size} at the server")


def _evaluate(local: LocalCohort, client: int, sent: Order, order: NodeOrder) -> NodeAnswer:
    """What the client finds on the rows that it holds back; nothing of it is remembered."""
    k = order["round"]
    scores = local.evaluate(k, sent, order["part"], order.get("finetune", 0))
    fields: dict[str, ConfigValue] = {"client": client, "round": k, "rows": int(scores.rows.sum())}
    numbers = {name: float(v[0]) for name, v in scores.values.items() if len(v)}
    if not math.isfinite(numbers.get(LOSS, 0.0)):
        return {"fields": fields | {"diverged": True}, "numbers": {}}
    return {"fields": fields, "numbers": {name: v for name, v in numbers.items() if math.isfinite(v)}}


def _describe_client(e: Experiment, client: int) -> NodeAnswer:
    """Who it is, how many rows it has and what they look like: for a server that has no data."""
    from fedveca.cohorts.flower.forms import NodeForm  # with Flower: a node has it, a test of this file need not

    found = load_client_data(e, client)
    if found.inputs:
        raise UserError(f"client {client} has rows of several inputs; the server needs test data for those")
    if found.pixels == CHANNELS:
        raise UserError("pixels=channels needs the means of all clients' rows; take unit or standardised")
    if len(found.y) == 0:
        raise UserError(f"client {client} has no rows")
    held = hold_back(e, _own_rows(client, len(found.y)))
    form = NodeForm(
        tuple(found.x.shape[1:]), tuple(found.y.shape[1:]), found.x.dtype == torch.int64, found.pixels, found.classes
    )
    counts = {name: len(part.rows) for name, part in zip(("rows", "val", "test"), held, strict=True)}
    return {"fields": {"client": client, "version": __version__, **counts, **form.to_settings()}, "numbers": {}}


def _inspect(e: Experiment, client: int, order: NodeOrder, folder: Path) -> NodeAnswer:
    """Its machine, and what its rows look like; the classes and pixels are the server's where it has data."""

    def describe() -> dict[str, ConfigValue]:
        if "classes" in order and load_client_data(e, client).inputs:  # whose form is not described
            return {}
        return _describe_client(e, client)["fields"]

    def prepare(found: dict[str, ConfigValue]) -> LocalCohort:
        asked = {name: order.get(name, found.get(name)) for name in ("classes", "pixels")}
        tokens = bool(order.get("tokens", found.get("tokens", False)))
        local = make_node_cohort(e, client, cast(int, asked["classes"]), cast(str, asked["pixels"]), tokens)
        if "classes" in order:
            _check_fixed(e, local, order)
            _check_size(local, order["size"])
        return local

    return inspect_node(client, folder, describe, prepare)


class NodeMemoryFiles:
    """A client's memory after each of its rounds, on disk: a killed node keeps it, a resumed server may go back to it.

    The server says which round's memory counts; so many former ones are kept as its checkpoints reach back.
    """

    def __init__(self, folder: Path, token: int, client: int, reach: int) -> None:
        self.folder, self.client, self.room = folder / "memory" / f"{token:x}", client, 2 * reach + 2

    def read(self, k: int) -> Named:
        """[1, ...] each: the memory after round k; -1 is none."""
        if k < 0:
            return {}
        path = self._path(k)
        if not path.exists():
            raise UserError(f"client {self.client} has lost what it remembered of round {k + 1}")
        return {name: v[None] for name, v in load_file(path).items()}

    def write(self, k: int, known: int, memory: Named) -> None:
        """Stores the memory after round k, and deletes old ones except that of round `known`."""
        if not self.folder.exists():
            self.folder.mkdir(parents=True)
            for old in self.folder.parent.iterdir():
                if time.time() - old.stat().st_mtime > MEMORY_DAYS * 86400:
                    shutil.rmtree(old, ignore_errors=True)
        write_atomic(self._path(k), save_tensors({name: v.cpu().contiguous() for name, v in memory.items()}))
        rounds = sorted(int(path.stem.split("-")[1]) for path in self.folder.glob(f"{self.client}-*.safetensors"))
        for former in rounds[: -self.room]:
            if former != known:
                self._path(former).unlink(missing_ok=True)

    def _path(self, k: int) -> Path:
        return self.folder / f"{self.client}-{k}.safetensors"


@lru_cache(maxsize=64)
def make_node_cohort(e: Experiment, client: int, classes: int, pixels: str, tokens: bool = False) -> ClientCohort:
    """One client, under its own number, so that it draws the rows that the simulator would have drawn.

    `classes` is the server's; 0 where the targets are numbers. With `tokens` whole numbers in x stay whole.
    """
    found = load_client_data(e, client)
    x: Tensor | LazyRows = found.x
    y, inputs = found.y, found.inputs
    if not inputs and (tokens or x.dtype == torch.int64):
        kind = torch.int64 if tokens else torch.float32
        x = x.cast(kind) if isinstance(x, LazyRows) else x.to(kind)
    if len(x) == 0:
        raise UserError(f"client {client} has no rows")
    if classes:
        labels = y[y != IGNORED] if y.dim() > 1 else y
        if not labels.numel():
            raise UserError(f"client {client} has no label but {IGNORED}, which does not count")
        low, high, whole = labels.min().item(), labels.max().item(), torch.equal(y, y.long().to(y.dtype))
        if low < 0 or high >= classes or not whole:
            raise UserError(f"client {client} has labels from {low} to {high}; allowed: 0 to {classes - 1}, whole")
    y = y.long() if classes else y.float()
    alone = _own_rows(client, len(y))
    if e.feature_noise:
        x = add_noise(x, alone, e.clients, e.feature_noise, e.seed, pixels=pixels, inputs=inputs)
    sample = choose_sample(x, y, classes, pixels, inputs)
    problem = make_problem(e, tuple(x.shape[1:]), classes, sample=sample, inputs=inputs)
    options = cohort_options(e)
    held = hold_back(e, alone)
    options |= {"pixels": pixels, "aggregate": Mean}  # of one client: the rule is the server's
    options |= {"held": held if holds_back(e) else None}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    method = make_method(e).with_layout(problem.layout)
    made = ClientCohort(method, problem, x, y, held.train, device=device, **options)
    made.times = {}
    return made


def _own_rows(client: int, rows: int) -> Shares:
    """The only rows of this process are one client's; all clients before it have none here."""
    return Shares(torch.arange(rows), torch.tensor([0] * (client + 1) + [rows]))


def load_client_data(e: Experiment, client: int) -> Dataset:
    """The client's rows, without noise: what FEDVECA_NODE_DATA names, else its share of the experiment's data set.

    In that name {client} is the client's number: so one name is enough for several nodes on one machine.
    """
    if name := os.environ.get(NODE_DATA, ""):
        return interpret_rows(load_node_rows(name.replace("{client}", str(client)), NODE_DATA), e)
    if client >= e.clients:
        raise UserError(f"partition-id {client} is out of range; clients={e.clients} allows 0 to {e.clients - 1}")
    data, shares = load_data(dataclasses.replace(e, feature_noise=0.0))
    mine = shares.rows[shares.start[client] : shares.start[client + 1]]
    return dataclasses.replace(data, x=data.x[mine], y=data.y[mine], writer=None)


def load_node_rows(name: str, source: str) -> Dataset:
    """x [D, ...] and y [D, ...], labels or numbers, from an npz, a folder with x.npy and y.npy, or package.module:load.

    A loader gives x and y, or a whole data set of `from_arrays`, which then has a name: its training rows are a node's,
    its test rows the server's. `source` is the variable that held the name.
    """
    try:
        if Path(name).is_dir():
            x, y = (np.load(Path(name) / f"{part}.npy", mmap_mode="c") for part in ("x", "y"))
        elif name.endswith(".npz"):
            with open(name, "rb") as content, np.load(content) as file:
                x, y = file["x"], file["y"]
        else:
            found = cast(Callable[[], Dataset | tuple[object, object]], import_object(name, source))()
            if isinstance(found, Dataset):
                return found
            x, y = found
        x, y = (torch.from_numpy(np.ascontiguousarray(v)) if not isinstance(v, Tensor) else v for v in (x, y))
    except Exception as error:
        cause = error.__cause__ or error
        why = printable(" ".join(f"{type(cause).__name__}: {cause}".split()))
        raise UserError(
            f"{source}={name} cannot be read ({why}); it is an npz file with x and y, a folder with x.npy and y.npy, "
            "or package.module:load"
        ) from error
    if x.dim() < 1 or y.dim() < 1 or len(x) != len(y):
        raise UserError(f"{source}={name} has x of shape {list(x.shape)} and y of shape {list(y.shape)}")
    if x.is_complex() or y.is_complex() or (y.is_floating_point() and not bool(torch.isfinite(y).all())):
        raise UserError(f"{source}={name} has x of {x.dtype} and y of {y.dtype}; both must be real, and y finite")
    if x.dtype not in (torch.uint8, torch.float32, torch.int64):
        x = x.float()
    y = y if y.is_floating_point() else y.long()
    return Dataset("", x, y, x, y, 0, "as-is", None)


def interpret_rows(found: Dataset, e: Experiment) -> Dataset:
    """Rows of a file as the experiment takes them: tokens or numbers, labels or numbers, and how they are prepared.

    Targets with a decimal point are numbers to predict if one of them is not whole, or if the loss is squared_error. A
    whole data set of a loader says all of this itself.
    """
    if found.name:
        return dataclasses.replace(found, name=e.data)
    x, y = found.x, found.y
    if x.dtype == torch.int64 and e.model in MODELS and not MODELS[e.model].tokens:
        x = x.float()  # a custom model takes whole numbers as tokens
    numbers = y.is_floating_point() and (e.loss == "squared_error" or not torch.equal(y, y.round()))
    y = y.float() if numbers else y.long()
    pixels = e.pixels if e.pixels != "auto" else "unit" if x.dtype == torch.uint8 and x.dim() in (3, 4) else "as-is"
    return Dataset(e.data, x, y, x, y, 0 if numbers or not len(y) else int(y.max()) + 1, pixels, None)


def _main() -> None:
    """Answers requests on a socket in the node's private folder until the SuperNode is gone."""
    folder, parent = Path(sys.argv[1]), int(sys.argv[2])
    last_use, limit = [time.monotonic()], read_log_limit()
    configure_logs(find_log_form(folder))
    figures = make_node_figures(folder)
    os.umask(0o077)
    make_private(folder)
    for path in folder.glob(f"{PROCESS}-*.sock"):  # of processes that were killed
        if not is_alive(int(path.stem.removeprefix(f"{PROCESS}-"))):
            path.unlink(missing_ok=True)
    path = folder / f"{PROCESS}-{os.getpid()}.sock"
    path.unlink(missing_ok=True)
    listener = Listener(find_socket(folder, path.name), family="AF_UNIX")

    def end_with_supernode() -> None:
        while is_alive(parent) and time.monotonic() - last_use[0] < NODE_IDLE_SECONDS:
            rotate_log(folder / f"{PROCESS}.log", limit)
            time.sleep(0.5)
        path.unlink(missing_ok=True)
        os._exit(0)

    threading.Thread(target=end_with_supernode, daemon=True).start()
    write_atomic(folder / f"{PROCESS}.json", json.dumps({"pid": os.getpid()}).encode())
    while True:
        try:
            with listener.accept() as connection:
                last_use[0] = float("inf")
                connection.send_bytes(work(connection.recv_bytes(), folder, figures))
        except (OSError, EOFError) as error:
            _log.warning("a message was lost: %r", error)
        last_use[0] = time.monotonic()


if __name__ == "__main__":
    _main()
