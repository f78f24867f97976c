"""A run that stopped goes on and ends with the bytes of one that never did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedveca.cli import main
from fedveca.runs.experiment import Experiment
from fedveca.runs.record import FORMER, LAST, Run
from fedveca.runs.run import resume, run

SMALL = {"model": "svm", "rounds": 8, "batch": 8, "clients": 6, "partition": "dirichlet", "lr": 0.05}


class Stop(Exception):
    """Raised by a watcher to end a run as a crash would."""


def lines(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "seconds"} for line in Run.open(folder).rounds]


def crashed(e: Experiment, folder: Path, after: int) -> None:
    def watch(line: dict[str, Any]) -> None:
        if line["round"] + 1 == after:
            raise Stop

    with pytest.raises(Stop):
        run(e, folder, device="cpu", watch=watch)


def same(a: Path, b: Path) -> None:
    assert lines(a) == lines(b)
    assert (a / "model.safetensors").read_bytes() == (b / "model.safetensors").read_bytes()
    ours, theirs = (json.loads((f / "summary.json").read_text()) for f in (a, b))
    assert all(ours[key] == theirs[key] for key in ("last", "kept", "tau_all"))


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "fedveca"},
        {"method": "fedveca", "keep": "rollback"},
        {"method": "scaffold", "participation": 0.5},
        {"method": "fednova", "keep": "last", "checkpoint_every": 3},
        {"method": "fedveca", "model": "mlp", "participation": 0.5},
    ],
    ids=lambda s: "-".join(map(str, s.values())),
)
def test_resumed_equals_uninterrupted(settings: dict[str, Any], tmp_path: Path) -> None:
    e = Experiment(**(SMALL | settings))
    run(e, tmp_path / "whole", device="cpu")
    for after in (3, 5, 8):
        folder = tmp_path / f"cut{after}"
        crashed(e, folder, after)
        resume(folder, device="cpu")
        same(tmp_path / "whole", folder)


def test_more_rounds(tmp_path: Path) -> None:
    run(Experiment(**SMALL), tmp_path / "whole", device="cpu")
    run(Experiment(**(SMALL | {"rounds": 4})), tmp_path / "half", device="cpu")
    assert main(["run", "--resume", str(tmp_path / "half"), "rounds=8", "--quiet", "--device", "cpu"]) == 0
    same(tmp_path / "whole", tmp_path / "half")
    assert Run.open(tmp_path / "half").experiment.rounds == 8


def test_a_damaged_checkpoint_gives_way_to_the_former(tmp_path: Path) -> None:
    e = Experiment(**SMALL)
    run(e, tmp_path / "whole", device="cpu")
    wounds = (lambda b: b[: len(b) // 2], lambda b: b[:-40] + bytes([b[-40] ^ 1]) + b[-39:], lambda b: b"")
    for n, hurt in enumerate(wounds):
        folder = tmp_path / f"hurt{n}"
        crashed(e, folder, 5)
        (folder / LAST).write_bytes(hurt((folder / LAST).read_bytes()))
        said: list[str] = []
        resume(folder, device="cpu", tell=said.append)
        assert "damaged" in said[0]
        same(tmp_path / "whole", folder)


def refused(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    before = {p: p.read_bytes() for p in folder.iterdir()} if folder.exists() else {}
    assert main(["run", "--resume", str(folder), *words]) == 2
    assert ({p: p.read_bytes() for p in folder.iterdir()} if folder.exists() else {}) == before
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    e = Experiment(**SMALL)
    crashed(e, tmp_path / "a", 4)
    crashed(Experiment(**(SMALL | {"lr": 0.04})), tmp_path / "b", 4)
    run(e, tmp_path / "done", device="cpu")
    assert "finished" in refused(tmp_path / "done", capsys)
    assert "not a run folder" in refused(tmp_path / "none", capsys)
    assert "only rounds" in refused(tmp_path / "a", capsys, "lr=1")
    (tmp_path / "a" / LAST).write_bytes((tmp_path / "b" / LAST).read_bytes())
    assert "another experiment" in refused(tmp_path / "a", capsys)
    for name in (LAST, FORMER):
        (tmp_path / "b" / name).write_bytes(b"x" * 100)
    assert "damaged" in refused(tmp_path / "b", capsys)
