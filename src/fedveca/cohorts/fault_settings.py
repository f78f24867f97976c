"""The setting `faults`, read without PyTorch: what goes wrong, how often and by how much."""

from __future__ import annotations

import math
from typing import NamedTuple

from fedveca.errors import UserError
from fedveca.tasks.setting_words import split_words

DROP, CRASH, LATE = "drop", "crash", "late"
NAN, SCALE, FLIP, LIE = "nan", "scale", "flip", "lie"
ABSENCES = (CRASH, DROP, LATE)  # by chance, round by round
ATTACKS = (NAN, SCALE, FLIP, LIE)  # of a share of the clients, the same ones in every round
FAULT_FORMS = {
    DROP: "drop:P",
    CRASH: "crash:P:ROUNDS",
    LATE: "late:P",
    NAN: "nan:SHARE",
    SCALE: "scale:SHARE:FACTOR",
    FLIP: "flip:SHARE",
    LIE: "lie:SHARE",
}
LARGEST_FACTOR = 1e38  # what float32 can hold


class FaultSetting(NamedTuple):
    """One kind of fault, as the setting `faults` asks for it."""

    kind: str
    rate: float  # chance of a client in a round, or share of the clients
    extent: float  # rounds of a crash, factor of a scaling


def parse_faults(text: str) -> dict[str, FaultSetting]:
    """Reads the setting `faults`.

    Args:
        text: Such as `drop:0.2,scale:0.1:10`.

    Returns:
        The faults by their kind.

    Raises:
        UserError: With one sentence where the text is not of this form.
    """
    found: dict[str, FaultSetting] = {}
    for kind, values in split_words("faults", text, FAULT_FORMS).items():
        numbers = [_parse_number(value) for value in values]
        if not 0 <= numbers[0] <= 1:
            word = ":".join((kind, *values))
            raise UserError(f"faults={text}: {word!r} is not {FAULT_FORMS[kind]} with a share in [0, 1]")
        extent = numbers[1] if len(numbers) > 1 else 1.0
        if kind == CRASH and not (1 <= extent <= 10**6 and extent == int(extent)):
            raise UserError(f"faults={text}: a crash lasts a whole number of rounds, 1 or more, not {values[1]}")
        if not math.isfinite(extent):
            raise UserError(f"faults={text}: a factor is a finite number, not {values[1]}")
        if abs(extent) > LARGEST_FACTOR:
            allowed = f"[{-LARGEST_FACTOR}, {LARGEST_FACTOR}]"
            raise UserError(f"faults={text}: a factor is a number in {allowed}, not {values[1]}")
        found[kind] = FaultSetting(kind, numbers[0], extent)
    share = sum(fault.rate for fault in found.values() if fault.kind in ATTACKS)
    if share > 1 + 1e-9:
        raise UserError(f"faults={text}: the shares of {', '.join(ATTACKS)} add up to {share:g}; at most 1")
    return found


def _parse_number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return math.nan
