"""`python -m studies.rivals.page docs/results/rivals.json docs` writes the tables of rivals.md and choose.md anew.

The sentences around them are checked by tests/unit/studies/test_rivals_page.py, whose failures show what they must say.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from studies.rivals.cases import keep_complete
from studies.rivals.grid import make_grid_table
from studies.rivals.results import make_advice_table, make_group_table, make_main_table, rank_methods
from studies.rivals.run import Unit
from studies.rivals.swings import make_swing_table


def replace_table(page: str, table: str) -> str:
    """The page with the table in the place of the one that has the same head."""
    head = re.escape(table.split("\n", 1)[0])
    found = re.compile(rf"^{head}\n(?:\|.*(?:\n|\Z))*", re.MULTILINE)
    if len(found.findall(page)) != 1:
        raise ValueError(f"not one table with this head: {head}")
    return found.sub(lambda _: table + "\n", page)


def make_tables(units: list[Unit]) -> dict[str, list[str]]:
    """The tables of the study, by page."""
    standings = rank_methods(units, "last")
    study = [
        make_main_table(units, "last"),
        make_group_table(units, standings),
        make_grid_table(units),
        make_swing_table(units),
    ]
    return {"rivals.md": study, "choose.md": [make_advice_table(units, standings)]}


def main() -> None:
    units: list[Unit] = keep_complete(json.loads(Path(sys.argv[1]).read_text("utf-8")))
    for name, tables in make_tables(units).items():
        path = Path(sys.argv[2]) / name
        page = path.read_text("utf-8")
        for table in tables:
            page = replace_table(page, table)
        path.write_text(page, "utf-8")


if __name__ == "__main__":
    main()
