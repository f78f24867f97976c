"""What a run folder may hold as records: lines and summaries are checked before anything reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NoReturn, TypeGuard

from fedveca.errors import UserError, printable
from fedveca.runs.folder_types import Json, Summary
from fedveca.runs.schema import Quantity, Round, find_quantity, is_count, is_number


def parse_object(text: str, where: str) -> dict[str, Json]:
    """The names and values of a JSON object."""
    try:
        out = json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise UserError(f"{where} is not JSON: {why}") from error
    if not isinstance(out, dict):
        raise UserError(f"{where} is not a JSON object")
    return out


def validate_round(record: Mapping[str, object], k: int) -> TypeGuard[Round]:
    """True where every known quantity of line k has a value that a run can have written; UserError elsewhere."""
    for name, value in record.items():
        quantity = find_quantity(name)
        if quantity and not _is_valid(quantity, value):
            raise UserError(f"line {k + 1} of rounds.jsonl: invalid value for {name}")
    if record.get("round") != k or type(record.get("round")) is not int:
        raise UserError(f"line {k + 1} of rounds.jsonl: invalid value for round")
    return True


def validate_summary(summary: Mapping[str, object]) -> TypeGuard[Summary]:
    """The same of the closing summary."""
    wrong = [] if is_count(summary.get("tau_all")) else ["tau_all"]
    wrong += [name for name in ("last", "kept") if not _is_result(summary.get(name))]
    if wrong:
        raise UserError(f"summary.json: invalid value for {wrong[0]}")
    return True


def _is_valid(quantity: Quantity, value: object) -> bool:
    if quantity.kind == "flag":
        return isinstance(value, bool)
    if quantity.kind == "text":
        return isinstance(value, str)
    if quantity.kind == "faults":
        return isinstance(value, list)
    good = is_count if quantity.whole else _is_number_or_null
    if quantity.kind == "table":
        return isinstance(value, list) and all(isinstance(row, list) and all(map(good, row)) for row in value)
    if quantity.kind in ("per client", "per tested client", "per candidate", "clients"):
        return isinstance(value, list) and all(map(good, value))
    return good(value)


def _is_result(value: object) -> bool:
    if not isinstance(value, dict) or not is_count(value.get("round")) or "test_loss" not in value:
        return False
    return all(_is_valid(find_quantity(name) or Quantity(name, name), each) for name, each in value.items())


def _is_number_or_null(value: object) -> bool:
    return value is None or is_number(value)


def _reject_constant(word: str) -> NoReturn:
    raise UserError(f"{printable(word)} is not a JSON number")
