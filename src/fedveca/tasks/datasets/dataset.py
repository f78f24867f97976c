"""The data sets: digits (inside scikit-learn), synthetic, MNIST, Fashion-MNIST, CIFAR-10."""

import difflib
import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedveca.tasks.datasets import download as fetch
from fedveca.tasks.datasets import readers
from fedveca.tasks.datasets.archives import DataError

__all__ = ["NAMES", "DataError", "Dataset", "load", "prepare"]

NAMES = ("digits", "synthetic", "mnist", "fashion-mnist", "cifar10")
QMNIST = readers.FILES["qmnist"][0].name
UNIT = 1 / 255  # of pixels
FEATURES, CLASSES = 60, 10
CHUNK, BLOCK = 2048, 8  # synthetic: clients drawn at a time, and rows of a client in one product


@dataclass(frozen=True)
class Dataset:
    """Rows as compact as they came, and how a batch of them becomes the model's input."""

    name: str
    x: Tensor  # [D, ...] uint8 images [D, C, H, W], float32 features [D, d] or int64 tokens [D, T]
    y: Tensor  # [D, ...] int64 labels, or float32 numbers
    x_test: Tensor
    y_test: Tensor
    classes: int  # 0 where y are numbers
    pixels: str  # "as-is" | "unit" | "standardised": see `prepare`
    writer: Tensor | None  # [D] int64: who wrote each training row, where known


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
    say: Callable[[str], None] | None = None,
) -> Dataset:
    """One of NAMES; `clients`, `heterogeneity` and `seed` are synthetic's, `data_dir` and `say` for files."""
    if name == "digits":
        return _digits()
    if name == "synthetic":
        return _synthetic(clients, heterogeneity, seed)
    if name == "cifar10":
        return _cifar10(fetch.read(name, data_dir, say)[1])
    if name in ("mnist", "fashion-mnist"):
        writers = fetch.local("qmnist", data_dir) if name == "mnist" else None
        return _idx(name, fetch.read(name, data_dir, say)[1], writers and writers[1])
    near = difflib.get_close_matches(name, NAMES, 1, 0.0)[0]
    raise DataError(f"there is no data set {name!r}; did you mean {near!r}? All: {', '.join(NAMES)}")


def _digits() -> Dataset:
    """1,797 images of 8 x 8 with values k/16; every fifth row is a test row."""
    bunch = importlib.import_module("sklearn.datasets").load_digits()
    x = torch.tensor(bunch.images / 16, dtype=torch.float32)[:, None]
    y = torch.tensor(bunch.target, dtype=torch.int64)
    test = torch.arange(len(y)) % 5 == 4
    return Dataset("digits", x[~test], y[~test], x[test], y[test], 10, "as-is", None)


def _idx(name: str, files: dict[str, bytes], qmnist: dict[str, bytes] | None) -> Dataset:
    """MNIST or what has its form; the writers of its training rows are column 2 of QMNIST's labels."""
    x, y, x_test, y_test = (torch.from_numpy(readers.idx(files[file], file)) for file in readers.IDX_SIZES)
    writer = None
    if qmnist is not None:
        people = readers.idx(qmnist[QMNIST], QMNIST)[:, 2]
        writer = torch.from_numpy(np.unique(people, return_inverse=True)[1])
    return Dataset(name, x[:, None], y.long(), x_test[:, None], y_test.long(), 10, "unit", writer)


def _cifar10(files: dict[str, bytes]) -> Dataset:
    batches = [readers.cifar(files[f"{batch}.bin"], batch) for batch in readers.CIFAR_BATCHES]
    images, labels = zip(*batches, strict=True)
    x, y = torch.from_numpy(np.concatenate(images[:-1])), torch.from_numpy(np.concatenate(labels[:-1]))
    x_test, y_test = torch.from_numpy(images[-1].copy()), torch.from_numpy(labels[-1].copy())
    return Dataset("cifar10", x, y.long(), x_test, y_test.long(), 10, "standardised", None)


def _synthetic(clients: int, heterogeneity: float, seed: int) -> Dataset:
    """FedProx's Synthetic(h, h) for h >= 1, mixed with its one shared model below: at h = 0 clients are IID.

    y = argmax(W_i x + b_i), x ~ N(v_i, diag(j^-1.2)), v_i ~ N(B_i, s), B_i ~ N(0, h^2), and (W_i, b_i) is
    sqrt(1 - s) of a shared and sqrt(s) of an own standard normal draw, s = min(h, 1). The paper's u_i, which
    moves all logits of a client alike and so no label, is left out.
    """
    if clients < 1:
        raise DataError(f"synthetic needs at least 1 client, not {clients}")
    if not 0 <= heterogeneity < math.inf:
        raise DataError(f"heterogeneity is a finite number from 0 up, not {heterogeneity}")
    rng = torch.Generator().manual_seed(seed)
    share = min(heterogeneity, 1.0)
    sizes = _sizes(clients, rng)
    common = torch.randn(FEATURES + 1, CLASSES, generator=rng)
    spread = torch.arange(1, FEATURES + 1).pow(-0.6)  # sd: variances j^-1.2
    rows, tests = int(sizes.sum()), int((sizes // 5).sum())
    x, x_test = torch.empty(rows, FEATURES), torch.empty(tests, FEATURES)  # filled as drawn: nothing lies twice
    y, y_test = torch.empty(rows, dtype=torch.int64), torch.empty(tests, dtype=torch.int64)
    at = at_test = 0
    for n in torch.split(sizes, CHUNK):
        model = torch.randn(len(n), FEATURES + 1, CLASSES, generator=rng)
        model.mul_(math.sqrt(share)).add_(math.sqrt(1 - share) * common)
        centre = math.sqrt(share) * torch.randn(len(n), FEATURES, generator=rng)
        centre = centre + heterogeneity * torch.randn(len(n), 1, generator=rng)
        blocks = (n + n // 5 + BLOCK - 1) // BLOCK
        who = torch.arange(len(n)).repeat_interleave(blocks)
        drawn = torch.randn(len(who), BLOCK, FEATURES, generator=rng).mul_(spread).add_(centre[who, None])
        label = torch.baddbmm(model[who, -1:], drawn, model[who, :-1]).argmax(2)
        first = (torch.arange(len(who)) - (blocks.cumsum(0) - blocks)[who]) * BLOCK
        row, last = first[:, None] + torch.arange(BLOCK), n[who, None]  # of its client, [blocks, BLOCK]
        train, test = row < last, (row >= last) & (row < last + last // 5)
        stop, stop_test = at + int(n.sum()), at_test + int((n // 5).sum())
        x[at:stop], y[at:stop] = drawn[train], label[train]
        x_test[at_test:stop_test], y_test[at_test:stop_test] = drawn[test], label[test]
        at, at_test = stop, stop_test
    writer = torch.arange(clients).repeat_interleave(sizes)
    return Dataset("synthetic", x, y, x_test, y_test, CLASSES, "as-is", writer)


def _sizes(clients: int, rng: torch.Generator) -> Tensor:
    """Training rows of each client: about 100 on average, down to 20 where clients are many; skewed, [N]."""
    mean = min(100.0, max(20.0, 100_000 / clients))
    tail = torch.exp(torch.randn(clients, generator=rng) - 0.5)  # lognormal, mean 1
    return (mean * (0.5 + 0.5 * tail).clamp(max=10)).long()
