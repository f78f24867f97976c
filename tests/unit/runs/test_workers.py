"""Worker processes: where they come from, how many there are, and that they change no byte."""

from __future__ import annotations

import argparse
import json
import multiprocessing.forkserver
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from same_runs import same

from fedveca.cli import comparing
from fedveca.runs.compare import compare
from fedveca.runs.experiment import Experiment
from fedveca.runs.pool import RunPool
from fedveca.runs.worker_server import FORKS, WORKERS, start_server

E = Experiment(model="mlp", data="digits", rounds=4, clients=3, batch=8, lr=0.1)

forks = pytest.mark.skipif(not FORKS, reason="workers are processes of their own on this system")


def ask_worker(name: str) -> str | None:
    """A variable of the environment that a new worker has."""
    with RunPool(2) as pool:
        return pool._start().submit(os.getenv, name).result(timeout=60)


def test_a_worker_has_the_environment_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that with which the process began that it was forked from."""
    monkeypatch.setenv("FEDVECA_GONE", "1")
    start_server()
    monkeypatch.setenv("FEDVECA_HERE", "1")
    monkeypatch.delenv("FEDVECA_GONE")
    assert ask_worker("FEDVECA_HERE") == "1"
    assert ask_worker("FEDVECA_GONE") is None


@forks
def test_workers_are_forked_from_a_process_that_has_loaded_pytorch() -> None:
    start_server()
    with WORKERS.Pool(1) as pool:
        loaded, parent = pool.apply(eval, ("'torch' in __import__('sys').modules, __import__('os').getppid()",))
    assert loaded
    assert parent == multiprocessing.forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    assert parent != os.getpid()


def test_workers_start_where_a_socket_has_no_room(tmp_path: Path) -> None:
    """In a folder of temporary files with a long name."""
    far = tmp_path / "t" / ("x" * 100)
    far.mkdir(parents=True)
    words = ["compare", "model=svm", "rounds=1", "--seeds", "1", "--methods", "fedavg,fednova", "--workers", "2"]
    command = [sys.executable, "-m", "fedveca", *words, "--device", "cpu", "--out", "out"]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | {"TMPDIR": str(far)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(json.loads((tmp_path / "out" / "table.json").read_text())) == 2


@pytest.mark.parametrize("methods", [("fedveca", "scaffold", "fedavg"), ("fedavg", "fedprox")])
def test_workers_change_no_byte(methods: tuple[str, ...], tmp_path: Path) -> None:
    """Where the first method sets a budget, all its seeds are over before the first rival begins."""
    runs = {n: compare(E, 2, tmp_path / str(n), methods=methods, device="cpu", workers=n) for n in (1, 2)}
    for mine in runs.values():
        assert [(run.experiment.seed, run.experiment.method) for run in mine] == [
            (seed, name) for seed in (0, 1) for name in methods
        ]
        if methods[0] == "fedveca":
            assert all(
                run.experiment.tau_all == mine[3 * at].summary["tau_all"]
                for at in (0, 1)
                for run in mine[3 * at + 1 : 3 * at + 3]
            )
    for run in runs[1]:
        assert run.folder
        same(run.folder, tmp_path / "2" / run.folder.name)
    assert (tmp_path / "1/table.json").read_bytes() == (tmp_path / "2/table.json").read_bytes()


@pytest.mark.parametrize(
    ("named", "change", "cores", "threads", "tunes", "count"),
    [
        (None, {}, 4, 4, False, 4),
        (None, {}, 64, 64, False, 8),
        (None, {}, 4, 2, False, 2),  # as OMP_NUM_THREADS says
        (None, {}, 4, 2, True, 4),
        (3, {}, 4, 4, False, 3),
        (None, {"model": "cnn", "data": "mnist"}, 4, 4, False, 1),  # its threads take a client each
        (None, {"model": "cnn", "data": "mnist"}, 4, 4, True, 4),
        (None, {"engine": "ray"}, 4, 4, False, 1),
        (None, {"track": "tensorboard"}, 4, 4, False, 1),
        (None, {"model": "svm"}, 4, 4, False, 4),
        (None, {"budget": "seconds:5"}, 4, 4, False, 1),
        (None, {"budget": "seconds:5"}, 4, 4, True, 1),
        (None, {"budget": "rows:5"}, 4, 4, False, 4),
    ],
)
def test_as_many_workers_as_pay(
    named: int | None,
    change: dict[str, object],
    cores: int,
    threads: int,
    tunes: bool,
    count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(comparing, "_count_cores", lambda: cores)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    args = argparse.Namespace(workers=named, device="cpu", fair="steps")
    e = E.replace(**change)
    assert comparing.count_workers(args, e, tunes=tunes) == count
    if named is None:
        timed = argparse.Namespace(workers=None, device="cpu", fair="time")
        assert comparing.count_workers(timed, e, tunes=tunes) == 1
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        assert (
            comparing.count_workers(argparse.Namespace(workers=None, device="auto", fair="steps"), e, tunes=tunes) == 1
        )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc")
def test_threads_of_a_worker_share_their_heaps() -> None:
    said = subprocess.run(
        [sys.executable, "-c", "from fedveca.runs.worker_server import limit_arenas; print(limit_arenas())"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "True\n"
