"""A thread's copy of a module, through which one client's rows pass at a time."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Protocol

import torch
from torch import Tensor, nn

from fedveca.algorithms.contract import LocalLoss, Named, Outputs
from fedveca.errors import UserError
from fedveca.tasks.datasets.dataset import Inputs, unpack_inputs
from fedveca.tasks.losses import Rows, per_row
from fedveca.tasks.randomness import draw_from

ALIGNMENT = 16  # bytes


class Network(Protocol):
    """What a replica reads of the problem that it belongs to: its loss, and how vectors become named tensors."""

    loss: Rows
    precision: str
    inputs: Inputs
    running: dict[str, torch.Size]
    quiet: list[str]

    def flat(self, parts: Iterable[Tensor]) -> Tensor: ...
    def named(self, w: Tensor) -> dict[str, Tensor]: ...
    def named_statistics(self, statistics: Tensor) -> dict[str, Tensor]: ...


class Replica:
    """A copy of the module whose parameters and statistics are views of the vectors at hand."""

    def __init__(self, network: Network, module: nn.Module) -> None:
        self.network = network
        shared: list[Tensor] = [p for p in module.parameters() if not p.requires_grad]
        shared += [v for name, v in module.named_buffers() if name not in network.running]
        self.module = copy.deepcopy(module, {id(v): v for v in shared})
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        buffers = dict(self.module.named_buffers())
        self.running = [buffers[name] for name in network.running]
        owners = [name.rpartition(".") for name in network.running]
        self.owners = [(self.module.get_submodule(place), name) for place, _, name in owners]
        self.initial = torch.cat([v.reshape(-1) for v in self.running]) if self.running else None
        self.copied: list[tuple[Tensor, Tensor]] = []  # statistics whose place is not aligned, and their copy
        self.training: bool | None = None
        self.head = find_head(self.module)

    def __call__(
        self,
        w: Tensor,
        x: Tensor,
        y: Tensor,
        weight: Tensor | None,
        statistics: Tensor | None,
        generator: torch.Generator | None,
        training: bool,
        local: LocalLoss | None = None,
    ) -> tuple[Tensor, Tensor]:
        """F and grad F at one w [P]; of a method's loss where it is given, for one client."""
        others = self._find_others(local.models, x, statistics) if local else {}  # before w is loaded
        self.set_mode(training)
        self._load(w, statistics)
        with draw_from(generator) if generator is not None else nullcontext():
            out = self._find_outputs(x) if local else None
            scores = self._forward(x) if out is None else out.scores
        self._return_statistics()
        if local and out:
            counts = nn.functional.pad(local.counts, (0, scores.shape[-1] - len(local.counts)))
            loss = average_rows(local.method(self._base, out, y, counts, others), weight)
        else:
            loss = average_rows(self._base(scores, y), weight)
        return loss.detach(), self.network.flat(
            torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True)
        )

    def _base(self, scores: Tensor, y: Tensor) -> Tensor:
        return per_row(self.network.loss(scores, y))

    @torch.no_grad()
    def _find_others(self, models: Named, x: Tensor, statistics: Tensor | None) -> dict[str, Outputs]:
        """What other models give for the same rows, in evaluation mode."""
        self.set_mode(False)
        found = {}
        for name, w in models.items():
            self._load(w, statistics)
            found[name] = self._find_outputs(x)
        return found

    def _find_outputs(self, x: Tensor) -> Outputs:
        if self.head is None:
            scores = self._forward(x)
            return Outputs(scores, scores.flatten(1))
        seen: list[Tensor] = []
        with self.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])):
            scores = self._forward(x)
        return Outputs(scores, (seen[-1].float() if seen else scores).flatten(1))

    def scores(self, w: Tensor, x: Tensor, statistics: Tensor | None = None) -> Tensor:
        self.set_mode(False)
        self._load(w, statistics)
        return self._forward(x)

    def set_mode(self, training: bool) -> None:
        if self.training is not training:
            self.module.train(training)
            for name in self.network.quiet:
                self.module.get_submodule(name).training = False
            self.training = training

    def _load(self, w: Tensor, statistics: Tensor | None) -> None:
        for p, part in zip(self.parameters, self.network.named(w).values(), strict=True):
            p.data = part if is_aligned(part) else part.clone()
        self.copied = []
        if self.initial is not None:
            now = self.initial.clone() if statistics is None else statistics
            for v, part in zip(self.running, self.network.named_statistics(now).values(), strict=True):
                v.data = part if is_aligned(part) else part.clone()
                self.copied += [] if v.data_ptr() == part.data_ptr() else [(part, v)]

    def _return_statistics(self) -> None:
        """Statistics that are elsewhere now, replaced by the module or in an aligned copy, go where they belong."""
        for (owner, name), v in zip(self.owners, self.running, strict=True):
            found = getattr(owner, name)
            if found is not v:
                v.data.copy_(found.detach())
                setattr(owner, name, v)
        for part, v in self.copied:
            part.copy_(v.data)

    def _forward(self, x: Tensor) -> Tensor:
        args, named = unpack_inputs(x, self.network.inputs)
        args = tuple(v.contiguous(memory_format=torch.channels_last) if v.dim() == 4 else v for v in args)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.network.precision == "bfloat16"):
            out = self.module(*args, **named)
        return to_scores(out).float()


def find_head(module: nn.Module) -> nn.Linear | None:
    """The last linear layer, whose input is a row's features; None where no other layer has parameters."""
    layers = [m for m in module.modules() if next(m.parameters(recurse=False), None) is not None]
    linear = [m for m in layers if isinstance(m, nn.Linear)]
    return linear[-1] if linear and len(layers) > 1 else None


def is_aligned(part: Tensor) -> bool:
    """Whether kernels may read a stretch of a vector where it is: some of cuDNN's need its start at 16 bytes."""
    return not part.is_cuda or part.data_ptr() % ALIGNMENT == 0


def to_scores(out: object) -> Tensor:
    """The scores in what a module returns: a tensor, or the logits of a Hugging Face output, or the first of several.

    Raises:
        UserError: Where there is no tensor of scores in it.
    """
    found = out
    if not isinstance(found, Tensor):
        found = out.get("logits") if isinstance(out, Mapping) else getattr(out, "logits", None)
    if found is None and isinstance(out, tuple | list) and out:
        found = out[0]
    if not isinstance(found, Tensor):
        raise UserError(
            f"it returns {type(out).__name__}; a model gives a tensor of scores, or an object with `logits`"
        )
    return found


def average_rows(rows: Tensor, weight: Tensor | None) -> Tensor:
    """Their mean, or their sum under the weights that are given."""
    return rows.mean() if weight is None else (rows * weight).sum()
