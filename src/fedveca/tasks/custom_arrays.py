"""A user's arrays as tensors: rows, targets and owners, checked."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedveca.errors import UserError, show_value
from fedveca.tasks.datasets.archives import quote_error
from fedveca.tasks.datasets.arrays import check_finite, to_tensor
from fedveca.tasks.datasets.dataset import Input, Inputs
from fedveca.tasks.datasets.lazy import LazyRows, RowReader, load_file, open_array_file
from fedveca.tasks.losses import IGNORED


def read_inputs(x: Any, said: str, tokens: bool) -> tuple[Tensor, Inputs]:
    """Rows [D, ...]; several inputs side by side in one row each, with what splits them again."""
    x = load_file(x, said)
    if not isinstance(x, dict | tuple):
        return _read_rows(x, said, tokens), ()
    parts = list(x.items()) if isinstance(x, dict) else [("", part) for part in x]
    if not parts:
        raise UserError(f"{said} has no inputs; it is an array, or a dict or tuple of arrays")
    inputs, columns = [], []
    for at, (name, part) in enumerate(parts):
        here = f"{said} ({name or at})"
        if not isinstance(name, str) or (name and not name.isidentifier()):
            raise UserError(f"{said} has an input called {show_value(name)}; it is the name of an argument")
        rows = to_tensor(part, here)
        if rows.dim() == 0 or 0 in rows.shape[1:]:
            raise UserError(f"{here} has the shape {list(rows.shape)}; it needs a row for each example, [D, ...]")
        whole = not rows.is_floating_point()
        if not whole:
            check_finite(rows, here)
        inputs.append(Input(name, tuple(rows.shape[1:]), whole))
        columns.append(rows.reshape(len(rows), -1))
    if len({len(column) for column in columns}) > 1:
        raise UserError(
            f"{said} has inputs of {', '.join(str(len(column)) for column in columns)} rows; all need as many"
        )
    kind = torch.int64 if all(part.whole for part in inputs) else torch.float32
    for part, column in zip(inputs, columns, strict=True):
        if part.whole and kind == torch.float32 and column.numel() and int(column.abs().max()) > 2**24:
            raise UserError(
                f"{said} ({part.name}) holds whole numbers beyond 2^24, which cannot stand next to fractions"
            )
    return torch.cat([column.to(kind) for column in columns], 1), tuple(inputs)


def open_rows(x: object, said: str, tokens: bool) -> LazyRows:
    """Rows that stay in their file."""
    if isinstance(x, dict | tuple):
        raise UserError(f"{said} has several inputs, which lazy=True cannot read; put them side by side into one array")
    return x if isinstance(x, LazyRows) else wrap_rows(open_array_file(x, said), said, tokens)


def wrap_rows(reader: RowReader, said: str, tokens: bool) -> LazyRows:
    """A reader's rows, converted as `_read_rows` and `prepare` convert an array."""
    form = list(reader.shape)
    if len(form) < 2 or 0 in form[1:]:
        raise UserError(f"{said} has the shape {form}; it needs a row for each example, [D, ...]")
    if tokens and reader.dtype.is_floating_point:
        raise UserError(f"{said} is {reader.dtype}; tokens are whole numbers from 0 up")
    image = reader.dtype == torch.uint8 and len(form) in (3, 4)
    return LazyRows(reader, torch.int64 if tokens else torch.uint8 if image else torch.float32, said)


def read_test_rows(x: object, rows: Tensor | LazyRows, tokens: bool) -> tuple[Tensor | LazyRows, Inputs]:
    """The test rows: next to lazily read ones, what lies in a file is read lazily too, and other rows are converted."""
    if isinstance(rows, LazyRows) and isinstance(x, LazyRows | np.memmap | str | os.PathLike):
        return open_rows(x, "x of test", tokens), ()
    found, inputs = read_inputs(x, "x of test", tokens)
    table = isinstance(rows, LazyRows) and found.dtype == torch.uint8 and found.dim() not in (3, 4)
    return found.float() if table else found, inputs


def describe_inputs(inputs: Inputs) -> str:
    """Names and shapes, for an error."""
    return ", ".join(f"{part.name or at} {list(part.shape)}" for at, part in enumerate(inputs)) or "one array"


def _read_rows(x: Any, said: str, tokens: bool) -> Tensor:
    rows = to_tensor(x, said)
    if rows.dim() < 2 or 0 in rows.shape[1:]:
        raise UserError(f"{said} has the shape {list(rows.shape)}; it needs a row for each example, [D, ...]")
    if rows.dtype == torch.uint8 and not tokens:
        return rows
    if tokens and (rows.is_floating_point() or bool((rows < 0).any())):
        raise UserError(f"{said} is {rows.dtype} from {float(rows.min()):g} up; tokens are whole numbers from 0 up")
    check_finite(rows, said)
    return rows.to(torch.int64 if tokens else torch.float32)


def read_targets(y: Any, said: str) -> Tensor:
    """Labels [D, ...] as int64, or numbers as float32."""
    targets = to_tensor(load_file(y, said), said)
    if targets.dim() == 0:
        raise UserError(f"{said} is one number; it needs one for each row")
    if 0 in targets.shape[1:]:
        raise UserError(f"{said} has the shape {list(targets.shape)}; it needs a number for each row, [D, ...]")
    if targets.is_floating_point():
        check_finite(targets, said)
        return targets.to(torch.float32)
    targets = targets.to(torch.int64)
    labels = targets[targets != IGNORED] if targets.dim() > 1 else targets
    if labels.numel() and int(labels.min()) < 0:
        raise UserError(
            f"{said} holds the label {int(labels.min())}; labels are 0 ... C - 1: "
            "np.unique(y, return_inverse=True)[1] makes them so, y.astype(float) makes numbers to predict"
        )
    return targets[:, 0] if targets.dim() == 2 and targets.shape[1] == 1 else targets


def check_pairs(x: Tensor | LazyRows, y: Tensor, said: str) -> None:
    """UserError where rows and targets are not equally many, or none."""
    if len(x) != len(y):
        raise UserError(f"{said} do not fit: {len(x)} rows and {len(y)} targets")
    if len(x) == 0:
        raise UserError(f"{said} have no rows")


def read_writers(writer: Any, rows: int) -> Tensor:
    """[D] the number of each row's owner, by the order of their names."""
    try:
        names = np.asarray(writer)
    except Exception as error:
        raise UserError(f"writer is not a list of owners: {quote_error(error)}") from error
    if names.shape != (rows,):
        raise UserError(f"writer has the shape {list(names.shape)}; it names one owner for each of {rows} rows")
    unknown = [i for i, name in enumerate(names.tolist()) if name is None or name != name]  # None, NaN, NaT
    if unknown:
        raise UserError(f"writer names no owner of row {unknown[0]} ({len(unknown)} rows in all)")
    try:
        return torch.from_numpy(np.unique(names, return_inverse=True)[1].astype(np.int64))
    except TypeError as error:
        raise UserError(
            f"writer holds names of several kinds, such as text and numbers: {quote_error(error)}"
        ) from error
