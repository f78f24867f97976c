"""A run that stopped goes on and ends with the bytes of one that never did."""

from __future__ import annotations

import errno
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cut_off import Cut, cut_before
from round_observers import EachRound
from same_runs import SMALL, lines, same
from torch import Tensor

from fedveca.algorithms.contract import Order, Report
from fedveca.cli import main
from fedveca.cohorts.client_memory import NodeLedger
from fedveca.cohorts.contract import ClientScores, HeldPart
from fedveca.runs.build import build
from fedveca.runs.checkpoint import load_checkpoint, seal
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.folder_writer import FORMER, LAST, guard_writing
from fedveca.runs.interrupt import FLOWER, LOCAL, FolderUnwritable, Stopped, how_to_resume
from fedveca.runs.run import resume, run
from fedveca.runs.schema import Round
from fedveca.tasks.datasets.dataset import load


class Stop(Exception):
    """Raised by an observer to end a run as a crash would."""


def crashed(e: Experiment, folder: Path, after: int) -> None:
    def stop(record: Round) -> None:
        if record["round"] + 1 == after:
            raise Stop

    with pytest.raises(Stop):
        run(e, folder, device="cpu", observers=[EachRound(stop)])


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"method": "fedveca"},
        {"method": "fedveca", "keep": "rollback"},
        {"method": "scaffold", "participation": 0.5},
        {"method": "corrected", "participation": 0.5},
        {"method": "fednova", "keep": "last", "checkpoint_every": 3},
        {"method": "feddyn", "participation": 0.5},
        {"method": "fedacg"},
        {"method": "fedvecam", "participation": 0.5},
        {"method": "scaffnew"},
        {"method": "moon", "model": "mlp", "participation": 0.5},
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


def test_more_rounds_where_tests_are_rare(tmp_path: Path) -> None:
    """The last round is always tested; once it is not the last, a run of more rounds would not have been."""
    rare = SMALL | {"test_every": 3}
    run(Experiment(**rare), tmp_path / "whole", device="cpu")
    run(Experiment(**(rare | {"rounds": 4})), tmp_path / "half", device="cpu")
    assert "test_loss" in lines(tmp_path / "half")[3]
    resume(tmp_path / "half", rounds=8, device="cpu")
    same(tmp_path / "whole", tmp_path / "half")


def test_more_rounds_cannot_be_had_where_steps_are_shared_out_over_all(tmp_path: Path) -> None:
    run(Experiment(**(SMALL | {"rounds": 4, "method": "fedavg", "tau_all": 400})), tmp_path / "half", device="cpu")
    with pytest.raises(ValueError, match="rounds=8 would change every round: tau_all=400 is shared out over all"):
        resume(tmp_path / "half", rounds=8, device="cpu")


def test_without_a_checkpoint_it_begins_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    e = Experiment(**(SMALL | {"checkpoint_every": 6}))
    run(e, tmp_path / "whole", device="cpu")
    crashed(e, tmp_path / "cut", 4)
    resume(tmp_path / "cut", device="cpu")
    assert caplog.messages == [f"{tmp_path / 'cut'} has no checkpoint yet: it starts again at round 1"]
    same(tmp_path / "whole", tmp_path / "cut")
    for name in (LAST, FORMER):
        (tmp_path / "cut" / name).unlink(missing_ok=True)
    with pytest.raises(ValueError, match=r"cannot be resumed: checkpoint\.safetensors is missing"):
        resume(tmp_path / "cut", rounds=9, device="cpu")  # it was finished: nothing is thrown away


@pytest.mark.slow
def test_any_bit(tmp_path: Path) -> None:
    """Every byte of a checkpoint is under its sum: its tensors, their names, the marks and the sum itself."""
    e = Experiment(**(SMALL | {"rounds": 3}))
    run(e, tmp_path / "run", device="cpu")
    built = build(e)
    whole = (tmp_path / "run" / LAST).read_bytes()
    for at in range(len(whole)):
        (tmp_path / "run" / LAST).write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        keeper, note = load_checkpoint(tmp_path / "run", built, "cpu")
        assert note == f"{LAST} is damaged; resumed from {FORMER}"
        assert keeper.round == 2


def test_a_damaged_checkpoint_gives_way_to_the_former(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    e = Experiment(**SMALL)
    run(e, tmp_path / "whole", device="cpu")
    wounds = (lambda b: b[: len(b) // 2], lambda b: b[:-40] + bytes([b[-40] ^ 1]) + b[-39:], lambda b: b"")
    for n, hurt in enumerate(wounds):
        folder = tmp_path / f"hurt{n}"
        crashed(e, folder, 5)
        (folder / LAST).write_bytes(hurt((folder / LAST).read_bytes()))
        caplog.clear()
        resume(folder, device="cpu")
        assert caplog.messages == [f"{LAST} is damaged; resumed from {FORMER}"]
        same(tmp_path / "whole", folder)


def test_a_kill_after_a_damaged_checkpoint_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The former checkpoint, from which the run was resumed, stays until the next one is whole."""
    e, folder = Experiment(**SMALL), tmp_path / "run"
    run(e, tmp_path / "whole", device="cpu")
    crashed(e, folder, 5)
    (folder / LAST).write_bytes(b"damaged")
    replace = os.replace

    def killed(source: Path, target: Path) -> None:
        if target == folder / LAST and source != folder / FORMER:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        resume(folder, device="cpu")
    monkeypatch.undo()
    resume(folder, device="cpu")
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
    (tmp_path / "b" / LAST).write_bytes(seal({"w": torch.zeros(1)}, {}, "9"))
    assert "has the format of another version of fedveca ('9')" in refused(tmp_path / "b", capsys)
    for name in (LAST, FORMER):
        (tmp_path / "b" / name).write_bytes(b"x" * 100)
    assert "damaged" in refused(tmp_path / "b", capsys)
    assert "rounds=2 is fewer than the 4 that are done" in refused(crash_again(e, tmp_path / "c"), capsys, "rounds=2")


def crash_again(e: Experiment, folder: Path) -> Path:
    crashed(e, folder, 4)
    return folder


def test_other_data_are_refused(tmp_path: Path) -> None:
    e, data = Experiment(**SMALL), load("digits")
    crashed(e, tmp_path / "run", 4)
    x = data.x.clone()
    x[777, 0, 3, 3] += 1 / 16  # one pixel of one row
    for other in (replace(data, x=x), replace(data, y_test=data.y_test.flip(0))):
        with pytest.raises(ValueError, match="belongs to another experiment or other data"):
            resume(tmp_path / "run", device="cpu", data=other)
    resume(tmp_path / "run", device="cpu", data=data)


@pytest.mark.parametrize("name", ["experiment.toml", "rounds.jsonl", "summary.json", LAST])
def test_no_file_of_a_folder_leads_out_of_it(name: str, tmp_path: Path) -> None:
    e = Experiment(**SMALL)
    run(e, tmp_path / "run", device="cpu")
    (tmp_path / "run" / FORMER).unlink()
    (tmp_path / "run" / name).rename(tmp_path / "outside")
    for lead, said in (
        (lambda path: path.symlink_to(tmp_path / "outside"), "is a link that leads out of it"),
        (lambda path: path.symlink_to("/dev/zero"), "is not a file"),
        (os.mkfifo, "is not a file"),
        (Path.mkdir, "is not a file"),
    ):
        lead(tmp_path / "run" / name)
        with pytest.raises(ValueError, match=f"{name} {said}"):
            resume(tmp_path / "run", rounds=9, device="cpu")
        (Path.rmdir if (tmp_path / "run" / name).is_dir() else Path.unlink)(tmp_path / "run" / name)


@pytest.mark.slow
def test_wherever_it_is_cut_off_its_partition_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder is a run once it has its settings, and these come last; no draft stays."""
    e = Experiment(**(SMALL | {"rounds": 1, "tau_0": 2}))
    run(e, tmp_path / "whole", device="cpu")
    for n in range(40):
        folder = tmp_path / f"cut{n}"
        undo = cut_before(n, monkeypatch)
        try:
            run(e, folder, device="cpu")
            break
        except Cut:
            pass
        finally:
            undo()
        if (folder / "experiment.toml").exists():
            if not (folder / "summary.json").exists():
                resume(folder, device="cpu")
        else:
            run(e, folder, device="cpu")
        names = [sorted(path.name for path in at.iterdir()) for at in (tmp_path / "whole", folder)]
        assert names[0] == names[1]
        assert (folder / "partition.json").read_bytes() == (tmp_path / "whole" / "partition.json").read_bytes()
    assert 10 < n < 39


def test_a_run_over_nodes_says_how_it_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who started it stands in the folder; where it does not, the checkpoint shows that the clients are elsewhere."""
    e = Experiment(**(SMALL | {"rounds": 3}))
    for by, how in (
        (LOCAL, f"fedveca deploy local --resume {tmp_path / 'run'}"),
        (FLOWER, f"flwr run APP --run-config 'resume=\"{tmp_path / 'run'}\"'"),
    ):
        run(e, tmp_path / "run", device="cpu", data=load("digits"), cohort=Elsewhere(e), started_by=by)
        (tmp_path / "run" / "summary.json").unlink()
        for checkpoint in (True, False):
            if not checkpoint:
                for name in (LAST, FORMER):
                    (tmp_path / "run" / name).unlink()
            said = refused(tmp_path / "run", capsys)
            assert said == (f"fedveca: {tmp_path / 'run'} was made by {by}, over Flower nodes; resume it with: {how}\n")
        assert how_to_resume(tmp_path / "run") == how
        shutil.rmtree(tmp_path / "run")
        again: dict[str, Any] = {"device": "cpu", "data": load("digits"), "cohort": Elsewhere(e), "started_by": by}
        with pytest.raises(Stopped, match=f"all saved; resume it with: {re.escape(how)}$"):
            run(e, tmp_path / "run", stop=lambda: True, **again)
        with (
            pytest.raises(FolderUnwritable, match=f"last checkpoint is saved: resume it with: {re.escape(how)}$"),
            guard_writing(tmp_path / "run"),
        ):
            raise OSError(errno.ENOSPC, "No space left on device")
        shutil.rmtree(tmp_path / "run")

    run(e, tmp_path / "run", device="cpu", data=load("digits"), cohort=Elsewhere(e))
    (tmp_path / "run" / "summary.json").unlink()
    said = refused(tmp_path / "run", capsys)
    assert f"{LAST} is of a run over Flower nodes; resume it with: fedveca deploy local --resume" in said
    assert said.count(LAST) == 1
    shutil.rmtree(tmp_path / "run")

    run(e, tmp_path / "run", device="cpu")
    assert "started_by" not in (tmp_path / "run" / "environment.json").read_text()
    with pytest.raises(ValueError, match=f"run without Flower nodes; resume it with: fedveca run --resume {tmp_path}"):
        resume(tmp_path / "run", rounds=4, device="cpu", data=load("digits"), cohort=Elsewhere(e))


class Elsewhere:
    """Clients as the server of a deployment knows them: what they remember is theirs."""

    def __init__(self, e: Experiment) -> None:
        self.clients = build(e).cohort
        self.sizes, self.weights, self.memory = self.clients.sizes, self.clients.weights, NodeLedger(e.clients)

    def __call__(self, k: int, order: Order, ids: Tensor, tau: Tensor) -> tuple[Tensor, Report]:
        return self.clients(k, order, ids, tau)

    def evaluate(self, k: int, order: Order, part: HeldPart, finetune: int = 0) -> ClientScores:
        return self.clients.evaluate(k, order, part, finetune)
