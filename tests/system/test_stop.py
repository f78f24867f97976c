"""Ctrl-C and SIGTERM: once ends the round and saves, twice ends at once; nobody else's handlers are touched."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from round_observers import EachRound
from safetensors.torch import load_file
from same_runs import SMALL, same
from shrunken_studies import Shrink, shrink  # noqa: F401
from zygote import Zygote, zygote

from fedveca.cli import main
from fedveca.runs.compare import compare, make_table
from fedveca.runs.experiment import Experiment
from fedveca.runs.files import read_object
from fedveca.runs.folder import Run
from fedveca.runs.folder_writer import LAST, STOP_MARK
from fedveca.runs.interrupt import HEARD, Stopped
from fedveca.runs.lock import lock_folder
from fedveca.runs.observers import Observer
from fedveca.runs.run import resume, run
from fedveca.runs.schema import Round
from fedveca.views.terminal.screen import Screen

CTRL_C, TERM = signal.SIGINT, signal.SIGTERM


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    with zygote(tmp_path_factory.mktemp("zygote")) as ready:
        yield ready


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = [signal.getsignal(number) for number in (CTRL_C, TERM)]
    yield
    assert [signal.getsignal(number) for number in (CTRL_C, TERM)] == before


def until(true: Callable[[], bool], seconds: float = 240) -> None:
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.01)


def pressed(number: int, after: int, times: int = 1) -> EachRound:
    """An observer that sends this process a signal after so many rounds."""

    def press(record: Round) -> None:
        if record["round"] + 1 == after:
            for _ in range(times):
                signal.raise_signal(number)

    return EachRound(press)


# a run


@pytest.mark.slow
@pytest.mark.parametrize("number", [CTRL_C, TERM])
def test_once_ends_the_round_and_saves(number: int, tmp_path: Path, programs: Zygote) -> None:
    e = Experiment(**(SMALL | {"rounds": 1000, "checkpoint_every": 900}))
    folder = tmp_path / "a run"
    words = [f"{key}={value}" for key, value in (SMALL | {"rounds": 1000, "checkpoint_every": 900}).items()]
    pid = programs.start("run", *words, "--quiet", "--device", "cpu", "--out", folder)
    until(lambda: (folder / "rounds.jsonl").exists() and (folder / "rounds.jsonl").stat().st_size > 2000)
    os.kill(pid, number)
    assert programs.wait(pid) == 130
    left = Run.open(folder)
    k = len(left.rounds)
    assert programs.said.read_text() == (
        HEARD.decode() + f"fedveca: stopped after round {k} of 1000, all saved; "
        f"resume it with: fedveca run --resume '{folder}'\n"
    )
    assert left.summary == {}
    assert load_file(folder / LAST)["numbers"][0] == k  # saved, though no checkpoint was due
    with lock_folder(folder):  # it is unlocked
        pass
    run(Experiment(**(SMALL | {"rounds": k + 2, "checkpoint_every": 900})), tmp_path / "whole", device="cpu")
    assert e.rounds == left.experiment.rounds
    (folder / "experiment.toml").write_text(Run.open(tmp_path / "whole").experiment.toml())  # k + 2 will do
    assert main(["run", "--resume", str(folder), "--quiet", "--device", "cpu"]) == 0
    same(tmp_path / "whole", folder)


@pytest.mark.slow
def test_twice_ends_at_once(tmp_path: Path, programs: Zygote) -> None:
    """In a round that would take many minutes, its arithmetic in threads of its own."""
    folder = tmp_path / "run"
    words = ["method=fedavg", "tau_0=100000", "model=mlp", "hidden=512", "batch=1000", "clients=20", "partition=iid"]
    pid = programs.start("run", *words, "--quiet", "--device", "cpu", "--out", folder)
    until((folder / "experiment.toml").exists)
    time.sleep(0.5)
    os.kill(pid, CTRL_C)
    until(lambda: programs.said.read_text() == HEARD.decode())
    time.sleep(0.5)
    os.kill(pid, CTRL_C)
    assert programs.wait(pid) == 130
    assert programs.said.read_text() == f"{HEARD.decode()}fedveca: interrupted\n"
    assert Run.open(folder).rounds == []


def test_before_the_first_round_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (CTRL_C, TERM):
        monkeypatch.setattr("fedveca.runs.run.build", lambda *args, n=number, **options: signal.raise_signal(n))
        assert main(["run", "--out", str(tmp_path / "run")]) == 130
        assert list(tmp_path.iterdir()) == []


def test_from_python(tmp_path: Path) -> None:
    e = Experiment(**SMALL)
    run(e, tmp_path / "whole", device="cpu")
    with pytest.raises(
        Stopped, match=r"stopped after round 3 of 8, all saved; resume it with: fedveca run --resume \S+run$"
    ):
        run(e, tmp_path / "run", device="cpu", observers=[pressed(CTRL_C, 3)])
    mark = tmp_path / "run" / STOP_MARK
    assert read_object(mark.parent, STOP_MARK).items() >= {"rounds": 3, "of": 8}.items()
    marked: list[bool] = []
    looking = EachRound(lambda record: marked.append(mark.exists()))
    with pytest.raises(Stopped, match="after round 5 of 8"):
        resume(tmp_path / "run", device="cpu", observers=[pressed(TERM, 5), looking])
    assert marked == [False, False]
    assert read_object(mark.parent, STOP_MARK).items() >= {"rounds": 5, "of": 8}.items()
    resume(tmp_path / "run", device="cpu", observers=[pressed(CTRL_C, 8)])  # the last round: there is nothing to stop
    same(tmp_path / "whole", tmp_path / "run")
    assert not mark.exists()
    with pytest.raises(KeyboardInterrupt) as twice:
        run(e, tmp_path / "twice", device="cpu", observers=[pressed(CTRL_C, 3, times=2)])
    assert not (tmp_path / "twice" / STOP_MARK).exists()
    assert not isinstance(twice.value, Stopped)
    assert len(Run.open(tmp_path / "twice").rounds) == 3
    done: list[int] = []
    with pytest.raises(Stopped, match="after round 1 of 8"):  # the round whose observers ask for it
        run(
            e,
            tmp_path / "asked",
            device="cpu",
            observers=[EachRound(lambda record: done.append(1))],
            stop=lambda: len(done) == 1,
        )


def test_in_memory_ctrl_c_is_as_usual() -> None:
    seen: list[int] = []

    seeing = EachRound(lambda record: seen.append(record["round"]))
    with pytest.raises(KeyboardInterrupt) as caught:
        run(Experiment(**SMALL), device="cpu", observers=[seeing, pressed(CTRL_C, 3)])
    assert not isinstance(caught.value, Stopped)
    assert seen == [0, 1, 2]


def test_handlers_of_others_stay(tmp_path: Path) -> None:
    heard: list[int] = []
    before = signal.signal(CTRL_C, lambda number, frame: heard.append(number))
    try:
        run(Experiment(**SMALL), tmp_path / "mine", device="cpu", observers=[pressed(CTRL_C, 3)])
    finally:
        signal.signal(CTRL_C, before)
    assert heard == [CTRL_C]

    seen: list[Any] = []
    observers = [EachRound(lambda record: seen.append(signal.getsignal(CTRL_C)))]
    there = {"observers": observers}
    thread = threading.Thread(target=run, args=(Experiment(**SMALL), tmp_path / "thread"), kwargs=there)
    thread.start()
    thread.join()
    assert seen == [before] * 8
    assert Run.open(tmp_path / "thread").summary


# many runs


def test_compare_goes_on_where_it_stopped(tmp_path: Path) -> None:
    e, methods = Experiment(**SMALL), ("fedveca", "scaffold", "fedavg")
    whole = compare(e, 1, tmp_path / "whole", methods=methods, device="cpu")
    seen: list[tuple[str, int]] = []

    class Presses(Observer):
        def start(self, experiment: Experiment, folder: Path | None) -> None:
            self.method = experiment.method

        def round(self, record: Round) -> None:
            seen.append((self.method, record["round"]))
            if seen[-1] == ("scaffold", 3):
                signal.raise_signal(CTRL_C)

    with pytest.raises(Stopped, match="all saved; the same command resumes it"):
        compare(e, 1, tmp_path / "cut", methods=methods, device="cpu", observers=[Presses()])
    assert not (tmp_path / "cut" / "table.json").exists()
    again = compare(e, 1, tmp_path / "cut", methods=methods, device="cpu", observers=[Presses()])
    assert seen == [(method, k) for method in methods for k in range(8)]  # no round was done twice
    assert make_table(again) == make_table(whole)
    for method in methods:
        same(tmp_path / "whole" / f"{method}-seed0", tmp_path / "cut" / f"{method}-seed0")


@pytest.mark.slow
def test_reproduce_goes_on_where_it_stopped(
    shrink: Shrink,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["reproduce", "instant", "--seeds", "1", "--device", "cpu", "--quiet", "--out"]

    def press_in_fednova(screen: Screen, folder: Path, record: Round) -> None:  # rivals run side by side
        pressed(TERM, 5 if folder.name.startswith("fednova") else 0).round(record)

    assert main([*argv, "whole"]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(Screen, "see_round_in_worker", press_in_fednova)
        assert main([*argv, "cut"]) == 130
    assert capsys.readouterr().err == ("fedveca: stopped after a whole round, all saved; the same command resumes it\n")
    assert not (tmp_path / "cut" / "results").exists()
    assert main([*argv, "cut"]) == 0
    files = [(tmp_path / out / "results" / "instant.svg").read_bytes() for out in ("whole", "cut")]
    assert files[0] == files[1]


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.slow
def test_workers_stop_with_their_parent(tmp_path: Path, programs: Zygote) -> None:
    """Once: they end their rounds. Twice, and when the parent is killed: they are gone, and the next one goes on."""
    words = ["compare", "model=svm", "batch=8", "rounds=3000", "--device", "cpu", "--quiet", "--seeds", "2"]
    out = tmp_path / "out"

    def under_way(rounds: int) -> bool:
        runs = [out / f"fedveca-seed{seed}" / "rounds.jsonl" for seed in (0, 1)]
        return all(path.exists() and path.read_bytes().count(b"\n") > rounds for path in runs)

    for signals, code in (((TERM,), 130), ((CTRL_C, CTRL_C), 130), ((signal.SIGKILL,), -signal.SIGKILL)):
        before = [len(Run.open(folder).rounds) for folder in out.glob("*-seed*")]
        pid = programs.start(*words, "--workers", "2", "--out", out)
        until(lambda: under_way(max(before, default=0) + 3))  # noqa: B023
        workers = children(pid)
        for number in signals:
            os.kill(pid, number)
            time.sleep(0.05)
        assert programs.wait(pid) == code
        until(lambda: all(map(gone, workers)))  # noqa: B023
        after = [Run.open(folder) for folder in out.glob("*-seed*")]
        assert [done.experiment.method for done in after] == ["fedveca"] * 2
        assert all(len(done.rounds) > max(before, default=0) for done in after)
