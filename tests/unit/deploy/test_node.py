"""A node's half of a deployment, without the network: what it loads, its data, its memory, the wire."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tomllib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedveca.algorithms.contract import Order
from fedveca.cli import main
from fedveca.cohorts.aggregate import Mean
from fedveca.cohorts.client_memory import ClientMemory
from fedveca.cohorts.encodings import TopKEncoding
from fedveca.cohorts.flower.wire import narrow, widen
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.deploy import private_api
from fedveca.deploy.exchange import NodeAnswer, NodeOrder, decode_answer, encode
from fedveca.deploy.node import connect_to_process
from fedveca.deploy.node_process import NodeMemoryFiles, load_node_rows, make_node_cohort, work
from fedveca.deploy.server import load_test_data
from fedveca.deploy.templates import parse_host
from fedveca.monitor.log_observer import LogObserver
from fedveca.runs.build import Built, build, cohort_options
from fedveca.runs.experiment import Experiment
from fedveca.tasks.custom import from_arrays
from fedveca.version import __version__


def test_a_message_loads_no_pytorch() -> None:
    code = "import sys, fedveca.cohorts.flower.messages, fedveca.deploy.pin, fedveca.deploy.fork_server\n"
    code += "import fedveca.deploy.private_api, fedveca.deploy.processes\n"
    code += "from fedveca import answer, serve\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_a_node_has_one_fork_server(tmp_path: Path) -> None:
    """Messages that come while it still loads Flower each start one; the first stays."""
    command = [sys.executable, "-m", "fedveca.deploy.fork_server", str(tmp_path), str(os.getpid())]
    first = subprocess.Popen(command)
    try:
        until = time.monotonic() + 60
        while not (tmp_path / ".lock").exists() and time.monotonic() < until:
            time.sleep(0.01)
        assert subprocess.run(command, check=False, timeout=60).returncode == 0
        while not (tmp_path / "fork_server.json").exists() and time.monotonic() < until:
            time.sleep(0.05)
        assert json.loads((tmp_path / "fork_server.json").read_text()) == {"pid": first.pid}
        assert first.poll() is None
    finally:
        first.kill()
        first.wait(60)


@pytest.mark.parametrize("wire", ["float32", "float16", "bfloat16"])
def test_wire_is_pytorchs_rounding(wire: str) -> None:
    v = torch.randn(10_000, generator=torch.Generator().manual_seed(0)) * 10.0 ** torch.arange(-3, 2).repeat(2000)
    there = narrow(v.numpy(), wire)
    assert there.itemsize == (4 if wire == "float32" else 2)
    assert torch.equal(torch.from_numpy(widen(there, wire)), v.to(getattr(torch, wire)).float())


def test_node_rows_in_three_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([0, 1, 0, 1])
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    (tmp_path / "mine.py").write_text(
        "import numpy\ndef load():\n    return numpy.load('x.npy').astype('float64'), numpy.load('y.npy')\n"
    )
    monkeypatch.chdir(tmp_path)
    for name in ("mine.npz", str(tmp_path), "mine:load"):
        found = load_node_rows(name, "FEDVECA_NODE_DATA")
        assert torch.equal(found.x, torch.from_numpy(x))
        assert found.y.tolist() == y.tolist()
    with pytest.raises(ValueError, match=r"FEDVECA_NODE_DATA=gone.npz cannot be read .* package.module:load"):
        load_node_rows("gone.npz", "FEDVECA_NODE_DATA")


def test_memory_goes_back_as_far_as_checkpoints_do(tmp_path: Path) -> None:
    memory = NodeMemoryFiles(tmp_path, token=7, client=1, reach=1)
    assert memory.read(-1) == {}
    for k in range(10):
        memory.write(k, k - 1, {"c": torch.full((3,), float(k))})
    assert [float(memory.read(k)["c"][0, 0]) for k in (9, 8, 7, 6)] == [9.0, 8.0, 7.0, 6.0]
    with pytest.raises(ValueError, match="client 1 has lost what it remembered of round 2"):
        memory.read(1)
    memory.write(10, 6, {"c": torch.zeros(3)})
    memory.write(11, 6, {"c": torch.zeros(3)})
    assert float(memory.read(6)["c"][0, 0]) == 6.0  # the one that counts stays, however old
    with pytest.raises(ValueError, match="lost"):
        NodeMemoryFiles(tmp_path, token=8, client=1, reach=1).read(9)


def test_init_gives_each_device_its_own_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "kit"
    assert main(["deploy", "init", str(folder), "digits-case3", "lr=0.1", "--nodes", "3", "--host", "10.0.0.9"]) == 0
    assert "3 devices" in capsys.readouterr().out
    secrets = [p for p in folder.rglob("*") if p.is_file() and b"PRIVATE KEY" in p.read_bytes()]
    where = sorted(str(p.relative_to(folder)) for p in secrets)
    assert where == ["authority/ca.key", "node-0/key", "node-1/key", "node-2/key", "server/tls/server.key"]
    assert all(p.stat().st_mode & 0o077 == 0 for p in secrets)
    assert len({p.read_bytes() for p in secrets}) == 5
    for i in range(3):
        unit, own = f"fedveca-node-{i}.service", ["key", "node.env", "pinned.json", "requirements.txt", "start.sh"]
        assert sorted(p.name for p in (folder / f"node-{i}").iterdir()) == ["ca.pem", unit, *own]
        assert f" --superlink 10.0.0.9:8000 --client {i} " in (folder / f"node-{i}" / "start.sh").read_text()
    private = ("server", "authority", "node-0", "node-1", "node-2")
    assert all((folder / name).stat().st_mode & 0o077 == 0 for name in private)
    for script in folder.rglob("*.sh"):
        assert subprocess.run(["sh", "-n", str(script)], check=False).returncode == 0
    assert "lr = 0.1\n" in (folder / "app" / "pyproject.toml").read_text()
    assert main(["deploy", "init", str(folder)]) == 2
    assert "not empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["method=centralised"], "no clients"),
        (["min_clients=9"], "min_clients=9"),
        (["--nodes", "0"], "clients=0"),
        (["wire=int9"], "wire=int9"),
        (["round_timeout=0"], "round_timeout"),
        (["lr=x"], "lr=x"),
        (["partition=case2", "--nodes", "99999"], "99999"),
        (["engine=ray"], "engine=ray is for simulations"),
        (["model=custom:x"], "model=custom:x"),
    ],
)
def test_refusals(words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "local", *words, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("host", "written", "name", "bind"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("127.0.0.2", "127.0.0.2", "127.0.0.2", "127.0.0.2"),
        ("::1", "[::1]", "::1", "::1"),
        ("[::1]", "[::1]", "::1", "::1"),
        ("localhost", "localhost", "localhost", "127.0.0.1"),
        ("LocalHost", "LocalHost", "LocalHost", "127.0.0.1"),
        ("10.0.0.9", "10.0.0.9", "10.0.0.9", "0.0.0.0"),
        ("fd00::9", "[fd00::9]", "fd00::9", "::"),
        ("laptop.lan", "laptop.lan", "laptop.lan", "0.0.0.0"),
    ],
)
def test_a_loopback_name_opens_nothing_to_the_network(host: str, written: str, name: str, bind: str) -> None:
    assert parse_host(host) == (written, name, bind)


@pytest.mark.parametrize(
    "host",
    [
        "",
        " ",
        "a;id",
        "a&id",
        "a|id",
        "a>x",
        "(a)",
        "*",
        "$(id)",
        "`id`",
        "a b",
        "a\nb",
        "a'b",
        'a"b',
        "a\\b",
        "ümlaut",
        "a" * 300,
        "-a",
        "a-",
        "a..b",
        ".a",
        "1.2.3",
        "1.2.3.4.5",
        "999.1.1.1",
        "0.0.0.0",
        "::",
        "fe80::1%eth0",
        "[::1",
        "[a]",
        "a:8000",
        "224.0.0.1",
        "a_b",
        "{host}",
        "a/b",
        "~",
        "!x",
        "#x",
    ],
)
def test_hosts_that_are_rejected(host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "init", str(tmp_path / "kit"), f"--host={host}"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("fedveca: host=")
    assert not (tmp_path / "kit").exists()


def test_a_strangers_preset_cannot_write_into_scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither by a line end in a name, nor by a quote, nor by what a shell or a template would replace."""
    plain = tmp_path / "plain"
    assert main(["deploy", "init", str(plain), "--nodes", "1", "model=svm"]) == 0
    scripts = {p.relative_to(plain): p.read_bytes() for p in plain.rglob("*.sh")}
    assert len(scripts) == 4
    for n, line in enumerate(
        [
            r'data = "custom:x\ntouch PWN\n#"',
            r'method = "custom:a\" x"',
            r'model = "a:b\ntouch PWN"',
            'model = "a:$(touch PWN)"',
            r'partition = "custom:x\ntouch PWN"',
            r'data_dir = "x\ntouch PWN"',
            'data_dir = "$(touch PWN) {host} `id`"',
            r'track = "x\ny"',
            r'ray_address = "a\nb"',
            'model = "a:{port}"',
        ]
    ):
        (tmp_path / "evil.toml").write_text(f"{line}\n")
        folder = tmp_path / f"kit-{n}"
        code = main(["deploy", "init", str(folder), str(tmp_path / "evil.toml"), "--nodes", "1"])
        error = capsys.readouterr().err
        if code == 0:  # a value that may be anything stands in the app's settings alone
            assert {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*.sh")} == scripts
            assert tomllib.loads((folder / "app" / "pyproject.toml").read_text())["project"]["name"] == "fedveca-app"
        else:
            assert code == 2, line
            assert error.count("\n") == 1, error
            assert not folder.exists()


def test_the_server_tests_on_rows_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for shape, pixels in (((6, 8, 8), "unit"), ((6, 1, 8, 8), "unit"), ((6, 5), "as-is")):
        np.savez(tmp_path / "test.npz", x=np.ones(shape, np.uint8), y=np.arange(6))
        monkeypatch.setenv("FEDVECA_TEST_DATA", str(tmp_path / "test.npz"))
        data = load_test_data(Experiment())
        assert (data.name, data.classes, len(data.y_test), len(data.x), data.pixels) == ("digits", 6, 6, 0, pixels)
        Experiment(data=data.name)  # what the run records is a data set that it can name
        with pytest.raises(ValueError, match="pixels=channels needs the means of the training rows, which a server"):
            load_test_data(Experiment(pixels="channels"))


@pytest.mark.slow
def test_another_user_cannot_reach_a_nodes_worker(tmp_path: Path) -> None:
    """Nor keep it from its node: three idle connections did so once."""
    folder = tmp_path / ("deep" * 30)  # a socket's own path may have 107 bytes
    folder.mkdir()
    log = open(tmp_path / "log", "wb")  # noqa: SIM115
    command = [sys.executable, "-m", "fedveca.deploy.node_process", str(folder), str(os.getpid())]
    process = subprocess.Popen(command, stderr=log)
    try:
        until = time.monotonic() + 60
        while not (folder / "node_process.json").exists() and time.monotonic() < until:
            time.sleep(0.05)
        assert json.loads((folder / "node_process.json").read_text()) == {"pid": process.pid}
        assert folder.stat().st_mode & 0o777 == 0o700
        sockets = {os.readlink(link) for link in Path(f"/proc/{process.pid}/fd").iterdir() if link.is_symlink()}
        tcp = "".join(Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6"))
        assert not [s for s in sockets if s.startswith("socket:[") and f" {s[8:-1]} " in tcp]
        with connect_to_process(folder, process.pid) as connection:
            connection.send_bytes(b"nothing that it knows")
            assert b"error" in connection.recv_bytes()
    finally:
        process.kill()
        process.wait(60)
        log.close()


def test_programs_that_a_node_does_not_need_are_rejected(tmp_path: Path) -> None:
    """A server can name other kinds of tasks than a client's; Flower looks them up in PATH."""
    place = private_api.write_programs(tmp_path, private_api.NODE_PROGRAMS)
    for name in private_api.TASK_PROGRAMS:
        if name not in private_api.NODE_PROGRAMS:
            done = subprocess.run([str(place / name), "--token", "x"], capture_output=True, text=True, check=False)
            assert done.returncode == 1
            assert "is rejected" in done.stderr


@pytest.mark.parametrize("below", ["", "node-0"])
def test_a_deployment_is_not_written_through_a_link(
    below: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outside, place = tmp_path / "outside", tmp_path / "out" / "deployment" / below
    outside.mkdir()
    place.parent.mkdir(parents=True)
    place.symlink_to(outside)
    assert main(["deploy", "local", "model=svm", "--nodes", "2", "--out", str(tmp_path / "out")]) == 2
    assert "deployment is a link to elsewhere, or holds one; it is not written" in capsys.readouterr().err
    assert list(outside.iterdir()) == []


def test_a_folder_of_another_user_is_not_made_private(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(ValueError, match="link belongs to another user or is a link"):
        private_api.make_private(tmp_path / "link")
    private_api.make_private(tmp_path / "real")
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o700


def ask(
    e: Experiment, client: int, folder: Path, vectors: dict[str, torch.Tensor], classes: int = 10, **order: Any
) -> tuple[NodeAnswer, dict[str, torch.Tensor]]:
    """The answer of a node's process to one request."""
    asked: NodeOrder = {"classes": classes, "pixels": "as-is", **order}  # type: ignore[typeddict-item]
    arrays = {name: v.numpy() for name, v in vectors.items()}
    reply = work(encode({"settings": asdict(e), "client": client, "order": asked}, arrays), folder)
    answer, arrays = decode_answer(reply)
    return answer, {name: torch.from_numpy(v) for name, v in arrays.items()}


def test_a_node_answers_as_the_simulators_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also from data of its own, and again from the memory that counts."""
    e = Experiment(model="svm", method="scaffold", clients=3, batch=8)
    parts = build(e)
    order = Order(torch.zeros(64), {"c": torch.full((64,), 0.01)})
    mine = parts.shares.rows[parts.shares.start[1] : parts.shares.start[2]]
    np.savez(tmp_path / "own.npz", x=parts.data.x[mine].numpy(), y=parts.data.y[mine].numpy())
    sent = {"w": order.w, **order.aux}
    words: dict[str, Any] = {"token": 5, "tau": 4, "wire": "float32"}
    for own in ("", str(tmp_path / "own.npz")):
        monkeypatch.setenv("FEDVECA_NODE_DATA", own)
        make_node_cohort.cache_clear()
        answer, _ = ask(e, 1, tmp_path, {})
        assert answer["fields"] == {"client": 1, "rows": len(mine), "version": __version__}
        assert isinstance(parts.cohort, LocalCohort)
        parts.cohort.memory = ClientMemory(3)
        simulated = [parts.cohort(k, order, torch.tensor([1]), torch.tensor([4]))[1] for k in (0, 1)]
        for k, known in ((0, -1), (1, 0), (1, 0)):  # round 1 twice, as after a crash
            answer, vectors = ask(e, 1, tmp_path, sent, round=k, known=known, **words)
            assert torch.allclose(vectors["G"], simulated[k].mean["G"], rtol=0, atol=1e-6)
            assert answer["numbers"]["loss"] == pytest.approx(float(simulated[k].each["loss"][0]), abs=1e-6)
    answer, _ = ask(e, 1, tmp_path, sent, round=2, known=7, **words)
    assert "lost what it remembered of round 8" in answer["error"]


NUMBERS = np.random.default_rng(0)
FACTORY = "from torch import nn\ndef make(shape, classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 1))\n"


def same_answer(e: Experiment, parts: Built, folder: Path, classes: int) -> None:
    """Client 1 sends what the simulator's client 1 computes: every vector and every number."""
    order = parts.algorithm.order(parts.state)
    _, report = parts.cohort(2, order, torch.tensor([1]), torch.tensor([3]))
    make_node_cohort.cache_clear()
    words = {"round": 2, "known": -1, "token": 9, "tau": 3, "wire": "float32"}
    answer, vectors = ask(e, 1, folder, {"w": order.w, **order.aux}, classes, **words)
    assert "error" not in answer, answer
    numbers = {name: float(v[0]) for name, v in report.each.items() if name != "tau"}
    assert {"loss", "after"} < numbers.keys()
    assert answer["numbers"] == pytest.approx(numbers, rel=1e-4)
    assert vectors.keys() == report.mean.keys()
    for name, v in report.mean.items():
        assert torch.allclose(vectors[name], v, rtol=0, atol=1e-6), name


def test_a_node_minimises_the_loss_that_the_settings_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Squared error of whole labels, with a factory that gives one score per row; without `metric` it is rejected."""
    (tmp_path / "one_score.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(tmp_path)
    e = Experiment(model="one_score:make", clients=3, batch=8, probe=20, keep="rollback", lr=0.001)
    e = replace(e, loss="squared_error", metric="absolute_error")
    same_answer(e, build(e), tmp_path, classes=10)
    answer, _ = ask(replace(e, metric="auto"), 1, tmp_path, {})
    assert "metric=accuracy needs" in answer["error"]


def test_options_of_a_cohort_are_the_settings() -> None:
    e = Experiment(batch=3, seed=5, probe=7, memory_mb=11, keep="last", norm_stats="local", sampling="shuffle")
    expected = {
        "batch": 3,
        "seed": 5,
        "probe": 7,
        "sampling": "shuffle",
        "want_loss": False,
        "want_loss_after": False,
        "memory_bytes": 11 * 2**20,
        "local_statistics": True,
        "equal_weights": False,
    }
    assert cohort_options(e.replace(weights="uniform"))["equal_weights"]
    assert cohort_options(e.replace(dp_noise=1.0, norm_stats="fixed"))["equal_weights"]
    options = cohort_options(e)
    assert options.pop("transfer").wire == "float32"
    assert options == expected | {"aggregate": Mean}
    transfer = cohort_options(e.replace(wire="topk", wire_share=0.3))["transfer"]
    assert (transfer.encoding, transfer.seed) == (TopKEncoding(0.3), 5)
    for keep, after in (("best", False), ("rollback", True)):
        changed = e.replace(keep=keep, aggregate="clip", aggregate_clip=2.5, aggregate_trim=0.3)
        options = cohort_options(changed)
        assert (options["want_loss"], options["want_loss_after"]) == (True, after)
        assert getattr(options["aggregate"], "args") == (2.5, 0.3)  # noqa: B009


@pytest.mark.parametrize("shape", [(40,), (40, 2)])
def test_a_node_predicts_numbers_as_the_simulators_client(
    shape: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = NUMBERS.normal(size=(40, 5)).astype(np.float32), NUMBERS.normal(size=shape)
    e = Experiment(model="mlp", hidden=7, seed=3, clients=2, batch=8, probe=10, keep="rollback", lr=0.01)
    parts = build(e, data=from_arrays(x, y, test=(x[:4], y[:4])), partition=[list(range(25)), list(range(25, 40))])
    np.savez(tmp_path / "own.npz", x=x[25:], y=y[25:])
    monkeypatch.setenv("FEDVECA_NODE_DATA", str(tmp_path / "own.npz"))
    same_answer(e, parts, tmp_path, classes=0)
    answer, _ = ask(replace(e, model="svm"), 1, tmp_path, {}, classes=0)
    assert "model=svm has its own loss" in answer["error"]


@pytest.mark.parametrize(
    ("y", "wrong"),
    [
        ([0.0, 1.0, 2.0], ""),
        ([0.0, 0.5, 2.0], "client 1 has labels from 0.0 to 2.0; allowed: 0 to 2, whole"),
        ([0, 1, 3], "client 1 has labels from 0 to 3; allowed: 0 to 2, whole"),
        ([-1, 1, 2], "client 1 has labels from -1 to 2; allowed: 0 to 2, whole"),
    ],
)
def test_labels_are_checked_where_there_are_classes(
    y: list[float], wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "own.npz", x=np.ones((3, 64), np.float32), y=np.array(y))
    monkeypatch.setenv("FEDVECA_NODE_DATA", str(tmp_path / "own.npz"))
    make_node_cohort.cache_clear()
    answer, _ = ask(Experiment(model="mlp"), 1, tmp_path, {}, classes=3)
    assert answer.get("error", "") == wrong


@pytest.mark.parametrize(
    ("y", "loss", "classes"),
    [
        ([0, 1, 2], "auto", 3),
        ([0.0, 1.0, 2.0], "auto", 3),
        ([0.0, 1.0, 2.0], "squared_error", 0),
        ([0.0, 1.5, 2.0], "auto", 0),
    ],
)
def test_targets_of_the_server_are_labels_or_numbers(
    y: list[float], loss: str, classes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "test.npz", x=np.ones((3, 5), np.float32), y=np.array(y))
    monkeypatch.setenv("FEDVECA_TEST_DATA", str(tmp_path / "test.npz"))
    data = load_test_data(Experiment(model="mlp", loss=loss))
    assert (data.classes, data.y_test.dtype) == (classes, torch.int64 if classes else torch.float32)


def test_the_servers_line_has_the_runs_metric_and_faults(tmp_path: Path) -> None:
    log = LogObserver()
    log.start(Experiment(rounds=7), tmp_path)
    record: Any = {"round": 2, "seconds": 1.26, "test_loss": 0.5, "test_accuracy": 0.8765}
    assert log.format_round(record) == "round 3/7  accuracy 87.65 %  1.3 s"
    other: Any = {"round": 2, "seconds": 1.26, "test_loss": 0.5, "test_absolute_error": 2.0 / 3}
    faults = {"faults": [{"client": 1, "what": "timed out after 5 s"}]}
    assert log.format_round(other | faults) == "round 3/7  absolute error 0.6667  1.3 s  client 1 timed out after 5 s"
    untested: Any = {"round": 0, "seconds": 0.0, "test_accuracy": None}
    assert log.format_round(untested) == "round 1/7  0.0 s"
