"""A disk that is full, gone or read-only, and a folder that two want: one sentence, and what was saved stays whole."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from round_observers import EachRound
from same_runs import SMALL, same
from zygote import Zygote, zygote

from fedveca.cli import main
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.interrupt import FolderUnwritable
from fedveca.runs.lock import InUse, lock_folder
from fedveca.runs.run import resume, run

Capture = pytest.CaptureFixture[str]
WORDS = [f"{key}={value}" for key, value in SMALL.items()]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    with zygote(tmp_path_factory.mktemp("zygote")) as ready:
        yield ready


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 40 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40k", "fedveca", folder], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no file system can be mounted here; the test with a limit on file sizes runs all the same")
    yield folder
    subprocess.run(["umount", folder], check=True)


def mount(options: str, disk: Path) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", disk], check=True)


def at(k: int, action: Callable[[], None]) -> list[EachRound]:
    return [EachRound(lambda record: action() if record["round"] + 1 == k else None)]


@pytest.mark.slow
def test_a_full_disk(disk: Path, tmp_path: Path, capsys: Capture) -> None:
    folder, words = disk / "run", ["run", *WORDS, "rounds=60", "--device", "cpu", "--quiet", "--out"]
    assert main([*words, str(tmp_path / "whole")]) == 0
    assert main([*words, str(folder)]) == 1
    assert capsys.readouterr().err == (
        f"fedveca: {folder} cannot be written: No space left on device; "
        f"everything up to its last checkpoint is saved: resume it with: fedveca run --resume {folder}\n"
    )
    left = Run.open(folder)
    assert 0 < len(left.rounds) < 60
    assert left.summary == {}
    hidden = [path.name for path in folder.iterdir() if path.name.startswith(".")]
    assert hidden == [".lock"]  # its drafts give back their room
    assert main(["run", "--resume", str(folder)]) in (1, 2)  # still full
    capsys.readouterr()
    mount("size=1m", disk)
    assert main(["run", "--resume", str(folder), "--device", "cpu", "--quiet"]) == 0
    same(tmp_path / "whole", folder)


def test_a_disk_that_becomes_read_only(disk: Path, tmp_path: Path, capsys: Capture) -> None:
    mount("size=1m", disk)
    e, folder = Experiment(**SMALL), disk / "run"
    run(e, tmp_path / "whole", device="cpu")
    kept: list[bytes] = []

    def freeze() -> None:
        kept.append((folder / "checkpoint.safetensors").read_bytes())
        subprocess.run(["mount", "--bind", disk, disk], check=True)
        mount("ro,bind", disk)

    with pytest.raises(
        FolderUnwritable,
        match="cannot be written: Read-only file system; everything up to its last checkpoint is saved",
    ):
        run(e, folder, device="cpu", observers=at(4, freeze))
    assert (folder / "checkpoint.safetensors").read_bytes() == kept[0]
    assert main(["run", "--resume", str(folder)]) == 2
    assert capsys.readouterr().err == f"fedveca: {folder} cannot be written: Read-only file system\n"
    assert main(["run", *WORDS, "--out", str(disk / "other")]) == 2
    assert "cannot be written: " in capsys.readouterr().err
    subprocess.run(["umount", disk], check=True)
    resume(folder, device="cpu")
    same(tmp_path / "whole", folder)


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    """The system's own limit on the size of files stands in for a full disk where none can be mounted."""
    e = Experiment(**(SMALL | {"rounds": 24}))
    run(e, tmp_path / "whole", device="cpu")
    size = (tmp_path / "whole" / "rounds.jsonl").stat().st_size
    with (
        files_of_at_most(size // 2),
        pytest.raises(
            FolderUnwritable, match="cannot be written: File too large; everything up to its last checkpoint is saved"
        ),
    ):
        run(e, tmp_path / "run", device="cpu")
    assert (tmp_path / "run" / "rounds.jsonl").stat().st_size == size // 2  # in the middle of a line
    assert 0 < len(Run.open(tmp_path / "run").rounds) < 24
    resume(tmp_path / "run", device="cpu")
    same(tmp_path / "whole", tmp_path / "run")


MEMORY = SMALL | {"method": "scaffold", "memory_mb": 0, "clients": 100, "participation": 0.3, "partition": "iid"}


def test_a_full_disk_while_clients_remember(disk: Path, tmp_path: Path, capsys: Capture) -> None:
    """What clients remember is written in the middle of a round: the same sentence, and the same code."""
    words = ["run", *(f"{key}={value}" for key, value in MEMORY.items()), "--device", "cpu", "--quiet"]
    assert main([*words, "--out", str(tmp_path / "whole")]) == 0
    for size in (36, 44, 48, 52):  # kB: now the memory itself has no room, now the checkpoint after it
        folder = disk / f"run{size}"
        mount(f"size={size}k", disk)
        assert main([*words, "--out", str(folder)]) == 1
        assert capsys.readouterr().err == (
            f"fedveca: {folder} cannot be written: No space left on device; "
            f"everything up to its last checkpoint is saved: resume it with: fedveca run --resume {folder}\n"
        )
        mount("size=1m", disk)
        assert main(["run", "--resume", str(folder), "--device", "cpu", "--quiet"]) == 0
        capsys.readouterr()
        same(tmp_path / "whole", folder)
        shutil.rmtree(folder)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_memory_that_may_not_grow(tmp_path: Path) -> None:
    e, folder = Experiment(**MEMORY), tmp_path / "run"
    run(e, tmp_path / "whole", device="cpu")
    size = (tmp_path / "whole" / "memory.rows").stat().st_size
    assert all(path.stat().st_size < size // 2 for path in (tmp_path / "whole").iterdir() if path.suffix != ".rows")
    with (
        files_of_at_most(size // 2),
        pytest.raises(
            FolderUnwritable, match="cannot be written: File too large; everything up to its last checkpoint is saved"
        ),
    ):
        run(e, folder, device="cpu")
    assert 0 < len(Run.open(folder).rounds) < 8
    resume(folder, device="cpu")
    same(tmp_path / "whole", folder)


def test_a_memory_that_is_cut_short(tmp_path: Path) -> None:
    """By someone else, while the run goes on: what cannot be read is reported as what cannot be written."""
    folder = tmp_path / "run"
    with pytest.raises(
        FolderUnwritable,
        match=r"the file of the clients' memory ends too early; everything up to its last checkpoint is saved",
    ):
        run(Experiment(**MEMORY), folder, device="cpu", observers=at(3, lambda: os.truncate(folder / "memory.rows", 9)))


def test_a_disk_without_room_for_the_first_files(tmp_path: Path, capsys: Capture) -> None:
    """Before its settings are written it is not a run: nothing stays behind."""
    words = ["run", *(f"{key}={value}" for key, value in MEMORY.items()), "--device", "cpu", "--quiet", "--out"]
    (tmp_path / "there").mkdir()
    for folder, left in ((tmp_path / "run", {"there"}), (tmp_path / "there", {"there", "there/.lock"})):
        with files_of_at_most(1000):  # the partition of 100 clients has more
            assert main([*words, str(folder)]) == 2
        assert capsys.readouterr().err == f"fedveca: {folder} cannot be written: File too large\n"
        assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")} == left


@pytest.mark.slow
def test_a_folder_that_is_gone(tmp_path: Path, programs: Zygote) -> None:
    folder = tmp_path / "run"
    pid = programs.start("run", *WORDS, "rounds=100000", "--device", "cpu", "--quiet", "--out", folder)
    until(lambda: (folder / "checkpoint.safetensors").exists())
    folder.rename(tmp_path / "moved")
    assert programs.wait(pid) == 1
    assert programs.said.read_text() == f"fedveca: {folder} is gone: it was deleted or moved during the run\n"
    more = len(Run.open(tmp_path / "moved").rounds) + 1
    assert main(["run", "--resume", str(tmp_path / "moved"), f"rounds={more}", "--quiet"]) == 0  # nothing was lost


def until(true: Any, seconds: float = 240) -> None:
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.01)


# two at once


@pytest.mark.slow
def test_the_second_is_refused_and_the_lock_dies_with_its_process(tmp_path: Path, programs: Zygote) -> None:
    folder, words = tmp_path / "run", [*WORDS, "rounds=100000", "--device", "cpu", "--quiet"]
    first = programs.start("run", *words, "--out", folder)
    until(lambda: (folder / "checkpoint.safetensors").exists())
    code, said = programs.run("run", "--resume", folder)
    assert (code, said) == (2, f"fedveca: {folder} is in use by process {first}; wait for it or stop it\n")
    assert programs.run("run", *words, "--out", folder)[1].startswith(f"fedveca: {folder} already holds a run")
    os.kill(first, signal.SIGKILL)
    assert programs.wait(first) == -signal.SIGKILL
    assert (folder / ".lock").read_text() == str(first)  # the file is there, the lock is not
    k = len(Run.open(folder).rounds)
    with pytest.raises(Exception, match="after round"):
        raise_stopped(folder)
    assert len(Run.open(folder).rounds) >= k


def raise_stopped(folder: Path) -> None:
    try:
        resume(folder, device="cpu", stop=lambda: True)
    except KeyboardInterrupt as stopped:
        raise RuntimeError(str(stopped)) from None


@pytest.mark.slow
def test_two_that_compare_into_one_folder(tmp_path: Path, programs: Zygote) -> None:
    words = ["compare", *WORDS, "rounds=100000", "--seeds", "1", "--device", "cpu", "--quiet", "--out", tmp_path / "c"]
    first = programs.start(*words)
    until(lambda: (tmp_path / "c" / "fedveca-seed0" / "checkpoint.safetensors").exists())
    code, said = programs.run(*words)
    assert (code, said.count("\n")) == (2, 1)
    assert f"fedveca-seed0 is in use by process {first}" in said
    os.kill(first, signal.SIGTERM)
    assert programs.wait(first) == 130  # undisturbed


def test_the_lock_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lock_folder(tmp_path):
        with pytest.raises(InUse, match=f"in use by process {os.getpid()}"), lock_folder(tmp_path):
            pass
        with lock_folder(tmp_path / "other", make=True):
            assert (tmp_path / "other" / ".lock").read_text() == str(os.getpid())
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [".lock", "other", "other/.lock"]
    with lock_folder(tmp_path):  # free again
        pass
    with pytest.raises(RuntimeError, match="fails"), lock_folder(tmp_path / "new", make=True):
        raise RuntimeError("fails")
    assert not (tmp_path / "new").exists()
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "a").touch()
    with pytest.raises(RuntimeError, match="fails"), lock_folder(tmp_path / "new", make=True):
        raise RuntimeError("fails")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [".lock", "a"]

    (tmp_path / "mine").write_text("mine")
    (tmp_path / ".lock").unlink()
    (tmp_path / ".lock").symlink_to(tmp_path / "mine")
    with pytest.raises(ValueError, match="cannot be written: Too many levels of symbolic links"), lock_folder(tmp_path):
        pass
    assert (tmp_path / "mine").read_text() == "mine"
    (tmp_path / ".lock").unlink()

    def none(handle: int, what: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with lock_folder(tmp_path), lock_folder(tmp_path):  # a file system without locks
        assert (tmp_path / ".lock").read_text() == str(os.getpid())


def test_a_lock_taken_away_while_one_waits_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between one's opening of the file and locking it, its holder ends and removes it: that lock is worth nothing."""
    real, first = fcntl.flock, list[int]()

    def late(handle: int, what: int) -> None:
        if not first:
            first.append(handle)
            (tmp_path / ".lock").unlink()
        real(handle, what)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(InUse, match="in use by another process"), lock_folder(tmp_path):
        pass
    with lock_folder(tmp_path):
        assert (tmp_path / ".lock").read_text() == str(os.getpid())
        with pytest.raises(InUse), lock_folder(tmp_path):
            pass


def test_a_new_folder_that_fails_is_removed_while_it_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Removed after its release, the file could be another one's lock by then."""
    seen: list[bool] = []
    release = FileLock.release

    def look(lock: FileLock) -> None:
        seen.append((tmp_path / "new").exists())
        release(lock)

    monkeypatch.setattr(FileLock, "release", look)
    with pytest.raises(RuntimeError, match="fails"), lock_folder(tmp_path / "new", make=True):
        raise RuntimeError("fails")
    assert seen[0] is False
