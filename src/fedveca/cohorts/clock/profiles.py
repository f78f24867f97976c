"""Simulated devices, read without PyTorch: how fast each computes and sends, what that costs, how often it is there."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fedveca.errors import UserError, printable, show_value, suggest

MOST_PROFILES = 100_000
LATE_ANSWER = "late"  # what the record says of a client that does not count because of a deadline
LatePolicy = Literal["drop", "cut"]  # what becomes of clients that would be late


@dataclass(frozen=True)
class DeviceProfile:
    """One kind of device. Times are means; a spread is a standard deviation divided by its mean."""

    name: str
    share: float = 0.0  # of the clients that have such a device; 0 where profiles stand for clients one by one
    forward_ms: float = 0.0  # per row, to compute its loss
    backward_ms: float = 0.0  # per row, to compute its gradient after that
    latency_ms: float = 0.0  # of a message, in each direction
    down_mbit: float = math.inf  # per second
    up_mbit: float = math.inf
    availability: float = 1.0  # the probability that a client is there in a round
    joules_per_row: float = 0.0  # of a row whose gradient is computed
    joules_per_byte: float = 0.0
    spread: float = 0.0  # of the time to compute, from round to round
    network_spread: float = 0.0  # of the time of the messages, from round to round
    variety: float = 0.0  # of the speed, from device to device


_NUMBERS = tuple(field.name for field in dataclasses.fields(DeviceProfile) if field.name != "name")
_SHARES = ("share", "availability")
_RATES = ("down_mbit", "up_mbit")
MOST_SPREAD = 10.0
FORWARD_SHARE = 1 / 3  # of the time of a gradient is the forward pass: an assumption

POPULATIONS: dict[str, tuple[DeviceProfile, ...]] = {
    # Wang et al. 2019 measured 13.015156 ms (sd 6.946299) per local step with 100 rows of MNIST and 131.604348 ms (sd
    # 53.873234) per aggregation: the numbers of config.py in IBM/adaptive-federated-learning. How a step divides into
    # forward and backward is an assumption.
    "five-raspberry-pis": (
        DeviceProfile(
            "prototype",
            share=1.0,
            forward_ms=0.13015156 * FORWARD_SHARE,
            backward_ms=0.13015156 * (1 - FORWARD_SHARE),
            latency_ms=131.604348 / 2,
            spread=6.946299 / 13.015156,
            network_spread=53.873234 / 131.604348,
        ),
    ),
    # A plain assumption: no published measurement.
    "phones": (
        DeviceProfile("fast", 0.2, 0.05, 0.1, 30.0, 80.0, 20.0, 0.95, 2e-4, 2e-7, 0.2, 0.3, 0.3),
        DeviceProfile("medium", 0.5, 0.15, 0.3, 50.0, 30.0, 8.0, 0.9, 4e-4, 4e-7, 0.3, 0.4, 0.3),
        DeviceProfile("slow", 0.3, 0.6, 1.2, 80.0, 8.0, 2.0, 0.8, 8e-4, 8e-7, 0.4, 0.5, 0.3),
    ),
    # A plain assumption: devices that are all alike and always there.
    "uniform": (DeviceProfile("device", 1.0, 0.1, 0.2, 50.0, 10.0, 10.0, joules_per_row=1e-3, joules_per_byte=1e-6),),
}


def make_profiles(tables: Mapping[str, object], said: str) -> tuple[DeviceProfile, ...]:
    """The profiles of a file.

    Args:
        tables: The fields of each profile by its name, numbers or their text.
        said: What an error calls the file, such as `devices=pi.toml`.

    Returns:
        The profiles in their order. Either all have a share, and the shares add up to 1, or none has.

    Raises:
        UserError: With one sentence, where a field is not known or its value is not allowed.
    """
    if not tables:
        raise UserError(f"{said} has no profile; a profile is a table with fields such as backward_ms")
    if len(tables) > MOST_PROFILES:
        raise UserError(f"{said} has {len(tables)} profiles; at most {MOST_PROFILES}")
    profiles = tuple(_make_profile(printable(name), table, said) for name, table in tables.items())
    shares = [profile.share for profile in profiles]
    if any(shares) and not all(shares):
        without = next(profile.name for profile in profiles if not profile.share)
        raise UserError(f"{said}: {without} has no share, and others have one; name it for all profiles or for none")
    if any(shares):
        total = math.fsum(shares)
        if abs(total - 1) > 1e-6:
            raise UserError(f"{said}: the shares add up to {total:g}; they add up to 1")
    return profiles


def _make_profile(name: str, table: object, said: str) -> DeviceProfile:
    if not isinstance(table, Mapping):
        raise UserError(f"{said}: {name} is not a table of fields such as backward_ms")
    numbers: dict[str, float] = {}
    for field, value in table.items():
        if field not in _NUMBERS:
            hint = suggest(str(field), _NUMBERS)
            raise UserError(
                f"{said}: {name} has {printable(str(field))}, which is not known{hint}; allowed: {', '.join(_NUMBERS)}"
            )
        numbers[field] = _check_number(f"{said}: {name} has {field}={show_value(value)}", field, value)
    return DeviceProfile(name, **numbers)


def _check_number(said: str, field: str, value: object) -> float:
    try:
        number = float(value) if type(value) in (int, float, str) else math.nan  # type: ignore[arg-type]
    except (ValueError, OverflowError):
        number = math.nan
    if field in _SHARES:
        good, allowed = 0 <= number <= 1, "a share in [0, 1]"
    elif field in _RATES:
        good, allowed = number > 0, "a number above 0, or inf"
    elif field in ("spread", "network_spread", "variety"):
        good, allowed = 0 <= number <= MOST_SPREAD, f"a number in [0, {MOST_SPREAD:g}]"
    else:
        good, allowed = 0 <= number <= 1e12, "a number in [0, 1e12]"
    if not good:
        raise UserError(f"{said}; allowed: {allowed}")
    return number
