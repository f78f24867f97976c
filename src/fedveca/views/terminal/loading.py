"""What a command shows before there is anything to show: PyTorch takes seconds to import, data may take longer."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

EVERY = 2.5  # seconds between two signs of life


@contextlib.contextmanager
def show_loading(quiet: bool = False) -> Iterator[None]:
    """Says at once that the command has begun, and every few seconds that it is still loading.

    It is for the imports of a command; where PyTorch is loaded already there is nothing to say.
    """
    if quiet or "torch" in sys.modules:
        yield
        return
    terminal = sys.stderr.isatty() and not wants_plain_lines()
    _write("loading ...", terminal)
    with tick(lambda spent: _write(f"loading ... {spent:.0f} s", terminal)):
        yield
    if terminal:
        _write("\x1b[2K", terminal)


def wants_plain_lines() -> bool:
    """Whether the environment asks for lines without colours and without anything that moves."""
    return any(map(os.environ.get, ("NO_COLOR", "CI"))) or os.environ.get("TERM") == "dumb"


@contextlib.contextmanager
def tick(show: Callable[[float], None], every: float = EVERY) -> Iterator[None]:
    """Calls `show` with the seconds that have passed, every few seconds, from another thread."""
    over, began = threading.Event(), time.monotonic()

    def work() -> None:
        while not over.wait(every):
            show(time.monotonic() - began)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _write(text: str, terminal: bool) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody reads it
        print(text, end="\r" if terminal else "\n", file=sys.stderr, flush=True)
