"""Which version of this package a node runs, compared with the server's: in one sentence that says who is older."""

from __future__ import annotations

import re

from fedveca.cohorts.flower.messages import bound_text
from fedveca.version import __version__

_VERSION = re.compile(r"\d{1,6}(\.\d{1,6}){0,3}([a-z0-9.+-]{0,32})", re.ASCII)


def compare_version(stated: object, ours: str = __version__) -> str:
    """What is to be said of a node's version; nothing where it is the server's.

    Args:
        stated: what the node says; it may be anything.
        ours: the server's version.

    Returns:
        A sentence without its subject, such as "runs fedveca 0.1.0, which is older than the server's 0.2.0".
    """
    if stated == ours:
        return ""
    if stated is None:
        return f"does not say which fedveca it runs, so it is older than the server's {ours}; update the node"
    if not isinstance(stated, str) or not _VERSION.fullmatch(stated):
        return f"says it runs fedveca {bound_text(stated)}, which is not a version"
    theirs, here = _order_version(stated), _order_version(ours)
    if theirs == here:
        return f"runs fedveca {stated}, which is not the server's {ours}"
    older, update = ("older", "node") if theirs < here else ("newer", "server")
    return f"runs fedveca {stated}, which is {older} than the server's {ours}; update the {update}"


def _order_version(text: str) -> list[int]:
    """The numbers of a version; those that are missing at its end are 0."""
    head = re.match(r"[\d.]*", text)
    numbers = [int(part) for part in (head[0] if head else "").split(".") if part]
    return numbers + [0] * (4 - len(numbers))
