"""The committed results of the paper's studies add up, and the pages show them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from committed import check_table1

from studies.paper.reported import TASKS
from studies.paper.reproduce import FILES

DOCS = Path(__file__).parents[3] / "docs"


def test_committed_table_adds_up() -> None:
    content = json.loads((DOCS / "results" / "table1.json").read_text())
    assert [entry["task"] for entry in content["results"]] == list(TASKS)
    check_table1(content, seeds=10)
    for entry in content["results"]:
        fedveca, *rivals = entry["rows"]
        kept = fedveca["kept"]["test_accuracy"]
        assert fedveca["reaches_paper"]
        assert kept["mean"] >= fedveca["paper"]["test_accuracy"] - kept["std"]
        ahead = {row["method"]: row["fedveca_minus_this"]["kept"]["test_accuracy"] for row in rivals}
        for rival in ("fedavg", "fedprox", "fednova"):
            assert ahead[rival]["ahead"]
            assert ahead[rival]["interval"][0] > 0


def test_committed_pages_show_every_figure() -> None:
    pages = (page.read_text("utf-8") for page in (*DOCS.glob("*.md"), DOCS.parent / "README.md"))
    shown = {name for page in pages for name in re.findall(r"results/([\w-]+\.svg)", page)}
    assert shown == {path.name for path in (DOCS / "results").glob("*.svg")}
    assert {path.stem for path in (DOCS / "results").glob("*.json")} >= set(FILES)


def test_committed_pages_name_what_exists() -> None:
    """Every `file.py: name` of the method's page is there."""
    source = DOCS.parent / "src" / "fedveca"
    named = re.findall(r"`(?!tests/)([\w/]+\.py)`(?:: `([\w.]+)`)?", (DOCS / "method.md").read_text())
    assert len(named) > 20
    for file, name in named:
        text = (source / file).read_text()
        for part in name.split(".") if name else ():
            assert re.search(rf"\b(def|class) {part}\b|^{part}\b.*=", text, re.MULTILINE), f"{file}: {name}"
