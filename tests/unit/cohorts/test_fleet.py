"""Simulated time: schedules worked by hand, and what must hold of any devices."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveca.cohorts.clock.fleet import Fleet, Work
from fedveca.cohorts.clock.profiles import POPULATIONS, DeviceProfile, make_profiles
from fedveca.cohorts.clock.schedule import close_round
from fedveca.errors import UserError

# By hand: 1,000 bytes down and 500 up at 1 Mbit/s (8 and 4 ms), latencies of 10 ms, 2 + 4 ms per row of a gradient.
PLAIN = DeviceProfile("a", forward_ms=2, backward_ms=4, latency_ms=10, down_mbit=1, up_mbit=1)
ROWS = torch.tensor([10, 10, 30])
IDS = torch.arange(3)


def make_work(rows: torch.Tensor = ROWS, loss_rows: int = 0) -> Work:
    return Work(rows, torch.full_like(rows, loss_rows), 1000, 500)


def three_devices() -> Fleet:
    """Client 1 is half as fast as client 0 in all it does, client 2 has three times the rows."""
    slow = dataclasses.replace(PLAIN, forward_ms=4, backward_ms=8, latency_ms=20, down_mbit=0.5, up_mbit=0.5)
    return Fleet((PLAIN, slow, PLAIN), 3, seed=0)


def test_seconds_by_hand() -> None:
    """10 rows: 2 * 10 + 8 + 4 + 60 ms; twice that on the slow one; 30 rows: 32 + 180 ms; 5 loss rows: 10 ms more."""
    found = three_devices().find_seconds(0, IDS, make_work())
    assert found.tolist() == pytest.approx([0.092, 0.184, 0.212], abs=1e-12)
    more = three_devices().find_seconds(7, IDS, make_work(loss_rows=5))
    assert (more - found).tolist() == pytest.approx([0.010, 0.020, 0.010], abs=1e-12)


def test_joules_by_hand() -> None:
    """0.5 J per row of a gradient, a third of it for a loss alone (2 of 6 ms), 0.001 J per byte of 1,500."""
    profile = dataclasses.replace(PLAIN, joules_per_row=0.5, joules_per_byte=0.001)
    fleet = Fleet((profile,), 3, seed=0)
    assert fleet.has_energy
    assert not three_devices().has_energy
    assert fleet.find_joules(IDS, make_work()).tolist() == pytest.approx([6.5, 6.5, 16.5])
    assert fleet.find_joules(IDS, make_work(loss_rows=3)).tolist() == pytest.approx([7.0, 7.0, 17.0])


@pytest.mark.parametrize(
    ("deadline", "enough", "counts", "lasts"),
    [
        (math.inf, None, [True, True, True], 0.212),  # sync: until the slowest
        (0.2, None, [True, True, False], 0.2),  # the server waits for the third until the deadline
        (0.3, None, [True, True, True], 0.212),  # nobody is late: nothing to wait for
        (0.05, None, [False, False, False], 0.05),
        (math.inf, 2, [True, True, False], 0.184),  # one client more than is needed
        (0.1, 2, [True, False, False], 0.1),
        (0.2, 2, [True, True, False], 0.184),
    ],
)
def test_schedule_by_hand(deadline: float, enough: int | None, counts: list[bool], lasts: float) -> None:
    seconds = three_devices().find_seconds(0, IDS, make_work())
    closing = close_round(seconds, deadline, enough)
    assert closing.counts.tolist() == counts
    assert closing.seconds == pytest.approx(lasts)


def test_who_never_answers_holds_a_round_up_to_its_deadline() -> None:
    seconds = torch.tensor([1.0, math.inf, 2.0])
    assert close_round(seconds, 5.0).seconds == 5.0
    assert close_round(seconds).seconds == 2.0
    assert close_round(seconds, 5.0, enough=2).seconds == 2.0
    assert close_round(torch.tensor([math.inf])).seconds == 0.0


def test_steps_are_cut_to_what_fits_by_hand() -> None:
    """Rows in steps of 5: 32 ms of messages, 30 ms per step; 64 and 60 on the slow one. 0.13 s: 3, 1 and 3 steps."""
    fleet, tau = three_devices(), torch.tensor([4, 4, 6])
    work = make_work(tau * 5)
    fitting = fleet.fit_steps(0, IDS, work, tau, 5, 0.13)
    assert fitting.tolist() == [3, 1, 3]
    assert fleet.fit_steps(0, IDS, work, tau, 5, 0.06).tolist() == [0, 0, 0]
    assert fleet.fit_steps(0, IDS, work, tau, 5, 9.0).tolist() == [4, 4, 6]


def profiles(times: st.SearchStrategy[float] | None = None) -> st.SearchStrategy[DeviceProfile]:
    times = times or st.floats(0, 1e4)
    rates = st.floats(1e-3, 1e4) | st.just(math.inf)
    spreads = st.floats(0, 2)
    return st.builds(
        DeviceProfile,
        st.just("d"),
        share=st.just(0.0),
        forward_ms=times,
        backward_ms=times,
        latency_ms=times,
        down_mbit=rates,
        up_mbit=rates,
        availability=st.floats(0, 1),
        joules_per_row=times,
        joules_per_byte=times,
        spread=spreads,
        network_spread=spreads,
        variety=spreads,
    )


works = st.builds(
    lambda rows, loss, down, up: Work(torch.tensor([rows]), torch.tensor([loss]), down, up),
    st.integers(0, 10**6),
    st.integers(0, 10**4),
    st.integers(0, 10**9),
    st.integers(0, 10**9),
)
ALONE = torch.zeros(1, dtype=torch.int64)


@settings(max_examples=100, deadline=None)
@given(profiles(), works, st.integers(0, 2**31), st.integers(0, 1000), st.data())
def test_a_faster_device_never_finishes_later(
    profile: DeviceProfile, work: Work, seed: int, k: int, data: st.DataObject
) -> None:
    """Faster in one way and as fast in all others, under the same draws; and time and energy never go back."""
    field = data.draw(st.sampled_from(["forward_ms", "backward_ms", "latency_ms", "down_mbit", "up_mbit"]))
    factor = data.draw(st.floats(1, 100))
    value = getattr(profile, field)
    faster = dataclasses.replace(profile, **{field: value * factor if field.endswith("mbit") else value / factor})
    seconds = Fleet((profile,), 1, seed).find_seconds(k, ALONE, work)
    sooner = Fleet((faster,), 1, seed).find_seconds(k, ALONE, work)
    assert 0 <= float(sooner) <= float(seconds) * (1 + 1e-12)
    assert math.isfinite(float(seconds))
    more = work._replace(rows=work.rows + 1)
    fleet = Fleet((profile,), 1, seed)
    assert float(fleet.find_seconds(k, ALONE, more)) >= float(seconds)
    assert float(fleet.find_joules(ALONE, more)) >= float(fleet.find_joules(ALONE, work)) >= 0


answers = st.lists(st.floats(0, 1e6) | st.just(math.inf), min_size=1, max_size=8).map(
    lambda seconds: torch.tensor(seconds, dtype=torch.float64)
)


@settings(max_examples=200, deadline=None)
@given(answers, st.floats(0, 1e6), st.integers(1, 8))
def test_closing_a_round(seconds: torch.Tensor, deadline: float, enough: int) -> None:
    """No deadline is sync; who counts is in time, at most so many; no faster client is left out for a slower one."""
    sync = close_round(seconds)
    assert sync.counts.equal(torch.isfinite(seconds))
    late = float(seconds[torch.isfinite(seconds)].max()) if sync.counts.any() else 0.0
    assert close_round(seconds, math.inf, None).seconds == sync.seconds == late
    found = close_round(seconds, deadline, enough)
    assert 0 <= found.seconds <= deadline
    assert int(found.counts.sum()) <= enough
    assert bool((seconds[found.counts] <= found.seconds).all())
    if found.counts.any() and not found.counts.all():
        assert seconds[found.counts].max() <= seconds[~found.counts].min()


@settings(max_examples=100, deadline=None)
@given(profiles(), st.integers(1, 50), st.integers(1, 64), st.floats(0, 1e5), st.integers(0, 2**31))
def test_steps_that_fit_are_in_time_and_one_more_is_not(
    profile: DeviceProfile, tau: int, batch: int, seconds: float, seed: int
) -> None:
    fleet, steps = Fleet((profile,), 1, seed), torch.tensor([tau])

    def take(count: int) -> Work:
        return Work(torch.tensor([count * batch + 7]), ALONE, 1000, 1000)

    fitting = int(fleet.fit_steps(3, ALONE, take(tau), steps, batch, seconds))
    assert 0 <= fitting <= tau
    if fitting:
        assert float(fleet.find_seconds(3, ALONE, take(fitting))) <= seconds
    if 0 < fitting < tau:
        assert float(fleet.find_seconds(3, ALONE, take(fitting + 1))) >= seconds * (1 - 1e-9)


def test_devices_are_drawn_by_seed_alone() -> None:
    """The same client has the same device whoever else is asked, and another seed draws others."""
    clients, phones = 2000, POPULATIONS["phones"]
    fleet = Fleet(phones, clients, seed=1)
    shares = {profile.name: fleet.names.count(profile.name) / clients for profile in phones}
    assert shares == pytest.approx({profile.name: profile.share for profile in phones}, abs=0.05)
    work = Work(torch.full((clients,), 100), torch.zeros(clients), 1000, 1000)
    everyone = fleet.find_seconds(4, torch.arange(clients), work)
    some = torch.tensor([3, 77, 1500])
    few = Work(torch.full((3,), 100), torch.zeros(3), 1000, 1000)
    alone = Fleet(phones, clients, seed=1).find_seconds(4, some, few)
    assert alone.equal(everyone[some])
    assert Fleet(phones, clients, seed=2).names != fleet.names
    there = fleet.find_available(4, torch.arange(clients)).double().mean()
    assert float(there) == pytest.approx(0.2 * 0.95 + 0.5 * 0.9 + 0.3 * 0.8, abs=0.03)


def test_the_prototype_of_wang_2019() -> None:
    """A step with 100 rows takes 13.0 ms (sd 6.9), an aggregation 131.6 ms (sd 53.9): their published measurement."""
    clients = 20_000
    fleet, ids = Fleet(POPULATIONS["five-raspberry-pis"], clients, seed=0), torch.arange(clients)
    nothing = torch.zeros(clients)
    network = fleet.find_seconds(0, ids, Work(nothing, nothing, 10**6, 10**6))
    step = fleet.find_seconds(0, ids, Work(nothing + 100, nothing, 0, 0)) - network
    for found, mean, sd in ((step, 0.013015, 0.006946), (network, 0.131604, 0.053873)):
        assert float(found.mean()) == pytest.approx(mean, rel=0.02)
        assert float(found.std()) == pytest.approx(sd, rel=0.05)


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({}, "devices=f has no profile"),
        ({"a": 3}, "a is not a table of fields"),
        ({"a": {"backwards_ms": 1}}, "a has backwards_ms, which is not known (did you mean backward_ms?); allowed: "),
        ({"a": {"backward_ms": -1}}, "a has backward_ms=-1; allowed: a number in [0, 1e12]"),
        ({"a": {"backward_ms": "fast"}}, "a has backward_ms='fast'; allowed: a number in [0, 1e12]"),
        ({"a": {"up_mbit": 0}}, "a has up_mbit=0; allowed: a number above 0, or inf"),
        ({"a": {"availability": 1.5}}, "a has availability=1.5; allowed: a share in [0, 1]"),
        ({"a": {"spread": math.nan}}, "a has spread=nan; allowed: a number in [0, 10]"),
        ({"a": {"latency_ms": True}}, "a has latency_ms=True; allowed: a number in [0, 1e12]"),
        ({"a": {"latency_ms": math.inf}}, "a has latency_ms=inf; allowed: a number in [0, 1e12]"),
        ({"a": {"share": 0.5}, "b": {}}, "b has no share, and others have one"),
        ({"a": {"share": 0.5}, "b": {"share": 0.4}}, "the shares add up to 0.9; they add up to 1"),
    ],
)
def test_mistakes_in_profiles(tables: dict[str, object], said: str) -> None:
    with pytest.raises(UserError) as caught:
        make_profiles(tables, "devices=f")
    assert said in str(caught.value)


def test_profiles_without_shares_are_the_clients() -> None:
    found = make_profiles({"a": {"forward_ms": "1.5"}, "b": {"up_mbit": "inf"}}, "devices=f")
    assert [(p.name, p.forward_ms, p.up_mbit) for p in found] == [("a", 1.5, math.inf), ("b", 0.0, math.inf)]
    assert Fleet(found, 2, seed=0).names == ["a", "b"]
    assert Fleet(found[:1], 3, seed=0).names == ["a", "a", "a"]
    with pytest.raises(UserError, match="devices=f has 2 profiles without a share for 3 clients; name one for each"):
        Fleet(found, 3, seed=0, said="devices=f")
