"""The loss and the gradient of fully connected layers in C: for many clients at once, without autograd.

A client's numbers have the same bytes alone and among others.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedveca.tasks.native.library import load_kernels

_log = logging.getLogger(__name__)

_FILE = "perceptron"
_MOST_LAYERS = 16
_CLOSE = 1e-5  # relative, to PyTorch's result on a few rows
_NUMBER, _POINTER, _FLOAT = ctypes.c_int64, ctypes.c_void_p, ctypes.c_float
_Function = Callable[..., int]


class PerceptronKernel:
    """F_i(w) and its gradient: layers with ReLU between them, and cross-entropy.

    Args:
        function: Of the file.
        sizes: Inputs and outputs of each layer. A model's vector holds the weight [outputs, inputs] and the bias of
            the first one, then those of the next.
    """

    def __init__(self, function: _Function, sizes: Sequence[tuple[int, int]]) -> None:
        widths = [sizes[0][0], *(outputs for _, outputs in sizes)]
        self._call, self._layers, self._inputs = function, len(sizes), widths[0]
        self._sizes = (_NUMBER * len(widths))(*widths)
        self._numbers = sum(inputs * outputs + outputs for inputs, outputs in sizes)

    def find_slopes(self, w: Tensor, x: Tensor, y: Tensor, unit: float = 1.0) -> Tensor:
        """The gradients [n, P] at w [n, P], each on its own rows x [n, B, ...] times `unit`, labels y [n, B]."""
        g = torch.empty(len(w), self._numbers)
        self._find(w, x, y, None, unit, None, g)
        return g

    def evaluate(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """F [n] and its gradient [n, P]: the mean over the rows, or their sum under `weight` [n, B]."""
        F, g = torch.empty(len(w)), torch.empty(len(w), self._numbers)
        self._find(w, x, y, weight, 1.0, F, g)
        return F, g

    def _find(
        self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor | None, unit: float, F: Tensor | None, g: Tensor
    ) -> None:
        if w.dtype != torch.float32 or x.dtype != torch.float32 or w.shape[1] != self._numbers:
            raise TypeError(f"the layers take {self._numbers} numbers of float32, not {w.shape[1]} of {w.dtype}")
        n, count = y.shape
        if not y.numel() or x.shape[:2] != y.shape or x[0, 0].numel() != self._inputs or len(w) != n:
            raise ValueError(f"rows {[*x.shape]}, labels {[*y.shape]} and {len(w)} models do not belong together")
        w = w if w.stride(1) == 1 else w.contiguous()
        x, y = x.contiguous(), y.to(torch.int64).contiguous()
        share = None if weight is None else weight.to(torch.float32).contiguous()
        asked = self._sizes, self._layers, n, count, x.data_ptr(), unit, y.data_ptr(), _get_pointer(share)
        failed = self._call(*asked, w.data_ptr(), w.stride(0), _get_pointer(F), g.data_ptr())
        if failed:
            raise IndexError("a label is not one of the outputs") if failed == -1 else MemoryError


def _get_pointer(v: Tensor | None) -> int | None:
    return None if v is None else v.data_ptr()


def find_perceptron_kernel(sizes: tuple[tuple[int, int], ...]) -> PerceptronKernel | None:
    """What computes layers of these sizes in C, here and now, if anything does."""
    library = load_kernels(_FILE)
    return _make_kernel(library, sizes) if library else None


@functools.lru_cache(64)
def _make_kernel(library: ctypes.CDLL, sizes: tuple[tuple[int, int], ...]) -> PerceptronKernel | None:
    function = _find_checked(library)
    return PerceptronKernel(function, sizes) if function and len(sizes) <= _MOST_LAYERS else None


@functools.cache
def _find_checked(library: ctypes.CDLL) -> _Function | None:
    """The function, where it agrees with PyTorch on a few rows."""
    function = library.find_gradients
    models = (_POINTER, _NUMBER, _POINTER, _POINTER)  # w, how far apart they are, loss, g
    function.argtypes = (_POINTER, _NUMBER, _NUMBER, _NUMBER, _POINTER, _FLOAT, _POINTER, _POINTER, *models)
    function.restype = ctypes.c_int
    with torch.inference_mode(False), torch.enable_grad():
        if _agrees(function, (21, 10)) and _agrees(function, (19, 35, 9, 3)):
            return function
    _log.warning("the compiled %s.c does not agree with PyTorch, whose operations are used", _FILE)
    return None


def _agrees(function: _Function, widths: tuple[int, ...]) -> bool:
    """Compares loss and gradient of two clients with those of PyTorch, in float64."""
    sizes, rows = list(itertools.pairwise(widths)), 37
    mine = PerceptronKernel(function, sizes)
    numbers = sum(inputs * outputs + outputs for inputs, outputs in sizes)
    w = torch.sin(torch.arange(2.0 * numbers, device="cpu", dtype=torch.float32)).view(2, numbers) / 3
    x = torch.cos(torch.arange(2.0 * rows * widths[0], device="cpu", dtype=torch.float32) / 7).view(2, rows, -1)
    y = torch.arange(2 * rows, device="cpu").view(2, rows) % widths[-1]
    F, g = mine.evaluate(w, x, y)
    pairs: list[tuple[Tensor, Tensor]] = [(mine.find_slopes(w, x, y), g)]
    for i in (0, 1):
        model = w[i].double().requires_grad_()
        h, at = x[i].double(), 0
        for inputs, outputs in sizes:
            end = at + inputs * outputs
            matrix, bias = model[at:end].view(outputs, inputs), model[end : end + outputs]
            h, at = (h.relu() if at else h) @ matrix.T + bias, end + outputs
        loss = cross_entropy(h, y[i])
        pairs += [(F[i], loss.detach()), (g[i], torch.autograd.grad(loss, model)[0])]
    return all(torch.allclose(a.double(), b.double(), rtol=_CLOSE, atol=_CLOSE) for a, b in pairs)
