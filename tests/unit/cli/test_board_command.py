"""fedveca board before there is a run: it waits, makes nothing, and shows runs when they come."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from fedveca.runs.experiment import Experiment


def list_runs(address: str) -> list[str]:
    with urllib.request.urlopen(f"{address}api/runs", timeout=30) as answer:
        return [row["id"] for row in json.load(answer)["runs"]]


@pytest.mark.slow
def test_the_board_waits_for_the_first_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedveca", "board", "--port", "0"]
    board = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert board.stdout is not None
        first, second = board.stdout.readline(), board.stdout.readline()
        assert first.startswith("board of runs: http://127.0.0.1:")
        assert second == "runs does not exist yet; runs appear on the page as soon as there are some\n"
        address = first.split()[3]
        assert list_runs(address) == []
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "runs" / "first").mkdir(parents=True)
        (tmp_path / "runs" / "first" / "experiment.toml").write_text(Experiment(rounds=3).toml())
        assert list_runs(address) == ["first"]
    finally:
        board.terminate()
        board.communicate(timeout=30)
