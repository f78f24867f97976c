"""Your own data as a `Dataset`: arrays, a PyTorch or Hugging Face data set, a flwr-datasets partitioner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedveca.tasks.data import Dataset, prepare

OWN = "own:"  # what the settings of a run call an object that was given from Python
Array = NDArray[Any]


def from_arrays(
    x: Any, y: Any, *, test: float | tuple[Any, Any] = 0.2, writer: Any = None, tokens: bool = False,
    name: str = "arrays",
) -> Dataset:
    """Rows x [D, ...] and what to predict, y [D]: whole numbers are labels 0 ... C - 1, others are numbers.

    `test` is a pair (x, y) or the share of the rows to hold back, drawn once and for all; `writer` says of each
    row who owns it (for `partition="writer"`); `tokens` keeps whole numbers in x whole, for an Embedding.
    Images are uint8 [D, C, H, W] and divided by 255 on the way to the model.

    Examples:
        >>> data = from_arrays([[0.0], [1.0], [2.0], [3.0], [4.0]], [0, 1, 0, 1, 1])
        >>> len(data.y), len(data.y_test), data.classes
        (4, 1, 2)
    """
    rows, targets = _rows(x, "x", tokens), _targets(y, "y")
    _paired(rows, targets, "x and y")
    owner = None if writer is None else _writers(writer, len(rows))
    if isinstance(test, tuple):
        if len(test) != 2:
            raise ValueError(f"test is {len(test)} things; it is a pair (x, y) or a share such as 0.2")
        x_test, y_test = _rows(test[0], "x of test", tokens), _targets(test[1], "y of test")
        _paired(x_test, y_test, "x and y of test")
        for what, a, b in (("x", rows, x_test), ("y", targets, y_test)):
            if a.shape[1:] != b.shape[1:] or a.dtype != b.dtype:
                raise ValueError(
                    f"{what} of test has rows of shape {list(b.shape[1:])} ({b.dtype}), "
                    f"{what} has {list(a.shape[1:])} ({a.dtype})"
                )
    else:
        here, held = _split(len(rows), test)
        rows, x_test, targets, y_test = rows[here], rows[held], targets[here], targets[held]
        owner = None if owner is None else owner[here]
    both = torch.cat([targets, y_test])
    classes = 0 if both.is_floating_point() else int(both.max()) + 1
    if classes > 1 and both.dim() == 1 and classes > len(both):
        raise ValueError(
            f"y goes up to {classes - 1} with {len(both)} rows; labels are 0 ... C - 1: "
            "np.unique(y, return_inverse=True)[1] makes them so, y.astype(float) makes numbers to predict"
        )
    pixels = "unit" if rows.dtype == torch.uint8 and rows.dim() == 4 else "as-is"
    if pixels == "as-is":
        rows, x_test = prepare(rows, pixels), prepare(x_test, pixels)
    return Dataset(OWN + name, rows, targets, x_test, y_test, classes, pixels, owner)


def from_torch(dataset: Any, *, test: Any = 0.2, tokens: bool = False, name: str = "") -> Dataset:
    """A map-style torch.utils.data.Dataset of pairs (x, y), read once; `test` is another one or a share.

    A random transform in it is applied once, not every epoch.
    """
    held = test if isinstance(test, float | int) else _items(test, "test")
    return from_arrays(*_items(dataset, "the data set"), test=held, tokens=tokens, name=name or type(dataset).__name__)


def from_hugging_face(
    dataset: Any, x: str | Sequence[str], y: str, *, test: Any = 0.2, writer: str = "", tokens: bool = False,
    name: str = "hugging-face",
) -> Dataset:
    """A `datasets.Dataset` by the names of its columns; several x columns of numbers stand side by side.

    Pictures become [C, H, W]. `test` is another such data set or a share; `writer` a column that says who owns a row.
    """
    held = test if isinstance(test, float | int) else _columns(test, x, y, "test")
    owner = _column(dataset, writer, "the data set") if writer else None
    rows = _columns(dataset, x, y, "the data set")
    return from_arrays(*rows, test=held, writer=owner, tokens=tokens, name=name)


def from_partitioner(
    partitioner: Any, x: str | Sequence[str], y: str, *, test: Any = 0.2, tokens: bool = False, name: str = ""
) -> Dataset:
    """A flwr-datasets partitioner that has its data set; `partition="writer", clients=N` gives each client its part."""
    parts = [partitioner.load_partition(i) for i in range(int(partitioner.num_partitions))]
    each = [_columns(part, x, y, f"part {i}") for i, part in enumerate(parts)]
    owner = np.repeat(np.arange(len(each)), [len(labels) for _, labels in each])
    held = test if isinstance(test, float | int) else _columns(test, x, y, "test")
    rows, labels = (np.concatenate(list(column)) for column in zip(*each, strict=True))
    return from_arrays(
        rows, labels, test=held, writer=owner, tokens=tokens, name=name or type(partitioner).__name__
    )


def _rows(x: Any, said: str, tokens: bool) -> Tensor:
    rows = _tensor(x, said)
    if rows.dim() < 2:
        raise ValueError(f"{said} has the shape {list(rows.shape)}; it needs a row for each example, [D, ...]")
    if rows.dtype == torch.uint8 and not tokens:
        return rows
    if tokens and (rows.is_floating_point() or bool((rows < 0).any())):
        raise ValueError(f"{said} is {rows.dtype} from {float(rows.min()):g} up; tokens are whole numbers from 0 up")
    _finite(rows, said)
    return rows.to(torch.int64 if tokens else torch.float32)


def _targets(y: Any, said: str) -> Tensor:
    targets = _tensor(y, said)
    if targets.dim() == 0:
        raise ValueError(f"{said} is one number; it needs one for each row")
    if targets.is_floating_point():
        _finite(targets, said)
        return targets.to(torch.float32)
    targets = targets.to(torch.int64)
    if targets.numel() and int(targets.min()) < 0:
        raise ValueError(
            f"{said} holds the label {int(targets.min())}; labels are 0 ... C - 1: "
            "np.unique(y, return_inverse=True)[1] makes them so, y.astype(float) makes numbers to predict"
        )
    return targets[:, 0] if targets.dim() == 2 and targets.shape[1] == 1 else targets


def _tensor(values: Any, said: str) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach().cpu()
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{said} is no array: {error}") from error
    if array.dtype.kind not in "buif":
        hint = "; np.unique(y, return_inverse=True)[1] makes labels of text" if array.dtype.kind in "UO" else ""
        raise ValueError(f"{said} holds {array.dtype}, not numbers{hint}")
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))  # the user's stay the user's


def _finite(values: Tensor, said: str) -> None:
    bad = ~torch.isfinite(values.float()).flatten(1).all(1) if values.dim() > 1 else ~torch.isfinite(values.float())
    if bool(bad.any()):
        raise ValueError(f"{said} is not finite in row {int(bad.nonzero()[0])} ({int(bad.sum())} rows in all)")


def _paired(x: Tensor, y: Tensor, said: str) -> None:
    if len(x) != len(y):
        raise ValueError(f"{said} do not fit: {len(x)} rows and {len(y)} targets")
    if len(x) == 0:
        raise ValueError(f"{said} have no rows")


def _split(rows: int, share: float) -> tuple[Tensor, Tensor]:
    """Rows to train on and rows held back, each in rising order."""
    if isinstance(share, bool) or not isinstance(share, float | int) or not 0 < share < 1:
        raise ValueError(f"test={share!r} is out of range; it is a share in (0, 1) or test data")
    held = max(1, round(share * rows))
    if held >= rows:
        raise ValueError(f"{rows} rows are too few to hold back {held} of them")
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(0))
    return order[held:].sort().values, order[:held].sort().values


def _writers(writer: Any, rows: int) -> Tensor:
    names = np.asarray(writer)
    if names.shape != (rows,):
        raise ValueError(f"writer has the shape {list(names.shape)}; it names one owner for each of {rows} rows")
    return torch.from_numpy(np.unique(names, return_inverse=True)[1].astype(np.int64))


def _items(dataset: Any, said: str) -> tuple[Any, Any]:
    """All pairs of a map-style data set, stacked."""
    try:
        items = [dataset[i] for i in range(len(dataset))]
    except TypeError as error:
        raise ValueError(f"{said} ({type(dataset).__name__}) cannot be counted and indexed: {error}") from error
    if not items:
        raise ValueError(f"{said} has no rows")
    if not all(isinstance(item, tuple | list) and len(item) == 2 for item in items):
        raise ValueError(f"{said} gives {type(items[0]).__name__} for a row; it must give pairs (x, y)")
    x, y = ([torch.as_tensor(np.asarray(item[part])) for item in items] for part in (0, 1))
    for what, values in (("x", x), ("y", y)):
        if len({v.shape for v in values}) > 1:
            i = next(i for i, v in enumerate(values) if v.shape != values[0].shape)
            raise ValueError(
                f"{said}: {what} of row {i} has the shape {list(values[i].shape)}, of row 0 {list(values[0].shape)}"
            )
    return torch.stack(x), torch.stack(y)


def _columns(dataset: Any, x: str | Sequence[str], y: str, said: str) -> tuple[Array, Array]:
    names = [x] if isinstance(x, str) else list(x)
    columns = [_column(dataset, name, said) for name in names]
    rows = columns[0] if isinstance(x, str) else np.stack([np.asarray(c, np.float32) for c in columns], 1)
    if rows.dtype == np.uint8 and rows.ndim in (3, 4):  # pictures, [D, H, W] or [D, H, W, C]
        rows = rows[:, None] if rows.ndim == 3 else np.moveaxis(rows, 3, 1)
    return rows, _column(dataset, y, said)


def _column(dataset: Any, name: str, said: str) -> Array:
    if name not in dataset.column_names:
        raise ValueError(f"{said} has no column {name!r}; it has {', '.join(dataset.column_names)}")
    return np.asarray(dataset.select_columns([name]).with_format("numpy")[:][name])
