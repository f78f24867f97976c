"""Whatever a reader is given: no crash, no pickle, no step out of its folder, no trust in a size in a header."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hostile_bytes import READERS
from hypothesis import HealthCheck, given, settings
from limited_memory import limited_memory

CASES = int(os.environ.get("FUZZ_CASES", "300"))


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_a_reader(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value, or a ValueError of one printable sentence."""
    reader = READERS[name]
    cases = reader.cases()
    cases.validate()  # builds tables of all characters, which takes long where there is little room
    count = refused = 0
    folder = tmp_path / "in" / "here"
    folder.mkdir(parents=True)
    monkeypatch.setenv("FEDVECA_CACHE", str(folder / "cache"))
    for load in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, load, lambda *args, **kwargs: pytest.fail("a pickle was loaded"))

    @settings(max_examples=CASES, database=None, suppress_health_check=list(HealthCheck))
    @given(cases)
    def check(case: Any) -> None:
        nonlocal count, refused
        count += 1
        try:
            reader.read(case, folder)
        except ValueError as error:
            refused += 1
            said = str(error)
            assert 5 < len(said) < 1200, said
            assert all(c.isprintable() for c in said.replace(str(folder), "")), said

    with limited_memory():
        check()
    assert count >= CASES
    assert refused > CASES // 10 or not reader.refuses
    assert [path.name for path in tmp_path.iterdir()] == ["in"]  # nothing left the folder
    assert [path.name for path in folder.parent.iterdir()] == ["here"]
    assert not Path("escaped").exists()
