"""Fully connected layers with ReLU between and cross-entropy behind, without autograd.

For a few clients with small layers, most of a local step is the machinery around it: modules, hooks and the graph of
autograd. Here a step is the matrix products that autograd would call, with operands of the same shapes, strides and
alignment, so that each result has the same bytes: one product for all clients, or client by client where the machine
rounds the two differently. The rest is done for all clients at once.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedveca.tasks.losses import Rows, cross_entropy

_aten = torch.ops.aten
_ALIGNED = 16  # floats: memory of its own starts at 64 bytes, and a product may round differently elsewhere
_LARGE = 4096  # numbers multiplied for one client from which a product for all clients is computed as one for each
Way = Literal["batched", "each", "autograd"]  # one product for all clients, one for each client, and neither
Kind = tuple[int, bool]  # rows of a batch, and whether they are weighted


class _Layer(NamedTuple):
    weight: slice  # its place in w
    bias: slice
    inputs: int
    outputs: int


class LinearLayers:
    """The gradient of a perceptron, or of multinomial logistic regression, for n clients on the CPU."""

    def __init__(self, sizes: list[tuple[int, int]]) -> None:
        self.sizes = tuple(sizes)  # inputs and outputs of each
        self.layers, at = list[_Layer](), 0
        for inputs, outputs in sizes:
            end = at + inputs * outputs
            self.layers.append(_Layer(slice(at, end), slice(end, end + outputs), inputs, outputs))
            at = end + outputs
        self._ways: dict[Kind, Way] = {}  # what gives autograd's bytes on this machine

    @staticmethod
    def find(module: nn.Module, loss: Rows, precision: str) -> LinearLayers | None:
        """The layers of a module that is nothing else: Flatten, then Linear with ReLU between; None for any other."""
        if type(module) is not nn.Sequential or loss is not cross_entropy or precision != "float32" or _has_hooks():
            return None
        first, *rest = list(module) or [module]
        linear, between = rest[::2], rest[1::2]
        plain = type(first) is nn.Flatten and (first.start_dim, first.end_dim) == (1, -1)
        plain &= len(linear) == len(between) + 1 and all(type(part) is nn.ReLU for part in between)
        sizes = list[tuple[int, int]]()
        for part in linear:
            if type(part) is not nn.Linear or part.bias is None or part.weight.dtype != torch.float32:
                return None
            plain &= part.weight.requires_grad and part.bias.requires_grad
            sizes.append((part.in_features, part.out_features))
        plain &= all(a[1] == b[0] for a, b in pairwise(sizes)) and not any(
            _is_hooked(part) for part in module.modules()
        )
        return LinearLayers(sizes) if plain and len(set(module.parameters())) == 2 * len(sizes) else None

    def find_way(self, kind: Kind) -> Way | None:
        """What gives autograd's bytes for passes of a kind; None where nobody has tried."""
        return self._ways.get(kind)

    def try_ways(
        self, kind: Kind, loss: Tensor, g: Tensor, w: Tensor, x: Tensor, y: Tensor, weight: Tensor | None
    ) -> Way:
        """Compares with what autograd gave, and remembers the quickest way that has the same bytes."""
        smallest = min(kind[0] * layer.inputs * layer.outputs for layer in self.layers)
        ways: tuple[Way, ...] = ("batched", "each") if kind[0] > 1 and smallest >= _LARGE else ("each",)
        self._ways[kind] = "autograd"
        for way in ways:
            if way == "batched" and len(w) == 1:  # as one of several
                several = _align(torch.cat([x.flatten(2)] * 3))
                weights = None if weight is None else torch.cat([weight] * 3)
                F, slope = self.gradients(torch.cat([w] * 3), several, torch.cat([y] * 3), weights)
            else:
                F, slope = self.gradients(w, x, y, weight, way=way)
            if bool((loss == F).all()) and bool((slope == g).all()):
                self._ways[kind] = way
                break
        return self._ways[kind]

    def fits_others(self, x: Tensor) -> bool:
        """Whether rows x [n, B, ...] have a client's batch at the same alignment wherever it is among others'."""
        return x[0].numel() % _ALIGNED == 0

    @torch.no_grad()
    def gradients(
        self,
        w: Tensor,
        x: Tensor,
        y: Tensor,
        weight: Tensor | None = None,
        *,
        way: Way = "batched",
        want_loss: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """F [n], NaN where it is not wanted, and grad F [n, P] at w [n, P] on rows x [n, B, ...], y [n, B].

        The mean over the rows, or their sum under `weight` [n, B]. A client's numbers do not depend on the others.
        """
        n, B = y.shape
        products = _Batched if way == "batched" else _Each
        weights = [w[:, layer.weight].view(n, layer.outputs, layer.inputs) for layer in self.layers]
        weights = [_align(matrix) for matrix in weights] if way == "batched" else weights
        taken, h = list[Tensor](), x.flatten(2)
        for layer, matrix in zip(self.layers, weights, strict=True):
            taken.append(h)
            h = products.forward(w[:, layer.bias], h, matrix)
            h = h if layer is self.layers[-1] else h.relu_()
        log_p, labels = torch.log_softmax(h.reshape(n * B, -1), 1), y.reshape(-1, 1)
        pull = torch.zeros_like(log_p)
        pull.scatter_(1, labels, -1.0 / B) if weight is None else pull.scatter_(1, labels, -weight.reshape(-1, 1))
        d = _align(_aten._log_softmax_backward_data(pull, log_p, 1, log_p.dtype).view(n, B, -1))
        g = torch.empty(n, self.layers[-1].bias.stop)
        for layer, matrix, h in zip(reversed(self.layers), reversed(weights), reversed(taken), strict=True):
            g[:, layer.bias] = products.sum(d)
            g[:, layer.weight] = products.multiply(d.transpose(1, 2), h).flatten(1)
            if layer is not self.layers[0]:
                back = products.multiply(d, matrix)
                d = _aten.threshold_backward.grad_input(back, h, 0, grad_input=back)
        if not want_loss:
            return torch.full_like(g[:, 0], torch.nan), g
        rows = log_p.gather(1, labels).neg_().view(n, B)
        return products.average(rows, weight), g


class _Batched:
    """One product for all clients."""

    @staticmethod
    def forward(bias: Tensor, h: Tensor, weight: Tensor) -> Tensor:
        """h [n, B, I] times weight [n, O, I], and bias [n, O]."""
        return _align(torch.baddbmm(bias[:, None], h, weight.transpose(1, 2)))

    @staticmethod
    def multiply(a: Tensor, b: Tensor) -> Tensor:
        return _align(torch.bmm(a, b))

    @staticmethod
    def sum(d: Tensor) -> Tensor:
        """[n, O] of d [n, B, O]."""
        return d.sum(1)

    @staticmethod
    def average(rows: Tensor, weight: Tensor | None) -> Tensor:
        """[n]: the mean of each client's rows [n, B], or their sum under the weights."""
        return rows.mean(1) if weight is None else (rows * weight).sum(1)


class _Each:
    """The same, client by client."""

    @staticmethod
    def forward(bias: Tensor, h: Tensor, weight: Tensor) -> Tensor:
        z = _make_room(len(h), h.shape[1], weight.shape[1])
        each = zip(bias.unbind(), h.unbind(), weight.transpose(1, 2).unbind(), z.unbind(), strict=True)
        for mine, rows, matrix, out in each:
            torch.addmm(mine, rows, matrix, out=out)
        return z

    @staticmethod
    def multiply(a: Tensor, b: Tensor) -> Tensor:
        z = _make_room(len(a), a.shape[1], b.shape[2])
        for mine, other, out in zip(a.unbind(), b.unbind(), z.unbind(), strict=True):
            torch.mm(mine, other, out=out)
        return z

    @staticmethod
    def sum(d: Tensor) -> Tensor:
        return torch.stack([mine.sum(0) for mine in d.unbind()])

    @staticmethod
    def average(rows: Tensor, weight: Tensor | None) -> Tensor:
        if weight is None:
            return torch.stack([mine.mean() for mine in rows.unbind()])
        return torch.stack([mine.sum() for mine in (rows * weight).unbind()])


def _align(v: Tensor) -> Tensor:
    """[n, a, b], each client's part aligned as memory of its own is."""
    if v.stride(0) % _ALIGNED == 0 and v.data_ptr() % (4 * _ALIGNED) == 0:
        return v
    room = _make_room(*v.shape)
    return room.copy_(v)


def _make_room(n: int, rows: int, width: int) -> Tensor:
    """[n, rows, width], each client's part aligned as memory of its own is."""
    room = torch.empty(n, -(-rows * width // _ALIGNED) * _ALIGNED)
    return room[:, : rows * width].view(n, rows, width)


def _is_hooked(module: nn.Module) -> bool:
    """Whether somebody looks at, or changes, what passes through a module."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name) for name in hooks) or "forward" in vars(module)


def _has_hooks() -> bool:
    found = vars(nn.modules.module)
    return any(found[name] for name in found if name.startswith("_global_") and name.endswith("_hooks"))
