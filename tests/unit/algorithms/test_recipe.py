"""Recipes: every local optimiser, server optimiser and schedule with every method, against torch.optim and by hand."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import fedveca
from fedveca.algorithms import (
    Algorithm,
    Corrected,
    FedAvg,
    FedNova,
    FedProx,
    FedVeca,
    FedVecaM,
    Order,
    Report,
    Scaffold,
)
from fedveca.algorithms.contrib.fedadam import FedAdam
from fedveca.algorithms.optimizers import SERVER_OPTIMIZERS, LocalOptimizer, Schedule, ServerOptimizer
from fedveca.algorithms.recipe import Recipe
from fedveca.algorithms.registry import methods
from fedveca.cohorts.debug import DebugCohort
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.errors import UserError
from fedveca.runs.build import make_method
from fedveca.runs.experiment import Experiment
from fedveca.runs.federate import federate
from fedveca.tasks.datasets.dataset import load
from fedveca.tasks.models import model
from fedveca.tasks.partition import partition
from fedveca.testing import check_algorithm

LR = 0.05
METHODS: list[Algorithm] = [FedAvg(LR), FedProx(LR), FedNova(LR), Scaffold(LR), FedVeca(LR), Corrected(LR)]
METHODS += [FedVecaM(LR)]
OPTIMISERS = {
    "momentum": LocalOptimizer(momentum=0.9),
    "nesterov": LocalOptimizer(momentum=0.9, nesterov=True, weight_decay=1e-2),
    "adam": LocalOptimizer("adam", weight_decay=1e-2),
    "adamw": LocalOptimizer("adamw", weight_decay=1e-2),
    "kept": LocalOptimizer(momentum=0.5, keep=True),
    "clipped": LocalOptimizer(clip_norm=0.5, proximal=0.1),
}
TAU = torch.tensor([5, 2, 3, 7])
name_of: Callable[[Any], str] = lambda a: type(a).__name__  # noqa: E731


def train(algorithm: Algorithm, rounds: int = 3, name: str = "mlp", **options: Any) -> tuple[Tensor, list[Any]]:
    """w after some rounds of 4 unequal clients on digits, and the records."""
    data, problem = load("digits"), model(name, (1, 8, 8), 10)
    shares = partition("dirichlet", data.y, 10, 4, seed=1)
    kind = options.pop("kind", LocalCohort)
    cohort = kind(algorithm, problem, data.x, data.y, shares, batch=8, seed=5, **options)
    seen = list(federate(algorithm, cohort, algorithm.init(problem.init(), TAU), rounds))
    return seen[-1][0].w, [record for _, record in seen]


@pytest.mark.parametrize("algorithm", METHODS, ids=name_of)
def test_a_plain_recipe_has_the_bytes_of_the_method_alone(algorithm: Algorithm) -> None:
    alone, records = train(algorithm)
    for recipe in (
        Recipe(algorithm),
        Recipe(algorithm, LocalOptimizer(momentum=0.0), ServerOptimizer("sgd", 1.0), Schedule("constant", 3)),
    ):
        w, same = train(recipe)
        assert torch.equal(w, alone)
        assert [record["tau"] for record in same] == [record["tau"] for record in records]


def test_a_recipe_declares_what_its_method_declares() -> None:
    """All but what the recipe itself takes care of."""
    declared = {name for name, hint in Algorithm.__annotations__.items() if "ClassVar" in str(hint)}
    for entry in methods().values():
        algorithm = entry.algorithm(lr=LR)  # type: ignore[call-arg]
        for name in declared - {"needs_mean", "server_default"}:
            assert getattr(Recipe(algorithm), name) == getattr(algorithm, name), (entry.name, name)


@pytest.mark.parametrize("kind", OPTIMISERS)
@pytest.mark.parametrize("algorithm", METHODS, ids=name_of)
def test_every_optimiser_and_method_passes_the_checks_of_a_method(algorithm: Algorithm, kind: str) -> None:
    check_algorithm(Recipe(algorithm, OPTIMISERS[kind]))


@pytest.mark.parametrize("kind", SERVER_OPTIMIZERS)
@pytest.mark.parametrize("algorithm", [FedAvg(LR), Scaffold(LR), FedVeca(LR)], ids=name_of)
def test_every_server_optimiser_passes_the_checks_of_a_method(algorithm: Algorithm, kind: str) -> None:
    check_algorithm(Recipe(algorithm, server=ServerOptimizer(kind, 0.5)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPTIMISERS)
@pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param(FedNova(LR), marks=pytest.mark.slow),
        pytest.param(Scaffold(LR), marks=pytest.mark.slow),
        FedVeca(LR),
    ],
    ids=name_of,
)
def test_chunks_threads_and_the_debug_engine_agree(algorithm: Algorithm, kind: str) -> None:
    recipe = Recipe(algorithm, OPTIMISERS[kind], ServerOptimizer("adam", 0.05), Schedule("cosine", 3))
    together, tau = train(recipe, lanes=4)
    for options in ({"lanes": 1, "threads": 2}, {"kind": DebugCohort}):
        w, same = train(recipe, **options)
        assert [record["tau"] for record in same] == [record["tau"] for record in tau]
        off = float((w - together).norm() / together.norm())  # Adam's unit steps make much of a gradient near 0
        assert off < (1e-3 if "adam" in kind else 2e-5)


@pytest.mark.parametrize("kind", OPTIMISERS)
@pytest.mark.parametrize("algorithm", METHODS, ids=name_of)
def test_what_a_client_carries_keeps_its_form(algorithm: Algorithm, kind: str) -> None:
    """A captured CUDA graph copies it from step to step."""
    recipe, order = Recipe(algorithm, OPTIMISERS[kind]), Order(torch.ones(1, 3), {"c": torch.zeros(3)})
    s = recipe.start(order, {n: v[None] for n, v in recipe.memory(torch.ones(3)).items()}, torch.ones(1, 3))
    after = recipe.step(order, s, order.w, torch.ones(1, 3))[1]
    assert [v.shape for v in tree_leaves(s)] == [v.shape for v in tree_leaves(after)]


# the clients' optimisers, as torch has them


def torch_optimizer(kind: str, w: Tensor) -> torch.optim.Optimizer:
    o = OPTIMISERS[kind]
    if o.kind == "sgd":
        return torch.optim.SGD([w], LR, o.momentum, weight_decay=o.weight_decay, nesterov=o.nesterov)
    made = torch.optim.Adam if o.kind == "adam" else torch.optim.AdamW
    return made([w], LR, (o.beta1, o.beta2), o.eps, weight_decay=o.weight_decay)


def gradient(w: Tensor) -> Tensor:
    """Of a function that is not a square, so that no two steps are alike."""
    return torch.tanh(w - torch.arange(4.0)) + 0.3 * w**3


@pytest.mark.parametrize("kind", ["momentum", "nesterov", "adam", "adamw"])
def test_local_steps_are_those_of_torch_optim(kind: str) -> None:
    recipe, start = Recipe(FedAvg(LR), OPTIMISERS[kind]), torch.tensor([0.5, -1.0, 2.0, 0.1])
    theirs = start.clone().requires_grad_()
    optimizer, order = torch_optimizer(kind, theirs), Order(start, {})
    s, w = recipe.start(order, recipe.memory(start), torch.full_like(start, torch.nan)), start
    for _ in range(6):
        w, s = recipe.step(order, s, w, gradient(w))
        theirs.grad = gradient(theirs.detach())
        optimizer.step()
        assert torch.allclose(w, theirs.detach(), atol=1e-6), kind


def test_clip_norm_is_that_of_torch() -> None:
    w = torch.nn.Parameter(torch.zeros(4))
    w.grad = torch.tensor([3.0, 0.0, 4.0, 0.0])
    torch.nn.utils.clip_grad_norm_([w], 0.5)
    assert torch.allclose(LocalOptimizer(clip_norm=0.5).clip(torch.tensor([3.0, 0.0, 4.0, 0.0])), w.grad)
    short = torch.tensor([0.1, 0.0, 0.2, 0.0])
    assert torch.equal(LocalOptimizer(clip_norm=0.5).clip(short), short)


def test_clipping_shortens_the_step_and_not_what_fedveca_sees() -> None:
    order, g = Order(torch.zeros(2), {}), torch.tensor([3.0, 4.0])
    recipe = Recipe(FedVeca(LR), LocalOptimizer(clip_norm=0.5))
    s = recipe.start(order, {}, torch.zeros(2))
    w, s = recipe.step(order, s, order.w, g)
    assert torch.allclose(w, -LR * g / 10, atol=1e-6)
    w, s = recipe.step(order, s, w, g)
    assert float(s.s.beta) == pytest.approx(5.0 / (LR * 0.5), rel=1e-5)  # |g0 - g| / |w_k - w_1|, g as it was


def test_the_proximal_term_pulls_towards_the_server_model() -> None:
    """FedAvg with proximal = mu is FedProx."""
    one, two = train(Recipe(FedAvg(LR), LocalOptimizer(proximal=0.3)))[0], train(FedProx(LR, mu=0.3))[0]
    assert torch.allclose(one, two, atol=1e-6)


def test_kept_moments_go_on_in_the_next_round() -> None:
    """Two rounds of one client, one step each, are two steps of torch's momentum; without keep they are not."""
    start = torch.tensor([0.5, -1.0, 2.0, 0.1])
    theirs = start.clone().requires_grad_()
    optimizer = torch.optim.SGD([theirs], LR, 0.9)
    for _ in range(2):
        theirs.grad = gradient(theirs.detach())
        optimizer.step()
    ends = {}
    for keep in (True, False):
        recipe = Recipe(FedAvg(LR), LocalOptimizer(momentum=0.9, keep=keep))
        state, memory = recipe.init(start, torch.ones(1, dtype=torch.int64)), recipe.memory(start)
        for _ in range(2):
            order = recipe.order(state)
            s = recipe.start(order, memory, torch.full_like(start, torch.nan))
            w, s = recipe.step(order, s, order.w, gradient(order.w))
            mean, _, memory = recipe.finish(order, s, w, torch.ones(1))
            each = {"tau": torch.ones(1, dtype=torch.float64)}
            state, _ = recipe.update(state, torch.tensor([0]), torch.ones(1).double(), Report(mean, each, 1.0))
        ends[keep] = state.w
    assert torch.allclose(ends[True], theirs.detach(), atol=1e-6)
    assert not torch.allclose(ends[False], theirs.detach(), atol=1e-3)


# FedNova's |a_i|_1


def response(optimizer: LocalOptimizer, tau: int) -> float:
    """|a|_1 by its definition: a_j is how far the model ends from w_k, over lr, for a gradient of 1 at step j alone."""
    total = 0.0
    for j in range(tau):
        recipe, order = Recipe(FedAvg(LR), optimizer), Order(torch.zeros(1), {})
        s, w = recipe.start(order, {}, torch.full((1,), torch.nan)), order.w
        for step in range(tau):
            w, s = recipe.step(order, s, w, torch.full((1,), float(step == j)))
        total += abs(float(w)) / LR
    return total


@pytest.mark.parametrize("tau", [1, 2, 5, 17])
@pytest.mark.parametrize(
    "optimizer",
    [
        LocalOptimizer(momentum=0.9),
        LocalOptimizer(momentum=0.9, nesterov=True),
        LocalOptimizer(proximal=2.0),
        LocalOptimizer(momentum=0.5, proximal=1.0),
        LocalOptimizer(),
    ],
    ids=["momentum", "nesterov", "proximal", "both", "plain"],
)
def test_the_norm_of_a_is_that_of_its_definition(optimizer: LocalOptimizer, tau: int) -> None:
    got = optimizer.lengths(torch.tensor([float(tau)], dtype=torch.float64), LR)
    assert float(got) == pytest.approx(response(optimizer, tau), rel=1e-5)


def test_the_norm_of_a_in_closed_form() -> None:
    """FedNova's paper: (tau - rho (1 - rho^tau)/(1 - rho))/(1 - rho), and (1 - (1 - lr mu)^tau)/(lr mu)."""
    tau = torch.tensor([1.0, 4.0, 25.0, 100_000.0], dtype=torch.float64)
    want = [(t - 0.9 * (1 - 0.9**t) / 0.1) / 0.1 for t in tau.tolist()]
    assert torch.allclose(LocalOptimizer(momentum=0.9).lengths(tau, LR), torch.tensor(want, dtype=torch.float64))
    want = [(1 - (1 - LR * 2) ** t) / (LR * 2) for t in tau.tolist()]
    assert torch.allclose(LocalOptimizer(proximal=2.0).lengths(tau, LR), torch.tensor(want, dtype=torch.float64))
    for same in (LocalOptimizer(), LocalOptimizer("adam"), LocalOptimizer(weight_decay=0.1, clip_norm=1.0)):
        assert torch.equal(same.lengths(tau, LR), tau)


def test_fednova_with_momentum_by_hand() -> None:
    """Two clients with constant gradients g_i: each G_i is g_i whatever its steps, and tau_k the mean |a_i|_1."""
    grads, tau = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[2.0], [6.0]])
    p = torch.tensor([0.25, 0.75], dtype=torch.float64)
    for algorithm in (FedNova(LR), FedVeca(LR)):
        recipe = Recipe(algorithm, LocalOptimizer(momentum=0.5))
        state = recipe.init(torch.zeros(2), torch.tensor([2, 6]))
        order, found = recipe.order(state), []
        for g, steps in zip(grads, (2, 6), strict=True):
            s, w = recipe.start(order, {}, g), order.w
            for _ in range(steps):
                w, s = recipe.step(order, s, w, g)
            found.append(recipe.finish(order, s, w, torch.tensor([float(steps)])))
        for g, (vectors, _, _) in zip(grads, found, strict=True):
            assert torch.allclose(vectors["G"], g, atol=1e-6)
        mean = {name: 0.25 * found[0][0][name] + 0.75 * found[1][0][name] for name in found[0][0]}
        each = {name: torch.cat([o[1][name] for o in found]) for name in found[0][1]} | {"tau": tau[:, 0].double()}
        after, _ = recipe.update(state, torch.arange(2), p, Report(mean, each, 1.0))
        lengths = [(t - 0.5 * (1 - 0.5**t) / 0.5) / 0.5 for t in (2, 6)]
        tau_k = 0.25 * lengths[0] + 0.75 * lengths[1]
        assert torch.allclose(after.w, -LR * tau_k * torch.tensor([0.25, 1.5]), atol=1e-6), name_of(algorithm)


# what methods see of the steps


@pytest.mark.parametrize("kind", ["momentum", "adam", "clipped"])
def test_scaffold_keeps_the_mean_of_its_gradients(kind: str) -> None:
    optimizer = dataclasses.replace(OPTIMISERS[kind], weight_decay=0.0, clip_norm=0.0)
    recipe, start = Recipe(Scaffold(LR), optimizer), torch.tensor([0.5, -1.0, 2.0, 0.1])
    order, memory = Order(start, {"c": torch.full((4,), 0.25)}), {"c": torch.tensor([0.1, 0.2, 0.3, 0.4])}
    s, w, seen = recipe.start(order, memory, torch.full_like(start, torch.nan)), start, []
    for _ in range(5):
        seen.append(gradient(w))
        w, s = recipe.step(order, s, w, seen[-1])
    vectors, _, kept = recipe.finish(order, s, w, torch.tensor([5.0]))
    assert torch.allclose(kept["c"], torch.stack(seen).mean(0), atol=1e-6), "c_i is not the mean gradient"
    assert torch.allclose(vectors["dc"], kept["c"] - memory["c"], atol=1e-6)
    assert torch.allclose(vectors["G"], (start - w) / LR, atol=1e-5), "G is not the client's movement"


@pytest.mark.parametrize("kind", ["momentum", "adam"])
@pytest.mark.parametrize("algorithm", [FedVeca(LR), Corrected(LR), FedVecaM(LR)], ids=name_of)
def test_fedveca_estimates_gradients_not_updates(algorithm: Algorithm, kind: str) -> None:
    """beta = max |g0 - g| / |w_k - w|, spread = max |sum g|^2 / (lambda + 1), whatever the optimiser makes of g."""
    optimizer = dataclasses.replace(OPTIMISERS[kind], weight_decay=0.0)
    recipe, start = Recipe(algorithm, optimizer), torch.tensor([0.5, -1.0, 2.0, 0.1])
    order, g0 = Order(start, {"c": torch.zeros(4)}), gradient(start)
    s, w = recipe.start(order, recipe.memory(start), g0), start
    total, beta, spread = torch.zeros(4), 0.0, 0.0
    for lam in range(6):
        g = gradient(w)
        total = total + g
        beta = max(beta, float((g0 - g).norm() / (start - w).norm())) if lam else 0.0
        w, s = recipe.step(order, s, w, g)
        spread = max(spread, float(total.norm() ** 2) / (lam + 1)) if lam else 0.0
    vectors, numbers, memory = recipe.finish(order, s, w, torch.tensor([6.0]))
    assert float(numbers["beta"]) == pytest.approx(beta, rel=1e-4)
    assert float(numbers["spread"]) == pytest.approx(spread, rel=1e-4)
    if isinstance(algorithm, (Corrected, FedVecaM)):
        assert torch.allclose(vectors["mean"], total / 6, atol=1e-6)
        assert torch.allclose(memory["c"], total / 6, atol=1e-6)


@pytest.mark.parametrize("algorithm", [Corrected(LR), FedVecaM(LR)], ids=name_of)
def test_c_is_learnt_from_the_mean_gradients(algorithm: Algorithm) -> None:
    recipe = Recipe(algorithm, LocalOptimizer("adam"))
    state, p = recipe.init(torch.zeros(2), torch.tensor([3])), torch.ones(1, dtype=torch.float64)
    mean = {"G": torch.tensor([9.0, 9.0]), "grad": torch.zeros(2), "mean": torch.tensor([1.0, 2.0])}
    each = {name: torch.ones(1, dtype=torch.float64) for name in ("tau", "beta", "spread")}
    after, _ = recipe.update(state, torch.tensor([0]), p, Report(mean, each, 1.0))
    assert torch.equal(after.c, torch.tensor([1.0, 2.0]))


# the server's optimisers


def test_server_optimisers_by_hand() -> None:
    """Reddi et al. 2021, Algorithm 2, one number at a time over three rounds."""
    moves = [torch.tensor([0.3, -0.2]), torch.tensor([-0.1, 0.4]), torch.tensor([0.2, 0.2])]
    for kind in SERVER_OPTIMIZERS:
        optimizer = ServerOptimizer(kind, lr=0.5, momentum=0.9, beta2=0.95, eps=0.01)
        w = torch.tensor([1.0, -1.0])
        moments = optimizer.start(w)
        want, m, v = [1.0, -1.0], [0.0, 0.0], [1e-4, 1e-4]
        for move in moves:
            w, moments = optimizer.step(w, move, moments)
            for j, d in enumerate(move.tolist()):
                if kind == "sgd":
                    want[j] += 0.5 * d
                    continue
                if kind == "momentum":
                    m[j] = 0.9 * m[j] + d
                    want[j] += 0.5 * m[j]
                    continue
                m[j] = 0.9 * m[j] + 0.1 * d
                if kind == "adam":
                    v[j] = 0.95 * v[j] + 0.05 * d * d
                elif kind == "yogi":
                    v[j] -= 0.05 * d * d * math.copysign(1, v[j] - d * d)
                else:
                    v[j] += d * d
                want[j] += 0.5 * m[j] / (math.sqrt(v[j]) + 0.01)
            assert torch.allclose(w, torch.tensor(want), atol=1e-6), kind


def test_the_server_takes_the_step_of_any_method() -> None:
    """One round: w_0 + 2 (w_1 - w_0) with server_lr = 2, for a method whose state has more than w."""
    start = model("mlp", (1, 8, 8), 10).init()
    for algorithm in (FedAvg(LR), FedVeca(LR), Scaffold(LR)):
        plain, twice = train(algorithm, 1)[0], train(Recipe(algorithm, server=ServerOptimizer("sgd", 2.0)), 1)[0]
        assert torch.allclose(twice - start, 2 * (plain - start), atol=1e-6), name_of(algorithm)


@pytest.mark.parametrize(("name", "kind", "lr"), [
    ("fedavgm", "momentum", 1.0), ("fedadam", "adam", 0.01), ("fedyogi", "yogi", 0.01), ("fedadagrad", "adagrad", 0.1)
])  # fmt: skip
def test_methods_of_the_server_are_fedavg_with_an_optimiser(name: str, kind: str, lr: float) -> None:
    named = make_method(Experiment(method=name, lr=LR))
    written = make_method(Experiment(lr=LR, server_optimizer=kind, server_lr=lr, method="fedavg"))  # type: ignore[arg-type]
    assert isinstance(named, Recipe)
    assert isinstance(written, Recipe)
    assert (named.server, name_of(written.algorithm)) == (written.server, "FedAvg")
    assert torch.equal(train(named)[0], train(written)[0])
    other = make_method(Experiment(method=name, lr=LR, server_optimizer="sgd"))
    assert isinstance(other, FedAvg), "the settings come first"
    assert make_method(Experiment(method=name, lr=LR, server_lr=0.25)).server.lr == 0.25  # type: ignore[attr-defined]
    assert methods()[name].algorithm.server_default == (kind, lr)


# schedules


def test_schedules_by_hand() -> None:
    def rates(rounds: int, **options: Any) -> list[float]:
        schedule = Schedule(rounds=rounds, **options)
        return [round(schedule.factor(k), 6) for k in range(rounds)]

    assert rates(4) == [1, 1, 1, 1]
    assert rates(4, kind="cosine") == [1.0, 0.853553, 0.5, 0.146447]
    assert rates(4, kind="cosine", final=0.2) == [1.0, 0.882843, 0.6, 0.317157]
    assert rates(5, kind="step", every=2, decay=0.5) == [1, 1, 0.5, 0.5, 0.25]
    assert rates(4, warmup=3) == [0.25, 0.5, 0.75, 1]
    assert rates(5, warmup=1, kind="cosine") == [0.5, 1.0, 0.853553, 0.5, 0.146447]
    assert Schedule("cosine", 4).factor(4) == Schedule("cosine", 4).factor(3)  # the closing evaluation


def test_the_rate_of_the_round_is_used_and_recorded() -> None:
    """Each round's step is that of the method at its own rate; A, L and the premise use it too."""
    recipe = Recipe(FedVeca(LR), schedule=Schedule("step", 3, every=1, decay=0.5))
    w, records = train(recipe)
    assert [record["lr"] for record in records] == pytest.approx([LR, LR / 2, LR / 4])
    data, problem = load("digits"), model("mlp", (1, 8, 8), 10)
    shares = partition("dirichlet", data.y, 10, 4, seed=1)
    state = FedVeca(LR).init(problem.init(), TAU)
    for k in range(3):
        now = FedVeca(LR / 2**k)
        cohort = LocalCohort(now, problem, data.x, data.y, shares, batch=8, seed=5)
        ((state, record),) = federate(now, cohort, state, k + 1, first=k)
        assert "lr" not in record
        for name in ("tau", "A", "L", "premise"):
            assert record.get(name) == records[k].get(name), name
    assert torch.equal(state.w, w)


def test_a_rate_in_a_tensor_gives_the_same_steps() -> None:
    """As a captured CUDA graph has it."""
    order, g = Order(torch.tensor([1.0, 2.0]), {"c": torch.zeros(2)}), torch.tensor([0.5, -1.0])
    for algorithm in METHODS:
        for optimizer in (LocalOptimizer(), *OPTIMISERS.values()):
            recipe, memory = Recipe(algorithm, optimizer), Recipe(algorithm, optimizer).memory(order.w)
            ends = []
            for a in (recipe, recipe.with_rate(torch.tensor(LR))):
                s, w = a.start(order, memory, g), order.w
                for _ in range(3):
                    w, s = a.step(order, s, w, g + w)
                ends.append(torch.cat([w, *(v.flatten() for v in tree_leaves(s))]))
            assert torch.allclose(ends[0], ends[1], rtol=1e-5, atol=1e-6), name_of(algorithm)


# runs


@pytest.mark.parametrize("settings", [
    pytest.param({"momentum": 0.9, "optimizer_state": "keep", "method": "fednova"}, marks=pytest.mark.slow),
    {"optimizer": "adamw", "optimizer_state": "keep", "lr": 0.01, "weight_decay": 0.01, "method": "scaffold"},
    {"method": "fedadam", "lr_schedule": "cosine", "lr_warmup": 2, "participation": 0.6},
    {"method": "fedveca", "momentum": 0.5, "server_optimizer": "yogi", "server_lr": 0.05, "lr_schedule": "step"},
], ids=lambda s: s["method"])  # fmt: skip
def test_a_resumed_run_has_the_same_bytes(tmp_path: Path, settings: dict[str, Any]) -> None:
    e = Experiment(rounds=6, batch=16, checkpoint_every=2, **{"lr": 0.05} | settings)
    whole = fedveca.run(e, tmp_path / "whole", device="cpu")
    calls = iter([False, False, True])
    with pytest.raises(fedveca.Stopped):
        fedveca.run(e, tmp_path / "stopped", device="cpu", stop=lambda: next(calls))
    resumed = fedveca.resume(tmp_path / "stopped", device="cpu")
    drop = ("seconds",)
    rounds = [[{k: v for k, v in r.items() if k not in drop} for r in run.rounds] for run in (whole, resumed)]
    assert rounds[0] == rounds[1]
    assert whole.model.keys() == resumed.model.keys()
    for name, v in whole.model.items():
        assert torch.equal(v, resumed.model[name]), name


def test_more_rounds_would_change_a_cosine(tmp_path: Path) -> None:
    fedveca.run(Experiment(rounds=2, batch=16, lr_schedule="cosine"), tmp_path / "run", device="cpu")
    with pytest.raises(UserError, match="rounds=4 would change the learning rate of every round: lr_schedule=cosine"):
        fedveca.resume(tmp_path / "run", rounds=4, device="cpu")


@pytest.mark.parametrize(("settings", "sentence"), [
    ({"nesterov": "on"}, "nesterov=on needs a momentum above 0"),
    ({"optimizer": "adam", "momentum": 0.5}, "momentum=0.5 is of optimizer=sgd; optimizer=adam has beta1"),
    ({"optimizer": "adamw", "nesterov": "on"}, "nesterov=on is of optimizer=sgd"),
    ({"optimizer_state": "keep"}, "optimizer_state=keep needs something to keep"),
    ({"lr_warmup": 80, "rounds": 80}, "lr_warmup=80 is out of range; allowed: fewer than the 80 rounds"),
    ({"momentum": 1.0}, r"momentum=1.0 is out of range; allowed: \[0, 0.999999\]"),
    ({"server_optimizer": "lamb"}, "server_optimizer=lamb is not known"),
    ({"lr_decay": 0.0}, "lr_decay=0.0 is out of range"),
])  # fmt: skip
def test_what_does_not_go_together_is_rejected(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Experiment(**settings)


def test_a_method_that_takes_its_steps_itself_goes_with_plain_sgd_only() -> None:
    @dataclasses.dataclass(frozen=True)
    class Halved(FedAvg):
        def step(self, order: Order, s: Any, w: Tensor, g: Tensor) -> tuple[Tensor, Any]:
            return w - 0.5 * self.lr * g, s

    with pytest.raises(UserError, match=r"Halved defines step.*define direction and track"):
        fedveca.run(Experiment(rounds=2, momentum=0.9), method=Halved(LR), device="cpu")
    assert fedveca.run(Experiment(rounds=2), method=Halved(LR), device="cpu").summary["rounds"] == 2


def test_an_object_of_a_server_method_has_its_optimiser() -> None:
    named = fedveca.run(Experiment(method="fedadam", rounds=3, lr=LR), device="cpu")
    given = fedveca.run(Experiment(rounds=3, lr=LR), method=FedAdam(LR), device="cpu")
    assert all(torch.equal(v, given.model[name]) for name, v in named.model.items())
