"""What clients minimise, as pure functions of one flat vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from fedveca.algorithms.contract import LocalLoss
from fedveca.algorithms.layout import Layout
from fedveca.tasks.metrics import Metric


class Problem(Protocol):
    """What clients minimise; x is float32 (tokens int64), ready for the model.

    A model is its trainable parameters w [P] and, behind them, its running statistics [S] (those of BatchNorm). S is 0
    for most. Methods see w alone.
    """

    size: int  # P
    statistics: int  # S
    random: bool  # whether a local step draws random numbers inside the model (dropout)
    mapped: bool  # whether many clients are cheaper as one batch than one by one
    autograd: bool  # whether gradients are found by it, or in closed form
    compiled: bool  # whether the operations of a local step are fused on a CUDA device
    metrics: tuple[Metric, ...]  # what is reported of a model besides its loss; the first is the main one
    row_bytes: int  # measured, of what a model holds for the gradient of one row; 0 where it is not known, and little

    @property
    def layout(self) -> Layout:
        """Where the parameters lie in w."""
        ...

    def init(self) -> Tensor:
        """[P] w_0."""
        ...

    def initial_statistics(self) -> Tensor:
        """[S]."""
        ...

    def targets(self, y: Tensor) -> Tensor:
        """Labels as the functions below like them best; a cohort asks once for all its rows."""
        ...

    def gradients(
        self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor | None = None, statistics: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """F_i [n] and grad F_i [n, P] at w [n, P] on rows x [n, B, ...], y [n, B], in evaluation mode.

        Rows count 1/B each, or weight [n, B]. Without `statistics` [n, S] those of the start are used.
        """
        ...

    def slope(
        self,
        w: Tensor,
        x: Tensor,
        y: Tensor,
        unit: float = 1.0,
        *,
        statistics: Tensor | None = None,
        generators: Sequence[torch.Generator] | None = None,
        loss: LocalLoss | None = None,
    ) -> Tensor:
        """grad F_i [n, P] alone, for a local step, on rows `unit` x, in training mode.

        `statistics` [n, S] are updated in place. A random problem draws from the client's generator. With `loss` it is
        the gradient of a method's loss, which only a problem with autograd takes.
        """
        ...

    def losses(self, w: Tensor, x: Tensor, y: Tensor, statistics: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The mean loss [] and the scores [B, ...] at one w [P] on rows x [B, ...], y [B], in evaluation mode.

        `fedveca.tasks.metrics.evaluate_rows` makes the metrics of them.
        """
        ...

    def labels(self, y: Tensor) -> Tensor:
        """What metrics compare the scores with, of targets as they came or as `targets` gives them."""
        ...

    def named(self, w: Tensor) -> dict[str, Tensor]:
        """The vector as the model's trainable parameters."""
        ...

    def state(self, model: Tensor) -> dict[str, Tensor]:
        """w, or w and statistics, as all that `load_state_dict` expects: frozen weights, buffers, tied names."""
        ...

    def describe_kernels(self) -> str:
        """What computes on the CPU where there are kernels in C: their compiler, or "PyTorch"; else empty."""
        ...

    def hash_fixed(self) -> str:
        """A hash of what never changes, frozen weights and constant buffers; empty where there are none."""
        ...

    def fork(self) -> Problem:
        """The same problem with working memory of its own, to be used at the same time."""
        ...
