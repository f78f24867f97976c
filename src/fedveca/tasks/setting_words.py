"""Settings of words such as `crop:4,flip`: a kind each, and values after colons; read without PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

from fedveca.errors import UserError, printable, suggest


def split_words(setting: str, text: str, forms: Mapping[str, str]) -> dict[str, list[str]]:
    """Reads the words of a setting.

    Args:
        setting: Its name, for what is said of a mistake.
        text: Words with commas between them; empty for none.
        forms: How a word of each kind is written, such as `scale:SHARE:FACTOR`.

    Returns:
        The values of each word by its kind, in the order of the text.

    Raises:
        UserError: With one sentence where a kind is not known or stands there twice, or a word is not of its form.

    Example:
        >>> split_words("augment", "crop:4,flip", {"crop": "crop:PIXELS", "flip": "flip"})
        {'crop': ['4'], 'flip': []}
    """
    found: dict[str, list[str]] = {}
    said = f"{setting}={printable(text)}"
    for word in text.split(",") if text else ():
        kind, *values = word.strip().split(":")
        if kind not in forms:
            allowed = " | ".join(forms.values())
            raise UserError(f"{said}: {printable(repr(kind))} is not known{suggest(kind, forms)}; allowed: {allowed}")
        if kind in found:
            raise UserError(f"{said}: {kind} stands there twice")
        if len(values) != forms[kind].count(":"):
            raise UserError(f"{said}: {printable(repr(word.strip()))} is not of the form {forms[kind]}")
        found[kind] = values
    return found
