"""Accessibility of a page in a real browser, by axe-core."""

from __future__ import annotations

from pathlib import Path
from typing import Any

AXE = Path(__file__).parent.parent / "browser" / "axe" / "axe.min.js"


def find_violations(page: Any, impacts: tuple[str, ...] = ("serious", "critical")) -> list[str]:
    """What axe finds on an open Playwright page, one line per rule: its impact, name and first elements.

    The script is evaluated through the browser's debugger, so that a page's content security policy stays as it is.
    """
    page.evaluate(AXE.read_text("utf-8") + ";0")
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']}).then((r) => r.violations)")
    return [
        f"{rule['impact']}: {rule['id']}: {'; '.join(node['html'][:160] for node in rule['nodes'][:4])}"
        for rule in found
        if rule["impact"] in impacts
    ]
