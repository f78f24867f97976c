"""Runs side by side in one process: each has the bytes that it has alone, however it ends."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from same_runs import same
from torch import Tensor

from fedveca import Experiment, compare, run
from fedveca.algorithms.fedprox import FedProx
from fedveca.algorithms.registry import load_method, methods
from fedveca.cohorts.local import meeting
from fedveca.cohorts.local.joint import PassWalk
from fedveca.cohorts.local.meeting import Pause, ProbeRequest
from fedveca.cohorts.local.threads import ThreadPool
from fedveca.errors import UserError
from fedveca.runs import pool, population
from fedveca.runs.folder import Run
from fedveca.runs.interrupt import FolderUnwritable, Stopped
from fedveca.runs.lock import lock_folder
from fedveca.runs.observers import ComparisonObserver, Observer
from fedveca.runs.pool import RunPlan, complete_runs, group_plans
from fedveca.runs.population import MOST_MEMBERS, is_shared
from fedveca.runs.schema import Round
from fedveca.runs.sweep import sweep
from fedveca.tasks.layers import LinearLayers

E = Experiment(model="svm", rounds=4, batch=8, clients=5, partition="dirichlet", lr=0.05, tau_0=3, probe=0)
NAMES = tuple(name for name in methods() if not load_method(name).algorithm.needs_timing)
Requests = Sequence[ProbeRequest | PassWalk[Any]]
MLP = replace(E, model="mlp", hidden=32, batch=16, probe="auto")
KINDS = {"svm": E, "mlp": MLP, "layers": MLP}  # layers: without kernels in C, where passes of several runs are one
KEPT = ("checkpoint.safetensors", "checkpoint.former.safetensors")
SETTINGS = {
    "participation": {"participation": 0.5},
    "faults": {"faults": "drop:0.3,scale:0.3:-2", "aggregate": "clip"},
    "rollback": {"keep": "rollback"},
    "validation": {"val": 0.2, "test_by": "both", "finetune_steps": 1, "clients": 2},
    "guard": {"guard": "on", "lr": 0.5},
    "recipe": {"momentum": 0.9, "server_optimizer": "adam", "lr_schedule": "cosine"},
    "privacy": {"dp_noise": 0.5, "dp_seed": 3},
    "devices": {"devices": "phones", "rounds": 3},
}


def never() -> bool:
    return False


@pytest.fixture(autouse=True)
def meets(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many runs were answered at a time; small probes meet too."""
    found: list[int] = []

    def count(requests: Requests, threads: ThreadPool) -> list[Any]:
        found.append(len(requests))
        return meeting.answer_requests(requests, threads)

    monkeypatch.setattr(meeting, "_LARGE", 1)
    monkeypatch.setattr(population, "answer_requests", count)
    threads = threading.active_count()
    yield found
    most = threads + 2 * torch.get_num_threads()
    if threading.active_count() > most:
        gc.collect()  # the threads of pools that nobody holds end
    assert threading.active_count() <= most


@pytest.fixture
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One of KINDS, with or without kernels in C."""
    found: str = request.param
    choose_kernels(found, monkeypatch)
    return found


@pytest.fixture
def e(kind: str) -> Experiment:
    return KINDS[kind]


def choose_kernels(kind: str, patch: pytest.MonkeyPatch) -> None:
    if kind == "layers":
        patch.setenv("FEDVECA_KERNELS", "off")


def choose(name: str, kind: str) -> Experiment:
    if kind != "svm":
        return replace(MLP, method=name)
    return replace(E, method=name, model="logistic" if load_method(name).algorithm.has_loss else "svm")


def plans(experiments: Sequence[Experiment], out: Path) -> list[RunPlan]:
    return [RunPlan(e, out / f"{n}-{e.method}", "cpu") for n, e in enumerate(experiments)]


def alike(together: Path, alone: Path, resumed: bool = False) -> None:
    """The same bytes; where a run was resumed, its checkpoints were at other rounds, and its memory is placed anew."""
    same(together, alone)
    for name in (name for name in KEPT[: 1 if resumed else 2] if (alone / name).exists()):
        a, b = load_file(together / name), load_file(alone / name)
        if resumed:
            a, b = ({key: v for key, v in named.items() if not key.startswith("memory.")} for named in (a, b))
        assert a.keys() == b.keys()
        assert all(v.numpy().tobytes() == b[key].numpy().tobytes() for key, v in a.items())


@pytest.fixture(scope="module")
def everyone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One population after another, with every method once."""
    out = tmp_path_factory.mktemp("together")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meeting, "_LARGE", 1)
        for kind, model in (("svm", "svm"), ("svm", "logistic"), ("mlp", "mlp"), ("layers", "mlp")):
            choose_kernels(kind, patch)
            mine = [e for e in (choose(name, kind) for name in NAMES) if e.model == model]
            complete_runs([RunPlan(e, out / kind / e.method, "cpu") for e in mine], never)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, indirect=True)
@pytest.mark.parametrize("name", NAMES)
def test_every_method_has_the_bytes_that_it_has_alone(name: str, kind: str, everyone: Path, tmp_path: Path) -> None:
    run(choose(name, kind), tmp_path / "alone", device="cpu")
    alike(everyone / kind / name, tmp_path / "alone")


@pytest.mark.parametrize("kind", KINDS, indirect=True)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_settings(settings: dict[str, object], e: Experiment, tmp_path: Path, meets: list[int]) -> None:
    mine = plans([e.replace(method=name, **settings) for name in ("fedavg", "fedprox", "fednova")], tmp_path / "all")
    complete_runs(mine, never)
    assert max(meets) == 3
    for plan in mine:
        run(plan.experiment, tmp_path / plan.folder.name, device="cpu")
        alike(plan.folder, tmp_path / plan.folder.name)


@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_runs_of_different_lengths_rates_and_seeds(e: Experiment, tmp_path: Path) -> None:
    several = [replace(e, method="fedavg", **more) for more in ({"rounds": 2}, {"lr": 0.2}, {"seed": 1}, {"lr": 1e9})]
    several[3] = replace(several[3], rounds=30)  # it diverges, and the others do not notice
    mine = plans(several, tmp_path / "all")
    done = complete_runs(mine, never)
    assert [run.diverged for run in done] == [False, False, False, True]
    for plan in mine:
        run(plan.experiment, tmp_path / plan.folder.name, device="cpu")
        alike(plan.folder, tmp_path / plan.folder.name)


def test_rows_are_held_once_and_no_longer_than_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    real = meeting.share_client_rows

    def count(*args: object) -> object:
        rows = real(*args)  # type: ignore[arg-type]
        held.append(id(rows))
        return rows

    monkeypatch.setattr("fedveca.cohorts.local.cohort.share_client_rows", count)
    complete_runs(plans([replace(E, method=name) for name in ("fedavg", "fedprox")], tmp_path), never)
    assert len(held) == 2
    assert len(set(held)) == 1
    complete_runs(plans([replace(E, method="fedavg", seed=seed) for seed in (0, 1)], tmp_path / "seeds"), never)
    assert len(set(held[2:])) == 2  # another seed has other clients
    gc.collect()
    assert not any(entry[-1]() for entry in meeting._known)


def test_stopped_and_resumed(tmp_path: Path) -> None:
    mine = plans([replace(E, method=name, checkpoint_every=3) for name in ("fedavg", "scaffold")], tmp_path / "all")
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > 5  # twice before the runs, once after each of three rounds

    with pytest.raises(Stopped):
        complete_runs(mine, stop)
    assert 0 < len(Run.open(mine[0].folder).rounds) < E.rounds
    assert all((plan.folder / "stopped.json").exists() for plan in mine)
    complete_runs(mine, never)
    for plan in mine:
        run(plan.experiment, tmp_path / plan.folder.name, device="cpu")
        alike(plan.folder, tmp_path / plan.folder.name, resumed=True)


def test_a_run_that_cannot_begin_ends_it_as_one_after_another(tmp_path: Path) -> None:
    bad = replace(E, method="scaffnew", participation=0.5)
    mine = plans([replace(E, method="fedavg"), bad, replace(E, method="fednova")], tmp_path)
    with pytest.raises(UserError, match="participation"):
        complete_runs(mine, never)
    assert Run.open(mine[0].folder).summary
    assert not mine[2].folder.exists()


def test_a_folder_that_is_lost_stops_those_behind_it_after_their_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = plans([replace(E, method=name) for name in ("fedavg", "fedprox", "fednova")], tmp_path / "all")

    def lose(requests: Requests, threads: ThreadPool) -> list[Any]:
        lines = mine[1].folder / "rounds.jsonl"
        if lines.exists() and lines.read_text().count("\n") == 1:
            shutil.rmtree(mine[1].folder)
        return meeting.answer_requests(requests, threads)

    monkeypatch.setattr(population, "answer_requests", lose)
    with pytest.raises(FolderUnwritable, match="is gone"):
        complete_runs(mine, never)
    monkeypatch.setattr(population, "answer_requests", meeting.answer_requests)
    assert len(Run.open(mine[0].folder).rounds) == E.rounds
    assert 0 < len(Run.open(mine[2].folder).rounds) < E.rounds
    complete_runs(mine, never)
    for plan in mine:
        run(plan.experiment, tmp_path / plan.folder.name, device="cpu")
        alike(plan.folder, tmp_path / plan.folder.name, resumed=True)


def test_a_second_ctrl_c_leaves_no_thread_and_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = plans([replace(E, method=name) for name in ("fedavg", "fedprox")], tmp_path)

    def interrupt(requests: Requests, threads: ThreadPool) -> list[Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(population, "answer_requests", interrupt)
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        complete_runs(mine, never)
    assert threading.active_count() <= before
    for plan in mine:
        with lock_folder(plan.folder):
            pass


@pytest.mark.parametrize("clients", [3, 12])
def test_local_steps_of_small_layers_are_one_pass(
    clients: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_kernels("layers", monkeypatch)
    seen: list[int] = []
    real = LinearLayers.gradients

    def count(self: LinearLayers, w: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        seen.append(len(w))
        return real(self, w, *args, **kwargs)

    monkeypatch.setattr(LinearLayers, "gradients", count)
    e = replace(MLP, clients=clients, partition="iid", tau_0=5)
    several = [replace(e, method="fedavg", seed=seed, lr=lr) for seed in (0, 1) for lr in (0.1, 0.2)]
    complete_runs(plans(several, tmp_path), never)
    assert seen.count(4 * clients) >= 5 * (e.rounds - 1)


def test_an_error_of_one_run_is_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = plans([replace(MLP, method=name) for name in ("fedavg", "fedprox", "fednova")], tmp_path / "all")
    real, calls = FedProx.step, 0

    def fail(self: FedProx, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 5:
            raise UserError("no step")
        return real(self, *args)

    monkeypatch.setattr(FedProx, "step", fail)
    with pytest.raises(UserError, match="no step"):
        complete_runs(mine, never)
    assert len(Run.open(mine[0].folder).rounds) == MLP.rounds
    assert len(Run.open(mine[2].folder).rounds) < MLP.rounds
    monkeypatch.undo()
    complete_runs(mine, never)
    for plan in mine:
        run(plan.experiment, tmp_path / plan.folder.name, device="cpu")
        alike(plan.folder, tmp_path / plan.folder.name, resumed=True)


KILLED = """
import sys
from fedveca import Experiment, compare
from fedveca.cohorts.local import meeting
meeting._LARGE = 1
compare(Experiment({settings}), 1, sys.argv[1], methods=("fedavg", "scaffold", "fedprox"), device="cpu")
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_killed_and_resumed(e: Experiment, tmp_path: Path, meets: list[int]) -> None:
    e = replace(e, rounds=60, participation=0.8, faults="drop:0.2")
    names, keys = ("fedavg", "scaffold", "fedprox"), ("model", "rounds", "batch", "clients", "partition", "lr", "tau_0")
    words = {key: getattr(e, key) for key in (*keys, "probe", "hidden")}
    words |= {"participation": e.participation, "faults": e.faults}
    code = KILLED.format(settings=", ".join(f"{key}={value!r}" for key, value in words.items()))
    out = tmp_path / "all"
    process = subprocess.Popen([sys.executable, "-c", code, str(out)])
    lines, limit = out / "fedprox-seed0" / "rounds.jsonl", time.monotonic() + 240
    while not lines.exists() or lines.read_text().count("\n") < 5:
        assert time.monotonic() < limit
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not any((out / f"{name}-seed0" / "summary.json").exists() for name in names)  # all three were under way
    compare(e, 1, out, methods=names, device="cpu")
    assert max(meets) == 3
    for name in names:
        run(replace(e, method=name), tmp_path / name, device="cpu")
        alike(out / f"{name}-seed0", tmp_path / name, resumed=True)


class Watcher(ComparisonObserver):
    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []
        self.ends: list[str] = []
        self.done: list[str] = []

    def see_round_in_worker(self, folder: Path, record: Round) -> None:
        self.seen.append((folder.name, record["round"]))

    def end(self, run: Run) -> None:
        self.ends.append(run.experiment.method)

    def count_done(self, run: Run) -> None:
        self.done.append(run.experiment.method)


def test_a_comparison_is_a_population_and_its_observers_see_every_run(tmp_path: Path, meets: list[int]) -> None:
    watcher, names = Watcher(), ("fedveca", "fedavg", "fedprox")
    compare(E, 1, tmp_path, methods=names, device="cpu", observers=[watcher])
    assert max(meets) == 2  # the rivals; the first one sets their budget
    rivals = [(name, k) for name, k in watcher.seen if not name.startswith("fedveca")]
    assert rivals == [(f"{name}-seed0", k) for k in range(E.rounds) for name in ("fedavg", "fedprox")]
    assert watcher.ends == list(names)
    compare(E, 1, tmp_path, methods=names, device="cpu", observers=[watcher])
    assert watcher.done == list(names)


def test_an_observer_that_sees_one_run_at_a_time_gets_them_so(tmp_path: Path, meets: list[int]) -> None:
    class Names(Observer):
        def __init__(self) -> None:
            self.seen: list[str] = []

        def start(self, experiment: Experiment, folder: Path | None) -> None:
            self.seen.append(f"{experiment.method} begins")

        def end(self, run: Run) -> None:
            self.seen.append(f"{run.experiment.method} ends")

    names = Names()
    compare(E, 1, tmp_path, methods=("fedavg", "fedprox"), device="cpu", observers=[names])
    assert names.seen == ["fedavg begins", "fedavg ends", "fedprox begins", "fedprox ends"]
    assert not meets


def test_a_sweep_tunes_in_populations(tmp_path: Path, meets: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = {"methods": ("fedavg", "fedprox"), "tuning_seeds": 1, "device": "cpu"}
    sweep(replace(E, rounds=2), {"lr": [0.01, 0.1]}, 1, tmp_path / "together", **arguments)  # type: ignore[arg-type]
    assert max(meets) == 4
    monkeypatch.setattr(pool, "is_shared", lambda e, device: False)
    sweep(replace(E, rounds=2), {"lr": [0.01, 0.1]}, 1, tmp_path / "alone", **arguments)  # type: ignore[arg-type]
    runs = sorted(path.parent.relative_to(tmp_path / "alone") for path in (tmp_path / "alone").rglob("summary.json"))
    assert len(runs) == 6
    for name in runs:
        alike(tmp_path / "together" / name, tmp_path / "alone" / name)
    assert (tmp_path / "together/sweep.json").read_bytes() == (tmp_path / "alone/sweep.json").read_bytes()


def test_every_worker_gets_a_group() -> None:
    mine = plans([replace(E, method="fedavg", seed=seed, lr=lr) for seed in (0, 1) for lr in (0.1, 0.2, 0.3)], Path())
    assert [len(group) for group in group_plans(mine, 1)] == [3, 3]
    assert [len(group) for group in group_plans(mine, 4)] == [2, 1, 2, 1]
    assert [plan for group in group_plans(mine, 4) for plan in group] == mine
    assert len(group_plans([plan._replace(experiment=replace(E, probe="auto")) for plan in mine], 2)) == 6
    assert group_plans([], 2) == []


def test_runs_that_step_together_are_grouped_across_seeds() -> None:
    mine = plans([replace(MLP, method="fedavg", seed=seed, lr=lr) for seed in (0, 1) for lr in (0.1, 0.2, 0.3)], Path())
    assert [len(group) for group in group_plans(mine, 1)] == [6]
    assert [len(group) for group in group_plans(mine, 4)] == [2, 2, 2]
    assert [plan for group in group_plans(mine, 4) for plan in group] == mine


@pytest.mark.slow
@pytest.mark.parametrize("names", [("fedveca", "fedavg", "fedprox"), ("fedavg", "fednova")])
def test_a_comparison_of_several_seeds_has_the_bytes_of_each_alone(
    names: tuple[str, ...], tmp_path: Path, meets: list[int]
) -> None:
    e = replace(MLP, rounds=8, lr=0.2, partition="case3")
    together = compare(e, 3, tmp_path / "all", methods=names, device="cpu")
    assert max(meets) == 6  # the rivals of three seeds, or all runs
    assert names[0] == "fedavg" or len({run.summary["tau_all"] for run in together[::3]}) > 1
    assert [(run.experiment.seed, run.experiment.method) for run in together] == [
        (seed, name) for seed in range(3) for name in names
    ]
    for seed in range(3):
        compare(replace(e, seed=seed), 1, tmp_path / str(seed), methods=names, device="cpu")
        for name in names:
            alike(tmp_path / "all" / f"{name}-seed{seed}", tmp_path / str(seed) / f"{name}-seed{seed}")
            if name != names[0]:
                mine = Run.open(tmp_path / "all" / f"{name}-seed{seed}").experiment
                run(mine, tmp_path / "alone" / f"{name}-{seed}", device="cpu")
                alike(tmp_path / "all" / f"{name}-seed{seed}", tmp_path / "alone" / f"{name}-{seed}")


def test_more_runs_than_a_population_has_room_for(tmp_path: Path, meets: list[int]) -> None:
    small = replace(E, method="fedavg", rounds=1, clients=2, partition="iid", test_every=5)
    done = complete_runs(plans([replace(small, lr=0.001 * (n + 1)) for n in range(MOST_MEMBERS + 2)], tmp_path), never)
    assert [run.experiment.lr for run in done] == [0.001 * (n + 1) for n in range(MOST_MEMBERS + 2)]
    assert max(meets) == (MOST_MEMBERS + 2) // 2  # two populations of equal size


@pytest.mark.parametrize(
    ("change", "device"),
    [
        ({"engine": "debug"}, "cpu"),
        ({"probe": "auto"}, "cpu"),
        ({"model": "cnn"}, "cpu"),
        ({"model": "mlp", "precision": "bfloat16"}, "cpu"),
        ({"model": "mlp", "augment": "flip"}, "cpu"),
        ({"model": "resnet18"}, "cuda"),
        ({"engine": "ray"}, "cuda"),
    ],
)
def test_where_it_does_not_pay_runs_are_one_after_another(change: dict[str, object], device: str) -> None:
    assert is_shared(E, "cpu")
    assert is_shared(MLP, "cpu")
    assert is_shared(E.replace(model="cnn"), "cuda")  # where one run does not fill the device
    assert not is_shared(E.replace(**change), device)
    assert not is_shared(replace(E, track="tensorboard"), "cpu")


def test_while_a_run_waits_for_the_disk_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file is on the disk before each of the three runs waits for one."""
    together, sync = threading.Barrier(3, timeout=30), os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (together.wait(), sync(handle)))
    done = complete_runs(plans([replace(MLP, method="fedavg", lr=0.1 * n) for n in (1, 2, 3)], tmp_path), never)
    assert [len(each.rounds) for each in done] == [MLP.rounds] * 3


def test_a_run_that_waits_for_the_disk_more_often_still_takes_its_steps_with_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SCAFFOLD has one file more than FedAvg; no walk through local steps is answered without the other's."""
    choose_kernels("layers", monkeypatch)
    walks: list[int] = []

    def count(requests: Requests, threads: ThreadPool) -> list[Any]:
        walks.append(sum(not isinstance(one, Pause) for one in requests))
        return meeting.answer_requests(requests, threads)

    monkeypatch.setattr(population, "answer_requests", count)
    complete_runs(plans([replace(MLP, method=name) for name in ("fedavg", "scaffold")], tmp_path), never)
    assert {number for number in walks if number} == {2}


def test_a_disk_that_is_full_ends_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UserError, match="No space left on device"):
        complete_runs(plans([replace(MLP, method=name) for name in ("fedavg", "scaffold")], tmp_path), never)


class Turns(meeting.Meeting):
    """As on a CUDA device: the runs take turns, and nothing is computed together."""

    def __init__(self, ask: Any, members: int, joins: bool, disk: Any) -> None:
        super().__init__(ask, members, joins=False, disk=disk)


@pytest.mark.parametrize("e", [replace(MLP, model="cnn", batch=4), E, MLP], ids=["cnn", "svm", "mlp"])
def test_runs_that_only_take_turns_are_as_alone(
    e: Experiment, tmp_path: Path, meets: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(population, "Meeting", Turns)
    monkeypatch.setattr(population, "is_shared", lambda e, device: True)
    monkeypatch.setattr(pool, "is_shared", lambda e, device: True)
    several = [replace(e, method=name, rounds=2, seed=seed) for name in ("scaffold", "fedveca") for seed in (0, 1)]
    mine = plans(several, tmp_path / "all")
    complete_runs(mine, never)
    assert max(meets) == len(several)
    assert len(meets) >= 2 * 2  # a round has two waits: for the clients, and for the evaluation
    for plan in mine:
        run(plan.experiment, tmp_path / plan.folder.name, device="cpu")
        alike(plan.folder, tmp_path / plan.folder.name)


def test_each_run_has_its_own_precision_of_products_during_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a setting of the whole process, which a cohort on a CUDA device changes while it computes."""
    monkeypatch.setattr(population, "Meeting", Turns)
    before, seen = torch.get_float32_matmul_precision(), list[tuple[int, str]]()

    def live(i: int, mine: str) -> Any:
        torch.set_float32_matmul_precision(mine)
        for _ in range(3):
            meeting.wait_for_device()
            seen.append((i, torch.get_float32_matmul_precision()))
        torch.set_float32_matmul_precision(before)

    choices = [before, "high", "medium"]
    runs: list[Any] = [lambda stop, i=i, mine=mine: live(i, mine) for i, mine in enumerate(choices)]
    population.run_population(runs, never)
    assert sorted(set(seen)) == list(enumerate(choices))
    assert [i for i, _ in seen] == [0, 1, 2] * 3
    assert torch.get_float32_matmul_precision() == before


def test_runs_share_the_memory_of_a_device() -> None:
    assert meeting.count_members() == 1
    found: list[int] = []
    runs: list[Any] = [lambda stop: found.append(meeting.count_members())] * 3
    population.run_population(runs, never)
    assert found == [3, 3, 3]
