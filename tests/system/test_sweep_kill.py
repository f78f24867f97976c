"""A sweep in real processes that are killed: the same command continues it and repeats nothing."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from same_runs import same
from zygote import Zygote, zygote

from fedveca.runs.folder import Run
from fedveca.runs.sweep_file import read_sweep

pytestmark = pytest.mark.slow

WORDS = ["sweep", "model=svm", "batch=8", "rounds=40", "clients=4", "partition=iid", "lr=0.01,0.05,0.1"]
OPTIONS = ["--methods", "fedveca,fedavg", "--seeds", "2", "--tuning-seeds", "1", "--device", "cpu", "--quiet"]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    with zygote(tmp_path_factory.mktemp("zygote")) as ready:
        yield ready


def until(true: Callable[[], bool], seconds: float = 240) -> None:
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def list_runs(out: Path) -> dict[Path, Run]:
    return {path.parent.relative_to(out): Run.open(path.parent) for path in out.rglob("experiment.toml")}


def test_after_kill_9_the_same_command_repeats_nothing(tmp_path: Path, programs: Zygote) -> None:
    command = [*WORDS, *OPTIONS, "--workers", "2"]
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert programs.run(*WORDS, *OPTIONS, "--workers", "1", "--out", whole)[0] == 0  # starts no other process
    for finished in (2, 7):  # in the middle of the tuning, and of the comparison
        pid = programs.start(*command, "--out", out)
        until(
            lambda: (
                len(list(out.rglob("summary.json"))) >= finished  # noqa: B023
                and any(0 < len(run.rounds) < 40 for run in list_runs(out).values())
            )
        )
        workers_left = children(pid)
        os.kill(pid, signal.SIGKILL)
        assert programs.wait(pid) == -signal.SIGKILL
        until(lambda: all(map(gone, workers_left)))  # noqa: B023
    before = list_runs(out)
    stamps = {name: (out / name / "summary.json").stat().st_mtime_ns for name, run in before.items() if run.summary}
    assert 7 <= len(stamps) < len(list_runs(whole))
    assert programs.run(*command, "--out", out)[0] == 0
    after = list_runs(out)
    assert after.keys() == list_runs(whole).keys()
    for name, run in after.items():
        same(whole / name, out / name)
        if name in stamps:  # it was not touched
            assert (out / name / "summary.json").stat().st_mtime_ns == stamps[name]
        elif name in before:  # it was resumed: the rounds of its checkpoint have the times of the first process
            kept = [record["seconds"] for record in before[name].rounds[:-1]]
            assert [record["seconds"] for record in run.rounds[: len(kept)]] == kept
    assert read_sweep(out) == read_sweep(whole)
    assert json.loads((out / "reported" / "table.json").read_text()) == json.loads(
        (whole / "reported" / "table.json").read_text()
    )
