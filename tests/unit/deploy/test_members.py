"""Nodes that come and go: keys, folders, the app's number of clients, and the file that a run reads again."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from fedveca.cli import main
from fedveca.deploy.members import add_node, parse_node, read_deployment, revoke_node
from fedveca.deploy.nodes_file import NodeTable
from fedveca.errors import UserError


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    assert main(["deploy", "init", str(tmp_path / "kit"), "--nodes", "2", "model=svm", "--port", "9000"]) == 0
    return tmp_path / "kit"


def test_a_node_is_added_for_the_next_run(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pinned = (kit / "node-0" / "pinned.json").read_bytes()
    assert main(["deploy", "add", str(kit), "node-2"]) == 0
    assert f"wrote {kit / 'node-2'}" in capsys.readouterr().out
    assert sorted(p.name for p in (kit / "server" / "keys").iterdir()) == ["node-0.pub", "node-1.pub", "node-2.pub"]
    home = kit / "node-2"
    assert sorted(p.name for p in home.iterdir()) == sorted(
        name.replace("node-0", "node-2") for name in (p.name for p in (kit / "node-0").iterdir())
    )
    assert (home / "pinned.json").read_bytes() == pinned
    assert home.stat().st_mode & 0o777 == 0o700
    assert (home / "key").stat().st_mode & 0o777 == 0o600
    assert "--superlink 127.0.0.1:9000 --client 2 --clients 3 " in (home / "start.sh").read_text()
    config = tomllib.loads((kit / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert config["clients"] == read_deployment(kit).clients == 3
    assert "  node-2:\n" in (kit / "compose.yaml").read_text()
    assert main(["deploy", "add", str(kit), "4"]) == 2
    assert "node-4 is not the next one; allowed: node-0 to node-3, without a key" in capsys.readouterr().err


def test_a_revoked_client_gets_another_node_with_another_key(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = (kit / "node-1" / "key").read_bytes()
    assert main(["deploy", "add", str(kit), "node-1"]) == 2
    assert "client 1 has a node" in capsys.readouterr().err
    assert main(["deploy", "revoke", str(kit), "node-1"]) == 0
    assert not (kit / "server" / "keys" / "node-1.pub").exists()
    assert main(["deploy", "revoke", str(kit), "node-1"]) == 2
    assert "client 1 has no key" in capsys.readouterr().err
    assert add_node(kit, 1) == kit / "node-1"
    assert (kit / "node-1" / "key").read_bytes() != old == (kit / "node-1.former-1" / "key").read_bytes()
    revoke_node(kit, 1)
    add_node(kit, 1)
    assert (kit / "node-1.former-2").is_dir()
    assert read_deployment(kit).clients == 2


def test_nodes_that_mask_their_vectors_know_the_new_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from fedveca.deploy.peers import read_peers

    kit = tmp_path / "kit"
    assert main(["deploy", "init", str(kit), "--nodes", "3", "model=svm", "secure=on", "--metrics-port", "9464"]) == 0
    before = read_peers(kit / "node-0")
    assert before
    revoke_node(kit, 1)
    capsys.readouterr()
    for name, clients in (("node-1", 3), ("node-3", 4)):
        assert main(["deploy", "add", str(kit), name]) == 0
        assert "copy each node's peers.json to its device too" in capsys.readouterr().out
        keys = {i: (kit / "server" / "keys" / f"node-{i}.pub").read_text().strip() for i in range(clients)}
        for i in range(clients):
            assert read_peers(kit / f"node-{i}") == before._replace(keys=keys)
    assert keys[1] != before.keys[1]
    assert (kit / "node-3" / "monitor.json").read_bytes() == (kit / "server" / "monitor.json").read_bytes()


@pytest.mark.parametrize("name", ["", "node", "node-", "node--1", "node-10000", "../node-1", "node-1\n", "node-¹", "a"])
def test_what_is_not_a_node_is_rejected(name: str, kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for way in ("add", "revoke"):
        assert main(["deploy", way, str(kit), "--", name]) == 2
        error = capsys.readouterr().err
        assert "is not a node; allowed: node-0 to node-9999" in error
        assert error.count("\n") == 1
    assert [parse_node("node-7"), parse_node("7"), parse_node("node-07")] == [7, 7, 7]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("host", "a b"),
        ("host", 3),
        ("bind", "$(id)"),
        ("port", 0),
        ("port", "1"),
        ("clients", True),
        ("clients", 10**6),
        ("log_mb", "x"),
        ("log_mb", 0),
        ("log_files", -1),
        ("more", 1),
    ],
)
def test_a_file_that_init_did_not_write_is_rejected(key: str, value: object, kit: Path) -> None:
    path = kit / "server" / "deployment.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(UserError, match=r"deployment\.json is invalid"):
        read_deployment(kit)


def test_a_run_sees_who_has_which_key_now(tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps({"0": 11, "1": 12}))
    table = NodeTable(path)
    assert dict(table) == {0: 11, 1: 12}
    draft = tmp_path / "draft"
    draft.write_text(json.dumps({"0": 11, "2": 13}))
    draft.replace(path)
    assert table.get(1) is None
    assert table[2] == 13
    assert len(table) == 2
