"""Many clients on one machine: what they remember, on disk past a limit, and FedVeca where few are asked a round."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from zygote import is_over, zygote

from fedveca.algorithms import FedAvg, FedVeca
from fedveca.algorithms.control import control
from fedveca.cohorts.client_memory import ClientMemory
from fedveca.cohorts.client_store import ClientMemoryError, ClientStore
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.cohorts.random import sample_clients
from fedveca.runs.build import build
from fedveca.runs.experiment import Experiment
from fedveca.runs.federate import federate
from fedveca.runs.folder import Run
from fedveca.runs.folder_writer import MEMORY_FILE
from fedveca.runs.run import resume, run
from fedveca.tasks.datasets.dataset import load
from fedveca.tasks.models import model
from fedveca.tasks.partition import partition

SMALL: dict[str, Any] = {
    "model": "svm",
    "rounds": 6,
    "batch": 8,
    "clients": 40,
    "partition": "iid",
    "lr": 0.05,
    "method": "scaffold",
    "participation": 0.3,
}
ROW = 4 * (3 + 2)  # bytes of one client's row below


def values(ids: Tensor, k: int) -> dict[str, Tensor]:
    """What clients remember after round k: rows that tell client and round apart."""
    a = torch.stack([ids.float(), ids * 0.5 + k, torch.full((len(ids),), float(k))], 1)
    return {"a": a, "b": a[:, :2] - 7}


NEW = {"a": torch.full((3,), -1.0), "b": torch.full((2,), -2.0)}


def asked(memory: ClientMemory, ids: Tensor) -> list[list[float]]:
    told = memory.recall(ids, NEW)
    return torch.cat([told["a"], told["b"]], 1).tolist()


@pytest.mark.parametrize("limit", [0, 7 * ROW, 2**20])
def test_memory_is_the_same_in_ram_and_on_disk(limit: int, tmp_path: Path) -> None:
    """Wherever a row lies, it is the client's last one; one never seen has the method's beginning."""
    memory = ClientMemory(50, limit)
    last: dict[int, int] = {}
    memory.home = tmp_path / MEMORY_FILE
    assert len(memory) == 0
    for k in range(12):
        ids = sample_clients(1, k, 50, 9)[torch.randperm(9, generator=torch.Generator().manual_seed(k))]
        memory.remember(ids, values(ids, k))
        last |= dict.fromkeys(ids.tolist(), k)
        if k % 3 == 2:
            memory.save()
    want = [
        torch.cat([v[0] for v in values(torch.tensor([i]), last[i]).values()]).tolist()
        if i in last
        else [-1.0] * 3 + [-2.0] * 2
        for i in range(50)
    ]
    assert asked(memory, torch.arange(50)) == want
    assert asked(memory, torch.tensor([31, 4, 17])) == [want[31], want[4], want[17]]
    assert list(memory) == sorted(last)


@pytest.mark.parametrize(
    "limit", [pytest.param(0, marks=pytest.mark.slow), 7 * ROW, pytest.param(2**20, marks=pytest.mark.slow)]
)
def test_every_checkpoint_on_disk_stays_good(limit: int, tmp_path: Path) -> None:
    """Cut off after any write, the file holds the rows of the last checkpoint and of the one before it."""
    memory = ClientMemory(30, limit)
    memory.home = tmp_path / MEMORY_FILE
    kept: list[tuple[dict[str, Tensor], list[list[float]]]] = []
    for k in range(40):
        if k == 20:  # killed, and taken up from the former checkpoint
            memory = ClientMemory(30, limit)
            memory.load(tmp_path / MEMORY_FILE, kept[-2][0], "cpu", NEW)
            del kept[-1]
        for part in sample_clients(2, k, 30, 12).split(5):
            memory.remember(part, values(part, k))
            for saved, want in kept[-2:]:
                shutil.copy(tmp_path / MEMORY_FILE, tmp_path / "cut")
                again = ClientMemory(30, limit)
                again.load(tmp_path / "cut", saved, "cpu", NEW)
                assert asked(again, torch.arange(30)) == want
        if random.Random(k).random() < 0.6:
            saved = {name: v.clone() for name, v in memory.save().items()}
            kept.append((saved, asked(memory, torch.arange(30))))
    assert len(kept) > 15
    assert os.path.getsize(tmp_path / MEMORY_FILE) <= (30 + 4 * 30) * ROW  # it does not grow with the rounds


def test_a_damaged_row_is_seen(tmp_path: Path) -> None:
    store = ClientStore(4, 3, tmp_path / MEMORY_FILE)
    store.write(torch.tensor([2, 0]), torch.rand(2, 3))
    saved = store.save()
    assert torch.equal(
        ClientStore.load(4, tmp_path / MEMORY_FILE, saved).read(torch.tensor([0])), store.read(torch.tensor([0]))
    )
    content = (tmp_path / MEMORY_FILE).read_bytes()
    for hurt in (content[:-1], content[:5] + bytes([content[5] ^ 1]) + content[6:], b""):
        (tmp_path / MEMORY_FILE).write_bytes(hurt)
        with pytest.raises(ClientMemoryError, match=MEMORY_FILE):
            ClientStore.load(4, tmp_path / MEMORY_FILE, saved)
    (tmp_path / MEMORY_FILE).unlink()
    with pytest.raises(ClientMemoryError, match="cannot be read"):
        ClientStore.load(4, tmp_path / MEMORY_FILE, saved)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "seconds"} for line in Run.open(folder).rounds]


def same(a: Path, b: Path) -> None:
    assert lines(a) == lines(b)
    assert (a / "model.safetensors").read_bytes() == (b / "model.safetensors").read_bytes()


def test_a_run_is_the_same_with_its_memory_on_disk(tmp_path: Path) -> None:
    run(Experiment(**SMALL), tmp_path / "ram", device="cpu")
    run(Experiment(**SMALL, memory_mb=0), tmp_path / "disk", device="cpu")
    same(tmp_path / "ram", tmp_path / "disk")
    assert run(Experiment(**SMALL, memory_mb=0), device="cpu").rounds[-1]["tau"] == lines(tmp_path / "disk")[-1]["tau"]


def test_a_damaged_memory_gives_way_to_the_former_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The last checkpoint's newest row is hurt: the former one does not point there."""
    e = Experiment(**(SMALL | {"participation": 0.02, "checkpoint_every": 1}))  # one client per round
    run(e, tmp_path / "whole", device="cpu")
    run(Experiment(**(SMALL | {"participation": 0.02, "rounds": 4})), tmp_path / "hurt", device="cpu")
    content = bytearray((tmp_path / "hurt" / MEMORY_FILE).read_bytes())
    content[-1] ^= 1
    (tmp_path / "hurt" / MEMORY_FILE).write_bytes(content)
    resume(tmp_path / "hurt", rounds=6, device="cpu")
    assert [record.getMessage() for record in caplog.records] == [
        "memory.rows is damaged: a row does not match its checksum; resumed from checkpoint.former.safetensors"
    ]
    same(tmp_path / "whole", tmp_path / "hurt")


@pytest.mark.slow
def test_killed_with_its_memory_on_disk(tmp_path: Path) -> None:
    """SIGKILL at moments by chance: what clients remember is that of the checkpoint, bit for bit."""
    words = [f"{k}={v}" for k, v in (SMALL | {"rounds": 120, "memory_mb": 0, "checkpoint_every": 2}).items()]
    command = ["run", "--quiet", "--device", "cpu"]
    folder, chance, kills = tmp_path / "killed", random.Random(0), 0
    with zygote(tmp_path) as programs:
        assert programs.run(*command, *words, "--out", tmp_path / "whole") == (0, "")
        pid = programs.start(*command, *words, "--out", folder)
        for _ in range(30):
            written = folder / "rounds.jsonl"
            before = len(written.read_text().splitlines()) if written.exists() else 0
            deadline = time.monotonic() + 60
            while kills < 3 and not is_over(pid) and time.monotonic() < deadline:
                rounds = written.read_text().splitlines() if written.exists() else []
                if len(rounds) > before + chance.randrange(5, 30):
                    os.kill(pid, signal.SIGKILL)
                    kills += 1
                    break
                time.sleep(0.005)
            if programs.wait(pid) == 0 or (folder / "summary.json").exists():
                break
            pid = programs.start(*command, "--resume", folder)
    assert kills >= 2
    same(tmp_path / "whole", folder)


def test_fedveca_with_few_clients_a_round() -> None:
    """One not asked keeps its last tau, one never asked has tau_0; min A is over those who answered."""
    e = Experiment(data="synthetic", partition="writer", model="svm", clients=60, participation=0.1, tau_0=5, batch=10)
    built = build(e)
    state, met = built.state, set[int]()
    for k, (after, trace) in enumerate(federate(built.algorithm, built.cohort, state, 12, participation=0.1)):
        ids = torch.tensor(trace["ids"])
        assert ids.tolist() == sample_clients(0, k, 60, 6).tolist()
        assert trace["tau"] == state.tau[ids].tolist()
        others = torch.ones(60, dtype=torch.bool)
        others[ids] = False
        assert torch.equal(after.tau[others], state.tau[others])
        if k > 0:  # round 0 leaves tau alone: A1.13
            assert isinstance(built.algorithm, FedVeca)
            assert torch.equal(
                after.tau[ids], control(torch.tensor(trace["A"], dtype=torch.float64), e.alpha, e.tau_max)
            )
            met |= set(ids.tolist())
        state = after
    never = torch.tensor([i for i in range(60) if i not in met])
    assert len(never) > 5
    assert state.tau[never].tolist() == [5] * len(never)


@pytest.mark.slow
def test_threads_do_not_meet_in_a_mapped_module() -> None:
    """Chunks of a network step side by side; each thread's parameters are its own."""
    data = load("synthetic", clients=300)
    problem = model("mlp", (60,), 10, hidden=128)
    shares = partition("writer", data.y, 10, 300, writer=data.writer)
    order, ids = FedAvg(0.05).order(FedAvg(0.05).init(problem.init(), torch.ones(300))), torch.arange(300)
    tau = torch.arange(300) % 7 + 3
    means = []
    for threads in (1, 4):
        cohort = LocalCohort(FedAvg(0.05), problem, data.x, data.y, shares, batch=64, lanes=10, threads=threads)
        means.append(cohort(0, order, ids, tau)[1].mean["G"])
    assert torch.equal(*means)


PEAK = """
import json, sys
from pathlib import Path
from fedveca.runs.build import build
from fedveca.runs.experiment import Experiment
from fedveca.runs.run import run

e = Experiment(data="synthetic", partition="writer", model="svm", clients=100_000, participation=0.01, rounds=3,
               batch=20, method=sys.argv[1], memory_mb=0)
done = run(e, sys.argv[2], device="cpu")
status = Path("/proc/self/status").read_text().splitlines()
peak = int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 1024
print(json.dumps([peak, [len(line["ids"]) for line in done.rounds]]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_a_hundred_thousand_clients(tmp_path: Path) -> None:
    """Under 2 GiB; of 100,000 only those ever asked have memory, and that lies on disk."""
    command = [sys.executable, "-c", PEAK, "scaffold", str(tmp_path / "run")]
    alone = os.environ | {"OMP_NUM_THREADS": "1"}  # threads that meet wait long where cores are shared
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=alone).stdout
    peak, answered = json.loads(said)
    assert answered == [1000] * 3
    assert peak < 2048
    seen = {i for line in lines(tmp_path / "run") for i in line["ids"]}
    assert len(seen) * 60 * 4 <= os.path.getsize(tmp_path / "run" / MEMORY_FILE) < (len(seen) + 2000) * 60 * 4


def test_names_may_come_in_any_order() -> None:
    """As from a node's file, which sorts them: each name keeps its own values, whatever its width."""
    memory, here = ClientMemory(3), torch.tensor([1])
    new = {"w": torch.zeros(3), "h": torch.zeros(3), "rate": torch.zeros(1)}
    values = {"h": torch.full((1, 3), 1.0), "rate": torch.full((1, 1), 2.0), "w": torch.full((1, 3), 3.0)}
    memory.remember(here, values)
    memory.remember(here, {name: values[name] for name in ("rate", "w", "h")})
    for name, v in memory.recall(here, new).items():
        assert torch.equal(v, values[name]), name
