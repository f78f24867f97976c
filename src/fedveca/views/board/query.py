"""What an address of the board asks for, checked."""

from __future__ import annotations

import math
import time

from fedveca.errors import UserError


class Query:
    """What an address asks for, checked; UserError in one sentence."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self.pairs, self.asked = pairs, time.monotonic()

    def many(self, key: str, most: int) -> list[str]:
        values = list(dict.fromkeys(v for k, v in self.pairs if k == key))
        if len(values) > most:
            raise UserError(f"{len(values)} times {key} is too many; at most {most}")
        return values

    def one(self, key: str) -> str:
        values = self.many(key, 1)
        if not values:
            raise UserError(f"{key} is missing")
        return values[0]

    def choice(self, key: str, allowed: tuple[str, ...]) -> str:
        value = (self.many(key, 1) or [allowed[0]])[0]
        if value not in allowed:
            raise UserError(f"{key}={value} is not known; allowed: {' | '.join(allowed)}")
        return value

    def number(self, key: str, default: float) -> float:
        values = self.many(key, 1)
        try:
            value = float(values[0]) if values else default
        except ValueError:
            value = math.nan
        if math.isnan(value):
            raise UserError(f"{key}={values[0]} is not a number")
        return value

    def whole(self, key: str, default: int, low: int, high: int) -> int:
        value = self.number(key, default)
        if not low <= value <= high or value != int(value):
            raise UserError(f"{key}={value:g} is out of range; allowed: {low} to {high}")
        return int(value)
