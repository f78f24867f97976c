"""Numbers as a report contains them: short."""

from __future__ import annotations

from typing import TypeVar, cast

Nested = TypeVar("Nested")


def round_numbers(value: Nested, digits: int = 6) -> Nested:
    """Numbers to so many digits, through lists and tables; whole ones as such."""
    out: object = value
    if isinstance(value, dict):
        out = {key: round_numbers(v, digits) for key, v in value.items()}
    elif isinstance(value, list):
        out = [round_numbers(v, digits) for v in value]
    elif isinstance(value, float):
        out = int(value) if value.is_integer() and abs(value) < 2**53 else float(f"{value:.{digits}g}")
    return cast(Nested, out)
