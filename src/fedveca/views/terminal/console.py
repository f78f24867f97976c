"""Where the terminal's text goes: plain where colours are not wanted, and without PyTorch."""

from __future__ import annotations

import os
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
