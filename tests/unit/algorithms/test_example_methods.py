"""The example methods against literal loops over clients, in every engine, from a file, and resumed."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedveca.algorithms import Algorithm, registry
from fedveca.algorithms.registry import load_method
from fedveca.cohorts.contract import Cohort
from fedveca.cohorts.random import draw_choice, draw_rows
from fedveca.runs.build import Built, build, make_method
from fedveca.runs.experiment import Experiment
from fedveca.runs.federate import federate
from fedveca.runs.interrupt import Stopped
from fedveca.runs.run import resume, run
from fedveca.tasks.datasets.dataset import prepare
from fedveca.tasks.module_problem import ModuleProblem
from fedveca.testing import check_algorithm

EXAMPLES = Path(__file__).parents[3] / "examples"
NAMES = ("fedper:FedPer", "qffl:QFedAvg", "power_of_choice:PowerOfChoice", "fedntd:FedNTD", "custom_method:Ditto")
SMALL: dict[str, Any] = {"model": "mlp", "hidden": 8, "partition": "dirichlet", "clients": 6, "batch": 8}
SMALL |= {"lr": 0.1, "tau_0": 3, "rounds": 4, "probe": 0, "seed": 3}


@pytest.fixture(autouse=True)
def _in_the_folder_of_examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(EXAMPLES)
    yield
    for name in NAMES:
        registry._loaded.pop(name, None)
        sys.modules.pop(name.partition(":")[0], None)


def make(name: str, **settings: Any) -> Experiment:
    return Experiment(method=name, **{**SMALL, **settings})


def train(built: Built, rounds: int = 4) -> list[tuple[Tensor, Any]]:
    e = built.experiment
    steps = federate(built.algorithm, built.cohort, built.state, rounds, participation=e.participation, seed=e.seed)
    return [(state.w, record) for state, record in steps]


class Clients:
    """The clients of an experiment by hand: one module, rows by client, plain SGD."""

    def __init__(self, built: Built) -> None:
        assert isinstance(built.problem, ModuleProblem)
        self.e, self.problem, self.shares = built.experiment, built.problem, built.shares
        self.x, self.y = prepare(built.data.x, built.data.pixels), built.data.y
        self.p = built.shares.sizes.double() / built.shares.sizes.sum()

    def module(self, w: Tensor) -> nn.Module:
        module = copy.deepcopy(self.problem.module)
        with torch.no_grad():
            for name, v in self.problem.named(w).items():
                module.get_parameter(name).copy_(v)
        return module

    def flat(self, module: nn.Module) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in module.parameters()])

    def loss(self, w: Tensor, i: int) -> float:
        mine = self.shares.rows[self.shares.start[i] : self.shares.start[i + 1]]
        with torch.no_grad():
            return float(nn.functional.cross_entropy(self.module(w)(self.x[mine]), self.y[mine]))

    def descend(self, w: Tensor, k: int, i: int) -> Tensor:
        mine, module = self.shares.rows[self.shares.start[i] : self.shares.start[i + 1]], self.module(w)
        steps = draw_rows(self.e.seed, k, torch.tensor([i]), torch.tensor([len(mine)]), self.e.tau_0, self.e.batch)[0]
        for draws in steps:
            module.zero_grad()
            nn.functional.cross_entropy(module(self.x[mine[draws]]), self.y[mine[draws]]).backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                for p in module.parameters():
                    assert p.grad is not None
                    p.sub_(self.e.lr * p.grad)
        return self.flat(module)

    def weigh(self, ids: list[int]) -> list[float]:
        total = sum(int(self.shares.sizes[i]) for i in ids)
        return [int(self.shares.sizes[i]) / total for i in ids]


# against literal loops


@pytest.mark.parametrize("personal", ["", "1", "3.bias"])
def test_fedper_shares_the_body_and_keeps_each_clients_head(personal: str) -> None:
    e = make("fedper:FedPer", participation=0.5, method_options=f"personal={personal}")
    built = build(e)
    by_hand, w = Clients(built), built.state.w
    names = [n for n in by_hand.problem.shapes if n == personal or n.startswith(f"{personal or '3'}.")]
    where = by_hand.problem.layout.slices
    mine = torch.zeros(len(w), dtype=torch.bool)
    for name in names:
        mine[where[name]] = True
    heads: dict[int, Tensor] = {}
    for k, (got, record) in enumerate(train(built)):
        p, total, loss = by_hand.weigh(record["ids"]), torch.zeros_like(w), 0.0
        for share, i in zip(p, record["ids"], strict=True):
            at = torch.where(mine, heads.get(i, w), w)
            loss += share * by_hand.loss(at, i)
            heads[i] = by_hand.descend(at, k, i)
            total += share * torch.where(mine, 0.0, heads[i] - w)
        w = w + total
        assert torch.allclose(got, w, atol=1e-6)
        assert record["train_loss"] == pytest.approx(loss, rel=1e-5)
        assert record["bytes_up"] == len(record["ids"]) * (4 * int((~mine).sum()) + 16)  # the head stays at home
        assert record["bytes_down"] == len(record["ids"]) * (4 * len(w) + 8)
    assert not torch.equal(heads[0], heads[1])


@pytest.mark.parametrize("q", [0.0, 0.5, 2.0])
def test_q_fedavg_is_the_papers_algorithm(q: float) -> None:
    """Li et al. 2020, Algorithm 2: Delta_i = F_i^q L (w - w_i), h_i = q F_i^(q-1) |L (w - w_i)|^2 + L F_i^q."""
    e = make("qffl:QFedAvg", participation=0.7, method_options=f"q={q}", keep="last")  # F_i where no loss is asked for
    built = build(e)
    by_hand, w, L = Clients(built), built.state.w, 1 / e.lr
    for k, (got, record) in enumerate(train(built)):
        delta, h = torch.zeros_like(w), 0.0
        for p, i in zip(by_hand.weigh(record["ids"]), record["ids"], strict=True):
            F, moved = by_hand.loss(w, i), L * (w - by_hand.descend(w, k, i))
            delta += p * F**q * moved
            h += p * (q * F ** (q - 1) * float(moved.norm()) ** 2 + L * F**q)
        w = w - delta / h
        assert torch.allclose(got, w, atol=2e-6)
    if q == 0:
        fedavg = train(build(replace(e, method="fedavg", method_options="")))
        assert torch.allclose(got, fedavg[-1][0], atol=1e-6)


def test_power_of_choice_asks_d_clients_and_takes_the_m_with_the_highest_losses() -> None:
    e = make("power_of_choice:PowerOfChoice", participation=0.34, method_options="d=4")
    built = build(e)
    by_hand, w = Clients(built), built.state.w
    for k, (got, record) in enumerate(train(built)):
        u = draw_choice(e.seed, k, torch.arange(6)).tolist()
        keys = {i: math.log(u[i]) / float(by_hand.p[i]) for i in range(6)}
        candidates = sorted(sorted(keys, key=lambda i: keys[i], reverse=True)[:4])
        losses = {i: by_hand.loss(w, i) for i in candidates}
        chosen = sorted(sorted(candidates, key=lambda i: losses[i], reverse=True)[:2])
        assert record["candidates"] == candidates
        assert record["candidate_loss"] == pytest.approx(list(losses.values()), rel=1e-5)
        assert record["ids"] == chosen
        w = sum((p * by_hand.descend(w, k, i) for p, i in zip(by_hand.weigh(chosen), chosen, strict=True)), 0 * w)
        assert torch.allclose(got, w, atol=1e-6)
        assert record["bytes_down"] == (4 + 2) * (4 * len(w) + 8)
        assert record["bytes_up"] == 4 * 16 + 2 * (4 * len(w) + 16)


def test_candidates_are_drawn_by_their_shares_of_the_rows() -> None:
    """The first of a draw without replacement by p is client i with probability p_i."""
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    u = torch.stack([draw_choice(0, k, torch.arange(3)) for k in range(3000)])
    first = (u.log() / p).argmax(1)
    assert (torch.bincount(first) / len(first)).tolist() == pytest.approx(p.tolist(), abs=0.03)


# in every engine


def join_nodes(e: Experiment, built: Built, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Cohort:
    """The clients on six nodes: the server's and the nodes' code, and Flower's messages."""
    pytest.importorskip("flwr")
    from flower_grid import Grid
    from flwr.supercore.task_identity import TaskIdentity

    from fedveca.deploy.server import make_cohort

    for identity in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, identity, 1)
    grid: Any = Grid(e, folder, {}, nodes=6)
    return make_cohort(grid, e, built.data, say=lambda text: None)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_debug_engine_and_nodes_compute_the_same(
    name: str, momentum: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"momentum": momentum, "optimizer_state": "keep", "lr_schedule": "cosine"} if momentum else {}
    if "Ditto" in name and momentum:
        pytest.skip("it takes its steps itself")
    e = make(name, participation=0.5, **more)
    built = build(e)
    want = train(built)
    got = train(build(replace(e, engine="debug")))
    on_nodes = train(built._replace(cohort=join_nodes(e, built, tmp_path, monkeypatch)))
    for (w, record), (v, one), (u, two) in zip(want, got, on_nodes, strict=True):
        assert torch.allclose(v, w, atol=1e-6)
        assert torch.allclose(u, w, atol=1e-6)
        for key in ("ids", "tau", "bytes_up", "bytes_down", "candidates"):
            assert record.get(key) == one.get(key) == two.get(key)
        assert record["train_loss"] == pytest.approx(two["train_loss"], rel=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_run_is_the_same_byte_by_byte(name: str, tmp_path: Path) -> None:
    e, asked = make(name, participation=0.5), iter([False, True])
    run(e, tmp_path / "whole", device="cpu")
    with pytest.raises(Stopped):
        run(e, tmp_path / "parts", device="cpu", stop=lambda: next(asked, False))
    done = resume(tmp_path / "parts", device="cpu")
    assert done.summary["rounds"] == 4
    parts, whole = ((tmp_path / part / "model.safetensors").read_bytes() for part in ("parts", "whole"))
    assert parts == whole

    def lines(part: str) -> list[str]:
        return [
            line.partition(', "seconds"')[0] for line in (tmp_path / part / "rounds.jsonl").read_text().splitlines()
        ]

    assert lines("parts") == lines("whole")


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_rays_workers_compute_the_same() -> None:
    for name in ("fedper:FedPer", "power_of_choice:PowerOfChoice"):
        e = make(name, participation=0.5)
        want, got = train(build(e)), train(build(replace(e, engine="ray", workers=2)))
        for (w, record), (v, one) in zip(want, got, strict=True):
            assert torch.allclose(v, w, atol=1e-6)
            assert record["ids"] == one["ids"]


# the contract suite


@pytest.mark.parametrize("name", NAMES)
def test_they_keep_the_contract(name: str) -> None:
    check_algorithm(make_method(make(name)))


def break_choice(change: Callable[[Tensor], object]) -> type[Algorithm]:
    base: Any = load_method("power_of_choice:PowerOfChoice").algorithm

    class Broken(base):  # type: ignore[misc]
        def choose(self, state: Any, p: Tensor, u: Tensor, m: int, ask: Any) -> Any:
            return change(super().choose(state, p, u, m, ask))

    return Broken


@pytest.mark.parametrize(
    "change",
    [lambda ids: ids.tolist(), lambda ids: ids.double(), lambda ids: ids[:0], lambda ids: ids * 0, lambda ids: ids + 9],
)
def test_a_choice_that_is_none_is_named(change: Callable[[Tensor], object]) -> None:
    broken = break_choice(change)(lr=0.1)  # type: ignore[call-arg]
    with pytest.raises(AssertionError, match=r"Broken choose gives .*; it gives . different clients of 0 to 5"):
        check_algorithm(broken)
    with pytest.raises(ValueError, match=r"the method chooses .*; it is a tensor of different clients, 0 to 5"):
        run(make("fedavg", participation=0.5, engine="debug"), method=broken, device="cpu")


def test_what_they_cannot_go_with_is_said() -> None:
    with pytest.raises(ValueError, match=r"layer fc9 is not in the model; its layers are 1, 3"):
        build(make("fedper:FedPer", method_options="personal=fc9"))
    with pytest.raises(ValueError, match="the last layer is the whole model, so that nothing else is left"):
        build(make("fedper:FedPer", model="svm"))
    with pytest.raises(ValueError, match=r"dp_noise=1\.0 cannot go with method=power_of_choice:PowerOfChoice"):
        build(make("power_of_choice:PowerOfChoice", dp_noise=1.0))
    assert asdict(make("fedper:FedPer"))["method"] == "fedper:FedPer"
