"""When a run ends before its last round: at its target, without improvement for too long, or with its budget."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

from fedveca.errors import UserError, count_noun
from fedveca.runs.budget import add_cost, parse_budget
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder_types import EndReason
from fedveca.runs.schema import SCHEMA, Direction, Round, get_number
from fedveca.runs.statistics import rounds_to_reach


class EarlyStopping:
    """Judges each round by its record alone, so that a run that was resumed ends in the same round.

    Args:
        e: The settings `target`, `patience` and `budget`.
        measure: The name of the first metric, such as accuracy.
        better: What a custom metric stated about itself.
        records: The rounds that are done.
        unit: What a custom metric stated as its unit.

    Raises:
        UserError: Where there is a target, but the metric does not state whether a higher value is better, or cannot
            reach it.
    """

    def __init__(
        self, e: Experiment, measure: str, better: Direction | None, records: Iterable[Round] = (), unit: str = ""
    ) -> None:
        self.target, self.patience = e.target, e.patience
        self.goal, self.watched = name_goal(e, measure), name_watched(e)
        known = SCHEMA.get(f"test_{measure}")
        self.better, records = known.better if known else better, list(records)
        is_share = (known.unit if known else unit) == "share"
        if e.target and is_share and not 0 < e.target <= 1 and not records:  # a run of before resumes as it was
            raise UserError(
                f"target={e.target:g} is out of range; allowed for {measure}: (0, 1], where 0.9 means 90 %; 0 is off"
            )
        if self.target and self.better is None:
            raise UserError(
                f"target={e.target:g} needs a metric that states whether a higher or a lower value is better; "
                f"{measure} does not: see fedveca.metric"
            )
        self.ended: Literal["", "target", "patience", "budget"] = ""
        self._budget, self._spent, self._counted = parse_budget(e.budget), 0.0, 0
        self._best, self._best_round = math.inf, -1
        for record in records:
            self.judge(record)

    def judge(self, record: Round) -> bool:
        """Whether the run ends with this round; the same record may be judged again, once it has test values."""
        value = get_number(record, self.watched)
        if value is not None and value < self._best:
            self._best, self._best_round = value, record["round"]
        if self.target and self.better and rounds_to_reach([get_number(record, self.goal)], self.target, self.better):
            self.ended = "target"
        elif self.patience and record["round"] - self._best_round >= self.patience:
            self.ended = "patience"
        elif self._exceeds_budget(record):
            self.ended = "budget"
        return bool(self.ended)

    def _exceeds_budget(self, record: Round) -> bool:
        """Whether another round would use up more than the budget; each round counts once."""
        if self._budget is None:
            return False
        if record["round"] >= self._counted:
            self._spent, self._counted = add_cost(self._spent, record, self._budget.kind), record["round"] + 1
        return not self._budget.allows_another(self._spent, self._counted)


def name_goal(e: Experiment, measure: str) -> str:
    """The recorded value that the target is for: that of the validation rows where there are any."""
    return f"{'val' if e.val else 'test'}_{measure}"


def name_watched(e: Experiment) -> str:
    """The recorded loss that has to fall: that of the validation rows where there are any, never of test rows."""
    return "val_loss" if e.val else "train_loss"


def describe_ending(e: Experiment, reason: EndReason, rounds: int) -> str:
    """Why a run ended before its last round, in words."""
    why = {
        "target": f"its target of {e.target:g} was reached",
        "patience": f"its loss had not fallen for {count_noun(e.patience, 'round')}",
        "budget": f"another round would exceed its budget of {e.budget}",
        "stop": "it was asked to stop",
    }
    of_all = "" if reason == "budget" else f" of {e.rounds}"  # which are more than anyone expects
    return f"it ended after round {rounds}{of_all}, because {why[reason]}"
