"""Hyperparameters of a method: default, text and range on the class's own field, checked when an object is made."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeVar

from fedveca.errors import UserError, show_value

LARGEST = 2**31 - 1  # of whole numbers: counts beyond it would only fail later
LARGEST_FLOAT = 1e38  # of numbers: what float32 can hold
Number = TypeVar("Number", int, float)
OpenEnds = bool | Literal["low"]  # whether low and high themselves are excluded, or low alone


class Range(NamedTuple):
    """The values that a number may have."""

    low: float = -math.inf
    high: float = math.inf
    open_ends: OpenEnds = False

    def __str__(self) -> str:
        if math.isinf(self.high) and math.isinf(self.low):
            return "any finite number"
        left, right = "(" if self.open_ends else "[", ")" if self.open_ends is True else "]"
        if math.isinf(self.high):
            return f"{'>' if self.open_ends else '>='} {self.low}"
        return f"{left}{self.low}, {self.high}{right}"

    def check(self, name: str, value: object, kind: type[Number], allowed: str = "") -> Number:
        """The value as `kind`; UserError with one sentence where it is of another type or out of range.

        `allowed` is what the sentence says of the allowed values, where the range is not all of them.
        """
        allowed = allowed or str(self)
        if type(value) is int and abs(value) > 10**30:  # neither a float nor, beyond 4300 digits, a text
            raise UserError(f"{name} is out of range: a number of more than 30 digits; allowed: {allowed}")
        number = kind(value) if kind is float and type(value) is int else value
        if type(number) is not kind:
            raise UserError(f"{name}={show_value(value, 120)} is not {kind.__name__}; allowed: {allowed}")
        most = LARGEST if kind is int else LARGEST_FLOAT
        if most < number < math.inf:
            raise UserError(f"{name}={number} is out of range; at most {most}")
        above = self.low < number if self.open_ends else self.low <= number
        below = number < self.high if self.open_ends is True else number <= self.high
        if not (above and below) or not math.isfinite(number):
            raise UserError(f"{name}={number} is out of range; allowed: {allowed}")
        return number


LR = Range(low=0, open_ends=True)  # of every method's learning rate


class Hyper(NamedTuple):
    """What a field made by `hyper` declares."""

    default: int | float
    text: str
    range: Range


def hyper(
    default: Number, text: str = "", *, low: float = -math.inf, high: float = math.inf, open_ends: bool = False
) -> Number:
    """A hyperparameter of a method: a dataclass field whose range is checked wherever an object is made.

    Args:
        default: Its value where none is given; its type (int or float) is the field's.
        text: One line that says what it is.
        low: The smallest value.
        high: The largest value.
        open_ends: Whether low and high themselves are excluded.

    Returns:
        A dataclass field, typed as the number that it holds.

    Examples:
        >>> from fedveca import FedVeca
        >>> FedVeca(lr=0.1, alpha=2.0)
        Traceback (most recent call last):
        fedveca.errors.UserError: alpha=2.0 is out of range; allowed: (0, 1)
    """
    declared = Hyper(default, text, Range(low, high, open_ends))
    return dataclasses.field(default=default, metadata={"hyper": declared})


@cache
def hyperparameters(method: type) -> Mapping[str, Hyper]:
    """The fields of a method's dataclass that were declared with `hyper`."""
    fields = dataclasses.fields(method) if dataclasses.is_dataclass(method) else ()
    return MappingProxyType({field.name: field.metadata["hyper"] for field in fields if "hyper" in field.metadata})


def to_python(value: object) -> object:
    """A single number of NumPy or PyTorch as Python's; anything else as it is."""
    item = getattr(value, "item", None)
    return item() if getattr(value, "shape", None) == () and callable(item) else value
