"""A method under a training recipe: any method with a local optimiser, a server optimiser and a schedule.

A recipe is a method itself, so whatever runs methods runs recipes. The method says the direction of each step and
sees the steps; the recipe takes them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import namedtuple
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedveca.algorithms.contract import (
    Algorithm,
    AskLoss,
    HasModel,
    Named,
    NoCarry,
    Order,
    Outputs,
    Report,
    RowLoss,
    start_client,
)
from fedveca.algorithms.layout import Layout
from fedveca.algorithms.optimizers import LocalOptimizer, Moments, Schedule, ServerOptimizer
from fedveca.errors import UserError

_PLAIN, _AS_IT_IS, _CONSTANT = LocalOptimizer(), ServerOptimizer(), Schedule()
# What a method declares of itself, and a recipe of it too.
_DECLARED = (
    "adapts",
    "needs_gradient",
    "needs_loss",
    "needs_gradient_after",
    "needs_layout",
    "chooses",
    "needs_everyone",
    "needs_whole_step",
    "needs_timing",
    "guarded",
    "has_loss",
    "needs_labels",
    "nonnegative",
)
KEPT = "optimizer_"  # how a client's memory names the moments that it keeps


class RecipeCarry(NamedTuple):
    """What a client carries from step to step."""

    s: Any  # the method's
    moments: Moments
    mean: Tensor | NoCarry = ()  # [P] of the directions so far, where the method needs it
    steps: Tensor | NoCarry = ()  # [1]


@dataclass(frozen=True)
class Recipe(Algorithm[Any, RecipeCarry]):
    """A method whose steps are taken by other optimisers than plain SGD, or at other rates from round to round."""

    algorithm: Algorithm
    local: LocalOptimizer = _PLAIN
    server: ServerOptimizer = _AS_IT_IS
    schedule: Schedule = _CONSTANT

    def __post_init__(self) -> None:
        if type(self.algorithm).step is not Algorithm.step:
            name = type(self.algorithm).__name__
            raise UserError(
                f"{name} defines step, so that no other optimiser can take its steps; define direction and track in "
                "its place, or leave the settings of optimisers and schedules as they are"
            )
        for name in _DECLARED:
            object.__setattr__(self, name, getattr(self.algorithm, name))

    @property
    def lr(self) -> float:  # type: ignore[override]
        return self.algorithm.lr

    @property
    def is_scheduled(self) -> bool:
        return not self.schedule.is_constant

    def at(self, k: int) -> Recipe:
        if self.schedule.is_constant:
            return self
        now = dataclasses.replace(self.algorithm, lr=self.algorithm.lr * self.schedule.factor(k))  # type: ignore[type-var]
        return dataclasses.replace(self, algorithm=now.with_layout(self.algorithm.layout))

    def with_rate(self, lr: Tensor) -> Recipe:
        algorithm = self.algorithm.with_rate(lr)
        return dataclasses.replace(self, algorithm=algorithm)

    def with_layout(self, layout: Layout) -> Recipe:
        algorithm = self.algorithm.with_layout(layout)
        return dataclasses.replace(self, algorithm=algorithm)

    # server

    def init(self, w: Tensor, tau: Tensor) -> Any:
        state = self.algorithm.init(w, tau)
        if not self.server.names:
            return state
        return _extend_state(type(state), self.server.names)(  # type: ignore[arg-type]
            *state, *self.server.start(w)
        )

    def order(self, state: Any) -> Order:
        return self.algorithm.order(self._split(state)[0])

    def choose(self, state: HasModel, p: Tensor, u: Tensor, m: int, ask: AskLoss) -> Tensor:
        return self.algorithm.choose(self._split(state)[0], p, u, m, ask)

    def update(self, state: Any, ids: Tensor, p: Tensor, report: Report) -> tuple[Any, Named]:
        inner, moments = self._split(state)
        steps = self.local.lengths(report.each["tau"], self.lr)  # how far clients went, in steps of plain SGD
        report = report._replace(each=report.each | {"tau": steps}, taken=report.each["tau"])
        after, seen = self.algorithm.update(inner, ids, p, report)
        if self.server.is_plain:
            return after, seen
        here = self.algorithm.locate(inner)
        there, moments = self.server.step(here, self.algorithm.locate(after) - here, moments)
        return type(state)(*self.algorithm.relocate(inner, after, there), *moments), seen

    def shorten(self, before: HasModel, after: HasModel, scale: float) -> HasModel:
        inner, moments = self._split(after)
        short = self.algorithm.shorten(self._split(before)[0], inner, scale)
        return type(after)(*short, *moments)

    def locate(self, state: HasModel) -> Tensor:
        return self.algorithm.locate(self._split(state)[0])

    def relocate(self, before: HasModel, after: HasModel, point: Tensor) -> HasModel:
        inner, moments = self._split(after)
        return type(after)(*self.algorithm.relocate(self._split(before)[0], inner, point), *moments)

    def _split(self, state: Any) -> tuple[Any, tuple[Tensor, ...]]:
        """The method's state, and the server optimiser's moments."""
        if not self.server.names:
            return state, ()
        at = len(state) - len(self.server.names)
        return state.method(*state[:at]), tuple(state[at:])

    # one client

    def memory(self, w: Tensor) -> Named:
        kept = _name_moments(self.local.start(w)) if self.local.keep else {}
        return self.algorithm.memory(w) | kept

    def begin(self, order: Order, memory: Named) -> Tensor:
        return self.algorithm.begin(order, _drop_moments(memory))

    def start(self, order: Order, memory: Named, g0: Tensor, loss: Tensor | NoCarry = ()) -> RecipeCarry:
        s, w = start_client(self.algorithm, order, _drop_moments(memory), g0, loss), order.w.expand_as(g0)
        kept = {name.removeprefix(KEPT): v for name, v in memory.items() if name.startswith(KEPT)}
        moments = Moments(**kept) if self.local.keep else self.local.start(w)
        if self.local.is_plain or not self.algorithm.needs_mean:
            return RecipeCarry(s, moments)
        return RecipeCarry(s, moments, torch.zeros_like(w), torch.zeros_like(w[..., :1]))

    def step(self, order: Order, s: RecipeCarry, w: Tensor, g: Tensor) -> tuple[Tensor, RecipeCarry]:
        algorithm, local = self.algorithm, self.local
        d = algorithm.direction(order, s.s, w, local.clip(g) if local.clip_norm else g)
        d = local.decay(w, d)
        mean, steps = s.mean, s.steps
        if isinstance(mean, Tensor) and isinstance(steps, Tensor):
            steps = steps + 1
            mean = mean + (d - mean) / steps
        if local.proximal:
            d = torch.add(d, w - order.w, alpha=local.proximal)
        w, moments = local.step(w, d, s.moments, algorithm.lr)
        return w, RecipeCarry(algorithm.track(order, s.s, w, g, mean), moments, mean, steps)

    def models(self, order: Order, s: RecipeCarry) -> Named:
        return self.algorithm.models(order, s.s)

    def loss(self, base: RowLoss, out: Outputs, y: Tensor, counts: Tensor, others: dict[str, Outputs]) -> Tensor:
        return self.algorithm.loss(base, out, y, counts, others)

    def arrive(self, order: Order, s: RecipeCarry, w: Tensor, loss: Tensor, g: Tensor) -> RecipeCarry:
        return s._replace(s=self.algorithm.arrive(order, s.s, w, loss, g))

    def finish(self, order: Order, s: RecipeCarry, w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:
        mean = {"mean": s.mean} if self.algorithm.needs_mean else {}
        length = self.local.lengths(tau, self.lr)
        vectors, numbers, memory = self.algorithm.finish(order, s.s, w, length, **mean)
        return vectors, numbers, memory | (_name_moments(s.moments) if self.local.keep else {})


@functools.cache
def _extend_state(method: type, names: tuple[str, ...]) -> Any:
    """The type of a method's state with more tensors behind."""
    made = namedtuple("RecipeState", (*method._fields, *names))  # type: ignore[attr-defined, misc]
    made.method = method  # type: ignore[attr-defined]
    return made


def _drop_moments(memory: Named) -> Named:
    """What is the method's of a client's memory."""
    return {name: v for name, v in memory.items() if not name.startswith(KEPT)}


def _name_moments(moments: Moments) -> Named:
    return {KEPT + name: v for name, v in moments._asdict().items() if isinstance(v, Tensor)}
