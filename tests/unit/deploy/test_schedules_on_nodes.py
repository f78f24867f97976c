"""schedule=deadline and schedule=buffered over Flower nodes, some of which are slow.

The nodes are in this process: their messages are Flower's own, written to bytes and read back, only not sent. A slow
node's answer is there after a while. Seconds are those of a clock that only waiting moves, so that they are exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")
from flower_grid import Change, Grid
from flwr.app import Error, Message
from flwr.supercore.task_identity import TaskIdentity

from fedveca.algorithms.contract import Order
from fedveca.cohorts.flower import buffered, roster
from fedveca.cohorts.flower import cohort as module
from fedveca.cohorts.flower.buffered import BufferedFlowerCohort
from fedveca.cohorts.flower.cohort import FlowerCohort
from fedveca.cohorts.flower.roster import TooFewClients
from fedveca.deploy.node_process import make_node_cohort
from fedveca.deploy.server import check_deployable, make_cohort
from fedveca.errors import UserError
from fedveca.runs.build import build
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.observers import Observer
from fedveca.runs.run import resume, run
from fedveca.runs.schema import Round
from fedveca.runs.task_data import load_data

SLOW = 2  # the client that is slow
E = Experiment(
    method="scaffold", model="svm", clients=3, rounds=6, batch=16, lr=0.05, tau_0=4, keep="last", round_timeout=10.0,
    partition="dirichlet",
)  # fmt: skip
DEADLINE = replace(E, schedule="deadline", deadline=0.15)
BUFFERED = replace(E, schedule="buffered", buffer=2)


class Clock:
    """What the server takes for the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


CLOCK = Clock()


class SlowGrid(Grid):
    """A Grid in which orders with local steps take a client `delays` seconds; it works on one after another."""

    def __init__(
        self,
        e: Experiment,
        folder: Path,
        delays: dict[int, float],
        changes: dict[tuple[int, int], Change] | None = None,
    ) -> None:
        super().__init__(e, folder, changes or {}, e.clients)
        self.delays, self.ready, self.free = delays, dict[str, float](), dict[int, float]()
        self.orders: list[tuple[int, int]] = []  # (client, round)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        messages = list(messages)
        ids = super().push_messages(messages)
        for message, name in zip(messages, ids, strict=True):
            order, client = message.content.config_records["order"], message.metadata.dst_node_id - 100
            delay = self.delays.get(client, 0.0) if "tau" in order else 0.0
            self.free[client] = max(self.free.get(client, 0.0), CLOCK.monotonic()) + delay
            self.ready[name] = self.free[client]
            if "tau" in order:
                self.orders.append((client, int(order["round"])))  # type: ignore[arg-type]
        return ids

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        return super().pull_messages([i for i in ids if self.ready[i] <= CLOCK.monotonic()])


@pytest.fixture(autouse=True)
def _flower(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_task_id": 1, "_run_id": 1, "_node_id": 1}.items():
        monkeypatch.setattr(TaskIdentity, name, value)
    monkeypatch.setattr(roster, "POLL_SECONDS", 1 / 128)
    for user in (module, roster, buffered):
        monkeypatch.setattr(user, "time", CLOCK)
    make_node_cohort.cache_clear()


def join(e: Experiment, folder: Path, delays: dict[int, float], **more: Any) -> tuple[FlowerCohort, Any]:
    grid: Any = SlowGrid(e, folder, delays, **more)
    return make_cohort(grid, e, load_data(e)[0], say=lambda text: None), grid


def deploy(e: Experiment, folder: Path, delays: dict[int, float], **more: Any) -> tuple[Run, Any]:
    cohort, grid = join(e, folder, delays, **more)
    return run(e, data=load_data(e)[0], cohort=cohort, device="cpu"), grid


def largest_difference(mine: Run, other: Run) -> float:
    return max(float((mine.model[name] - v).abs().max()) for name, v in other.model.items())


def faults(record: Round) -> list[tuple[int, str]]:
    return [(fault["client"], fault["what"]) for fault in record.get("faults", [])]


def test_without_slow_nodes_a_deadline_changes_nothing(tmp_path: Path) -> None:
    e = replace(DEADLINE, deadline=5.0)
    deployed, _ = deploy(e, tmp_path, {})
    assert largest_difference(deployed, run(replace(e, schedule="sync", deadline=0.0), device="cpu")) < 1e-6
    assert all(record["ids"] == [0, 1, 2] and not faults(record) for record in deployed.rounds)


def test_a_round_ends_at_the_deadline_and_names_who_is_late(tmp_path: Path) -> None:
    """The slow client is not asked while it works on an earlier order, and is asked again afterwards."""
    began = CLOCK.now
    deployed, grid = deploy(DEADLINE, tmp_path, {0: 0.05, 1: 0.05, SLOW: 0.25})
    assert all(record["ids"] == [0, 1] and record["left_out"] == [2] for record in deployed.rounds)
    assert all((SLOW, "late") in faults(record) for record in deployed.rounds)
    asked = [k for client, k in grid.orders if client == SLOW]
    assert asked == [0, 3]  # it is done 0.25 s after the start, in the third round
    assert (SLOW, "answered round 1 too late") in faults(deployed.rounds[3])
    assert CLOCK.now - began == pytest.approx(2 * 0.15 + 4 * 0.05, abs=6 / 128)  # others end a round that it is not in


def test_a_client_that_was_late_starts_from_the_memory_that_counted(tmp_path: Path) -> None:
    """Late in round 1, in time afterwards: as a simulation in which it was absent in that round."""
    cohort, grid = join(replace(DEADLINE, deadline=0.3), tmp_path, {SLOW: 0.4})

    class Speed(Observer):
        def round(self, record: Round) -> None:
            grid.delays = {}
            CLOCK.sleep(0.15)  # until its late answer is there

    e = replace(DEADLINE, deadline=0.3, rounds=3)
    deployed = run(e, data=load_data(e)[0], cohort=cohort, device="cpu", observers=[Speed()])
    assert [record["ids"] for record in deployed.rounds] == [[0, 1], [0, 1, 2], [0, 1, 2]]
    built = build(replace(E, rounds=3))
    state = built.state
    for k, record in enumerate(deployed.rounds):
        ids = torch.tensor(record["ids"])
        who, report = built.cohort(k, built.algorithm.order(state), ids, state.tau[ids])
        p = built.cohort.weights[who].double()
        state, _ = built.algorithm.update(state, who, p / p.sum(), report)
    assert float((built.problem.named(state.w)["w"] - deployed.model["w"]).abs().max()) < 1e-6


def test_a_deadline_that_nobody_meets_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ATTEMPTS", 2)
    with pytest.raises(TooFewClients, match="round 1: fewer than 1 of 3 clients answered, 2 times in a row"):
        deploy(replace(DEADLINE, deadline=0.02), tmp_path, {0: 0.05, 1: 0.05, 2: 0.05})


def test_a_buffer_of_all_nodes_is_sync(tmp_path: Path) -> None:
    e = replace(BUFFERED, buffer=3)
    deployed, _ = deploy(e, tmp_path, {})
    assert largest_difference(deployed, run(replace(e, schedule="sync", buffer=0), device="cpu")) < 1e-6
    assert all(record["staleness"] == [0, 0, 0] for record in deployed.rounds)
    clock = [record["clock"] for record in deployed.rounds]
    assert clock == sorted(clock)
    assert deployed.summary["clock"] == clock[-1]


@pytest.mark.parametrize("exponent", [0.0, 0.5, 2.0])
def test_fedbuff_transcribed(exponent: float, tmp_path: Path) -> None:
    """w_(k+1) = w_k + sum_i p_i (1 + s_i)^-a (w_i - w_(k - s_i)) with the ages that were recorded."""
    e = replace(BUFFERED, method="fedavg", staleness=exponent, rounds=8)
    deployed, grid = deploy(e, tmp_path, {SLOW: 0.12, 0: 0.02, 1: 0.03})
    ages = [age for record in deployed.rounds for age in record["staleness"]]
    assert max(ages) > 0
    built = build(replace(E, method="fedavg"))
    models = [built.state.w]
    for k, record in enumerate(deployed.rounds):
        assert len(record["ids"]) == 2
        p = built.cohort.sizes[torch.tensor(record["ids"])].double()
        w = models[k].double()
        for share, i, age in zip(p / p.sum(), record["ids"], record["staleness"], strict=True):
            assert (i, k - age) in grid.orders
            _, report = built.cohort(k - age, Order(models[k - age], {}), torch.tensor([i]), torch.tensor([4]))
            w = w - share * (1 + age) ** -exponent * e.lr * report.mean["G"].double()
        models.append(w.float())
    assert float((built.problem.named(models[-1])["w"] - deployed.model["w"]).abs().max()) < 1e-5
    for record in deployed.rounds:
        for i, seconds in zip(record["ids"], record["client_seconds"], strict=True):
            assert seconds is not None
            assert seconds >= {0: 0.02, 1: 0.03, 2: 0.12}[i]


def test_each_clients_memory_is_of_its_own_last_answer(tmp_path: Path) -> None:
    """SCAFFOLD, with answers of older models: c of the server is the mean of the c_i that its answers brought."""
    cohort, _ = join(BUFFERED, tmp_path, {SLOW: 0.1, 0: 0.02})
    deployed = run(BUFFERED, data=load_data(E)[0], cohort=cohort, device="cpu")
    last: dict[int, int] = {}
    for k, record in enumerate(deployed.rounds):
        last |= {i: k - age for i, age in zip(record["ids"], record["staleness"], strict=True)}
    assert cohort.memory.rounds.tolist() == [last.get(i, -1) for i in range(3)]
    assert max(record["staleness"][-1] for record in deployed.rounds) > 0


def test_a_resumed_server_sends_the_orders_again(tmp_path: Path) -> None:
    """The server stops while the slow node is at work on round 1; a new one sends that very order again."""
    e = replace(BUFFERED, method="fedavg", staleness=0.5)
    cohort, grid = join(e, tmp_path, {SLOW: 30.0})
    run(replace(e, rounds=3), tmp_path / "run", data=load_data(e)[0], cohort=cohort, device="cpu")
    assert grid.orders.count((SLOW, 0)) == 1
    again, grid = join(e, tmp_path, {})
    done = resume(tmp_path / "run", rounds=5, data=load_data(e)[0], cohort=again, device="cpu")
    assert grid.orders[0] == (SLOW, 0)
    assert done.rounds[3]["ids"] == [0, 2]  # the oldest order first, then the lowest number
    assert done.rounds[3]["staleness"] == [0, 3]
    clock = [record["clock"] for record in done.rounds]
    assert clock == sorted(clock)
    assert clock[-1] < 25


def test_a_node_that_fails_or_never_answers_is_named_and_asked_again(tmp_path: Path) -> None:
    e = replace(BUFFERED, round_timeout=0.3, buffer=2)
    deployed, grid = deploy(
        e, tmp_path, {SLOW: 0.5, 0: 0.1, 1: 0.1}, changes={(1, 0): lambda records: Error(1, "fails")}
    )
    named = [fault for record in deployed.rounds for fault in faults(record)]
    assert (1, "failed: fails (Flower's error 1)") in named
    assert (SLOW, "timed out after 0.3 s") in named
    assert [client for client, _ in grid.orders].count(1) > 3


def test_nodes_that_all_diverge_end_the_run(tmp_path: Path) -> None:
    def diverges(records: dict[str, Any]) -> None:
        records["answer"]["diverged"] = True
        del records["vectors"]

    changes: dict[tuple[int, int], Change] = {(i, 1): diverges for i in range(3)}
    deployed, _ = deploy(replace(BUFFERED, method="fedavg", buffer=3), tmp_path, {}, changes=changes)
    assert "round 2: no client gave a finite loss and gradient" in deployed.summary["stopped"]
    assert len(deployed.rounds) == 1


def test_nodes_that_all_fail_end_the_run(tmp_path: Path) -> None:
    fails: dict[tuple[int, int], Change] = {(i, 0): lambda records: Error(1, "fails") for i in range(3)}
    with pytest.raises(TooFewClients, match="10 times in a row"):
        deploy(BUFFERED, tmp_path, {}, changes=fails)


def test_top_k_remembers_what_old_answers_left(tmp_path: Path) -> None:
    """What clients have not sent is of their last answer, whichever round that began in."""
    e = replace(BUFFERED, wire="topk", wire_share=0.2, method="fedavg")
    deployed, _ = deploy(e, tmp_path, {SLOW: 0.06, 0: 0.01})
    assert {record["bytes_up"] for record in deployed.rounds} == {2 * (13 * (4 + 2) + 8)}
    assert all(bool(torch.isfinite(v).all()) for v in deployed.model.values())


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"schedule": "deadline", "deadline": 11.0}, "deadline=11.0 is more than round_timeout=10.0"),
        ({"schedule": "buffered", "buffer": 2, "min_clients": 3}, "min_clients=3 is more than buffer=2"),
        ({"devices": "uniform"}, "devices=uniform is for simulations"),
    ],
)
def test_what_nodes_cannot_do(more: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        check_deployable(replace(E, **more))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"buffer": 4}, "buffer=4 is more than the 3 clients at work"),
        ({"method": "scaffnew"}, "schedule=buffered cannot go with method=scaffnew"),
    ],
)
def test_what_a_buffer_cannot_be(more: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        join(replace(BUFFERED, **more), tmp_path, {})
    assert said in str(caught.value)


def test_a_buffered_cohort_starts_a_client_once(tmp_path: Path) -> None:
    """Never two orders at the same time, and at most as many clients at work as participation says."""
    cohort, grid = join(replace(BUFFERED, participation=0.67, buffer=1), tmp_path, dict.fromkeys(range(3), 0.02))
    assert isinstance(cohort, BufferedFlowerCohort)
    assert cohort.at_once == 2
    built = build(BUFFERED, data=load_data(E)[0], cohort=cohort)
    order = built.algorithm.order(built.state)
    for k in range(5):
        ids = cohort.find_arrivals(k, order, built.state.tau)
        assert len(ids) == 1
        assert len(cohort.flights) <= 2
        cohort(k, order, ids, built.state.tau[ids])
        assert cohort.orders.keys() == {flight.start for flight in cohort.flights.values()}
    assert len(set(grid.orders)) == len(grid.orders)
