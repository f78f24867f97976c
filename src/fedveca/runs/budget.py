"""The setting `budget`, read without PyTorch: what a run may use up, and what each of its rounds does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

from fedveca.errors import UserError, printable
from fedveca.runs.schema import finite_number, get_number
from fedveca.tasks.setting_words import split_words

CostKind = Literal["steps", "rows", "bytes", "seconds"]
COST_KINDS: tuple[CostKind, ...] = get_args(CostKind)
BudgetKind = CostKind | Literal["clock"]  # simulated seconds: of runs on simulated devices
BUDGET_KINDS: tuple[BudgetKind, ...] = (*COST_KINDS, "clock")
BUDGET_FORMS: dict[str, str] = {kind: f"{kind}:NUMBER" for kind in BUDGET_KINDS}
COST_NAMES: dict[CostKind, str] = {
    "steps": "local steps",
    "rows": "gradient rows",
    "bytes": "bytes sent",
    "seconds": "seconds",
}
HIGHEST_BUDGET = 1e15  # whole numbers up to it are exact


class RunBudget(NamedTuple):
    """What a run may use up, of one kind."""

    kind: BudgetKind
    total: float

    def __str__(self) -> str:
        return f"{self.kind}:{self.total:.15g}"

    @property
    def unit(self) -> str:
        """What the total counts, in words."""
        return "simulated seconds" if self.kind == "clock" else COST_NAMES[self.kind]

    def allows_another(self, spent: float, rounds: int) -> bool:
        """Whether one more round fits, at the mean cost of those so far: spent (k + 1) / k <= total."""
        return spent * (rounds + 1) <= self.total * rounds


def parse_budget(text: str) -> RunBudget | None:
    """Reads the setting `budget`.

    Args:
        text: Such as `rows:200000` or `clock:15`; empty where the rounds alone are the end of a run.

    Returns:
        The budget; None where the text is empty.

    Raises:
        UserError: With one sentence where the text is not of this form.
    """
    words = split_words("budget", text, BUDGET_FORMS)
    if not words:
        return None
    if len(words) > 1:
        raise UserError(f"budget={printable(text)} names {len(words)} kinds; it is one of {', '.join(BUDGET_KINDS)}")
    ((kind, (number,)),) = words.items()
    try:
        total = float(number)
    except ValueError:
        total = math.nan
    if not 0 < total <= HIGHEST_BUDGET:
        raise UserError(
            f"budget={printable(text)} is out of range; allowed: a number above 0, at most {HIGHEST_BUDGET:g}"
        )
    return RunBudget(next(known for known in BUDGET_KINDS if known == kind), total)


def add_cost(spent: float, record: Mapping[str, object], kind: BudgetKind) -> float:
    """What a run has used up with this round, where it was `spent` before; the clock is counted since the start."""
    if kind == "clock":
        return max(spent, get_number(record, "clock") or 0)
    return spent + measure_cost(record, kind)


def measure_cost(record: Mapping[str, object], kind: CostKind) -> float:
    """What a round used up: local steps, gradient rows, bytes both ways, or seconds; 0 where it was not recorded."""
    if kind == "steps":
        tau = record.get("tau")
        return sum(finite_number(t) or 0 for t in tau) if isinstance(tau, list) else 0
    if kind == "bytes":
        return (get_number(record, "bytes_up") or 0) + (get_number(record, "bytes_down") or 0)
    return get_number(record, kind) or 0
