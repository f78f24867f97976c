"""What an experiment will take on devices, before it starts: seconds, bytes, joules, memory and epsilon.

Where clients take the same steps whatever they learn, all of it is computed from the settings. Where a method adapts
its steps, clients come and go, or a target ends the run, the experiment is simulated first; the simulator has the
numbers that a deployment would have, so it takes the same steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from fedveca.algorithms.contract import Order
from fedveca.algorithms.registry import is_pooled
from fedveca.cohorts.clock.cohort import TimedCohort
from fedveca.cohorts.clock.profiles import DeviceProfile
from fedveca.errors import UserError, printable
from fedveca.runs.build import Built, build
from fedveca.runs.clock_settings import read_devices
from fedveca.runs.device_fit import TimePredictor, measure_rounds
from fedveca.runs.experiment import Experiment
from fedveca.runs.federate import RunningStatistics, choose_clients, compose_order
from fedveca.runs.folder import Run
from fedveca.runs.memory_plan import MemoryPlan, estimate_memory
from fedveca.runs.run import run
from fedveca.runs.schema import get_number

SIMULATED, COMPUTED = "simulated", "computed"


class PastRun(NamedTuple):
    """A run that has happened, and what would have been said before it."""

    folder: str
    rounds: int
    seconds: float  # of its rounds on the clients' devices
    predicted_seconds: float
    bytes: int
    predicted_bytes: int
    other_seconds: float  # per round, besides: the server's own work, and evaluations

    @property
    def seconds_error(self) -> float:
        return _compare(self.predicted_seconds, self.seconds)

    @property
    def bytes_error(self) -> float:
        return _compare(self.predicted_bytes, self.bytes)


class Plan(NamedTuple):
    """What an experiment will take."""

    way: str  # SIMULATED or COMPUTED
    rounds: int
    seconds: float  # of all rounds on the clients' devices, from each order to its last answer
    longest: float  # seconds of the longest round
    bytes_down: int
    bytes_up: int
    joules: float | None  # None where no device states what it uses
    epsilon: float | None  # None without differential privacy
    memory: MemoryPlan
    target: float  # 0 without one
    reached: bool  # whether the target was
    past: tuple[PastRun, ...] = ()

    @property
    def other_seconds(self) -> float | None:
        """What the server's own work and evaluations add, as in the past runs; None without any."""
        return self.rounds * math.fsum(p.other_seconds for p in self.past) / len(self.past) if self.past else None


def make_plan(e: Experiment, devices: str, *, target: float = 0.0, past: Iterable[Run] = ()) -> Plan:
    """Says what an experiment will take on devices.

    Args:
        e: The experiment, as it is to be run or deployed.
        devices: What the setting `devices` takes: a population, or a file of profiles.
        target: The test metric at which the run is to end; 0 for all rounds.
        past: Runs over these devices: what would have been said before each is compared with what it took.

    Returns:
        The plan.

    Raises:
        UserError: With one sentence, where settings, devices or runs do not fit, or the data are not here.
    """
    profiles = read_devices(devices)
    if is_pooled(e.method) and not profiles[0].share:
        profiles = profiles[:1]  # one client, that of all rows
    wanted = replace(e, devices=devices, target=target or e.target, track="")
    built = build(wanted)
    found = _compute(built, profiles) if _is_fixed(built, profiles) else _simulate(built, profiles)
    return found._replace(past=tuple(_look_back(former, devices) for former in past))


def _look_back(former: Run, devices: str) -> PastRun:
    """The plan of a past run, given how many rounds it had, next to what it took."""
    where = printable(str(former.folder), 400)
    measured, n = math.fsum(measure_rounds(former)), len(former.rounds)
    e = replace(former.experiment, rounds=n, target=0.0, patience=0, budget="", devices=devices)
    said = make_plan(e, devices)
    moved = [get_number(record, name) for record in former.rounds for name in ("bytes_down", "bytes_up")]
    if any(number is None for number in moved):
        raise UserError(f"{where} does not say how many bytes it sent; an older version made it")
    whole = get_number(former.summary, "seconds")
    other = max(0.0, whole - measured) / n if whole is not None and not former.experiment.devices else 0.0
    total = int(math.fsum(number or 0 for number in moved))
    return PastRun(where, n, measured, said.seconds, total, said.bytes_down + said.bytes_up, other)


def _is_fixed(built: Built, profiles: Sequence[DeviceProfile]) -> bool:
    """Whether who answers, and with how many steps, is known without learning anything."""
    e, method = built.experiment, built.algorithm
    ends = e.target or e.patience or e.budget
    learns = method.adapts or method.chooses or method.needs_timing
    absent = e.faults or e.schedule != "sync" or e.over_selection or any(p.availability < 1 for p in profiles)
    return not (ends or learns or absent)


def _compute(built: Built, profiles: Sequence[DeviceProfile]) -> Plan:
    e, cohort = built.experiment, _find_timed(built)
    predictor = TimePredictor(profiles, len(cohort.sizes), e.seed, f"devices={printable(e.devices)}")
    order, rule = _compose_first_order(built), cohort.rule
    seconds, down, up, joules = list[float](), 0, 0, 0.0
    for k in range(e.rounds):
        ids = choose_clients(cohort, k, e.participation, e.seed)
        tau = built.state.tau[ids] if built.steps is None else built.steps(k, ids)
        work = rule.count_work(order, ids, tau)
        seconds.append(predictor.predict_round(k, ids.tolist(), work))
        down, up = down + len(ids) * work.down, up + len(ids) * work.up
        joules += float(cohort.fleet.find_joules(ids, work).sum())
    return Plan(
        COMPUTED,
        e.rounds,
        math.fsum(seconds),
        max(seconds),
        down,
        up,
        joules if cohort.fleet.has_energy else None,
        built.account.spent_in_all(e.rounds) if built.account else None,
        estimate_memory(built),
        0.0,
        False,
    )


def _simulate(built: Built, profiles: Sequence[DeviceProfile]) -> Plan:
    e = built.experiment
    memory, cohort = estimate_memory(built), _find_timed(built)
    done = run(e, device="cpu")
    if done.diverged:
        raise UserError(f"the experiment diverges when it is simulated: {done.summary['stopped']}")
    seconds, records = measure_rounds(done), done.rounds
    if e.schedule == "sync" and not built.algorithm.chooses:  # the mean over the devices' spreads, not one draw of them
        predictor = TimePredictor(profiles, len(cohort.sizes), e.seed, f"devices={printable(e.devices)}")
        seconds = [predictor.predict_record(record, cohort.rule, 0.0) for record in records]
    down, up = (sum(record[name] for record in records) for name in ("bytes_down", "bytes_up"))
    return Plan(
        SIMULATED,
        len(done.rounds),
        math.fsum(seconds),
        max(seconds),
        down,
        up,
        get_number(done.summary, "joules"),
        get_number(done.summary, "epsilon"),
        memory,
        e.target,
        done.ended == "target",
    )


def _compose_first_order(built: Built) -> Order:
    running = RunningStatistics(built.statistics) if len(built.statistics) else None
    return compose_order(built.algorithm, built.state, running)


def _find_timed(built: Built) -> TimedCohort:
    """The cohort with the devices, below what differential privacy adds."""
    cohort: object = built.cohort
    while not hasattr(cohort, "fleet"):
        cohort = getattr(cohort, "cohort")  # noqa: B009
    return cohort  # type: ignore[return-value]


def _compare(predicted: float, measured: float) -> float:
    return predicted / measured - 1 if measured else math.inf
