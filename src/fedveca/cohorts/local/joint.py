"""Passes through models, of one run alone or of several runs at once.

What needs gradients is a walk: a generator that yields a pass and continues with its numbers. Walks of several runs
take turns, and passes through layers of the same sizes become one: the clients of all runs are one batch, in which the
numbers of each have the bytes that they have alone.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from fedveca.algorithms.contract import LocalLoss
from fedveca.cohorts.local.threads import use_one_thread
from fedveca.tasks.layers import LinearLayers
from fedveca.tasks.module_problem import ModuleProblem
from fedveca.tasks.problem import Problem

PassValues = tuple[Tensor, Tensor]  # F [n], NaN where it is not wanted, and grad F [n, P]
_T = TypeVar("_T")


class Pass(NamedTuple):
    """F and its gradient at w [n, P] on rows x [n, B, ...] with labels y [n, B]: each client on its own rows."""

    problem: Problem
    w: Tensor
    x: Tensor  # valid until this walk or another one continues
    y: Tensor
    unit: float = 1.0  # what a number of a row is multiplied by
    weight: Tensor | None = None  # [n, B] of the rows in F
    statistics: Tensor | None = None  # [n, S]; changed in training
    generators: Sequence[torch.Generator] | None = None
    loss: LocalLoss | None = None
    training: bool = True  # whether it is a local step, which does not need F

    def compute(self) -> PassValues:
        """The numbers, alone."""
        if not self.training:
            return self.problem.gradients(self.w, self.x, self.y, self.weight, self.statistics)
        more = {"statistics": self.statistics, "generators": self.generators, "loss": self.loss}
        g = self.problem.slope(self.w, self.x, self.y, self.unit, **more)  # type: ignore[arg-type]
        return torch.full_like(g[:, 0], torch.nan), g

    def find_layers(self) -> LinearLayers | None:
        """The layers by which passes of other runs may join this one, if there are any."""
        if not isinstance(self.problem, ModuleProblem) or self.loss is not None or self.y.dim() != 2:
            return None
        layers = self.problem.find_layers(self.y.shape[1], self.weight is not None)
        return layers if layers and layers.fits_others(self.x) else None


PassWalk = Generator[Pass, PassValues, _T]


def take_alone(walk: PassWalk[_T]) -> _T:
    """Goes through one walk."""
    try:
        asked = next(walk)
        while True:
            asked = walk.send(asked.compute())
    except StopIteration as end:
        found: _T = end.value
        return found


class Failure(NamedTuple):
    """What a walk raised: its run raises it again."""

    error: Exception


def take_together(walks: Sequence[PassWalk[object]]) -> list[object]:
    """Goes through several walks and returns what each has found, or a `Failure`; passes that fit together are one."""
    results: list[object] = [None] * len(walks)
    answers: dict[int, PassValues | None] = dict.fromkeys(range(len(walks)))
    with use_one_thread():
        while answers:
            groups: dict[object, _Group] = {}
            for i, values in answers.items():
                try:
                    asked = walks[i].send(values)  # type: ignore[arg-type]
                    while not (layers := asked.find_layers()):
                        asked = walks[i].send(asked.compute())
                except StopIteration as end:
                    results[i] = end.value
                except Exception as error:  # of this run alone
                    results[i] = Failure(error)
                else:
                    key = layers.sizes, asked.x.shape[1:], asked.weight is None, asked.training
                    groups.setdefault(key, _Group(layers)).add(i, asked)
            answers = {i: values for group in groups.values() for i, values in group.compute().items()}
    return results


class _Group:
    """Passes of several walks that become one."""

    def __init__(self, layers: LinearLayers) -> None:
        self.layers = layers
        self.asked: dict[int, Pass] = {}

    def add(self, i: int, asked: Pass) -> None:
        """Adds a pass; its rows are copied, since they are valid only until another walk continues."""
        x = asked.x.clone() if asked.unit == 1 else asked.x * asked.unit
        self.asked[i] = asked._replace(x=x)

    def compute(self) -> dict[int, PassValues]:
        """The numbers of each walk's pass."""
        passes = list(self.asked.values())
        first = passes[0]
        w, x, y = (torch.cat([getattr(asked, name) for asked in passes]) for name in ("w", "x", "y"))
        weights = [asked.weight for asked in passes if asked.weight is not None]
        weight = torch.cat(weights) if weights else None
        F, g = self.layers.gradients(w, x, y, weight, want_loss=not first.training)
        sizes = [len(asked.w) for asked in passes]
        return dict(zip(self.asked, zip(torch.split(F, sizes), torch.split(g, sizes), strict=True), strict=True))
