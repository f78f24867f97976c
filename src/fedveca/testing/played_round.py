"""Rounds played by hand with a method, and the questions that checks ask of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from fedveca.algorithms.contract import Algorithm, Named, Order, Report, start_client
from fedveca.algorithms.layout import Layout

P, N = 5, 6  # weights of the model, clients of the federation
IDS, TAU = torch.tensor([1, 3, 4]), torch.tensor([4, 2, 3])  # who answers of six, and in how many steps
WEIGHT = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
LAYOUT = Layout({"body.weight": slice(0, 2), "body.bias": slice(2, 3), "head.weight": slice(3, P)}, ("head.weight",))


class PlayedRound(NamedTuple):
    """One round as the server sees it."""

    state: Any
    p: Tensor
    report: Report
    memory: list[Named]


def fit(a: Algorithm) -> Algorithm:
    """The method on the small model of the checks."""
    return a.with_layout(LAYOUT)


def play_round(a: Algorithm, rounds: int) -> PlayedRound:
    """`rounds` rounds of three of the six clients, the last one not yet taken in by the server."""
    state, memory = a.init(vector(0), all_steps()), [a.memory(vector(0)) for _ in IDS]
    state = state._replace(tau=state.tau.index_copy(0, IDS, TAU))
    for k in range(rounds):
        order = a.order(state)
        out = [walk(a, order, memory[i], vector(20 * k + i), int(TAU[i])) for i in range(len(IDS))]
        memory = [o[2] for o in out]
        mean = {name: sum(float(p) * o[0][name] for p, o in zip(WEIGHT, out, strict=True)) for name in out[0][0]}
        each = {name: torch.cat([o[1][name] for o in out]).double() for name in out[0][1]}
        report = Report(mean, each | {"tau": TAU.double(), "loss": WEIGHT + 1}, 0.5)  # type: ignore[arg-type]
        if k + 1 < rounds:
            state = a.update(state, IDS, WEIGHT, report)[0]
            state = state._replace(tau=state.tau.index_copy(0, IDS, TAU))
    return PlayedRound(state, WEIGHT, report, memory)


def walk(
    a: Algorithm, order: Order, memory: Named, centre: Tensor, tau: int, check_s: bool = False
) -> tuple[Named, Named, Named]:
    """tau steps on |w - centre|^2 / 2 from where the method begins, for one client [P] or many [n, P]."""
    w = a.begin(order, memory).expand_as(centre)
    g0 = w - centre if a.needs_gradient else torch.full_like(centre, torch.nan)
    s = start_client(a, order, memory, g0, (w - centre).square().sum(-1, keepdim=True) / 2)
    for _ in range(tau):
        w, s = a.step(order, s, w, w - centre)
    if check_s:
        for leaf in tree_flatten(s)[0]:
            good = isinstance(leaf, Tensor) and leaf.dim() > 1 and len(leaf) == len(centre)
            what = f"{list(leaf.shape)}" if isinstance(leaf, Tensor) else type(leaf).__name__
            raise_unless(good, a, f"carries {what} through its steps; all of s is tensors [..., P] or [..., 1]")
    if a.needs_gradient_after:
        s = a.arrive(order, s, w, (w - centre).square().sum(-1, keepdim=True) / 2, w - centre)
    return a.finish(order, s, w, torch.full((*centre.shape[:-1], 1), float(tau)))


def one_way(a: Algorithm, tau: int) -> float | None:
    """How far the server moves for one client that ends at the same model after any number of steps; None if unknown.

    The client's last gradients are chosen so that it stays where it is.
    """
    state = a.init(torch.zeros(P), torch.full((1,), tau))
    order, target = a.order(state), torch.ones(P)
    memory = a.memory(order.w)
    s, w = start_client(a, order, memory, torch.ones(P), torch.ones(1)), a.begin(order, memory)
    for _ in range(tau):
        still, _ = a.step(order, s, w, torch.zeros(P))
        w, s = a.step(order, s, w, (still - target) / a.lr)
        if not close(w, target):
            return None  # a step that is not along -lr g
    mean, each, _ = a.finish(order, s, w, torch.full((1,), float(tau)))
    each = {name: v.double() for name, v in each.items()} | {"tau": torch.tensor([float(tau)]).double()}
    report = Report(mean, each, 1.0)
    after, _ = a.update(state, torch.tensor([0]), torch.ones(1, dtype=torch.float64), report)
    return float((after.w - state.w).norm())


def call_start(a: Algorithm, order: Order, memory: Named, g0: Tensor) -> object:
    """`start` at a loss of 1, as `call` has it."""
    return call(a, "start", order, memory, g0, **({"loss": torch.ones(1)} if a.needs_loss else {}))


def call(a: Algorithm, name: str, *arguments: Any, **named: Tensor) -> Any:
    """One call of the contract, twice: what goes in must stay, what comes out must be the same."""
    all_given = (arguments, named)
    before = tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, all_given)
    out = getattr(a, name)(*arguments, **named)
    for given, was in zip(tree_flatten(all_given)[0], tree_flatten(before)[0], strict=True):
        if isinstance(given, Tensor):
            alike = given.shape == was.shape and torch.equal(torch.nan_to_num(given), torch.nan_to_num(was))
            raise_unless(alike, a, f"mutates its input: {name} changes a tensor that it was given; make a new one")
    again = getattr(a, name)(*arguments, **named)
    for one, two in zip(tree_flatten(out)[0], tree_flatten(again)[0], strict=True):
        if isinstance(one, Tensor):
            alike = torch.equal(torch.nan_to_num(one), torch.nan_to_num(two))
            raise_unless(alike, a, f"is not deterministic: {name} gives another result for the same input")
    return out


def same(one: Any, two: Any, exact: bool = False) -> bool:
    compare = torch.equal if exact else close
    return all(compare(torch.nan_to_num(x), torch.nan_to_num(y)) for x, y in zip(one, two, strict=True))


def close(one: Tensor, two: Tensor) -> bool:
    return torch.allclose(one.double(), two.double(), rtol=1e-4, atol=1e-5)


def vector(i: int) -> Tensor:
    return torch.randn(P, generator=torch.Generator().manual_seed(i))


def all_steps() -> Tensor:
    return torch.arange(3, 3 + N)


def raise_unless(good: bool, a: Any, fault: str) -> None:
    if not good:
        raise AssertionError(f"{type_name(a)} {fault}")


def type_name(a: Any) -> str:
    return a.__name__ if isinstance(a, type) else type(a).__name__
