"""FedVeca over real Flower: one SuperLink and three SuperNodes with TLS and node keys, shared by the tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from fedveca.cli import main
from fedveca.deploy.launch import HOST, Federation, free_port
from fedveca.deploy.local import follow
from fedveca.deploy.processes import find_marked
from fedveca.deploy.provision import write_app, write_key
from fedveca.deploy.server import STATE
from fedveca.deploy.superlink import FLOWER_ENVIRONMENT
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.run import run

pytestmark = pytest.mark.slow
NODES = 3
E = Experiment(model="svm", clients=NODES, rounds=4, batch=16, lr=0.05, round_timeout=240.0)
TROUBLE = """
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

WRONG = {
    (2, 0): "nan", (2, 1): "shape", (2, 2): "tau", (2, 3): "garbage", (1, 0): "fails", (1, 1): "dtype",
    (1, 2): "another", (1, 3): "stale",
}


@client.train()
def train(message, context):
    order = message.content["order"]
    wrong = WRONG.get((context.node_config["partition-id"], order["round"]), "")
    if wrong == "fails":
        raise ZeroDivisionError("the disk is full")
    reply = answer(message, context)
    said, vectors = reply.content["answer"], reply.content["vectors"]
    G = vectors["G"].numpy().copy()
    if wrong == "nan":
        G[3] = np.nan
        vectors["G"] = Array(G)
    if wrong == "shape":
        vectors["G"] = Array(G[:-1])
    if wrong == "dtype":
        vectors["G"] = Array(G.astype(np.float64))
    for name, value in {"tau": {"tau": 1}, "another": {"client": 0}, "stale": {"round": 0}}.get(wrong, {}).items():
        said[name] = value
    if wrong == "garbage":
        reply.content = RecordDict({"noise": ConfigRecord({"bytes": b"garbage"})})
    return reply
"""


SLOWED = """
import time


@client.train()
def train(message, context):
    if context.node_config["partition-id"] == 2:
        time.sleep(5)
    return answer(message, context)
"""


class Bench:
    """The shared federation, and runs over it."""

    def __init__(self, federation: Federation, folder: Path) -> None:
        self.federation, self.folder = federation, folder

    def start(self, e: Experiment, name: str, more: str = "") -> Path:
        app, out = self.folder / f"app-{name}", self.folder / name
        write_app(app, e)
        if more:  # replaces how a node answers
            before, _, after = (app / "app.py").read_text().partition("@client.train")
            (app / "app.py").write_text(before + after[after.index("@client.query") :] + more)
        self.federation.submit([f'out="{out}"'], app)
        return out

    def run(self, e: Experiment, name: str, more: str = "") -> Run:
        out = self.start(e, name, more)
        follow(self.federation, out, NODES)
        return Run.open(out)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("flower")
    helpers = Path(__file__).parents[1] / "helpers"  # where nodes find the networks of real_models
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", os.pathsep.join((str(helpers), os.environ.get("PYTHONPATH", ""))))
        with Federation(folder / "deployment", NODES) as federation:
            yield Bench(federation, folder)


@pytest.fixture(scope="module")
def scaffold(bench: Bench) -> Run:
    """An uninterrupted deployment, while a node with a registered key claims to be client 1, whose key it is not."""
    write_key(bench.federation.folder / "node-6" / "key", bench.federation.folder / "keys" / "twin.pub")
    bench.federation.register()
    bench.federation.start_node(6, client=1)
    log = bench.federation.folder / "node-6.log"
    until(lambda: "SuperNode ID" in log.read_text())
    patient = f"""
import time


@client.train()
def train(message, context):
    while message.content["order"]["round"] == 4 and "Sent successfully" not in open({str(log)!r}).read():
        time.sleep(0.1)  # the twin has said who it is before the last round
    return answer(message, context)
"""
    recipe: dict[str, Any] = {"momentum": 0.9, "optimizer_state": "keep", "lr_schedule": "cosine"}  # kept when killed
    done = bench.run(replace(E, method="scaffold", rounds=6, keep="last", **recipe), "scaffold", patient)
    twin = bench.federation.processes.pop("node-6")
    twin.terminate()
    twin.wait(240)
    return done


def same(a: Path | None, model: Mapping[str, torch.Tensor], within: float) -> None:
    assert a is not None
    ours = load_file(a / "model.safetensors")
    assert ours.keys() == model.keys()
    for name, v in ours.items():
        assert float((v - model[name]).abs().max()) <= within, name


def until(what: Callable[[], bool], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def lines(out: Path) -> int:
    path = out / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_intruders_are_refused_and_training_equals_the_simulator(bench: Bench) -> None:
    """Beside the three nodes come one with a key that nobody registered, one without TLS and one without a key."""
    tls = str(bench.federation.folder / "tls" / "ca.pem")
    write_key(bench.folder / "stolen", bench.folder / "stolen.pub")
    key = ["--root-certificates", tls, "--auth-supernode-private-key", str(bench.folder / "stolen")]
    intruders = [
        bench.federation.start_node(i, [*flags, "--max-retries", "1"])
        for i, flags in ((3, key), (4, ["--insecure"]), (5, ["--root-certificates", tls]))
    ]
    done = bench.run(E, "fedveca")
    expected = run(done.experiment, device="cpu")
    assert [line["tau"] for line in done.rounds] == [line["tau"] for line in expected.rounds]
    assert len({tuple(line["tau"]) for line in done.rounds}) > 1
    assert [line["ids"] for line in done.rounds] == [[0, 1, 2]] * 4
    same(done.folder, expected.model, 1e-6)
    for name in ("bytes_up", "bytes_down"):
        assert [line[name] for line in done.rounds] == [line[name] for line in expected.rounds]
    for i, process in zip((3, 4, 5), intruders, strict=True):
        assert process.wait(240) != 0
        said = (bench.federation.folder / f"node-{i}.log").read_text()
        assert "Failed to initialize the connection" in said
        assert i != 3 or "the key is not registered" in said
        assert "SuperNode ID" not in said


def test_scaffold_equals_the_simulator(scaffold: Run) -> None:
    expected = run(scaffold.experiment, device="cpu")
    assert [line["tau"] for line in scaffold.rounds] == [line["tau"] for line in expected.rounds]
    same(scaffold.folder, expected.model, 1e-6)
    (fault,) = [fault for line in scaffold.rounds for fault in line.get("faults", [])]
    assert fault["client"] == 1
    assert "says it is client 1, but its key is not client 1's" in fault["what"]


def test_a_real_network_equals_the_simulator(bench: Bench) -> None:
    """Nodes keep its running statistics; test_real_models_on_nodes.py has more networks, with nodes in its process."""
    e = replace(E, model="real_models:normed", norm_stats="local", rounds=3, probe=16, batch=8, tau_0=2)
    done, expected = bench.run(e, "real"), run(e, device="cpu")
    assert [line["tau"] for line in done.rounds] == [line["tau"] for line in expected.rounds]
    same(done.folder, expected.model, 1e-6)


def test_half_the_bytes(bench: Bench) -> None:
    done = bench.run(replace(E, rounds=1, wire="bfloat16", keep="last"), "bfloat16")
    expected = run(replace(E, rounds=1, keep="last"), device="cpu")
    up, full = done.rounds[0]["bytes_up"], expected.rounds[0]["bytes_up"]
    assert full / 2 < up < 0.6 * full
    same(done.folder, expected.model, 1e-3)
    with pytest.raises(AssertionError):
        same(done.folder, expected.model, 1e-6)  # it is bfloat16 indeed


def test_the_largest_numbers_alone(bench: Bench) -> None:
    """wire=topk with what clients have not sent in the nodes' folders: the simulator's model and bytes."""
    e = replace(E, method="scaffold", rounds=2, wire="topk", keep="last")
    done, expected = bench.run(e, "topk"), run(e, device="cpu")
    assert [line["bytes_up"] for line in done.rounds] == [line["bytes_up"] for line in expected.rounds]
    same(done.folder, expected.model, 1e-6)


def test_buffered_rounds_do_not_wait_for_a_slow_node(bench: Bench) -> None:
    """One node takes five seconds more per order: rounds go on without it, and its answer counts for an old model."""
    e = replace(E, method="scaffold", rounds=10, schedule="buffered", buffer=2, keep="last")
    done = bench.run(e, "buffered", SLOWED)
    assert all(len(line["ids"]) == 2 for line in done.rounds)
    assert done.rounds[0]["ids"] == [0, 1]
    ages = [age for line in done.rounds for i, age in zip(line["ids"], line["staleness"], strict=True) if i == 2]
    assert ages
    assert min(ages) >= 1
    took = [s for line in done.rounds for i, s in zip(line["ids"], line["client_seconds"], strict=True) if i == 2]
    assert all(seconds is not None and seconds >= 5 for seconds in took)
    assert done.summary["clock"] == done.rounds[-1]["clock"]


def test_malformed_answers_are_left_out_and_named(bench: Bench) -> None:
    done = bench.run(replace(E, method="fednova", keep="last"), "trouble", TROUBLE)
    assert [line["ids"] for line in done.rounds] == [[0]] * 4
    said = [[(fault["client"], fault["what"]) for fault in line["faults"]] for line in done.rounds]
    for (who, what), pieces in zip(
        [fault for line in said for fault in sorted(line)],
        [
            (1, "the disk is full"),
            (2, "not finite"),
            (1, "float64"),
            (2, "[63]"),
            (1, "client 0"),
            (2, "tau 1"),
            (1, "round 0"),
            (2, "garbage"),
        ],
        strict=True,
    ):
        assert who == pieces[0]
        assert pieces[1] in what
    simulated = run(replace(E, method="fednova", keep="last"), device="cpu")
    assert done.summary["last"]["test_loss"] != simulated.summary["last"]["test_loss"]


def test_killed_and_stopped_nodes_are_named_and_come_back(bench: Bench) -> None:
    """Node 1 dies by kill -9 in round 2, which goes on without it; in round 3 node 2 hangs past the timeout besides, so
    that round is void. Both come back and it is repeated, to the simulator's end with the same clients."""
    nodes, logs = bench.federation.nodes, bench.federation.folder
    slow = "\nimport time\n\n\n@client.train()\ndef train(message, context):\n    time.sleep(2)\n"
    slow += "    return answer(message, context)\n"
    orders = {i: (logs / f"node-{i}.log").read_text().count("Receiving: train") for i in range(NODES)}

    def asked(i: int) -> int:
        return (logs / f"node-{i}.log").read_text().count("Receiving: train") - orders[i]

    e = replace(E, method="scaffold", rounds=6, round_timeout=30.0, min_clients=2, keep="last")
    out = bench.start(e, "killed", slow)
    until(lambda: asked(1) == 2)
    os.kill(nodes[1].pid, signal.SIGKILL)
    nodes[1].wait(240)
    until(lambda: asked(2) == 3)
    os.kill(nodes[2].pid, signal.SIGSTOP)
    until(lambda: asked(0) == 4)
    assert lines(out) == 2  # round 3 was asked again
    os.kill(nodes[2].pid, signal.SIGCONT)
    bench.federation.start_node(1)
    follow(bench.federation, out, NODES)
    rounds = Run.open(out).rounds
    assert [line["ids"] for line in rounds[:2]] == [[0, 1, 2], [0, 2]]
    (fault,) = rounds[1]["faults"]
    assert fault["client"] == 1
    assert "timed out after 30 s" in fault["what"] or "not connected" in fault["what"]
    void = {fault["client"]: fault["what"] for fault in rounds[2]["faults"] if "void" in fault["what"]}
    assert "timed out after 30 s (attempt 1, void)" in void[2]
    assert 1 in void
    assert rounds[-1]["ids"] == [0, 1, 2]
    assert "answered round 3 too late" in str([line.get("faults") for line in rounds[2:]])


def test_the_whole_server_killed_in_round_3_of_6_and_resumed(
    scaffold: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`deploy local` from the command line: Ctrl-C after round 1, kill -9 of all after one more, then to the end."""
    out, e = tmp_path / "out", scaffold.experiment
    command = [sys.executable, "-m", "fedveca.cli", "deploy", "local"]
    keys = ["method", "data", "partition", "rounds", "keep", "model", "batch", "lr", "round_timeout"]
    keys += ["momentum", "optimizer_state", "lr_schedule"]
    words = [f"{key}={getattr(e, key)}" for key in keys]
    words += ["--nodes", "3", "--out", str(out), "--poll", "0"]  # with Flower's own intervals: the end is the same
    first = subprocess.Popen([*command, *words], stderr=subprocess.PIPE, text=True)
    until(lambda: lines(out) >= 1 or first.poll() is not None)
    first.send_signal(signal.SIGINT)
    _, said = first.communicate(timeout=240)
    assert first.returncode == 130, said
    assert said.rstrip().endswith(f"to resume: fedveca deploy local --resume {out}")
    assert _left(out) == []
    capsys.readouterr()
    assert main(["run", "--resume", str(out)]) == 2
    assert capsys.readouterr().err == (
        f"fedveca: {out} was made by fedveca deploy local, over Flower nodes; "
        f"resume it with: fedveca deploy local --resume {out}\n"
    )
    before = lines(out)
    assert before < 3
    assert "looks for something new" not in (out / "deployment" / "node-0.log").read_text()
    again = subprocess.Popen([*command, "--resume", str(out), "--quiet", "--poll", "0"])
    until(lambda: lines(out) > before or again.poll() is not None)
    time.sleep(0.5)
    server = json.loads((out / "deployment" / "server.json").read_text())["pid"]
    os.kill(server, signal.SIGKILL)
    os.kill(again.pid, signal.SIGKILL)
    again.wait(60)
    assert lines(out) == before + 1
    assert subprocess.run([*command, "--resume", str(out), "--quiet"], check=False, timeout=600).returncode == 0
    assert "looks for something new from every 0.05 s on" in (out / "deployment" / "node-0.log").read_text()
    done = Run.open(out)
    assert [line["round"] for line in done.rounds] == list(range(6))
    assert scaffold.folder
    same(out, load_file(scaffold.folder / "model.safetensors"), 0.0)
    assert _left(out) == []


def test_a_federations_folder_is_its_own(bench: Bench) -> None:
    with (
        pytest.raises(ValueError, match=f"deployment is in use by process {os.getpid()}; wait for it or stop it"),
        Federation(bench.federation.folder, NODES),
    ):
        raise AssertionError
    assert bench.federation.processes["superlink"].poll() is None


def test_what_hangs_below_a_federation_ends_with_it_and_nothing_else(tmp_path: Path) -> None:
    """A program that ignores signals, and one that it started in a session of its own."""
    deaf = "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    parent = f"{deaf}subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True); time.sleep(300)"

    def begin(federation: Federation) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-c", parent, f"{deaf}time.sleep(300)"]
        process = subprocess.Popen(words, env=federation._environment({}))
        until(lambda: len(find_marked(STATE, str(federation.state))) == 2)
        return process

    mine, others = Federation(tmp_path / "mine", 0), Federation(tmp_path / "mine-too", 0)
    first, second = begin(mine), begin(others)
    mine.close()
    assert find_marked(STATE, str(mine.state)) == []
    assert first.wait(60) == -signal.SIGKILL
    assert len(find_marked(STATE, str(others.state))) == 2
    others._kill_leftovers(0)
    assert find_marked(STATE, str(others.state)) == []
    assert second.wait(60) == -signal.SIGKILL


def test_the_example_in_flowers_own_simulation(tmp_path: Path) -> None:
    """`flwr run examples/flower_app`, on a SuperLink that simulates its nodes."""
    app, port, out = Path(__file__).parents[2] / "examples" / "flower_app", free_port(), tmp_path / "out"
    place = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | FLOWER_ENVIRONMENT | {"FLWR_HOME": str(tmp_path / "home"), "PATH": place}
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text(f'[superlink.here]\naddress = "{HOST}:{port}"\ninsecure = true\n')
    link = ["flower-superlink", "--simulation", "--insecure", "--host", HOST, "--port", str(port)]
    words = ["--federation-config", "num-supernodes=3", "--run-config", f'out="{out}"', "--run-config", "rounds=2"]
    with open(tmp_path / "link.log", "wb") as log:
        superlink = subprocess.Popen(link, env=environment, stdout=log, stderr=log)
    try:
        until(lambda: b"running on" in (tmp_path / "link.log").read_bytes().lower())
        subprocess.run(["flwr", "run", str(app), "here", *words], env=environment, check=True, timeout=120)
        until((out / "summary.json").exists)
    finally:
        superlink.terminate()
        superlink.wait(240)
    done = Run.open(out)
    expected = run(done.experiment, device="cpu")
    assert [line["tau"] for line in done.rounds] == [line["tau"] for line in expected.rounds]
    same(out, expected.model, 1e-6)


def _left(out: Path) -> list[list[str]]:
    """The commands of processes that name this folder."""
    commands = [p.info["cmdline"] or [] for p in psutil.process_iter(["cmdline"]) if p.pid != os.getpid()]
    return [words for words in commands if str(out) in " ".join(words)]
