"""What a data set is, and the registry of those that can be named: one file of this package each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedveca.errors import suggest
from fedveca.tasks.datasets.archives import DataError

UNIT = 1 / 255  # of pixels


class Input(NamedTuple):
    """One of several inputs of a model, stored in a stretch of each row."""

    name: str  # of the argument; empty where it is given by its place
    shape: tuple[int, ...]
    whole: bool  # whether its numbers are int64


Inputs = tuple[Input, ...]


def unpack_inputs(x: Tensor, inputs: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Rows [B, ...] as the arguments of a model: by place, and by name."""
    if not inputs:
        return (x,), {}
    parts = torch.split(x, [math.prod(part.shape) for part in inputs], -1)
    views = [v.reshape(*v.shape[:-1], *part.shape) for v, part in zip(parts, inputs, strict=True)]
    ready = [v.to(torch.int64 if part.whole else torch.float32) for v, part in zip(views, inputs, strict=True)]
    named = {part.name: v for v, part in zip(ready, inputs, strict=True) if part.name}
    return tuple(v for v, part in zip(ready, inputs, strict=True) if not part.name), named


@dataclass(frozen=True)
class Dataset:
    """Rows as compact as they came, and how a batch of them becomes the model's input.

    With `lazy=True` x and x_test are `LazyRows`: they have the shape, the dtype and the first axis of a tensor, and the
    functions that read rows accept both. They are typed as the tensors that they are in all other data sets.
    """

    name: str
    x: Tensor  # [D, ...] uint8 images [D, C, H, W], float32 features [D, d] or int64 tokens [D, T]
    y: Tensor  # [D, ...] int64 labels, or float32 numbers
    x_test: Tensor
    y_test: Tensor
    classes: int  # 0 where y are numbers
    pixels: str  # "as-is" | "unit" | "standardised": see `prepare`
    writer: Tensor | None  # [D] int64: who wrote each training row, where known
    inputs: Inputs = ()  # how a row is split, where a model takes several inputs


class Request(NamedTuple):
    """What a loader may need to know."""

    data_dir: str = ""  # folder that may hold the files
    clients: int = 5
    heterogeneity: float = 1.0
    seed: int = 0


class Recommended(NamedTuple):
    """Settings that suit a data set: an experiment has them unless others are given."""

    model: str = "mlp"
    partition: str = "case3"
    rounds: int = 100
    batch: int = 32


class DatasetEntry(NamedTuple):
    """A data set that can be named."""

    load: Callable[[Request], Dataset]
    text: str
    recommended: Recommended = Recommended()


DATASETS: dict[str, DatasetEntry] = {}


def dataset(
    name: str, text: str, recommended: Recommended | None = None
) -> Callable[[Callable[[Request], Dataset]], Callable[[Request], Dataset]]:
    """Registers the function below it as the loader of the data set `name`."""

    def register(load: Callable[[Request], Dataset]) -> Callable[[Request], Dataset]:
        DATASETS[name] = DatasetEntry(load, text, recommended or Recommended())
        return load

    return register


def prepare(x: Tensor, pixels: str) -> Tensor:
    """A batch as float32: as it is (tokens stay int64), divided by 255, or each image to mean 0 and sd 1."""
    if pixels == "as-is":
        return x if x.dtype == torch.int64 else x.to(torch.float32)
    if pixels == "unit":
        return x.to(torch.float32) * UNIT
    if pixels != "standardised":
        raise DataError(f"pixels is {pixels!r}, not 'as-is', 'unit' or 'standardised'")
    shift, scale = moments(x)
    return (x.to(torch.float32) - shift) * scale


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """What to take from each image [..., C, H, W] to standardise it and what to multiply it by then: [..., 1, 1, 1]."""
    variance, mean = torch.var_mean(x.to(torch.float32), (-3, -2, -1), correction=0, keepdim=True)
    return mean, variance.clamp(min=1 / math.prod(x.shape[-3:])).rsqrt()


def load(
    name: str,
    data_dir: str = "",
    *,
    clients: int = 5,
    heterogeneity: float = 1.0,
    seed: int = 0,
) -> Dataset:
    """Loads a data set by its name.

    Args:
        name: One of DATASETS.
        data_dir: Folder that may hold its files; else FEDVECA_DATA, the cache and the mirrors are tried.
        clients: Number of clients, for synthetic.
        heterogeneity: How much the clients differ, for synthetic.
        seed: Of the draw, for synthetic.

    Returns:
        The training and test rows.

    Raises:
        DataError: Where the name is not known, or the files cannot be found.
    """
    if name not in DATASETS:
        raise DataError(f"data={name!r} is not known{suggest(name, DATASETS)}; allowed: {' | '.join(DATASETS)}")
    return DATASETS[name].load(Request(data_dir, clients, heterogeneity, seed))
