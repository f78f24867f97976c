"""What explains the differences of the NIID-Bench table: python -m studies.public.niid_controls --out results.

Two sources publish numbers for the same settings, and they differ by several points: the authors of NIID-Bench and
Flower's re-run. Each draws its partition of CIFAR-10 with NumPy from its own seeds. A control repeats the table's runs
on the partition of one source, with images padded by reflection before the crop, as both do; nothing else changes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from fedveca import run
from fedveca.tasks.augment import crop, flip
from fedveca.tasks.datasets.dataset import Dataset
from studies.public.run import Outcome, describe_outcome, make_experiment, read_table

PADDING = 4
FEWEST = 10  # rows of a client: with fewer both sources draw the partition again

Shuffle = Callable[[NDArray[np.int64]], None]
DrawShares = Callable[[NDArray[np.float64]], NDArray[np.float64]]


class Control(NamedTuple):
    """A source of published numbers: the NumPy seed of its partition for each of our seeds."""

    table: str
    name: str
    seeds: tuple[int, ...]
    is_legacy: bool  # whether the numbers are of NumPy's global generator
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
}


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


def deal_labels(y: NDArray[np.int64], clients: int, each: int, drawn: np.random.Generator) -> list[Tensor]:
    """The rows of each client: the label of its number and others at random, each label in equal parts."""
    classes, labels = int(y.max()) + 1, list[list[int]]()
    for i in range(clients):
        mine = [i % classes]
        while len(mine) < each:
            label = int(drawn.choice(classes, 1)[0])
            mine += [] if label in mine else [label]
        labels.append(mine)
    owned: list[list[int]] = [[] for _ in range(clients)]
    for label in range(classes):
        rows = np.flatnonzero(y == label)
        drawn.shuffle(rows)
        owners = [i for i in range(clients) if label in labels[i]]
        for i, part in zip(owners, np.array_split(rows, len(owners)), strict=True):
            owned[i].extend(part.tolist())
    return [torch.tensor(mine) for mine in owned]


def make_partition(control: Control, seed: int) -> Callable[[Dataset, int, int], list[Tensor]]:
    """A partition as `run` takes it, drawn as the source draws it."""

    def deal(data: Dataset, clients: int, _: int) -> list[Tensor]:
        if control.is_legacy:
            legacy = np.random.RandomState(control.seeds[seed])
            return deal_rows(data.y.numpy(), clients, 0.5, legacy.shuffle, legacy.dirichlet)
        drawn = np.random.default_rng(control.seeds[seed])
        if control.table == "niid_labels":
            return deal_labels(data.y.numpy(), clients, 2, drawn)
        return deal_rows(data.y.numpy(), clients, 0.5, drawn.shuffle, drawn.dirichlet)

    return deal


def reflect_crop_flip(x: Tensor) -> Tensor:
    """Images [B, C, H, W], padded by reflection, cut at a random place and mirrored at random."""
    wide = pad(x, [PADDING] * 4, mode="reflect")
    return flip(crop(wide, PADDING)[..., PADDING:-PADDING, PADDING:-PADDING])


def run_control(name: str, method: str, seed: int, device: str, more: dict[str, float] | None = None) -> Outcome:
    """One run of the table on a source's partition."""
    control, settings = CONTROLS[name], dict(more or {})
    experiment = make_experiment(read_table(control.table), method, seed, settings)
    done = run(experiment, device=device, partition=make_partition(control, seed), augment=reflect_crop_flip)
    return describe_outcome(done, method, seed, device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--methods", default="fedavg,fedprox")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    found = []
    for name, control in CONTROLS.items():
        runs = [
            run_control(name, method, seed, args.device)
            for method in args.methods.split(",")
            for seed in range(len(control.seeds))
        ]
        found.append({"control": control.name, "published": control.published, "runs": runs})
        (args.out / "niid_controls.json").write_text(json.dumps(found) + "\n", "utf-8")


if __name__ == "__main__":
    main()
