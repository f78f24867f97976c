"""Arrays as tensors: what cannot be rows of numbers is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedveca.errors import UserError, show_value
from fedveca.tasks.datasets.archives import quote_error

WIDE = (torch.uint16, torch.uint32, torch.uint64)
ArrayLike = NDArray[Any]


def to_tensor(values: Any, said: str) -> Tensor:
    if isinstance(values, Tensor):
        if values.layout != torch.strided or values.is_nested:
            raise UserError(f"{said} is a {values.layout} tensor; to_dense() makes rows of it")
        if values.is_meta or values.is_complex() or values.is_quantized:
            raise UserError(f"{said} is a tensor of {values.dtype} on {values.device}, not of real numbers")
        found = values.detach().cpu()
        return to_signed(found.numpy(), said) if found.dtype in WIDE else found
    if isinstance(values, np.ma.MaskedArray) and (masked := int(np.asarray(values.mask).sum())):
        raise UserError(f"{said} is a masked array with {masked} masked values; filled(...) gives them values")
    try:
        array = np.asarray(values)
    except Exception as error:
        raise UserError(f"{said} is not an array: {quote_error(error)}") from error
    if array.dtype.kind not in "buif":
        is_y = said.rpartition(": ")[2].startswith("y")
        hint = "; np.unique(y, return_inverse=True)[1] makes labels of text" if is_y else ""
        raise UserError(f"{said} {_describe_array(array, values, hint)}")
    return to_signed(np.array(array, dtype=array.dtype.newbyteorder("=")), said)  # the user's stay the user's


def _describe_array(array: ArrayLike, values: Any, of_text: str) -> str:
    """What is wrong with an array of other things than numbers."""
    if array.dtype.kind == "O" and array.ndim == 0:
        way = "toarray() makes one" if hasattr(values, "toarray") else "rows of numbers are needed, [D, ...]"
        return f"is {type(values).__name__}, not an array; {way}"
    first = array.flat[0] if array.size else None
    if isinstance(first, str):
        return f"holds {array.dtype if array.dtype.kind != 'O' else 'text'}, not numbers{of_text}"
    return f"holds {array.dtype if array.dtype.kind != 'O' else show_value(first)}, not numbers"


def to_signed(array: ArrayLike, said: str) -> Tensor:
    """As a tensor; PyTorch hardly computes with unsigned numbers of more than a byte."""
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        if array.size and int(array.max()) >= 2**63:
            raise UserError(f"{said} holds {int(array.max())}; whole numbers go up to 2^63 - 1")
        array = array.astype(np.int64)
    return torch.from_numpy(array)


def check_finite(values: Tensor, said: str) -> None:
    bad = ~torch.isfinite(values.float()).flatten(1).all(1) if values.dim() > 1 else ~torch.isfinite(values.float())
    if bool(bad.any()):
        raise UserError(f"{said} is not finite in row {int(bad.nonzero()[0])} ({int(bad.sum())} rows in all)")
