"""How a run ends early: the user stops it, or its folder can no longer be written."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from fedveca.runs.files import read_object

StopRequest = Callable[[], bool]
SIGNALS = (signal.SIGINT, signal.SIGTERM)
SHORT = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "Cannot allocate memory",
    "failed to map segment",
    "can't start new thread",
)
HEARD = b"fedveca: finishing this round, then saving; press again to stop at once\n"


class Stopped(KeyboardInterrupt):
    """Raised between rounds with all saved; the text says how to resume."""


class FolderUnwritable(OSError):
    """A run folder that can no longer be written; what it holds is complete."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error says that memory ran out: Python's, NumPy's, torch's on any device, or the loader's."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError | ImportError) and any(words in str(error) for words in SHORT)


RUN, PYTHON, LOCAL, FLOWER = "fedveca run", "Python", "fedveca deploy local", "a Flower server"
REPLAY = "fedveca replay"
STARTED_BY = "started_by"  # in environment.json, where it was not `fedveca run`


def find_starter(folder: Path) -> str:
    """Who started the run in a folder, and so resumes it."""
    with contextlib.suppress(OSError, ValueError):
        starter = read_object(folder, "environment.json").get(STARTED_BY)
        if starter in (PYTHON, LOCAL, FLOWER, REPLAY):
            return str(starter)
    return RUN


def how_to_resume(folder: Path, by: str = "") -> str:
    """The command that resumes the run in a folder, or the call where it was given custom objects from Python."""
    by = by or find_starter(folder)
    if by == PYTHON:
        return f"fedveca.resume({str(folder)!r}, ...) in Python, with the same objects"
    if by == FLOWER:
        setting = f"resume={json.dumps(str(folder.absolute()))}"
        return f"flwr run APP --run-config {shlex.quote(setting)}"
    return f"{by} --resume {shlex.quote(str(folder))}"


def stop_or_signal(stop: StopRequest | None) -> contextlib.AbstractContextManager[StopRequest]:
    """Who says when to stop: the caller, or the user by a signal."""
    return contextlib.nullcontext(stop) if stop else listen_for_signals()


@contextlib.contextmanager
def listen_for_signals(first: Callable[[], None] | None = None) -> Iterator[StopRequest]:
    """Whether Ctrl-C or SIGTERM came: the first is only noted (and `first` called), the second is KeyboardInterrupt.

    Only in the main thread, and only where the signals have no handler of the program's own.
    """
    came: list[int] = []

    def heard(number: int, frame: FrameType | None) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)
        if first:
            first()
        with contextlib.suppress(OSError):  # no print: it may be in the middle of one
            edge = b"\n" * os.isatty(2)  # a line that lives is drawn over the line before
            os.write(2, edge + HEARD + edge)

    with _handling(heard, *SIGNALS):
        yield lambda: bool(came)


@contextlib.contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """SIGTERM is KeyboardInterrupt meanwhile, so that what was begun is cleared away."""
    with _handling(_interrupt, signal.SIGTERM):
        yield


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _handling(handler: Callable[[int, FrameType | None], None], *numbers: signal.Signals) -> Iterator[None]:
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in numbers}
    usual = (signal.SIG_DFL, signal.default_int_handler, _interrupt)
    before = {number: former for number, former in before.items() if former in usual}
    try:
        for number in before:
            signal.signal(number, handler)
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
