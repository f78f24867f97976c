"""What starts a deployment: a compose file, an image's recipe, systemd units, a lock of packages."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
import yaml

from fedveca.cli import main
from fedveca.deploy.packages import Deployment, write_compose, write_server_package
from fedveca.deploy.requirements import lock_requirements
from fedveca.errors import UserError


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages") / "kit"
    assert main(["deploy", "init", str(folder), "--nodes", "3", "model=svm"]) == 0
    return folder


def read_services(folder: Path) -> dict:
    services: dict = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    return services


def test_the_compose_file_has_every_part_hardened(kit: Path) -> None:
    services = read_services(kit)
    assert sorted(services) == ["board", "check", "node-0", "node-1", "node-2", "run", "server"]
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        user = re.fullmatch(r"\$\{FEDVECA_USER:-(\d+):(\d+)\}", service["user"])
        assert user, name
        assert int(user[1]) > 0  # not root
        assert service["tmpfs"] == ["/tmp"]
        assert service["logging"]["options"] == {"max-size": "16m", "max-file": "6"}
        assert "privileged" not in service
        assert ("healthcheck" in service) == (name not in ("run", "check"))
    restarts = {name: service["restart"] for name, service in services.items()}
    assert restarts == dict.fromkeys(services, "unless-stopped") | {"run": "on-failure", "check": "no"}


def test_folders_are_mounted_and_only_the_server_has_a_port(kit: Path) -> None:
    services = read_services(kit)
    for name, service in services.items():
        for volume in service["volumes"]:
            source, target, *mode = volume.split(":")
            assert source.startswith("./"), volume
            assert target.startswith(("/federation", "/data")), volume
            assert "authority" not in source  # its key stays out of every container
            if source in ("./app", "./server/runs", f"./data/{name}"):
                assert mode == ["ro"], volume
            elif source != f"./data/{name}":
                assert (kit / source).is_dir(), volume
    assert {name: service["ports"] for name, service in services.items() if "ports" in service} == {
        "server": ["127.0.0.1:8000:8000"]
    }
    assert services["board"]["network_mode"] == "host"  # where it listens on 127.0.0.1
    assert "0.0.0.0" not in str(services["board"])
    assert services["run"]["network_mode"] == services["check"]["network_mode"] == "none"
    for i in range(3):
        assert services[f"node-{i}"]["command"] == ["/federation/node/start.sh", "--superlink", "server:8000"]
        assert services[f"node-{i}"]["volumes"][0] == f"./node-{i}:/federation/node"


@pytest.mark.parametrize(
    ("host", "bind", "ports"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.1:8000:8000"),
        ("localhost", "127.0.0.1", "127.0.0.1:8000:8000"),
        ("192.168.1.10", "0.0.0.0", "192.168.1.10:8000:8000"),
        ("[fd00::1]", "::", "[fd00::1]:8000:8000"),
        ("learn.example", "0.0.0.0", "8000:8000"),
    ],
)
def test_the_port_is_loopbacks_unless_a_host_is_named(host: str, bind: str, ports: str, tmp_path: Path) -> None:
    write_compose(tmp_path, Deployment(host, bind, 8000, 1, 16.0, 5))
    services = read_services(tmp_path)
    assert services["server"]["ports"] == [ports]
    assert ("--superlink" in services["node-0"]["command"]) == (bind == "127.0.0.1")


def test_the_image_holds_packages_and_nothing_else(kit: Path) -> None:
    recipe = (kit / "Dockerfile").read_text()
    assert re.findall(r"(?m)^COPY (\S+)", recipe) == ["wheels", "requirements.txt"]
    assert re.search(r"(?m)^USER [1-9]\d+$", recipe)
    assert (kit / ".dockerignore").read_text().splitlines()[1:] == ["*", "!Dockerfile", "!requirements.txt", "!wheels"]


def test_the_server_is_certified_for_its_name_among_the_containers(kit: Path) -> None:
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate((kit / "server" / "tls" / "server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "server" in names.get_values_for_type(x509.DNSName)


def list_units(kit: Path) -> list[Path]:
    return sorted(kit.rglob("*.service"))


def test_units_restart_and_are_hardened(kit: Path) -> None:
    units = {path.name: path for path in list_units(kit)}
    nodes = [f"fedveca-node-{i}.service" for i in range(3)]
    assert sorted(units) == sorted([*nodes, "fedveca-run.service", "fedveca-server.service"])
    for name, path in units.items():
        parser = configparser.RawConfigParser(strict=True)
        parser.optionxform = str  # type: ignore[assignment, method-assign]
        parser.read(path)
        assert parser.sections() == ["Unit", "Service", "Install"], name
        service = dict(parser["Service"])
        for key in ("NoNewPrivileges", "PrivateTmp", "ProtectKernelTunables", "RestrictSUIDSGID", "LockPersonality"):
            assert service[key] == "yes", (name, key)
        assert service["ProtectSystem"] == "strict"
        assert service["UMask"] == "0077"
        assert service["CapabilityBoundingSet"] == ""
        assert service["User"] != "root"
        assert service["Restart"] == ("on-failure" if name == "fedveca-run.service" else "always")
        assert service["ReadWritePaths"] == f'"{service["WorkingDirectory"]}"'
        assert parser["Install"]["WantedBy"] == "multi-user.target"
        assert "KEY" not in path.read_text().upper().replace("KEYS", "")
        program, script, *words = service["ExecStart"].split()
        assert program == "/bin/sh"
        assert (path.parent / script).is_file()
        assert words == (["--once"] if name == "fedveca-run.service" else [])
    assert "\nRequires=fedveca-server.service\n" in units["fedveca-run.service"].read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_units(kit: Path, tmp_path: Path) -> None:
    for path in list_units(kit):
        text = re.sub(r"(?m)^User=.*$", "User=daemon", path.read_text())  # theirs need not exist here
        (tmp_path / path.name).write_text(text)
    units = [str(path) for path in sorted(tmp_path.iterdir())]
    done = subprocess.run(
        ["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False, timeout=60
    )
    ours = [line for line in (done.stdout + done.stderr).splitlines() if "fedveca" in line]
    assert not ours, ours


def test_a_place_that_a_unit_cannot_name_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a\nExecStartPre=id", 'a"b', "a'b", "a\\b"):
        with pytest.raises(UserError, match="cannot be the place of a deployment"):
            write_server_package(tmp_path / name)
        assert main(["deploy", "init", str(tmp_path / name)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
        assert not (tmp_path / name).exists()
    (tmp_path / "50% of it").mkdir()
    write_server_package(tmp_path / "50% of it")
    assert (
        f"WorkingDirectory={tmp_path}/50%% of it\n" in (tmp_path / "50% of it" / "fedveca-server.service").read_text()
    )


def test_the_lock_has_what_is_installed_and_all_that_it_needs(kit: Path) -> None:
    node, server = ((kit / name / "requirements.txt").read_text() for name in ("node-0", "server"))
    pins = dict(re.findall(r"(?m)^([a-z0-9-]+)(?:\[[a-z,]+\])?==(\S+)$", node))
    assert {"fedveca", "torch", "flwr", "cryptography", "numpy", "psutil", "grpcio", "sympy"} <= pins.keys()
    for name, version in pins.items():
        assert metadata.version(name) == version
    assert "pytest" not in pins  # what is installed, but not needed, is not in it
    assert re.search(r"(?m)^fedveca\[flower\]==", node)
    assert re.search(r"(?m)^fedveca\[board,flower\]==", server)
    assert node == lock_requirements(("flower",))
    label = pins["torch"].partition("+")[2]
    assert (f"--extra-index-url https://download.pytorch.org/whl/{label}\n" in node) == bool(label)
