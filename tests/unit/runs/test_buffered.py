"""Buffered asynchronous rounds: a schedule worked by hand, FedBuff transcribed, and resuming."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedveca
from fedveca import Experiment, Run
from fedveca.algorithms.contract import Order
from fedveca.algorithms.fedavg import FedAvg
from fedveca.cohorts.clock.buffer import BufferedCohort
from fedveca.cohorts.clock.cohort import WorkRule
from fedveca.cohorts.clock.fleet import Fleet
from fedveca.cohorts.clock.profiles import DeviceProfile
from fedveca.errors import UserError
from fedveca.runs.build import build
from fedveca.runs.federate import federate

# One local step with 10 rows takes 0.3, 0.5 and 1.2 s.
THREE = "name,backward_ms\na,30\nb,50\nc,120\n"
SMALL = {"rounds": 5, "batch": 10, "tau_0": 1, "clients": 3, "keep": "last", "method": "fedavg", "model": "svm"}
# Two answers per round, by hand: when each round ends, whose answers it takes, and how old their models are.
BY_HAND = [
    (0.5, [0, 1], [0, 0]),  # 0 and 1 of the three that started at 0
    (1.0, [0, 1], [0, 0]),  # they started again at 0.5, and answer at 0.8 and 1.0
    (1.3, [0, 2], [0, 2]),  # 2 answers at 1.2, for the model of the first round; 0 at 1.3
    (1.6, [0, 1], [0, 1]),  # 1 started at 1.0 and answers at 1.5, 0 at 1.6
    (2.1, [0, 1], [0, 0]),  # both started at 1.6, and answer at 1.9 and 2.1
]


@pytest.fixture
def devices(tmp_path: Path) -> str:
    file = tmp_path / "three.csv"
    file.write_text(THREE, "utf-8")
    return str(file)


def make(**settings: object) -> Experiment:
    return Experiment(**(SMALL | {"schedule": "buffered", "buffer": 2} | settings))  # type: ignore[arg-type]


def strip(r: Run) -> list[dict[str, object]]:
    mine = ("seconds", "clock", "client_seconds", "joules", "staleness")
    return [{name: v for name, v in record.items() if name not in mine} for record in r.rounds]


def test_a_schedule_by_hand(devices: str) -> None:
    r = fedveca.run(make(devices=devices))
    for record, (clock, ids, staleness) in zip(r.rounds, BY_HAND, strict=True):
        assert record["clock"] == pytest.approx(clock)
        assert (record["ids"], record["staleness"]) == (ids, staleness)
        assert record["client_seconds"] == pytest.approx([{0: 0.3, 1: 0.5, 2: 1.2}[i] for i in ids])
        assert record["left_out"] == []


@pytest.mark.parametrize("exponent", [0.0, 0.5, 2.0])
def test_fedbuff_transcribed(devices: str, exponent: float) -> None:
    """w_(k+1) = w_k + sum_i p_i (1 + s_i)^-a (w_i - w_(k - s_i)), each w_i from a cohort of its own."""
    e = make(devices=devices, staleness=exponent)
    built = build(e)
    assert isinstance(built.cohort, BufferedCohort)
    plain = build(e.replace(devices="", schedule="sync", buffer=0)).cohort
    models = [built.state.w]
    for k, (_, ids, ages) in enumerate(BY_HAND):
        p = plain.sizes[torch.tensor(ids)].double()
        p = p / p.sum()
        w = models[k].double()
        for share, i, age in zip(p, ids, ages, strict=True):
            order = Order(models[k - age], {})
            _, report = plain(k - age, order, torch.tensor([i]), torch.tensor([1]))
            w = w - share * (1 + age) ** -exponent * e.lr * report.mean["G"].double()
        models.append(w.float())
    rounds = federate(built.algorithm, built.cohort, built.state, 5, arrivals=built.cohort.find_arrivals)
    for (state, _), wanted in zip(rounds, models[1:], strict=True):
        torch.testing.assert_close(state.w, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("method", ["fedavg", "fedveca", "scaffold"])
def test_a_buffer_of_all_clients_is_sync(devices: str, method: str) -> None:
    buffered = fedveca.run(make(devices=devices, buffer=3, method=method))
    sync = fedveca.run(make(devices=devices, buffer=0, schedule="sync", method=method))
    assert strip(buffered) == strip(sync)
    clocks = [[record["clock"] for record in r.rounds] for r in (buffered, sync)]
    assert clocks[0] == pytest.approx(clocks[1])
    for name, v in sync.model.items():
        assert buffered.model[name].equal(v)


@pytest.mark.parametrize("method", ["fedavg", "fedveca", "scaffold", "corrected", "fedadam"])
def test_resume_is_the_same(method: str, tmp_path: Path) -> None:
    e = make(devices="phones", clients=8, participation=0.5, buffer=2, method=method, rounds=9, tau_0=3)
    whole = fedveca.run(e)
    assert max(age for record in whole.rounds for age in record["staleness"]) > 0
    fedveca.run(e.replace(rounds=4), tmp_path / "run")
    resumed = fedveca.resume(tmp_path / "run", rounds=9)
    assert strip(whole) == strip(resumed)
    for name in ("clock", "client_seconds", "staleness", "joules"):
        assert whole.column(name) == resumed.column(name)
    for name, v in whole.model.items():
        assert resumed.model[name].equal(v)


def test_a_checkpoint_of_other_clients_at_work_is_not_taken(devices: str) -> None:
    built = build(make(devices=devices))
    cohort = built.cohort
    assert isinstance(cohort, BufferedCohort)
    order = built.algorithm.order(built.state)
    ids = cohort.find_arrivals(0, order, built.state.tau)
    cohort(0, order, ids, built.state.tau[ids])
    stored = cohort.save()
    assert cohort.load(stored, 1, order)
    for name, change in (
        ("flights", torch.zeros(4, 5, dtype=torch.float64)),
        ("flights", torch.full((1, 5), torch.inf, dtype=torch.float64)),
        ("flights", torch.zeros(2)),
        ("now", torch.tensor([99.0])),
        ("order.0.w", torch.zeros(3)),
        ("order.0.w", torch.full_like(order.w, torch.nan)),
        ("order.7.w", order.w),
    ):
        assert not cohort.load(stored | {name: change}, 1, order), name


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"keep": "best"}, "keep=best cannot go with schedule=buffered, whose losses are of models of different ages"),
        ({"guard": "on"}, "guard=on cannot go with schedule=buffered"),
        ({"aggregate": "median"}, "aggregate=median cannot go with schedule=buffered"),
        ({"dp_noise": 1.0}, "dp_noise=1.0 cannot go with schedule=buffered"),
        ({"schedule": "sync"}, "buffer=2 needs schedule=buffered"),
        ({"deadline": 3.0}, "deadline=3.0 needs schedule=deadline"),
        ({"buffer": 4}, "buffer=4 is more than the 3 clients at work; take fewer"),
        ({"method": "scaffnew"}, "schedule=buffered cannot go with method=scaffnew, which "),
    ],
)
def test_mistakes(changes: dict[str, object], said: str) -> None:
    with pytest.raises(UserError) as caught:
        build(make(devices="uniform", **changes))
    assert said in str(caught.value)


times = st.lists(st.floats(0.01, 1e3), min_size=1, max_size=6)


class _Never:
    """A cohort of which only the sizes are asked for."""

    def __init__(self, clients: int) -> None:
        self.sizes = self.weights = torch.ones(clients, dtype=torch.int64)


@settings(max_examples=60, deadline=None)
@given(times, st.data())
def test_time_never_goes_back_and_answers_come_in_order(rates: list[float], data: st.DataObject) -> None:
    """Every round takes the earliest answers, from as many clients at work as there may be, none twice."""
    n = len(rates)
    at_once = data.draw(st.integers(1, n))
    size = data.draw(st.integers(1, at_once))
    cohort = _Never(n)
    profiles = tuple(DeviceProfile(f"{i}", backward_ms=1000 * rate) for i, rate in enumerate(rates))
    rule = WorkRule(FedAvg(0.1), cohort.sizes, 1, 1, False, False)
    fleet = Fleet(profiles, n, seed=0)
    buffered = BufferedCohort(cohort, fleet, rule, size=size, at_once=at_once, staleness=0.5)  # type: ignore[arg-type]
    order, tau, before = Order(torch.zeros(4), {}), torch.ones(n, dtype=torch.int64), 0.0
    for k in range(6):
        ids = buffered.find_arrivals(k, order, tau).tolist()
        assert len(ids) == len(set(ids)) == size
        assert buffered.now >= before
        assert all(before <= buffered.arrived[i].finish <= buffered.now for i in ids)
        assert all(flight.finish >= buffered.now for flight in buffered.flights.values())
        assert len(buffered.flights) < at_once
        before = buffered.now
