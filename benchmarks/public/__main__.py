"""Times the speed benchmarks that other frameworks publish (cases.toml), with FedAvg, next to a plain PyTorch loop.

    python -m benchmarks.public flute-lr-mnist --out docs/results/public-speed.json
    python -m benchmarks.public pfl-cifar10 blazefl-cnn --device cuda --out docs/results/public-speed.json

The plain loop is the same model, data, clients and mini-batches, one client after the other. It runs for a few rounds,
before and after ours, and its time for all rounds is extrapolated from them. Evaluation is part of our time only.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch
from torch import Tensor, nn

from benchmarks.speed.machine import machine
from fedveca import Experiment, from_arrays, run
from fedveca.runs.build import Built, build
from fedveca.runs.presets import read_toml
from fedveca.runs.schema import get_number
from fedveca.tasks.datasets.dataset import Dataset, prepare
from fedveca.tasks.module_problem import ModuleProblem

CASES: dict[str, Any] = read_toml(str(Path(__file__).with_name("cases.toml")))
PLAIN_ROUNDS = 3  # at a time


class DropoutCnn(nn.Module):
    """The CNN of pfl's and FLUTE's benchmarks."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, side = shape[0], (shape[-1] - 4) // 2
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(64 * side * side, 128),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(128, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


NETWORKS = {"dropout-cnn": DropoutCnn}


class PublicTiming(TypedDict):
    """One case on this machine; seconds are of all rounds."""

    device: str
    rounds: int  # that ran
    of: int
    seconds: float  # of ours, extrapolated where fewer rounds ran
    plain_seconds: float  # extrapolated
    accuracy: NotRequired[float]  # of the last model, where the data are real


def make_rows(shape: dict[str, Any]) -> Dataset:
    """Random rows of a shape: images, or sequences of tokens with a label at each place."""
    draw = torch.Generator().manual_seed(0)
    count, classes = shape["rows"] + shape["test"], shape["classes"]
    if "length" in shape:
        tokens = torch.randint(0, classes, (count, shape["length"] + 1), generator=draw)
        x, y = tokens[:, :-1], tokens[:, 1:]
    else:
        x = torch.randint(0, 256, (count, *shape["image"]), dtype=torch.uint8, generator=draw)
        y = torch.randint(0, classes, (count,), generator=draw)
    rows = shape["rows"]
    return from_arrays(x[:rows], y[:rows], test=(x[rows:], y[rows:]), classes=classes, tokens="length" in shape)


def time_plain(built: Built, device: str) -> float:
    """Seconds per round of a plain loop, without its first round."""
    e, problem = built.experiment, built.problem
    if not isinstance(problem, ModuleProblem):
        raise TypeError(f"the plain loop needs a module, not {type(problem).__name__}")
    server = copy.deepcopy(problem.module).to(device).train()
    x, y = built.data.x.to(device), built.data.y.to(device)
    asked = max(1, round(e.participation * len(built.shares.sizes)))
    began = 0.0
    for k in range(PLAIN_ROUNDS + 1):
        if k == 1:
            _wait(device)
            began = time.perf_counter()
        ids = torch.randperm(len(built.shares.sizes), generator=torch.Generator().manual_seed(k))[:asked]
        total, sums = 0, {name: torch.zeros_like(v, dtype=torch.float32) for name, v in server.state_dict().items()}
        for i in ids.tolist():
            rows = built.shares.rows[built.shares.start[i] : built.shares.start[i + 1]].to(device)
            client = copy.deepcopy(server)
            optimizer = torch.optim.SGD(client.parameters(), lr=e.lr)
            for _ in range(int(built.state.tau[i])):
                pick = rows[torch.randint(len(rows), (e.batch,), device=device)]
                optimizer.zero_grad()
                scores = client(prepare(x[pick], built.data.pixels))
                loss = nn.functional.cross_entropy(scores.flatten(0, -2), y[pick].flatten())
                torch.autograd.backward(loss)
                optimizer.step()
            total += len(rows)
            for name, v in client.state_dict().items():
                sums[name] += len(rows) * v
        server.load_state_dict({name: v / total for name, v in sums.items()})
    _wait(device)
    return (time.perf_counter() - began) / PLAIN_ROUNDS


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def time_case(name: str, device: str, rounds: int) -> PublicTiming:
    """Times one case: the plain loop, ours, and the plain loop again."""
    case = CASES[name]
    e = Experiment(method="fedavg", keep="last", **case["settings"])
    ran = min(rounds or e.rounds, e.rounds)
    custom: dict[str, Any] = {"data": make_rows(case["shape"])} if "shape" in case else {}
    if "network" in case:
        network = NETWORKS[case["network"]]
        custom["model"] = network
    run(e.replace(rounds=1), device=device, **custom)  # libraries load and choose their kernels
    built = build(e, device, **custom)
    before = time_plain(built, device)
    began = time.perf_counter()
    done = run(e.replace(rounds=ran), device=device, **custom)
    seconds = time.perf_counter() - began
    plain = (before + time_plain(built, device)) / 2
    timing = PublicTiming(
        device=device,
        rounds=ran,
        of=e.rounds,
        seconds=round(seconds * e.rounds / ran, 3),
        plain_seconds=round(plain * e.rounds, 3),
    )
    if "shape" not in case:
        timing["accuracy"] = round(100 * (get_number(done.summary["last"], "test_accuracy") or 0.0), 2)
    return timing


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="+", choices=CASES, metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=0, help="at most so many rounds; the rest is extrapolated")
    parser.add_argument("--out", type=Path, required=True, help="JSON; cases that are not named stay")
    given = parser.parse_args()
    found: dict[str, Any] = json.loads(given.out.read_text("utf-8")) if given.out.exists() else {}
    for name in given.cases:
        timing = time_case(name, given.device, given.rounds)
        found[name] = {**timing, "machine": machine()}
        given.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        ratio = timing["plain_seconds"] / timing["seconds"]
        print(
            f"{name}: {timing['seconds']:.1f} s for {timing['of']} rounds, {ratio:.1f} times a plain loop", flush=True
        )


if __name__ == "__main__":
    main()
