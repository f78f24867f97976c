"""The Ray engine on a real Ray: the local engine's result, workers and nodes lost, memory and resume."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("ray")
import ray
from ray.cluster_utils import Cluster
from real_models import CALM

from fedveca.algorithms import FedAvg
from fedveca.cli import main
from fedveca.cohorts.ray.cohort import RayCohort
from fedveca.cohorts.ray.worker import PartialMean, Worker, assign_clients, merge_means
from fedveca.runs.build import build
from fedveca.runs.experiment import Experiment
from fedveca.runs.federate import federate
from fedveca.runs.folder import Run
from fedveca.runs.observers import Observer
from fedveca.runs.run import resume, run
from fedveca.runs.schema import Round
from fedveca.tasks.custom import from_arrays
from fedveca.tasks.models import model
from fedveca.tasks.partition import Shares

pytestmark = pytest.mark.slow
WIDE = Experiment(
    data="synthetic",
    partition="writer",
    model="svm",
    clients=60,
    participation=0.5,
    batch=10,
    tau_0=5,
    engine="ray",
    workers=2,
    rounds=4,
)
TWO = Shares(torch.arange(4), torch.tensor([0, 2, 4]))
MLP = replace(WIDE, data="digits", partition="dirichlet", model="mlp", clients=8, participation=1.0, lr=0.05)


@pytest.fixture(autouse=True, scope="module")
def former_handler() -> Iterator[None]:
    """Ray leaves its own handler of SIGTERM, which tests of other files must not meet."""
    former = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, former)


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_raylet_start_wait_time_s", "120")  # a machine may be busy
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        helpers = str(Path(__file__).parents[1] / "helpers")  # where workers find the networks of real_models
        environment.setenv("PYTHONPATH", os.pathsep.join((helpers, os.environ.get("PYTHONPATH", ""))))
        yield


def went(e: Experiment, rounds: int = 4) -> tuple[Tensor, list[list[int]], Any]:
    """w after some rounds, the tau of each, and the cohort."""
    built = build(e)
    seen = list(federate(built.algorithm, built.cohort, built.state, rounds, participation=e.participation))
    engine = getattr(built.cohort, "cohort", built.cohort)  # inside privacy
    return seen[-1][0].w, [trace["tau"] for _, trace in seen], engine


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize(
    "e",
    [
        replace(WIDE, workers=1),
        replace(WIDE, workers=5),
        MLP,
        replace(WIDE, workers=2, method="corrected"),
        replace(WIDE, workers=2, method="fedvecam"),
        replace(WIDE, workers=2, method="adaptivetau", devices="uniform"),  # gradients after the steps, seconds
        replace(WIDE, workers=2, method="scaffold", dp_noise=0.5, dp_seed=1),  # every client counts the same
        replace(WIDE, workers=2, method="scaffold", weights="uniform"),
        replace(WIDE, workers=2, method="scaffold", wire="int8"),
        replace(WIDE, workers=2, method="scaffold", wire="topk"),
        replace(WIDE, workers=5, method="scaffold", secure="on"),
        replace(MLP, method="moon"),
        replace(MLP, method="fedlc"),
        replace(MLP, method="fednova", momentum=0.9, optimizer_state="keep", lr_schedule="cosine", sampling="shuffle"),
        replace(MLP, optimizer="adamw", lr=0.003, optimizer_state="keep", weight_decay=0.01),
    ],
    ids=[
        *("svm-1", "svm-5-tree", "mlp-2", "corrected-2", "fedvecam-2", "timed-2", "private-2", "uniform-2"),
        *("int8-2", "topk-2", "secure-5"),
        *("moon-2", "fedlc-2", "momentum-2", "adamw-2"),
    ],
)
def test_ray_gives_the_local_engines_result(e: Experiment) -> None:
    want, tau, _ = went(replace(e, engine="local"))
    w, same, cohort = went(e)
    assert cohort.count == e.workers
    assert same == tau
    assert float((w - want).abs().max()) < 1e-6
    if e.workers == 1:
        assert torch.equal(w, want)


@pytest.mark.usefixtures("local_ray")
def test_a_guarded_run_on_ray_is_the_local_engines() -> None:
    """After a return the workers' clients have forgotten their c_i, as they have in this process."""
    e = replace(MLP, model="svm", method="scaffold", lr=0.5, tau_0=8, rounds=6, guard="on")
    local, spread = run(replace(e, engine="local"), device="cpu"), run(e, device="cpu")
    back = [record.get("guarded", "").split(":")[0] for record in local.rounds]
    assert [record.get("guarded", "").split(":")[0] for record in spread.rounds] == back
    assert sum(map(bool, back)) >= 2
    for name, v in local.model.items():
        assert float((spread.model[name] - v).abs().max()) < 1e-5


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize(
    ("network", "words"),
    [
        ("encoder", {"participation": 0.5}),
        ("resnet", {"norm_stats": "average"} | CALM),
        ("resnet", {"norm_stats": "local", "participation": 0.5, "workers": 1} | CALM),
        ("resnet", {"norm_stats": "fixed", "workers": 1} | CALM),
    ],
    ids=["dropout", "average", "local", "fixed"],
)
def test_a_real_network_on_ray_gives_the_local_engines_model(
    network: str, words: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[1] / "helpers")  # where a worker finds the model
    e = replace(MLP, model=f"real_models:{network}", clients=4, rounds=3, probe=16, **{"batch": 8, "tau_0": 2} | words)
    ours, theirs = (run(replace(e, engine=engine), device="cpu") for engine in ("local", "ray"))
    assert max(float((v - theirs.model[name]).abs().max()) for name, v in ours.model.items()) < 1e-6
    assert [r["tau"] for r in ours.rounds] == [r["tau"] for r in theirs.rounds]


@pytest.mark.usefixtures("local_ray")
def test_lazy_rows_and_noise_on_ray_give_the_local_engines_result(tmp_path: Path) -> None:
    """Each worker opens the file itself; noise is the client's, whichever worker it is on."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.integers(0, 256, (200, 1, 6, 6), dtype=np.uint8))
    y = rng.integers(0, 4, 200)
    e = replace(MLP, partition="iid", feature_noise=0.2, rounds=3)
    want = run(replace(e, engine="local"), data=from_arrays(tmp_path / "x.npy", y))
    for lazy in (False, True):
        found = run(e, data=from_arrays(tmp_path / "x.npy", y, lazy=lazy))
        assert max(float((v - found.model[name]).abs().max()) for name, v in want.model.items()) < 1e-6


@pytest.mark.usefixtures("local_ray")
def test_what_the_cluster_cannot_give_is_refused() -> None:
    with pytest.raises(ValueError, match=r"worker_gpus=0.5: 2 workers need more GPUs than the cluster's 0"):
        build(replace(WIDE, worker_gpus=0.5))
    missing = partial(model, "not_there:make", (2,), 2)
    with pytest.raises(ValueError, match=r"could not be started: .*model=not_there:make cannot be imported"):
        RayCohort(FedAvg(0.1), missing, torch.ones(4, 2), torch.zeros(4, dtype=torch.int64), TWO, workers=1, batch=1)


EVALUATED = {"test_by": "both", "val": 0.2, "test_share": 0.3, "finetune_steps": 2}


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize(
    "e",
    [
        replace(WIDE, **EVALUATED),  # type: ignore[arg-type]
        replace(MLP, method="scaffold", **EVALUATED),  # type: ignore[arg-type]
        replace(WIDE, method="centralised", participation=1.0, **EVALUATED | {"finetune_steps": 0}),  # type: ignore[arg-type]
    ],
    ids=["svm", "scaffold", "pooled"],
)
def test_clients_evaluate_on_ray_as_on_the_local_engine(e: Experiment) -> None:
    ours, theirs = (run(replace(e, engine=name), device="cpu") for name in ("ray", "local"))
    for a, b in zip(ours.rounds, theirs.rounds, strict=True):
        assert a.keys() == b.keys()
        for name, value in b.items():
            if name.startswith(("val_", "client", "tuned_", "test", "accepted")):
                assert a[name] == pytest.approx(value, rel=1e-6, abs=1e-6), name  # type: ignore[literal-required]


@pytest.mark.usefixtures("local_ray")
def test_a_worker_that_is_lost_changes_no_evaluation() -> None:
    """What its clients remember comes back with it."""
    built = build(replace(WIDE, method="scaffold", **EVALUATED))  # type: ignore[arg-type]
    cohort = built.cohort
    assert isinstance(cohort, RayCohort)
    (state, _), *_ = federate(built.algorithm, cohort, built.state, 1)
    order = built.algorithm.order(state)
    before = cohort.evaluate(1, order, "test", 2)
    os.kill(ray.get(cohort.workers[0].describe.remote())["pid"], signal.SIGKILL)
    after = cohort.evaluate(1, order, "test", 2)
    assert cohort.lost == 1
    assert torch.equal(before.ids, after.ids)
    assert all(torch.equal(v, after.values[name]) for name, v in before.values.items())


class Blow:
    """Kills a worker's process while a round goes on: it is stopped first, so that it cannot answer before."""

    def __init__(self, cohort: RayCohort, j: int) -> None:
        self.pid = ray.get(cohort.workers[j].describe.remote())["pid"]
        self.thread = threading.Thread(target=self._strike)
        self.thread.start()

    def _strike(self) -> None:
        time.sleep(0.05)
        os.kill(self.pid, signal.SIGSTOP)
        time.sleep(0.3)
        os.kill(self.pid, signal.SIGKILL)


def struck(e: Experiment, blows: dict[int, int], tau: int) -> tuple[list[Tensor], Tensor, int]:
    """w of each round of `tau` steps, all that clients remember, and workers lost; worker blows[k] dies in round k."""
    built = build(e)
    cohort, state = built.cohort, built.state._replace(tau=torch.full_like(built.state.tau, tau))
    assert isinstance(cohort, RayCohort)
    ws = []
    for k in range(5):
        blow = Blow(cohort, blows[k]) if k in blows else None
        (state, _), *_ = federate(built.algorithm, cohort, state, k + 1, first=k, participation=e.participation)
        if blow:
            blow.thread.join()
        ws.append(state.w)
        if k == 2:
            assert len(cohort.memory) > 0  # brought here: later losses repeat the rounds since only
    memory = cohort.memory
    ids = torch.tensor(list(memory))
    return ws, torch.cat([ids[:, None].float(), *memory.recall(ids).values()], 1), cohort.lost


@pytest.mark.usefixtures("local_ray")
def test_a_worker_killed_in_a_round_changes_nothing() -> None:
    """Not in round 1, where rounds before are repeated from nothing, nor in 4, where from what was brought here."""
    e = replace(WIDE, method="scaffold", lr=0.001)
    want, remembered, none = struck(e, {}, 300)
    ws, rows, lost = struck(e, {1: 0, 4: 1}, 300)
    assert (none, lost) == (0, 2)
    assert all(torch.equal(a, b) for a, b in zip(ws, want, strict=True))
    assert torch.equal(rows, remembered)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "seconds"} for line in Run.open(folder).rounds]


class Stop(Exception):
    """Raised by an observer to end a run as a crash would."""


@pytest.mark.usefixtures("local_ray")
def test_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    e = replace(WIDE, method="scaffold", checkpoint_every=2)

    class Watcher(Observer):
        def round(self, record: Round) -> None:
            if record["round"] == 2:
                raise Stop

    run(e, tmp_path / "whole", device="cpu")
    with pytest.raises(Stop):
        run(e, tmp_path / "cut", device="cpu", observers=[Watcher()])
    resume(tmp_path / "cut", device="cpu")
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")
    assert (tmp_path / "cut/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


def test_two_nodes_and_one_lost() -> None:
    """Each node has one worker; the node of one is lost in a round, and the other node does its share too."""
    ray.shutdown()
    quiet: dict[str, Any] = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args=quiet | {"node_ip_address": "127.0.0.2"})
    try:
        second = cluster.add_node(**quiet, node_ip_address="127.0.0.3")
        e = replace(WIDE, ray_address=cluster.address)
        want, tau, _ = went(replace(e, engine="local"))
        built = build(e)
        cohort, seen = built.cohort, []
        assert isinstance(cohort, RayCohort)
        node = lambda worker: ray.get_runtime_context().get_node_id()  # noqa: E731 (a lambda travels by value)
        nodes = ray.get([worker.__ray_call__.remote(node) for worker in cohort.workers])
        assert len(set(nodes)) == 2
        for k, each in enumerate(federate(built.algorithm, cohort, built.state, 4, participation=e.participation)):
            seen.append(each)
            if k == 1:
                cluster.remove_node(second, allow_graceful=False)
        assert cohort.lost >= 1  # again, where the new worker was sent to the node before it was known to be gone
        assert [trace["tau"] for _, trace in seen] == tau
        assert float((seen[-1][0].w - want).abs().max()) < 1e-6
    finally:
        ray.shutdown()
        cluster.shutdown()


HOLDER = """
import json, os, sys
import ray
from fedveca.cohorts.ray.cohort import connect
connect("", 0)
node = ray._private.worker._global_node
said = {"gcs": node.gcs_address, "folder": node.get_session_dir_path(), "token": os.environ.get("RAY_AUTH_TOKEN", "")}
print(json.dumps(said), flush=True)
sys.stdin.read()
"""
STRANGER = """
import json, os, sys
from ray._raylet import GcsClient
address, folder = sys.argv[1:]
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
try:
    keys = len(GcsClient(address=address).internal_kv_keys(b"", b"session"))
except Exception as error:
    keys = type(error).__name__
try:
    names = len(os.listdir(folder))
except OSError as error:
    names = type(error).__name__
print(json.dumps([keys, names]))
"""


class Held(NamedTuple):
    """A cluster as `engine=ray` starts it, in a process of its own."""

    pid: int
    home: Path
    gcs: str
    folder: str
    token: str


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Held]:
    home = tmp_path_factory.mktemp("home")
    free = {key: value for key, value in os.environ.items() if not key.startswith("RAY_AUTH")}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER], env=free | {"HOME": str(home)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin
    assert process.stdout
    said = json.loads(process.stdout.readline())
    try:
        yield Held(process.pid, home, **said)
    finally:
        process.stdin.close()
        assert process.wait(120) == 0
        process.stdout.close()
    assert not Path(said["folder"]).parents[1].exists()  # it leaves nothing behind


def below(pid: int) -> set[int]:
    """A process and all that it started."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    mine = {pid}
    while more := {child for child, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return mine


def listening(pids: set[int]) -> list[str]:
    """The addresses, in hexadecimal, on which some processes wait for TCP connections."""
    sockets = set()
    for path in (link for pid in pids for link in Path(f"/proc/{pid}/fd").glob("*")):
        with contextlib.suppress(OSError):
            sockets.add(os.readlink(path))
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return [line[1].split(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets]


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's /proc")
def test_a_cluster_of_this_process_listens_on_loopback_alone(held: Held) -> None:
    addresses = listening(below(held.pid))
    assert len(addresses) >= 4  # the driver's, the GCS's and two of the raylet's
    assert {address[-8:] for address in addresses} == {"0100007F"}  # 127.0.0.1, or ::ffff:127.0.0.1
    assert held.gcs.startswith("127.0.0.1:")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user")
def test_another_user_of_the_machine_cannot_use_the_cluster(held: Held) -> None:
    """It is not let in without the token or with a wrong one, and cannot list its folder; with the token it is."""
    free = {key: value for key, value in os.environ.items() if not key.startswith("RAY_AUTH")}

    def tried(**more: str) -> list[Any]:
        words = [sys.executable, "-c", STRANGER, held.gcs, held.folder]
        done = subprocess.run(words, env=free | more, capture_output=True, timeout=120, check=True)
        answer: list[Any] = json.loads(done.stdout.splitlines()[-1])
        return answer

    rejected = ["AuthenticationError", "PermissionError"]
    assert tried(RAY_AUTH_MODE="disabled") == rejected
    assert tried(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 64) == rejected
    keys, names = tried(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=held.token)
    assert keys > 0
    assert names == "PermissionError"


def test_no_token_is_left_where_others_could_read_it(held: Held) -> None:
    assert len(held.token) == 64
    assert not (held.home / ".ray").exists()
    for pid in below(held.pid):
        with contextlib.suppress(OSError):
            assert held.token.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    for path in Path(held.folder).rglob("*"):
        with contextlib.suppress(OSError):
            assert not path.is_file() or held.token.encode() not in path.read_bytes()


# what needs no cluster


def test_a_ray_that_cannot_ask_for_a_token_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ray.shutdown()
    monkeypatch.setattr(ray, "__version__", "2.51.1")
    assert main(["run", "engine=ray", "--out", str(tmp_path / "run")]) == 2
    said = "fedveca: Ray 2.51.1 is installed; engine=ray needs 2.52 or newer: pip install -U ray\n"
    assert capsys.readouterr().err == said
    assert not (tmp_path / "run").exists()


def test_shares_are_even_and_whole() -> None:
    sizes = torch.arange(1, 1001)
    for workers in (1, 2, 3, 7):
        rows = torch.bincount(assign_clients(sizes, workers), sizes.double(), workers)
        assert float(rows.max() - rows.min()) <= 1000
    assert sorted(assign_clients(torch.ones(3, dtype=torch.int64), 3).tolist()) == [0, 1, 2]


def test_a_worker_sends_one_sum_however_many_its_clients() -> None:
    """O(P) up: the mean of each vector and the rows behind it; numbers one by one. Asked again, it only repeats."""
    e = replace(WIDE, engine="local", method="scaffold", participation=1.0)
    built = build(e)
    x, y, shares = built.data.x, built.data.y, built.shares
    worker = Worker(
        built.algorithm,
        lambda: built.problem,
        x[shares.rows].numpy(),
        y[shares.rows].numpy(),
        [shares.start.numpy()],
        "cpu",
        ".",
        {"batch": 10},
    )
    order = (built.state.w.numpy(), {"c": built.state.c.numpy()})
    for turn, n in enumerate((3, 60)):
        ids, tau = np.arange(n), np.full(n, 4)
        total, (who, each, norms) = worker.run_turn(turn, turn, order, ids, tau)
        assert {name: v.shape for name, v in total.mean.items()} == {"G": (60,), "dc": (60,)}
        assert total.mass == float(shares.sizes[:n].sum())
        assert who.tolist() == ids.tolist()
        assert {v.shape for v in each.values()} == {(n,)}
        assert (sorted(norms["ids"]), norms["norms"].shape) == (ids.tolist(), (2, n))
        remembered = worker.recall(ids)[1]["c"].copy()
        again, _ = worker.run_turn(turn, turn, order, ids, tau)
        assert again is total
        assert np.array_equal(worker.recall(ids)[1]["c"], remembered)


def test_sums_of_none() -> None:
    some = PartialMean({"G": np.ones(2, np.float32)}, 3.0)
    assert merge_means(PartialMean({}, 0.0), some) is some
    assert merge_means(some, PartialMean({}, 0.0)) is some
    both = merge_means(some, PartialMean({"G": np.full(2, 5.0, np.float32)}, 1.0))
    assert both.mass == 4.0
    assert both.mean["G"].tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ray_address=127.0.0.1:9"], "ray_address=127.0.0.1:9 cannot be reached"),
        (["ray_address=nonsense"], "ray_address=nonsense cannot be reached"),
        (["worker_gpus=2"], "worker_gpus=2.0 is out of range"),
    ],
)
def test_refusals(words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ray.shutdown()
    assert main(["run", "engine=ray", "--out", str(tmp_path / "run"), *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"fedveca: {said}")
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_ray_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without it engine=ray says what to install."""
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "fedveca.cohorts.ray.cohort")
    assert main(["run", "engine=ray", "--out", str(tmp_path / "run")]) == 2
    said = "fedveca: engine=ray needs the extra fedveca[ray]: pip install 'fedveca[ray]'\n"
    assert capsys.readouterr().err == said
    assert not (tmp_path / "run").exists()
