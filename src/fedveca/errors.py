"""The user's mistakes, and how one sentence names a value."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

CLOSENESS = 0.66  # of a name to a choice that is suggested for it, as difflib measures it


class UserError(ValueError):
    """A mistake in what the user gave: its text is one sentence that names the value and what is allowed."""


def printable(text: str, most: int = 120) -> str:
    """A user's text as part of one sentence: on one line, printable, and bounded."""
    cut = text if len(text) <= most else f"{text[:most]}..."
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in cut)


def quoted(text: str) -> str:
    """The same, in quotes where it is empty or has spaces, which would not be seen."""
    return printable(text if text and not any(c.isspace() for c in text) else repr(text))


def show_value(value: object, most: int = 80) -> str:
    """Any value as part of a sentence: on one line and bounded."""
    try:
        text = " ".join(repr(value).split())
    except (RecursionError, ValueError):  # nested too deeply, or a number of thousands of digits in it
        return f"({type(value).__name__})"
    return text if len(text) <= most else f"{text[:most]}..."


def find_near(name: str, choices: Iterable[str]) -> str:
    """The choice that a name was probably meant to be, else nothing: two letters of three have to agree."""
    return next(iter(difflib.get_close_matches(name, list(choices), 1, CLOSENESS)), "")


def suggest(name: str, choices: Iterable[str]) -> str:
    """` (did you mean NAME?)` where a choice is near, else nothing."""
    near = find_near(name, choices)
    return f" (did you mean {near}?)" if near else ""


def count_noun(count: int, noun: str) -> str:
    """`1 round`, `2 rounds`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def explain_error(error: Exception) -> str:
    """One line of it, never none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
