"""Modules that the user names: imported with the working folder on the path, as `python -m` does."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType


def import_module(name: str) -> ModuleType:
    """The module `name`, which may be a file in the working folder; whatever its code raises is the caller's."""
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)
