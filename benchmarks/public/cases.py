"""The cases of cases.toml as experiments: their rows, their clients and their networks."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.public.networks import NETWORKS
from fedveca import Experiment, from_arrays
from fedveca.errors import UserError
from fedveca.runs.build import Built, build
from fedveca.runs.experiment import parse_settings
from fedveca.runs.presets import read_toml
from fedveca.tasks.datasets.cifar10 import MOMENTS
from fedveca.tasks.datasets.dataset import Dataset, load

CASES: dict[str, Any] = read_toml(str(Path(__file__).with_name("cases.toml")))
OF_SHAPE = ("rows", "test")  # settings of random rows
STAND_INS = {  # rows of the same size, where the files of a data set are missing
    "cifar10": {"rows": 50_000, "test": 10_000, "image": [3, 32, 32], "classes": 10},
    "mnist": {"rows": 60_000, "test": 10_000, "image": [1, 28, 28], "classes": 10},
}


def parse_more(words: list[str]) -> dict[str, Any]:
    """Settings from key=value, `rows` and `test` of random rows among them."""
    pairs = [word.partition("=") for word in words]
    shape = {key: int(value) for key, _, value in pairs if key in OF_SHAPE}
    return parse_settings([key + mark + value for key, mark, value in pairs if key not in OF_SHAPE]) | shape


class Case(NamedTuple):
    """What `run` and `build` take, and whether accuracies mean something."""

    name: str
    experiment: Experiment
    custom: dict[str, Any]
    is_real: bool

    def build(self, device: str) -> Built:
        return build(self.experiment, device, **self.custom)


def make_case(name: str, data_dir: str = "", more: dict[str, Any] | None = None, random: bool = False) -> Case:
    """A case; rows are random where it names no data set, where its files are missing, or where that is asked for.

    Args:
        name: In cases.toml.
        data_dir: The folder that holds the data sets.
        more: Settings in place of the case's; of the shape too: rows, test.
        random: Whether the rows are random in any case: no files are looked for.
    """
    case, more = CASES[name], dict(more or {})
    shape = dict(case.get("shape", {}))
    settings = case["settings"] | {key: value for key, value in more.items() if key not in OF_SHAPE}
    custom: dict[str, Any] = {}
    if "network" in case:
        custom["model"] = NETWORKS[case["network"]]
    if not shape and not random:
        try:
            load(settings["data"], data_dir)
        except UserError as error:
            print(f"{name}: random rows, since {error}", flush=True)
        else:
            settings["data_dir"] = data_dir
    if not shape and "data_dir" not in settings:
        shape = dict(STAND_INS[settings.pop("data")])
    if shape:
        shape |= {key: more[key] for key in OF_SHAPE if key in more}
        custom["data"] = make_rows(shape)
        if settings.get("pixels") == "channels":  # prepared as the real rows are
            custom["data"] = replace(custom["data"], channels=MOMENTS)
        if "partition" not in settings:
            sizes = draw_sizes(shape["rows"], settings["clients"], shape["spread"])
            custom["partition"] = list(torch.split(torch.arange(shape["rows"]), sizes))
    return Case(
        name, Experiment(method="fedavg", keep="last", sampling="shuffle", **settings), custom, "data" not in custom
    )


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


def draw_sizes(rows: int, clients: int, spread: float) -> list[int]:
    """How many rows each client has, at least one: log-normal, with a standard deviation of `spread` times the mean."""
    sigma = math.sqrt(math.log1p(spread**2))
    drawn = (sigma * torch.randn(clients, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).exp()
    edges: Tensor = (drawn.cumsum(0) / drawn.sum() * (rows - clients)).round().long()
    return (edges.diff(prepend=torch.zeros(1, dtype=torch.long)) + 1).tolist()
