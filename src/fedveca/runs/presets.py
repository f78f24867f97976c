"""TOML files: the package's presets and those of the user, as tables that are not checked yet."""

from __future__ import annotations

import stat
import tomllib
from importlib import resources
from pathlib import Path

from fedveca.errors import UserError, printable, quoted, suggest

PRESET_BYTES = 2**20  # of a TOML file
DOTS = 4096  # of a TOML file: the time and memory of a dotted key grow with the square of its parts


def read_toml(name: str) -> dict[str, object]:
    """The tables of a TOML file of the user's."""
    return load_toml(read_text(name), printable(name))


def read_text(name: str) -> str:
    """The text of a small file of the user's."""
    try:
        return _read_file(Path(name))
    except FileNotFoundError as error:
        raise UserError(f"{printable(name)} does not exist") from error
    except (OSError, ValueError) as error:  # not UTF-8, or a name that no file can have
        raise UserError(f"{printable(name)} cannot be read: {printable(str(error))}") from error


def load_toml(text: str, source: str) -> dict[str, object]:
    """The tables of a text in TOML; `source` is what an error calls it."""
    if text.count(".") > DOTS:
        raise UserError(f"{source} is not a table of settings: it holds more than {DOTS} dots")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits are the former too
        why = "nested too deeply" if isinstance(error, RecursionError) else printable(str(error))
        raise UserError(f"{source} is not TOML: {why}") from error


def _read_file(path: Path) -> str:
    if path.exists() and not (stat.S_ISREG(path.stat().st_mode) or path.is_dir()):
        raise UserError("it is not a regular file")  # a pipe or a device may have no end
    with open(path, "rb") as file:
        content = file.read(PRESET_BYTES + 1)
    if len(content) > PRESET_BYTES:
        raise UserError(f"it is longer than {PRESET_BYTES} bytes")
    return content.decode("utf-8")


def presets() -> list[str]:
    names = (path.name for path in (resources.files("fedveca") / "presets").iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def load_preset(name: str) -> dict[str, object]:
    """The keys of a preset of the package, or of a TOML file of the user's."""
    if name.endswith(".toml"):
        return read_toml(name)
    if name not in presets():
        hint = suggest(name, presets())
        all_of_them = ", ".join(presets())
        raise UserError(f"preset {quoted(name)} is not known{hint}; it is one of {all_of_them}, or a .toml file")
    return load_toml((resources.files("fedveca") / "presets" / f"{name}.toml").read_text("utf-8"), name)
