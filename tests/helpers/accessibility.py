"""Accessibility of a page in a real browser, by axe-core."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

COLOURS = ("color-contrast", "link-in-text-block")  # the rules whose answer depends on the colours of a page
AXE = Path(__file__).parent.parent / "browser" / "axe" / "axe.min.js"


def find_violations(
    page: Any, impacts: tuple[str, ...] = ("serious", "critical"), rules: tuple[str, ...] = ()
) -> list[str]:
    """What axe finds on an open Playwright page, one line per rule: its impact, name and first elements.

    With `rules`, those alone: COLOURS for the same page in other colours.

    The script is evaluated through the browser's debugger, so that a page's content security policy stays as it is.
    """
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text("utf-8") + ";0")
    options = {"resultTypes": ["violations"], "preload": False}  # no rule reads the style sheets that it would fetch
    options |= {"runOnly": list(rules)} if rules else {}
    found = page.evaluate(f"axe.run(document, {json.dumps(options)}).then((r) => r.violations)")
    return [
        f"{rule['impact']}: {rule['id']}: {'; '.join(node['html'][:160] for node in rule['nodes'][:4])}"
        for rule in found
        if rule["impact"] in impacts
    ]
