"""`python -m studies.rivals.merge docs/results/rivals.json NEW.json`: NEW units take the place of the stored ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from studies.rivals.run import Unit


def merge_units(stored: list[Unit], new: list[Unit]) -> list[Unit]:
    """The stored units in their order, those of `new` in the place of the same case and method, others behind them."""
    by = {(unit["case"], unit["method"]): unit for unit in stored}
    return list((by | {(unit["case"], unit["method"]): unit for unit in new}).values())


def main() -> None:
    path, more = map(Path, sys.argv[1:3])
    stored, new = (json.loads(one.read_text("utf-8")) for one in (path, more))
    path.write_text(json.dumps(merge_units(stored, new)) + "\n", "utf-8")


if __name__ == "__main__":
    main()
