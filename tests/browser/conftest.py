"""What tests of pages from disk share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Open = Callable[..., Any]


@pytest.fixture
def opened(browser: Any) -> Iterator[Open]:
    """Opens a file; at the end nothing was asked of a network and nothing complained."""
    complaints: list[str] = []
    contexts = []

    def open_(path: Path, width: int = 1200, **more: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, offline=True, **more)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        at_home = ("file:", "data:", "blob:")
        page.on("request", lambda r: None if r.url.startswith(at_home) else complaints.append(r.url))
        page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-drawn]", state="attached")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert complaints == []
