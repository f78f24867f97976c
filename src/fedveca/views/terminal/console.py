"""Where the terminal's text goes: plain where colours are not wanted, and without PyTorch."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import NoReturn

from rich.console import Console


class PipeConsole(Console):
    """A console whose reader may leave early: BrokenPipeError is for whoever started the program."""

    def on_broken_pipe(self) -> NoReturn:
        """Rich would end the program here."""
        raise BrokenPipeError


def make_console(stderr: bool = False) -> Console:
    """A console in colour where that is a terminal, unless NO_COLOR, CI or TERM=dumb say otherwise."""
    plain = any(map(os.environ.get, ("NO_COLOR", "CI"))) or os.environ.get("TERM") == "dumb"
    return PipeConsole(stderr=stderr, highlight=False, force_terminal=False if plain else None)  # None: Rich looks


@contextlib.contextmanager
def show_loading(quiet: bool = False) -> Iterator[None]:
    """A line on the terminal while PyTorch is loaded, which takes seconds; it is gone afterwards."""
    console = make_console(stderr=True)
    if quiet or not console.is_terminal or "torch" in sys.modules:
        yield
        return
    console.print("loading PyTorch ...", style="dim", end="\r")
    try:
        yield
    finally:
        console.file.write("\r\x1b[2K")
        console.file.flush()
