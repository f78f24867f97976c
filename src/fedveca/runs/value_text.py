"""Recorded values as people read them: their numbers, their spreads and the names of metrics."""

from __future__ import annotations

from fedveca.runs.schema import describe_quantity, is_number


def format_value(name: str, value: object, digits: int = 4) -> str:
    """A recorded number for people: shares in per cent, others to so many decimals, a dash for none."""
    if not is_number(value):
        return "-"
    return f"{_fixed(100 * value, 2)} %" if describe_quantity(name).unit == "share" else _fixed(value, digits)


def format_spread(name: str, mean: object, spread: object) -> str:
    """A mean and its standard deviation for people, in the unit of the quantity but without its name."""
    if not is_number(mean) or not is_number(spread):
        return "-"
    scale, digits = (100, 2) if describe_quantity(name).unit == "share" else (1, 4)
    return f"{_fixed(scale * mean, digits)} ±{_fixed(scale * spread, digits)}"


def _fixed(value: float, digits: int) -> str:
    """So many decimals; a number too large for them to matter in short."""
    return f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.4g}"


def short_label(name: str) -> str:
    """A test value's name within a line: test_absolute_error is `absolute error`."""
    return name.removeprefix("test_").replace("_", " ")
