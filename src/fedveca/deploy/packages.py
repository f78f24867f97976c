"""What starts a deployment and keeps it running: scripts, systemd units, a container image and a compose file."""

from __future__ import annotations

import os
import pwd
import re
import sys
from pathlib import Path
from typing import NamedTuple

from fedveca.deploy.logs import LogLimit
from fedveca.deploy.pace import DEFAULT_POLL, check_poll
from fedveca.deploy.requirements import lock_requirements
from fedveca.errors import UserError

MOST_NODES = 10_000  # each has a folder, a key and a process
SERVER_IN_COMPOSE = "server"  # the server's name among the containers of one machine
_USER = 10001  # of the containers, where root made the deployment

_NODE = """#!/bin/sh
# Starts device {i}. FEDVECA_NODE_DATA names its data: an npz file with x and y, a folder with x.npy and y.npy, or
# package.module:load. Without it the device takes its share of the experiment's data set. It runs only the app that
# pinned.json describes.
exec python3 -m fedveca.deploy.supernode "$(dirname "$0")" --superlink {address} --client {i} --clients {clients} \\
  --poll {poll:g} --log-mb {log_mb:g} --log-files {log_files} "$@"
"""
_NODE_ENVIRONMENT = """# Variables of the node, for systemd: the place of its rows, without quotes.
# FEDVECA_NODE_DATA=/path/to/rows.npz
"""
_UNIT = """# {what}
# Install: cp {name} /etc/systemd/system/ && systemctl daemon-reload && systemctl enable --now {name}
[Unit]
Description={what}
Wants=network-online.target
After=network-online.target{after}
StartLimitIntervalSec=0

[Service]
Type=exec
User={user}
WorkingDirectory={folder}
Environment="PATH={path}"{environment}
ExecStart=/bin/sh {command}
Restart={restart}
RestartSec={seconds}
KillMode=control-group
TimeoutStopSec=60
LimitNOFILE=65536
UMask=0077
NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ProtectHome=read-only
ReadWritePaths="{folder}"
PrivateTmp=yes{devices}
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native

[Install]
WantedBy=multi-user.target
"""
_DOCKERFILE = """# The image of every part: Python and packages, no key, no data, no settings.
# If a version in requirements.txt is not published, put its wheel into wheels/.
FROM python:{python}-slim
COPY wheels /tmp/wheels
COPY requirements.txt /tmp/requirements.txt
RUN pip install --no-cache-dir --find-links /tmp/wheels -r /tmp/requirements.txt && useradd --uid {user} fedveca
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp MPLCONFIGDIR=/tmp
USER {user}
WORKDIR /federation
"""
_IGNORED = """# Nothing but this goes to whoever builds the image: above all no key.
*
!Dockerfile
!requirements.txt
!wheels
"""
_COMPOSE = """# docker compose up -d server node-0    starts parts of the federation
# docker compose run --rm check          looks whether all is well before the first round
# docker compose up -d run board         the experiment, resumed after a restart, and a page of its runs
# The folders of this deployment are mounted; the image contains none of them. They belong to the user named here: where
# root made them, run `chown -R {user} .` first. A device needs Dockerfile, requirements.txt, wheels/, this file and its
# own node-I/.
x-part: &part
  image: fedveca-deployment
  build: .
  user: "${{FEDVECA_USER:-{user}}}"
  read_only: true
  tmpfs: [/tmp]
  cap_drop: [ALL]
  security_opt: ["no-new-privileges:true"]
  init: true
  restart: unless-stopped
  stop_grace_period: 60s
  logging: {{driver: json-file, options: {{max-size: "{log_mb:g}m", max-file: "{log_count}"}}}}

x-node-health: &node-health
  test: ["CMD", "python3", "-c", "import socket as s; s.socket(s.AF_UNIX).connect('/federation/node/api.sock')"]
  interval: 30s
  timeout: 10s
  start_period: 60s
  retries: 3

services:
  server:
    <<: *part
    command: [/federation/server/start.sh, --host, "{everywhere}"]
    volumes: ["./server:/federation/server", "./app:/federation/app:ro"]
    ports: ["{published}:{port}"]
    healthcheck:
      test: ["CMD", "python3", "-c", "import socket; socket.create_connection(('127.0.0.1', {port}), 5).close()"]
      interval: 30s
      timeout: 10s
      start_period: 60s
      retries: 3
  run:
    <<: *part
    command: [/federation/server/run.sh, --once]
    volumes: ["./server:/federation/server", "./app:/federation/app:ro"]
    network_mode: none
    restart: on-failure
    depends_on: {{server: {{condition: service_healthy}}}}
  check:
    <<: *part
    command: [fedveca, deploy, check, /federation]
    volumes: ["./server:/federation/server", "./app:/federation/app:ro"]
    network_mode: none
    restart: "no"
    profiles: [check]
  board:
    <<: *part
    command: [fedveca, board, /federation/server/runs]
    volumes: ["./server/runs:/federation/server/runs:ro"]
    network_mode: host
    healthcheck:
      test: ["CMD", "python3", "-c", "import socket; socket.create_connection(('127.0.0.1', 8765), 5).close()"]
      interval: 30s
      timeout: 10s
      start_period: 60s
      retries: 3
"""
_COMPOSE_NODE = """  node-{i}:
    <<: *part
    command: [/federation/node/start.sh{address}]
    volumes: ["./node-{i}:/federation/node", "./data/node-{i}:/data:ro"]
    environment: {{FEDVECA_NODE_DATA: "${{FEDVECA_NODE_DATA_{i}:-}}"}}
    healthcheck: *node-health
"""


class Deployment(NamedTuple):
    """What the parts of a deployment agree on."""

    host: str  # the server's name or address, as in HOST:PORT
    bind: str  # the address that it listens on
    port: int
    clients: int  # of the next run
    log_mb: float
    log_files: int
    poll: float = DEFAULT_POLL

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def check(self) -> None:
        """Raises UserError where a value cannot be what `deploy init` wrote."""
        hosts = all(isinstance(v, str) and re.fullmatch(r"[\w.:\[\]-]{1,253}", v, re.ASCII) for v in self[:2])
        if not hosts or type(self.port) is not int or not 1 <= self.port <= 65535:
            raise UserError("its address is not that of a server")
        if type(self.clients) is not int or not 1 <= self.clients <= MOST_NODES:
            raise UserError(f"its number of clients is not within 1 to {MOST_NODES}")
        if type(self.log_mb) not in (int, float) or type(self.log_files) is not int:
            raise UserError("its limits of logs are not numbers")
        LogLimit(self.log_mb, self.log_files).check()
        check_poll(self.poll)


def write_script(path: Path, text: str) -> None:
    """Writes a program."""
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def write_node_package(home: Path, client: int, deployment: Deployment) -> None:
    """Writes what starts a node, by hand or by systemd, and what it installs.

    Args:
        home: the node's folder.
        client: which client it is.
        deployment: what all parts agree on.
    """
    of = {"address": deployment.address, "clients": deployment.clients}
    limits = {"log_mb": deployment.log_mb, "log_files": deployment.log_files}
    write_script(home / "start.sh", _NODE.format(i=client, poll=deployment.poll, **of, **limits))
    (home / "node.env").write_text(_NODE_ENVIRONMENT)
    (home / "requirements.txt").write_text(lock_requirements(("flower",)))
    place = f"/opt/fedveca/node-{client}"
    unit = _format_unit(
        f"fedveca-node-{client}.service",
        f"FedVeca node {client}; its folder is in /opt/fedveca, its packages in /opt/fedveca/venv",
        place,
        "start.sh",
        user="fedveca",
        path="/opt/fedveca/venv/bin:/usr/local/bin:/usr/bin:/bin",
        environment=f"\nEnvironmentFile=-{place}/node.env",
    )
    (home / f"fedveca-node-{client}.service").write_text(unit)


def write_server_package(server: Path) -> None:
    """Writes the server's two units, and what it installs."""
    folder = _escape(str(server.absolute()))
    user = "fedveca" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    path = _escape(f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin")
    app = _escape(str(server.absolute().parent / "app"))
    units = {
        "fedveca-server.service": _format_unit(
            "fedveca-server.service", "FedVeca server", folder, "start.sh", user=user, path=path, private_devices=True
        ),
        "fedveca-run.service": _format_unit(
            "fedveca-run.service",
            f"FedVeca experiment of {app}: started once, and resumed until it is finished",
            folder,
            "run.sh --once",
            user=user,
            path=path,
            after="fedveca-server.service",
            restart="on-failure",
            private_devices=True,
        ),
    }
    for name, text in units.items():
        (server / name).write_text(text)
    (server / "requirements.txt").write_text(lock_requirements(("board", "flower")))


def write_compose(folder: Path, deployment: Deployment) -> None:
    """Writes an image's recipe and a compose file for the server, the nodes and a board.

    Args:
        folder: the folder of the deployment.
        deployment: what all parts agree on.
    """
    owner, group = (os.geteuid(), os.getegid()) if os.geteuid() else (_USER, _USER)
    loopback = deployment.bind in ("127.0.0.1", "::1")
    is_address = re.fullmatch(r"[0-9.]+|\[.*\]", deployment.host) is not None
    published = f"{deployment.host}:" if is_address else "127.0.0.1:" if loopback else ""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    (folder / "Dockerfile").write_text(_DOCKERFILE.format(python=python, user=_USER))
    (folder / ".dockerignore").write_text(_IGNORED)
    (folder / "requirements.txt").write_text(lock_requirements(("board", "flower")))
    (folder / "wheels").mkdir(exist_ok=True)
    (folder / "wheels" / ".keep").write_text("")
    text = _COMPOSE.format(
        user=f"{owner}:{group}",
        log_mb=max(deployment.log_mb, 1),
        log_count=deployment.log_files + 1,
        everywhere="::" if deployment.bind == "::" else "0.0.0.0",
        published=f"{published}{deployment.port}",
        port=deployment.port,
    )
    inside = f', --superlink, "{SERVER_IN_COMPOSE}:{deployment.port}"' if loopback else ""
    text += "".join(_COMPOSE_NODE.format(i=i, address=inside) for i in range(deployment.clients))
    (folder / "compose.yaml").write_text(text)


def _format_unit(
    name: str,
    what: str,
    folder: str,
    command: str,
    *,
    user: str,
    path: str,
    environment: str = "",
    after: str = "",
    restart: str = "always",
    private_devices: bool = False,
) -> str:
    """A unit's text. A node keeps its devices: it may compute on one."""
    return _UNIT.format(
        name=name,
        what=what,
        folder=folder,
        command=command,
        user=user,
        path=path,
        environment=environment,
        after=f" {after}\nRequires={after}" if after else "",
        restart=restart,
        seconds=30 if after else 5,
        devices="\nPrivateDevices=yes" if private_devices else "",
    )


def _escape(text: str) -> str:
    """A path as part of a unit; UserError for one that a unit cannot name."""
    if not text.isprintable() or any(c in text for c in "\"\\'"):
        raise UserError(f"{text!a} cannot be the place of a deployment: a systemd unit could not name it")
    return text.replace("%", "%%")
