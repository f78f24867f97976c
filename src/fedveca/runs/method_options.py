"""The setting method_options: values of a method's hyperparameters that are not settings themselves."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable

from fedveca.errors import UserError, find_near, printable

Option = bool | int | float | str
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_FLAGS = {"true": True, "on": True, "false": False, "off": False}
_READERS: dict[type, tuple[Callable[[str], Option], str]] = {
    bool: (lambda text: _FLAGS[text.lower()], "on or off"),
    int: (int, "a whole number"),
    float: (float, "a number"),
    str: (str, "text"),
}


def parse_method_options(text: str) -> dict[str, str]:
    """`q=2,personal=fc1 fc2` as names and values; UserError where it is something else.

    Examples:
        >>> parse_method_options("q=2,personal=fc1 fc2")
        {'q': '2', 'personal': 'fc1 fc2'}
    """
    out: dict[str, str] = {}
    for word in text.split(",") if text else ():
        name, equals, value = (part.strip() for part in word.partition("="))
        if not equals or not _NAME.fullmatch(name) or name in out:
            said = "is named twice" if name in out else "is not NAME=VALUE"
            raise UserError(f"method_options={printable(text)}: {printable(repr(word.strip()))} {said}")
        out[name] = value
    return out


def read_method_options(text: str, algorithm: type, method: str, settings: Collection[str]) -> dict[str, Option]:
    """The values for the fields of a method's class, of their types; UserError where it has no such field.

    Args:
        text: The setting.
        algorithm: The method's class.
        method: Its name.
        settings: The names of all settings: a field that is a setting is set by it.
    """
    fields = {field.name: field for field in dataclasses.fields(algorithm) if field.name not in settings}
    out: dict[str, Option] = {}
    for name, value in parse_method_options(text).items():
        said = f"method_options={printable(text)}: {name}"
        if name in settings:
            raise UserError(f"{said} is a setting of its own: {name}={printable(value)}")
        if name not in fields:
            near = find_near(name, fields)
            known = f"did you mean {near}?" if near else f"it has {', '.join(fields) or 'none'}"
            raise UserError(f"{said} is not a hyperparameter of method={printable(method)}; {known}")
        kind = type(fields[name].default)
        if kind not in _READERS:
            raise UserError(f"{said} is of type {kind.__name__}, which a text cannot give; pass an object from Python")
        read, allowed = _READERS[kind]
        try:
            out[name] = read(value)
        except (KeyError, ValueError):
            raise UserError(f"{said}={printable(value)} is not {allowed}") from None
    return out


def check_method_options(text: str, algorithms: Iterable[type]) -> None:
    """UserError where none of several methods has a hyperparameter of the name."""
    known = list(dict.fromkeys(field.name for algorithm in algorithms for field in dataclasses.fields(algorithm)))
    for name in parse_method_options(text):
        if name not in known:
            raise UserError(f"method_options={printable(text)}: none of the methods has a hyperparameter {name}")


def keep_method_options(text: str, algorithm: type) -> str:
    """Those that a method's class has, for a comparison of several methods."""
    fields = {field.name for field in dataclasses.fields(algorithm)}
    return ",".join(f"{name}={value}" for name, value in parse_method_options(text).items() if name in fields)
