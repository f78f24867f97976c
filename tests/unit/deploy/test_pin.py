"""What a node is pinned to: one app, file by file, and the names of its model's and its method's code."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.cli.build import build_fab_from_disk

from fedveca.algorithms import registry
from fedveca.cli import main
from fedveca.deploy.exchange import NodeOrder, NodeRequest, decode_answer, encode
from fedveca.deploy.node_process import work
from fedveca.deploy.pin import AppRejected, check_app, describe_app, pin, read_pin
from fedveca.deploy.provision import write_app
from fedveca.runs.experiment import Experiment

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's packing
E = Experiment(model="svm", clients=2)


@pytest.fixture
def app(tmp_path: Path) -> Path:
    write_app(tmp_path / "app", E)
    return tmp_path / "app"


def pack(files: Mapping[str, str | bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()


def unpack(fab: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(fab)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_app_as_flower_packs_it_is_accepted_with_other_settings_too(app: Path) -> None:
    pinned = describe_app(app)
    assert list(pinned["files"]) == ["app.py"]
    assert pinned["model"] == "svm"
    check_app(build_fab_from_disk(app), pinned)
    write_app(app, replace(E, rounds=7, lr=0.5))
    (app / "README.md").write_text("for people")
    check_app(build_fab_from_disk(app), pinned)


def test_an_app_that_differs_in_any_file_or_component_is_rejected(app: Path) -> None:
    pinned, files = describe_app(app), unpack(build_fab_from_disk(app))
    project, code = files["pyproject.toml"], files["app.py"]
    cases: list[tuple[dict[str, str | bytes], str]] = [
        ({"app.py": code + b"\n"}, "'app.py' differs"),
        ({"evil.py": "import os"}, "'evil.py' differs"),
        ({"app/__init__.py": "import os"}, "differs"),
        ({"data.bin": b"x"}, "'data.bin' differs"),
        ({"setup.cfg": "x"}, "'setup.cfg' differs"),
        ({"sub/app.py": code}, "'sub/app.py' differs"),
        ({"pyproject.toml": project.replace(b"app:client", b"os:system")}, "its components"),
        ({"pyproject.toml": b"not = [toml"}, "cannot be read"),
        ({"pyproject.toml": b"a = 1"}, "cannot be read"),
        ({"big.md": bytes(17 * 2**20)}, "too large"),
    ]
    for changed, said in cases:
        with pytest.raises(AppRejected, match=said):
            check_app(pack(files | changed), pinned)
    for lacking in ("app.py", "pyproject.toml"):
        with pytest.raises(AppRejected):
            check_app(pack({name: text for name, text in files.items() if name != lacking}), pinned)
    for garbage in (b"", b"PK", build_fab_from_disk(app)[:200], b"x" * 1000):
        with pytest.raises(AppRejected, match="cannot be read"):
            check_app(garbage, pinned)


def test_a_file_given_twice_or_larger_than_it_says_is_rejected(app: Path) -> None:
    pinned, files = describe_app(app), unpack(build_fab_from_disk(app))
    content = io.BytesIO(pack(files))
    with zipfile.ZipFile(content, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("app.py", "import os")
    with pytest.raises(AppRejected, match="twice"):
        check_app(content.getvalue(), pinned)
    bomb = bytearray(pack(files | {"bomb.md": bytes(40 * 2**20)}))
    size = (40 * 2**20).to_bytes(4, "little")
    assert size in bomb
    with pytest.raises(AppRejected, match=r"too large|cannot be read"):
        check_app(bytes(bomb.replace(size, (10).to_bytes(4, "little"))), pinned)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"files": {}}', '{"files": 1, "model": ""}'])
def test_a_pin_that_cannot_be_read_accepts_nothing(tmp_path: Path, content: str) -> None:
    assert read_pin(tmp_path) is None
    (tmp_path / "pinned.json").write_text(content)
    with pytest.raises(AppRejected, match="no app is accepted"):
        read_pin(tmp_path)


def test_pin_from_the_command_line(app: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [tmp_path / f"node-{i}" for i in range(2)]
    for node in nodes:
        node.mkdir()
    assert main(["deploy", "pin", str(app), *map(str, nodes)]) == 0
    assert "node-0" in capsys.readouterr().out
    assert read_pin(nodes[1]) == describe_app(app)
    for words, said in [
        ([str(tmp_path / "gone"), str(nodes[0])], "gone is not a Flower app of FedVeca"),
        ([str(app), str(tmp_path / "nowhere")], "nowhere is not the folder of a node"),
        ([str(nodes[0]), str(nodes[1])], "node-0 is not a Flower app of FedVeca"),
    ]:
        assert main(["deploy", "pin", *words]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert said in error


def ask_pinned(node: Path, **settings: str) -> str:
    """The error of a node that is asked who it is, empty where it answers."""
    order: NodeOrder = {"classes": 10, "pixels": "as-is"}
    request: NodeRequest = {"settings": {"model": "svm", "clients": 2, **settings}, "client": 0, "order": order}
    answer, _ = decode_answer(work(encode(request, {"w": np.zeros(64, np.float32)}), node))
    return answer.get("error", "")


@pytest.mark.parametrize(("named", "allowed"), [("svm", True), ("mlp", True), ("antigravity:geohash", False)])
def test_a_models_code_is_run_only_if_it_is_pinned(app: Path, tmp_path: Path, named: str, allowed: bool) -> None:
    node = tmp_path / "node"
    node.mkdir()
    pin(app, [node])
    said = "the server named model=antigravity:geohash; this node is pinned to svm"
    assert ask_pinned(node, model=named) == ("" if allowed else said)


MINE = (
    "from dataclasses import dataclass\nfrom fedveca import FedAvg\n@dataclass(frozen=True)\nclass Mine(FedAvg): ...\n"
)


def test_a_methods_code_is_run_only_if_it_is_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pinned_method", "other_method"):
        (tmp_path / f"{name}.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    nodes = [tmp_path / name for name in ("node", "old")]
    for node in nodes:
        node.mkdir()
    write_app(tmp_path / "app", Experiment(model="svm", method="pinned_method:Mine", clients=2))
    pin(tmp_path / "app", nodes)
    assert ask_pinned(nodes[0], method="fedavg") == ask_pinned(nodes[0], method="pinned_method:Mine") == ""
    said = "the server named method=other_method:Mine; this node is pinned to pinned_method:Mine"
    assert ask_pinned(nodes[0], method="other_method:Mine") == said
    assert "other_method" not in sys.modules
    content = json.loads((nodes[1] / "pinned.json").read_text())
    del content["method"]  # as version 0.1 wrote it
    (nodes[1] / "pinned.json").write_text(json.dumps(content))
    assert ask_pinned(nodes[1], method="fedavg") == ""
    assert ask_pinned(nodes[1], method="other_method:Mine").endswith("this node is pinned to no method's code")
    registry._loaded.pop("pinned_method:Mine")
    sys.modules.pop("pinned_method")
