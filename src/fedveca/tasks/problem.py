"""A model and a loss as pure functions of one flat vector."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedveca.errors import UserError
from fedveca.tasks.losses import Better, Rows, accuracy, cross_entropy, per_row, read_direction

FEW = 6  # clients that are quicker one by one than mapped


class Problem(Protocol):
    """What clients minimise. Every function is pure; x is float32 (tokens int64), ready for the model."""

    size: int  # P
    mapped: bool  # whether many clients are cheaper as one batch than one by one
    autograd: bool  # whether gradients are found by it, or in closed form
    measure: str  # what `losses` gives besides the loss: accuracy, or the name of a custom metric
    better: Better | None  # which values of that are better, where it is known
    whole: bool  # whether that is of all rows at once, not a mean over rows

    def init(self) -> Tensor:
        """[P] w_0."""
        ...

    def targets(self, y: Tensor) -> Tensor:
        """Labels as the functions below like them best; a cohort asks once for all its rows."""
        ...

    def gradients(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """F_i [n] and grad F_i [n, P] at w [n, P] on rows x [n, B, ...], y [n, B].

        Rows count 1/B each, or weight [n, B].
        """
        ...

    def slope(self, w: Tensor, x: Tensor, y: Tensor, unit: float = 1.0) -> Tensor:
        """grad F_i [n, P] alone, for a local step, on rows `unit` x."""
        ...

    def losses(self, w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The mean loss and the metric at one w [P] on rows x [B, ...], y [B]: each []."""
        ...

    def named(self, w: Tensor) -> dict[str, Tensor]:
        """The vector as the model's own parameters."""
        ...

    def state(self, w: Tensor) -> dict[str, Tensor]:
        """The vector under every name that `load_state_dict` expects: tied parameters have several."""
        ...

    def fork(self) -> Problem:
        """The same problem with working memory of its own, to be used at the same time."""
        ...


class SquaredSvm:
    """0.05 |w|^2 + mean 0.5 max(0, 1 - s w.x)^2, s = +1 for even labels and -1 for odd ones; no bias."""

    ridge = 0.1
    mapped, autograd = True, False
    measure, whole = "accuracy", False
    better: Better | None = "higher"

    def __init__(self, features: int) -> None:
        self.size = features

    def init(self) -> Tensor:
        return torch.zeros(self.size)

    def targets(self, y: Tensor) -> Tensor:
        """s, float32; what is s already stays as it is."""
        return y if y.is_floating_point() else (1 - 2 * (y & 1)).float()

    def gradients(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
        x, s = x.flatten(2), self.targets(y)
        slack = self._slack(w, x, s)
        each = slack / x.shape[1] if weight is None else slack * weight
        loss = 0.5 * (self.ridge * (w * w).sum(-1) + (each * slack).sum(-1))
        return loss, torch.baddbmm(w[:, None], (each * s)[:, None], x, beta=self.ridge, alpha=-1)[:, 0]

    def slope(self, w: Tensor, x: Tensor, y: Tensor, unit: float = 1.0) -> Tensor:
        x, s = x.flatten(2), self.targets(y)
        pull = self._slack(w, x, s, unit).mul_(s)
        return torch.baddbmm(w[:, None], pull[:, None], x, beta=self.ridge, alpha=-unit / x.shape[1])[:, 0]

    def losses(self, w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        margin = self.targets(y) * (x.flatten(1) @ w)
        slack = (1 - margin).clamp(min=0)
        return 0.5 * (self.ridge * (w @ w) + (slack * slack).mean()), (margin > 0).float().mean()

    def _slack(self, w: Tensor, x: Tensor, s: Tensor, unit: float = 1.0) -> Tensor:
        """max(0, 1 - s unit w.x) [n, B]; as w @ x.T it is three times as fast as x @ w."""
        return torch.rsub(torch.bmm(w[:, None], x.transpose(1, 2))[:, 0].mul_(s), 1, alpha=unit).clamp_(min=0)

    def named(self, w: Tensor) -> dict[str, Tensor]:
        return {"w": w}

    def state(self, w: Tensor) -> dict[str, Tensor]:
        return self.named(w)

    def fork(self) -> SquaredSvm:
        return self


class ModuleProblem:
    """Any module without buffers or randomness, cross-entropy and accuracy unless others are given.

    Convolution weights lie channels-last in the flat vector: that is what the CPU's kernels want.
    """

    autograd = True

    def __init__(
        self,
        module: nn.Module,
        said: str = "the model",
        loss: Rows = cross_entropy,
        metric: Rows = accuracy,
        precision: str = "float32",
        measure: str = "accuracy",
    ) -> None:
        check_module(module, said)
        self.module, self.loss, self.metric, self.precision = module, loss, metric, precision
        self.measure, self.whole = measure, False
        self.better = read_direction(metric, f"metric ({measure})")
        self.shapes = {name: p.shape for name, p in module.named_parameters()}
        self.sizes = [p.numel() for p in module.parameters()]
        first = {id(p): name for name, p in module.named_parameters()}
        every = module.named_parameters(remove_duplicate=False)
        self.tied = {name: first[id(p)] for name, p in every if name not in self.shapes}  # a second name: the first
        self.size = sum(self.sizes)
        self.mapped = not any(isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d) for m in module.modules())
        self._local = threading.local()  # replicas: dict[torch.device, Replica]

    def init(self) -> Tensor:
        return self.flat([p.detach() for p in self.module.parameters()])

    def targets(self, y: Tensor) -> Tensor:
        return y

    def flat(self, parts: Iterable[Tensor]) -> Tensor:
        return torch.cat([(p.permute(0, 2, 3, 1) if p.dim() == 4 else p).reshape(-1) for p in parts])

    def named(self, w: Tensor) -> dict[str, Tensor]:
        out = {}
        for (name, shape), part in zip(self.shapes.items(), torch.split(w, self.sizes), strict=True):
            if len(shape) == 4:
                out[name] = part.view(shape[0], shape[2], shape[3], shape[1]).permute(0, 3, 1, 2)
            else:
                out[name] = part.view(shape)
        return out

    def state(self, w: Tensor) -> dict[str, Tensor]:
        named = self.named(w)
        return named | {name: named[first].clone() for name, first in self.tied.items()}

    def gradients(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
        replica = self._replica(w.device)
        if len(w) > FEW and self.mapped:
            one = partial(self._loss, replica.module)  # this thread's own: a call puts w in its parameters' place
            g, loss = vmap(grad_and_value(one), in_dims=(0, 0, 0, None if weight is None else 0))(w, x, y, weight)
            return loss, g
        if len(w) == 1:
            loss, g = replica(w[0], x[0], y[0], None if weight is None else weight[0])
            return loss[None], g[None]
        alone = [replica(w[i], x[i], y[i], None if weight is None else weight[i]) for i in range(len(w))]
        return torch.stack([loss for loss, _ in alone]), torch.stack([g for _, g in alone])

    def slope(self, w: Tensor, x: Tensor, y: Tensor, unit: float = 1.0) -> Tensor:
        return self.gradients(w, x if unit == 1 else x * unit, y)[1]

    def losses(self, w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            scores = self.scores(w, x)
            return self.loss(scores, y).mean(), torch.as_tensor(self.metric(scores, y), dtype=torch.float32).mean()

    def scores(self, w: Tensor, x: Tensor) -> Tensor:
        return self._replica(w.device).scores(w, x)

    def _loss(self, module: nn.Module, w: Tensor, x: Tensor, y: Tensor, weight: Tensor | None) -> Tensor:
        return _mean(per_row(self.loss(functional_call(module, self.named(w), (x,)), y)), weight)

    def fork(self) -> ModuleProblem:
        return ModuleProblem(self.module, "", self.loss, self.metric, self.precision, self.measure)

    def _replica(self, device: torch.device) -> Replica:
        """A module changes while it is called, so each thread has its own on each device."""
        mine: dict[torch.device, Replica] = self._local.__dict__.setdefault("replicas", {})
        if device not in mine:
            mine[device] = Replica(self, device)
        return mine[device]


class Replica:
    """A copy of the module whose parameters are views of the vector at hand."""

    def __init__(self, network: ModuleProblem, device: torch.device) -> None:
        self.network, self.module = network, copy.deepcopy(network.module).to(device)
        self.parameters = list(self.module.parameters())

    def __call__(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        """F and grad F at one w [P]."""
        loss = _mean(per_row(self.network.loss(self.scores(w, x), y)), weight)
        return loss.detach(), self.network.flat(
            torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True)
        )

    def scores(self, w: Tensor, x: Tensor) -> Tensor:
        for p, part in zip(self.parameters, self.network.named(w).values(), strict=True):
            p.data = part
        x = x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.network.precision == "bfloat16"):
            out: Tensor = self.module(x)
        return out.float()


def _mean(rows: Tensor, weight: Tensor | None) -> Tensor:
    return rows.mean() if weight is None else (rows * weight).sum()


def check_module(module: nn.Module, said: str) -> None:
    """UserError where a module cannot be a pure function of its parameters."""
    buffers = [name for name, _ in module.named_buffers()]
    if buffers:
        raise UserError(
            f"{said} has buffers ({', '.join(buffers[:3])}): statistics such as BatchNorm's change outside the "
            "parameters, so averaging clients is not defined for them; use GroupNorm or LayerNorm"
        )
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            raise UserError(
                f"{said} has dropout ({name}): its random state would make a run depend on more than its seed; "
                "leave it out"
            )
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            raise UserError(
                f"{said} has BatchNorm ({name}): the scores of a row would depend on the other rows of its batch; "
                "use GroupNorm or LayerNorm"
            )
    if not any(True for _ in module.parameters()):
        raise UserError(f"{said} has no parameters to train")
    frozen = [name for name, p in module.named_parameters() if not p.requires_grad or p.dtype != torch.float32]
    if frozen:
        raise UserError(f"{said}: parameter {frozen[0]} is frozen or not float32; all are trained, in float32")
    broken = [name for name, p in module.named_parameters() if not bool(torch.isfinite(p).all())]
    if broken:
        raise UserError(f"{said}: parameter {broken[0]} is not finite (NaN or infinity); training starts from it")
