"""Nodes that run one app and no other.

Whoever controls a Flower server can send its nodes an app of any kind, which they run. A node whose folder holds
`pinned.json` compares each app with it, file by file, before anything of the app is written to disk or imported.
An app that differs is rejected: the server gets an error that says so, and the node stays in the federation.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict, cast

from fedveca.errors import UserError
from fedveca.runs.files import write_atomic

PIN_FILE = "pinned.json"
_PROJECT_FILE = "pyproject.toml"
_CODE = (".py", ".toml")
_TEXTS = (".md", ".txt", ".rst")  # what a person reads may differ
_MOST_BYTES = 16 * 1024 * 1024  # of an app, unpacked


class Pin(TypedDict):
    """What a node accepts."""

    files: dict[str, str]  # the SHA-256 of every file of code
    components: dict[str, str]  # what Flower loads
    model: str  # the model's name, since a name like `package.module:function` is code too
    method: str  # the method's name, for the same reason


class AppRejected(UserError):
    """An app that is not the pinned one."""


def describe_app(app: Path) -> Pin:
    """What is pinned of an app's folder; all settings but the names of code are the server's to choose.

    Raises:
        UserError: if the folder does not hold an app.
    """
    try:
        project = tomllib.loads((app / _PROJECT_FILE).read_text(encoding="utf-8"))
        files = {
            path.relative_to(app).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(app.rglob("*"))
            if path.suffix in _CODE and path != app / _PROJECT_FILE and path.is_file()
        }
        settings = project["tool"]["flwr"]["app"]
        model, method = (settings["config"].get(name, "") for name in ("model", "method"))
        return {"files": files, "components": settings["components"], "model": model, "method": method}
    except (OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(f"{app} is not a Flower app of FedVeca: {_PROJECT_FILE} cannot be read ({error})") from error


def pin(app: Path, nodes: list[Path]) -> None:
    """Lets each of these nodes' folders accept the app in `app` and no other."""
    content = json.dumps(describe_app(app), indent=1).encode()
    for node in nodes:
        if not node.is_dir():
            raise UserError(f"{node} is not the folder of a node")
    for node in nodes:
        write_atomic(node / PIN_FILE, content)


def read_pin(folder: Path) -> Pin | None:
    """What the node accepts; None where it accepts every app."""
    path = folder / PIN_FILE
    if not path.exists():
        return None
    try:
        pinned = json.loads(path.read_bytes())
        pinned = {"method": ""} | pinned  # a file of version 0.1 pins no method's code
        if set(pinned) == {"files", "components", "model", "method"}:
            return cast(Pin, pinned)
    except (OSError, ValueError, TypeError) as error:
        raise AppRejected(f"{path} cannot be read ({error}); no app is accepted") from error
    raise AppRejected(f"{path} is invalid; no app is accepted")


def check_app(content: bytes, pinned: Pin) -> None:
    """Raises AppRejected unless the FAB `content` holds the pinned app."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = [entry for entry in archive.infolist() if not entry.filename.startswith(".info/")]
            size, names = sum(entry.file_size for entry in entries), {entry.filename for entry in entries}
            if size > _MOST_BYTES or len(names) < len(entries):
                raise AppRejected("the server sent an app that is too large or contains a file twice")
            found = {entry.filename: _read(archive, entry) for entry in entries}
        components = tomllib.loads(found.pop(_PROJECT_FILE).decode())["tool"]["flwr"]["app"]["components"]
    except AppRejected:
        raise
    except Exception as error:  # an archive of a stranger may fail in many ways
        raise AppRejected(f"the server sent an app that cannot be read ({type(error).__name__})") from error
    sums = {name: hashlib.sha256(text).hexdigest() for name, text in found.items() if not name.endswith(_TEXTS)}
    other = sorted(name for name in {*sums, *pinned["files"]} if sums.get(name) != pinned["files"].get(name))
    if other or components != pinned["components"]:
        what = ", ".join(other[:3]) if other else "its components"
        raise AppRejected(f"the server sent another app than the one this node is pinned to: {what[:200]!r} differs")


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    with archive.open(entry) as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise AppRejected("the server sent an app that is too large")
    return content


def enforce_pin(folder: Path) -> None:
    """Makes Flower's client process check each app before it installs it, and load what it has just installed."""
    pinned = read_pin(folder)
    if pinned is None:
        return
    process: Any = importlib.import_module("flwr.supernode.runtime.run_clientapp")
    install: Callable[..., Path] = process.install_from_fab
    load: Callable[..., Callable[..., Any]] = process.get_load_client_app_fn
    placed: list[str] = []

    def check_and_install(content: bytes, *args: Any, **options: Any) -> Path:
        check_app(content, pinned)
        path = install(content, *args, **options)
        placed.append(str(path))
        return path

    def load_installed(**options: Any) -> Callable[..., Any]:
        return load(**options | {"app_path": placed[-1]})

    process.install_from_fab = check_and_install
    process.get_load_client_app_fn = load_installed
