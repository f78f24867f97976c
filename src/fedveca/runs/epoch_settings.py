"""The setting `epochs`, read without PyTorch: how often a client goes through its rows in a round."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from fedveca.errors import UserError, printable

MOST_EPOCHS = 10_000
_FORM = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(?:\.\.(\d{1,9}))?", re.ASCII)


class EpochSetting(NamedTuple):
    """Epochs per client and round: `low` where both are equal, else a whole number from low to high, at random."""

    low: Fraction
    high: Fraction

    @property
    def random(self) -> bool:
        return self.low < self.high

    def count_steps(self, rows: int, batch: int) -> int:
        """max(1, ceil(E D_i / B)) local steps, with the most epochs E."""
        return max(1, -int(-self.high * rows // batch))


def parse_epochs(text: str) -> EpochSetting | None:
    """Reads the setting `epochs`.

    Args:
        text: Such as `2`, `0.5` or `2..5`; empty where local steps are not counted in epochs.

    Returns:
        The epochs, exactly as they are written; None where the text is empty.

    Raises:
        UserError: With one sentence where the text is not of this form.
    """
    if not text:
        return None
    match = _FORM.fullmatch(text)
    if not match:
        raise UserError(f"epochs={printable(text)} is not a number such as 2 or 0.5, or a range such as 2..5")
    low, high = Fraction(match[1]), Fraction(match[2] or match[1])
    if not 0 < high <= MOST_EPOCHS or low <= 0:
        raise UserError(f"epochs={text} is out of range; allowed: more than 0, at most {MOST_EPOCHS}")
    if low > high or (match[2] and low.denominator > 1):
        raise UserError(f"epochs={text} is not a range of whole numbers, the smaller one first, such as 2..5")
    return EpochSetting(low, high)
