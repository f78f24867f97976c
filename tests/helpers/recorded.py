"""Numbers of a record that must be there."""

from __future__ import annotations

from collections.abc import Mapping

from fedveca.runs.schema import get_number


def require_number(record: Mapping[str, object], name: str) -> float:
    """A recorded number; an AssertionError where it is missing, null or not a number."""
    value = get_number(record, name)
    assert value is not None, f"no number {name} in {record}"
    return value
