"""A node's half of a deployment, without the network: what it loads, its data, its memory, the wire."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save
from safetensors.torch import load

from fedveca.algorithms.contract import Order
from fedveca.cli import main
from fedveca.cohorts.client_memory import ClientMemory
from fedveca.cohorts.flower.wire import narrow, widen
from fedveca.deploy import node, private_api
from fedveca.deploy import node_process as worker
from fedveca.deploy import server as serve
from fedveca.deploy.node_process import Store, own_rows, work
from fedveca.deploy.templates import parse_host
from fedveca.runs.build import build
from fedveca.runs.experiment import Experiment


def test_a_message_loads_no_pytorch() -> None:
    code = "import sys, fedveca.cohorts.flower.messages, fedveca.deploy.pin, fedveca.deploy.fork_server\n"
    code += "from fedveca import answer, serve\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_node_has_one_warm_process(tmp_path: Path) -> None:
    """Messages that come while it still loads Flower each start one; the first stays."""
    command = [sys.executable, "-m", "fedveca.deploy.fork_server", str(tmp_path), str(os.getpid())]
    first = subprocess.Popen(command)
    try:
        until = time.monotonic() + 60
        while not (tmp_path / ".lock").exists() and time.monotonic() < until:
            time.sleep(0.01)
        assert subprocess.run(command, check=False, timeout=60).returncode == 0
        while not (tmp_path / "warm.json").exists() and time.monotonic() < until:
            time.sleep(0.05)
        assert json.loads((tmp_path / "warm.json").read_text()) == {"pid": first.pid}
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


def test_own_rows_in_three_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([0, 1, 0, 1])
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    (tmp_path / "mine.py").write_text(
        "import numpy\ndef load():\n    return numpy.load('x.npy').astype('float64'), numpy.load('y.npy')\n"
    )
    monkeypatch.chdir(tmp_path)
    for name in ("mine.npz", str(tmp_path), "mine:load"):
        ours, labels = own_rows(name, "FEDVECA_NODE_DATA")
        assert torch.equal(ours, torch.from_numpy(x))
        assert labels.tolist() == y.tolist()
    with pytest.raises(ValueError, match=r"FEDVECA_NODE_DATA=gone.npz cannot be read .* package.module:load"):
        own_rows("gone.npz", "FEDVECA_NODE_DATA")


def test_memory_goes_back_as_far_as_checkpoints_do(tmp_path: Path) -> None:
    memory = Store(tmp_path, token=7, client=1, reach=1)
    assert memory.before(-1) == {}
    for k in range(10):
        memory.after(k, k - 1, {"c": torch.full((3,), float(k))})
    assert [float(memory.before(k)["c"][0, 0]) for k in (9, 8, 7, 6)] == [9.0, 8.0, 7.0, 6.0]
    with pytest.raises(ValueError, match="client 1 has lost what it remembered of round 2"):
        memory.before(1)
    memory.after(10, 6, {"c": torch.zeros(3)})
    memory.after(11, 6, {"c": torch.zeros(3)})
    assert float(memory.before(6)["c"][0, 0]) == 6.0  # the one that counts stays, however old
    with pytest.raises(ValueError, match="lost"):
        Store(tmp_path, token=8, client=1, reach=1).before(9)


def test_init_gives_each_device_its_own_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "kit"
    assert main(["deploy", "init", str(folder), "digits-case3", "lr=0.1", "--nodes", "3", "--host", "10.0.0.9"]) == 0
    assert "3 devices" in capsys.readouterr().out
    secrets = [p for p in folder.rglob("*") if p.is_file() and b"PRIVATE KEY" in p.read_bytes()]
    where = sorted(str(p.relative_to(folder)) for p in secrets)
    assert where == ["node-0/key", "node-1/key", "node-2/key", "server/tls/server.key"]
    assert all(p.stat().st_mode & 0o077 == 0 for p in secrets)
    assert len({p.read_bytes() for p in secrets}) == 4
    for i in range(3):
        assert sorted(p.name for p in (folder / f"node-{i}").iterdir()) == ["ca.pem", "key", "pinned.json", "start.sh"]
        assert f" --superlink 10.0.0.9:8000 --client {i} " in (folder / f"node-{i}" / "start.sh").read_text()
    assert all((folder / name).stat().st_mode & 0o077 == 0 for name in ("server", "node-0", "node-1", "node-2"))
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
        (["wire=int8"], "wire=int8"),
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
    assert error.startswith("fedveca: --host ")
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
        data = serve.load_test_data(Experiment())
        assert (data.name, data.classes, len(data.y_test), len(data.x), data.pixels) == ("digits", 6, 6, 0, pixels)
        Experiment(data=data.name)  # what the run records is a data set that it can name


def test_another_user_cannot_reach_a_nodes_worker(tmp_path: Path) -> None:
    """Nor keep it from its node: three idle connections did so once."""
    folder = tmp_path / ("deep" * 30)  # a socket's own path may have 107 bytes
    folder.mkdir()
    log = open(tmp_path / "log", "wb")  # noqa: SIM115
    command = [sys.executable, "-m", "fedveca.deploy.node_process", str(folder), str(os.getpid())]
    process = subprocess.Popen(command, stderr=log)
    try:
        until = time.monotonic() + 60
        while not (folder / "worker.json").exists() and time.monotonic() < until:
            time.sleep(0.05)
        assert json.loads((folder / "worker.json").read_text()) == {"pid": process.pid}
        assert folder.stat().st_mode & 0o777 == 0o700
        sockets = {os.readlink(link) for link in Path(f"/proc/{process.pid}/fd").iterdir() if link.is_symlink()}
        tcp = "".join(Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6"))
        assert not [s for s in sockets if s.startswith("socket:[") and f" {s[8:-1]} " in tcp]
        with node._connect(folder, process.pid) as worker_:
            worker_.send_bytes(b"nothing that it knows")
            assert b"error" in worker_.recv_bytes()
    finally:
        process.kill()
        process.wait(60)
        log.close()


def test_programs_that_a_node_does_not_need_are_rejected(tmp_path: Path) -> None:
    """A server can name other kinds of tasks than a client's; Flower looks them up in PATH."""
    place = private_api.write_programs(tmp_path, private_api.NODE)
    for name in private_api.TASKS:
        if name not in private_api.NODE:
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


def asked(e: Experiment, client: int, folder: Path, **order: object) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """A worker's answer to one request."""
    w = np.zeros(64, np.float32)
    words = {"settings": asdict(e), "client": client, "order": {"classes": 10, "pixels": "as-is", **order}}
    reply = work(save({"w": w, "c": w + 0.01}, {"request": json.dumps(words)}), folder)
    size = int.from_bytes(reply[:8], "little")
    said: dict[str, Any] = json.loads(json.loads(reply[8 : 8 + size])["__metadata__"]["answer"])
    return said, load(reply)


def test_a_node_answers_as_the_simulators_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also from data of its own, and again from the memory that counts."""
    e = Experiment(model="svm", method="scaffold", clients=3, batch=8)
    parts = build(e)
    order = Order(torch.zeros(64), {"c": torch.full((64,), 0.01)})
    mine = parts.shares.rows[parts.shares.start[1] : parts.shares.start[2]]
    np.savez(tmp_path / "own.npz", x=parts.data.x[mine].numpy(), y=parts.data.y[mine].numpy())
    words = {"token": 5, "tau": 4, "wire": "float32"}
    for own in ("", str(tmp_path / "own.npz")):
        monkeypatch.setenv("FEDVECA_NODE_DATA", own)
        worker._local.cache_clear()
        said, _ = asked(e, 1, tmp_path)
        assert said["said"] == {"client": 1, "rows": len(mine)}
        parts.cohort.memory = ClientMemory(3)
        simulated = [parts.cohort(k, order, torch.tensor([1]), torch.tensor([4]))[1] for k in (0, 1)]
        for k, known in ((0, -1), (1, 0), (1, 0)):  # round 1 twice, as after a crash
            said, vectors = asked(e, 1, tmp_path, round=k, known=known, **words)
            assert torch.allclose(vectors["G"], simulated[k].mean["G"], rtol=0, atol=1e-6)
            assert said["numbers"]["loss"] == pytest.approx(float(simulated[k].each["loss"][0]), abs=1e-6)
    said, _ = asked(e, 1, tmp_path, round=2, known=7, **words)
    assert "lost what it remembered of round 8" in said["error"]
