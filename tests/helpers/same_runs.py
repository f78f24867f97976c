"""Two run folders that must hold the same bytes, times aside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedveca.runs.folder import Run

SMALL: dict[str, Any] = {"model": "svm", "rounds": 8, "batch": 8, "clients": 6, "partition": "dirichlet", "lr": 0.05}


def lines(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "seconds"} for line in Run.open(folder).rounds]


def same(a: Path, b: Path) -> None:
    assert lines(a) == lines(b)
    assert (a / "model.safetensors").read_bytes() == (b / "model.safetensors").read_bytes()
    ours, theirs = (json.loads((f / "summary.json").read_text()) for f in (a, b))
    assert all(ours[key] == theirs[key] for key in ("last", "kept", "tau_all"))
