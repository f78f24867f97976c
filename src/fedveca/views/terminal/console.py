"""Where the terminal's text goes: plain where colours are not wanted, and without PyTorch."""

from __future__ import annotations

import os
from typing import NoReturn

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.segment import Segment

FULL_WIDTH = 10_000  # columns where there is no terminal: every table has all of its own


class PipeConsole(Console):
    """A console whose reader may leave early: BrokenPipeError is for whoever started the program."""

    def on_broken_pipe(self) -> NoReturn:
        """Rich would end the program here."""
        raise BrokenPipeError


def make_console(stderr: bool = False, full: bool = False) -> Console:
    """A console in colour where that is a terminal, unless NO_COLOR, CI or TERM=dumb say otherwise.

    Args:
        stderr: Whether it writes to standard error.
        full: Whether lines are as long as they need to be in a file or a pipe, and end without spaces; COLUMNS in the
            environment limits them there too.
    """
    plain = any(map(os.environ.get, ("NO_COLOR", "CI"))) or os.environ.get("TERM") == "dumb"
    console = PipeConsole(stderr=stderr, highlight=False, force_terminal=False if plain else None)  # None: Rich looks
    if full and not console.file.isatty():
        if not os.environ.get("COLUMNS", "").isdigit():
            console.width = FULL_WIDTH
        console.push_render_hook(_TrimHook())
    return console


class _TrimHook(RenderHook):
    """Removes the spaces with which tables fill their lines."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Trimmed(renderable) for renderable in renderables]


class _Trimmed:
    def __init__(self, renderable: ConsoleRenderable) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in Segment.split_lines(console.render(self._renderable, options)):
            while line and not line[-1].text.rstrip(" "):
                line.pop()
            if line:
                last = line.pop()
                line.append(last._replace(text=last.text.rstrip(" ")))
            yield from line
            yield Segment.line()
