"""The board as the command starts it, and a page of it in a real browser."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

COMMAND = [sys.executable, "-m", "fedveca.cli"]
CHART = "[...document.querySelectorAll('figure')].find((f) => f.dataset.name === %r)?.querySelector('.plot')"


@contextmanager
def serve_board(root: Path) -> Iterator[str]:
    """The address of a board of the runs below `root`."""
    board = subprocess.Popen([*COMMAND, "board", str(root), "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        assert board.stdout
        found = re.search(r"http://127\.0\.0\.1:\d+/", board.stdout.readline())
        assert found
        yield found[0]
    finally:
        board.terminate()
        board.communicate(timeout=240)


def address_of(address: str, *runs: str, **more: Any) -> str:
    """Of the board with these runs chosen."""
    return f"{address}#{urlencode([*(('run', run) for run in runs), *more.items()])}"


class Page:
    """A page that remembers what went wrong and whom it asked."""

    def __init__(self, browser: Any, address: str, **more: Any) -> None:
        self.context = browser.new_context(**more)
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda m: self.wrong.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", self.dismiss)
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(address)

    def dismiss(self, dialog: Any) -> None:
        self.wrong.append("dialog")
        dialog.dismiss()

    def chart(self, name: str, what: str) -> Any:
        """Something of a picture, as Plotly has it; None while it is not drawn."""
        return self.page.evaluate(f"(() => {{ const plot = {CHART % name}; return plot?.data ? {what} : null; }})()")

    def until(self, true: Callable[[], Any], seconds: float = 240) -> Any:
        end = time.monotonic() + seconds
        while not (value := true()):
            assert time.monotonic() < end, f"never so; {self.wrong}"
            self.page.wait_for_timeout(100)
        return value

    def end(self, address: str) -> None:
        """No error, and no request that left this machine's board."""
        assert self.wrong == []
        assert [url for url in self.asked if not url.startswith((address, "data:", "blob:"))] == []
        self.context.close()
