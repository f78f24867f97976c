"""monitor.json: what is watched is off by default, on loopback unless an address is named, and checked."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from fedveca.cli import main
from fedveca.deploy import supernode
from fedveca.deploy.launch import Federation
from fedveca.deploy.superlink import SuperLink
from fedveca.deploy.templates import write_deployment
from fedveca.errors import UserError
from fedveca.monitor import settings as module
from fedveca.monitor.settings import MonitorSettings, find_log_form, read_monitor, write_monitor
from fedveca.runs.experiment import Experiment


def test_nothing_is_watched_by_default(tmp_path: Path) -> None:
    assert MonitorSettings() == read_monitor(tmp_path) == (0, "127.0.0.1", "text")
    write_monitor(tmp_path, MonitorSettings())
    assert not list(tmp_path.iterdir())


def test_what_is_written_is_read(tmp_path: Path) -> None:
    chosen = MonitorSettings(9464, "0.0.0.0", "json")
    write_monitor(tmp_path, chosen)
    assert read_monitor(tmp_path) == chosen
    assert find_log_form(tmp_path) == "json"
    write_monitor(tmp_path, MonitorSettings())
    assert read_monitor(tmp_path) == MonitorSettings()


def test_a_file_by_hand_needs_only_a_port(tmp_path: Path) -> None:
    (tmp_path / "monitor.json").write_text('{"port": 9464}')
    assert read_monitor(tmp_path) == (9464, "127.0.0.1", "text")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"port": 70000}', "metrics port 70000 is out of range; allowed: [1, 65535], or 0 for none"),
        ('{"port": "9464"}', "metrics port '9464' is out of range"),
        ('{"port": true}', "metrics port True is out of range"),
        ('{"host": "server.example"}', "metrics host 'server.example' is not an address of this machine"),
        ('{"host": 5.5}', "metrics host 5.5 is not an address"),
        ('{"log": "xml"}', "log='xml' is not known; allowed: text, json"),
        ('{"prot": 1}', "monitor.json has 'prot'; allowed: port, host, log"),
        ("[]", "monitor.json"),
        ("{", "monitor.json"),
    ],
)
def test_what_is_invalid_is_one_sentence(text: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "monitor.json").write_text(text)
    with pytest.raises(ValueError, match=re.escape(why)) as caught:
        read_monitor(tmp_path)
    assert "\n" not in str(caught.value)
    assert find_log_form(tmp_path) == "text"
    words = ["--superlink", "127.0.0.1:1", "--client", "0", "--clients", "1"]
    monkeypatch.setattr(sys, "argv", ["supernode", str(tmp_path), *words])
    with pytest.raises(SystemExit, match=re.escape(f"fedveca: {caught.value}")):
        supernode._main()


def test_without_the_extra_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert MonitorSettings(log="json").check()
    with pytest.raises(UserError, match=r"the extra fedveca\[monitor\]"):
        MonitorSettings(9464).check()


@pytest.mark.parametrize("command", [["run", "rounds=1"], ["deploy", "local"], ["deploy", "init"]])
@pytest.mark.parametrize("option", [["--metrics-port", "70000"], ["--metrics-host", "somewhere"]])
def test_the_command_line_rejects_the_same(
    command: list[str], option: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = [str(tmp_path / "out")] if command[-1] == "init" else ["--out", str(tmp_path / "out")]
    assert main([*command, *out, *option]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_init_writes_the_settings_and_the_dashboard(tmp_path: Path) -> None:
    chosen = MonitorSettings(9464, "127.0.0.1", "json")
    write_deployment(tmp_path / "fleet", Experiment(clients=2), "127.0.0.1", 8000, monitor=chosen)
    for part in ("server", "node-0", "node-1"):
        assert read_monitor(tmp_path / "fleet" / part) == chosen
    assert json.loads((tmp_path / "fleet" / "server" / "grafana.json").read_text())["title"]
    write_deployment(tmp_path / "plain", Experiment(clients=1), "127.0.0.1", 8000)
    assert not list((tmp_path / "plain").rglob("monitor.json"))


def test_nodes_of_one_machine_have_ports_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SuperLink, "_start", lambda *args: None)
    monkeypatch.setattr(SuperLink, "start", lambda self: None)
    with Federation(tmp_path, 2, monitor=MonitorSettings(9464)):
        ports = [read_monitor(tmp_path / part).port for part in (".", "node-0", "node-1")]
    assert ports == [9464, 9465, 9466]
    with Federation(tmp_path, 2, monitor=MonitorSettings(log="json")):
        found = {read_monitor(tmp_path / part) for part in (".", "node-0", "node-1")}
    assert found == {MonitorSettings(log="json")}


def test_the_last_node_needs_a_port_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["deploy", "local", "--nodes", "3", "--metrics-port", "65533", "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert "metrics port 65536 is out of range" in capsys.readouterr().err
