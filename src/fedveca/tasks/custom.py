"""Custom objects: data from arrays, PyTorch, Hugging Face or flwr-datasets, and what `package.module:name` names."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedveca.errors import UserError, explain_error, printable, show_value
from fedveca.imports import import_module
from fedveca.tasks.custom_arrays import (
    check_pairs,
    describe_inputs,
    open_rows,
    read_inputs,
    read_targets,
    read_test_rows,
    read_writers,
    wrap_rows,
)
from fedveca.tasks.datasets.archives import quote_error
from fedveca.tasks.datasets.arrays import ArrayLike, to_tensor
from fedveca.tasks.datasets.dataset import Dataset, is_preparation, prepare
from fedveca.tasks.datasets.lazy import ItemReader, LazyRows
from fedveca.tasks.losses import IGNORED
from fedveca.tasks.names import CUSTOM

_log = logging.getLogger(__name__)
MOST_FLOAT_LABELS = 100  # up to so many numbers of a floating type may have been meant as labels
LONGEST = 100  # characters of a name


def import_object(name: str, said: str) -> object:
    """What `package.module:name` names, where the module may be a file in the working folder.

    Args:
        name: A module's name, a colon, and the name of an object in it.
        said: What the setting is called, for the error.

    Returns:
        The object.

    Raises:
        UserError: Where it cannot be imported.
    """
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:  # a user's file may fail in any way
        raise UserError(f"{said}={printable(name)} cannot be imported: {explain_error(error)}") from error


def from_arrays(
    x: Any,
    y: Any,
    *,
    test: float | tuple[Any, Any] = 0.2,
    writer: Any = None,
    tokens: bool = False,
    classes: int = 0,
    lazy: bool = False,
    name: str = "arrays",
) -> Dataset:
    """Makes a data set of arrays.

    Args:
        x: Rows [D, ...]. Images are uint8 [D, C, H, W] or, grey, [D, H, W], and divided by 255 on the way to the model.
            A model with several inputs takes a dict of arrays, by the names of its arguments, or a tuple, in their
            order; whole numbers in them stay whole. The path of an .npy file stands for the array in it.
        y: What to predict, [D]: whole numbers are labels 0 ... C - 1, others are numbers. A label for each place of a
            sequence is [D, T]; places labelled -100 do not count.
        test: A pair (x, y), or the share of the rows to hold back, drawn once and for all.
        writer: Who owns each row, for `partition="writer"`.
        tokens: Whether whole numbers in x stay whole, for an Embedding.
        classes: Number of labels C, where it is more than the largest label shows; 0 takes that.
        lazy: Whether x stays in its file, of which each step reads its rows: x is then the path of an .npy file or a
            memmap, and so may be that of `test`. The results are the same.
        name: What the record calls it, after `custom:`.

    Returns:
        The data set, to be given as `data=`.

    Raises:
        UserError: Where the arrays do not fit.

    Examples:
        >>> data = from_arrays([[0.0], [1.0], [2.0], [3.0], [4.0]], [0, 1, 0, 1, 1])
        >>> len(data.y), len(data.y_test), data.classes
        (4, 1, 2)
    """
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= LONGEST:
        raise UserError(f"name={show_value(name)} is not a name; it is text of 1 to {LONGEST} printable characters")
    if not isinstance(tokens, bool):
        raise UserError(f"tokens={show_value(tokens)} is neither True nor False")
    if not isinstance(lazy, bool):
        raise UserError(f"lazy={show_value(lazy)} is neither True nor False")
    rows, inputs = (open_rows(x, "x", tokens), ()) if lazy else read_inputs(x, "x", tokens)
    targets = read_targets(y, "y")
    check_pairs(rows, targets, "x and y")
    owner = None if writer is None else read_writers(writer, len(rows))
    if isinstance(test, tuple):
        if len(test) != 2:
            raise UserError(f"test is {len(test)} things; it is a pair (x, y) or a share such as 0.2")
        x_test, same = read_test_rows(test[0], rows, tokens)
        y_test = read_targets(test[1], "y of test")
        if same != inputs:
            raise UserError(f"x of test has the inputs {describe_inputs(same)}, x has {describe_inputs(inputs)}")
        check_pairs(x_test, y_test, "x and y of test")
        pairs: tuple[tuple[str, Tensor | LazyRows, Tensor | LazyRows], ...]
        pairs = ("x", rows, x_test), ("y", targets, y_test)
        for what, a, b in pairs:
            if tuple(a.shape[1:]) != tuple(b.shape[1:]) or a.dtype != b.dtype:
                raise UserError(
                    f"{what} of test has rows of shape {list(b.shape[1:])} ({b.dtype}), "
                    f"{what} has {list(a.shape[1:])} ({a.dtype})"
                )
    else:
        here, held = _split(len(rows), test)
        rows, x_test, targets, y_test = rows[here], rows[held], targets[here], targets[held]
        owner = None if owner is None else owner[here]
    both = torch.cat([targets, y_test])
    named, classes = classes, _count_classes(both, classes)
    if not named and _looks_like_labels(both):
        last = int(both.max())
        _log.warning(
            "y holds 0.0 to %d.0, not of an integer type, so they are numbers to predict; y.astype(int) makes labels",
            last,
        )
    if not named and classes > 1 and both.dim() == 1 and classes > len(both):
        raise UserError(
            f"y goes up to {classes - 1} with {len(both)} rows; labels are 0 ... C - 1: "
            "np.unique(y, return_inverse=True)[1] makes them so, y.astype(float) makes numbers to predict"
        )
    pixels = "unit" if rows.dtype == torch.uint8 and rows.dim() in (3, 4) else "as-is"
    if pixels == "as-is":
        rows, x_test = (prepare(v, pixels) if isinstance(v, Tensor) else v for v in (rows, x_test))
    x, x_test = cast(Tensor, rows), cast(Tensor, x_test)
    return Dataset(CUSTOM + name, x, targets, x_test, y_test, classes, pixels, owner, inputs)


def pad_sequences(rows: Sequence[Any], length: int = 0, value: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Makes rows of different lengths equally long.

    Args:
        rows: Whole numbers, a sequence for each row: tokens, or labels of the places of a sequence.
        length: Of all rows; longer ones are cut off. 0 takes the longest.
        value: What fills a row up: a token, or -100 for labels that do not count.

    Returns:
        The rows [D, T] and their mask [D, T], 1 where a number is the row's own.

    Raises:
        UserError: Where a row is not a sequence of whole numbers.

    Examples:
        >>> rows, mask = pad_sequences([[5, 6, 7], [8]])
        >>> rows.tolist(), mask.tolist()
        ([[5, 6, 7], [8, 0, 0]], [[1, 1, 1], [1, 0, 0]])
    """
    if type(length) is not int or length < 0:
        raise UserError(f"length={show_value(length)} is not a length; it is a whole number of 0 or more")
    found = [np.asarray(row) for row in rows]
    for i, row in enumerate(found):
        if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
            raise UserError(f"row {i} is not a sequence of whole numbers, but {show_value(rows[i])}")
    length = length or max((len(row) for row in found), default=0)
    out, mask = np.full((len(found), length), value, np.int64), np.zeros((len(found), length), np.int64)
    for i, row in enumerate(found):
        out[i, : len(row)], mask[i, : len(row)] = row[:length], 1
    return out, mask


def _looks_like_labels(y: Tensor) -> bool:
    """Whether numbers of a floating type are 0 ... C - 1, a few of them and all there."""
    if not y.is_floating_point() or y.dim() != 1:
        return False
    found = torch.unique(y)
    return 1 < len(found) <= MOST_FLOAT_LABELS and torch.equal(found, torch.arange(len(found), dtype=y.dtype))


def _count_classes(y: Tensor, classes: int) -> int:
    """C: what was named, else by the largest label; 0 where y are numbers."""
    if type(classes) is not int or classes < 0:
        raise UserError(f"classes={show_value(classes)} is not a number of labels; it is a whole number of 0 or more")
    if y.is_floating_point():
        return 0
    if not bool((y != IGNORED).any()):
        raise UserError(f"y holds no label but {IGNORED}, which does not count; labels are 0 ... C - 1")
    found = int(y.max()) + 1
    if classes and found > classes:
        raise UserError(f"classes={classes} is too few: y goes up to {found - 1}")
    return classes or found


def from_torch(
    dataset: Any, *, test: Any = 0.2, tokens: bool = False, lazy: bool = False, targets: object = None, name: str = ""
) -> Dataset:
    """Makes a data set of a map-style torch.utils.data.Dataset of pairs (x, y), which is read once.

    A random transform in it is applied once, not every epoch. PIL's pictures stay [H, W] or [H, W, C]. With `lazy=True`
    no row stays in memory: `dataset[i]` is called whenever a step, the probe or the test needs row i, from a background
    thread, one call at a time. Rows that are the same each time give the results of `lazy=False`; a random transform is
    then applied anew at each call, and is not reproducible by the seed.

    Args:
        dataset: The training rows.
        test: Another such data set, or the share of the rows to hold back.
        tokens: Whether whole numbers in x stay whole, for an Embedding.
        lazy: Whether rows are read when they are needed, for data that do not fit in memory.
        targets: With lazy=True, the y of all training rows where they are known; else every row is read once for it.
        name: What the record calls it, after `custom:`; the name of its class where it is empty.

    Returns:
        The data set, to be given as `data=`.

    Raises:
        UserError: Where a row cannot be read, or rows do not fit together.
    """
    if lazy is True:
        reader = ItemReader(dataset, "the data set")
        y = reader.read_targets() if targets is None else targets
        if not isinstance(test, float | int | tuple):
            tests = ItemReader(test, "test")
            test = wrap_rows(tests, "test", tokens), tests.read_targets()
        rows = wrap_rows(reader, "the data set", tokens)
        return from_arrays(rows, y, test=test, tokens=tokens, lazy=True, name=name or type(dataset).__name__)
    if lazy is not False or targets is not None:
        said = f"lazy={show_value(lazy)} is neither True nor False" if lazy else "targets goes with lazy=True only"
        raise UserError(said)
    held = test if isinstance(test, float | int) else _read_items(test, "test")
    return from_arrays(
        *_read_items(dataset, "the data set"), test=held, tokens=tokens, name=name or type(dataset).__name__
    )


def from_hugging_face(
    dataset: Any,
    x: str | Sequence[str],
    y: str,
    *,
    test: Any = 0.2,
    writer: str = "",
    tokens: bool = False,
    name: str = "hugging-face",
) -> Dataset:
    """Makes a data set of a Hugging Face `datasets.Dataset`, by the names of its columns.

    Args:
        dataset: The training rows.
        x: The column of the inputs, or several columns of numbers that stand side by side. Pictures become [C, H, W].
        y: The column to predict.
        test: Another such data set, or the share of the rows to hold back.
        writer: The column that says who owns a row.
        tokens: Whether whole numbers in x stay whole, for an Embedding.
        name: What the record calls it, after `custom:`.

    Returns:
        The data set, to be given as `data=`.

    Raises:
        UserError: Where a column is missing, or columns do not make rows.
    """
    held = test if isinstance(test, float | int) else _read_columns(test, x, y, "test")
    owner = _read_column(dataset, writer, "the data set") if writer else None
    rows = _read_columns(dataset, x, y, "the data set")
    return from_arrays(*rows, test=held, writer=owner, tokens=tokens, name=name)


def from_partitioner(
    partitioner: Any, x: str | Sequence[str], y: str, *, test: Any = 0.2, tokens: bool = False, name: str = ""
) -> Dataset:
    """Makes a data set of a flwr-datasets partitioner that has its data set.

    With `partition="writer", clients=N` each client gets its part.

    Args:
        partitioner: Gives the parts by `load_partition(i)`.
        x: The column of the inputs, or several columns.
        y: The column to predict.
        test: A `datasets.Dataset`, or the share of the rows to hold back.
        tokens: Whether whole numbers in x stay whole, for an Embedding.
        name: What the record calls it, after `custom:`; the name of the partitioner's class where it is empty.

    Returns:
        The data set, to be given as `data=`.

    Raises:
        UserError: Where the partitioner does not give its parts.
    """
    try:
        parts = [partitioner.load_partition(i) for i in range(int(partitioner.num_partitions))]
    except Exception as error:
        kind = type(partitioner).__name__
        raise UserError(f"the partitioner ({kind}) does not give its parts: {quote_error(error)}") from error
    each = [_read_columns(part, x, y, f"part {i}") for i, part in enumerate(parts)]
    owner = np.repeat(np.arange(len(each)), [len(labels) for _, labels in each])
    held = test if isinstance(test, float | int) else _read_columns(test, x, y, "test")
    rows, labels = (np.concatenate(list(column)) for column in zip(*each, strict=True))
    return from_arrays(rows, labels, test=held, writer=owner, tokens=tokens, name=name or type(partitioner).__name__)


def _split(rows: int, share: float) -> tuple[Tensor, Tensor]:
    """Rows to train on and rows held back, each in rising order."""
    if isinstance(share, bool) or not isinstance(share, float | int) or not 0 < share < 1:
        raise UserError(
            f"test={show_value(share)} is out of range; it is a share in (0, 1) or test data, a pair (x, y)"
        )
    held = max(1, round(share * rows))
    if held >= rows:
        raise UserError(f"{rows} rows are too few to hold back {held} of them")
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(0))
    return order[held:].sort().values, order[:held].sort().values


def _read_items(dataset: Any, said: str) -> tuple[Any, Any]:
    """All pairs of a map-style data set, stacked."""
    kind, items = type(dataset).__name__, []
    try:
        count = len(dataset)
        for i in range(count):
            items.append(dataset[i])
    except TypeError as error:
        raise UserError(f"{said} ({kind}) cannot be counted and indexed: {quote_error(error)}") from error
    except Exception as error:
        raise UserError(f"{said} ({kind}) fails at row {len(items)}: {quote_error(error)}") from error
    if not items:
        raise UserError(f"{said} has no rows")
    if not all(isinstance(item, tuple | list) and len(item) == 2 for item in items):
        raise UserError(f"{said} gives {type(items[0]).__name__} for a row; it must give pairs (x, y)")
    columns = []
    for part, what in enumerate(("x", "y")):
        values = [to_tensor(item[part], f"{said}: {what} of row {i}") for i, item in enumerate(items)]
        if len({v.shape for v in values}) > 1:
            i = next(i for i, v in enumerate(values) if v.shape != values[0].shape)
            raise UserError(
                f"{said}: {what} of row {i} has the shape {list(values[i].shape)}, of row 0 {list(values[0].shape)}"
            )
        columns.append(torch.stack(values))
    return columns[0], columns[1]


def _read_columns(dataset: Any, x: str | Sequence[str], y: str, said: str) -> tuple[ArrayLike, ArrayLike]:
    names = [x] if isinstance(x, str) else list(x) if isinstance(x, Sequence) else []
    if not names:
        raise UserError(f"x={show_value(x)} names no column; it is a column's name, or a list of them")
    columns = [_read_column(dataset, name, said) for name in names]
    try:
        rows = columns[0] if isinstance(x, str) else np.stack([np.asarray(c, np.float32) for c in columns], 1)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{said}: the columns {', '.join(names)} do not make rows of numbers: {quote_error(error)}"
        ) from error
    if rows.dtype == np.uint8 and rows.ndim in (3, 4):  # pictures, [D, H, W] or [D, H, W, C]
        rows = rows[:, None] if rows.ndim == 3 else np.moveaxis(rows, 3, 1)
    return rows, _read_column(dataset, y, said)


def _read_column(dataset: Any, name: str, said: str) -> ArrayLike:
    there = getattr(dataset, "column_names", None)
    if isinstance(there, dict):
        raise UserError(f"{said} is of several splits ({', '.join(there)}); give one of them")
    if not isinstance(there, list) or not hasattr(dataset, "__getitem__"):
        raise UserError(f"{said} is {type(dataset).__name__}, not a datasets.Dataset with columns and rows")
    if name not in there:
        raise UserError(f"{said} has no column {name!r}; it has {', '.join(there)}")
    return np.asarray(dataset.select_columns([name]).with_format("numpy")[:][name])


def check_dataset(data: Dataset) -> None:
    """UserError where a Dataset that was made by hand does not hold together."""
    for part in ("x", "y", "x_test", "y_test"):
        if not isinstance(getattr(data, part), Tensor | LazyRows if part.startswith("x") else Tensor):
            kind = type(getattr(data, part)).__name__
            raise UserError(f"{part} of the data is {kind}, not a tensor; from_arrays(x, y) makes a Dataset of it")
    for x, y, said in ((data.x, data.y, "x and y"), (data.x_test, data.y_test, "x_test and y_test")):
        if x.dim() < 2 or y.dim() < 1 or len(x) != len(y):
            raise UserError(f"{said} of the data do not fit: {list(x.shape)} and {list(y.shape)}")
        kinds = (x, (torch.uint8, torch.int64)), (y, (torch.int64,))
        if not all(v.dtype.is_floating_point or v.dtype in whole for v, whole in kinds):
            raise UserError(f"{said} of the data are {x.dtype} and {y.dtype}; from_arrays(x, y) converts them")
        labels = y[y != IGNORED] if y.dim() > 1 else y
        if y.dtype == torch.int64 and labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < data.classes:
            held = f"labels {int(labels.min())} to {int(labels.max())}"
            raise UserError(f"{said} of the data hold {held}; classes={data.classes} allows 0 to {data.classes - 1}")
    if not is_preparation(data.pixels, data.x.shape[1:]):
        forms = "as-is, unit, standardised or channels:MEANS:SDS with a number for each channel"
        raise UserError(f"pixels of the data is {show_value(data.pixels)}; it is {forms}")
    if data.writer is not None and (not isinstance(data.writer, Tensor) or data.writer.shape != data.y.shape[:1]):
        raise UserError("writer of the data is not a tensor with one owner for each training row")
