"""What explains the differences of the NIID-Bench table.

    python -m studies.public.niid_controls flower_labels authors_labels --methods fedprox --processes 3 --out results

Two sources publish numbers for the same settings, and they differ by several points: the authors of NIID-Bench and
Flower's re-run. Each draws its partition of CIFAR-10 from its own seeds. A control repeats the table's runs on the
partition of one source, with images padded by reflection before the crop, as both do; nothing else changes. The results
are added to those of `niid_controls.json` in the folder.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from fedveca import run
from fedveca.runs.experiment import parse_settings
from fedveca.tasks.augment import crop, flip
from fedveca.tasks.datasets.dataset import Dataset
from studies.public.run import (
    Outcome,
    call_all,
    describe_outcome,
    make_experiment,
    read_table,
    replace_outcome,
    say_outcome,
)

PADDING = 4
FEWEST = 10  # rows of a client: with fewer both sources draw the partition again

Shuffle = Callable[[NDArray[np.int64]], None]
DrawShares = Callable[[NDArray[np.float64]], NDArray[np.float64]]


class Control(NamedTuple):
    """A source of published numbers: the seed of its partition for each of our seeds."""

    table: str
    name: str
    seeds: tuple[int, ...]
    is_legacy: bool  # whether the numbers are of NumPy's global generator, and labels of Python's
    published: dict[str, float]


def _of_flower(table: str, *published: float) -> Control:
    return Control(table, "Flower's partition (seed 42)", (42, 42, 42), False, _by_method(*published))


def _of_authors(table: str, *published: float) -> Control:
    return Control(table, "the authors' partitions (seeds 0, 1, 2)", (0, 1, 2), True, _by_method(*published))


def _by_method(*published: float) -> dict[str, float]:
    return dict(zip(("fedavg", "fedprox", "scaffold", "fednova"), published, strict=True))


CONTROLS = {
    "flower": _of_flower("niid_dirichlet", 63.4, 65.6, 68.0, 65.0),
    "authors": _of_authors("niid_dirichlet", 68.2, 67.9, 69.8, 66.8),
    "flower_labels": _of_flower("niid_labels", 49.9, 50.0, 48.9, 46.4),
    "authors_labels": _of_authors("niid_labels", 49.8, 50.7, 49.1, 46.5),
}


class Found(TypedDict):
    """The runs of one control."""

    control: str
    published: dict[str, float]
    runs: list[Outcome]


def deal_rows(
    y: NDArray[np.int64], clients: int, concentration: float, shuffle: Shuffle, draw: DrawShares
) -> list[Tensor]:
    """The rows of each client: each label is divided by a Dirichlet draw among those below their even share."""
    while True:
        owned: list[list[int]] = [[] for _ in range(clients)]
        for label in range(int(y.max()) + 1):
            rows = np.flatnonzero(y == label)
            shuffle(rows)
            has_room = np.array([len(mine) < len(y) / clients for mine in owned])
            shares = draw(np.full(clients, concentration)) * has_room
            edges = (np.cumsum(shares / shares.sum()) * len(rows)).astype(int)[:-1]
            for mine, part in zip(owned, np.split(rows, edges), strict=True):
                mine.extend(part.tolist())
        if min(map(len, owned)) >= FEWEST:
            return [torch.tensor(mine) for mine in owned]


def deal_labels(
    y: NDArray[np.int64], clients: int, each: int, shuffle: Shuffle, draw: Callable[[int], int]
) -> list[Tensor]:
    """The rows of each client: the label of its number and others at random, each label in equal parts."""
    classes, labels = int(y.max()) + 1, list[list[int]]()
    for i in range(clients):
        mine = [i % classes]
        while len(mine) < each:
            label = draw(classes)
            mine += [] if label in mine else [label]
        labels.append(mine)
    owned: list[list[int]] = [[] for _ in range(clients)]
    for label in range(classes):
        rows = np.flatnonzero(y == label)
        shuffle(rows)
        owners = [i for i in range(clients) if label in labels[i]]
        for i, part in zip(owners, np.array_split(rows, len(owners)), strict=True):
            owned[i].extend(part.tolist())
    return [torch.tensor(mine) for mine in owned]


def make_partition(control: Control, seed: int) -> Callable[[Dataset, int, int], list[Tensor]]:
    """A partition as `run` takes it, drawn as the source draws it."""

    def deal(data: Dataset, clients: int, _: int) -> list[Tensor]:
        y, number, is_labels = data.y.numpy(), control.seeds[seed], control.table == "niid_labels"
        if control.is_legacy:
            legacy, labels = np.random.RandomState(number), random.Random(number)
            if is_labels:
                return deal_labels(y, clients, 2, legacy.shuffle, lambda classes: labels.randint(0, classes - 1))
            return deal_rows(y, clients, 0.5, legacy.shuffle, legacy.dirichlet)
        drawn = np.random.default_rng(number)
        if is_labels:
            return deal_labels(y, clients, 2, drawn.shuffle, lambda classes: int(drawn.choice(classes, 1)[0]))
        return deal_rows(y, clients, 0.5, drawn.shuffle, drawn.dirichlet)

    return deal


def reflect_crop_flip(x: Tensor) -> Tensor:
    """Images [B, C, H, W], padded by reflection, cut at a random place and mirrored at random."""
    wide = pad(x, [PADDING] * 4, mode="reflect")
    return flip(crop(wide, PADDING)[..., PADDING:-PADDING, PADDING:-PADDING])


def run_control(
    name: str, method: str, seed: int, device: str, more: dict[str, Any] | None = None, until: float = math.inf
) -> Outcome:
    """One run of the table on a source's partition."""
    control = CONTROLS[name]
    experiment = make_experiment(read_table(control.table), method, seed, dict(more or {}))
    done = run(
        experiment,
        device=device,
        stop=lambda: time.time() > until,
        partition=make_partition(control, seed),
        augment=reflect_crop_flip,
    )
    return describe_outcome(done, method, seed, device)


class Job(NamedTuple):
    """What `run_control` takes."""

    name: str
    method: str
    seed: int
    device: str
    more: dict[str, Any]
    until: float


def _call(job: Job) -> tuple[str, Outcome]:
    return job.name, run_control(*job)


def is_of(found: Found, control: Control) -> bool:
    """Whether these are the runs of a control: two of them have one name, and differ in what is published."""
    return (found["control"], found["published"]) == (control.name, control.published)


def add_outcome(every: list[Found], name: str, outcome: Outcome) -> list[Found]:
    """The runs of all controls with a new one, in place of that of its method and seed."""
    control = CONTROLS[name]
    known = [run for found in every if is_of(found, control) for run in found["runs"]]
    new: Found = {
        "control": control.name,
        "published": control.published,
        "runs": replace_outcome(known, outcome),
    }
    if not known:
        return [*every, new]
    return [new if is_of(found, control) else found for found in every]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CONTROL or key=value", help=f"{', '.join(CONTROLS)}; all of them")
    parser.add_argument("--methods", default="fedavg,fedprox", help="with commas between")
    parser.add_argument("--seeds", type=int, default=3, help="how many of the three")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="runs end after the round in which they have passed")
    parser.add_argument("--out", type=Path, default=Path("results"), help="a folder, or a JSON file")
    args = parser.parse_args()
    until, path = time.time() + args.seconds, args.out
    if path.suffix != ".json":
        path = args.out / "niid_controls.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    every: list[Found] = json.loads(path.read_text("utf-8")) if path.exists() else []
    more = parse_settings([word for word in args.names if "=" in word])
    names = [word for word in args.names if "=" not in word] or list(CONTROLS)
    if unknown := [name for name in names if name not in CONTROLS]:
        parser.error(f"{unknown[0]} is not a control; there are {', '.join(CONTROLS)}")
    jobs = [
        Job(name, method, seed, args.device, more, until)
        for name in names
        for method in args.methods.split(",")
        for seed in range(min(args.seeds, len(CONTROLS[name].seeds)))
        if not has_run(every, name, method, seed)
    ]
    for name, outcome in call_all(_call, jobs, args.processes):
        every = add_outcome(every, name, outcome)
        path.write_text(json.dumps(every) + "\n", "utf-8")
        say_outcome(name, outcome)


def has_run(every: list[Found], name: str, method: str, seed: int) -> bool:
    """Whether a run is known, with all its rounds."""
    runs = [run for found in every if is_of(found, CONTROLS[name]) for run in found["runs"]]
    return any((run["method"], run["seed"]) == (method, seed) and "cut" not in run for run in runs)


if __name__ == "__main__":
    main()
