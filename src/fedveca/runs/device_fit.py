"""Device profiles fitted to what runs have recorded, and the time of rounds that such devices predict.

A client's seconds are those of `Fleet`: latency, bytes, and rows. A deployment's nodes report how long they worked, so
that seconds per row come from the work alone; what is left of the time between order and answer is the network's, and
whatever it takes to start the work. Where only whole times are known, as of simulated devices, one least-squares fit
finds all of it. What a row costs whose loss alone is computed is known where a method without a probe's gradient has
run; elsewhere it is taken for a third of a row whose gradient is computed, as in the built-in populations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls

from fedveca.cohorts.clock.cohort import WorkRule
from fedveca.cohorts.clock.fleet import Fleet, Work
from fedveca.cohorts.clock.profiles import FORWARD_SHARE, LATE_ANSWER, MOST_SPREAD, DeviceProfile
from fedveca.cohorts.clock.schedule import close_round
from fedveca.errors import UserError, printable
from fedveca.runs.build import cohort_options, make_method
from fedveca.runs.clock import make_work_rule
from fedveca.runs.experiment import Experiment
from fedveca.runs.files import read_object
from fedveca.runs.folder import Run
from fedveca.runs.schema import Round, get_number, is_count, is_number

DRAWS = 64  # of the devices' spreads, over which a predicted round is the mean
_VARIES = 0.05  # of the largest value: what differs by less says nothing about what depends on it
_PACKET = 1500  # bytes of one on most networks
_SURE = 4.0  # standard errors by which bytes must take time, before a bandwidth is believed: it is used far beyond
_WAITED = ("timed out", LATE_ANSWER)  # how the fault of a client begins for which a round waited in vain
KeepRound = Callable[[int], bool]


class ClientTime(NamedTuple):
    """When one client answered in one round, and what it had to do."""

    client: int
    rows: int  # whose gradient was computed
    loss_rows: int  # whose loss alone was
    down: int  # bytes
    up: int
    total: float  # seconds from the order to the answer
    work: float | None  # of them, those in which the node worked
    wait: float | None  # and those until it had the order
    losses: float | None  # seconds of the work that went into rows whose loss alone was computed


class RoundTime(NamedTuple):
    """A round's seconds, from its order to its last answer."""

    round: int
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """By what share the prediction is too long, or below 0 too short."""
        return self.predicted / self.measured - 1 if self.measured > 0 else math.inf


def collect_samples(run: Run, keep: KeepRound | None = None) -> list[ClientTime]:
    """The answers of a run in the rounds that `keep` wants, counted from 0; all without it."""
    rule, samples = make_rule(run), list[ClientTime]()
    for record in run.rounds:
        if keep is not None and not keep(record["round"]):
            continue
        samples += _read_samples(run, record, rule)
    return samples


def make_rule(run: Run) -> WorkRule:
    """What the clients of a run computed; UserError where the folder does not say how many rows they have."""
    e = run.experiment
    return make_work_rule(e, make_method(e), torch.tensor(read_sizes(run)), cohort_options(e))


def read_sizes(run: Run) -> list[int]:
    """The training rows of each client, as the run's folder states them."""
    environment: object = run.environment
    partition: object = {}
    if run.folder:
        environment = read_object(run.folder, "environment.json")
        partition = read_object(run.folder, "partition.json") if (run.folder / "partition.json").exists() else {}
    for found in (environment, partition):
        sizes = found.get("sizes") if isinstance(found, dict) else None
        if isinstance(sizes, list) and len(sizes) == run.experiment.clients:
            rows = [n for n in sizes if is_count(n) and n > 0]
            if len(rows) == len(sizes):
                return rows
    raise UserError(f"{_name(run)} does not say how many rows each of its clients has; an older version made it")


def _name(run: Run) -> str:
    return printable(str(run.folder), 400) if run.folder else "the run"


def _read_samples(run: Run, record: Round, rule: WorkRule) -> list[ClientTime]:
    ids = record["ids"]
    totals: Sequence[float | None] = record.get("client_seconds", [])
    if not ids or len(totals) != len(ids) or not all(0 <= i < len(rule.sizes) for i in ids):
        return []
    rows, loss_rows = rule.count_rows(torch.tensor(ids), torch.tensor(record["tau"]))
    asked = len(ids) + len(record["left_out"])
    down = record.get("order_bytes") or [round((get_number(record, "bytes_down") or 0) / asked)] * len(ids)
    up = record.get("answer_bytes") or [round((get_number(record, "bytes_up") or 0) / len(ids))] * len(ids)
    unknown: list[float | None] = [None] * len(ids)
    work, wait = record.get("work_seconds") or unknown, record.get("wait_seconds") or unknown
    probes = rule.algorithm.needs_gradient or rule.algorithm.needs_gradient_after
    losses = unknown if probes else record.get("probe_seconds") or unknown
    parts = (ids, rows.tolist(), loss_rows.tolist(), down, up, totals, work, wait, losses)
    if any(len(part) != len(ids) for part in parts):
        raise UserError(f"round {record['round'] + 1} of {_name(run)} has lists of different lengths")
    return [ClientTime(*each) for each in zip(*parts, strict=True) if is_number(each[5]) and each[5] >= 0]


def fit_devices(samples: Iterable[ClientTime], clients: int) -> tuple[DeviceProfile, ...]:
    """A profile for each of N clients.

    Args:
        samples: Their answers, of one run or of several over the same devices.
        clients: N.

    Returns:
        Profiles without shares: the first is client 0's, and so on.

    Raises:
        UserError: Where a client has no answer among them.
    """
    of = _group(samples)
    missing = [i for i in range(clients) if i not in of]
    if missing:
        raise UserError(
            f"client {missing[0]} has no answer with a time in these rounds; a run records `client_seconds` over Flower"
            " or with devices"
        )
    return tuple(_fit_device(f"client-{i}", of[i]) for i in range(clients))


def _group(samples: Iterable[ClientTime]) -> dict[int, list[ClientTime]]:
    of: dict[int, list[ClientTime]] = {}
    for sample in samples:
        of.setdefault(sample.client, []).append(sample)
    return of


def _fit_device(name: str, samples: Sequence[ClientTime]) -> DeviceProfile:
    down, up, total, plain, lossy = (
        np.array([getattr(s, field) for s in samples], dtype=np.float64)
        for field in ("down", "up", "total", "rows", "loss_rows")
    )
    forward = _fit_forward(samples)
    if forward is None:
        rows, extra = plain + FORWARD_SHARE * lossy, np.zeros_like(total)
    else:
        rows, extra = plain, forward * lossy
    moved = down + up
    known = [s.work for s in samples if s.work is not None]
    if len(known) == len(samples):
        work = np.array(known) - extra
        per_row = _fit(work, rows, np.ones_like(rows))[0] if _varies(rows) else _divide(work.mean(), rows.mean())
        network = total - np.array(known)
        noise = work - work.mean() - per_row * (rows - rows.mean())
    else:
        columns = [rows] * _varies(rows) + [moved] * _differs(moved)
        found = _fit(total - extra, np.ones_like(total), *columns)
        per_row = found[1] if _varies(rows) else 0.0
        network = total - per_row * rows - extra
        noise = np.zeros_like(total)
    down_rate, up_rate = _fit_rates(samples, network, down, up)
    rest = total - extra - per_row * rows - down / down_rate - up / up_rate
    latency = max(0.0, float(rest.mean()) / 2)
    messages = network - network.mean() - (down - down.mean()) / down_rate - (up - up.mean()) / up_rate
    computing = float((per_row * rows + extra).mean())
    each = per_row * FORWARD_SHARE if forward is None else min(forward, per_row)
    moving = 2 * latency + float((down / down_rate + up / up_rate).mean())
    return DeviceProfile(
        name,
        forward_ms=1000 * each,
        backward_ms=1000 * (per_row - each),
        latency_ms=1000 * latency,
        down_mbit=down_rate / 125_000,
        up_mbit=up_rate / 125_000,
        spread=_limit_spread(_deviate(noise), computing),
        network_spread=_limit_spread(_deviate(messages), moving),
    )


def _fit_forward(samples: Sequence[ClientTime]) -> float | None:
    """Seconds to compute the loss of a row, where clients have computed losses alone and said how long that took."""
    known = [(s.losses, s.loss_rows) for s in samples if s.losses is not None and s.loss_rows]
    rows = sum(count for _, count in known)
    return math.fsum(seconds for seconds, _ in known) / rows if rows else None


def _fit_rates(
    samples: Sequence[ClientTime], network: NDArray[np.float64], down: NDArray[np.float64], up: NDArray[np.float64]
) -> tuple[float, float]:
    """Bytes per second down and up; inf where all messages were equally long, so that nothing can be known."""
    waits = [s.wait for s in samples if s.wait is not None]
    if len(waits) == len(samples) and all(s.work is not None for s in samples):
        wait = np.array(waits)
        return _fit_rate(wait, down), _fit_rate(network - wait, up)
    both = _fit_rate(network, down + up)
    return both, both


def _fit_rate(seconds: NDArray[np.float64], moved: NDArray[np.float64]) -> float:
    if not _differs(moved):
        return math.inf
    per_byte, constant = _fit(seconds, moved, np.ones_like(moved))
    noise = float(((seconds - constant - per_byte * moved) ** 2).sum()) / max(1, len(moved) - 2)
    error = math.sqrt(noise / float(((moved - moved.mean()) ** 2).sum()))
    return 1 / per_byte if per_byte > max(_SURE * error, 1e-15) else math.inf


def _fit(y: NDArray[np.float64], *columns: NDArray[np.float64]) -> list[float]:
    """The coefficients, none below 0, with which the columns add up to y at the least squares."""
    scale = [float(np.abs(column).max()) or 1.0 for column in columns]
    found, _ = nnls(np.stack([column / s for column, s in zip(columns, scale, strict=True)], axis=1), y)
    return [float(c) / s for c, s in zip(found, scale, strict=True)]


def _varies(values: NDArray[np.float64]) -> bool:
    return float(values.max() - values.min()) > _VARIES * float(values.max())


def _differs(moved: NDArray[np.float64]) -> bool:
    """Whether messages differ by more than a packet: shorter ones take the same time."""
    return len(moved) > 2 and float(moved.max() - moved.min()) > _PACKET


def _deviate(values: NDArray[np.float64]) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


def _limit_spread(deviation: float, mean: float) -> float:
    """Divided by the mean; none where it is only rounding."""
    return min(share, MOST_SPREAD) if (share := _divide(deviation, mean)) > 1e-9 else 0.0


def _divide(a: float, b: float) -> float:
    return float(a / b) if b > 0 else 0.0


class TimePredictor:
    """The time of rounds on devices: the mean over draws of their spreads."""

    def __init__(self, profiles: Sequence[DeviceProfile], clients: int, seed: int = 0, said: str = "devices") -> None:
        still = not any(p.spread or p.network_spread or p.variety or p.share for p in profiles)
        self.fleets = [Fleet(profiles, clients, seed + n, said) for n in range(1 if still else DRAWS)]

    def predict_round(self, k: int, ids: Sequence[int], work: Work, deadline: float = math.inf) -> float:
        """Seconds of round k, in which these clients answer."""
        if not ids:
            return 0.0
        who = torch.tensor(ids)
        each = [close_round(fleet.find_seconds(k, who, work), deadline).seconds for fleet in self.fleets]
        return math.fsum(each) / len(each)

    def predict_record(self, record: Round, rule: WorkRule, timeout: float) -> float:
        """Seconds of a recorded round, given who answered and how many local steps each took."""
        ids, tau = record["ids"], torch.tensor(record["tau"])
        waited = any(fault["what"].startswith(_WAITED) for fault in record.get("faults", []))
        if not ids:
            return timeout if waited else 0.0
        rows, loss_rows = rule.count_rows(torch.tensor(ids), tau)
        asked = len(ids) + len(record["left_out"])
        down = (get_number(record, "bytes_down") or 0) / asked
        up = (get_number(record, "bytes_up") or 0) / len(ids)
        found = self.predict_round(record["round"], ids, Work(rows, loss_rows, round(down), round(up)))
        return max(found, timeout) if waited else found


def find_limit(e: Experiment) -> float:
    """Seconds for which a round of a deployment waits at the most."""
    return min(e.deadline, e.round_timeout) if e.schedule == "deadline" else e.round_timeout


def measure_rounds(run: Run) -> list[float]:
    """Seconds of each round on the clients' devices, as the run recorded them."""
    clock = [get_number(record, "clock") for record in run.rounds]
    if not clock or any(at is None for at in clock):
        raise UserError(f"{_name(run)} has no times of its clients: a run records them over Flower, or with devices")
    ends = [0.0, *(at or 0.0 for at in clock)]
    return [after - before for before, after in pairwise(ends)]


def predict_own_rounds(run: Run) -> list[RoundTime]:
    """Every round of a run as others predict it: the even ones by devices fitted to the odd ones, and the reverse.

    A client that has answered in rounds of one parity only is fitted to those.
    """
    clients, rule, measured = run.experiment.clients, make_rule(run), measure_rounds(run)
    if len(run.rounds) < 2:
        raise UserError(f"{_name(run)} has one round; a prediction needs another one to fit devices to")
    halves = [_group(collect_samples(run, keep)) for keep in (lambda k: k % 2 == 1, lambda k: k % 2 == 0)]
    nobody = {i: DeviceProfile(f"client-{i}") for i in range(clients)}  # who has never answered needs no time
    fitted = []
    for of in (halves[1] | halves[0], halves[0] | halves[1]):
        profiles = nobody | {i: _fit_device(f"client-{i}", samples) for i, samples in of.items()}
        fitted.append(TimePredictor([profiles[i] for i in range(clients)], clients))
    timeout = find_limit(run.experiment)
    return [
        RoundTime(k, measured[k], fitted[k % 2].predict_record(record, rule, timeout))
        for k, record in enumerate(run.rounds)
    ]


def write_devices(profiles: Sequence[DeviceProfile], note: str) -> str:
    """Profiles as the TOML that the setting `devices` reads, with a comment of where they come from."""
    lines = [f"# {printable(note, 400)}"]
    for profile in profiles:
        lines += ["", f"[{profile.name}]"]
        for name in ("forward_ms", "backward_ms", "latency_ms", "down_mbit", "up_mbit", "spread", "network_spread"):
            value = getattr(profile, name)
            lines += [f"{name} = {value:.6g}"] if math.isfinite(value) else []
    return "\n".join(lines) + "\n"
