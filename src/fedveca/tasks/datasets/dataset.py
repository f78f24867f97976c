"""What a data set is, and the registry of those that can be named: one file of this package each."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedveca.errors import suggest
from fedveca.tasks.datasets.archives import DataError

UNIT = 1 / 255  # of pixels
CHANNELS = "channels"  # of the setting pixels; a data set states the numbers with it: see `ChannelMoments.describe`
_DIGITS = 6  # of a mean or a standard deviation in text
_ROWS = 8192  # measured at a time
_PATTERN = re.compile(rf"{CHANNELS}:([-+.,\de]+):([-+.,\de]+)", re.ASCII)


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


class ChannelMoments(NamedTuple):
    """Mean and standard deviation of each channel of a data set's training images, of pixels divided by 255."""

    mean: tuple[float, ...]
    sd: tuple[float, ...]

    def describe(self) -> str:
        """As text that states how rows are prepared: `channels:0.1307:0.3081`."""
        mean, sd = (",".join(f"{v:.{_DIGITS}g}" for v in part) for part in self)
        return f"{CHANNELS}:{mean}:{sd}"

    def scaling(self, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """What to subtract from a pixel of 0 ... 255 and what to multiply it by then: [C, 1, 1] each."""
        mean, sd = (torch.tensor(part, dtype=torch.float64)[:, None, None] for part in self)
        return (mean / UNIT).float().to(device), (UNIT / sd).float().to(device)


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
    pixels: str  # "as-is" | "unit" | "standardised" | "channels:MEANS:SDS": see `prepare`
    writer: Tensor | None  # [D] int64: who wrote each training row, where known
    inputs: Inputs = ()  # how a row is split, where a model takes several inputs
    channels: ChannelMoments | None = None  # as they are published, where they are


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
    """A batch as float32: as it is (tokens stay int64), divided by 255, each image or each channel to mean 0 and sd 1.

    Each channel is scaled by the numbers that `pixels` states, (x / 255 - mean) / sd.
    """
    if pixels == "as-is":
        return x if x.dtype == torch.int64 else x.to(torch.float32)
    if pixels == "unit":
        return x.to(torch.float32) * UNIT
    if pixels == "standardised":
        shift, scale = moments(x)
    elif channels := read_channels(pixels):
        shift, scale = channels.scaling(x.device)
    else:
        raise DataError(f"pixels is {pixels!r}, not 'as-is', 'unit', 'standardised' or 'channels:MEANS:SDS'")
    return (x.to(torch.float32) - shift) * scale


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """What to take from each image [..., C, H, W] to standardise it and what to multiply it by then: [..., 1, 1, 1]."""
    variance, mean = torch.var_mean(x.to(torch.float32), (-3, -2, -1), correction=0, keepdim=True)
    return mean, variance.clamp(min=1 / math.prod(x.shape[-3:])).rsqrt()


def read_channels(pixels: str) -> ChannelMoments | None:
    """The numbers that `ChannelMoments.describe` wrote; None where the text is not of that form."""
    match = _PATTERN.fullmatch(pixels)
    try:
        mean, sd = (tuple(float(v) for v in part.split(",")) for part in match.groups()) if match else ((), ())
    except ValueError:
        return None
    known = bool(mean) and len(mean) == len(sd) and all(map(math.isfinite, (*mean, *sd))) and min(sd) > 0
    return ChannelMoments(mean, sd) if known else None


def is_preparation(pixels: object, rows: Sequence[int]) -> bool:
    """Whether a text states how rows of this shape are prepared."""
    channels = read_channels(pixels) if isinstance(pixels, str) else None
    if channels is not None:
        return len(rows) == 3 and rows[0] == len(channels.mean)
    return pixels in ("as-is", "unit", "standardised")


def measure_channels(x: Tensor) -> ChannelMoments:
    """The moments of images [D, C, H, W]; a channel that never changes has the standard deviation 1."""
    total, square = torch.zeros(2, x.shape[1], dtype=torch.float64)
    for part in torch.split(x, _ROWS):
        values = part.double() * UNIT
        total, square = total + values.sum((0, 2, 3)), square + (values * values).sum((0, 2, 3))
    count = x.numel() / x.shape[1]
    mean = total / count
    sd = (square / count - mean * mean).clamp(min=0).sqrt()
    return ChannelMoments(tuple(mean.tolist()), tuple(torch.where(sd > 1e-9, sd, 1.0).tolist()))


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
