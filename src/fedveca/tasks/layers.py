"""Fully connected layers with ReLU between and cross-entropy behind, without autograd.

For a few clients with small layers, most of a local step is the machinery around it: modules, hooks and the graph of
autograd. Here a step is the matrix products that autograd would call, client by client, with operands of the same
shapes, strides and alignment, so that each result has the same bytes; the rest is done for all clients at once.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedveca.tasks.losses import Rows, cross_entropy

_aten = torch.ops.aten
_ALIGNED = 16  # floats: memory of its own starts at 64 bytes, and a product may round differently elsewhere


class _Layer(NamedTuple):
    weight: slice  # its place in w
    bias: slice
    inputs: int
    outputs: int


class LinearLayers:
    """The gradient of a perceptron, or of multinomial logistic regression, for n clients on the CPU."""

    def __init__(self, sizes: list[tuple[int, int]]) -> None:
        self.layers, at = list[_Layer](), 0
        for inputs, outputs in sizes:
            end = at + inputs * outputs
            self.layers.append(_Layer(slice(at, end), slice(end, end + outputs), inputs, outputs))
            at = end + outputs
        self._same: dict[int, bool] = {}  # by rows of a batch: whether this machine gives autograd's bytes

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

    def gives_same(self, rows: int) -> bool | None:
        """Whether `gradients` has autograd's bytes for batches of so many rows; None where nobody has tried."""
        return self._same.get(rows)

    def compare(self, rows: int, same: bool) -> None:
        """Records what a comparison with autograd has shown."""
        self._same[rows] = same

    @torch.no_grad()
    def gradients(self, w: Tensor, x: Tensor, y: Tensor, want_loss: bool) -> tuple[Tensor, Tensor]:
        """F [n], NaN where it is not wanted, and grad F [n, P] at w [n, P] on rows x [n, B, ...], y [n, B]."""
        n, B = y.shape
        weights = [w[:, layer.weight].view(n, layer.outputs, layer.inputs) for layer in self.layers]
        taken, h = list[Tensor](), x.flatten(2)
        for layer, weight in zip(self.layers, weights, strict=True):
            z = _make_room(n, B, layer.outputs)
            each = zip(w[:, layer.bias].unbind(), h.unbind(), weight.transpose(1, 2).unbind(), z.unbind(), strict=True)
            for bias, rows, mine, out in each:
                torch.addmm(bias, rows, mine, out=out)
            taken.append(h)
            h = z if layer is self.layers[-1] else z.relu_()
        log_p, labels = torch.log_softmax(h.reshape(n * B, -1), 1), y.reshape(-1, 1)
        pull = torch.zeros_like(log_p).scatter_(1, labels, -1.0 / B)
        d = _make_room(n, B, self.layers[-1].outputs)
        d.copy_(_aten._log_softmax_backward_data(pull, log_p, 1, log_p.dtype).view(n, B, -1))
        parts = list[list[Tensor]]()  # [n] of each parameter, from the last one to the first
        for layer, weight, h in zip(reversed(self.layers), reversed(weights), reversed(taken), strict=True):
            parts.append([mine.sum(0) for mine in d.unbind()])
            parts.append(
                [torch.mm(*both).view(-1) for both in zip(d.transpose(1, 2).unbind(), h.unbind(), strict=True)]
            )
            if layer is not self.layers[0]:
                back = _make_room(n, B, layer.inputs)
                for mine, of, out in zip(d.unbind(), weight.unbind(), back.unbind(), strict=True):
                    torch.mm(mine, of, out=out)
                d = _aten.threshold_backward.grad_input(back, h, 0, grad_input=back)
        g = torch.cat([part for client in zip(*reversed(parts), strict=True) for part in client]).view(n, -1)
        if not want_loss:
            return torch.full_like(g[:, 0], torch.nan), g
        return torch.stack([rows.mean() for rows in log_p.gather(1, labels).neg_().view(n, B)]), g


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
