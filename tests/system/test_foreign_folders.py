"""A run folder that someone else made: nothing outside it is touched, and nothing in it hangs or fills the memory."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from limited_memory import limited_memory
from safetensors.torch import load
from same_runs import same

from fedveca.cli import main
from fedveca.cohorts.client_memory import NodeLedger
from fedveca.cohorts.client_store import ClientMemoryError, ClientStore
from fedveca.runs.build import build
from fedveca.runs.checkpoint import identify_run, seal
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.folder_writer import FORMER, LAST, MEMORY_FILE
from fedveca.runs.run import resume, run

Capture = pytest.CaptureFixture[str]
SETTINGS: dict[str, Any] = {
    "model": "svm",
    "rounds": 5,
    "batch": 8,
    "clients": 6,
    "partition": "iid",
    "lr": 0.05,
    "method": "scaffold",
    "tau_0": 3,
}
WRITTEN = (
    ".lock",
    "experiment.toml",
    "environment.json",
    "partition.json",
    "rounds.jsonl",
    MEMORY_FILE,
    LAST,
    FORMER,
    "model.safetensors",
    "summary.json",
)
DRAFTS = tuple(f".{name}.{os.getpid()}" for name in WRITTEN if name not in (".lock", MEMORY_FILE))
MINE = b"mine: " + bytes(range(256)) * 8


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, the same one cut off after three rounds, and one without a checkpoint."""
    above = tmp_path_factory.mktemp("made")
    run(Experiment(**SETTINGS), above / "whole", device="cpu")
    run(Experiment(**(SETTINGS | {"rounds": 3})), above / "cut", device="cpu")
    (above / "cut" / "experiment.toml").write_text(Experiment(**SETTINGS).toml())
    for name in ("summary.json", "model.safetensors"):
        (above / "cut" / name).unlink()
    shutil.copytree(above / "cut", above / "early")
    for name in (MEMORY_FILE, LAST, FORMER):
        (above / "early" / name).unlink()
    return above


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    def late(number: int, frame: Any) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def symbolic(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def dangling(path: Path, victim: Path) -> None:
    path.symlink_to(victim.with_name("not there"))


def relative(path: Path, victim: Path) -> None:
    path.symlink_to(Path("..") / victim.name)


def hard(path: Path, victim: Path) -> None:
    path.hardlink_to(victim)


@pytest.mark.slow
@pytest.mark.parametrize("start", ["early", "cut"])
@pytest.mark.parametrize("link", [symbolic, dangling, relative, hard])
def test_no_link_is_written_through(
    start: str, link: Callable[[Path, Path], None], made: Path, tmp_path: Path, capsys: Capture
) -> None:
    """Resumed or rejected, for each file in turn: what the link leads to keeps its bytes, and nothing is created."""
    victim, ended = tmp_path / "victim", []
    for name in (*WRITTEN, *DRAFTS):
        folder = tmp_path / "run"
        shutil.copytree(made / start, folder)
        victim.write_bytes(MINE)
        (folder / name).unlink(missing_ok=True)
        link(folder / name, victim)
        code = main(["run", "--resume", str(folder), "--device", "cpu", "--quiet"])
        assert code in (0, 2), name
        assert capsys.readouterr().err.count("\n") <= 1 + (code == 0)
        assert victim.read_bytes() == MINE, name
        assert {path.name for path in tmp_path.iterdir()} == {"victim", "run"}, name
        if code == 0:
            same(made / "whole", folder)
            ended.append(name)
        shutil.rmtree(folder)
    assert {"environment.json", "partition.json", "model.safetensors", *DRAFTS} <= set(ended)  # they are replaced


@pytest.mark.parametrize("start", ["early", "cut"])
def test_a_linked_memory_is_rejected_with_a_sentence(start: str, made: Path, tmp_path: Path, capsys: Capture) -> None:
    shutil.copytree(made / start, tmp_path / "run")
    (tmp_path / "victim").write_bytes(MINE)
    for link, why in (
        (symbolic, "is a link that leads out of it"),
        (dangling, "is a link that leads out of it"),
        (hard, "has a second name (a hard link); resume a copy of the folder"),
    ):
        (tmp_path / "run" / MEMORY_FILE).unlink(missing_ok=True)
        link(tmp_path / "run" / MEMORY_FILE, tmp_path / "victim")
        assert main(["run", "--resume", str(tmp_path / "run")]) == 2
        said = capsys.readouterr().err
        assert said == f"fedveca: {tmp_path / 'run'} cannot be resumed: {MEMORY_FILE} {why}\n"


def test_a_link_into_the_folder_is_followed(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "cut", tmp_path / "run")
    (tmp_path / "run" / MEMORY_FILE).rename(tmp_path / "run" / "rows")
    (tmp_path / "run" / MEMORY_FILE).symlink_to("rows")
    resume(tmp_path / "run", device="cpu")
    same(made / "whole", tmp_path / "run")


def test_a_shelf_of_its_own_file(tmp_path: Path) -> None:
    """A new one replaces what stands in its place, a saved one is opened only where it is a file of its own."""
    (tmp_path / "victim").write_bytes(MINE)
    for link in (symbolic, hard):
        link(tmp_path / MEMORY_FILE, tmp_path / "victim")
        shelf = ClientStore(4, 3, tmp_path / MEMORY_FILE)
        shelf.write(torch.tensor([2, 0]), torch.rand(2, 3))
        saved = shelf.save()
        (tmp_path / MEMORY_FILE).rename(tmp_path / "real")
        for again, why in ((symbolic, "symbolic links"), (hard, "second name")):
            again(tmp_path / MEMORY_FILE, tmp_path / "real")
            with pytest.raises(ClientMemoryError, match=why):
                ClientStore.load(4, tmp_path / MEMORY_FILE, saved)
            (tmp_path / MEMORY_FILE).unlink()
        (tmp_path / "real").unlink()
    assert (tmp_path / "victim").read_bytes() == MINE


def test_a_tracker_does_not_follow_its_link(made: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    (tmp_path / "outside").mkdir()
    for name in ("tensorboard", "trackers.json"):
        folder = tmp_path / "run"
        shutil.copytree(made / "cut", folder)
        (folder / "experiment.toml").write_text(Experiment(**SETTINGS, track="tensorboard").toml())
        if name == "tensorboard":
            (folder / name).symlink_to(tmp_path / "outside")
        else:
            os.mkfifo(folder / name)
        resume(folder, device="cpu")
        same(made / "whole", folder)
        assert list((tmp_path / "outside").iterdir()) == []
        shutil.rmtree(folder)
    said = [str(warning.message) for warning in recwarn]
    assert said == ["track=tensorboard failed: tensorboard in the run folder is a link; the run continues without it"]


# what is not a file


@pytest.mark.parametrize("start", ["early", "cut"])
@pytest.mark.parametrize("kind", [os.mkfifo, Path.mkdir], ids=["pipe", "folder"])
def test_a_pipe_or_a_folder_in_the_place_of_a_file(
    start: str, kind: Callable[[Path], None], made: Path, tmp_path: Path, capsys: Capture
) -> None:
    """One sentence and no round, or the run as it is; never a hang."""
    for name in WRITTEN:
        folder = tmp_path / "run"
        shutil.copytree(made / start, folder)
        (folder / name).unlink(missing_ok=True)
        kind(folder / name)
        code = main(["run", "--resume", str(folder), "--device", "cpu", "--quiet"])
        said = capsys.readouterr().err
        assert code == 0 or (code == 2 and said.count("\n") == 1 and str(folder) in said), (name, code, said)
        if code == 0:
            same(made / "whole", folder)
        shutil.rmtree(folder)


@pytest.mark.parametrize("start", ["early", "cut"])
def test_a_file_of_20_gigabytes(start: str, made: Path, tmp_path: Path, capsys: Capture) -> None:
    """Almost all of it a hole: what no run of these settings writes is not read into memory."""
    for name in ("experiment.toml", "rounds.jsonl", "summary.json", "environment.json", MEMORY_FILE, LAST):
        folder = tmp_path / "run"
        shutil.copytree(made / start, folder)
        with open(folder / name, "ab"):
            os.truncate(folder / name, 20 << 30)
        with limited_memory():
            code = main(["run", "--resume", str(folder), "--device", "cpu", "--quiet"])
        said = capsys.readouterr().err
        if name in ("experiment.toml", "rounds.jsonl", "summary.json"):
            assert (code, said.count("\n")) == (2, 1), (name, said)
            assert "at most" in said
        elif code == 0:
            same(made / "whole", folder)
            assert name != LAST or start == "early" or f"{LAST} is too large" in said
        else:
            assert (start, name, code) == ("early", LAST, 2)
        shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.parametrize("clients", [6, 2**31 - 1])
def test_lines_without_end(clients: int, made: Path, tmp_path: Path) -> None:
    """A line is bounded by the number of clients, which is as little to be trusted."""
    shutil.copytree(made / "cut", tmp_path / "run")
    (tmp_path / "run" / "experiment.toml").write_text(Experiment(**(SETTINGS | {"clients": clients})).toml())
    os.truncate(tmp_path / "run" / "rounds.jsonl", 1 << 30)
    with open(tmp_path / "run" / "rounds.jsonl", "ab") as file:
        file.write(b"\n")
    with (
        limited_memory(),
        pytest.raises(ValueError, match=r"line 4 of rounds.jsonl is too long|does not fit in memory"),
    ):
        Run.open(tmp_path / "run")


# forged checkpoints


def forge(folder: Path, **tensors: torch.Tensor) -> None:
    """The run's own checkpoint with other tensors in it, and with a right sum."""
    e = Run.open(folder).experiment
    named = load((folder / LAST).read_bytes()) | {name.replace("__", "."): v for name, v in tensors.items()}
    (folder / LAST).write_bytes(seal(named, identify_run(build(e))))


def rejected(folder: Path, capsys: Capture) -> str:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert main(["run", "--resume", str(folder), "--device", "cpu", "--quiet"]) == 2
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize("method", ["scaffold", "fedveca"])
def test_steps_that_no_run_takes(method: str, tmp_path: Path, capsys: Capture) -> None:
    e, folder = Experiment(**(SETTINGS | {"method": method, "rounds": 2, "tau_max": 7})), tmp_path / "run"
    run(e, folder, device="cpu")
    (folder / "summary.json").unlink()
    (folder / "experiment.toml").write_text(Experiment(**(SETTINGS | {"method": method, "tau_max": 7})).toml())
    most = 7 if method == "fedveca" else 3
    for wrong in (0, -5, most + 1, 10**7, 2**62):
        tau = build(e).state.tau.clone()
        tau[4] = wrong
        forge(folder, state__tau=tau)
        said = rejected(folder, capsys)
        assert said.endswith(f"{LAST} does not fit this run: tau of a client is {wrong}; allowed: [1, {most}]\n")
    tau[4] = most
    forge(folder, state__tau=tau)
    assert resume(folder, device="cpu").summary["rounds"] == 5


@pytest.mark.parametrize("name", ["kept", "state.w"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_model_that_is_not_finite_is_not_handed_out(
    name: str, value: float, made: Path, tmp_path: Path, capsys: Capture
) -> None:
    shutil.copytree(made / "cut", tmp_path / "run")
    vector = load((tmp_path / "run" / LAST).read_bytes())[name].clone()
    vector[1] = value
    forge(tmp_path / "run", **{name: vector})
    assert f"{LAST} does not fit this run: {name} is not finite" in rejected(tmp_path / "run", capsys)


def test_a_memory_of_other_kinds_of_numbers(made: Path, tmp_path: Path, capsys: Capture) -> None:
    shutil.copytree(made / "cut", tmp_path / "run")
    (tmp_path / "run" / FORMER).unlink()
    for width in (torch.tensor(torch.inf), torch.tensor(torch.nan), torch.tensor([64, 64])):
        forge(tmp_path / "run", memory__width=width)
        assert f"{MEMORY_FILE} does not fit its checkpoint; {FORMER} is missing" in rejected(tmp_path / "run", capsys)
    ledger = NodeLedger(3)
    for rounds, token in (
        (torch.zeros(3), torch.tensor(5)),
        (torch.zeros(2).long(), torch.tensor(5)),
        (torch.zeros(3).long(), torch.tensor([5, 5])),
        (torch.zeros(3).long(), torch.tensor(torch.inf)),
        (torch.zeros(3).long(), torch.tensor(-1)),
    ):
        with pytest.raises(ClientMemoryError, match="does not say what the clients remember"):
            ledger.load(tmp_path, {"rounds": rounds, "token": token}, "cpu", {})


def test_lines_that_cannot_be_written_again(made: Path, tmp_path: Path, capsys: Capture) -> None:
    shutil.copytree(made / "cut", tmp_path / "run")
    lines = (made / "cut" / "rounds.jsonl").read_text().splitlines()
    for odd in ("1e999", "[" * 900 + "]" * 900):
        (tmp_path / "run" / "rounds.jsonl").write_text("\n".join([lines[0][:-1] + f', "x": {odd}}}', *lines[1:], ""]))
        code = main(["run", "--resume", str(tmp_path / "run"), "--device", "cpu", "--quiet"])
        said = capsys.readouterr().err
        assert (code, said) == (
            2,
            f"fedveca: {tmp_path / 'run'} cannot be resumed: rounds.jsonl holds what no run writes\n",
        ) or (code == 0 and odd != "1e999")


# folders that are no place for a run


def test_a_folder_with_other_things_in_it(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["run", *(f"{key}={value}" for key, value in SETTINGS.items()), "--quiet", "--device", "cpu", "--out"]
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("mine")
    assert main([*words, str(tmp_path / "home")]) == 2
    assert capsys.readouterr().err == (
        f"fedveca: {tmp_path / 'home'} is not empty: it holds thesis.tex; name a new folder\n"
    )
    monkeypatch.chdir(tmp_path)
    for start in (lambda: run(Experiment(**SETTINGS), ""), lambda: run(Experiment(**SETTINGS), "home")):
        with pytest.raises(ValueError, match=r"^out='' is empty; name a folder$|home is not empty"):
            start()
    for command in (words, ["compare", *words[1:]], ["reproduce", "instant", "--out"]):
        with pytest.raises(SystemExit, match="2"):
            main([*command, ""])
        assert "argument --out: '' cannot be the name of a folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["home", "thesis.tex"]
    (tmp_path / "new").mkdir()
    assert main([*words, str(tmp_path / "new")]) == 0  # an empty one is as good as none


def test_a_folder_that_was_killed_before_it_was_a_run(tmp_path: Path, made: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(made / "whole", folder)
    for path in folder.iterdir():
        if path.name not in ("environment.json", "partition.json"):
            path.unlink()
    for name in ("rounds.jsonl", ".lock", ".experiment.toml.123", ".partition.json.123"):
        (folder / name).touch()
    (folder / "deployment").mkdir()  # as a deployment makes it before its run
    run(Experiment(**SETTINGS), folder, device="cpu")
    same(made / "whole", folder)
    names = {path.name for path in (made / "whole").iterdir()} | {"deployment"}
    assert {path.name for path in folder.iterdir()} == names
