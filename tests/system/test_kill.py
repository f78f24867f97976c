"""A run killed with -9 at any moment goes on, and ends with the bytes of one that was left in peace."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from cut_off import Cut, cut_before
from same_runs import same
from zygote import Zygote, is_over, zygote

from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.run import resume, run

KILLS = int(os.environ.get("KILLS", "10"))
SMALL = {"model": "svm", "rounds": 60, "batch": 8, "clients": 6, "partition": "dirichlet", "lr": 0.05}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kills", "settings"),
    [(KILLS, {"method": "fedveca", "checkpoint_every": 2}), (5, {"method": "scaffold", "participation": 0.5})],
    ids=["fedveca", "scaffold"],
)
def test_killed_at_random_moments(kills: int, settings: dict[str, Any], tmp_path: Path) -> None:
    """Killed, resumed, killed again, from before its first byte to after its last; it ends with the same bytes."""
    words = [f"{key}={value}" for key, value in (SMALL | settings).items()]
    new = ["run", *words, "--quiet", "--device", "cpu", "--out"]
    with zygote(tmp_path) as programs:
        assert programs.run(*new, tmp_path / "warm")[0] == 0
        began = time.monotonic()
        assert programs.run(*new, tmp_path / "whole") == (0, "")
        life, chance = time.monotonic() - began, random.Random(6)
        moments: list[int] = []  # rounds on the disk when it was killed
        for n in range(4 * kills):
            folder = tmp_path / f"life{n}"
            while True:
                more = chance.randint(-2, 8) if len(moments) < kills else 10**6  # below 0: before its first round
                if lived(programs, new, folder, more, life * chance.uniform(0, 0.05 if more > 0 else 0.4)):
                    break
                moments.append(done(folder))
            same(tmp_path / "whole", folder)
            left = {path.name for path in folder.iterdir()}
            assert left == {path.name for path in (tmp_path / "whole").iterdir()}  # no draft is left behind
            if len(moments) == kills:
                break
    assert len(moments) == kills
    assert len(set(moments)) > kills // 3, moments
    print(f"killed after rounds {sorted(moments)}")


def done(folder: Path) -> int:
    """Rounds on the disk, whole lines of them."""
    path = folder / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def lived(programs: Zygote, new: list[str], folder: Path, more: int, seconds: float) -> bool:
    """Whether the run in the folder ends before it has done `more` rounds; if not, it is killed, seconds later."""
    there = (folder / "experiment.toml").exists()
    wanted = done(folder) + max(more, 0)
    pid = programs.start(*(["run", "--quiet", "--device", "cpu", "--resume"] if there else new), folder)
    while done(folder) < wanted and not is_over(pid):
        time.sleep(0.002)
    until = time.monotonic() + seconds
    while time.monotonic() < until and not is_over(pid):
        time.sleep(0.002)
    if not is_over(pid):
        os.kill(pid, signal.SIGKILL)
    code, said = programs.wait(pid), programs.said.read_text()
    if code == 2:  # killed after its last word, the time before
        assert "is finished" in said
    assert code in (0, 2, -signal.SIGKILL), said
    return code != -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"method": "fedveca"}, {"method": "scaffold", "checkpoint_every": 2}])
def test_cut_before_each_word_to_the_file_system(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every place where a run can be cut off, one by one; then once more in the resumed run, at the same place."""
    e = Experiment(**{**SMALL, "rounds": 3, "tau_0": 2, "partition": "iid", **settings})
    run(e, tmp_path / "whole", device="cpu")

    def go(folder: Path) -> Run:
        if (folder / "experiment.toml").exists():
            return resume(folder, device="cpu")
        return run(e, folder, device="cpu")

    def cut(n: int, folder: Path) -> bool:
        undo = cut_before(n, monkeypatch)
        try:
            go(folder)
        except Cut:
            return True
        finally:
            undo()
        return False

    for n in range(200):
        folder = tmp_path / f"cut{n}"
        first = cut(n, folder)
        for again in (lambda: cut(n, folder), lambda: go(folder)):  # noqa: B023
            if not (folder / "summary.json").exists():
                again()
        same(tmp_path / "whole", folder)
        if not first:
            break
    assert 20 < n < 199
    print(f"cut at {n} places")
