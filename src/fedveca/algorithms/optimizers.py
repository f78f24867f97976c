"""What takes a step: the clients' optimiser within a round, the server's between rounds, and the rate of each round."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedveca.algorithms.contract import NoCarry, descend

LOCAL_OPTIMIZERS = ("sgd", "adam", "adamw")
SERVER_OPTIMIZERS = ("sgd", "momentum", "adam", "yogi", "adagrad")
SCHEDULES = ("constant", "cosine", "step")
_TABLE_STEPS = 2**16  # beyond so many steps each one adds the same to the length
_TINY = 1e-6  # as in torch.nn.utils.clip_grad_norm_


class Moments(NamedTuple):
    """What an optimiser carries from step to step; () stands for what it does not have."""

    first: Tensor | NoCarry = ()  # [P] momentum
    second: Tensor | NoCarry = ()  # [P] of squares
    steps: Tensor | NoCarry = ()  # [1]


@dataclass(frozen=True)
class LocalOptimizer:
    """The clients' optimiser, as torch.optim has it: SGD with momentum, Adam or AdamW.

    A step goes along d + weight_decay w + proximal (w - w_k), where d is the method's direction from a gradient of
    norm at most clip_norm. AdamW's weight decay is outside of its moments.
    """

    kind: str = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    clip_norm: float = 0.0  # 0: none
    proximal: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    keep: bool = False  # whether the client keeps its moments between rounds

    @property
    def has_moments(self) -> bool:
        return bool(self.momentum) or self.kind != "sgd"

    @property
    def is_plain(self) -> bool:
        """Whether w_k - w is the sum of the directions times the rate."""
        return not (self.has_moments or self.proximal)

    def start(self, w: Tensor) -> Moments:
        """Before the first step."""
        zero = torch.zeros_like(w)
        if self.kind == "sgd":
            return Moments(zero) if self.momentum else Moments()
        return Moments(zero, zero, torch.zeros_like(w[..., :1]))

    def clip(self, g: Tensor) -> Tensor:
        """The gradient, shortened where its norm is above clip_norm."""
        length: Tensor = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
        return g * (self.clip_norm / (length + _TINY)).clamp(max=1.0)

    def decay(self, w: Tensor, d: Tensor) -> Tensor:
        """The direction with the weight decay that is part of it."""
        return torch.add(d, w, alpha=self.weight_decay) if self.weight_decay and self.kind != "adamw" else d

    def step(self, w: Tensor, d: Tensor, m: Moments, lr: float | Tensor) -> tuple[Tensor, Moments]:
        """The next w and moments, where d has weight decay and proximal term in it."""
        if not isinstance(m.first, Tensor):
            return descend(w, d, lr), m
        if self.kind == "sgd":
            first = torch.add(d, m.first, alpha=self.momentum)
            return descend(w, torch.add(d, first, alpha=self.momentum) if self.nesterov else first, lr), Moments(first)
        assert isinstance(m.second, Tensor)
        assert isinstance(m.steps, Tensor)
        if self.kind == "adamw" and self.weight_decay:
            w = descend(w, w, lr * self.weight_decay)
        steps = m.steps + 1
        first = torch.lerp(m.first, d, 1 - self.beta1)
        second = torch.addcmul(m.second * self.beta2, d, d, value=1 - self.beta2)
        unit = first / (1 - self.beta1**steps) / ((second / (1 - self.beta2**steps)).sqrt() + self.eps)
        return descend(w, unit, lr), Moments(first, second, steps)

    def lengths(self, tau: Tensor, lr: float) -> Tensor:
        """|a_i|_1 of FedNova for so many steps, in the shape of tau: what a round adds up to where all gradients are 1.

        w_k - w = lr sum_j a_j g_j. With plain SGD every a_j is 1, so that it is tau. Adam has no such a; it is tau
        then, since each of its steps is about as long as the rate.
        """
        if self.kind != "sgd" or self.is_plain or not tau.numel():
            return tau
        most = int(tau.max())
        steps = min(_TABLE_STEPS, 2 ** most.bit_length())
        known = _find_lengths(self.momentum, self.nesterov, lr * self.proximal, steps, tau.device)
        last = len(known) - 1
        if most <= last:
            return known[tau.long()].to(tau.dtype)
        beyond = (tau.double() - last).clamp(min=0) * (known[-1] - known[-2])
        return (known[tau.long().clamp(max=last)] + beyond).to(tau.dtype)


@functools.lru_cache(maxsize=64)
def _find_lengths(momentum: float, nesterov: bool, pull: float, steps: int, device: torch.device) -> Tensor:
    """|a|_1 after 0, 1, ... steps, float64 [steps + 1]: the optimiser on one number whose gradient is 1.

    pull is lr times proximal.
    """
    moved, buffer, out = 0.0, 0.0, [0.0]
    for _ in range(steps):
        d = 1 - pull * moved
        buffer = momentum * buffer + d
        moved += d + momentum * buffer if nesterov else buffer
        out.append(moved)
    return torch.tensor(out, dtype=torch.float64, device=device)


@dataclass(frozen=True)
class ServerOptimizer:
    """What the server makes of a method's step from w_k, which it takes for a gradient (Reddi et al. 2021).

    sgd scales it; momentum is FedAvgM's; adam, yogi and adagrad are FedAdam, FedYogi and FedAdagrad, without bias
    correction, as in that paper.
    """

    kind: str = "sgd"
    lr: float = 1.0
    momentum: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-3

    @property
    def is_plain(self) -> bool:
        """Whether it leaves the method's step as it is."""
        return self.kind == "sgd" and self.lr == 1

    @property
    def names(self) -> tuple[str, ...]:
        """What the server's state holds besides the method's."""
        return {"sgd": (), "momentum": ("server_first",)}.get(self.kind, ("server_first", "server_second"))

    def start(self, w: Tensor) -> tuple[Tensor, ...]:
        return (torch.zeros_like(w), torch.full_like(w, self.eps**2))[: len(self.names)]

    def step(self, w: Tensor, move: Tensor, moments: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The next w, where the method would go by `move`, and the next moments."""
        if self.kind == "sgd":
            return w + self.lr * move, ()
        if self.kind == "momentum":
            first = self.momentum * moments[0] + move
            return w + self.lr * first, (first,)
        first = self.momentum * moments[0] + (1 - self.momentum) * move
        second, square = moments[1], move * move
        if self.kind == "adam":
            second = self.beta2 * second + (1 - self.beta2) * square
        elif self.kind == "yogi":
            second = second - (1 - self.beta2) * square * torch.sign(second - square)
        else:
            second = second + square
        return w + self.lr * first / (second.sqrt() + self.eps), (first, second)


@dataclass(frozen=True)
class Schedule:
    """The learning rate of each round as a multiple of lr: a linear warm-up, then constant, a cosine or steps."""

    kind: str = "constant"
    rounds: int = 1  # of the whole run
    warmup: int = 0  # rounds until the full rate
    final: float = 0.0  # of a cosine: what it ends at
    every: int = 30  # of steps: rounds between two of them
    decay: float = 0.1  # of steps: by what the rate is multiplied

    @property
    def is_constant(self) -> bool:
        return self.kind == "constant" and not self.warmup

    def factor(self, k: int) -> float:
        """Of round k, the first being 0; the closing evaluation has the last one's."""
        k = min(k, self.rounds - 1)
        if k < self.warmup:
            return (k + 1) / (self.warmup + 1)
        done, left = k - self.warmup, max(1, self.rounds - self.warmup)
        if self.kind == "cosine":
            return self.final + (1 - self.final) * (1 + math.cos(math.pi * done / left)) / 2
        return float(self.decay ** (done // self.every)) if self.kind == "step" else 1.0
