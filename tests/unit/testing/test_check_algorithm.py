"""The contract suite: every method of the package passes it, and each kind of fault is caught by its name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from fedveca.algorithms import Algorithm, FedAvg, FedNova, FedProx, FedVeca, Named, Order, Report, Scaffold
from fedveca.algorithms.contract import AskLoss, ServerState
from fedveca.algorithms.registry import methods, paper_methods
from fedveca.algorithms.scaffold import ScaffoldState
from fedveca.runs.build import make_method
from fedveca.runs.experiment import Experiment
from fedveca.testing import check_algorithm

METHODS = [
    FedAvg(0.1),
    FedProx(0.1),
    FedProx(0.05, mu=2.0),
    FedNova(0.1),
    Scaffold(0.1),
    FedVeca(0.1),
    FedVeca(0.01, alpha=0.5, tau_max=5),
    *(make_method(Experiment(method=name, lr=0.1)) for name in methods() if name not in paper_methods()),
]


@pytest.mark.parametrize("algorithm", METHODS, ids=repr)
def test_methods_of_the_package_pass(algorithm: Algorithm) -> None:
    check_algorithm(algorithm)


class StepsInPlace(FedAvg):
    def step(self, order: Order, s: Any, w: Tensor, g: Tensor) -> tuple[Tensor, Any]:
        return w.sub_(self.lr * g), s


class ScalesTheReport(FedNova):
    def update(self, state: ServerState, ids: Tensor, p: Tensor, report: Report) -> tuple[ServerState, Named]:
        report.mean["G"].mul_(float(p @ report.each["tau"]))
        return state._replace(w=state.w - self.lr * report.mean["G"]), {}


class SpoilsMemory(Scaffold):
    def start(self, order: Order, memory: Named, g0: Tensor) -> Tensor:
        return memory["c"].add_(1e-3)


class ForgetsP(FedNova):
    def update(self, state: ServerState, ids: Tensor, p: Tensor, report: Report) -> tuple[ServerState, Named]:
        tau_k = float(report.each["tau"].mean())
        return state._replace(w=state.w - self.lr * tau_k * report.mean["G"]), {}


class DividesByTheCount(FedAvg):
    def update(self, state: ServerState, ids: Tensor, p: Tensor, report: Report) -> tuple[ServerState, Named]:
        return state._replace(w=state.w - self.lr * 3 * report.mean["G"] / len(ids)), {}


class TrustsTheOrder(FedNova):
    def update(self, state: ServerState, ids: Tensor, p: Tensor, report: Report) -> tuple[ServerState, Named]:
        return state._replace(w=state.w - self.lr * float(report.each["tau"][0]) * report.mean["G"]), {}


class EpochsForSteps(FedNova):
    """Divides by a number of its own and multiplies by the server's."""

    def finish(self, order: Order, s: Any, w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:
        return {"G": (order.w - w) / (self.lr * 10)}, {}, {}


class TauOfItsOwn(FedAvg):
    def init(self, w: Tensor, tau: Tensor) -> ServerState:
        return ServerState(w, torch.full_like(tau, 10))


class TauOfTheState(FedNova):
    def update(self, state: ServerState, ids: Tensor, p: Tensor, report: Report) -> tuple[ServerState, Named]:
        tau_k = float(p @ state.tau[ids].double())
        return state._replace(w=state.w - self.lr * tau_k * report.mean["G"]), {}


class ReportsTau(FedAvg):
    def finish(self, order: Order, s: Any, w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:
        return {"G": (order.w - w) / self.lr}, {"tau": tau}, {}


class TauOfTheAbsent(FedAvg):
    def update(self, state: ServerState, ids: Tensor, p: Tensor, report: Report) -> tuple[ServerState, Named]:
        return FedAvg(self.lr).update(state._replace(tau=state.tau + 1), ids, p, report)


class TauOfThoseWhoAnswered(FedAvg):
    def update(self, state: ServerState, ids: Tensor, p: Tensor, report: Report) -> tuple[ServerState, Named]:
        return FedAvg(self.lr).update(state._replace(tau=state.tau[ids]), ids, p, report)


class NoSteps(FedAvg):
    def update(self, state: ServerState, ids: Tensor, p: Tensor, report: Report) -> tuple[ServerState, Named]:
        tau = state.tau.clone()
        tau[ids] = 0
        return FedAvg(self.lr).update(state._replace(tau=tau), ids, p, report)


class NormOfAll(FedAvg):
    """Clips by the norm of all clients' vectors at once."""

    def finish(self, order: Order, s: Any, w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:
        G = (order.w - w) / self.lr
        return {"G": G / G.norm().clamp(min=1)}, {}, {}


class Branches(FedAvg):
    def step(self, order: Order, s: Any, w: Tensor, g: Tensor) -> tuple[Tensor, Any]:
        far = (g * g).sum(-1, keepdim=True)
        return (w - self.lr * g / far, s) if far > 1 else (w - self.lr * g, s)


class CountsOutside(FedAvg):
    def start(self, order: Order, memory: Named, g0: Tensor) -> Any:
        return 0

    def step(self, order: Order, s: Any, w: Tensor, g: Tensor) -> tuple[Tensor, Any]:
        return w - self.lr * g, s + 1


class KeepsInItself(FedAvg):
    def update(self, state: ServerState, ids: Tensor, p: Tensor, report: Report) -> tuple[ServerState, Named]:
        object.__setattr__(self, "last", report.mean["G"])
        return FedAvg(self.lr).update(state, ids, p, report)


class Noisy(FedAvg):
    def finish(self, order: Order, s: Any, w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:
        return {"G": (order.w - w) / self.lr + torch.randn_like(w)}, {}, {}


class UsesG0(FedAvg):
    def start(self, order: Order, memory: Named, g0: Tensor) -> Any:
        return g0

    def finish(self, order: Order, s: Any, w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:
        return {"G": (order.w - w) / self.lr, "grad": s}, {}, {}


class Counted(NamedTuple):
    w: Tensor
    tau: Tensor
    k: int


class NumberInState(FedAvg):
    def init(self, w: Tensor, tau: Tensor) -> Any:
        return Counted(w, tau, 0)


class Doubles(FedAvg):
    def update(self, state: ServerState, ids: Tensor, p: Tensor, report: Report) -> tuple[ServerState, Named]:
        return state._replace(w=state.w - self.lr * report.mean["G"] * p.sum()[None]), {}


class OtherMemory(Scaffold):
    def memory(self, w: Tensor) -> Named:
        return {"c": torch.zeros_like(w), "seen": torch.zeros_like(w)}


class TakesAName(FedAvg):
    def update(self, state: ServerState, ids: Tensor, p: Tensor, report: Report) -> tuple[ServerState, Named]:
        return FedAvg(self.lr).update(state, ids, p, report)[0], {"tau_k": p.sum()}


class FlatNumber(FedAvg):
    def finish(self, order: Order, s: Any, w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:
        return {"G": (order.w - w) / self.lr}, {"far": w.norm(dim=-1)}, {}


class SendsAnother(FedAvg):
    def order(self, state: ServerState) -> Order:
        return Order(0.9 * state.w, {})


class GrowingState(Scaffold):
    def update(self, state: ScaffoldState, ids: Tensor, p: Tensor, report: Report) -> tuple[ScaffoldState, Named]:
        after, seen = Scaffold(self.lr).update(state, ids, p, report)
        return after._replace(c=torch.cat([after.c, after.c])), seen


class StandsStill(FedAvg):
    def update(self, state: ServerState, ids: Tensor, p: Tensor, report: Report) -> tuple[ServerState, Named]:
        return state, {}


class Half:
    lr = 0.1


class Unchecked(FedAvg):
    def __post_init__(self) -> None:
        pass


class BeginsShort(FedAvg):
    def begin(self, order: Order, memory: Named) -> Tensor:
        return order.w[..., :-1]


class SpoilsTheOrder(FedAvg):
    def begin(self, order: Order, memory: Named) -> Tensor:
        return order.w.add_(1.0)


class MixesBegins(FedAvg):
    def memory(self, w: Tensor) -> Named:
        return {"mine": w}

    def begin(self, order: Order, memory: Named) -> Tensor:
        mine = memory["mine"]
        return order.w.expand_as(mine) + (0.1 * torch.arange(len(mine))[:, None] if mine.dim() > 1 else 0.0)

    def finish(self, order: Order, s: Any, w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:
        return {"G": (order.w - w) / self.lr}, {}, {"mine": w}


class KeepsAMatrix(FedAvg):
    def memory(self, w: Tensor) -> Named:
        return {"mine": w[None]}


class SendsNothing(FedAvg):
    def finish(self, order: Order, s: Any, w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:
        return {"G": w[..., :0]}, {}, {}


class SpoilsTheLoss(FedAvg):
    needs_loss = True

    def start(self, order: Order, memory: Named, g0: Tensor, loss: Tensor) -> Any:  # type: ignore[override]
        return loss.mul_(2.0)


class ChoosesTwice(FedAvg):
    chooses = True

    def choose(self, state: ServerState, p: Tensor, u: Tensor, m: int, ask: AskLoss) -> Tensor:
        return torch.zeros(m, dtype=torch.int64)


class ChoosesByChance(FedAvg):
    chooses = True

    def choose(self, state: ServerState, p: Tensor, u: Tensor, m: int, ask: AskLoss) -> Tensor:
        return torch.randperm(len(p))[:m]


WRONG = [
    (StepsInPlace(0.1), "mutates its input: step"),
    (ScalesTheReport(0.1), "mutates its input: update"),
    (SpoilsMemory(0.1), "mutates its input: start"),
    (ForgetsP(0.1), "forgets p"),
    (DividesByTheCount(0.1), "forgets p"),
    (TrustsTheOrder(0.1), "depends on the order in which clients are listed"),
    (EpochsForSteps(0.1), "derives tau: a client that ends at the same model"),
    (TauOfItsOwn(0.1), "derives tau: init"),
    (TauOfTheState(0.1), "derives tau from the state"),
    (ReportsTau(0.1), "derives tau: the clients report it"),
    (TauOfTheAbsent(0.1), "changes tau of clients that did not answer"),
    (TauOfThoseWhoAnswered(0.1), r"gives tau \[3\]"),
    (NoSteps(0.1), "at least 1 step"),
    (NormOfAll(0.1), "mixes clients"),
    (Branches(0.1), "cannot take many clients at once"),
    (CountsOutside(0.1), "carries int through its steps"),
    (KeepsInItself(0.1), "keeps something in itself"),
    (Noisy(0.1), "is not deterministic: finish"),
    (UsesG0(0.1), "needs_gradient"),
    (NumberInState(0.1), "state field k is int"),
    (Doubles(0.1), r"makes w torch.float64"),
    (OtherMemory(0.1), "names and shapes must agree"),
    (TakesAName(0.1), "records tau_k, a name that is taken"),
    (FlatNumber(0.1), r"the number far of shape \[\]"),
    (SendsAnother(0.1), "does not send state.w"),
    (GrowingState(0.1), "state field c turns from"),
    (StandsStill(0.1), "does not move the model"),
    (Unchecked(-0.1), "has lr=-0.1"),
    (Half(), "is not a subclass of fedveca.algorithms.Algorithm"),
    (FedAvg, "is a class"),
    (BeginsShort(0.1), r"begin gives \[4\] for one client; it is a model"),
    (SpoilsTheOrder(0.1), "mutates its input: begin changes a tensor"),
    (MixesBegins(0.1), "mixes clients"),
    (KeepsAMatrix(0.1), r"memory gives mine of shape \[1, 5\]; it is a vector of any length"),
    (SendsNothing(0.1), r"finish gives the vector G of shape \[0\], not \[P\] or shorter"),
    (SpoilsTheLoss(0.1), "mutates its input: start changes a tensor"),
    (ChoosesTwice(0.1), r"choose gives \[0, 0\]; it gives 2 different clients of 0 to 5, int64"),
    (ChoosesByChance(0.1), "is not deterministic: choose gives another result"),
]


@pytest.mark.parametrize(("algorithm", "fault"), WRONG, ids=lambda v: getattr(type(v), "__name__", ""))
def test_a_fault_is_caught_by_name(algorithm: Any, fault: str) -> None:
    with pytest.raises(AssertionError, match=fault) as caught:
        check_algorithm(algorithm)
    name = algorithm.__name__ if isinstance(algorithm, type) else type(algorithm).__name__
    assert str(caught.value).startswith(f"{name} ")


def test_hyperparameters_that_can_change_are_a_fault() -> None:
    @dataclass
    class Loose(Algorithm):
        lr: float = 0.1
        update, finish = FedAvg.update, FedAvg.finish

    with pytest.raises(AssertionError, match="is not a frozen dataclass"):
        check_algorithm(Loose())


def test_a_method_without_update_or_finish_cannot_be_made() -> None:
    @dataclass(frozen=True)
    class Halfway(Algorithm):
        lr: float
        finish = FedAvg.finish

    with pytest.raises(TypeError, match=r"abstract method '?update"):
        Halfway(0.1)  # type: ignore[abstract]


def test_the_check_leaves_the_method_as_it_was() -> None:
    algorithm = FedVeca(0.1)
    check_algorithm(algorithm)
    assert algorithm == replace(algorithm)
    assert vars(algorithm) == {"lr": 0.1, "alpha": 0.95, "tau_max": 50, "distrust": 0.0}
