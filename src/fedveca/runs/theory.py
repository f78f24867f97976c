"""In how many rounds of a run the conditions of the paper's theory were met, counted where a run is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fedveca.errors import count_noun
from fedveca.runs.schema import SCHEMA, Condition, get_number

CONDITIONS = {name: quantity.condition for name, quantity in SCHEMA.items() if quantity.condition}


class ConditionCount(NamedTuple):
    """One condition of a run."""

    condition: Condition
    met: int
    rounds: int  # in which its value is known

    def describe(self) -> str:
        """One sentence."""
        if not self.rounds:
            return f"{self.condition.title}: no round has a value yet."
        return f"{self.condition.title} held in {self.met} of {count_noun(self.rounds, 'round')}."


def list_values(records: Iterable[Mapping[str, object]], name: str) -> list[tuple[int, float]]:
    """The rounds, counted from 0, in which a quantity of the theory is known, with its value."""
    found = ((k, get_number(record, name)) for k, record in enumerate(records))
    unknown = 0.0 if name in ("premise", "L") else None  # L is recorded as 0 while it is not known
    return [(k, v) for k, v in found if v is not None and v != unknown]


def count_conditions(records: Sequence[Mapping[str, object]]) -> dict[str, ConditionCount]:
    """By name, those that the run records; a run of a method without a controller has none."""
    counts = {}
    for name, condition in CONDITIONS.items():
        if values := list_values(records, name):
            counts[name] = ConditionCount(condition, sum(condition.is_met(v) for _, v in values), len(values))
    return counts
