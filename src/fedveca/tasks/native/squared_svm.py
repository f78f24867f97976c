"""The squared SVM in C, on rows as they are stored: bytes are made floats where they are used, and no batch is formed.

A client's numbers have the same bytes alone and among others, and a model's too, whatever the number of threads.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Callable

import torch
from torch import Tensor

from fedveca.tasks.native.library import load_kernels

_log = logging.getLogger(__name__)

_FILE = "squared_svm"
_RIDGE = 0.1
_CLOSE = 1e-5  # relative, to PyTorch's result on a few rows
_NUMBER, _POINTER, _FLOAT = ctypes.c_int64, ctypes.c_void_p, ctypes.c_float
Scaling = tuple[Tensor, Tensor]  # what is taken from a row [D, 1, ...] or channel [C, 1, ...], and its factor then
_Function = Callable[..., int]


class _Rows(ctypes.Structure):
    """`struct rows` of the file."""

    _fields_ = (
        *((name, _POINTER) for name in ("x", "s", "shift", "scale")),
        *((name, _NUMBER) for name in ("count", "size", "number_bytes", "per_row")),
        *((name, _FLOAT) for name in ("unit", "ridge")),
    )


class _Asked(ctypes.Structure):
    """`struct asked` of the file."""

    _fields_ = (
        *((name, _NUMBER) for name in ("clients", "models")),
        ("index", _POINTER),
        *((name, _NUMBER) for name in ("stride", "taken")),
        ("counts", _POINTER),
    )


class SvmKernel:
    """F_i(w) = ridge/2 |w|^2 + mean 0.5 max(0, 1 - s w.x)^2 and its gradient, on some of the rows that are stored.

    Args:
        function: Of the file.
        x: The rows, [D, ...]: bytes or float32.
        s: +1 or -1 of each row, [D].
        unit: What a number of a row is multiplied by.
        scaling: How rows are prepared before that, if at all.
        ridge: The factor.
    """

    def __init__(
        self, function: _Function, x: Tensor, s: Tensor, unit: float, scaling: Scaling | None, ridge: float
    ) -> None:
        rows, per_row = x.flatten(1), False
        shift = scale = torch.empty(0)
        if scaling:
            per_row = scaling[0].dim() == x.dim()
            shift, scale = (v.flatten() if per_row else v.expand(x.shape[1:]).flatten() for v in scaling)
        held = [v.contiguous() for v in (rows, s.float(), shift, scale)]
        pointers = [v.data_ptr() or None for v in held]
        self._held, self._call = held, function  # the memory that the structure names
        self._rows = _Rows(*pointers, *rows.shape, x.element_size(), per_row, unit, ridge)

    def find_slopes(self, w: Tensor, index: Tensor) -> Tensor:
        """The gradients [n, P] at w [n, P], each on the rows of one line of index [n, B]."""
        g = torch.empty(w.shape)
        self._find(w, 1, index, None, None, g)
        return g

    def evaluate(
        self, w: Tensor, index: Tensor, counts: Tensor | None = None, want_gradient: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """F [n, m] and, where it is wanted, its gradient [n, m, P], of m models w [n, m, P] of each client.

        Each client's are found on the rows of its line of index [n, B], of which the first counts [n] count.
        """
        n, m, size = w.shape
        F, g = torch.empty(n, m), torch.empty(n, m, size) if want_gradient else None
        self._find(w.reshape(-1, size), m, index, counts, F, g)
        return F, g

    def _find(
        self, w: Tensor, models: int, index: Tensor, counts: Tensor | None, F: Tensor | None, g: Tensor | None
    ) -> None:
        if w.dtype != torch.float32 or w.shape[1] != self._rows.size:
            raise TypeError(f"the SVM takes {self._rows.size} numbers of float32, not {w.shape[1]} of {w.dtype}")
        w = w if w.stride(1) == 1 else w.contiguous()
        index = index if index.stride(1) == 1 else index.contiguous()
        counted = None if counts is None else counts.data_ptr()
        asked = _Asked(index.shape[0], models, index.data_ptr(), index.stride(0), index.shape[1], counted)
        found = (None if v is None else v.data_ptr() for v in (F, g))
        failed = self._call(ctypes.byref(self._rows), ctypes.byref(asked), w.data_ptr(), w.stride(0), *found)
        if failed:
            raise IndexError("a row number is not one") if failed == -1 else MemoryError


def make_svm_kernel(x: Tensor, s: Tensor, unit: float, scaling: Scaling | None, ridge: float) -> SvmKernel:
    """The SVM on these rows, of a type that `has_svm_kernel`."""
    function = _load()
    assert function is not None
    return SvmKernel(function, x, s, unit, scaling, ridge)


def has_svm_kernel(dtype: torch.dtype) -> bool:
    """Whether the SVM is computed in C on rows of this type."""
    return dtype in (torch.uint8, torch.float32) and _load() is not None


def _load() -> _Function | None:
    library = load_kernels(_FILE)
    return _find_checked(library) if library else None


@functools.cache
def _find_checked(library: ctypes.CDLL) -> _Function | None:
    """The function, where it agrees with PyTorch on a few rows."""
    function = library.find_slopes
    function.argtypes, function.restype = (_POINTER, _POINTER, _POINTER, _NUMBER, _POINTER, _POINTER), ctypes.c_int
    if _agrees(function, torch.uint8) and _agrees(function, torch.float32):
        return function
    _log.warning("the compiled %s.c does not agree with PyTorch, whose operations are used", _FILE)
    return None


def _agrees(function: _Function, dtype: torch.dtype) -> bool:
    """Compares gradients and loss with those of PyTorch, in float64."""
    rows = torch.arange(9)
    x = ((rows[:, None] * 37 + torch.arange(19) * 101) % 256).to(dtype)
    s, w, index = 1.0 - 2 * (rows % 2), torch.cos(torch.arange(38.0)).view(2, 19), torch.tensor([[8, 0, 3], [5, 5, 1]])
    mine = SvmKernel(function, x, s, 1 / 255, None, _RIDGE)
    found = mine.find_slopes(w, index)
    F, g = mine.evaluate(w[None], rows[None])

    def find(w: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        x_i, s_i = x[index].double() / 255, s[index].double()
        slack = (1 - s_i * (x_i @ w)).clamp(min=0)
        return 0.5 * (_RIDGE * (w @ w) + (slack * slack).mean()), _RIDGE * w - (slack * s_i) @ x_i / len(index)

    pairs = [(found[i], find(w[i].double(), index[i])[1]) for i in (0, 1)]
    for i in (0, 1):
        loss, slope = find(w[i].double(), rows)
        pairs += [(F[0, i], loss), (g[0, i], slope)]  # type: ignore[index]
    return all(torch.allclose(a.double(), b, rtol=_CLOSE, atol=_CLOSE) for a, b in pairs)
