"""What every method must satisfy, whatever it computes."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from fedveca.algorithms.contract import Algorithm, Order, Outputs, start_client
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.runs.federate import federate
from fedveca.tasks.losses import cross_entropy
from fedveca.tasks.module_problem import ModuleProblem
from fedveca.tasks.partition import from_lists
from fedveca.tasks.problem import Problem
from fedveca.tasks.svm import SquaredSvm
from fedveca.testing.played_round import (
    IDS,
    N,
    P,
    all_steps,
    call,
    call_start,
    close,
    fit,
    one_way,
    play_round,
    raise_unless,
    same,
    type_name,
    vector,
    walk,
)

RECORDED = (
    "round",
    "ids",
    "left_out",
    "candidates",
    "candidate_loss",
    "lr",
    "faults",
    "tau",
    "tau_k",
    "accepted",
    "train_loss",
    "seconds",
    "bytes_up",
    "bytes_down",
)
TAKEN = ("tau", "loss", "after", "well")  # numbers that the clients report without the method


def check_form(a: Algorithm) -> None:
    """A frozen dataclass with lr, whose server starts from the w and tau it is given."""
    raise_unless(not isinstance(a, type), a, "is a class; give an object of it")
    raise_unless(isinstance(a, Algorithm), a, "is not a subclass of fedveca.algorithms.Algorithm")
    frozen = dataclasses.is_dataclass(a) and type(a).__dataclass_params__.frozen
    raise_unless(frozen, a, "is not a frozen dataclass: hyperparameters may not change while it runs")
    raise_unless(isinstance(a.lr, float) and a.lr > 0, a, f"has lr={a.lr!r}; it is a number above 0")
    a = fit(a)
    w, tau = vector(0), all_steps()
    state = call(a, "init", w, tau)
    raise_unless(
        hasattr(state, "_asdict"), a, f"init gives {type(state).__name__}; state is a NamedTuple with w and tau"
    )
    for name, v in state._asdict().items():
        raise_unless(
            isinstance(v, Tensor), a, f"state field {name} is {type(v).__name__}; it must be a tensor, to be stored"
        )
    raise_unless(torch.equal(state.w, w), a, "does not start from the w given to init")
    raise_unless(torch.equal(state.tau, tau), a, "derives tau: init does not keep the numbers of steps it is given")
    order = call(a, "order", state)
    raise_unless(
        isinstance(order, Order) and torch.equal(order.w, state.w), a, "order does not send state.w to the clients"
    )
    for name, v in order.aux.items():
        raise_unless(
            v.shape == (P,), a, f"order sends {name} of shape {list(v.shape)}; what goes along is a vector [P]"
        )


def check_clients(a: Algorithm) -> None:
    """Shapes of what a client keeps and sends; g0 is used only where it is asked for."""
    a = fit(a)
    order = a.order(a.init(vector(0), all_steps()))
    memory, nothing = call(a, "memory", order.w), torch.full((P,), torch.nan)
    for name, v in memory.items():
        raise_unless(
            v.dim() == 1 and len(v) > 0,
            a,
            f"memory gives {name} of shape {list(v.shape)}; it is a vector of any length",
        )
    w = call(a, "begin", order, memory)
    raise_unless(
        w.shape == (P,) and bool(torch.isfinite(w).all()),
        a,
        f"begin gives {list(w.shape)} for one client; it is a model [..., P], all of it finite",
    )
    s = call_start(a, order, memory, vector(1) if a.needs_gradient else nothing)
    w, s = call(a, "step", order, s, w, vector(2))
    out = call(a, "finish", order, s, w, torch.ones(1))
    raise_unless(isinstance(out, tuple) and len(out) == 3, a, "finish does not give (vectors, numbers, memory)")
    vectors, numbers, kept = out
    raise_unless(bool(vectors), a, "finish gives no vector: the server would learn nothing")
    for name, v in vectors.items():
        raise_unless(
            v.dim() == 1 and len(v) > 0,
            a,
            f"finish gives the vector {name} of shape {list(v.shape)}, not [P] or shorter",
        )
    for name, v in numbers.items():
        raise_unless(
            v.shape == (1,), a, f"finish gives the number {name} of shape {list(v.shape)}, not [1] (keepdim=True)"
        )
        raise_unless(name not in TAKEN, a, f"derives {name}: the clients report it themselves, finish may not")
    agree = {name: v.shape for name, v in kept.items()} == {name: v.shape for name, v in memory.items()}
    raise_unless(
        agree, a, f"finish keeps {sorted(kept)} in memory, a new client {sorted(memory)}: names and shapes must agree"
    )
    bad = [name for name, v in {**vectors, **numbers, **kept}.items() if not bool(torch.isfinite(v).all())]
    why = "" if a.needs_gradient else " without needs_gradient = True g0 is not computed, it is NaN"
    raise_unless(not bad, a, f"gives {', '.join(bad)} that is not finite;{why}")


def check_server(a: Algorithm) -> None:
    """The state keeps its form from round to round; float32 stays float32."""
    a = fit(a)
    played = play_round(a, 1)
    out = call(a, "update", played.state, IDS, played.p, played.report)
    raise_unless(isinstance(out, tuple) and len(out) == 2, a, "update does not give (state, what to record)")
    want = out[0]
    raise_unless(
        want.w.dtype == torch.float32 and want.w.shape == (P,), a, f"makes w {want.w.dtype} {list(want.w.shape)}"
    )
    raise_unless(type(want) is type(played.state), a, "update gives another kind of state than init")
    shape, kind = tuple(want.tau.shape), want.tau.dtype
    raise_unless(
        shape == (N,) and kind == torch.int64, a, f"gives tau {list(shape)} {kind}; it is [N] int64 for all clients"
    )
    for (name, v), before in zip(want._asdict().items(), played.state, strict=True):
        raise_unless(
            isinstance(v, Tensor), a, f"state field {name} is {type(v).__name__}; it must be a tensor, to be stored"
        )
        was, now = (f"{t.dtype} {list(t.shape)}" for t in (before, v))
        raise_unless(was == now, a, f"state field {name} turns from {was} to {now}")


def check_last_axis(a: Algorithm) -> None:
    """Many clients at once are each of them alone."""
    a = fit(a)
    order = a.order(play_round(a, 1).state)
    grads = torch.stack([vector(10 + i) for i in range(3)])
    alone = [walk(a, order, a.memory(order.w), grads[i], 3) for i in range(3)]
    memory = {name: v.expand(3, -1) for name, v in a.memory(order.w).items()}
    try:
        together = walk(a, order, memory, grads, 3, check_s=True)
    except (RuntimeError, IndexError, ValueError) as error:
        raise AssertionError(
            f"{type_name(a)} cannot take many clients at once: {error}; "
            "work along the last axis, never branch on values"
        ) from error
    for what, many, *each in zip(("vectors", "numbers", "memory"), together, *alone, strict=True):
        for name in each[0]:
            for i, one in enumerate(each):
                raise_unless(
                    many[name].shape == (3, *one[name].shape) and close(many[name][i], one[name]),
                    a,
                    f"mixes clients: {name} of the {what} differs when clients go together; "
                    "reduce with dim=-1, keepdim=True",
                )


def check_purity(a: Algorithm) -> None:
    """No call changes what it is given or the object itself, and the same call gives the same."""
    a = fit(a)
    before = repr(vars(a))
    played = play_round(a, 2)
    order = a.order(played.state)
    call(a, "update", played.state, IDS, played.p, played.report)
    s = call_start(a, order, played.memory[0], vector(1))
    w, s = call(a, "step", order, s, call(a, "begin", order, played.memory[0]).clone(), vector(2))
    w, s = call(a, "step", order, s, w, vector(3))
    call(a, "finish", order, s, w, torch.full((1,), 2.0))
    raise_unless(
        repr(vars(a)) == before, a, "keeps something in itself between calls; all that changes is passed in and out"
    )


def check_weights(a: Algorithm) -> None:
    """p counts, the number and the order of the clients do not."""
    a = fit(a)
    played = play_round(a, 2)
    want, recorded = a.update(played.state, IDS, played.p, played.report)
    turned = torch.tensor([2, 0, 1])
    each = {name: v[turned] for name, v in played.report.each.items()}
    got, _ = a.update(played.state, IDS[turned], played.p[turned], played.report._replace(each=each))
    raise_unless(same(got, want), a, "depends on the order in which clients are listed")
    # the first client as two, each with half of its rows and all of its numbers: everything stays
    twice = torch.tensor([0, 0, 1, 2])
    each = {name: v[twice] for name, v in played.report.each.items()}
    half = played.p[twice] * torch.tensor([0.5, 0.5, 1, 1], dtype=torch.float64)
    ids = torch.tensor([1, 5, 3, 4])
    state = played.state._replace(tau=played.state.tau.index_copy(0, torch.tensor([5]), played.state.tau[1:2]))
    split, _ = a.update(state, ids, half, played.report._replace(each=each))
    raise_unless(
        close(split.w, want.w),
        a,
        "forgets p: a client split in two halves moves the model; numbers of clients are averaged as p @ numbers",
    )
    for name, v in recorded.items():
        raise_unless(name not in RECORDED and not name.startswith("test_"), a, f"records {name}, a name that is taken")
        raise_unless(v.dim() == 0 or v.shape == IDS.shape, a, f"records {name} of shape {list(v.shape)}, not [] or [n]")


def check_steps(a: Algorithm) -> None:
    """The server's tau is what is taken, reported and used; an absent client keeps its own."""
    a = fit(a)
    played = play_round(a, 2)
    after, _ = a.update(played.state, IDS, played.p, played.report)
    absent = ~torch.isin(torch.arange(N), IDS)
    kept = torch.equal(after.tau[absent], played.state.tau[absent])
    raise_unless(kept, a, "changes tau of clients that did not answer; set tau[ids] alone")
    raise_unless(bool((after.tau >= 1).all()), a, f"gives tau {after.tau.tolist()}; every client takes at least 1 step")
    other = played.state._replace(tau=played.state.tau + 7)
    moved, _ = a.update(other, IDS, played.p, played.report)
    raise_unless(
        close(moved.w, after.w), a, 'derives tau from the state; the steps that were taken are report.each["tau"]'
    )
    short, long = (one_way(a, tau) for tau in (2, 6))
    raise_unless(
        short is None or long is None or long <= 1.01 * short,
        a,
        "derives tau: a client that ends at the same model moves the server further when it was given more steps; "
        "divide by the tau that finish is given",
    )


def check_storage(a: Algorithm) -> None:
    """The state goes to disk and back to the same bits."""
    a = fit(a)
    played = play_round(a, 2)
    want, _ = a.update(played.state, IDS, played.p, played.report)
    disk = load(save({name: v.contiguous().clone() for name, v in played.state._asdict().items()}))
    got, _ = a.update(played.state._replace(**disk), IDS, played.p, played.report)
    raise_unless(same(got, want, exact=True), a, "computes otherwise after its state was stored and read back")


def check_federation(a: Algorithm) -> None:
    """It runs: clients of unequal steps in one batch, two of six in a round, with their memory."""
    x, y = torch.stack([vector(i) for i in range(24)]), torch.arange(24) % 2
    problem: Problem = ModuleProblem(nn.Linear(P, 2)) if a.has_loss else SquaredSvm(P)
    if a.needs_layout:
        layers = {"body": nn.Linear(P, 3), "head": nn.Linear(3, 2)}
        problem = ModuleProblem(nn.Sequential(OrderedDict[str, nn.Module](layers)))
    a, first = a.with_layout(problem.layout), torch.full((problem.size,), 0.1 if a.needs_layout else 0.0)
    cohort = LocalCohort(a, problem, x, y, from_lists([range(i, 24, N) for i in range(N)], 24), batch=3)
    state = a.init(first, all_steps())
    for k, (after, trace) in enumerate(federate(a, cohort, state, 4, participation=0.5)):
        raise_unless(
            len(trace["left_out"]) == 0, a, f"gives numbers that are not finite in round {k} of a small federation"
        )
        state = after
    raise_unless(not torch.equal(state.w, first), a, "does not move the model in four rounds")


def check_loss_form(a: Algorithm) -> None:
    """A method's own loss gives one number per row, and can be derived."""
    if not a.has_loss:
        return
    a = fit(a)
    order = a.order(a.init(vector(0), all_steps()))
    models = call(a, "models", order, start_client(a, order, a.memory(order.w), vector(1), torch.ones(1)))
    for name, v in models.items():
        raise_unless(v.shape[-1:] == (P,), a, f"models gives {name} of shape {list(v.shape)}; it is a model [..., P]")

    def outputs(i: int) -> Outputs:
        scores = torch.stack([vector(i + j) for j in range(3)])
        return Outputs(scores.requires_grad_(i == 0), scores)

    y, counts, others = torch.arange(3), torch.arange(5.0), {name: outputs(10 + i) for i, name in enumerate(models)}
    out = outputs(0)
    loss = call(a, "loss", cross_entropy, out, y, counts, others)
    raise_unless(loss.shape == (3,), a, f"loss gives {list(loss.shape)} for 3 rows; it is one number per row, [B]")
    (slope,) = torch.autograd.grad(loss.sum(), out.scores)
    raise_unless(bool(torch.isfinite(slope).all()), a, "loss has a gradient that is not finite")


def check_choice(a: Algorithm) -> None:
    """A method that chooses gives so many clients as it is asked for, each once, and the same for the same draws."""
    if not a.chooses:
        return
    state, p = a.init(vector(0), all_steps()), torch.arange(1.0, N + 1).double() / sum(range(N + 1))
    for k in range(3):
        u = torch.rand(N, generator=torch.Generator().manual_seed(k), dtype=torch.float64).clamp(min=1e-9)
        losses = torch.rand(N, generator=torch.Generator().manual_seed(9 - k), dtype=torch.float64)
        for m in (1, 2, N):
            ids = call(a, "choose", state, p, u, m, lambda who, losses=losses: losses[who])
            good = isinstance(ids, Tensor) and ids.dtype == torch.int64 and ids.shape == (m,)
            good = good and len(set(ids.tolist())) == m and bool(((ids >= 0) & (ids < N)).all())
            said = ids.tolist() if isinstance(ids, Tensor) else ids
            raise_unless(good, a, f"choose gives {said}; it gives {m} different clients of 0 to {N - 1}, int64")


CHECKS: tuple[Callable[[Algorithm], None], ...] = (
    check_form,
    check_clients,
    check_server,
    check_last_axis,
    check_purity,
    check_weights,
    check_steps,
    check_storage,
    check_loss_form,
    check_choice,
    check_federation,
)
