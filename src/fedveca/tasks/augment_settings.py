"""The setting `augment`, read without PyTorch: which random changes the rows of a local step pass through."""

from __future__ import annotations

from typing import NamedTuple

from fedveca.errors import UserError, printable
from fedveca.tasks.setting_words import split_words

CROP, FLIP_SIDES, CUTOUT = "crop", "flip", "cutout"
AUGMENT_FORMS = {CROP: "crop:PIXELS", FLIP_SIDES: "flip", CUTOUT: "cutout:SIDE"}
MOST_PIXELS = 1024  # of a padding or of a side


class AugmentStep(NamedTuple):
    """One random change of a batch, as the setting `augment` asks for it."""

    kind: str
    pixels: int  # of padding at each side, or of the side of a square; 0 for a flip


def parse_augment(text: str) -> tuple[AugmentStep, ...]:
    """Reads the setting `augment`.

    Args:
        text: Such as `crop:4,flip,cutout:8`.

    Returns:
        The steps, in the order in which they are applied.

    Raises:
        UserError: With one sentence where the text is not of this form.
    """
    words = split_words("augment", text, AUGMENT_FORMS)
    return tuple(
        AugmentStep(kind, _parse_pixels(text, kind, *values) if values else 0) for kind, values in words.items()
    )


def _parse_pixels(text: str, kind: str, value: str) -> int:
    pixels = int(value) if value.isascii() and value.isdigit() and len(value) < 10 else 0
    if not 1 <= pixels <= MOST_PIXELS:
        said = f"augment={printable(text)}: {printable(repr(f'{kind}:{value}'))}"
        raise UserError(f"{said} needs a whole number of pixels from 1 to {MOST_PIXELS}")
    return pixels
