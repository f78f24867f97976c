"""The idx format of MNIST and its relatives."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedveca.tasks.datasets.archives import DataError

SIZES = {  # of the four files of a data set in MNIST's form
    "train-images-idx3-ubyte": 47_040_016,
    "train-labels-idx1-ubyte": 60_008,
    "t10k-images-idx3-ubyte": 7_840_016,
    "t10k-labels-idx1-ubyte": 10_008,
}
_TYPES: dict[int, np.dtype[np.uint8] | np.dtype[np.int32]] = {8: np.dtype(np.uint8), 12: np.dtype(">i4")}


def read_idx(data: bytes, where: object) -> NDArray[np.integer]:
    """The array of an idx file of bytes or 32-bit integers: 0 0 type ndim, the dimensions, the values."""
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _TYPES or not 1 <= data[3] <= 3:
        raise DataError(f"{where}: not an idx file of bytes or integers (it starts {data[:4].hex() or 'empty'})")
    dtype, start = _TYPES[data[2]], 4 + 4 * data[3]
    shape = [int.from_bytes(data[i : i + 4], "big") for i in range(4, start, 4)]
    if len(data) != start + math.prod(shape) * dtype.itemsize:
        raise DataError(f"{where}: {len(data):,} bytes are not those of the shape {shape}")
    return np.frombuffer(data, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))


def write_idx(array: NDArray[np.uint8]) -> bytes:
    """The idx file of an array of bytes."""
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()
