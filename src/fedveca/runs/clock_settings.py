"""The settings of simulated time, read without PyTorch: what they may be, and which of them go together."""

from __future__ import annotations

import csv
from typing import Literal, Protocol

from fedveca.cohorts.clock.profiles import POPULATIONS, DeviceProfile, make_profiles
from fedveca.errors import UserError, printable, suggest
from fedveca.runs.presets import read_text, read_toml

RoundSchedule = Literal["sync", "deadline", "buffered"]
ROUND_SCHEDULE_TEXTS: dict[RoundSchedule, str] = {
    "sync": "a round ends with the last answer",
    "deadline": "a round ends after `deadline` seconds, or with the last answer before that",
    "buffered": "clients work on models of different ages, and a round takes the first `buffer` answers (FedBuff)",
}
FILE_ENDINGS = (".toml", ".csv")
MOST_OVER = 10.0  # over_selection


class ClockSettings(Protocol):
    """The settings that are checked here, as `Experiment` has them."""

    @property
    def devices(self) -> str: ...
    @property
    def schedule(self) -> str: ...
    @property
    def deadline(self) -> float: ...
    @property
    def late(self) -> str: ...
    @property
    def over_selection(self) -> float: ...
    @property
    def buffer(self) -> int: ...
    @property
    def staleness(self) -> float: ...
    @property
    def keep(self) -> str: ...
    @property
    def budget(self) -> str: ...
    @property
    def val(self) -> float: ...
    @property
    def guard(self) -> str: ...
    @property
    def aggregate(self) -> str: ...
    @property
    def participation(self) -> float: ...
    @property
    def dp_noise(self) -> float: ...


def check_clock(e: ClockSettings) -> None:
    """UserError where the settings of simulated time are not known or do not go together."""
    if e.devices and e.devices not in POPULATIONS and not e.devices.endswith(FILE_ENDINGS):
        known, hint = ", ".join(POPULATIONS), suggest(e.devices, POPULATIONS)
        raise UserError(f"devices={printable(e.devices)} is not known{hint}; it is {known}, or a .toml or .csv file")
    for name, value, off in (("late", e.late, "drop"), ("over_selection", e.over_selection, 0.0)):
        if value != off and not e.devices:
            raise UserError(f"{name}={value} needs simulated devices, such as devices=uniform")
    if e.budget.startswith("clock") and not e.devices:
        raise UserError(f"budget={printable(e.budget)} needs simulated devices, such as devices=uniform")
    if e.schedule == "deadline" and not e.deadline:
        raise UserError("schedule=deadline needs a deadline in seconds, such as deadline=2")
    if e.schedule != "deadline" and e.deadline:
        raise UserError(f"deadline={e.deadline} needs schedule=deadline")
    if e.late != "drop" and e.schedule != "deadline":
        raise UserError(f"late={e.late} needs schedule=deadline")
    if e.buffer and e.schedule != "buffered":
        raise UserError(f"buffer={e.buffer} needs schedule=buffered")
    if e.schedule == "buffered":
        _check_buffered(e)
    if e.over_selection and e.participation >= 1:
        raise UserError(f"over_selection={e.over_selection} needs a participation below 1: no client is left to add")
    if e.over_selection and e.dp_noise:
        raise UserError(
            f"over_selection={e.over_selection} cannot go with dp_noise: epsilon is counted for clients that are drawn"
        )


def check_simulated(e: ClockSettings) -> None:
    """UserError where a simulation is to end its rounds by time, and nothing in it takes time."""
    if e.schedule != "sync" and not e.devices:
        raise UserError(
            f"schedule={e.schedule} needs simulated devices, such as devices=uniform, or the nodes of a deployment"
        )


def _check_buffered(e: ClockSettings) -> None:
    if e.keep != "last" and not (e.keep == "best" and e.val):
        raise UserError(
            f"keep={e.keep} cannot go with schedule=buffered, whose losses are of models of different ages; take "
            "keep=last, or keep=best with val=0.1"
        )
    for name, value, off, why in (
        ("guard", e.guard if e.guard == "on" else "", "", "the losses are of models of different ages"),
        ("aggregate", e.aggregate, "mean", "the answers of a round are of models of different ages"),
        ("dp_noise", e.dp_noise, 0.0, "epsilon is counted for clients that are drawn per round"),
        ("over_selection", e.over_selection, 0.0, "a round takes the first answers already"),
    ):
        if value != off:
            raise UserError(f"{name}={value} cannot go with schedule=buffered: {why}")


def read_devices(name: str) -> tuple[DeviceProfile, ...]:
    """The profiles that the setting `devices` names: a population, or a file of the user's.

    Args:
        name: Such as `phones`, `pi.toml` or `pi.csv`.

    Returns:
        The profiles, checked.

    Raises:
        UserError: With one sentence, where the file cannot be read or is not one of profiles.
    """
    if name in POPULATIONS:
        return POPULATIONS[name]
    said = f"devices={printable(name)}"
    return make_profiles(read_toml(name) if name.endswith(".toml") else _read_csv(name, said), said)


def _read_csv(name: str, said: str) -> dict[str, object]:
    """A profile per line under a heading of fields; an empty cell is the field's default."""
    lines = csv.DictReader(read_text(name).splitlines(), strict=True)
    tables: dict[str, object] = {}
    try:
        for n, row in enumerate(lines, 2):
            if None in row or None in row.values():
                raise UserError(f"{said}: line {n} has not as many cells as the heading")
            own = row.pop("name", "") or f"line {n}"
            if own in tables:
                raise UserError(f"{said}: two profiles are called {printable(own)}")
            tables[own] = {field.strip(): cell.strip() for field, cell in row.items() if cell.strip()}
    except csv.Error as error:
        raise UserError(f"{said} is not CSV: {printable(str(error))}") from error
    return tables
