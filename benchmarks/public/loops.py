"""Loops to compare with, over the same clients, rows and network: a plain one, and FLUTE's in our own words.

Each loop has three parts that are timed: a client's training, the server's part of a round, and a test. A loop runs
until its seconds are over, and the time of all rounds is extrapolated from its seconds per local step and per test.
Products of float32 matrices are in TF32 on CUDA in all of them, as in ours; PyTorch's convolutions are by default.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from benchmarks.public.cases import Case
from fedveca.runs.build import Built
from fedveca.runs.epoch_settings import parse_epochs
from fedveca.tasks.datasets.dataset import prepare
from fedveca.tasks.module_problem import ModuleProblem

TESTED = 4_000  # rows of a timed test, at most; the others are extrapolated


class LoopTime(NamedTuple):
    """What a loop took; seconds are of all rounds and their tests, extrapolated."""

    seconds: float
    rounds: float  # that were timed
    memory_mb: int | None  # the most that PyTorch held on the device


class Work(NamedTuple):
    """What every loop works on."""

    built: Built
    device: str
    asked: int  # clients per round
    epochs: int

    @property
    def steps(self) -> Tensor:
        """[N] the local steps of each client in a round."""
        return self.epochs * -(-self.built.shares.sizes // self.built.experiment.batch)

    def rows_of(self, client: int) -> Tensor:
        shares = self.built.shares
        return shares.rows[shares.start[client] : shares.start[client + 1]]


class Loop(Protocol):
    """A way to simulate clients."""

    def take(self, client: int) -> None:
        """What is not timed: the client's rows as the framework would have them."""

    def train(self) -> None: ...

    def finish(self) -> None:
        """The server's part of a round."""

    def test(self, rows: int) -> None: ...


def make_work(case: Case, device: str) -> Work:
    """What loops on a device work on; it is built in the host's memory, so that several loops can use it in turn."""
    built = case.build("cpu")
    e, epochs = built.experiment, parse_epochs(built.experiment.epochs)
    if epochs is None or epochs.random:
        raise ValueError(f"epochs={e.epochs} is not one number")
    return Work(built, device, max(1, round(e.participation * len(built.shares.sizes))), int(epochs.low))


def copy_module(work: Work) -> nn.Module:
    if not isinstance(work.built.problem, ModuleProblem):
        raise TypeError(f"a loop needs a module, not {type(work.built.problem).__name__}")
    return copy.deepcopy(work.built.problem.module).to(work.device).train()


def copy_client(server: nn.Module) -> nn.Module:
    """A copy of the server's module; an LSTM's weights lie in one piece, else CUDA copies them in each step."""
    client = copy.deepcopy(server)
    for part in client.modules():
        if isinstance(part, nn.RNNBase):
            part.flatten_parameters()
    return client


def compute_loss(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy, of each place where rows are sequences."""
    return nn.functional.cross_entropy(module(x).flatten(0, -2), y.flatten())


class PlainLoop:
    """One client after another in plain PyTorch, with all rows on the device."""

    def __init__(self, work: Work) -> None:
        self.work, self.server = work, copy_module(work)
        data = work.built.data
        self.x, self.y = data.x.to(work.device), data.y.to(work.device)
        self.x_test, self.y_test = data.x_test.to(work.device), data.y_test.to(work.device)
        self.rows = torch.empty(0)
        self.total, self.sums = 0, dict[str, Tensor]()

    def take(self, client: int) -> None:
        self.rows = self.work.rows_of(client).to(self.work.device)

    def train(self) -> None:
        e = self.work.built.experiment
        client = copy_client(self.server)
        optimizer = torch.optim.SGD(client.parameters(), lr=e.lr)
        for _ in range(self.work.epochs):
            order = self.rows[torch.randperm(len(self.rows), device=self.work.device)]
            for pick in torch.split(order, e.batch):
                optimizer.zero_grad()
                x = prepare(self.x[pick], self.work.built.data.pixels)
                torch.autograd.backward(compute_loss(client, x, self.y[pick]))
                optimizer.step()
        self.total += len(self.rows)
        for name, v in client.state_dict().items():
            part = len(self.rows) * v.to(torch.float32)
            self.sums[name] = self.sums[name] + part if name in self.sums else part

    def finish(self) -> None:
        self.server.load_state_dict({name: v / self.total for name, v in self.sums.items()})
        self.total, self.sums = 0, {}

    @torch.no_grad()
    def test(self, rows: int) -> None:
        self.server.eval()
        right = torch.zeros((), device=self.work.device)
        for x, y in zip(torch.split(self.x_test[:rows], 1000), torch.split(self.y_test[:rows], 1000), strict=True):
            right += (self.server(prepare(x, self.work.built.data.pixels)).argmax(-1) == y).sum()
        right.item()
        self.server.train()


class HostRows(TorchDataset[tuple[Any, Any]]):
    """Rows as NumPy arrays in the host's memory, one at a time."""

    def __init__(self, x: NDArray[Any], y: NDArray[Any]) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        return np.array(self.x[row]), self.y[row]


def collate(rows: list[tuple[Any, Any]]) -> dict[str, Tensor]:
    """A batch from rows, through one array."""
    x, y = zip(*rows, strict=True)
    return {"x": torch.tensor(np.array(x)), "y": torch.tensor(np.array(y))}


class FluteLoop:
    """What a worker and the server of FLUTE (microsoft/msrflute) do, without their messages, logs and checkpoints.

    A client's rows come from a DataLoader over NumPy arrays. After each step every gradient is copied to the host, for
    the statistics that FLUTE records, and the loss is read. The client's movement, times its number of rows, goes to
    the host as well; the server adds them up there and takes a step of SGD with a rate of 1.
    """

    def __init__(self, work: Work) -> None:
        self.work, self.server, self.worker = work, copy_module(work), copy_module(work)
        self.optimizer = torch.optim.SGD(self.server.parameters(), lr=1.0)
        self.rows = self._make_rows(work.built.data.x[:0], work.built.data.y[:0])
        self.payloads: list[tuple[int, list[Tensor]]] = []

    def _make_rows(self, x: Tensor, y: Tensor) -> HostRows:
        return HostRows(prepare(x.cpu(), self.work.built.data.pixels).numpy(), y.cpu().numpy())

    def take(self, client: int) -> None:
        pick, data = self.work.rows_of(client).cpu(), self.work.built.data
        self.rows = self._make_rows(data.x[pick], data.y[pick])

    def train(self) -> None:
        e, device = self.work.built.experiment, self.work.device
        given = [p.detach() for p in self.server.parameters()]
        for p, v in zip(self.worker.parameters(), given, strict=True):
            p.data = v.clone()
        optimizer = torch.optim.SGD(self.worker.parameters(), lr=e.lr)
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        seen = 0
        for _ in range(self.work.epochs):
            for batch in DataLoader(self.rows, batch_size=e.batch, shuffle=True, collate_fn=collate):
                optimizer.zero_grad()
                loss = compute_loss(self.worker, batch["x"].to(device), batch["y"].to(device))
                torch.autograd.backward(loss)
                self._describe_gradients()
                optimizer.step()
                loss.item()
                seen += len(batch["x"])
        moved = [seen * (v - p.data) for v, p in zip(given, self.worker.parameters(), strict=True)]
        self.payloads.append((seen, [v.cpu() for v in moved]))

    def _describe_gradients(self) -> tuple[float, float]:
        first, second = 0.0, 0.0
        for p in self.worker.parameters():
            if p.grad is not None:
                values = p.grad.detach().clone().cpu().numpy()
                first += float(np.sum(values))
                second += float(np.sum(values**2))
        return first, second

    def finish(self) -> None:
        total = sum(seen for seen, _ in self.payloads)
        for n, p in enumerate(self.server.parameters()):
            p.grad = None
            for _, moved in self.payloads:
                part = moved[n].to(self.work.device)
                p.grad = part if p.grad is None else p.grad.add_(part)
            if p.grad is not None:
                p.grad /= total
        self.optimizer.step()
        self.payloads = []

    @torch.no_grad()
    def test(self, rows: int) -> None:
        data, device = self.work.built.data, self.work.device
        self.server.eval()
        tested = self._make_rows(data.x_test[:rows], data.y_test[:rows])
        for batch in DataLoader(tested, batch_size=self.work.built.experiment.batch, collate_fn=collate):
            scores, y = self.server(batch["x"].to(device)), batch["y"].to(device)
            (scores.argmax(-1) == y).float().mean().item()
            nn.functional.cross_entropy(scores.flatten(0, -2), y.flatten()).item()
        self.server.train()


LOOPS: dict[str, Callable[[Work], Loop]] = {"plain": PlainLoop, "flute": FluteLoop}
LABELS = {"flute": "the core loop of FLUTE, rewritten"}


def time_loop(name: str, work: Work, seconds: float) -> LoopTime:
    """Times a loop for so many seconds, after one client, the server's part and a test of a few rows that warm up."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        return _time_loop(LOOPS[name](work), work, seconds)
    finally:
        torch.set_float32_matmul_precision(before)


def _time_loop(loop: Loop, work: Work, seconds: float) -> LoopTime:
    e, sizes = work.built.experiment, work.built.shares.sizes
    reset_memory(work.device)
    loop.take(0)
    loop.train()
    loop.finish()
    loop.test(min(TESTED, e.batch))
    spent, taken, k = 0.0, 0, 0
    while spent < seconds:
        ids = torch.randperm(len(sizes), generator=torch.Generator().manual_seed(k))[: work.asked].tolist()
        for n, i in enumerate(ids):
            loop.take(i)
            spent += _time(loop.train, work.device)
            taken += int(work.steps[i])
            if spent >= seconds or n == len(ids) - 1:
                spent += _time(loop.finish, work.device)
                break
        k += 1
    rows = len(work.built.data.y_test)
    tested = min(TESTED, rows)
    test = _time(lambda: loop.test(tested), work.device) * rows / tested
    steps = work.asked * float(work.steps.double().mean())  # of a round
    total = e.rounds * steps * spent / taken + e.rounds // e.test_every * test
    return LoopTime(total, taken / steps, read_memory(work.device))


def _time(part: Callable[[], None], device: str) -> float:
    wait(device)
    began = time.perf_counter()
    part()
    wait(device)
    return time.perf_counter() - began


def wait(device: str) -> None:
    """Until the device has done what it was given."""
    if device != "cpu":
        torch.cuda.synchronize()


def reset_memory(device: str) -> None:
    if device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def read_memory(device: str) -> int | None:
    """The most that PyTorch held on the device since `reset_memory`, in MB."""
    return round(torch.cuda.max_memory_reserved() / 2**20) if device != "cpu" else None
