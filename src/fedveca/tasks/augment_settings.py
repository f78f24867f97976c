"""The setting `augment`, read without PyTorch: which random changes the rows of a local step pass through."""

from __future__ import annotations

from typing import NamedTuple

from fedveca.errors import UserError, printable, suggest

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
    found: dict[str, AugmentStep] = {}
    for word in text.split(",") if text else ():
        kind, *values = word.strip().split(":")
        if kind not in AUGMENT_FORMS:
            hint, forms = suggest(kind, AUGMENT_FORMS), " | ".join(AUGMENT_FORMS.values())
            raise UserError(f"augment={printable(text)}: {printable(repr(kind))} is not known{hint}; allowed: {forms}")
        if kind in found:
            raise UserError(f"augment={printable(text)}: {kind} stands there twice")
        if len(values) != AUGMENT_FORMS[kind].count(":"):
            wrong = printable(repr(word.strip()))
            raise UserError(f"augment={printable(text)}: {wrong} is not of the form {AUGMENT_FORMS[kind]}")
        found[kind] = AugmentStep(kind, _parse_pixels(text, word.strip(), values[0]) if values else 0)
    return tuple(found.values())


def _parse_pixels(text: str, word: str, value: str) -> int:
    pixels = int(value) if value.isascii() and value.isdigit() and len(value) < 10 else 0
    if not 1 <= pixels <= MOST_PIXELS:
        said = f"augment={printable(text)}: {printable(repr(word))}"
        raise UserError(f"{said} needs a whole number of pixels from 1 to {MOST_PIXELS}")
    return pixels
